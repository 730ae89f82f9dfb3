//! include/segment.h and docs/segment.md are made from layout.rs and the list of counters. BLESS=1 writes them. Without
//! it, they must equal what would be written, and gcc must find each offset and size where Rust has it.

use std::fmt::Write;
use std::mem::offset_of;
use std::path::PathBuf;

use plimsoll_segment::counters::{COUNTER_CAPACITY, COUNTERS};
use plimsoll_segment::*;

const SOURCE: &str = include_str!("../src/layout.rs");
const ESSAY: &str = include_str!("../src/lib.rs");

struct Field {
    name: String,
    kind: String,
    elements: usize,
    doc: String,
    offset: usize,
}

struct Record {
    name: String,
    doc: String,
    fields: Vec<Field>,
    bytes: usize,
}

fn width(kind: &str) -> usize {
    match kind {
        "u8" => 1,
        "u16" => 2,
        "u32" => 4,
        _ => 8,
    }
}

/// `text 48` and `[Composition; 2]` → element kind and number of elements.
fn kind_of(text: &str) -> (String, usize) {
    let text = text.trim();
    if let Some(array) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let (kind, count) = array.split_once(';').unwrap();
        let count = count.trim().parse().unwrap();
        return (kind.trim().to_string(), count);
    }
    let (kind, count) = text.split_once(' ').map_or((text, 1), |(k, n)| (k, n.trim().parse().unwrap()));
    let kind = match kind {
        "text" => "u8".into(),
        "words" => "u64".into(),
        "CounterArray" => return ("u64".into(), COUNTER_CAPACITY),
        atomic => atomic.strip_prefix("Atomic").unwrap_or(atomic).to_ascii_lowercase(),
    };
    (if kind == "sectionentry" || kind == "composition" { text.into() } else { kind }, count)
}

/// Parses one record or `repr(C)` struct from its source: the doc above it, and `name: kind` with the doc above each
/// field.
fn record(name: &str, known: &[Record]) -> Record {
    let at = SOURCE
        .find(&format!("    {name}, {name}Facts,"))
        .or_else(|| SOURCE.find(&format!("pub struct {name} {{")))
        .unwrap();
    let doc: Vec<&str> = SOURCE[..at]
        .lines()
        .rev()
        .skip(usize::from(!SOURCE[..at].ends_with('\n')))
        .map(str::trim)
        .take_while(|l| l.starts_with("///") || l.starts_with("#["))
        .filter_map(|l| l.strip_prefix("///"))
        .map(str::trim)
        .collect();
    let doc = doc.into_iter().rev().collect::<Vec<_>>().join(" ");
    let body = &SOURCE[at..];
    let body = &body[body.find('{').unwrap() + 1..];
    let (mut fields, mut pending, mut offset) = (Vec::new(), Vec::new(), 0usize);
    for line in body.lines().map(str::trim) {
        if line == "}" {
            break;
        }
        if let Some(doc) = line.strip_prefix("///") {
            pending.push(doc.trim());
        } else if let Some((field, kind)) = line.trim_start_matches("pub ").split_once(':') {
            let (kind, elements) = kind_of(kind.trim().trim_end_matches(','));
            let of = known.iter().find(|r| r.name == kind);
            let (size, align) = of.map_or((width(&kind), width(&kind)), |r| (r.bytes, 8));
            offset = offset.next_multiple_of(align);
            let doc = std::mem::take(&mut pending).join(" ");
            fields.push(Field { name: field.into(), kind, elements, doc, offset });
            offset += size * elements;
        }
    }
    Record { name: name.into(), doc, fields, bytes: offset.next_multiple_of(8) }
}

fn records() -> Vec<Record> {
    let mut all = Vec::new();
    for name in [
        "Composition",
        "SectionEntry",
        "Header",
        "Category",
        "Module",
        "Thread",
        "Caller",
        "Row",
        "FrameNode",
        "Method",
        "Sample",
        "SiteSamples",
        "OwnMapping",
    ] {
        let record = record(name, &all);
        all.push(record);
    }
    all
}

/// Links are rustdoc syntax; elsewhere only their text is used.
fn plain(doc: &str) -> String {
    doc.replace("[`", "").replace("`]", "").replace('`', "")
}

fn header(records: &[Record]) -> String {
    let mut h = String::from(
        "/* The segment of a tracked process, as plimsoll writes it (docs/segment.md).\n\
         \x20* Made from crates/segment/src/layout.rs; edit that, then: BLESS=1 cargo test -p plimsoll-segment\n\
         \x20* Byte order is the writer's. Read with pread: the file may be truncated under a mapping. */\n\
         #ifndef PLIMSOLL_SEGMENT_H\n#define PLIMSOLL_SEGMENT_H\n\n#include <stddef.h>\n#include <stdint.h>\n\n",
    );
    writeln!(h, "#define PLIMSOLL_SEGMENT_MAGIC \"PLIMSEG1\"").unwrap();
    writeln!(h, "#define PLIMSOLL_SEGMENT_VERSION {VERSION}").unwrap();
    writeln!(h, "#define PLIMSOLL_SEGMENT_HEADER_BYTES {HEADER_BYTES}").unwrap();
    writeln!(h, "#define PLIMSOLL_SEGMENT_FILE_BYTES {FILE_BYTES}\n").unwrap();
    for (i, name) in SECTION_NAMES.iter().enumerate() {
        writeln!(h, "#define PLIMSOLL_SECTION_{} {i}", name.to_uppercase()).unwrap();
    }
    h.push('\n');
    for (i, counter) in COUNTERS.iter().enumerate() {
        writeln!(
            h,
            "#define PLIMSOLL_COUNTER_{} {i} /* {}:{} */",
            counter.name.to_uppercase(),
            counter.unit,
            plain(counter.doc)
        )
        .unwrap();
    }
    for r in records {
        writeln!(h, "\n/* {} */\nstruct plimsoll_{} {{", plain(&r.doc), snake(&r.name)).unwrap();
        for f in &r.fields {
            let kind = match f.kind.as_str() {
                "u8" if f.elements > 1 => "char".to_string(),
                "i64" | "u8" | "u16" | "u32" | "u64" => {
                    format!("{}int{}_t", if f.kind.starts_with('u') { "u" } else { "" }, &f.kind[1..])
                }
                other => format!("struct plimsoll_{}", snake(other)),
            };
            let array = if f.elements == 1 { String::new() } else { format!("[{}]", f.elements) };
            writeln!(h, "    {kind} {}{array}; /* {} */", f.name, plain(&f.doc)).unwrap();
        }
        h.push_str("};\n");
        for f in &r.fields {
            let of = format!("struct plimsoll_{}, {}", snake(&r.name), f.name);
            writeln!(h, "_Static_assert(offsetof({of}) == {}, \"{}\");", f.offset, f.name).unwrap();
        }
        writeln!(h, "_Static_assert(sizeof(struct plimsoll_{}) == {}, \"size\");", snake(&r.name), r.bytes).unwrap();
    }
    h.push_str("\n#endif\n");
    h
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in name.chars().enumerate() {
        if c.is_uppercase() && i > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn page(records: &[Record]) -> String {
    let essay = ESSAY.lines().filter_map(|l| l.strip_prefix("//!")).map(|l| l.strip_prefix(' ').unwrap_or(l));
    let mut p =
        String::from("<!-- Made from crates/segment; edit there, then: BLESS=1 cargo test -p plimsoll-segment -->\n");
    for (i, line) in essay.enumerate() {
        let line =
            if i == 0 { format!("# {line}") } else { line.replace("[`layout`]", "crates/segment/src/layout.rs") };
        writeln!(p, "{line}").unwrap();
    }
    writeln!(
        p,
        "\nThe file is at most {FILE_BYTES} bytes ({} MiB), sparse.\n\n# Sections\n",
        FILE_BYTES.div_ceil(1 << 20)
    )
    .unwrap();
    writeln!(p, "| section | offset | bytes of an entry | entries at most |\n| --- | --- | --- | --- |").unwrap();
    for (name, s) in SECTION_NAMES.iter().zip(ALL_SECTIONS) {
        writeln!(p, "| {name} | {} | {} | {} |", s.offset(), s.entry_bytes(), s.capacity()).unwrap();
    }
    for r in records {
        writeln!(p, "\n# {}\n\n{} {} bytes.\n", r.name, plain(&r.doc), r.bytes).unwrap();
        writeln!(p, "| offset | field | type | |\n| --- | --- | --- | --- |").unwrap();
        for f in &r.fields {
            let kind = if f.elements == 1 { f.kind.clone() } else { format!("{}[{}]", f.kind, f.elements) };
            writeln!(p, "| {} | {} | {kind} | {} |", f.offset, f.name, plain(&f.doc)).unwrap();
        }
    }
    writeln!(p, "\n# Counters\n\nIn the header's `values`, in the order of the schema page.\n\n| counter | unit | |\n| --- | --- | --- |").unwrap();
    for c in COUNTERS {
        writeln!(p, "| {} | {} |{} |", c.name, c.unit, plain(c.doc)).unwrap();
    }
    p
}

fn same_or_bless(path: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == text, "{} is not what layout.rs says; BLESS=1 writes it anew", path.display());
}

#[test]
fn the_parsed_layout_is_the_compiled_one() {
    let all = records();
    let of = |name: &str| all.iter().find(|r| r.name == name).unwrap();
    let at = |r: &str, f: &str| of(r).fields.iter().find(|x| x.name == f).unwrap().offset;
    macro_rules! agree {
        ($($t:ident: $($f:ident)*;)*) => {$(
            $(assert_eq!(at(stringify!($t), stringify!($f)), offset_of!($t, $f), "{}.{}", stringify!($t), stringify!($f));)*
            assert_eq!(of(stringify!($t)).bytes, size_of::<$t>(), stringify!($t));
            assert_eq!(of(stringify!($t)).fields.len(), [$(stringify!($f)),*].len(), "every field of {} is compared", stringify!($t));
        )*};
    }
    agree! {
        Composition: total_bytes total_count time_ns reserved;
        SectionEntry: kind entry_bytes offset capacity used;
        Header: magic version header_bytes file_bytes pid ppid start_boottime_ns start_realtime_ns end_boottime_ns state mode
            allocator runtime counters composition live_bytes live_count peak_bytes count_at_peak peak_ns reserved_bytes
            committed_bytes peak_reserved_bytes peak_committed_bytes compositions sections values control in_force in_force_ns ended;
        Category: name kind flags live_bytes live_count peak_bytes count_at_peak peak_ns reserved_bytes committed_bytes
            peak_reserved_bytes peak_committed_bytes at_peak_bytes at_peak_count reserved;
        Module: start end bias loaded_ns unloaded_ns build_id build_id_bytes category path;
        Thread: tid state stack_low stack_high guard_bytes start_ns end_ns generation own_bytes creator stack_kind name table_inserts
            table_removes reserved;
        Caller: depth category flags hash live_bytes live_count peak_bytes count_at_peak first_ns parent stack frames;
        FrameNode: value parent kind flags depth;
        Method: identity first_ns class_at name_at signature_at source_at lines_at lines_bytes class_bytes name_bytes
            signature_bytes source_bytes flags reserved;
        Sample: address usable requested weight time_ns site slot generation reserved;
        SiteSamples: site flags alloc_samples free_samples alloc_bytes alloc_requested alloc_count_256 free_bytes free_requested
            free_count_256 temporary_bytes temporary_count_256 alloc_bytes_variance alloc_count_variance free_bytes_variance
            free_count_variance sizes_256 reserved;
        OwnMapping: start bytes purpose flags reserved;
        Row: caller slot room alloc_count alloc_bytes alloc_requested free_count free_bytes free_requested;
    }
}

#[test]
fn header_and_page_are_current() {
    let all = records();
    same_or_bless("include/segment.h", &header(&all));
    same_or_bless("docs/segment.md", &page(&all));
}

#[test]
fn gcc_finds_each_field_where_rust_has_it() {
    let dir = std::env::temp_dir().join(format!("plimsoll-header-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("segment.h"), header(&records())).unwrap();
    std::fs::write(dir.join("t.c"), "#include \"segment.h\"\nint main(void) { return 0; }\n").unwrap();
    let cc = |text: &str| {
        std::fs::write(dir.join("segment.h"), text).unwrap();
        let out = std::process::Command::new("cc")
            .args(["-std=c11", "-Wall", "-Werror", "-fsyntax-only", "t.c"])
            .current_dir(&dir)
            .output();
        out.unwrap()
    };
    let good = header(&records());
    let out = cc(&good);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let wrong = good.replacen("    uint32_t pid;", "    uint64_t pid;", 1);
    assert!(wrong != good && !cc(&wrong).status.success(), "the asserts do assert");
    std::fs::remove_dir_all(dir).unwrap();
}
