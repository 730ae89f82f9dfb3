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

use gimli::{AttributeValue, Reader, Section, UnitOffset};

use super::budget::Budget;
use super::dwarf::{Bytes, Dwarf, Unit};

/// Limit of units: Chromium has 100,000.
const MOST: usize = 1 << 20;
/// Limit of one table's length, bytes. A unit with 20,000 files has a line program with a header of 1 MiB.
const LARGEST: usize = 2 << 20;
/// Bytes of a table that are parsed in one step.
const AT_ONCE: usize = 16;
/// Memory for a byte of a table of abbreviations, at most: an entry without attributes takes five bytes, and 150 in
/// memory.
const PARSED: usize = 30;
/// Limits of units that stay in memory: their number, and bytes of their tables.
const KEPT: usize = 4096;
const KEPT_BYTES: usize = 256 << 20;

/// The units of .debug_info, by offset.
pub(super) struct Units<'a> {
    pub(super) headers: Vec<gimli::UnitHeader<Bytes<'a>>>,
    /// Start of each unit in .debug_info, ascending.
    starts: Vec<usize>,
    read: HashMap<usize, Option<Rc<Unit<'a>>>>,
    bytes: usize,
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
        let unit = self.parse(dwarf, header.clone(), budget)?.map(Rc::new);
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

/// Length of the header of a unit's line program (DWARF 5, 6.2.4), as it says.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::dwarf::levels;
    use super::*;

    const FLAG_PRESENT: u8 = 0x19;

    /// Sections with `units` units of `functions` functions from 0x1000 to 0x1010, each with `attributes` flags, which
    /// take no room in an entry, and with `name`.
    struct Made {
        abbrev: Vec<u8>,
        info: Vec<u8>,
    }

    impl Made {
        fn new(units: usize, functions: usize, attributes: usize, name: &str) -> Made {
            // DW_TAG_compile_unit with children: DW_AT_low_pc (address), DW_AT_high_pc (data4).
            let mut abbrev = vec![1, 0x11, 1, 0x11, 0x01, 0x12, 0x06, 0, 0];
            // DW_TAG_subprogram without children: the same, and DW_AT_name (string).
            abbrev.extend([2, 0x2e, 0, 0x11, 0x01, 0x12, 0x06, 0x03, 0x08]);
            abbrev.extend(std::iter::repeat_n([0x20, FLAG_PRESENT], attributes).flatten());
            abbrev.extend([0, 0, 0]);
            let entry = |code: u8| [&[code][..], &0x1000u64.to_le_bytes(), &0x10u32.to_le_bytes()].concat();
            let function = [entry(2), name.as_bytes().to_vec(), vec![0]].concat();
            let entries = [entry(1), function.repeat(functions), vec![0]].concat();
            // Length, version 4, offset of the abbreviations, size of an address.
            let length = (7 + entries.len() as u32).to_le_bytes();
            let unit = [&length[..], &[4, 0, 0, 0, 0, 0, 8], &entries].concat();
            Made { abbrev, info: unit.repeat(units) }
        }

        fn with<T>(&self, look: impl FnOnce(&Dwarf<'_>) -> T) -> T {
            let sections = gimli::DwarfSections::load(|id| -> Result<&[u8], ()> {
                Ok(match id {
                    gimli::SectionId::DebugAbbrev => &self.abbrev,
                    gimli::SectionId::DebugInfo => &self.info,
                    _ => &[],
                })
            });
            look(&sections.unwrap().borrow(|bytes| gimli::EndianSlice::new(bytes, gimli::LittleEndian)))
        }
    }

    #[test]
    fn a_function_is_found_by_its_entry() {
        let (levels, reason) = Made::new(2, 3, 40, "f").with(|dwarf| levels(dwarf, &[0xfff, 0x1004, 0x1010], &|| true));
        assert_eq!(reason, None);
        assert_eq!(levels.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(levels[1][0].name.as_deref(), Some(&b"f"[..]));
    }

    #[test]
    fn a_name_is_cut_where_no_compiler_ends_one() {
        let made = Made::new(1, 1, 0, &"x".repeat(1 << 20));
        let (levels, reason) = made.with(|dwarf| levels(dwarf, &[0x1004], &|| true));
        assert_eq!((reason, levels[0][0].name.as_ref().map(Vec::len)), (None, Some(16 << 10)));
    }

    /// 10¹⁰ attributes in 1.3 MB.
    #[test]
    fn attributes_that_take_no_room_are_counted() {
        let looks = Cell::new(0);
        let in_time = || looks.replace(looks.get() + 1) < 2;
        let (_, reason) = Made::new(1, 20_000, 500_000, "f").with(|dwarf| levels(dwarf, &[0x1004], &in_time));
        assert_eq!(reason.as_deref(), Some("its debug information was not read in time"));
        assert_eq!(looks.get(), 3);
    }

    #[test]
    fn a_table_larger_than_any_compilers_is_refused() {
        let (_, reason) = Made::new(1, 1, LARGEST, "f").with(|dwarf| levels(dwarf, &[0x1004], &|| true));
        assert_eq!(reason.as_deref(), Some("a table of its debug information is too large"));
    }

    #[test]
    fn units_that_share_a_large_table_take_bounded_memory() {
        let attributes = 300_000;
        Made::new(60, 1, attributes, "f").with(|dwarf| {
            let (mut units, mut budget) = (Units::new(dwarf), Budget::new(&|| true));
            let mut most = 0;
            for index in 0..60 {
                assert!(units.get(dwarf, index, &mut budget).unwrap().is_some());
                most = most.max(units.read.len());
            }
            assert!(units.bytes <= KEPT_BYTES + 3 * attributes * PARSED, "{}", units.bytes);
            assert!((10..20).contains(&most), "{most} units at once");
        });
    }
}
