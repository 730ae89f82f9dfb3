//! Compares names of code with binutils, for every kind of file that may have names; and reads hostile files.

#[path = "../../../fixtures/random.rs"]
mod random;

use random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSymbol, SymbolKind};
use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_tracked::books::{Books, Module};
use plimsoll_tracked::symbols::{SymbolOptions, Symbols};

const PROGRAM: &str = r#"
#include <cstdio>
#include <string>
#include <vector>
namespace shop {
struct Item { std::string name; int price; };
static inline __attribute__((always_inline)) int tax(int price) { volatile int p = price; return p + p / 5; }
static inline __attribute__((always_inline)) int gross(const Item &i) { return tax(i.price) + tax(i.price + 1); }
template <class T> __attribute__((noinline)) T sum(const std::vector<Item> &all) {
  T total = 0;
  for (const auto &i : all) total += gross(i);
  return total;
}
}
extern "C" __attribute__((noinline)) long plain(long n) { volatile long v = n; return v * 3; }
int main(int argc, char **argv) {
  std::vector<shop::Item> items(argc, shop::Item{argv[0], argc});
  std::printf("%ld %ld\n", shop::sum<long>(items), plain(argc));
}
"#;

fn run(program: &str, arguments: &[&str], directory: &Path) {
    let output = Command::new(program).args(arguments).current_dir(directory).output().expect(program);
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A directory of its own, with the program in it.
fn built(name: &str, flags: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("symbols").join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("a folder");
    fs::write(directory.join("shop.cc"), PROGRAM).expect("a file");
    run("g++", &[&["shop.cc", "-o", "shop", "-O2", "-Wl,--build-id=sha1"], flags].concat(), &directory);
    directory
}

fn module(path: &Path) -> Module {
    let bytes = fs::read(path).expect("an object");
    let file = object::File::parse(&*bytes).expect("ELF");
    let build_id = file.build_id().ok().flatten().unwrap_or_default().to_vec();
    Module { path: path.display().to_string(), build_id, ..Module::default() }
}

/// (function, file, line), innermost first, of each return address.
type Lines = Vec<Vec<(String, Option<String>, Option<u32>)>>;

fn ours(module: &Module, offsets: &[u64], options: &SymbolOptions) -> (Lines, Vec<String>) {
    let books = Books { modules: vec![module.clone()], ..Books::default() };
    let mut symbols = Symbols::new(options, &books, Deadline::after(NAMES));
    let wanted = BTreeMap::from([(0, offsets.iter().copied().collect::<BTreeSet<u64>>())]);
    symbols.resolve(&books.modules, &wanted);
    let location = |p: &plimsoll_tracked::symbols::SourceLocation| {
        (p.function.to_string(), p.file.as_ref().map(|f| f.to_string()), p.line)
    };
    let lines = |o: &u64| symbols.at(0, *o).map(|l| l.functions.iter().map(location).collect()).unwrap_or_default();
    (offsets.iter().map(lines).collect(), symbols.gaps.iter().map(|g| g.reason.clone()).collect())
}

/// The output of addr2line(1) for the same calls.
fn theirs(path: &Path, offsets: &[u64]) -> Lines {
    let mut arguments = vec!["-ifCa".to_string(), "-e".into(), path.display().to_string()];
    arguments.extend(offsets.iter().map(|o| format!("{:#x}", o - 1)));
    let output = Command::new("addr2line").args(&arguments).output().expect("addr2line");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (mut all, mut lines): (Lines, _) = (Vec::new(), text.lines().peekable());
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            all.push(Vec::new());
            continue;
        }
        let location = lines.next().expect("a place");
        let (file, number) = location.rsplit_once(':').expect("file:line");
        let number = number.split(' ').next().and_then(|n| n.parse().ok()).filter(|n| *n != 0);
        all.last_mut().expect("an address").push((line.into(), (file != "??").then(|| file.into()), number));
    }
    all
}

/// Addresses spread over the program's own functions.
fn offsets(path: &Path, step: u64, of: impl Fn(&str) -> bool) -> Vec<u64> {
    let bytes = fs::read(path).expect("an object");
    let file = object::File::parse(&*bytes).expect("ELF");
    let functions = file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.is_definition() && s.size() > 0);
    let mut all: BTreeSet<u64> = BTreeSet::new();
    for f in functions.filter(|s| s.name().is_ok_and(&of)) {
        all.extend((f.address() + 1..=f.address() + f.size()).step_by(step as usize));
    }
    all.into_iter().collect()
}

/// Removes parameters and clone suffixes, which demanglers print differently.
fn base(name: &str) -> String {
    let name = name.split(" [clone").next().unwrap_or(name).replace(".constprop.0", "").replace(".part.0", "");
    let name = name.split('(').next().unwrap_or(&name);
    name.rsplit_once(' ').map_or(name, |(_, last)| last).rsplit("::").next().unwrap_or(name).to_string()
}

fn compare(path: &Path, offsets: &[u64], least_inlined: usize) {
    let (ours, gaps) = ours(&module(path), offsets, &SymbolOptions::default());
    assert_eq!(gaps, Vec::<String>::new());
    let theirs = theirs(path, offsets);
    assert_eq!(ours.len(), theirs.len());
    let (mut inlined, mut differ) = (0, Vec::new());
    for ((ours, theirs), offset) in ours.iter().zip(&theirs).zip(offsets) {
        inlined += usize::from(theirs.len() > 1);
        let line = |all: &[(String, Option<String>, Option<u32>)]| -> Vec<(String, Option<u32>)> {
            all.iter().map(|(f, _, line)| (base(f), *line)).collect()
        };
        if line(ours) != line(theirs) {
            differ.push(format!("{offset:#x}: {ours:?}\n    {theirs:?}"));
        }
    }
    // If an address has several line rows, binutils takes the first; gdb and we take the last.
    let most = offsets.len() / 100;
    assert!(
        differ.len() <= most,
        "{} of {}:\n{}",
        differ.len(),
        offsets.len(),
        differ[..differ.len().min(8)].join("\n")
    );
    assert!(inlined >= least_inlined, "only {inlined} calls in inlined functions were compared");
}

#[test]
fn inlined_functions_and_lines_are_those_of_addr2line() {
    for (name, flags) in [("dwarf5", &["-g"][..]), ("dwarf4", &["-g", "-gdwarf-4"]), ("packed", &["-g", "-gz=zlib"])] {
        let path = built(name, flags).join("shop");
        let own = offsets(&path, 1, |name| name == "main" || name == "plain" || name.contains("shop"));
        compare(&path, &own, 20);
    }
}

/// Rust's units have no .debug_aranges.
#[test]
fn our_own_lines_are_those_of_addr2line() {
    let path = std::env::current_exe().expect("this program");
    let own = offsets(&path, 3, |name| name.contains("7symbols") && name.contains("compare"));
    assert!(own.len() > 100);
    compare(&path, &own, 10);
}

const HIDDEN: [&str; 2] = ["main", "plain"];

fn hidden(path: &Path) -> Vec<u64> {
    HIDDEN.iter().flat_map(|f| offsets(path, 1000, move |name| name == *f)).map(|o| o + 4).collect()
}

/// The names of `main` and `plain`, sorted, and the gaps.
fn found(module: &Module, offsets: &[u64], options: &SymbolOptions) -> (Vec<String>, Vec<String>) {
    let (lines, gaps) = ours(module, offsets, options);
    let mut names: Vec<String> = lines.iter().filter_map(|l| Some(l.last()?.0.clone())).collect();
    names.sort();
    (names, gaps)
}

#[test]
fn names_come_from_separate_files_of_the_same_build_only() {
    let directory = built("separate", &["-g"]);
    let path = directory.join("shop");
    let calls = hidden(&path);
    run("objcopy", &["--only-keep-debug", "shop", "shop.debug"], &directory);
    run("strip", &["--strip-all", "-o", "bare", "shop"], &directory);
    fs::rename(directory.join("bare"), &path).expect("renamed");
    let stripped = module(&path);
    let nothing = (Vec::<String>::new(), Vec::<String>::new());
    assert_eq!(found(&stripped, &calls, &SymbolOptions::default()), nothing);

    // Given later, as a file or a directory.
    let aside = directory.join("aside");
    fs::create_dir(&aside).expect("a folder");
    fs::rename(directory.join("shop.debug"), aside.join("any.name")).expect("renamed");
    for given in [aside.clone(), aside.join("any.name")] {
        let options = SymbolOptions { given: vec![given], ..SymbolOptions::default() };
        let (lines, gaps) = ours(&stripped, &calls, &options);
        assert_eq!(found(&stripped, &calls, &options), (HIDDEN.map(String::from).to_vec(), gaps.clone()));
        assert!(lines.iter().all(|l| l.last().is_some_and(|p| p.2.is_some())), "with lines: {lines:?}");
        assert!(gaps.is_empty());
    }

    // By a link in the object.
    run("objcopy", &["--add-gnu-debuglink=any.name", "../shop", "../linked"], &aside);
    fs::create_dir(directory.join(".debug")).expect("a folder");
    fs::rename(aside.join("any.name"), directory.join(".debug/any.name")).expect("renamed");
    let linked = module(&directory.join("linked"));
    assert_eq!(found(&linked, &calls, &SymbolOptions::default()).0, HIDDEN);

    // A debug file of another build gives no names, nor does an object that was replaced.
    let other = built("separate-other", &["-g", "-O1"]);
    run("objcopy", &["--only-keep-debug", "shop", "any.name"], &other);
    let options = SymbolOptions { given: vec![other.join("any.name")], ..SymbolOptions::default() };
    assert_eq!(found(&stripped, &calls, &options), nothing);
    fs::copy(other.join("shop"), &path).expect("copied");
    let (names, gaps) = found(&stripped, &calls, &SymbolOptions::default());
    assert!(names.is_empty() && gaps.len() == 1 && gaps[0].contains("replaced"), "{names:?} {gaps:?}");
}

#[test]
fn a_function_without_a_size_ends_with_its_section() {
    let directory = built("sizeless", &[]);
    let source = "
        .section .init, \"ax\", %progbits
        .globl _init
        .type _init, %function
_init:  .space 16
        .text
        .type hidden, %function
hidden: .space 16
        .size hidden, 16
        .globl shown
        .type shown, %function
shown:  .space 16
        .size shown, 16
";
    fs::write(directory.join("bare.s"), source).expect("a file");
    run("cc", &["-nostdlib", "-shared", "-Wl,--build-id=sha1", "-o", "bare.so", "bare.s"], &directory);
    let path = directory.join("bare.so");
    let calls = ["_init", "hidden", "shown"].map(|function| {
        let bytes = fs::read(&path).expect("an object");
        let file = object::File::parse(&*bytes).expect("ELF");
        file.symbols().find(|symbol| symbol.name() == Ok(function)).expect("it has it").address() + 4
    });
    run("strip", &["--strip-all", "bare.so"], &directory);
    let (lines, gaps) = ours(&module(&path), &calls, &SymbolOptions::default());
    let names: Vec<Option<&str>> = lines.iter().map(|of| of.last().map(|(function, ..)| function.as_str())).collect();
    assert_eq!(names, [Some("_init"), None, Some("shown")], "{gaps:?}");

    // No function contains the byte before `shown`, as if `shown` were a trampoline to which the kernel returns.
    let books = Books { modules: vec![module(&path)], ..Books::default() };
    let mut symbols = Symbols::new(&SymbolOptions::default(), &books, Deadline::after(NAMES));
    let returns = [calls[2] - 4, calls[2]];
    symbols.resolve(&books.modules, &BTreeMap::from([(0, BTreeSet::from(returns))]));
    assert_eq!(returns.map(|at| symbols.at(0, at).map(|found| found.into)), [Some(0), Some(4)]);
}

#[test]
fn a_compressed_symbol_table_in_the_object_is_read() {
    let directory = built("mini", &[]);
    let path = directory.join("shop");
    let calls = hidden(&path);
    run(
        "objcopy",
        &["-S", "--keep-symbol=main", "--keep-symbol=plain", "--only-keep-debug", "shop", "mini"],
        &directory,
    );
    run("xz", &["mini"], &directory);
    run("strip", &["--strip-all", "shop"], &directory);
    run("objcopy", &["--add-section=.gnu_debugdata=mini.xz", "shop"], &directory);
    assert_eq!(found(&module(&path), &calls, &SymbolOptions::default()).0, HIDDEN);
}

#[test]
fn the_cache_answers_until_a_file_changes() {
    let directory = built("cached", &["-g"]);
    let path = directory.join("shop");
    let calls = offsets(&path, 1, |name| HIDDEN.contains(&name));
    let options = SymbolOptions { cache: Some(directory.join("cache")), ..SymbolOptions::default() };
    let of = module(&path);
    let first = ours(&of, &calls, &options);
    let kept: Vec<_> = fs::read_dir(directory.join("cache/symbols")).expect("a cache").flatten().collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(ours(&of, &calls, &options), first, "what is cached is what was found");
    // The cache is read, not only written: a name that was changed in it is reported.
    let text = fs::read_to_string(kept[0].path()).expect("text");
    fs::write(kept[0].path(), text.replace("\nplain\n", "\nfrom the cache\n")).expect("written");
    let named = |lines: &Lines, name: &str| lines.iter().flatten().any(|p| p.0 == name);
    assert!(named(&ours(&of, &calls, &options).0, "from the cache"));
    // The object is gone, but the build id shows that the names are right.
    fs::rename(&path, directory.join("elsewhere")).expect("renamed");
    assert!(named(&ours(&of, &calls, &options).0, "from the cache"));
    // It exists again with another time stamp, so all names are resolved again.
    fs::copy(directory.join("elsewhere"), &path).expect("copied");
    assert_eq!(ours(&of, &calls, &options), first);
}

#[test]
fn what_keeps_lines_from_being_read_is_reported_each_time() {
    let directory = built("unread", &["-g", "-gz=zlib"]);
    let path = directory.join("shop");
    let mut bytes = fs::read(&path).expect("the object");
    let at = {
        use object::ObjectSection;
        let file = object::File::parse(&*bytes).expect("ELF");
        let section = file.section_by_name(".debug_info").expect("debug information");
        section.file_range().expect("in the file").0 as usize
    };
    // Elf64_Chdr: type (4), reserved (4), unpacked size (8).
    bytes[at + 8..at + 16].copy_from_slice(&(1u64 << 40).to_le_bytes());
    fs::write(&path, &bytes).expect("written");
    let calls = offsets(&path, 1, |name| HIDDEN.contains(&name));
    let options = SymbolOptions { cache: Some(directory.join("cache")), ..SymbolOptions::default() };
    let of = module(&path);
    let first = ours(&of, &calls, &options);
    assert!(matches!(first.1.as_slice(), [why] if why.contains("an impossible size")), "{:?}", first.1);
    assert!(first.0.iter().any(|functions| !functions.is_empty()), "the symbol table has names");
    assert_eq!(ours(&of, &calls, &options), first);
    // The cache has the reason, so that the debug information isn't read again.
    let kept: Vec<_> = fs::read_dir(directory.join("cache/symbols")).expect("a cache").flatten().collect();
    assert_eq!(kept.len(), 1);
    let text = fs::read_to_string(kept[0].path()).expect("text");
    fs::write(kept[0].path(), text.replace("\nplain\n", "\nfrom the cache\n")).expect("written");
    let (lines, gaps) = ours(&of, &calls, &options);
    assert!(lines.iter().flatten().any(|place| place.0 == "from the cache") && gaps == first.1, "{lines:?} {gaps:?}");
    // The cache doesn't have this call. A report has each reason once.
    let more = [calls.as_slice(), &[8]].concat();
    assert_eq!(ours(&of, &more, &options).1, first.1);
}

/// The build id shows that the cached names are right.
#[test]
fn a_replaced_file_whose_names_are_cached_is_no_gap() {
    let directory = built("replaced", &["-g"]);
    let path = directory.join("shop");
    let calls = offsets(&path, 1, |name| HIDDEN.contains(&name));
    let options = SymbolOptions { cache: Some(directory.join("cache")), ..SymbolOptions::default() };
    let of = module(&path);
    let first = ours(&of, &calls, &options);
    assert_eq!(first.1, Vec::<String>::new());
    fs::copy(built("replaced-by", &["-g", "-O1"]).join("shop"), &path).expect("copied");
    assert_eq!(ours(&of, &calls, &options), first);
    // No function of the program is there.
    let (lines, gaps) = ours(&of, &[8], &options);
    assert!(lines == [vec![]] && gaps.len() == 1 && gaps[0].contains("was replaced"), "{lines:?} {gaps:?}");
}

/// Changes bytes anywhere: headers, tables, debug sections. No panic, no endless loop, and sometimes there are still
/// names.
#[test]
fn damaged_objects_give_fewer_names_without_harm() {
    let directory = built("damaged", &["-g"]);
    let path = directory.join("shop");
    let good = fs::read(&path).expect("the object");
    let calls = offsets(&path, 1, |name| HIDDEN.contains(&name) || name.contains("shop"));
    let of = Module { build_id: Vec::new(), ..module(&path) };
    let bad = Module { path: directory.join("bad").display().to_string(), ..of };
    let file = object::File::parse(&*good).expect("ELF");
    use object::ObjectSection;
    let debug: Vec<(usize, usize)> = file
        .sections()
        .filter(|s| s.name().is_ok_and(|n| n.starts_with(".debug") || n.contains("sym") || n.contains("str")))
        .filter_map(|s| s.file_range().map(|(at, n)| (at as usize, n as usize)))
        .filter(|(_, n)| *n > 0)
        .collect();
    let mut random = Random(11);
    let (mut named, mut nameless) = (0, 0);
    for round in 0..600 {
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(40) {
            let (at, n) = match round % 4 {
                0 => (0, 64.min(bytes.len())),
                1 => (bytes.len() - 64 * 40, 64 * 40),
                _ => debug[random.index(debug.len())],
            };
            let at = at + random.index(n);
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.index(6)];
        }
        if round % 7 == 0 {
            bytes.truncate(random.index(good.len()));
        }
        fs::write(&bad.path, &bytes).expect("written");
        let (lines, _) = ours(&bad, &calls, &SymbolOptions::default());
        if lines.iter().any(|l| !l.is_empty()) { named += 1 } else { nameless += 1 }
    }
    assert!(named > 100 && nameless > 50, "{named} with names, {nameless} without");
}
