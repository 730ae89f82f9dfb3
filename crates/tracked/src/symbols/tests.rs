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
