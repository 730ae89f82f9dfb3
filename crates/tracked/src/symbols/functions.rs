//! ELF symbol tables → functions by address. Pure: invalid tables have no functions.

use object::read::ReadRef;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use super::mangling;

/// Limit of all names together, in bytes; as much as is read of a file. But the names of a hostile file may be the same
/// 16 KiB again and again, and cost it 24 bytes each.
const MOST_TEXT: usize = 512 << 20;

/// A native image exports this label of the start of its Java code, without a size. In a stripped image the next symbol
/// is 300 KiB further, and all methods up to there would have this name.
const CODE_SECTION: &[u8] = b"__svm_code_section";

/// The functions of one file, by address as linked.
#[derive(Debug, Default)]
pub struct Functions {
    /// Functions in address order.
    sorted: Vec<Function>,
    /// Mangled names, concatenated.
    text: Vec<u8>,
    /// Whether this is a native image: its local symbols have their own mangling.
    image: bool,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    start: u64,
    size: u64,
    /// Start of the next function, or the end of the section if that comes first.
    next: u64,
    name: (u32, u32),
}

impl Functions {
    pub fn read<'a, R: ReadRef<'a>>(file: &object::File<'a, R>) -> Functions {
        let mut of = Functions { image: file.section_by_name(".svm_heap").is_some(), ..Functions::default() };
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            if symbol.kind() == SymbolKind::Text && symbol.is_definition() {
                let end = if symbol.size() == 0 { end_of_section(file, &symbol) } else { u64::MAX };
                of.push(symbol.address(), symbol.size(), end, symbol.name_bytes().unwrap_or_default());
            }
        }
        of.sort();
        of
    }

    /// Adds the functions of another file that are missing here.
    pub fn add(&mut self, other: &Functions) {
        for f in &other.sorted {
            self.push(f.start, f.size, f.next, other.name(f));
        }
        self.image |= other.image;
        self.sort();
    }

    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    fn push(&mut self, start: u64, size: u64, end: u64, name: &[u8]) {
        let at = self.text.len();
        if !name.is_empty() && name != CODE_SECTION && at + name.len() <= MOST_TEXT {
            self.text.extend_from_slice(name);
            self.sorted.push(Function { start, size, next: end, name: (at as u32, name.len() as u32) });
        }
    }

    fn sort(&mut self) {
        let Functions { sorted, text, .. } = self;
        let name = |f: &Function| text.get(f.name.0 as usize..(f.name.0 + f.name.1) as usize);
        // Among aliases, prefer the longest extent, then the first name, so that the result is reproducible.
        sorted.sort_unstable_by(|a, b| (a.start, b.size, name(a)).cmp(&(b.start, a.size, name(b))));
        sorted.dedup_by_key(|f| f.start);
        for i in 1..sorted.len() {
            sorted[i - 1].next = sorted[i - 1].next.min(sorted[i].start);
        }
    }

    fn name(&self, f: &Function) -> &[u8] {
        self.text.get(f.name.0 as usize..(f.name.0 + f.name.1) as usize).unwrap_or_default()
    }

    /// The function that contains `svma`, and the offset in it. Assembly symbols have no size: they extend to the next
    /// symbol, but not into another section. Old versions of crti.o export `_init` without a size, and in a stripped
    /// library the next symbol is far within `.text`.
    pub fn at(&self, svma: u64) -> Option<(&[u8], u64)> {
        let after = self.sorted.partition_point(|f| f.start <= svma);
        let f = self.sorted.get(after.checked_sub(1)?)?;
        let into = svma - f.start;
        (into < f.size || (f.size == 0 && svma < f.next)).then(|| (self.name(f), into))
    }

    /// The name as in the source, and whether it is a Java method's.
    pub fn readable(&self, name: &[u8]) -> (String, bool) {
        let java = || {
            let text = std::str::from_utf8(name).ok()?;
            mangling::image_local(text).or_else(|| mangling::image_mangled(text))
        };
        match if self.image { java() } else { None } {
            Some(name) => (name, true),
            None => (mangling::demangle(name), false),
        }
    }
}

fn end_of_section<'a, R: ReadRef<'a>>(file: &object::File<'a, R>, symbol: &impl ObjectSymbol<'a>) -> u64 {
    let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
    section.map_or(u64::MAX, |section| section.address().saturating_add(section.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_an_images_code_is_not_the_name_of_its_methods() {
        let mut functions = Functions::default();
        functions.push(0x80, 16, u64::MAX, b"main");
        functions.push(0x100, 0, u64::MAX, b"__svm_code_section");
        functions.push(0x900, 8, u64::MAX, b"graal_attach_thread");
        functions.sort();
        let named = [0x88, 0x100, 0x8ff, 0x900].map(|at| functions.at(at).map(|(name, _)| name));
        assert_eq!(named, [Some(&b"main"[..]), None, None, Some(b"graal_attach_thread")]);
    }

    #[test]
    fn names_beyond_the_limit_are_left_out() {
        // Never written, so the kernel provides no memory.
        let mut functions = Functions { text: vec![0; MOST_TEXT - 6], ..Functions::default() };
        functions.push(0x10, 8, u64::MAX, b"first");
        functions.push(0x20, 8, u64::MAX, b"second");
        functions.push(0x30, 8, u64::MAX, b"3");
        functions.push(0x40, 8, u64::MAX, b"4");
        functions.sort();
        let named = [0x10, 0x20, 0x30, 0x40].map(|at| functions.at(at).map(|(name, _)| name));
        assert_eq!(named, [Some(&b"first"[..]), None, Some(&b"3"[..]), None]);
    }
}
