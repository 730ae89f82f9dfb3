//! ELF files with symbols and debug information: any file that a process has mapped. Root makes its caches from them.

use plimsoll_segment::rules::Rules;
use plimsoll_tracked::parsers::{functions::Functions, object as files};
use plimsoll_tracked::rules::{RuleSet, compile, modules};
use std::sync::OnceLock;

fn rules() -> &'static RuleSet {
    static RULES: OnceLock<RuleSet> = OnceLock::new();
    RULES.get_or_init(|| RuleSet::parse_built_in().expect("our own rules"))
}

pub fn run(bytes: &[u8]) {
    modules::needs(bytes);
    modules::interpreter(bytes);
    let id = modules::build_id(bytes);
    files::resolve_bytes(bytes, &[], &[0, 1, 0x1000, 0x1010, 0x1234, u64::MAX]);
    if let Ok(table) = compile::table(rules(), "libjvm.so", bytes, None) {
        let blob = compile::blob(rules(), std::slice::from_ref(&table));
        let read = Rules::parse(&blob).expect("what we compiled");
        if let Some(id) = id.filter(|_| !table.ranges.is_empty()) {
            let ranges: Vec<_> = read.ranges(&id).expect("a table").collect();
            assert_eq!(ranges, table.ranges, "the compiled table reads differently");
        }
    }
    let Ok(file) = object::File::parse(bytes) else { return };
    let functions = Functions::read(&file);
    for address in [0, 0x1000, 0x1100, 0x2000, u64::MAX] {
        if let Some((name, _)) = functions.at(address) {
            functions.readable(name);
        }
    }
    let calls: Vec<u64> = (0..0x40).map(|n| 0x1000 + n * 8).chain([u64::MAX]).collect();
    if let Ok((levels, _)) = files::lines(&file, None, &calls, u64::MAX, &|| true) {
        assert_eq!(levels.len(), calls.len());
    }
}
