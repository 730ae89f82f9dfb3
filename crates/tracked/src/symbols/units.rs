//! The units of an object's debug information, read on request. Pure; the bytes may be hostile.
//!
//! ```text
//! header ─► table of abbreviations ─► root entry ─► header of the line program: directories and files
//! ```
//! In memory, a byte of these tables takes up to 140, and any number of units may share a table. So their lengths are
//! looked at before they are parsed, and count as steps each time.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use gimli::{AttributeValue, EndianSlice, LittleEndian, Reader, Section, UnitOffset};

use super::budget::Budget;

/// The reader; sections are in memory.
pub(crate) type Bytes<'a> = EndianSlice<'a, LittleEndian>;
/// The sections of one object, and of the file that it shares with others (dwz), if there is one.
pub(crate) type Dwarf<'a> = gimli::Dwarf<Bytes<'a>>;
pub(super) type Unit<'a> = gimli::Unit<Bytes<'a>>;

/// Limit of units: Chromium has 100,000.
const MOST: usize = 1 << 20;
/// Limit of one table's length, bytes. A unit with 20,000 files has a line program with a header of 1 MiB.
pub(super) const LARGEST: usize = 2 << 20;
/// Bytes of a table that are parsed in one step.
const AT_ONCE: usize = 16;
/// Memory for a byte of a table of abbreviations, at most: an entry without attributes takes five bytes, and 150 in
/// memory.
pub(super) const PARSED: usize = 30;
/// Limits of units that stay in memory: their number, and bytes of their tables.
const KEPT: usize = 4096;
pub(super) const KEPT_BYTES: usize = 256 << 20;

/// The units of .debug_info, by offset.
pub(super) struct Units<'a> {
    pub(super) headers: Vec<gimli::UnitHeader<Bytes<'a>>>,
    /// Start of each unit in .debug_info, ascending.
    starts: Vec<usize>,
    pub(super) read: HashMap<usize, Option<Rc<Unit<'a>>>>,
    /// Upper bound of the memory that `read` takes.
    pub(super) bytes: usize,
}

impl<'a> Units<'a> {
    pub(super) fn new(dwarf: &Dwarf<'a>) -> Units<'a> {
        let (mut headers, mut starts) = (Vec::new(), Vec::new());
        let mut all = dwarf.units();
        while headers.len() < MOST
            && let Ok(Some(header)) = all.next()
        {
            if let Some(offset) = header.debug_info_offset() {
                starts.push(offset.0);
                headers.push(header);
            }
        }
        Units { headers, starts, read: HashMap::new(), bytes: 0 }
    }

    pub(super) fn at(&self, offset: usize) -> Option<usize> {
        self.starts.binary_search(&offset).ok()
    }

    /// None if the unit can't be parsed.
    pub(super) fn get(
        &mut self,
        dwarf: &Dwarf<'a>,
        index: usize,
        budget: &mut Budget<'_>,
    ) -> Result<Option<Rc<Unit<'a>>>, String> {
        if let Some(unit) = self.read.get(&index) {
            return Ok(unit.clone());
        }
        if self.read.len() >= KEPT || self.bytes >= KEPT_BYTES {
            self.read.clear();
            self.bytes = 0;
        }
        let Some(header) = self.headers.get(index) else { return Ok(None) };
        let unit = self.parse(dwarf, *header, budget)?.map(Rc::new);
        self.read.insert(index, unit.clone());
        Ok(unit)
    }

    fn parse(
        &mut self,
        dwarf: &Dwarf<'a>,
        header: gimli::UnitHeader<Bytes<'a>>,
        budget: &mut Budget<'_>,
    ) -> Result<Option<Unit<'a>>, String> {
        let Some(table) = abbreviations_length(dwarf, &header) else { return Ok(None) };
        accept(table, budget)?;
        self.bytes += table * PARSED;
        let Ok(abbreviations) = header.abbreviations(&dwarf.debug_abbrev) else { return Ok(None) };
        if let Some(length) = line_header_length(dwarf, &header, &abbreviations) {
            accept(length, budget)?;
        }
        let unit = Unit::new_with_abbreviations(dwarf, header, Arc::new(abbreviations)).ok();
        if let Some(program) = unit.as_ref().and_then(|unit| unit.line_program.as_ref()) {
            let header = program.header();
            self.bytes += size_of_val(header.file_names()) + size_of_val(header.include_directories());
        }
        Ok(unit)
    }

    /// The unit that contains the entry at `offset` of .debug_info, and the entry's offset in it.
    pub(super) fn containing(
        &mut self,
        dwarf: &Dwarf<'a>,
        offset: usize,
        budget: &mut Budget<'_>,
    ) -> Result<Option<(Rc<Unit<'a>>, UnitOffset)>, String> {
        let Some(index) = self.starts.partition_point(|&start| start <= offset).checked_sub(1) else {
            return Ok(None);
        };
        let inner = self.headers.get(index).and_then(|unit| gimli::DebugInfoOffset(offset).to_unit_offset(unit));
        let Some(inner) = inner else { return Ok(None) };
        Ok(self.get(dwarf, index, budget)?.map(|unit| (unit, inner)))
    }
}

fn accept(length: usize, budget: &mut Budget<'_>) -> Result<(), String> {
    if length > LARGEST {
        return Err("a table of its debug information is too large".into());
    }
    budget.step((length / AT_ONCE) as u64)
}

/// Length of a unit's table of abbreviations (DWARF 5, 7.5.3), at most one more than the limit.
fn abbreviations_length(dwarf: &Dwarf<'_>, header: &gimli::UnitHeader<Bytes<'_>>) -> Option<usize> {
    let mut table = *dwarf.debug_abbrev.reader();
    table.skip(header.debug_abbrev_offset().0).ok()?;
    table.truncate(table.len().min(LARGEST + 1)).ok()?;
    let whole = table.len();
    let mut entry = || -> gimli::Result<bool> {
        if table.read_uleb128()? == 0 {
            return Ok(false);
        }
        let (_tag, _children) = (table.read_uleb128()?, table.read_u8()?);
        loop {
            let (name, form) = (table.read_uleb128()?, table.read_uleb128()?);
            if form == u64::from(gimli::DW_FORM_implicit_const.0) {
                table.read_sleb128()?;
            }
            if name == 0 && form == 0 {
                return Ok(true);
            }
        }
    };
    while entry().unwrap_or(false) {}
    // Cut by the limit, or by the end of the section.
    Some(whole - table.len())
}

/// Length of the header of a unit's line program (DWARF 5, 6.2.4), as the header states it.
fn line_header_length(
    dwarf: &Dwarf<'_>,
    header: &gimli::UnitHeader<Bytes<'_>>,
    abbreviations: &gimli::Abbreviations,
) -> Option<usize> {
    let mut entries = header.entries_raw(abbreviations, None).ok()?;
    let root = entries.read_abbreviation().ok()??;
    let mut program = None;
    for spec in root.attributes() {
        let attribute = entries.read_attribute(*spec).ok()?;
        if let (gimli::DW_AT_stmt_list, AttributeValue::DebugLineRef(offset)) = (attribute.name(), attribute.value()) {
            program = Some(offset);
        }
    }
    let mut bytes = *dwarf.debug_line.reader();
    bytes.skip(program?.0).ok()?;
    let (_, format) = bytes.read_initial_length().ok()?;
    if bytes.read_u16().ok()? >= 5 {
        // Sizes of an address and of a segment selector.
        bytes.skip(2).ok()?;
    }
    bytes.read_length(format).ok().map(|length| length.min(bytes.len()))
}
