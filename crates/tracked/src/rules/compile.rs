//! Compiles rules × the symbols of an object → ranges of addresses, and the ranges of all objects → the bytes that the
//! tracker reads. The segment crate's `rules.rs` has the layout of these bytes.

use super::{RuleSet, names};
use memchr::memmem;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol, ReadRef, SymbolKind};
use plimsoll_segment::rules as format;
use plimsoll_segment::rules::{RuleTarget, glob_matches};

/// Largest usual alignment of functions, bytes.
const ALIGNMENT: u32 = 64;

/// The symbols of one object as address ranges with the rules' targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Build id, zero-padded.
    pub build_id: [u8; format::BUILD_ID_BYTES],
    /// Start addresses (Svma), ascending, each with its target; the last target is none. Adjacent targets differ.
    pub ranges: Vec<(u32, RuleTarget)>,
}

/// A function's address range in an object, half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte (Svma).
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
    /// Its target according to the rules.
    pub target: RuleTarget,
}

/// Compiles the rules for one object. `debug` is its separate debug file, if there is one. The symbols are taken from
/// `debug`, else from `.symtab`, else from `.dynsym`.
pub fn table<'d, R: ReadRef<'d>>(rules: &RuleSet, file_name: &str, elf: R, debug: Option<R>) -> Result<Table, String> {
    let file: ElfFile64<Endianness, R> = ElfFile64::parse(elf).map_err(|e| e.to_string())?;
    let id = file.build_id().ok().flatten().and_then(format::padded).ok_or("it has no build id")?;
    let debug: Option<ElfFile64<Endianness, R>> = debug.and_then(|bytes| ElfFile64::parse(bytes).ok());
    let matcher = Matcher::new(rules, file_name);
    if matcher.is_empty() {
        return Ok(Table { build_id: id, ranges: Vec::new() });
    }
    let mut symbols = Vec::new();
    for file in debug.iter().chain([&file]) {
        symbols.extend(file.symbols().filter_map(|s| function(&s)));
        if !symbols.is_empty() {
            break;
        }
    }
    if symbols.is_empty() {
        symbols.extend(file.dynamic_symbols().filter_map(|s| function(&s)));
    }
    symbols.push((format::CALLED_BY_GENERATED, 1, format::GENERATED_NAME));
    // Sort by address. If several names share an address, the name with the earliest rule counts.
    symbols.sort_unstable_by_key(|&(start, size, _)| (start, size));
    let mut spans: Vec<Span> = Vec::with_capacity(symbols.len());
    let mut i = 0;
    while i < symbols.len() {
        let start = symbols[i].0;
        let same = symbols[i..].iter().take_while(|s| s.0 == start).count();
        let next = symbols.get(i + same).map_or(start, |s| s.0);
        let size = symbols[i..i + same].iter().map(|s| s.1).max().unwrap_or(0);
        let best = symbols[i..i + same].iter().filter_map(|s| matcher.first(s.2)).min();
        // Assembly functions may lack a size; then they extend to the next symbol. A function that ends less than an
        // alignment before the next symbol is extended too. That is harmless, because no call returns into padding, and
        // it makes neighbours with the same target one range.
        let end = start.saturating_add(size);
        let end = if size == 0 || (end < next && next - end < ALIGNMENT) { next } else { end };
        let target = best.map_or(RuleTarget::None, |rule| rules.rules[rule].target);
        spans.push(Span { start, end, target });
        i += same;
    }
    Ok(Table { build_id: id, ranges: ranges(&spans) })
}

fn function<'a>(symbol: &impl ObjectSymbol<'a>) -> Option<(u32, u32, &'a str)> {
    if symbol.kind() != SymbolKind::Text || symbol.is_undefined() {
        return None;
    }
    let (start, size) = (u32::try_from(symbol.address()).ok()?, u32::try_from(symbol.size()).ok()?);
    Some((start, size, symbol.name().ok().filter(|name| !name.is_empty())?))
}

/// Flattens spans, sorted by start, that may contain each other (the inner one counts), into disjoint ranges.
pub fn ranges(spans: &[Span]) -> Vec<(u32, RuleTarget)> {
    let mut out: Vec<(u32, RuleTarget)> = Vec::new();
    let mut put = |at: u32, target: RuleTarget| match out.last_mut() {
        Some(last) if last.0 == at => last.1 = target,
        _ => out.push((at, target)),
    };
    // Open spans, innermost last; their ends are descending.
    let mut open: Vec<(u32, RuleTarget)> = Vec::new();
    let close = |open: &mut Vec<(u32, RuleTarget)>, until: u32, put: &mut dyn FnMut(u32, RuleTarget)| {
        while let Some((end, _)) = open.pop_if(|(end, _)| *end <= until) {
            put(end, open.last().map_or(RuleTarget::None, |o| o.1));
        }
    };
    for span in spans.iter().filter(|span| span.end > span.start) {
        close(&mut open, span.start, &mut put);
        put(span.start, span.target);
        // An outer span that ends before this one ends is finished: this one hides the rest of it.
        open.retain(|(end, _)| *end > span.end);
        open.push((span.end, span.target));
    }
    close(&mut open, u32::MAX, &mut put);
    out.dedup_by_key(|range| range.1);
    if out.first().is_some_and(|first| first.1 == RuleTarget::None) {
        out.remove(0);
    }
    out
}

/// The rules that may match functions of one object, by the first byte of their patterns.
struct Matcher<'r> {
    buckets: Vec<Vec<(usize, Pattern<'r>)>>,
}

/// A glob, classified by its shape. Nearly all have one of the first four shapes, and a VM has 60,000 functions to
/// match.
#[derive(Clone)]
enum Pattern<'r> {
    Exact(&'r [u8]),
    Prefix(&'r [u8]),
    Suffix(&'r [u8]),
    Inside(Box<memmem::Finder<'r>>),
    /// Any other glob, with the literal bytes at its start.
    Other(&'r [u8], &'r [u8]),
}

impl<'r> Pattern<'r> {
    fn new(glob: &'r [u8]) -> Pattern<'r> {
        let special = |bytes: &[u8]| bytes.iter().any(|b| b"*?[".contains(b));
        let literal = glob.iter().position(|b| b"*?[".contains(b)).unwrap_or(glob.len());
        match glob {
            [rest @ .., b'*'] if !special(rest) => Pattern::Prefix(rest),
            [b'*', rest @ .., b'*'] if !special(rest) => Pattern::Inside(Box::new(memmem::Finder::new(rest))),
            [b'*', rest @ ..] if !special(rest) => Pattern::Suffix(rest),
            rest if !special(rest) => Pattern::Exact(rest),
            _ => Pattern::Other(&glob[..literal], glob),
        }
    }

    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Pattern::Exact(text) => name == *text,
            Pattern::Prefix(text) => name.starts_with(text),
            Pattern::Suffix(text) => name.ends_with(text),
            Pattern::Inside(finder) => finder.find(name).is_some(),
            Pattern::Other(prefix, glob) => name.starts_with(prefix) && glob_matches(glob, name),
        }
    }
}

impl<'r> Matcher<'r> {
    fn new(rules: &'r RuleSet, file_name: &str) -> Matcher<'r> {
        let mut buckets = vec![Vec::new(); 256];
        for (i, rule) in rules.rules.iter().enumerate() {
            if !rule.objects.iter().any(|glob| glob_matches(glob.as_bytes(), file_name.as_bytes())) {
                continue;
            }
            for glob in rule.symbols.iter().map(|s| s.as_bytes()) {
                let pattern = Pattern::new(glob);
                match glob.first() {
                    Some(b'*' | b'?' | b'[') | None => buckets.iter_mut().for_each(|b| b.push((i, pattern.clone()))),
                    Some(&byte) => buckets[byte as usize].push((i, pattern)),
                }
            }
        }
        Matcher { buckets }
    }

    fn is_empty(&self) -> bool {
        self.buckets.iter().all(Vec::is_empty)
    }

    fn first(&self, symbol: &str) -> Option<usize> {
        let name = names::qualified(symbol);
        let bucket = self.buckets.get(*name.as_bytes().first()? as usize)?;
        bucket.iter().find(|(_, pattern)| pattern.matches(name.as_bytes())).map(|(i, _)| *i)
    }
}

/// The bytes for the tracker: the rules for whole objects, and these tables.
pub fn blob(rules: &RuleSet, tables: &[Table]) -> Vec<u8> {
    let mut tables: Vec<&Table> = tables.iter().filter(|table| !table.ranges.is_empty()).collect();
    tables.sort_by_key(|table| table.build_id);
    tables.dedup_by_key(|table| table.build_id);
    let objects: Vec<(&str, RuleTarget)> = rules
        .rules
        .iter()
        .filter(|rule| rule.symbols.is_empty())
        .flat_map(|rule| rule.objects.iter().map(|glob| (glob.as_str(), rule.target)))
        .collect();

    let mut out = vec![0; format::HEADER_BYTES];
    let word = |out: &mut Vec<u8>, at: usize, value: usize| {
        out[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
    };
    let section = |out: &mut Vec<u8>, at: usize, count: usize| {
        let offset = out.len();
        word(out, at, offset);
        word(out, at + 4, count);
    };

    section(&mut out, 24, rules.categories.len());
    for category in &rules.categories {
        let mut entry = [0; format::CATEGORY_BYTES];
        entry[..category.name.len()].copy_from_slice(category.name.as_bytes());
        entry[format::NAME_BYTES] = category.kind;
        out.extend(entry);
    }
    section(&mut out, 32, rules.weak.len());
    for weak in &rules.weak {
        let mut entry = [0; format::WEAK_BYTES];
        entry[..2].copy_from_slice(&weak.default.to_le_bytes());
        for category in &weak.unless {
            entry[8 + usize::from(category / 8)] |= 1 << (category % 8);
        }
        out.extend(entry);
    }
    section(&mut out, 40, objects.len());
    for (glob, target) in objects {
        let mut entry = [0; format::OBJECT_BYTES];
        entry[..2].copy_from_slice(&target.encode().to_le_bytes());
        entry[2] = glob.len() as u8;
        entry[4..4 + glob.len()].copy_from_slice(glob.as_bytes());
        out.extend(entry);
    }
    section(&mut out, 48, tables.len());
    let mut at = out.len() + tables.len() * format::TABLE_BYTES;
    for table in &tables {
        let mut entry = [0; format::TABLE_BYTES];
        entry[..format::BUILD_ID_BYTES].copy_from_slice(&table.build_id);
        let starts = at;
        let targets = starts + table.ranges.len() * 4;
        at = (targets + table.ranges.len() * 2).next_multiple_of(8);
        for (i, value) in [table.ranges.len(), starts, targets].into_iter().enumerate() {
            let at = format::BUILD_ID_BYTES + 4 * i;
            entry[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
        }
        out.extend(entry);
    }
    for table in &tables {
        out.extend(table.ranges.iter().flat_map(|(start, _)| start.to_le_bytes()));
        out.extend(table.ranges.iter().flat_map(|(_, target)| target.encode().to_le_bytes()));
        out.resize(out.len().next_multiple_of(8), 0);
    }
    out[..8].copy_from_slice(&format::MAGIC);
    let bytes = out.len();
    word(&mut out, 8, format::VERSION as usize);
    word(&mut out, 12, bytes);
    out[16..24].copy_from_slice(&rules.hash.to_le_bytes());
    out
}
