//! Module + offset → functions, source files and lines, from ELF symbol tables, DWARF's inlined functions, and maps of
//! JIT code.
//!
//! ```text
//! offsets of a module ─► cache ─► misses: object + debug files (read.rs) ─► symbols, DWARF ─► cache
//! ```
//! All calls of a module are resolved together. A file is used only if it is of the build that was loaded: an updated
//! library would give wrong names. A call without a name stays module+0xoffset; a file with symbols of the same build
//! that is given later can still name it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use crate::books::{Books, Module};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::units::Avma;
use plimsoll_process::foreign::{Deadline, Regular};

mod budget;
pub(crate) mod cache;
pub(crate) mod dwarf;
pub(crate) mod functions;
mod gnu_debugdata;
#[cfg(test)]
mod hostile;
pub(crate) mod jitdump;
mod mangling;
pub(crate) mod object;
pub(crate) mod perf_map;
mod read;
#[cfg(test)]
mod tests;
mod units;

pub use mangling::demangle;

use cache::CachedNames;
use perf_map::Map;

/// A function, and a position in its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    pub function: Arc<str>,
    pub file: Option<Arc<str>>,
    pub line: Option<u32>,
    /// Whether it is a method of a native image.
    pub java: bool,
}

/// The functions at a return address: the innermost inlined function first, the function that contains all of them
/// last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbolized {
    pub functions: Vec<SourceLocation>,
    /// Offset of the address from the start of the last function.
    pub into: u64,
}

/// Sources of names.
#[derive(Clone, Debug, Default)]
pub struct SymbolOptions {
    /// The live process, through whose root files are read. For a dead process, paths are taken as ours.
    pub pid: Option<u32>,
    /// Files with symbols, and directories of such files.
    pub given: Vec<PathBuf>,
    /// Where to cache resolved names.
    pub cache: Option<PathBuf>,
    /// Read nothing: frames stay module+0xoffset.
    pub without: bool,
}

/// The file of the process's program, if it is of the build that was loaded.
pub fn program(books: &Books, pid: Option<u32>, deadline: Deadline) -> Option<Regular> {
    let executable = &books.process.executable;
    // The tracker lists a module once a block's stack leads through it. Otherwise the file's age decides.
    let listed = books.modules.iter().find(|module| module.path == *executable).cloned();
    let module = listed.unwrap_or_else(|| Module { path: executable.clone(), ..Module::default() });
    read::Finder::new(pid, read::Start::of(books, pid), &[], deadline).object(&module).ok()
}

/// The names of one process's code.
pub struct Symbols {
    finder: read::Finder,
    cache: Option<PathBuf>,
    known: HashMap<usize, CachedNames>,
    jit: Option<Map>,
    jit_queried: bool,
    without: bool,
    inner_pid: u32,
    pub gaps: Vec<Gap>,
}

impl Symbols {
    pub fn new(options: &SymbolOptions, books: &Books, deadline: Deadline) -> Symbols {
        Symbols {
            finder: read::Finder::new(options.pid, read::Start::of(books, options.pid), &options.given, deadline),
            cache: options.cache.as_ref().map(|dir| dir.join("symbols")),
            known: HashMap::new(),
            jit: None,
            jit_queried: options.without,
            without: options.without,
            inner_pid: books.process.namespaced_pid.unwrap_or(books.process.pid),
            gaps: Vec::new(),
        }
    }

    /// Resolves these return addresses (as linked), by module.
    pub fn resolve(&mut self, modules: &[Module], wanted: &BTreeMap<usize, BTreeSet<u64>>) {
        if self.without {
            return;
        }
        for (&index, offsets) in wanted {
            let Some(module) = modules.get(index) else { continue };
            let known = self.known.remove(&index).unwrap_or_default();
            let offsets: Vec<u64> = offsets.iter().copied().filter(|o| !known.contains_key(o)).collect();
            let known = if offsets.is_empty() { known } else { self.module(module, known, &offsets) };
            self.known.insert(index, known);
        }
    }

    fn module(&mut self, module: &Module, mut known: CachedNames, offsets: &[u64]) -> CachedNames {
        // The vdso has a name only. A library that was loaded by a relative path has that path.
        if !module.path.contains('/') {
            let vdso = if module.path.contains("vdso") { read::vdso() } else { None };
            let answers = vdso.and_then(|bytes| object::resolve_bytes(&bytes, &module.build_id, offsets));
            known.extend(answers.map(|a| a.known).unwrap_or_default());
            return known;
        }
        let object = self.finder.object(module);
        let links = object.as_ref().ok().and_then(|opened| {
            let pieces = opened.pieces();
            ::object::File::parse(&pieces).ok().map(|file| read::Links::of(&file))
        });
        // If the object's build differs from the loaded one, a debug file found by the old build id still fits.
        let mut files = Vec::new();
        let missing = match object {
            Ok(opened) => {
                files.push(opened);
                None
            }
            Err(reason) => reason,
        };
        files.extend(self.finder.companions(module, links.as_ref()));
        let without_object = missing.filter(|_| files.is_empty() || module.path.starts_with('/'));
        if let Some(path) = self.finder.given_by_name(module) {
            let reason = format!("{} has no build id: {} is used because of its name", module.path, path.display());
            self.gaps.push(Gap::new(Source::Symbols, reason, "its names are wrong if that file is from another build"));
        }
        if self.finder.deadline().has_passed() {
            self.gap(format!("{} was not read in time", module.path));
        }
        let marks: Option<Vec<String>> = files.iter().map(read::mark).collect();
        let fingerprint = marks.as_ref().map(|marks| marks.join(" ")).unwrap_or_default();
        let kept = self.cache.as_ref().filter(|_| marks.is_some());
        let kept = kept.and_then(|dir| read::cache_file(dir, module, &self.finder, &files));
        let cached = kept.as_ref().and_then(|path| read::cached(path, self.finder.deadline()));
        let cached = cached.as_deref().and_then(cache::parse);
        let (unread, mut all) = match cached {
            // There is no file to look up, but the build id shows that these names are right.
            Some((_, unread, cached)) if files.is_empty() && !module.build_id.is_empty() => (unread, cached),
            Some((of, unread, cached)) if of == fingerprint && !files.is_empty() => (unread, cached),
            _ => (None, CachedNames::new()),
        };
        let mut unread = unread.map(str::to_owned);
        let missing: Vec<u64> = offsets.iter().copied().filter(|o| !all.contains_key(o)).collect();
        // The cache may have all names of a file that was replaced since.
        if let Some(reason) = without_object.filter(|_| !files.is_empty() || !missing.is_empty()) {
            self.gap(format!("{} {reason}", module.path));
        }
        if !missing.is_empty() && !files.is_empty() {
            let answers = object::resolve(&files, &self.finder, &missing);
            // After the deadline, nothing is cached: the next report may have more time. Any other reason holds until a
            // file changes, so the cache keeps it for later reports.
            let is_late = self.finder.deadline().has_passed();
            if is_late && answers.reason.is_none() {
                self.gap(format!("{} was not read in time", module.path));
            }
            unread = answers.reason.or(unread);
            all.extend(answers.known);
            if let Some(path) = kept.filter(|_| !is_late) {
                let text = cache::write(&fingerprint, unread.as_deref(), &all);
                if (text.len() as u64) < cache::LARGEST {
                    read::store(&path, &text);
                }
            }
        }
        if let Some(reason) = unread {
            self.gap(format!("{}: {reason}", module.path));
        }
        known.extend(offsets.iter().map(|o| (*o, all.remove(o).flatten())));
        known
    }

    fn gap(&mut self, reason: String) {
        let gap = Gap::new(Source::Symbols, reason, "its frames lack names or lines");
        // A library that was loaded again has several entries.
        if !self.gaps.contains(&gap) {
            self.gaps.push(gap);
        }
    }

    /// The result of `resolve` for a return address.
    pub fn at(&self, module: usize, offset: u64) -> Option<&Symbolized> {
        self.known.get(&module)?.get(&offset)?.as_ref()
    }

    /// The name of code outside all modules, as its JIT recorded it.
    pub fn jit(&mut self, return_address: Avma) -> Option<String> {
        if !self.jit_queried {
            self.jit_queried = true;
            let (map, reason) = self.finder.jit(self.inner_pid);
            self.jit = map;
            if let Some(reason) = reason {
                self.gaps.push(Gap::new(Source::Symbols, reason, "code generated at run time has no names"));
            }
        }
        self.jit.as_ref()?.at(return_address.0.checked_sub(1)?)
    }
}

/// Names the frames of all callers that have no name yet.
pub fn resolve(books: &mut Books, options: &SymbolOptions, deadline: Deadline) {
    let mut wanted: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
    for frame in books.callers.iter().flat_map(|c| &c.frames).filter(|f| f.function.is_none()) {
        if let Some(module) = frame.module {
            wanted.entry(module).or_default().insert(frame.offset);
        }
    }
    let mut symbols = Symbols::new(options, books, deadline);
    symbols.resolve(&books.modules, &wanted);
    for frame in books.callers.iter_mut().flat_map(|c| &mut c.frames).filter(|f| f.function.is_none()) {
        match frame.module {
            // A caller has one line per frame: the function that contains the code, with the innermost source position.
            Some(module) => {
                if let Some(location) = symbols.at(module, frame.offset)
                    && let (Some(first), Some(last)) = (location.functions.first(), location.functions.last())
                {
                    frame.function = Some(last.function.to_string());
                    frame.function_offset = location.into;
                    frame.file = first.file.as_ref().map(|f| f.to_string());
                    frame.line = first.line;
                }
            }
            None if frame.address != Avma(0) => frame.function = symbols.jit(frame.address),
            None => {}
        }
    }
    books.gaps.append(&mut symbols.gaps);
}
