//! ELF symbol tables → functions by address. Pure: invalid tables have no functions.

use object::read::ReadRef;
use object::{Object, ObjectSymbol, SymbolKind};

use super::mangling;

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
    /// Start of the next function.
    next: u64,
    name: (u32, u32),
}

impl Functions {
    pub fn read<'a, R: ReadRef<'a>>(file: &object::File<'a, R>) -> Functions {
        let mut of = Functions { image: file.section_by_name(".svm_heap").is_some(), ..Functions::default() };
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            if symbol.kind() == SymbolKind::Text && symbol.is_definition() {
                of.push(symbol.address(), symbol.size(), symbol.name_bytes().unwrap_or_default());
            }
        }
        of.sort();
        of
    }

    /// Adds the functions of another file that are missing here.
    pub fn add(&mut self, other: &Functions) {
        for f in &other.sorted {
            self.push(f.start, f.size, other.name(f));
        }
        self.image |= other.image;
        self.sort();
    }

    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    fn push(&mut self, start: u64, size: u64, name: &[u8]) {
        let at = self.text.len();
        if let (Ok(at), Ok(length), false) = (u32::try_from(at), u32::try_from(name.len()), name.is_empty()) {
            self.text.extend_from_slice(name);
            self.sorted.push(Function { start, size, next: u64::MAX, name: (at, length) });
        }
    }

    fn sort(&mut self) {
        let Functions { sorted, text, .. } = self;
        let name = |f: &Function| text.get(f.name.0 as usize..(f.name.0 + f.name.1) as usize);
        // Among aliases, prefer the longest extent, then the first name, so that the result is reproducible.
        sorted.sort_unstable_by(|a, b| (a.start, b.size, name(a)).cmp(&(b.start, a.size, name(b))));
        sorted.dedup_by_key(|f| f.start);
        for i in 1..sorted.len() {
            sorted[i - 1].next = sorted[i].start;
        }
    }

    fn name(&self, f: &Function) -> &[u8] {
        self.text.get(f.name.0 as usize..(f.name.0 + f.name.1) as usize).unwrap_or_default()
    }

    /// The function that contains `svma`, and the offset in it. Assembly symbols have no size: they extend to the next
    /// symbol.
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
