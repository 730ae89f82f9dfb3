//! Seeds of binary formats that the test suites have builders for. `BLESS=1 cargo test -p plimsoll-fuzz --test seeds` writes them anew after
//! a change of format: a search that begins with seeds of yesterday's format stops at the header.

use std::fs;
use std::path::Path;

#[allow(dead_code)]
#[path = "../../crates/jfr/tests/support/chunk.rs"]
mod chunk;
#[path = "../../crates/observer/tests/synthetic/mod.rs"]
mod synthetic;

fn put(target: &str, name: &str, bytes: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target).join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("folder")).expect("folder");
        fs::write(&path, bytes).expect("seed");
    }
    let kept = fs::read(&path).unwrap_or_default();
    assert!(kept == bytes, "{target}/{name} is of an older format: BLESS=1 cargo test -p plimsoll-fuzz --test seeds");
}

/// As the target `segment` reads a file: pieces with their offsets.
fn sparse(file: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, line) in file.chunks(64).enumerate().filter(|(_, line)| line.iter().any(|byte| *byte != 0)) {
        out.extend((number as u32 * 64).to_le_bytes());
        out.extend((line.len() as u16).to_le_bytes());
        out.extend(line);
    }
    out
}

/// A search from a seed that the reader refuses would stay at the header.
fn segment(name: &str, file: &[u8]) {
    let seed = sparse(file);
    let read = plimsoll_fuzz::targets::segment::read(&seed).expect("the seed is a segment");
    assert!(!read.rows.is_empty(), "{name} has no rows");
    put("segment", name, &seed);
}

#[test]
fn seeds_are_of_the_formats_of_today() {
    segment("server", &synthetic::server(4711).trimmed());
    let mut sites = synthetic::server(4711);
    let stack = sites.stack(&[(0x40_1000, 1), (0x40_2000, 1), (0x40_3000, 1)]);
    let site = sites.site(3, 2, 3, stack);
    sites.row(synthetic::RowOf { caller: site, slot: 1, alloc: (9, 900, 800), free: (2, 200, 180) });
    sites.sample(site, 1, 100, 512.0);
    sites.method("com/example/A", "run", "()V", "A.java", &[(0, 10), (5, 12)]);
    let entries = [(0x1000, 0x3000, 3, 1, 5), (0x4000, 0x9000, 5, 2, 6), (0x7f00_0000_0000, 0x7f00_0002_0000, 0, 3, 7)];
    sites.vmap(2, &entries);
    segment("sites", &sites.trimmed());
    let at = plimsoll_segment::Section::Vmap.offset();
    let map = &sites.bytes[at..sites.bytes.len().min(at + 4096)];
    put("vma_map", "three", map);

    let start = 1_790_000_000_000_000_000u64;
    let rss = [
        ("jdk.ResidentSetSize", &["size", "peak"][..]),
        ("jdk.NativeMemoryUsage", &["$type", "reserved", "committed"][..]),
    ];
    let curves = chunk::chunk_of(&rss, start, start + 200_000_000_000, |out| {
        for second in 0..20i64 {
            out.event(50, |out| [second * 10_000_000_000, 1 << 20, 2 << 20].iter().for_each(|value| out.long(*value)));
            out.event(51, |out| {
                out.long(second * 10_000_000_000);
                out.utf8("Other");
                [1 << 20, (1 << 19) + second * 1000].iter().for_each(|value| out.long(*value));
            });
        }
    });
    put("jfr", "curves", &curves);
    put("jfr", "every_kind", &chunk::chunk(true));
    put("jfr", "uncompressed", &chunk::chunk(false));

    let rules = plimsoll_observer::rules::parse::parse_only(&[(
        "seed",
        "category zip: zip\ncategory aaa: a\nlibz.so*: inflate* -> zip\nlibjvm.so -> through\nliba.so: f* -> aaa unless zip\n",
    )]);
    let rules = rules.expect("rules");
    let table = plimsoll_observer::rules::compile::Table {
        build_id: [7; 20],
        ranges: vec![
            (0x1000, plimsoll_segment::rules::Target::Category(0)),
            (0x2000, plimsoll_segment::rules::Target::None),
        ],
    };
    put("rules_blob", "small", &plimsoll_observer::rules::compile::blob(&rules, &[table]));
}
