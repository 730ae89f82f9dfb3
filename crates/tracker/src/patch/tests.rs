//! Import tables of synthetic objects, intact and damaged.

use super::*;
use crate::random::Random;

const BIAS: u64 = 0x7f00_0000_0000;
const SIZE: usize = 0x1000;

/// A synthetic object of one segment, written piece by piece.
struct Image {
    bytes: Vec<u8>,
    end: usize,
    dynamic: Vec<u8>,
}

impl Image {
    fn new() -> Image {
        Image { bytes: vec![0; SIZE], end: 0x100, dynamic: Vec::new() }
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.end;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len().next_multiple_of(8);
        at as u64
    }

    fn tag(&mut self, tag: u64, value: u64) {
        self.dynamic.extend(tag.to_ne_bytes());
        self.dynamic.extend(value.to_ne_bytes());
    }

    /// `symbols`: name and section; `rela` and `plt`: offset, symbol, kind, addend. Pointers as glibc leaves them
    /// (relocated) or as they are in the file.
    fn with(symbols: &[(&str, u16)], rela: &[Rela], plt: &[Rela], relocated: bool) -> Image {
        let mut image = Image::new();
        let bias = if relocated { BIAS } else { 0 };
        let mut strings = vec![0u8];
        let mut table = vec![0u8; SYMBOL];
        for (name, section) in symbols {
            let at = strings.len() as u32;
            strings.extend(name.as_bytes());
            strings.push(0);
            table.extend(at.to_ne_bytes());
            table.extend([0x12, 0]);
            table.extend(section.to_ne_bytes());
            table.extend([0; 16]);
        }
        let entries = |list: &[Rela]| {
            let entry = |r: &Rela| [r.0, (r.1 as u64) << 32 | r.2 as u64, r.3 as u64].map(u64::to_ne_bytes).concat();
            list.iter().flat_map(entry).collect::<Vec<u8>>()
        };
        let (rela, plt) = (entries(rela), entries(plt));
        let at = [image.put(&strings), image.put(&rela), image.put(&plt)];
        // Last, because the dynamic section doesn't give the symbol table's length: it ends with the segment.
        let symbols = image.put(&table);
        for (tag, value) in [
            (DT_STRTAB, at[0] + bias),
            (DT_STRSZ, strings.len() as u64),
            (DT_RELA, at[1] + bias),
            (DT_RELASZ, rela.len() as u64),
            (DT_JMPREL, at[2] + bias),
            (DT_PLTRELSZ, plt.len() as u64),
            (DT_PLTREL, DT_RELA),
            (DT_SYMTAB, symbols + bias),
            (0, 0),
            // After DT_NULL: must not be read.
            (DT_TEXTREL, 1),
        ] {
            image.tag(tag, value);
        }
        image
    }

    fn tables(&self) -> Tables<'_> {
        Tables::find(&self.dynamic, BIAS, |at, bytes| {
            let from = usize::try_from(at.checked_sub(BIAS)?).ok().filter(|from| *from <= SIZE)?;
            let to = bytes.map_or(Some(SIZE), |n| from.checked_add(usize::try_from(n).ok()?))?;
            self.bytes.get(from..to)
        })
    }

    /// Offset, name, defined here, kind of every slot.
    fn found(&self) -> Vec<(u64, String, bool, RelocationKind)> {
        let tables = self.tables();
        let slots = tables.slots().filter_map(|s| {
            let symbol = tables.symbol(s.symbol)?;
            Some((s.at, String::from_utf8_lossy(symbol.name).into_owned(), symbol.is_own, s.kind))
        });
        slots.collect()
    }
}

type Rela = (u64, u32, u32, i64);

const RELATIVE: u32 = if cfg!(target_arch = "x86_64") { 8 } else { 1027 };

#[test]
fn every_kind_of_import_is_found() {
    for relocated in [true, false] {
        let image = Image::with(
            &[("malloc", 0), ("free", 0), ("own", 12)],
            &[
                (0x800, 1, GLOBAL, 0),
                (0x808, 2, ABSOLUTE, 0),
                (0x810, 0, RELATIVE, 0x1234),
                // A pointer into the middle of an object isn't a pointer to a function.
                (0x818, 1, ABSOLUTE, 8),
                (0x820, 3, ABSOLUTE, 0),
            ],
            &[(0x900, 1, CALL, 0), (0x908, 2, CALL, 0)],
            relocated,
        );
        let expected = [
            (0x800, "malloc", false, RelocationKind::Pointer),
            (0x808, "free", false, RelocationKind::Pointer),
            (0x820, "own", true, RelocationKind::Pointer),
            (0x900, "malloc", false, RelocationKind::Call),
            (0x908, "free", false, RelocationKind::Call),
        ];
        let expected: Vec<_> = expected.into_iter().map(|(at, n, own, k)| (at, n.to_string(), own, k)).collect();
        assert_eq!(image.found(), expected, "relocated: {relocated}");
        assert!(!image.tables().relocates_text, "a tag behind DT_NULL");
    }
}

#[test]
fn an_object_without_tables_has_no_imports() {
    assert_eq!(Tables::find(&[], BIAS, |_, _| None), Tables::default());
    assert_eq!(Tables::default().slots().count(), 0);
    assert_eq!(Tables::default().symbol(1), None);
}

/// Tables outside the mapped segment, symbols past the end, names without an end: none of them is read.
#[test]
fn broken_tables_end_where_they_break() {
    let whole = Image::with(&[("malloc", 0)], &[(0x800, 1, GLOBAL, 0)], &[(0x900, 1, CALL, 0)], true);
    assert_eq!(whole.found().len(), 2);
    assert_eq!(whole.tables().symbol(u32::MAX), None);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut next = |below: u64| random.below(below);
    let (mut fewer, mut same) = (0, 0);
    for _ in 0..20_000 {
        let mut image = Image { bytes: whole.bytes.clone(), end: whole.end, dynamic: whole.dynamic.clone() };
        for _ in 0..1 + next(4) {
            let in_dynamic = next(2) == 0;
            let bytes = if in_dynamic { &mut image.dynamic } else { &mut image.bytes };
            let (from, length) = if in_dynamic { (0, bytes.len() as u64) } else { (0x100, 0x80) };
            let at = from + next(length) as usize;
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, next(256) as u8][next(6) as usize];
        }
        let cut = next(8) as usize;
        image.dynamic.truncate(image.dynamic.len() - cut);
        match image.found().len() {
            2 => same += 1,
            _ => fewer += 1,
        }
    }
    println!("exercised: {fewer} with another result, {same} with the same");
    assert!(fewer > 1000 && same > 1000);
}
