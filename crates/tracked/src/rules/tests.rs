//! The rules file: each rule's example, known answers, errors, and the compiled form against a naive twin.

use super::*;
use crate::random::Random;
use crate::rules::compile::{Span, Table, blob, ranges};
use plimsoll_segment::rules as format;
use plimsoll_segment::rules::Rules;

#[test]
fn every_rule_has_an_example_that_no_earlier_rule_takes() {
    let rules = RuleSet::parse_built_in().unwrap();
    let mut wrong = Vec::new();
    for (i, rule) in rules.rules.iter().enumerate() {
        if rule.examples.is_empty() {
            wrong.push(format!("line {}: no example", rule.line));
        }
        for (object, symbol) in &rule.examples {
            let found = match symbol.is_empty() {
                // For an object with a `through` rule, only one of the two cases has symbols.
                true => rules.object_rule(object, rule.target != RuleTarget::Through),
                false => rules.symbol_rule(object, &names::qualified(symbol)),
            };
            if found != Some(i) {
                let by = found.map_or("no rule".into(), |f| format!("the rule in line {}", rules.rules[f].line));
                wrong.push(format!("line {}: example '{object} {symbol}' is taken by {by}", rule.line));
            }
        }
    }
    assert!(rules.rules.len() > 100, "{} rules", rules.rules.len());
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_category_of_hotspot_25_is_there_and_every_category_has_its_line() {
    let rules = RuleSet::parse_built_in().unwrap();
    for name in [
        "Java Heap",
        "Class",
        "Thread",
        "Thread Stack",
        "Code",
        "GC",
        "GCCardSet",
        "Compiler",
        "JVMCI",
        "Internal",
        "Other",
        "Symbol",
        "Native Memory Tracking",
        "Shared class space",
        "Arena Chunk",
        "Test",
        "Tracing",
        "Logging",
        "Statistics",
        "Arguments",
        "Module",
        "Safepoint",
        "Synchronization",
        "Serviceability",
        "Metaspace",
        "String Deduplication",
        "Object Monitors",
    ] {
        assert!(rules.categories.iter().any(|c| c.name == name), "{name}");
    }
    assert!(rules.categories.iter().all(|c| !c.about.is_empty() && c.name.len() <= format::NAME_BYTES));
}

type Frame = (&'static str, Option<&'static str>);

fn category(rules: &RuleSet, frames: &[Frame]) -> String {
    match rules.classify(frames) {
        Decision::Category(c) => rules.name(c).to_string(),
        Decision::Object(i) => format!("object {}", frames[i].0),
        Decision::Unknown => "unknown".into(),
    }
}

#[test]
fn known_stacks_have_their_owners() {
    let rules = RuleSet::parse_built_in().unwrap();
    let jvm = |symbol: &'static str| -> Frame { ("libjvm.so", Some(symbol)) };
    let answers: &[(&[Frame], &str)] = &[
        (&[], "unknown"),
        (&[jvm("os::malloc(unsigned long, MemTag)"), jvm("Unsafe_AllocateMemory0")], "Other"),
        (&[jvm("Arena::grow(unsigned long)"), jvm("PhaseChaitin::Register_Allocate()")], "Compiler"),
        (&[jvm("Arena::grow(unsigned long)"), jvm("JavaCalls::call_helper()"), jvm("Compile::Compile()")], "Thread"),
        (&[jvm("Arena::grow(unsigned long)")], "Thread"),
        (&[jvm("some_function_without_rule"), jvm("G1CollectedHeap::initialize()")], "GC"),
        (&[jvm("some_function_without_rule")], "object libjvm.so"),
        // A library's caller doesn't own what the library allocates.
        (&[("libfoo.so", Some("foo")), jvm("G1CollectedHeap::initialize()")], "object libfoo.so"),
        (&[("/usr/lib/libz.so.1", None), jvm("ClassLoader::load()")], "zlib"),
        // `through` frames count for their caller, in any object.
        (
            &[
                ("libstdc++.so.6", Some("_Znwm")),
                ("a.out", Some("_ZNSt6vectorIiSaIiEE7reserveEm")),
                ("a.out", Some("main")),
            ],
            "object a.out",
        ),
        (&[("libc.so.6", Some("strdup")), ("libfoo.so", None)], "object libfoo.so"),
        (&[("libc.so.6", Some("strdup"))], "object libc.so.6"),
        // libstdc++ without symbols is `through`; with symbols, its unnamed functions count for itself.
        (&[("libstdc++.so.6", None), ("a.out", None)], "object a.out"),
        (&[("libstdc++.so.6", Some("")), ("ld-linux-x86-64.so.2", None)], "libstdc++"),
        (&[("python3.11", Some("_PyMem_RawMalloc")), ("python3.11", Some("PyList_New"))], "Python"),
        (
            &[("python3.11", Some("PyObject_Malloc")), ("_multiarray_umath.cpython-311-x86_64-linux-gnu.so", None)],
            "numpy",
        ),
    ];
    for (frames, name) in answers {
        assert_eq!(category(&rules, frames), *name, "{frames:?}");
    }
}

#[test]
fn flat_ranges_equal_a_byte_by_byte_twin() {
    let mut random = Random(1);
    let (mut nested, mut lookups) = (0, 0);
    for _ in 0..2000 {
        let mut spans: Vec<Span> = (0..random.below(12))
            .map(|_| {
                let start = random.below(90) as u32 + 1;
                let target = match random.below(4) {
                    0 => RuleTarget::None,
                    1 => RuleTarget::Through,
                    n => RuleTarget::Category(n as u16),
                };
                Span { start, end: start + random.below(20) as u32, target }
            })
            .collect();
        spans.sort_by_key(|s| s.start);
        spans.dedup_by_key(|s| s.start);
        let flat = ranges(&spans);
        let rules = RuleSet {
            categories: vec![CategoryRule { name: "x".into(), kind: 0, about: "x".into() }; 5],
            ..RuleSet::default()
        };
        let bytes = blob(&rules, &[Table { build_id: [7; 20], ranges: flat.clone() }]);
        let parsed = Rules::parse(&bytes).unwrap();
        let module = parsed.module(b"x", &[7; 20]);
        for at in 0..140u32 {
            // Among the functions that contain this byte, the one that begins last is the innermost.
            let over: Vec<&Span> = spans.iter().filter(|s| s.start <= at && at < s.end).collect();
            nested += usize::from(over.len() > 1);
            lookups += 1;
            let naive = over.last().map_or(RuleTarget::None, |s| s.target);
            assert_eq!(module.lookup(at.into()), naive, "at {at}: {spans:?} {flat:?}");
        }
        assert!(flat.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 != w[1].1));
        assert!(flat.last().is_none_or(|l| l.1 == RuleTarget::None));
    }
    assert!(nested > 1000 && lookups == 280_000, "{nested}");
}

#[test]
fn broken_bytes_are_refused_or_answered_but_never_a_crash() {
    let rules = RuleSet::parse_built_in().unwrap();
    let table = |id: u8| Table {
        build_id: [id; 20],
        ranges: (0..40)
            .map(|i| (i * 16, if i % 2 == 0 { RuleTarget::Category(i as u16) } else { RuleTarget::None }))
            .collect(),
    };
    let good = blob(&rules, &[table(1), table(2), table(3)]);
    let mut random = Random(2);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..100_000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(6) {
            // Half of the changes hit the header and the tables' entries, which have the offsets.
            let area = if random.below(2) == 0 { format::HEADER_BYTES as u64 } else { bytes.len() as u64 };
            let at = random.below(area) as usize;
            bytes[at] = random.below(256) as u8;
        }
        if random.below(10) == 0 {
            bytes.truncate(random.below(bytes.len() as u64) as usize);
        }
        let Some(parsed) = Rules::parse(&bytes) else {
            refused += 1;
            continue;
        };
        accepted += 1;
        for id in [0, 2u8] {
            let module = parsed.module(b"/lib/libjvm.so", &[id; 20]);
            for svma in [0, 17, 600, u64::from(u32::MAX), u64::MAX] {
                if let RuleTarget::Category(c) = module.lookup(svma) {
                    assert!(c < parsed.categories());
                }
            }
            match parsed.classify([(module, 17), (module, 33), (module, u64::MAX)]) {
                Decision::Category(c) => assert!(parsed.category_name(c).len() <= format::NAME_BYTES),
                Decision::Object(i) => assert!(i < 3),
                Decision::Unknown => panic!("three frames are not nothing"),
            }
            let _ = parsed.ranges(&[id; 20]).map(|r| r.count());
        }
        let _ = (parsed.category_name(u16::MAX), parsed.weak(u16::MAX, Some(255)), parsed.weak(0, Some(u16::MAX)));
    }
    assert!(accepted > 20_000 && refused > 20_000, "accepted {accepted}, refused {refused}");
}

/// After a change of the rules, `PLIMSOLL_BLESS=1 cargo test default_rules` writes the file again.
#[test]
fn default_rules_in_the_tracker_are_those_of_the_rules_file() {
    let bytes = blob(&RuleSet::parse_built_in().unwrap(), &[]);
    if std::env::var_os("PLIMSOLL_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../segment/src/default_rules.bin");
        std::fs::write(path, &bytes).unwrap();
        return;
    }
    assert!(
        format::DEFAULT == bytes,
        "crates/segment/src/default_rules.bin is old: PLIMSOLL_BLESS=1 cargo test default_rules"
    );
    let rules = Rules::parse(format::DEFAULT).unwrap();
    let zlib = rules.module(b"/usr/lib/x86_64-linux-gnu/libz.so.1", b"");
    let Decision::Category(c) = rules.classify([(zlib, 5)]) else { panic!("zlib is not named") };
    assert_eq!(rules.category_name(c), b"zlib");
}

#[test]
fn errors_give_file_and_line() {
    for (text, error) in [
        ("category : x", "mine:1: expected 'category NAME [KIND]: what it holds'"),
        (
            "# c\ncategory A [huge]: x",
            "mine:2: unknown kind 'huge', expected one of other, vm, runtime, library, libc, allocator",
        ),
        ("category GC: x", "mine:1: category 'GC' already exists"),
        ("a.so: f", "mine:1: expected 'OBJECT: FUNCTION | … -> CATEGORY'"),
        ("a.so: f -> Nowhere", "mine:1: no category 'Nowhere'"),
        ("\n\na.so: f |\n g | | h -> GC", "mine:3: an empty pattern"),
        ("a.so -> GC unless Class", "mine:1: 'unless' needs functions"),
        ("example: a b", "mine:1: an example without a rule above it"),
        (
            "a.so: f -> GC\n  example: a.so",
            "mine:2: expected 'example: OBJECT FUNCTION' (no FUNCTION below a rule for whole objects)",
        ),
        (
            "category 0123456789012345678901234567890123456789: x",
            "mine:1: the name '0123456789012345678901234567890123456789' has 40 bytes; the maximum is 39",
        ),
    ] {
        assert_eq!(parse::parse(&[("mine", text)]).unwrap_err().to_string(), error);
    }
}

#[test]
fn rules_of_the_user_come_first_and_leave_the_built_in_categories_where_they_are() {
    let built_in = RuleSet::parse_built_in().unwrap();
    let mine = "category Cache: ours\nserver: cache::* -> Cache\nlibz.so*: deflateInit2_ -> through\nlibz.so* -> Cache";
    let rules = parse::parse(&[("mine", mine)]).unwrap();
    assert_eq!(rules.categories[..built_in.categories.len()], built_in.categories);
    assert_eq!(category(&rules, &[("server", Some("_ZN5cache3LRU3addEi"))]), "Cache");
    assert_eq!(category(&rules, &[("libz.so.1", Some("deflateInit2_")), ("server", Some("main"))]), "object server");
    assert_eq!(category(&rules, &[("libz.so.1", None)]), "Cache");
    assert_ne!(rules.hash, built_in.hash);
}

#[test]
fn a_glob_matches_the_whole_text() {
    for (glob, text, matches) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("a*", "abc", true),
        ("*c", "abc", true),
        ("a?c", "abc", true),
        ("a?c", "ac", false),
        ("*b*", "abc", true),
        ("*b*d", "abcbd", true),
        ("**", "x", true),
        ("a*b*c", "aXbYbZ", false),
        ("ci[A-Z]*", "ciEnv", true),
        ("ci[A-Z]*", "cinema", false),
        ("operator new[]", "operator new[]", true),
        ("[ab", "[ab", true),
        ("x[a-c9]y", "x9y", true),
        ("x[a-c9]y", "xdy", false),
        ("[", "[", true),
        ("a]", "a]", true),
    ] {
        assert_eq!(glob_matches(glob.as_bytes(), text.as_bytes()), matches, "{glob} {text}");
    }
}
