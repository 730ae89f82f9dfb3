//! Compares the rules with HotSpot's own data: NMT's detail report has the call stack *and* the VM's tag of each site.
//! The share of bytes and sites for which our category equals the VM's tag must not fall below docs/categories.md.

use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_segment::rules::{Decision, Rules};
use plimsoll_tracked::rules::{RuleSet, modules, read};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

#[path = "../../../fixtures/jdks.rs"]
mod jdks;

/// A site in NMT's report.
#[derive(Debug, Clone)]
struct Site {
    mmap: bool,
    tag: String,
    bytes: u64,
    count: u64,
    /// Innermost first; ends at a frame without a name.
    frames: Vec<Frame>,
}

#[derive(Debug, Clone)]
struct Frame {
    avma: u64,
    object: String,
    symbol: String,
}

/// Sites in the malloc part, and reservations in the map.
fn sites(report: &str) -> Vec<Site> {
    let mut out = Vec::new();
    let mut frames: Vec<Option<Frame>> = Vec::new();
    let mut reservation: Option<(u64, String)> = None;
    for line in report.lines().chain([""]) {
        let text = line.trim();
        if let Some((address, rest)) = text.strip_prefix("[0x").and_then(|t| t.split_once(']'))
            && let Ok(avma) = u64::from_str_radix(address, 16)
        {
            frames.push(frame(avma, rest.trim()));
            continue;
        }
        let any = !frames.is_empty();
        let named: Vec<Frame> = std::mem::take(&mut frames).into_iter().map_while(|frame| frame).collect();
        if let Some((bytes, tag)) = reservation.take() {
            out.push(Site { mmap: true, tag, bytes, count: 1, frames: named });
        } else if let Some((bytes, rest)) =
            text.trim_start_matches('(').strip_prefix("malloc=").and_then(|t| t.split_once(' '))
            && let Some((tag, rest)) = rest.trim_start_matches("tag=").trim_start_matches("type=").split_once(" #")
            && any
        {
            let count: String = rest.chars().take_while(char::is_ascii_digit).collect();
            let (bytes, count) = (bytes.parse().unwrap(), count.parse().unwrap());
            out.push(Site { mmap: false, tag: tag.into(), bytes, count, frames: named });
        }
        if let Some((_, rest)) = text.split_once("] reserved ").filter(|_| text.contains(" - 0x"))
            && let Some((bytes, tag)) = rest.trim_start_matches("and committed ").split_once(" for ")
            && let Some(tag) = tag.strip_suffix(" from")
        {
            reservation = Some((bytes.parse().unwrap(), tag.into()));
        }
    }
    out
}

/// `Arena::grow(…)+0x5d in libjvm.so` → object and symbol; libjvm.so if no object is given.
fn frame(avma: u64, text: &str) -> Option<Frame> {
    let (symbol, rest) = text.rsplit_once("+0x")?;
    let object = rest.split_once(" in ").map_or("libjvm.so", |(_, object)| object);
    Some(Frame { avma, object: object.to_string(), symbol: symbol.to_string() })
        .filter(|frame| !frame.symbol.is_empty())
}

#[derive(Default, Debug, Clone, Copy)]
struct Share {
    agree_bytes: u64,
    bytes: u64,
    agree_sites: u64,
    sites: u64,
}

impl Share {
    fn add(&mut self, other: &Share) {
        self.agree_bytes += other.agree_bytes;
        self.bytes += other.bytes;
        self.agree_sites += other.agree_sites;
        self.sites += other.sites;
    }
    fn bytes(&self) -> f64 {
        100.0 * self.agree_bytes as f64 / self.bytes as f64
    }
    fn sites(&self) -> f64 {
        100.0 * self.agree_sites as f64 / self.sites as f64
    }
}

#[derive(Default)]
struct Agreement {
    malloc: Share,
    reserve: Share,
    /// (mmap, VM's tag, our category, stack) → bytes, blocks.
    differences: BTreeMap<(bool, String, String, String), (u64, u64)>,
    /// The VM tags an arena's chunks `Arena Chunk`, whatever uses the arena: our category → bytes.
    arenas: BTreeMap<String, u64>,
}

fn compare(rules: &RuleSet, sites: &[Site]) -> Agreement {
    let mut out = Agreement::default();
    for site in sites.iter().filter(|s| !s.frames.is_empty()) {
        let frames: Vec<(&str, Option<&str>)> =
            site.frames.iter().map(|f| (f.object.as_str(), Some(f.symbol.as_str()))).collect();
        let ours = match rules.classify(&frames) {
            Decision::Category(c) => rules.name(c).to_string(),
            Decision::Object(i) => frames[i].0.to_string(),
            Decision::Unknown => "unknown".into(),
        };
        if site.tag == "Arena Chunk" {
            *out.arenas.entry(ours).or_default() += site.bytes;
            continue;
        }
        // NMT books a thread's stack under the caller that starts the thread. There is no mmap call, so the rules don't
        // apply.
        if site.tag == "Thread Stack" {
            continue;
        }
        let share = if site.mmap { &mut out.reserve } else { &mut out.malloc };
        share.bytes += site.bytes;
        share.sites += 1;
        if ours == site.tag {
            share.agree_bytes += site.bytes;
            share.agree_sites += 1;
        } else {
            let stack: Vec<&str> = site.frames.iter().map(|f| f.symbol.split('(').next().unwrap_or("")).collect();
            let key = (site.mmap, site.tag.clone(), ours, stack.join(" < "));
            let difference = out.differences.entry(key).or_default();
            difference.0 += site.bytes;
            difference.1 += site.count;
        }
    }
    out
}

fn line(a: &Agreement) -> String {
    format!(
        "malloc: {} sites, {} KiB, agree {:.2} % of bytes, {:.2} % of sites; reserved: {} sites, agree {:.2} % of bytes, \
         {:.2} % of sites; arenas {:?}",
        a.malloc.sites,
        a.malloc.bytes >> 10,
        a.malloc.bytes(),
        a.malloc.sites(),
        a.reserve.sites,
        a.reserve.bytes(),
        a.reserve.sites(),
        a.arenas
    )
}

/// Data from a running VM: NMT's detail report, and the address of its library.
struct Vm {
    report: String,
    bias: u64,
}

fn run(jdk: &Path, classes: &Path, main: &str, flags: &[&str]) -> Vm {
    let mut child = Command::new(jdk.join("bin/java"))
        .args(["-XX:NativeMemoryTracking=detail", "-Xmx256m", "-XX:+UnlockExperimentalVMOptions"])
        .args(flags)
        .arg("-cp")
        .args([classes.as_os_str(), main.as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ready = lines.any(|line| line == "READY");
    let pid = child.id().to_string();
    let jcmd =
        Command::new(jdk.join("bin/jcmd")).args([&pid, "VM.native_memory", "detail", "scale=1"]).output().unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(ready && jcmd.status.success(), "{main} {flags:?}");
    // The library is linked at 0, and its first mapping is the lowest.
    let bias = maps.lines().find(|l| l.ends_with("/libjvm.so")).and_then(|l| l.split('-').next()).unwrap();
    Vm { report: String::from_utf8_lossy(&jcmd.stdout).into_owned(), bias: u64::from_str_radix(bias, 16).unwrap() }
}

/// The same sites by address, as the tracker sees them: number of sites with the same owner as by name, and with
/// another owner.
fn by_address(rules: &RuleSet, blob: &Rules, jdk: &Path, bias: u64, sites: &[Site]) -> (usize, usize) {
    let library = std::fs::read(jdk.join("lib/server/libjvm.so")).unwrap();
    let module = blob.module(b"/x/libjvm.so", &modules::build_id(&library[..]).unwrap());
    let (mut same, mut other) = (0, 0);
    for site in sites.iter().filter(|s| !s.frames.is_empty() && s.frames.iter().all(|f| f.object == "libjvm.so")) {
        let names: Vec<_> = site.frames.iter().map(|f| (f.object.as_str(), Some(f.symbol.as_str()))).collect();
        let addresses = site.frames.iter().map(|f| (module, f.avma - bias - 1));
        if rules.classify(&names) == blob.classify(addresses) { same += 1 } else { other += 1 }
    }
    (same, other)
}

fn agrees(major: u32) {
    let jdk = jdks::jdk(major).unwrap_or_else(|| panic!("this test needs JDK {major} (run .ci/setup)")).home;
    let name = format!("JDK-{major}");
    let classes = std::env::temp_dir().join(format!("plimsoll-nmt-{}-{name}", std::process::id()));
    let source = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules_hotspot").join(name);
    let mut javac = Command::new(jdk.join("bin/javac"));
    assert!(javac.arg("-d").args([&classes, &source("Load.java"), &source("Server.java")]).status().unwrap().success());
    let rules = RuleSet::parse_built_in().unwrap();
    let compiled = read::compile(&rules, &[jdk.join("lib/server/libjvm.so")], None, Deadline::after(NAMES));
    let blob = Rules::parse(&compiled.blob).unwrap();
    let (mut malloc, mut reserve) = (Share::default(), Share::default());
    let vms = [
        ("Load", &["-XX:+UseG1GC"][..]),
        ("Load", &["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]),
        ("Load", &["-XX:+UseZGC"]),
        ("Server", &["-XX:+UseParallelGC", "-Xshare:off"]),
        ("Server", &["-XX:+UseG1GC", "-XX:+UseStringDeduplication", "-XX:StartFlightRecording:settings=profile"]),
        ("Server", &["-XX:+UseShenandoahGC", "-Xint"]),
    ];
    // In `make test`, each load runs once: every second one with this JDK, the others with the next.
    let own = |(n, vm)| (jdks::is_full() || n % 2 == usize::from(major > 17)).then_some(vm);
    for (main, flags) in vms.into_iter().enumerate().filter_map(own) {
        let vm = run(&jdk, &classes, main, flags);
        let sites = sites(&vm.report);
        let found = compare(&rules, &sites);
        let (same, other) = by_address(&rules, &blob, &jdk, vm.bias, &sites);
        println!("{name} {main} {}\n  {}\n  by address: {same} as by name, {other} not", flags.join(" "), line(&found));
        assert!(found.malloc.sites > 500 && found.reserve.sites > 8, "NMT's report wasn't understood");
        // Small VMs have the same few unknown sites among fewer others.
        assert!(found.malloc.bytes() >= 96.0 && found.malloc.sites() >= 88.0, "{main} {flags:?}: {}", line(&found));
        assert!(found.reserve.sites - found.reserve.agree_sites <= 2, "{main} {flags:?}: {}", line(&found));
        malloc.add(&found.malloc);
        reserve.add(&found.reserve);
        // NMT names the function at the return address; Plimsoll names the function of the call before it.
        assert!(same > 500 && other * 200 <= same, "{main} {flags:?}: {same} as by name, {other} not");
    }
    std::fs::remove_dir_all(&classes).unwrap();
    println!(
        "{name}: malloc {:.2} % {:.2} %, reserved {:.2} % {:.2} %",
        malloc.bytes(),
        malloc.sites(),
        reserve.bytes(),
        reserve.sites()
    );
    assert!(malloc.bytes() >= 97.0 && malloc.sites() >= 90.0, "{malloc:?}");
    assert!(reserve.bytes() >= 97.0 && reserve.sites() >= 90.0, "{reserve:?}");
}

#[test]
fn jdk_17_agrees_with_the_rules() {
    agrees(17);
}

#[test]
fn jdk_25_agrees_with_the_rules() {
    agrees(25);
}

/// For work on the rules: `PLIMSOLL_NMT_REPORTS='a.nmt b.nmt' cargo test --test rules_hotspot -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a tool, not a test: compares saved NMT reports and prints what differs"]
fn compare_saved_reports() {
    let rules = RuleSet::parse_built_in().unwrap();
    for path in std::env::var("PLIMSOLL_NMT_REPORTS").unwrap_or_default().split_whitespace() {
        let report = std::fs::read_to_string(path).unwrap();
        let agreement = compare(&rules, &sites(&report));
        println!("== {path}\n {}", line(&agreement));
        let mut differences: Vec<_> = agreement.differences.iter().collect();
        differences.sort_by_key(|d| std::cmp::Reverse(d.1.0));
        for ((mmap, tag, ours, stack), (bytes, count)) in differences {
            println!("D {} {bytes:>9} #{count:<6} VM {tag} | ours {ours} | {stack}", if *mmap { "R" } else { "M" });
        }
    }
}
