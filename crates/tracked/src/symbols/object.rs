//! One object's files → the functions and lines of its calls. `read.rs` found the files; their contents are untrusted.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use gimli::SectionId;
use object::read::ReadRef;
use object::{Object, ObjectSection};

use super::cache::CachedNames;
use super::dwarf::{self, Level};
use super::functions::Functions;
use super::mangling;
use super::read::{Finder, Links, Opened};
use super::{SourceLocation, Symbolized, gnu_debugdata};

/// The largest accepted ratio of a debug section's size to its compressed size. Compilers' output shrinks to a third or
/// a tenth.
const UNPACKED_TIMES: u64 = 128;
/// Limit of one object's debug sections in memory, bytes. Chromium's have 2 GiB; beyond the limit, only the symbol
/// table would give names.
const SECTIONS: u64 = 3 << 29;
/// Limit of an unpacked symbol table from .gnu_debugdata.
const MINI: usize = 64 << 20;

/// Result for an object's files.
#[derive(Default)]
pub struct Answers {
    pub known: CachedNames,
    /// Why lines or inlined functions may be missing.
    pub reason: Option<String>,
}

/// `offsets` are return addresses as linked, ascending. `files` are the object itself and files with its names.
pub fn resolve(files: &[Opened], finder: &Finder, offsets: &[u64]) -> Answers {
    let mut functions = Functions::default();
    let mut levels: Option<Vec<Vec<Level>>> = None;
    let mut reason = None;
    // The call lies before its return address, which may be the first byte of the next function.
    let calls: Vec<u64> = offsets.iter().map(|o| o.saturating_sub(1)).collect();
    for opened in files {
        let pieces = opened.pieces();
        let Ok(file) = object::File::parse(&pieces) else {
            if let Some(why) = pieces.refused() {
                reason = Some(format!("its file {why}"));
            }
            continue;
        };
        let own = Functions::read(&file);
        if functions.is_empty() {
            functions = own
        } else {
            functions.add(&own)
        }
        if let Some(mini) = mini(&file) {
            functions.add(&mini);
        }
        if let Some(why) = pieces.refused() {
            reason = Some(format!("its file {why}"));
        }
        if levels.is_some() || file.section_by_name(".debug_info").is_none() {
            continue;
        }
        let shared = Links::of(&file).shared.and_then(|link| finder.shared(opened.path(), &link));
        match lines(&file, shared.as_ref(), &calls, opened.cap(), &|| !finder.deadline().has_passed()) {
            Ok((found, why)) => {
                reason = reason.or(why);
                levels = Some(found);
            }
            Err(why) => reason = Some(why),
        }
        if let Some(why) = pieces.refused() {
            reason = Some(format!("its file {why}"));
        }
    }
    Answers { known: join(&functions, levels.unwrap_or_default(), offsets), reason }
}

/// As [`resolve`], for an object in memory: the vdso.
pub fn resolve_bytes(bytes: &[u8], build_id: &[u8], offsets: &[u64]) -> Option<Answers> {
    let file = object::File::parse(bytes).ok()?;
    if file.build_id().ok().flatten().is_none_or(|id| !id.starts_with(build_id)) {
        return None;
    }
    Some(Answers { known: join(&Functions::read(&file), Vec::new(), offsets), reason: None })
}

fn join(functions: &Functions, mut levels: Vec<Vec<Level>>, offsets: &[u64]) -> CachedNames {
    let mut texts: HashMap<Vec<u8>, (Arc<str>, bool)> = HashMap::new();
    let mut files: HashMap<String, Arc<str>> = HashMap::new();
    let mut intern = |name: &[u8], readable: &dyn Fn() -> (String, bool)| -> (Arc<str>, bool) {
        match texts.get(name) {
            Some(text) => text.clone(),
            None => {
                let (text, java) = readable();
                let text: (Arc<str>, bool) = (text.into(), java);
                texts.insert(name.to_vec(), text.clone());
                text
            }
        }
    };
    let mut known = CachedNames::new();
    for (i, &offset) in offsets.iter().enumerate() {
        // The kernel or makecontext(3) returns to a trampoline that was never called: then the return address is its
        // first byte.
        let call = offset.checked_sub(1).and_then(|call| functions.at(call)).map(|(name, into)| (name, into + 1));
        let symbol = call.or_else(|| functions.at(offset));
        let levels = levels.get_mut(i).map(std::mem::take).unwrap_or_default();
        let outermost = levels.len().saturating_sub(1);
        let mut locations = Vec::with_capacity(levels.len().max(1));
        for (n, level) in levels.into_iter().enumerate() {
            let function = match (&level.linkage, &level.name, symbol) {
                (Some(linkage), name, _) => Some(intern(linkage, &|| readable(linkage, name.as_deref(), functions))),
                // With line tables only, DWARF has `name` where the symbol table has `module::name`.
                (None, Some(name), Some((symbol, _))) if n == outermost && qualifies(symbol, name) => {
                    Some(intern(symbol, &|| functions.readable(symbol)))
                }
                (None, Some(name), _) => Some(intern(name, &|| (mangling::demangle(name), false))),
                (None, None, Some((name, _))) if n == outermost => Some(intern(name, &|| functions.readable(name))),
                _ => None,
            };
            let file = level.file.map(|file| match files.get(&file) {
                Some(text) => text.clone(),
                None => {
                    let text: Arc<str> = file.as_str().into();
                    files.insert(file, text.clone());
                    text
                }
            });
            locations.extend(function.map(|(function, java)| SourceLocation {
                function,
                file,
                line: level.line,
                java,
            }));
        }
        if let (true, Some((name, _))) = (locations.is_empty(), symbol) {
            let (function, java) = intern(name, &|| functions.readable(name));
            locations.push(SourceLocation { function, file: None, line: None, java });
        }
        let into = symbol.map_or(0, |(_, into)| into);
        known.insert(offset, (!locations.is_empty()).then_some(Symbolized { functions: locations, into }));
    }
    known
}

/// Whether the symbol is `name` with its namespaces before it. If the linker merged equal functions, it may be another
/// function's symbol.
fn qualifies(symbol: &[u8], name: &[u8]) -> bool {
    mangling::demangle(symbol).strip_suffix(&*mangling::demangle(name)).is_some_and(|path| path.ends_with("::"))
}

/// Uses the source's name if the linker's name can't be demangled.
fn readable(linkage: &[u8], name: Option<&[u8]>, functions: &Functions) -> (String, bool) {
    let (text, java) = functions.readable(linkage);
    match name {
        Some(name) if text.starts_with("_Z") => (String::from_utf8_lossy(name).into_owned(), false),
        _ => (text, java),
    }
}

pub type Lines = (Vec<Vec<Level>>, Option<String>);

/// Inlined functions and lines of each call. `shared` is the file into which dwz(1) moved common parts of several
/// files. The walk ends when `in_time` says no.
pub fn lines<'a, R: ReadRef<'a>>(
    file: &object::File<'a, R>,
    shared: Option<&Opened>,
    calls: &[u64],
    cap: u64,
    in_time: &dyn Fn() -> bool,
) -> Result<Lines, String> {
    let main = sections(file, cap)?;
    let shared_pieces = shared.map(Opened::pieces);
    let shared_file = shared_pieces.as_ref().and_then(|pieces| object::File::parse(pieces).ok());
    let shared = shared_file.as_ref().map(|file| sections(file, cap)).transpose()?;
    if !file.is_little_endian() {
        return Err("its debug information has the other byte order".into());
    }
    let dwarf = main.borrow_with_sup(shared.as_ref(), |bytes| dwarf::reader(bytes));
    Ok(dwarf::levels(&dwarf, calls, in_time))
}

fn sections<'a, R: ReadRef<'a>>(
    file: &object::File<'a, R>,
    cap: u64,
) -> Result<gimli::DwarfSections<Cow<'a, [u8]>>, String> {
    let mut left = SECTIONS.min(cap);
    gimli::DwarfSections::load(|id: SectionId| {
        let Some(section) = file.section_by_name(id.name()) else { return Ok(Cow::Borrowed(&[][..])) };
        // A compressed section states its own size, and unpacking reserves that much. So the size is accepted only
        // within limits.
        let (size, packed) =
            section.compressed_data().map_or((0, 0), |data| (data.uncompressed_size, data.data.len() as u64));
        if size > packed.saturating_mul(UNPACKED_TIMES) {
            return Err("a compressed section of its debug information claims an impossible size".into());
        }
        left = left.checked_sub(size).ok_or("its debug information is larger than what is read into memory")?;
        Ok(section.uncompressed_data().unwrap_or(Cow::Borrowed(&[])))
    })
}

/// The compressed symbol table in Fedora's builds (GDB manual, 'MiniDebugInfo').
fn mini<'a, R: ReadRef<'a>>(file: &object::File<'a, R>) -> Option<Functions> {
    let packed = file.section_by_name(".gnu_debugdata")?.data().ok()?;
    let file = gnu_debugdata::xz(packed, MINI)?;
    Some(Functions::read(&object::File::parse(file.as_slice()).ok()?))
}
