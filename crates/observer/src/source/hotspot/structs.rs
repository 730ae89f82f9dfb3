//! Reads `gHotSpotVMStructs` of a live VM. The table comes from the VM's memory: relocation has made it resident. The
//! names come from libjvm's file, so that no page of the target is touched for them.

use std::collections::HashMap;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSegment, ObjectSymbol};

use super::direct::{self, BufferClasses, direct_buffers};
use super::rows::{Row, Rows};
use super::{heap, names};
use plimsoll_facts::snapshot::{DirectBuffers, JavaThread, VmRegion, Vma};
use plimsoll_facts::units::Avma;
use plimsoll_process::foreign::{FileKind, Regular, Why};
use plimsoll_process::proc::Target;
use plimsoll_process::proc::memory::{Live, Memory, half_at, word_at};

const MOST_ROWS: usize = 20_000;
const ROWS_AT_ONCE: usize = 64;
const LONGEST_NAME: usize = 96;

/// What was read through the table.
#[derive(Default)]
pub(crate) struct VmFacts {
    /// None if the VM has no such count.
    pub direct_buffers: Option<DirectBuffers>,
    /// The path to that count, for later readings.
    pub direct: Option<Direct>,
    /// Addresses of the Java heap and its card table; of JDK 8 also of the code cache.
    pub regions: Vec<VmRegion>,
    /// None if the names can't be read.
    pub threads: Option<Vec<JavaThread>>,
}

/// The path to the count of direct buffers, kept from one reading to the next. Finding the classes takes some ms; the
/// count itself takes a few reads of memory.
#[derive(Clone, Copy)]
pub struct Direct {
    fields: direct::BufferFields,
    classes: Option<BufferClasses>,
}

impl Direct {
    pub fn of(target: &Target, vmas: &[Vma], memory: &Live) -> Option<Direct> {
        let library = library(vmas)?;
        let file = target.mapped(library, FileKind::Object).ok()?;
        Some(Direct { fields: direct::BufferFields::of(&rows(&file, library, memory)?)?, classes: None })
    }

    /// Whether the classes were found.
    pub fn is_found(&self) -> bool {
        self.classes.is_some()
    }

    /// Searches for the classes if they weren't found yet, and reads the count.
    pub fn read(&mut self, memory: &Live) -> Option<DirectBuffers> {
        self.classes = self.classes.or_else(|| direct::find_classes(memory, &self.fields));
        direct_buffers(memory, &self.fields, self.classes?)
    }
}

fn library(vmas: &[Vma]) -> Option<&Vma> {
    vmas.iter().filter(|vma| vma.name.ends_with("/libjvm.so")).min_by_key(|vma| vma.range.start)
}

/// None if there is no such table. The error says what refused it.
pub(crate) fn read(target: &Target, vmas: &[Vma]) -> Result<Option<VmFacts>, String> {
    let Some(library) = library(vmas) else { return Ok(None) };
    let file = target.mapped(library, FileKind::Object).map_err(|why| format!("{} {why}", library.name))?;
    let memory =
        Live::open(target).map_err(|error| format!("the VM's own tables in /proc/{}/mem: {error}", target.pid()))?;
    let rows = rows(&file, library, &memory);
    // After the deadline, names may be missing in the rows, or the table's own name.
    if target.deadline().has_passed() {
        return Err(format!("{} {}", library.name, Why::Late));
    }
    let Some(rows) = rows else { return Ok(None) };
    let mut direct = direct::BufferFields::of(&rows).map(|fields| Direct { fields, classes: None });
    Ok(Some(VmFacts {
        direct_buffers: direct.as_mut().and_then(|direct| direct.read(&memory)),
        direct,
        threads: names::ThreadFields::of(&rows).and_then(|fields| names::threads(&memory, &fields)),
        regions: regions(&rows, &memory),
    }))
}

fn regions(rows: &Rows, memory: &Live) -> Vec<VmRegion> {
    let heap = heap::HeapFields::of(rows).map(|fields| heap::regions(memory, &fields)).unwrap_or_default();
    let code = heap::CodeFields::of(rows).and_then(|fields| heap::code(memory, &fields));
    heap.into_iter().chain(code).collect()
}

fn rows(file: &Regular, library: &Vma, memory: &Live) -> Option<Rows> {
    let pieces = file.pieces();
    let elf = ElfFile64::<object::Endianness, _>::parse(&pieces).ok()?;
    let segments: Vec<(u64, u64, u64)> =
        elf.segments().map(|segment| (segment.address(), segment.size(), segment.file_range().0)).collect();
    let bias = library.range.start.0.checked_sub(library.offset)?;
    let symbols: Vec<(String, u64)> = elf
        .dynamic_symbols()
        .filter_map(|symbol| Some((symbol.name().ok()?, symbol.address())))
        .filter(|(name, _)| name.starts_with("gHotSpotVMStruct"))
        .map(|(name, address)| (name.to_string(), address))
        .collect();
    let value = |name: &str| {
        let address = symbols.iter().find(|(symbol, _)| symbol == name)?.1;
        memory.word(Avma(bias.checked_add(address)?))
    };
    let table = value("gHotSpotVMStructs")?;
    let stride = value("gHotSpotVMStructEntryArrayStride")? as usize;
    let at = |name: &str| value(&format!("gHotSpotVMStructEntry{name}Offset")).map(|offset| offset as usize);
    let (of_at, name_at) = (at("TypeName")?, at("FieldName")?);
    let (offset_at, address_at, static_at) = (at("Offset")?, at("Address")?, at("IsStatic")?);
    if !(32..=256).contains(&stride) {
        return None;
    }
    // A type has one row per field, so cache the names.
    let mut known = HashMap::<u64, Option<String>>::new();
    let name_at_address = |address: u64| {
        let address = address.checked_sub(bias)?;
        let (start, _, offset) =
            segments.iter().find(|(start, size, _)| address >= *start && address - start < *size)?;
        let mut bytes = [0; LONGEST_NAME];
        let count = file.at((address - start).checked_add(*offset)?, &mut bytes).ok()?;
        let end = bytes[..count].iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    };
    let mut text = |address: u64| known.entry(address).or_insert_with(|| name_at_address(address)).clone();
    let mut rows = Vec::new();
    let mut some = vec![0; stride * ROWS_AT_ONCE];
    let mut from = table;
    while rows.len() < MOST_ROWS {
        // The last rows may lie at the end of the mapping.
        let count = match memory.read(Avma(from), &mut some) {
            true => ROWS_AT_ONCE,
            false => usize::from(memory.read(Avma(from), &mut some[..stride])),
        };
        for row in some[..count * stride].chunks_exact(stride) {
            let of = word_at(row, of_at)?;
            if of == 0 {
                return Some(Rows(rows));
            }
            let (Some(of), Some(name)) = (text(of), text(word_at(row, name_at)?)) else { continue };
            let address = if half_at(row, static_at)? != 0 { word_at(row, address_at)? } else { 0 };
            rows.push(Row { of, name, offset: word_at(row, offset_at)?, address });
        }
        if count == 0 {
            break;
        }
        from = from.checked_add((count * stride) as u64)?;
    }
    Some(Rows(rows))
}
