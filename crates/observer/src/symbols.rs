//! Module + offset → function: ELF symbol tables, demangled; each file is read once, and only the parts that are needed.
//!
//! A file is believed only if its build id is the one that the tracker saw: an updated library would give wrong names.
//! Where a module has no symbols, its separate debug file (/usr/lib/debug/.build-id) is asked; then the frame stays
//! module+0xoffset.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::{Object, ObjectSymbol, SymbolKind};

use crate::books::{Books, Module};
use crate::gap::{Gap, Source};

/// The functions of one file, by address as linked.
#[derive(Debug, Default)]
struct Functions {
    /// (start, size, name) in address order, mangled.
    sorted: Vec<(u64, u64, Box<[u8]>)>,
}

impl Functions {
    fn read<'a>(file: &object::File<'a, &'a ReadCache<File>>) -> Functions {
        let tables = file.symbols().chain(file.dynamic_symbols());
        let text = tables.filter(|s| s.kind() == SymbolKind::Text && s.is_definition());
        let named = text.filter_map(|s| Some((s.address(), s.size(), s.name_bytes().ok()?)));
        let mut sorted: Vec<(u64, u64, Box<[u8]>)> = named.map(|(at, size, name)| (at, size, name.into())).collect();
        // Of aliases the longest extent, then the first name: the same on each run.
        sorted.sort_unstable_by(|a, b| (a.0, b.1, &a.2).cmp(&(b.0, a.1, &b.2)));
        sorted.dedup_by_key(|s| s.0);
        Functions { sorted }
    }

    /// The function that contains `svma`, and how far into it. Assembly symbols have no size: they reach to the next.
    fn at(&self, svma: u64) -> Option<(&[u8], u64)> {
        let after = self.sorted.partition_point(|s| s.0 <= svma);
        let (start, size, name) = self.sorted.get(after.checked_sub(1)?)?;
        let into = svma - start;
        (into < *size || *size == 0).then_some((name, into))
    }
}

/// `pid`: through whose root the paths are read; `None` for a dead process, whose paths are taken as ours.
pub fn resolve(books: &mut Books, pid: Option<u32>) {
    let mut files: HashMap<usize, Functions> = HashMap::new();
    let mut replaced = Vec::new();
    let mut names: HashMap<(usize, u64), Option<(String, u64)>> = HashMap::new();
    for caller in &mut books.callers {
        for frame in &mut caller.frames {
            let Some(index) = frame.module else { continue };
            let name = names.entry((index, frame.offset)).or_insert_with(|| {
                let functions = files.entry(index).or_insert_with(|| {
                    load(&books.modules[index], pid).unwrap_or_else(|reason| {
                        replaced.extend(reason.map(|r| format!("{}: {r}", books.modules[index].path)));
                        Functions::default()
                    })
                });
                // The return address may lie behind the function's last instruction; the call doesn't.
                let (name, into) = functions.at(frame.offset.checked_sub(1)?)?;
                Some((demangle(name), into + 1))
            });
            if let Some((function, into)) = name {
                frame.function = Some(function.clone());
                frame.function_offset = *into;
            }
        }
    }
    for reason in replaced {
        books.gaps.push(Gap::new(Source::Segment, reason, "its frames are without function names"));
    }
}

/// `Err(None)`: nothing there to read (a vdso, a deleted file); `Err(Some)`: something else is there.
fn load(module: &Module, pid: Option<u32>) -> Result<Functions, Option<String>> {
    let path = Path::new(&module.path);
    let plain = path.strip_prefix("/").map_err(|_| None)?;
    let root = PathBuf::from(pid.map_or_else(|| "/".into(), |pid| format!("/proc/{pid}/root/")));
    let open = |path: PathBuf| File::open(path).ok().filter(|f| f.metadata().is_ok_and(|m| m.is_file()));
    let file = open(root.join(plain)).ok_or(None)?;
    let cache = ReadCache::new(file);
    let parsed = object::File::parse(&cache).map_err(|_| Some("is no ELF file any more".to_string()))?;
    let build_id = parsed.build_id().ok().flatten().unwrap_or_default();
    // The segment keeps the first 20 bytes of a build id, which is all that the usual SHA-1 ones have.
    if !module.build_id.is_empty() && !build_id.starts_with(&module.build_id) {
        return Err(Some("was replaced since it was loaded (another build id)".into()));
    }
    let functions = Functions::read(&parsed);
    // A stripped library exports a few functions; its debug file has the rest.
    if parsed.symbols().next().is_none()
        && let Some(debug) = debug_file(build_id).and_then(|debug| open(root.join(debug)))
    {
        let cache = ReadCache::new(debug);
        if let Ok(parsed) = object::File::parse(&cache) {
            return Ok(Functions::read(&parsed));
        }
    }
    Ok(functions)
}

fn debug_file(build_id: &[u8]) -> Option<String> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|b| format!("{b:02x}")).collect();
    Some(format!("usr/lib/debug/.build-id/{first:02x}/{rest}.debug"))
}

/// Rust's and C++'s names as their authors wrote them; any other name as it is.
pub fn demangle(name: &[u8]) -> String {
    // Versioned names of the dynamic table (`memcpy@@GLIBC_2.14`) keep their version out of reports.
    let name = name.split(|&b| b == b'@').next().unwrap_or(name);
    let text = String::from_utf8_lossy(name);
    if let Ok(rust) = rustc_demangle::try_demangle(&text) {
        return format!("{rust:#}");
    }
    let cpp = text.starts_with("_Z").then(|| cpp_demangle::Symbol::new(name).ok()?.demangle().ok()).flatten();
    cpp.unwrap_or_else(|| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{Caller, Frame};

    #[test]
    fn names_of_three_languages() {
        assert_eq!(demangle(b"_ZN10JavaThread17thread_main_innerEv"), "JavaThread::thread_main_inner()");
        assert_eq!(demangle(b"_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"), "core::fmt::Write::write_fmt");
        assert_eq!(demangle(b"inflateInit2_@@ZLIB_1.2.0"), "inflateInit2_");
        assert_eq!(demangle(b"_Z\xff("), "_Z\u{fffd}(");
    }

    /// This very program: the address of a function of ours has to come back as its name, +1 because a frame holds the
    /// address after the call.
    #[test]
    fn our_own_function_is_found_in_our_own_file() {
        let path = std::env::current_exe().unwrap();
        let cache = ReadCache::new(File::open(&path).unwrap());
        let parsed = object::File::parse(&cache).unwrap();
        let me = parsed
            .symbols()
            .find(|s| s.name().is_ok_and(|n| demangle(n.as_bytes()).ends_with("symbols::debug_file")))
            .unwrap();
        let mut books = Books::default();
        let build_id = parsed.build_id().ok().flatten().unwrap_or_default();
        let module = |build_id: &[u8]| Module {
            path: path.display().to_string(),
            build_id: build_id[..build_id.len().min(20)].to_vec(),
            ..Module::default()
        };
        books.modules = vec![module(build_id), module(&[7; 20])];
        let frame = |module| Frame { module: Some(module), offset: me.address() + 5, ..Frame::default() };
        books.callers = vec![Caller { frames: vec![frame(0), frame(1)], ..Caller::default() }];
        resolve(&mut books, None);
        let [good, bad] = &books.callers[0].frames[..] else { panic!() };
        assert!(good.function.as_deref().unwrap().ends_with("symbols::debug_file"), "{good:?}");
        assert_eq!(good.function_offset, 5);
        assert_eq!(bad.function, None, "a file of another build id gives no names");
        assert_eq!(books.gaps.len(), 1);
    }
}
