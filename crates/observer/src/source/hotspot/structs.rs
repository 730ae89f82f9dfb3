//! Reads `gHotSpotVMStructs` of a live VM. The table comes from the VM's memory: relocation has made it resident. The
//! names come from libjvm's file, so that no page of the target is touched for them.

use std::collections::HashMap;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};

use super::direct_buffers::{self, BufferClasses};
use super::field_table::{FieldTable, Row};
use super::perfdata::ClassCounts;
use super::{heap, names};
use crate::source::known_files::MappedFile;
use crate::source::load_segments::{load_segments, offset_of};
use plimsoll_facts::snapshot::{DirectBuffers, JavaThread, VmRegion, Vma};
use plimsoll_facts::units::Avma;
use plimsoll_process::foreign::{FileKind, Regular, Why};
use plimsoll_process::proc::Target;
use plimsoll_process::proc::memory::{Live, Memory, Paged, half_at, word_at};

/// Limit of rows that are read, also of those whose names are unknown.
const MOST_ROWS: usize = 20_000;
const ROWS_AT_ONCE: usize = 64;
/// The table has eight symbols. A hostile file may have millions, all with their names in the same 16 KiB.
const MOST_SYMBOLS: usize = 16;
const LONGEST_NAME: usize = 96;

/// What was read through the table.
#[derive(Default)]
pub(crate) struct VmFacts {
    /// None if the VM has no such count.
    pub direct_buffers: Option<DirectBuffers>,
    /// Results that later readings reuse.
    pub known: Option<KnownVm>,
    /// Addresses of the Java heap and its card table; of JDK 8 also of the code cache.
    pub regions: Vec<VmRegion>,
    /// None if the names can't be read.
    pub threads: Option<Vec<JavaThread>>,
}

/// What is kept of a VM from one reading to the next. Each part holds until something that shows its change:
///
/// | part | holds as long as |
/// | --- | --- |
/// | offsets and addresses of the VM's fields | libjvm is the same file at the same address |
/// | the classes that have the count of direct buffers | hsperfdata counts no class that came or went |
/// | the field with a thread's name | most threads have a name in it |
/// | regions that only VM.info prints | the VM lives: it reserves them once |
///
/// Finding the fields takes 3,000 reads of libjvm's file. Finding the classes takes one or two reads of the target's
/// memory for each class. VM.info takes the VM 6 to 8 ms.
#[derive(Clone)]
pub struct KnownVm {
    library: MappedFile,
    fields: Fields,
    classes: Option<BufferClasses>,
    /// The last search for them left classes out.
    is_cut: bool,
    /// The last search went through all classes, and found none that counts buffers.
    counts_nothing: bool,
    /// The VM's counts before the last search for classes. None: no search, or the VM doesn't count.
    counted: Option<ClassCounts>,
    name_field: Option<names::NameField>,
    /// None: VM.info was not sent.
    pub(crate) info: Option<Vec<VmRegion>>,
}

/// The fields of each kind; None if the table lacks one of them.
#[derive(Clone, Copy, Default)]
struct Fields {
    buffers: Option<direct_buffers::BufferFields>,
    threads: Option<names::ThreadFields>,
    heap: Option<heap::HeapFields>,
    code: Option<heap::CodeFields>,
}

impl Fields {
    fn of(fields: &FieldTable) -> Fields {
        Fields {
            buffers: direct_buffers::BufferFields::of(fields),
            threads: names::ThreadFields::of(fields),
            heap: heap::HeapFields::of(fields),
            code: heap::CodeFields::of(fields),
        }
    }
}

impl KnownVm {
    fn new(library: MappedFile, fields: Fields) -> KnownVm {
        KnownVm {
            library,
            fields,
            classes: None,
            is_cut: false,
            counts_nothing: false,
            counted: None,
            name_field: None,
            info: None,
        }
    }

    pub(crate) fn of(target: &Target, vmas: &[Vma], memory: &Live) -> Option<KnownVm> {
        let library = library(vmas)?;
        let file = target.mapped(library, FileKind::Object).ok()?;
        let rows = rows(&file, library, memory)?;
        // After the deadline, names may be missing in the rows.
        (!target.deadline().has_passed()).then(|| KnownVm::new(MappedFile::of(library), Fields::of(&rows)))
    }

    /// Whether the table has the fields that lead to the counts of direct buffers.
    pub(crate) fn has_buffer_fields(&self) -> bool {
        self.fields.buffers.is_some()
    }

    /// Whether the classes that have the count of direct buffers were found.
    pub(crate) fn is_found(&self) -> bool {
        self.classes.is_some()
    }

    /// Whether the VM has more classes than were searched.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Searches for these classes, unless no class came or went since the last search. `counted` was read before the
    /// search, because the VM counts a class only after the class can be found.
    pub(crate) fn search(&mut self, memory: &impl Memory, counted: Option<ClassCounts>) {
        let is_same = counted.is_some() && counted == self.counted;
        let Some(fields) = self.fields.buffers.as_ref().filter(|_| !is_same) else { return };
        // If the search fails, the classes changed meanwhile. The next search may succeed.
        if let Some(found) = direct_buffers::search(&Paged::new(memory), fields) {
            let classes = found.classes();
            // The classes are the boot loader's, and never unloaded. If they are gone, the search met a list that was
            // changing.
            if classes.is_some() || self.classes.is_none() {
                (self.classes, self.is_cut, self.counted) = (classes, found.is_cut, counted);
                self.counts_nothing = found.counts_nothing();
            }
        }
    }

    /// Reads the count. None if its classes are unknown.
    pub(crate) fn direct_buffers(&self, memory: &impl Memory) -> Option<DirectBuffers> {
        match self.classes {
            Some(classes) => direct_buffers::read(memory, self.fields.buffers.as_ref()?, classes),
            None => self.counts_nothing.then(direct_buffers::none),
        }
    }

    fn threads(&mut self, memory: &impl Memory) -> Option<Vec<JavaThread>> {
        names::threads_by(memory, self.fields.threads.as_ref()?, &mut self.name_field)
    }

    fn regions(&self, memory: &impl Memory) -> Vec<VmRegion> {
        let heap = self.fields.heap.map(|fields| heap::regions(memory, &fields)).unwrap_or_default();
        let code = self.fields.code.and_then(|fields| heap::code(memory, &fields));
        heap.into_iter().chain(code).collect()
    }
}

fn library(vmas: &[Vma]) -> Option<&Vma> {
    vmas.iter().filter(|vma| vma.name.ends_with("/libjvm.so")).min_by_key(|vma| vma.range.start)
}

/// None if there is no such table. The error says what refused it. `known` is of an earlier reading; `counted` was read
/// before.
pub(crate) fn read(
    target: &Target,
    vmas: &[Vma],
    known: Option<KnownVm>,
    counted: Option<ClassCounts>,
) -> Result<Option<VmFacts>, String> {
    let Some(library) = library(vmas) else { return Ok(None) };
    let open =
        || Live::open(target).map_err(|error| format!("the VM's own tables in /proc/{}/mem: {error}", target.pid()));
    // Without these fields, the table may have been read before libjvm was relocated.
    let is_whole = |known: &KnownVm| known.library == MappedFile::of(library) && known.has_buffer_fields();
    let (memory, mut known) = match known.filter(is_whole) {
        Some(known) => (open()?, known),
        None => {
            let file = target.mapped(library, FileKind::Object).map_err(|why| format!("{} {why}", library.name))?;
            let memory = open()?;
            let rows = rows(&file, library, &memory);
            // After the deadline, names may be missing in the rows, or the table's own name.
            if target.deadline().has_passed() {
                return Err(format!("{} {}", library.name, Why::Late));
            }
            let Some(rows) = rows else { return Ok(None) };
            (memory, KnownVm::new(MappedFile::of(library), Fields::of(&rows)))
        }
    };
    known.search(&memory, counted);
    Ok(Some(VmFacts {
        direct_buffers: known.direct_buffers(&memory),
        threads: known.threads(&memory),
        regions: known.regions(&memory),
        known: Some(known),
    }))
}

fn rows(file: &Regular, library: &Vma, memory: &Live) -> Option<FieldTable> {
    let pieces = file.pieces();
    let elf = ElfFile64::<object::Endianness, _>::parse(&pieces).ok()?;
    let segments = load_segments(&elf);
    let bias = library.range.start.0.checked_sub(library.offset)?;
    let symbols = of_table(elf.dynamic_symbols().filter_map(|symbol| Some((symbol.name().ok()?, symbol.address()))));
    let value = |name: &str| {
        let address = symbols.iter().find(|(symbol, _)| symbol == name)?.1;
        memory.word(Avma(bias.checked_add(address)?))
    };
    let at = |name: &str| value(&format!("gHotSpotVMStructEntry{name}Offset")).map(|offset| offset as usize);
    let table = Table {
        at: value("gHotSpotVMStructs")?,
        stride: value("gHotSpotVMStructEntryArrayStride")? as usize,
        of: at("TypeName")?,
        name: at("FieldName")?,
        offset: at("Offset")?,
        address: at("Address")?,
        is_static: at("IsStatic")?,
    };
    // A type has one row per field, so cache the names.
    let mut known = HashMap::<u64, Option<String>>::new();
    let name_at_address = |address: u64| {
        let address = address.checked_sub(bias)?;
        let offset = offset_of(&segments, address)?;
        let mut bytes = [0; LONGEST_NAME];
        let count = file.at(offset, &mut bytes).ok()?;
        let end = bytes[..count].iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    };
    table.rows(memory, |address| known.entry(address).or_insert_with(|| name_at_address(address)).clone())
}

/// The symbols that say where the table is, and what its rows contain.
fn of_table<'n>(symbols: impl Iterator<Item = (&'n str, u64)>) -> Vec<(String, u64)> {
    let own = symbols.filter(|(name, _)| name.starts_with("gHotSpotVMStruct"));
    own.take(MOST_SYMBOLS).map(|(name, address)| (name.to_owned(), address)).collect()
}

/// Where the table is, and the offsets of the fields in a row.
struct Table {
    at: u64,
    stride: usize,
    of: usize,
    name: usize,
    offset: usize,
    address: usize,
    is_static: usize,
}

impl Table {
    /// The rows up to the one without a type. `text` returns the name at an address.
    fn rows(&self, memory: &impl Memory, mut text: impl FnMut(u64) -> Option<String>) -> Option<FieldTable> {
        if !(32..=256).contains(&self.stride) {
            return None;
        }
        let mut rows = Vec::new();
        let mut some = vec![0; self.stride * ROWS_AT_ONCE];
        let (mut from, mut left) = (self.at, MOST_ROWS);
        while left > 0 {
            // The last rows may lie at the end of the mapping.
            let count = match memory.read(Avma(from), &mut some) {
                true => ROWS_AT_ONCE,
                false => usize::from(memory.read(Avma(from), &mut some[..self.stride])),
            };
            for row in some[..count * self.stride].chunks_exact(self.stride) {
                let of = word_at(row, self.of)?;
                if of == 0 {
                    return Some(FieldTable(rows));
                }
                let (Some(of), Some(name)) = (text(of), text(word_at(row, self.name)?)) else { continue };
                let address = if half_at(row, self.is_static)? != 0 { word_at(row, self.address)? } else { 0 };
                rows.push(Row { of, name, offset: word_at(row, self.offset)?, address });
            }
            if count == 0 {
                break;
            }
            left = left.saturating_sub(count);
            from = from.checked_add((count * self.stride) as u64)?;
        }
        Some(FieldTable(rows))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::super::objects::ObjectFields;
    use super::super::objects::image::{BASE, Image};
    use super::*;
    use crate::source::made_image::Counted;
    use plimsoll_facts::units::Bytes;

    const BUFFERS: direct_buffers::BufferFields = direct_buffers::BufferFields {
        classes: direct_buffers::Classes::OfLoaders { head: BASE, next_loader: 0, klasses: 8, next_klass: 8 },
        loader_object: 16,
        klass_name: 0,
        klass_mirror: 16,
        symbol_length: 0,
        symbol_body: 8,
        mirror_size: BASE,
        objects: ObjectFields {
            oop_base: 0,
            oop_shift: 0,
            klass_base: 0,
            klass_shift: 0,
            z_globals: 0,
            z_load_shift: 0,
        },
    };

    /// A boot loader with the class AtomicLong, and maybe Bits.
    fn classes(has_bits: bool) -> Counted<Image> {
        const LOADER: u64 = BASE + 0x40;
        let mut bytes = vec![0; 4096];
        let mut put = |at: u64, new: &[u8]| bytes[(at - BASE) as usize..][..new.len()].copy_from_slice(new);
        let names = ["java/util/concurrent/atomic/AtomicLong", "java/nio/Bits"];
        let mut before = 0u64;
        for (n, name) in names.iter().enumerate().take(1 + usize::from(has_bits)) {
            let klass = BASE + 0x100 + 0x100 * n as u64;
            let symbol = klass + 0x40;
            put(klass, &symbol.to_le_bytes());
            put(klass + 8, &before.to_le_bytes());
            put(symbol, &(name.len() as u16).to_le_bytes());
            put(symbol + 8, name.as_bytes());
            before = klass;
        }
        put(BASE, &LOADER.to_le_bytes());
        put(LOADER + 8, &before.to_le_bytes());
        Counted::new(Image(bytes))
    }

    /// With another loader in front of the boot loader. Its list of classes never ends.
    fn behind_endless(is_boot: bool) -> Counted<Image> {
        const LOADER: u64 = BASE + 0x60;
        const KLASS: u64 = BASE + 0x80;
        let mut classes = classes(true);
        let mut put = |at: u64, word: u64| {
            classes.memory.0[(at - BASE) as usize..][..8].copy_from_slice(&word.to_le_bytes());
        };
        put(BASE, LOADER);
        put(LOADER, BASE + 0x40);
        put(LOADER + 8, KLASS);
        put(LOADER + 16, if is_boot { 0 } else { BASE + 0x200 });
        put(KLASS, BASE + 0xa0);
        put(KLASS + 8, KLASS);
        classes
    }

    #[test]
    fn classes_are_searched_again_if_the_vm_counts_another_one() {
        let library = MappedFile::of(&Vma::default());
        let mut known = KnownVm::new(library, Fields { buffers: Some(BUFFERS), ..Fields::default() });
        let mut search = |has_bits, counted: Option<u64>| {
            let memory = classes(has_bits);
            known.search(&memory, counted.map(|loaded| ClassCounts([loaded, 400, 0, 0])));
            (memory.reads.get() > 0, known.is_found())
        };
        assert_eq!(search(false, Some(1)), (true, false));
        assert_eq!(search(false, Some(1)), (false, false), "none came");
        assert_eq!(search(true, Some(2)), (true, true), "the next search finds a class that came");
        assert_eq!(search(true, Some(2)), (false, true));
        assert_eq!(search(true, None), (true, true), "a VM without counts");
        assert_eq!(search(true, None), (true, true));
        // The search fails, since a class was removed from the list meanwhile. The known classes stay until a search
        // succeeds.
        let mut torn = KnownVm { classes: None, ..known.clone() };
        let empty = Image(Vec::new());
        for known in [&mut known, &mut torn] {
            let before = known.is_found();
            known.search(&empty, Some(ClassCounts([3, 400, 1, 0])));
            assert_eq!(known.is_found(), before);
            let memory = classes(true);
            known.search(&memory, Some(ClassCounts([3, 400, 1, 0])));
            assert!(memory.reads.get() > 0 && known.is_found());
        }
    }

    /// What a search finds of a VM whose first loader, the boot loader or another, has classes without end.
    pub(in super::super) fn of_endless(is_boot: bool) -> KnownVm {
        searched(&behind_endless(is_boot))
    }

    fn searched(memory: &Counted<Image>) -> KnownVm {
        let library = MappedFile::of(&Vma::default());
        let mut known = KnownVm::new(library, Fields { buffers: Some(BUFFERS), ..Fields::default() });
        known.search(memory, None);
        known
    }

    /// The boot loader's entry is the last one.
    #[test]
    fn the_boot_loaders_classes_are_found_behind_any_number_of_others() {
        let found = |known: KnownVm| (known.is_found(), known.is_cut());
        assert_eq!(found(searched(&classes(true))), (true, false));
        assert_eq!(found(of_endless(false)), (true, true));
        // Too many of the boot loader's own, in entries of their own.
        assert_eq!(found(of_endless(true)), (false, true));
    }

    /// No direct buffer was created, so the class that counts them isn't loaded.
    #[test]
    fn a_vm_without_the_class_that_counts_has_no_buffers() {
        let count = |memory: &Counted<Image>| {
            let direct = searched(memory).direct_buffers(memory);
            direct.map(|direct| (direct.count, direct.capacity))
        };
        assert_eq!(count(&classes(false)), Some((Some(0), Bytes(0))));
        // Bits may be among the classes that weren't searched.
        assert_eq!(count(&behind_endless(true)), None);
        // Nothing of the boot loader was seen.
        assert_eq!(count(&Counted::new(Image(vec![0; 4096]))), None);
    }

    /// So many rows of 40 bytes (`typeName`, `fieldName`, `isStatic`, `offset`, `address`), then one without a type.
    struct Rows40 {
        rows: u64,
        reads: Cell<usize>,
    }

    const AT: u64 = 0x7000;
    const TABLE: Table = Table { at: AT, stride: 40, of: 0, name: 8, is_static: 16, offset: 24, address: 32 };

    impl Memory for Rows40 {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            self.reads.set(self.reads.get() + 1);
            let first = (at.0 - AT) / 40;
            if (at.0 + into.len() as u64 - AT) / 40 > self.rows + 1 {
                return false;
            }
            for (number, row) in (first..).zip(into.chunks_exact_mut(40)) {
                let of = if number < self.rows { 1 } else { 0 };
                let words = [of, number, number % 2, number * 8, number * 16].map(u64::to_le_bytes);
                row.copy_from_slice(&words.concat());
            }
            true
        }

        fn pagemap(&self, _: u64, _: &mut [u64]) -> bool {
            false
        }
    }

    #[test]
    fn rows_are_read_up_to_the_one_without_a_type() {
        for number in [0, 1, 63, 64, 65, 1000] {
            let memory = Rows40 { rows: number, reads: Cell::default() };
            let rows =
                TABLE.rows(&memory, |address| (address % 3 != 2).then(|| address.to_string())).expect("a table").0;
            let expected = (0..number).filter(|number| number % 3 != 2);
            let found = rows
                .iter()
                .map(|row| (row.of.as_str(), row.name.parse::<u64>().expect("a number"), row.offset, row.address));
            let expected = expected.map(|n| ("1", n, n * 8, if n % 2 == 1 { n * 16 } else { 0 }));
            assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_bounded_number_of_symbols_is_kept() {
        let table = [("gHotSpotVMStructs", 8), ("gHotSpotVMStructEntryOffsetOffset", 16)];
        let others = (0..1000).map(|number| ("gHotSpotVMStructX", number));
        let found = of_table([("malloc", 1)].into_iter().chain(table).chain(others));
        assert_eq!(found[..2], table.map(|(name, address)| (name.to_owned(), address)));
        assert_eq!(found.len(), MOST_SYMBOLS);
    }

    /// A process may map one page of rows over and over: terabytes of them.
    #[test]
    fn a_table_of_unknown_names_ends() {
        let memory = Rows40 { rows: 1 << 40, reads: Cell::default() };
        assert!(TABLE.rows(&memory, |_| None).expect("a table").0.is_empty());
        assert_eq!(memory.reads.get(), MOST_ROWS.div_ceil(ROWS_AT_ONCE));
    }
}
