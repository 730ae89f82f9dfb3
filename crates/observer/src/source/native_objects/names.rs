//! Names of data in an object file, by their offsets in the file. Pure: an invalid file names nothing.

use std::collections::BTreeSet;

use object::read::ReadRef;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

use crate::source::load_segments::{address_of, load_segments};

/// For each offset, the symbol, as linked, whose data contains it; empty if there is none.
pub(crate) fn symbols_at<'a, R: ReadRef<'a>>(bytes: R, offsets: &[u64]) -> Vec<String> {
    let mut names = vec![String::new(); offsets.len()];
    let Ok(file) = ElfFile64::<Endianness, R>::parse(bytes) else { return names };
    let segments = load_segments(&file);
    // Each symbol takes the offsets that it contains out of this set. In a hostile file, millions of symbols may each
    // contain all.
    let mut wanted: BTreeSet<(u64, usize)> = offsets
        .iter()
        .enumerate()
        .filter_map(|(index, offset)| Some((address_of(&segments, *offset)?, index)))
        .collect();
    for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.size() > 0) {
        let (start, end) = (symbol.address(), symbol.address().saturating_add(symbol.size()));
        let first = |wanted: &BTreeSet<(u64, usize)>| wanted.range((start, 0)..(end, 0)).next().copied();
        if first(&wanted).is_none() {
            continue;
        }
        let Some(name) = symbol.name_bytes().ok().filter(|name| !name.is_empty()) else { continue };
        while let Some(one) = first(&wanted) {
            wanted.remove(&one);
            names[one.1] = String::from_utf8_lossy(name).into_owned();
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;

    const LINKED_AT: u64 = 0x5000;
    /// Names, start and size of the symbols.
    const SYMBOLS: [(&str, u64, u64); 3] = [("_ZTV1a", 0x5000, 24), ("_ZTV1b", 0x5018, 40), ("_ZTV1c", 0x5048, 16)];

    fn library() -> Vec<u8> {
        library_of(&SYMBOLS)
    }

    /// A library with one segment, which holds the whole file, and a table of dynamic symbols.
    fn library_of(all: &[(&str, u64, u64)]) -> Vec<u8> {
        let mut strings = vec![0u8];
        let mut symbols = vec![0u8; 24];
        for (name, start, size) in all {
            symbols.extend((strings.len() as u32).to_le_bytes());
            // A global object of section 1.
            symbols.extend([0x11, 0, 1, 0]);
            symbols.extend([*start, *size].map(u64::to_le_bytes).concat());
            strings.extend(name.bytes().chain([0]));
        }
        let section = |kind: u32, at: u64, length: u64, link: u32, entry: u64| {
            let words = [0, 0, at, length].map(u64::to_le_bytes).concat();
            let rest = [[link, 0].map(u32::to_le_bytes).concat(), [8, entry].map(u64::to_le_bytes).concat()].concat();
            [[0, kind].map(u32::to_le_bytes).concat(), words, rest].concat()
        };
        let (at, strings_at) = (120, 120 + symbols.len() as u64);
        let sections_at = strings_at + strings.len() as u64;
        let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
        bytes.extend([0, 64, sections_at].map(u64::to_le_bytes).concat());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend([64u16, 56, 1, 64, 3, 2].map(u16::to_le_bytes).concat());
        let all = sections_at + 3 * 64;
        bytes.extend([1u32, 4].map(u32::to_le_bytes).concat());
        bytes.extend([0, LINKED_AT, LINKED_AT, all, all, 4096].map(u64::to_le_bytes).concat());
        bytes.extend(&symbols);
        bytes.extend(&strings);
        bytes.extend(section(0, 0, 0, 0, 0));
        bytes.extend(section(11, at, symbols.len() as u64, 2, 24));
        bytes.extend(section(3, strings_at, strings.len() as u64, 0, 0));
        bytes
    }

    #[test]
    fn each_offset_has_the_name_of_the_data_around_it() {
        let offsets = [0x1f, 0, 16, 0x18, 0x3f, 0x40, 0x47, 0x48, 0x57, 0x58, 1 << 20];
        let names = symbols_at(library().as_slice(), &offsets);
        let (a, b, c) = ("_ZTV1a", "_ZTV1b", "_ZTV1c");
        assert_eq!(names, [b, a, a, b, b, "", "", c, c, "", ""]);
    }

    /// Each symbol contains all offsets but the last: a look at each of them for each symbol would take minutes.
    #[test]
    fn symbols_that_contain_everything_are_passed_over() {
        let mut all = vec![("", LINKED_AT, 16 << 14), ("first", LINKED_AT, 16 << 14)];
        all.extend(vec![("other", LINKED_AT, 16 << 14); 200_000]);
        let offsets: Vec<u64> = (0..=1 << 14).map(|number| 16 * number).collect();
        let names = symbols_at(library_of(&all).as_slice(), &offsets);
        assert!(names[..1 << 14].iter().all(|name| name == "first"));
        assert_eq!(names[1 << 14], "");
    }

    #[test]
    fn broken_libraries_name_nothing_and_cause_no_panic() {
        let mut kept = 0;
        for bytes in mutated(&library(), 20_000) {
            let names = symbols_at(bytes.as_slice(), &[16, 0x18, 0x48, u64::MAX]);
            assert_eq!(names.len(), 4);
            kept += usize::from(names.iter().any(|name| !name.is_empty()));
        }
        assert!(kept > 500 && kept < 20_000, "{kept}");
    }
}
