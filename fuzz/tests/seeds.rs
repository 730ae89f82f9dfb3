//! Seeds of binary formats for which the test suites have builders. After a change of a format, `BLESS=1 cargo test -p
//! plimsoll-fuzz --test seeds` rewrites them: a search from seeds of an old format stops at the header.

use std::fs;
use std::path::Path;

use plimsoll_facts::snapshot::{AllocatorKind, HeapPart};

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../crates/jfr/tests/chunks/chunk.rs"]
mod chunk;
#[path = "../../crates/tracked/tests/synthetic/mod.rs"]
mod synthetic;

fn put(target: &str, name: &str, bytes: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target).join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("folder")).expect("folder");
        fs::write(&path, bytes).expect("seed");
    }
    let kept = fs::read(&path).unwrap_or_default();
    let again = "BLESS=1 cargo test -p plimsoll-fuzz --test seeds";
    assert!(kept == bytes, "{target}/{name} has an older format. Write it again: {again}");
}

/// A file in the form of the target `segment`: pieces with their offsets.
fn sparse(file: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, line) in file.chunks(64).enumerate().filter(|(_, line)| line.iter().any(|byte| *byte != 0)) {
        out.extend((number as u32 * 64).to_le_bytes());
        out.extend((line.len() as u16).to_le_bytes());
        out.extend(line);
    }
    out
}

/// A search from a seed that the reader refuses would not get past the header.
fn segment(name: &str, file: &[u8]) {
    let seed = sparse(file);
    let read = plimsoll_fuzz::targets::segment::read(&seed).expect("the seed is a segment");
    assert!(!read.rows.is_empty(), "{name} has no rows");
    put("segment", name, &seed);
}

#[test]
fn seeds_have_the_formats_of_today() {
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

    let rules = plimsoll_tracked::rules::parse::parse_only(&[(
        "seed",
        "category zip: zip\ncategory aaa: a\nlibz.so*: inflate* -> zip\nlibjvm.so -> through\nliba.so: f* -> aaa unless zip\n",
    )]);
    let rules = rules.expect("rules");
    let table = plimsoll_tracked::rules::compile::Table {
        build_id: [7; 20],
        ranges: vec![
            (0x1000, plimsoll_segment::rules::RuleTarget::Category(0)),
            (0x2000, plimsoll_segment::rules::RuleTarget::None),
        ],
    };
    put("rules_blob", "small", &plimsoll_tracked::rules::compile::blob(&rules, &[table]));
}

/// Memory in the form of the target `malloc_memory` (fuzz/src/image.rs): mappings, then words at addresses.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Memory {
    fn mapping(&mut self, start: u64, pages: u16, name: u8) {
        self.0.push(0);
        self.0.extend(start.to_le_bytes());
        self.0.extend(pages.to_le_bytes());
        self.0.extend([3, name]);
    }

    fn words(&mut self, at: u64, words: &[u64]) {
        self.0.push(1);
        self.0.extend(at.to_le_bytes());
        self.0.extend((words.len() as u16 * 8).to_le_bytes());
        self.0.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
}

/// One span for each class, one free span, one returned span, and the page map that leads to them.
fn tcmalloc() -> Vec<u8> {
    const DATA: u64 = 0x7f00_0000_0000;
    const HEAP: u64 = 0x5555_8000_0000;
    const LEAF: u64 = HEAP - (16 << 20);
    const SPANS: u64 = HEAP - (8 << 20);
    const CACHE: u64 = HEAP - (1 << 20);
    let sizes: Vec<u64> = [0, 8]
        .into_iter()
        .chain((1..8).map(|n| n * 16))
        .chain((1..8).flat_map(|n| [64 << n, 96 << n]))
        .chain([16384, 32768])
        .collect();
    // tcmalloc's own span sizes: at most an eighth of a span is left over after the last block.
    let pages_of = |size: u64| {
        (1..).find(|pages| size == 0 || (pages << 13 >= size && (pages << 13) % size <= pages << 10)).unwrap_or(1)
    };
    let mut memory = Memory::default();
    memory.mapping(DATA, 512, 9);
    memory.mapping(LEAF, 4096 + 512, 0);
    let mut at = HEAP >> 13;
    let mut totals = [0; 3];
    for number in 0..sizes.len() as u64 + 2 {
        let class = (number + 1) % (sizes.len() as u64 + 2);
        let (state, class) = match class.checked_sub(sizes.len() as u64) {
            Some(state) => (1 + state, 0),
            None => (0, class),
        };
        let pages = pages_of(sizes[class as usize]);
        let record = SPANS + number * 48;
        memory.words(record, &[at, pages, 0, 0, 0, u64::from(class != 0) | class << 16 | state << 24]);
        for page in at..at + pages {
            memory.words(LEAF + 8 * (page & 0x3_ffff), &[record]);
        }
        totals[0] += pages << 13;
        if state > 0 {
            totals[state as usize] += pages << 13;
        }
        at += pages;
    }
    let root = DATA + 0x1000;
    memory.words(root + 8 * (HEAP >> 31), &[LEAF]);
    let counters = root + (1 << 20) + 12_408;
    memory.words(counters, &totals);
    let halves = |of: &dyn Fn(u64) -> u64| -> Vec<u64> {
        let halves: Vec<u64> = sizes.iter().map(|size| of(*size)).chain([0]).collect();
        halves.chunks(2).map(|pair| pair[0] | pair.get(1).copied().unwrap_or_default() << 32).collect()
    };
    let table = counters + 4096;
    memory.words(table, &halves(&|size: u64| 65536u64.checked_div(size).map_or(0, |blocks| blocks.clamp(2, 32))));
    memory.words(table + 512, &halves(&|size| size));
    for (class, size) in (0..).zip(&sizes) {
        memory.words(CACHE + class * 32 + 16, &[0, *size]);
        if class > 0 {
            let central = table + 2048 + class * 1216;
            memory.words(central, &[class]);
            let capacity = pages_of(*size) * 8192 / size;
            memory.words(central + 104, &[1, capacity.saturating_sub(1)]);
            memory.words(central + 120 + 1024, &[16 << 32, 64]);
        }
    }
    memory.words(table + 2048 + 64 * 1216, &[CACHE]);
    memory.0
}

/// One isolate's spaces with a few pages each, as V8 13 orders the fields.
fn v8() -> Vec<u8> {
    const PAGES: u64 = 0x2a_0000_0000;
    const RECORDS: u64 = 0x5555_8000_0000;
    const SPACES: u64 = RECORDS + 0x1_0000;
    const HEAP: u64 = RECORDS + 0x3_0000;
    let mut memory = Memory::default();
    memory.mapping(PAGES, 16 * 64, 0);
    memory.mapping(RECORDS, 64, 0);
    for number in 0..16 {
        let (at, record) = (PAGES + number * (256 << 10), RECORDS + number * 320);
        // Two halves of the young generation, old objects, large ones.
        let (kind, neighbour) = (number / 4, |other: u64| RECORDS + other * 320);
        let (size, flags) = [(256 << 10, 8), (256 << 10, 16), (256 << 10, 4), (252 << 10, 4)][kind as usize];
        let (start, end, space) = (at + 16, at + size, SPACES + kind * 512);
        let allocated = if kind == 2 { 1000 * number } else { size - 16 };
        let mark = if kind == 3 { 16 } else { 16 + allocated };
        memory.words(at, &[flags, record]);
        memory.words(record, &[7, at, size, allocated, 0, mark, size, end, HEAP, start, space]);
        let next = if number % 4 < 3 { neighbour(number + 1) } else { 0 };
        let before = if number % 4 > 0 { neighbour(number - 1) } else { 0 };
        memory.words(record + 33 * 8, &[next, before]);
        if number % 4 == 0 {
            let all: u64 = if kind == 2 { 4 * 1000 * 8 + 6000 } else { 4 * allocated };
            memory.words(space, &[7, HEAP, kind, 4 * size, 4 * size]);
            memory.words(space + 15 * 8, &[all]);
        }
    }
    let (young, old) = (PAGES + 5 * (256 << 10), PAGES + 9 * (256 << 10));
    memory.words(HEAP - 0x9000, &[young + 16, young + 4096, young + (256 << 10), old + 16, old + 64, old + 512]);
    memory.0
}

/// One segment as mimalloc 2.0.9 lays it out: a page of small blocks, of which another thread freed some; free slices.
fn mimalloc() -> Vec<u8> {
    const DATA: u64 = 0x7f00_0000_0000;
    const SEGMENT: u64 = 0x39c_9600_0000;
    const SECRET: u64 = 0x1949_34d2_19e0_680a;
    const PAGE: u64 = SEGMENT + (64 << 10);
    let mut memory = Memory::default();
    memory.mapping(DATA, 1, 10);
    memory.words(DATA + 0x80, &[SECRET]);
    memory.mapping(SEGMENT, 8192, 0);
    // In use, cookie, slices, first slices, kind, entries, owner.
    memory.words(SEGMENT + 208, &[1, SEGMENT ^ SECRET, 512, 1, 0, 512, 0x7f16_c68f_36c0]);
    let record = |slice: u64| SEGMENT + 264 + slice * 80;
    memory.words(record(0), &[1, 0, 0, 65536 << 32]);
    let (capacity, reserved, used, block) = (64 << 16, 64 << 32, 40, 1024 << 32);
    memory.words(record(1), &[1, capacity | reserved, PAGE + 41 * 1024, used | block, 0, PAGE | 2]);
    memory.words(PAGE, &[PAGE + 1024]);
    memory.words(PAGE + 1024, &[0]);
    memory.words(record(2), &[510]);
    memory.0
}

/// A chunk of 4 MiB: eight spans of objects, one of stacks, free pages and pages that were given back.
fn go() -> Vec<u8> {
    const DATA: u64 = 0x5a_0000;
    const HEAP: u64 = 0xc0_0000_0000;
    const META: u64 = 0x7f00_0000_0000;
    const PERSISTENT: u64 = META + (2 << 20);
    const BITS: u64 = META + (3 << 20);
    let mut memory = Memory::default();
    memory.mapping(DATA, 20, 6);
    memory.mapping(HEAP, 1024, 0);
    memory.mapping(META, 1024, 0);
    let mut records = Vec::new();
    for number in 0..9u64 {
        let (start, record) = (HEAP + number * 8 * 8192, PERSISTENT + 64 + number * 160);
        let (state, size) = if number == 8 { (2, 4096) } else { (1, 1024 << (number % 4)) };
        let objects = if state == 1 { 65536 / size } else { 0 };
        memory.words(record + 24, &[start, 8]);
        memory.words(record + 64, &[BITS + 16 + number * 8, BITS + 4096]);
        memory.words(record + 96, &[(objects / 2) | 2 << 16 | state << 24, size, start + objects * size]);
        records.push(record);
    }
    let chunk = HEAP.wrapping_sub(0xffff_8000_0000_0000) >> 22;
    // 72 pages are in spans. Of the other pages, every second group of 64 was given back.
    memory.words(
        META + (chunk & 0x1fff) * 128,
        &[u64::MAX, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, u64::MAX, 0, u64::MAX, 0, u64::MAX, 0],
    );
    memory.words(PERSISTENT, &[0, 0, HEAP, HEAP + (4 << 20)]);
    memory.words(META + (2 << 20) + (512 << 10), &records);
    memory.words(BITS, &[4096, 0]);
    memory.words(DATA + 64, &[100, i64::MAX as u64, 4 << 20]);
    memory.words(DATA + 64 + 34 * 8, &[64 * 8192, 192 * 8192, (440 - 192) * 8192]);
    memory.words(DATA + 1024, &[PERSISTENT, 0, BITS, 0, 0]);
    let summaries = DATA + 2048;
    for (level, bits) in [14, 17, 20, 23, 26].into_iter().enumerate() {
        memory.words(summaries + 24 * level as u64, &[META + (4096 << level), 1, 1 << bits]);
    }
    memory.words(summaries + 120 + (chunk >> 13) * 8, &[META]);
    memory.words(
        summaries + 120 + 65536,
        &[
            HEAP,
            chunk,
            chunk + 1,
            PERSISTENT + 16,
            1,
            16,
            4 << 20,
            DATA, // ranges in use
            META,
            0,
            1 << 26,
            0,
            0, // index
            META + (2 << 20) + (512 << 10),
            records.len() as u64,
            1024,
        ],
    );
    memory.0
}

#[test]
fn the_walks_of_allocators_split_the_seeds_of_their_heaps() {
    put("malloc_memory", "tcmalloc", &tcmalloc());
    put("malloc_memory", "go", &go());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/malloc_memory/go");
    let image = plimsoll_fuzz::image::Image::parse(&fs::read(path).expect("seed"));
    assert!(plimsoll_fuzz::targets::malloc_memory::go(&image).is_some(), "the walk of Go's heap refuses its seed");
    put("malloc_memory", "mimalloc", &mimalloc());
    for (name, kind) in [
        ("jemalloc", AllocatorKind::Jemalloc),
        ("tcmalloc", AllocatorKind::Tcmalloc),
        ("mimalloc", AllocatorKind::Mimalloc),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/malloc_memory").join(name);
        let image = plimsoll_fuzz::image::Image::parse(&fs::read(path).expect("seed"));
        let heap = plimsoll_fuzz::targets::malloc_memory::malloc_heap(&image).expect(name);
        assert_eq!(heap.kind, kind);
    }
    put("malloc_memory", "v8", &v8());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/malloc_memory/v8");
    let image = plimsoll_fuzz::image::Image::parse(&fs::read(path).expect("seed"));
    let heap = plimsoll_observer::parsers::v8::walk(&image, &image.vmas).expect("V8's heap");
    for part in [HeapPart::Young, HeapPart::Old, HeapPart::Large, HeapPart::FreeYoung] {
        assert!(heap.part(part).length.0 > 4096, "{part:?}: {:?}", heap.parts);
    }
}

/// An object of three functions with unwind tables, a thread stopped in the innermost one, and its stack:
/// `start` calls `outer`, which calls `inner`. `augmentation` and `rules` are those of `inner`.
///
/// ```text
/// 0 headers   176 index   216 rules: two common entries and three functions, 32 bytes each   1024 code
/// ```
fn unwound(augmentation: &str, rules: &[u8]) -> Vec<u8> {
    const INDEX: u64 = 176;
    const FRAMES: u64 = 216;
    const CODE: u64 = 1024;
    const END: u64 = 1280;
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let halves = |halves: &[u32]| halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>();
    let distance = |to: u64, from: u64| (to as u32).wrapping_sub(from as u32);
    let mut object = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    object.extend(words(&[0, 64, 0]));
    object.extend(halves(&[0]));
    object.extend([64u16, 56, 2, 64, 0, 0].map(u16::to_le_bytes).concat());
    // PT_LOAD, readable and executable: the whole file. PT_GNU_EH_FRAME: the index.
    object.extend([halves(&[1, 5]), words(&[0, 0, 0, END, END, 4096])].concat());
    object
        .extend([halves(&[0x6474_e550, 4]), words(&[INDEX, INDEX, INDEX, FRAMES - INDEX, FRAMES - INDEX, 4])].concat());
    let functions = [CODE, CODE + 64, CODE + 128];
    // Two common entries of 32 bytes, then one entry of 32 bytes for each function.
    let entries = [FRAMES + 64, FRAMES + 96, FRAMES + 128];
    object.extend([1, 0x1b, 0x03, 0x3b]);
    object.extend(halves(&[distance(FRAMES, INDEX + 4), 3]));
    for (function, entry) in functions.iter().zip(entries) {
        object.extend(halves(&[distance(*function, INDEX), distance(entry, INDEX)]));
    }
    object.resize(FRAMES as usize, 0);
    let padded = |mut entry: Vec<u8>| {
        assert!(entry.len() <= 28, "{}", entry.len());
        // DW_CFA_nop
        entry.resize(28, 0);
        [halves(&[28]), entry].concat()
    };
    // Version 1, alignments 1 and -8, return address in column 16, addresses as 32-bit distances; the frame begins 8
    // bytes above rsp, and the return address lies below that.
    let common = |augmentation: &str| {
        let rest = [1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1];
        padded([&[0, 0, 0, 0, 1][..], augmentation.as_bytes(), &[0], &rest].concat())
    };
    object.extend(common("zR"));
    object.extend(common(augmentation));
    let outer = [0x0e, 16];
    // DW_CFA_undefined of the return address: a thread's first function.
    let start = [0x07, 16];
    let all = [(FRAMES + 32, rules), (FRAMES, &outer[..]), (FRAMES, &start[..])];
    for ((function, entry), (common, rules)) in functions.iter().zip(entries).zip(all) {
        let head = halves(&[distance(entry + 4, common), distance(*function, entry + 8), 64]);
        object.extend(padded([&head[..], &[0], rules].concat()));
    }
    object.resize(END as usize, 0x90);
    // CALL before each return address.
    object[CODE as usize + 64 + 16] = 0xe8;
    object[CODE as usize + 128 + 8] = 0xe8;
    let (base, stack) = (plimsoll_fuzz::targets::unwind::BASE, plimsoll_fuzz::targets::unwind::STACK);
    let mut registers = [0; 17];
    (registers[0], registers[8]) = (base + CODE + 4, stack);
    let returns = [base + CODE + 64 + 21, 0x1234, base + CODE + 128 + 13, 0, 0, 0];
    [halves(&[END as u32]), words(&registers), object, words(&returns)].concat()
}

#[test]
fn seeds_of_stopped_threads_are_walked_to_their_first_function() {
    let seeds: [(&str, &str, &[u8]); 3] = [
        ("calls", "zR", &[]),
        ("signal", "zRS", &[]),
        // The frame begins at breg7+8; the return address lies at lit8 below it.
        ("expressions", "zR", &[0x0f, 2, 0x77, 8, 0x10, 16, 2, 0x38, 0x1c]),
    ];
    for (name, augmentation, rules) in seeds {
        let seed = unwound(augmentation, rules);
        put("unwind", name, &seed);
        let frames = plimsoll_fuzz::targets::unwind::walked(&seed).expect("long enough");
        let frames = frames.unwrap_or_else(|why| panic!("{name}: {why}"));
        let base = plimsoll_fuzz::targets::unwind::BASE;
        // After a signal the second address is that of the next instruction, otherwise of the call's last byte.
        let second = base + 1024 + 64 + if name == "signal" { 21 } else { 20 };
        assert_eq!(frames.pcs, [base + 1028, second, base + 1024 + 128 + 12], "{name}");
    }
}
