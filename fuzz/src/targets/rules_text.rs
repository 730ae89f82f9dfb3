//! Category rules of a user (`--rules FILE`), names to match with them, and the loader's configuration.

use plimsoll_segment::rules::{Rules, glob_matches};
use plimsoll_tracked::rules::{compile, modules, names, parse};
use plimsoll_tracked::symbols;

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(rules) = parse::parse_only(&[("input", &text)]) {
        let blob = compile::blob(&rules, &[]);
        let read = Rules::parse(&blob).expect("what we compiled");
        assert_eq!(read.categories() as usize, rules.categories.len());
        rules.classify(&[("libc.so.6", Some("malloc")), ("libjvm.so", Some("os::malloc")), ("a", None)]);
    }
    modules::loader_directories(&text);
    let (glob, name) = text.split_once('\n').unwrap_or((&text, "os::malloc(unsigned long)"));
    glob_matches(glob.as_bytes(), name.as_bytes());
    names::qualified(name);
    names::plain(name);
    names::demangled(name);
    symbols::demangle(name.as_bytes());
}
