//! Names of this test program's own functions.

use plimsoll_process::foreign::{Deadline, NAMES};
use std::path::Path;

use ::object::read::ReadCache;
use ::object::{Object, ObjectSymbol};

use super::*;
use crate::books::{Caller, Frame};

/// In this program itself: the address of a known function, +1 because a frame has the address after the call, must
/// give its name.
#[test]
fn our_own_function_is_found_in_our_own_file() {
    let path = std::env::current_exe().unwrap();
    let cache = ReadCache::new(std::fs::File::open(&path).unwrap());
    let parsed = ::object::File::parse(&cache).unwrap();
    let me = parsed
        .symbols()
        .find(|s| s.name().is_ok_and(|n| demangle(n.as_bytes()).ends_with("symbols::read::cache_file")))
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
    resolve(&mut books, &SymbolOptions::default(), Deadline::after(NAMES));
    let [good, bad] = &books.callers[0].frames[..] else { panic!() };
    assert!(good.function.as_deref().unwrap().ends_with("symbols::read::cache_file"), "{good:?}");
    assert_eq!(good.function_offset, 5);
    assert!(good.file.as_deref().is_some_and(|f| f.ends_with("symbols/read.rs")), "{good:?}");
    assert_eq!(bad.function, None, "a file of another build id gives no names");
    assert_eq!(books.gaps.len(), 1);
    assert!(Path::new(&books.modules[0].path).exists());
}

/// The path of a library that was loaded by a relative path doesn't show where the file is. The kernel has the mapped
/// file of a running process.
#[test]
fn a_library_loaded_by_a_relative_path_is_found_by_its_mapping() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("/libc.so.6")).expect("a dynamic program");
    let (start, path) = (line.split('-').next().unwrap(), line.split_whitespace().last().unwrap());
    let start = Avma(u64::from_str_radix(start, 16).unwrap());
    let file = std::fs::read(path).unwrap();
    let parsed = ::object::File::parse(&*file).unwrap();
    let malloc = parsed.dynamic_symbols().find(|symbol| symbol.name() == Ok("malloc")).expect("it has it");
    let module = Module {
        path: "./libc.so.6".into(),
        range: (start, Avma(start.0 + 0x1000)),
        // Without a build id, so that no debug file can be found by it.
        ..Module::default()
    };
    for (pid, is_named) in [(Some(std::process::id()), true), (None, false)] {
        let frame = Frame { module: Some(0), offset: malloc.address() + 5, ..Frame::default() };
        let caller = Caller { frames: vec![frame.clone(), frame], ..Caller::default() };
        // It was loaded twice: one gap.
        let mut books = Books { modules: vec![module.clone(), module.clone()], ..Books::default() };
        books.callers = vec![caller];
        books.callers[0].frames[1].module = Some(1);
        resolve(&mut books, &SymbolOptions { pid, ..SymbolOptions::default() }, Deadline::after(NAMES));
        let named = books.callers[0].frames.iter().filter(|frame| frame.function.is_some()).count();
        assert_eq!(named, if is_named { 2 } else { 0 }, "{:?}", books.callers);
        let reasons: Vec<&str> = books.gaps.iter().map(|gap| gap.reason.as_str()).collect();
        let of_path = "./libc.so.6 was loaded by a relative path: give its file with --symbols FILE";
        assert_eq!(reasons, if is_named { vec![] } else { vec![of_path] });
    }
}
