//! Debug information that is made to cost much time or memory.

use std::cell::Cell;

use super::budget::Budget;
use super::dwarf::levels;
use super::units::{Dwarf, KEPT_BYTES, LARGEST, PARSED, Units};

const FLAG_PRESENT: u8 = 0x19;

/// Sections with `units` units of `functions` functions from 0x1000 to 0x1010, each with `attributes` flags, which take
/// no space in an entry, and with `name`.
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
fn attributes_that_take_no_space_are_counted() {
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
