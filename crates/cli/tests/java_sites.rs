//! Java frames in the sites of HotSpot 11 to 27 against what the fixtures report: the right leaf, the right callers,
//! the right number of blocks, however the code ran. The segment is read after the end of the process. JDK 8 can't run
//! the fixtures; `jdks` tests its Java frames.

#[path = "../../../fixtures/roots.rs"]
mod roots;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "subjects/stage.rs"]
mod stage;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_segment::{FrameKind, frame_flags};
use plimsoll_tracked::segment::{Segment, read};
use roots::{Root, home_of};
use stage::{Jdk, Scratch, is_full, jdk, log_line, must, repository};

/// A JVM of this machine, or one of the root with the JDKs in service.
struct Vm {
    jdk: Jdk,
    root: Option<Root>,
}

impl Deref for Vm {
    type Target = Jdk;

    fn deref(&self) -> &Jdk {
        &self.jdk
    }
}

/// In `make test-full` also the versions that the machine lacks and the root has.
fn vms() -> Vec<Vm> {
    let mut vms: Vec<Vm> = stage::vms().into_iter().map(|jdk| Vm { jdk, root: None }).collect();
    for major in [11, 26, 27].into_iter().filter(|_| is_full()) {
        if let Some(root) = Root::of_jdks(&roots::JDKS, roots::target(env!("CARGO_TARGET_TMPDIR"))) {
            vms.push(Vm { jdk: Jdk { home: home_of(major), major }, root: Some(root) });
        }
    }
    vms
}

fn compiler() -> Jdk {
    jdk(17).expect("JDK 17 (run .ci/setup)")
}

/// The fixture's classes and its three libraries.
fn built(folder: &Path) {
    let (jdk, sources) = (compiler(), repository().join("fixtures/java/sites"));
    let compile = |to: &Path, names: &[&str]| {
        let mut javac = jdk.tool("javac");
        javac
            .args(["-nowarn", "-Xlint:-options", "-XDignore.symbol.file", "-source", "11", "-target", "11", "-d"])
            .arg(to);
        must(javac.args(names.iter().map(|name| sources.join(name))));
    };
    compile(&folder.join("body_b"), &["body_b/Body.java"]);
    compile(&folder.join("body_a"), &["body_a/Body.java"]);
    compile(folder, &["Sites.java", "Churn.java", "body_a/Body.java", "Redefined.java"]);
    compile(&folder.join("gone"), &["Gone.java"]);
    let manifest = folder.join("manifest");
    fs::write(&manifest, "Premain-Class: Redefined\nCan-Redefine-Classes: true\n").expect("scratch");
    must(
        jdk.tool("jar")
            .arg("cfm")
            .arg(folder.join("agent.jar"))
            .arg(manifest)
            .arg("-C")
            .arg(folder)
            .arg("Redefined.class"),
    );
    for (level, name, needs) in [("3", "three", ""), ("2", "two", "-lthree"), ("1", "one", "-ltwo")] {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-shared", "-fPIC", &format!("-DLEVEL={level}"), "-Wl,-rpath,$ORIGIN", "-o"]);
        gcc.arg(folder.join(format!("lib{name}.so"))).arg(sources.join("libsites.c")).arg("-L").arg(folder);
        gcc.arg("-I").arg(jdk.home.join("include")).arg("-I").arg(jdk.home.join("include/linux"));
        must(if needs.is_empty() { &mut gcc } else { gcc.arg(needs) });
    }
}

#[derive(Clone, Debug)]
struct Frame {
    /// `java/util/zip/Inflater.init`, a stub's name, or a library's file name.
    name: String,
    kind: FrameKind,
    flags: u8,
    line: Option<u16>,
}

/// A site with its sums over all threads.
#[derive(Clone, Debug)]
struct Site {
    frames: Vec<Frame>,
    blocks: u64,
    requested: u64,
}

impl Site {
    fn java(&self) -> impl Iterator<Item = &Frame> {
        self.frames.iter().filter(|f| f.kind == FrameKind::Java && f.name.contains('.'))
    }

    /// The innermost Java method.
    fn leaf(&self) -> &str {
        self.java().next().map_or("", |f| &f.name)
    }

    fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|f| f.name == name)
    }

    /// Whether the stack has these functions in this order from the leaf outwards, perhaps with others in between.
    fn has_in_order(&self, names: &[&str]) -> bool {
        let mut frames = self.frames.iter();
        names.iter().all(|name| frames.any(|f| f.name == *name))
    }

    fn is_cut(&self) -> bool {
        self.frames.last().is_some_and(|f| f.kind == FrameKind::Cut)
    }
}

fn frame(segment: &Segment, node: &plimsoll_segment::FrameNodeFacts) -> Frame {
    let kind = node.kind();
    let (name, line) = match kind {
        FrameKind::Java => {
            let (method, bci) = node.method().expect("a method");
            let names = segment.methods[method].names(&segment.names);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let name = match names.class {
                b"" => text(names.name),
                class => format!("{}.{}", text(class), text(names.name)),
            };
            (name, bci.and_then(|bci| names.line(bci)))
        }
        FrameKind::Native | FrameKind::Interrupted => {
            let module = segment.modules.iter().find(|m| (m.start..m.end).contains(&(node.value - 1)));
            let path = module
                .map_or(String::from("?"), |m| String::from_utf8_lossy(plimsoll_segment::text(&m.path)).into_owned());
            (path.rsplit('/').next().unwrap_or_default().to_string(), None)
        }
        FrameKind::Jit => (String::from("jit"), None),
        FrameKind::Cut => (format!("cut {}", node.value), None),
    };
    Frame { name, kind, flags: node.flags, line }
}

fn sites(segment: &Segment) -> Vec<Site> {
    let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for row in &segment.rows {
        let sum = sums.entry(row.caller).or_default();
        *sum = (sum.0 + row.alloc_count, sum.1 + row.alloc_requested);
    }
    let sited = sums.iter().filter(|(caller, _)| segment.callers[**caller as usize].is_site());
    sited
        .map(|(caller, (blocks, requested))| {
            let stack = segment.callers[*caller as usize].stack;
            let frames = plimsoll_segment::sites::stack(&segment.frames, stack).map(|node| frame(segment, node));
            Site { frames: frames.collect(), blocks: *blocks, requested: *requested }
        })
        .collect()
}

struct Run {
    printed: String,
    segment: Segment,
    sites: Vec<Site>,
}

/// Runs Java under the tracker with exact sites. `check`: each remembered stack is walked again.
fn run(vm: &Vm, folder: &Path, check: bool, arguments: &[&str]) -> Run {
    let segments = Scratch::new("java-segments");
    fs::set_permissions(segments.path(), fs::Permissions::from_mode(0o700)).expect("own folder");
    let plimsoll = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
    let mut command = match &vm.root {
        Some(root) => {
            root.take(plimsoll);
            root.command_with(&[folder, segments.path()], "/plimsoll")
        }
        None => Command::new(plimsoll),
    };
    command.args(["run", "--sites", "exact", "--dir"]).arg(segments.path()).arg("--").arg(vm.bin("java"));
    command.args(vm.denies_unsafe_memory().then_some("--sun-misc-unsafe-memory-access=allow"));
    command.args(["-Xmx256m", "-cp"]).arg(folder).args(arguments);
    command.env("PLIMSOLL_CHECK", if check { "1" } else { "0" }).env("XDG_CACHE_HOME", segments.path());
    let output = command.stdin(Stdio::null()).output().expect("plimsoll");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{} {arguments:?}: {printed} {}",
        vm.major,
        String::from_utf8_lossy(&output.stderr)
    );
    let mut files = fs::read_dir(segments.path()).expect("segments").flatten().map(|e| e.path());
    let file = files.find(|p| p.extension().is_some_and(|e| e == "seg")).expect("a segment");
    let segment = read(&file, Deadline::after(5 * NAMES)).expect("a whole segment");
    let sites = sites(&segment);
    Run { printed, segment, sites }
}

impl Run {
    /// Blocks and requested bytes of the sites that match.
    fn sum(&self, of: impl Fn(&Site) -> bool) -> (u64, u64) {
        self.sites.iter().filter(|s| of(s)).fold((0, 0), |(n, b), s| (n + s.blocks, b + s.requested))
    }
}

const ROUNDS: u64 = 400;
const ALLOCATE: &str = "jdk/internal/misc/Unsafe.allocateMemory0";
const MAIN: [&str; 3] = ["Sites.middle", "Sites.outer", "Sites.main"];

/// Runs everything that the fixture does, with these options of the VM.
fn known_answers(vm: &Vm, folder: &Path, options: &[&str]) -> Run {
    let rounds = format!("-Drounds={ROUNDS}");
    let here = folder.to_str().expect("a path");
    let mut arguments = [options, &[&rounds, "Sites", here]].concat();
    arguments.extend(["unsafe", "direct", "inflater", "library", "recursion", "unloaded"]);
    if vm.has_virtual_threads() {
        arguments.extend(["virtual", "unmounted"]);
    }
    let run = run(vm, folder, false, &arguments);
    assert!(run.printed.contains("unloaded true"), "the class is still there: {}", run.printed);
    let context = format!("{} {options:?}", vm.major);
    // Blocks that a native method requested, not those of the VM when it links the method at its first call.
    let calls = |leaf: &str, method: &str, bytes: u64| {
        let found = run.sum(|s| s.leaf() == leaf && s.has(method) && s.requested == s.blocks * bytes);
        found.1 / bytes
    };
    let all_in_order = |leaf: &str, names: &[&str]| {
        for site in run.sites.iter().filter(|s| s.leaf() == leaf && s.has(names[0])) {
            assert!(site.has_in_order(names) && !site.is_cut(), "{context}: {names:?} in {:#?}", site.frames);
        }
    };

    // The VM rounds up to whole words.
    assert_eq!(calls(ALLOCATE, "Sites.allocateUnsafe", 7008), ROUNDS, "{context}");
    all_in_order(ALLOCATE, &[&["Sites.allocateUnsafe"], &MAIN[..]].concat());
    assert_eq!(calls(ALLOCATE, "Sites.allocateDirect", 7104), ROUNDS, "{context}");
    let direct = ["java/nio/DirectByteBuffer.<init>", "java/nio/ByteBuffer.allocateDirect", "Sites.allocateDirect"];
    all_in_order(ALLOCATE, &[&direct, &MAIN[..]].concat());
    // The stream and its state.
    let in_zip = run.sum(|s| s.leaf() == "java/util/zip/Inflater.init" && s.has("libzip.so"));
    assert_eq!(in_zip.0, 2 * ROUNDS, "{context}");
    all_in_order("java/util/zip/Inflater.init", &[&["Sites.makeInflater"], &MAIN[..]].concat());
    assert_eq!(calls("Sites.three", "libthree.so", 7207), ROUNDS, "{context}");
    let library = ["libthree.so", "libtwo.so", "libone.so", "Sites.three", "Sites.callLibrary"];
    all_in_order("Sites.three", &[&library, &MAIN[..]].concat());

    // Ten thousand frames: the innermost ones are kept, and a mark says that there are more.
    assert_eq!(calls(ALLOCATE, "Sites.deepest", 7416), 1, "{context}");
    let deep = run.sites.iter().find(|s| s.leaf() == ALLOCATE && s.has("Sites.deepest")).expect("just counted");
    assert!(deep.is_cut() && deep.java().filter(|f| f.name == "Sites.deepest").count() > 50, "{context}");

    assert_eq!(calls(ALLOCATE, "Gone.leaf", 7608), ROUNDS, "{context}");
    all_in_order(ALLOCATE, &["Gone.leaf", "Gone.ask", "Sites.unloaded", "Sites.main"]);

    if vm.has_virtual_threads() {
        assert_eq!(calls(ALLOCATE, "Sites.inVirtualThread", 7312), ROUNDS, "{context}");
        let thread = ["Sites.inVirtualThread", MAIN[0], MAIN[1], "java/lang/VirtualThread.run"];
        all_in_order(ALLOCATE, &[&thread[..], &["jdk/internal/vm/Continuation.run"]].concat());
        // 200 deep, a block at every tenth frame; after the sleep the callers come back from the heap piece by piece.
        assert_eq!(calls(ALLOCATE, "Sites.unmounted", 7512), 21, "{context}");
        for site in run.sites.iter().filter(|s| s.leaf() == ALLOCATE && s.has("Sites.unmounted")) {
            let callers = site.has_in_order(&MAIN[..2]) || site.frames.iter().any(|f| f.name == "cut 6");
            let carrier = site.has("jdk/internal/vm/Continuation.run") && !site.is_cut();
            assert!(callers && carrier, "{context}: {:#?}", site.frames);
        }
    }
    lines(&run, &context);
    share(&run, &context);
    run
}

/// The line of each call is the one in the source.
fn lines(run: &Run, context: &str) {
    let source = fs::read_to_string(repository().join("fixtures/java/sites/Sites.java")).expect("the fixture");
    let line_of = |text: &str| 1 + source.lines().position(|l| l.contains(text)).expect("in the source") as u16;
    for (method, text) in [
        ("Sites.allocateUnsafe", "UNSAFE.allocateMemory(7001)"),
        ("Sites.makeInflater", "KEPT.add(new Inflater())"),
        ("Sites.callLibrary", "KEPT.add(three(7207))"),
        ("Sites.outer", "i < rounds; i++) middle(way)"),
    ] {
        let frames = run.sites.iter().filter(|s| s.has_in_order(&[method, MAIN[2]]));
        let frames: Vec<&Frame> = frames.flat_map(|s| &s.frames).filter(|f| f.name == method).collect();
        assert!(!frames.is_empty() && frames.iter().all(|f| f.line == Some(line_of(text))), "{context} {method}");
    }
}

/// How many of the blocks that Java code requested have a complete stack.
fn share(run: &Run, context: &str) {
    let java = |s: &Site| s.frames.iter().any(|f| matches!(f.kind, FrameKind::Java | FrameKind::Jit));
    let deep = |s: &Site| s.frames.last().is_some_and(|f| f.name == "cut 0");
    let (all, _) = run.sum(java);
    let (whole, _) = run.sum(|s| {
        java(s) && (deep(s) || !s.is_cut()) && s.frames.iter().all(|f| f.kind != FrameKind::Jit && f.name != "cut 6")
    });
    let (bounded, _) = run.sum(|s| java(s) && deep(s));
    let frames = run.sites.iter().map(|s| s.frames.len()).max().unwrap_or(0);
    log_line(&format!(
        "java sites {context}: {whole} of {all} blocks below Java code have whole stacks ({:.2} %), {bounded} of them up to the bound; {} sites, longest {frames}; {} methods, {} walks",
        100.0 * whole as f64 / all as f64,
        run.sites.len(),
        run.segment.methods.len(),
        run.segment.counter("deep_walks"),
    ));
    assert!(whole * 100 >= all * 98, "{context}: {whole} of {all}");
}

fn everywhere(name: &str, options: &[&str], check: impl Fn(&Run)) {
    let folder = Scratch::new(name);
    built(folder.path());
    for vm in vms() {
        check(&known_answers(&vm, folder.path(), options));
    }
}

/// Blocks below frames of the fixture that ran in this way.
fn ran(run: &Run, flags: u8, of: u8) -> u64 {
    run.sum(|s| s.java().any(|f| f.name.starts_with("Sites.") && f.flags & of == flags)).0
}

/// A start queries the kernel about few pages of the VM, since the tracker's map proves that most are readable. It
/// makes pages of the segment by few calls. Both are rt_sigprocmask(2) with an invalid `how`.
#[test]
fn a_start_makes_few_system_calls() {
    for jdk in stage::vms() {
        for (sites, most) in [("sampled", 110), ("exact", 420)] {
            let folder = Scratch::new("java-calls");
            let trace = folder.path().join("trace");
            let mut strace = Command::new("strace");
            strace
                .args(["-f", "-qq", "-e", "trace=rt_sigprocmask", "-o"])
                .arg(&trace)
                .arg(env!("CARGO_BIN_EXE_plimsoll"));
            // On tmpfs, as by default: on disk the segment grows by other calls.
            let segments = Path::new("/dev/shm").join(format!("java-calls-{}", std::process::id()));
            fs::create_dir(&segments).expect("a new folder");
            fs::set_permissions(&segments, fs::Permissions::from_mode(0o700)).expect("own folder");
            strace.args(["run", "--sites", sites, "--dir"]).arg(&segments).arg("--").arg(jdk.bin("java"));
            strace.args(["-XX:+UseSerialGC", "-Xmx64m", "-Xint", "-version"]).env("XDG_CACHE_HOME", folder.path());
            let status = strace.output();
            fs::remove_dir_all(&segments).expect("own folder");
            assert!(status.expect("strace").status.success());
            let trace = fs::read_to_string(&trace).expect("the trace");
            let calls = trace.lines().filter(|line| line.contains("(0xffffffff")).count();
            log_line(&format!("JDK {}, {sites}: {calls} queries of pages", jdk.major));
            assert!((1..most).contains(&calls), "JDK {}, {sites}: {calls} queries of pages", jdk.major);
        }
    }
}

#[test]
fn stacks_of_a_mixed_vm_are_known() {
    everywhere("java-mixed", &[], |_| {});
}

#[test]
fn stacks_of_interpreted_code_are_known() {
    everywhere("java-int", &["-Xint"], |run| {
        assert!(ran(run, frame_flags::INTERPRETED, frame_flags::TIER) > 5 * ROUNDS);
        assert_eq!(ran(run, frame_flags::INLINED, frame_flags::INLINED), 0);
    });
}

#[test]
fn stacks_of_c1_are_known() {
    everywhere("java-c1", &["-XX:TieredStopAtLevel=1", "-Xcomp"], |run| {
        assert!(ran(run, frame_flags::C1, frame_flags::TIER) > 4 * ROUNDS);
        assert_eq!(ran(run, frame_flags::C2, frame_flags::TIER), 0);
    });
}

#[test]
fn stacks_of_c2_with_inlined_methods_are_known() {
    everywhere("java-c2", &["-XX:-TieredCompilation", "-Xbatch", "-XX:CompileThreshold=50"], |run| {
        assert!(ran(run, frame_flags::C2, frame_flags::TIER) > 2 * ROUNDS);
        assert!(ran(run, frame_flags::C2 | frame_flags::INLINED, frame_flags::TIER | frame_flags::INLINED) > ROUNDS);
    });
}

/// Classes that replace one another, and code that replaces other code at the same address. Each class has its own
/// blocks, whatever was remembered, and every remembered stack equals a walk.
#[test]
fn classes_that_replace_one_another_have_their_own_blocks() {
    let folder = Scratch::new("java-churn");
    built(folder.path());
    let gone = folder.path().join("gone/Gone.class");
    let (classes, rounds) = (200, 2000);
    for (n, vm) in vms().into_iter().enumerate() {
        // Outside of test-full one VM runs with the comparison, the next one at full speed.
        for check in [false, true].into_iter().filter(|check| stage::is_full() || *check == (n % 2 == 0)) {
            let (classes_text, rounds_text) = (classes.to_string(), rounds.to_string());
            let mut arguments = vec!["Churn", gone.to_str().expect("a path"), &classes_text, &rounds_text];
            // ZGC unloads classes while their methods' callers run.
            if stage::is_full() && check && vm.has_zgc() {
                arguments.insert(0, "-XX:+UseZGC");
            }
            let run = run(&vm, folder.path(), check, &arguments);
            for class in 0..classes {
                for method in ["leaf", "ask"] {
                    let name = format!("G{class:03}.{method}");
                    let (_, bytes) =
                        run.sum(|s| s.leaf() == ALLOCATE && s.has(&name) && s.requested == s.blocks * 7608);
                    assert_eq!(bytes, rounds * 7608, "{}: {name}", vm.major);
                }
            }
            agrees(&run, &format!("churn {}", vm.major), check, 100_000);
        }
    }
}

/// The VM's counters that prove a remembered method to be alive are found whatever the collector is: without them, each
/// interpreted frame's method is compared again each time.
#[test]
fn the_vms_counters_spare_comparisons_with_each_collector() {
    let folder = Scratch::new("java-counters");
    built(folder.path());
    let here = folder.path().to_str().expect("a path");
    for vm in vms() {
        let compared = |options: &[&str]| {
            let arguments = [options, &["-Xint", "-Drounds=1000", "Sites", here, "unsafe", "direct"]].concat();
            let run = run(&vm, folder.path(), false, &arguments);
            let (blocks, _) = run.sum(|s| s.leaf() == ALLOCATE && s.has("Sites.allocateUnsafe"));
            assert!(blocks >= 1000, "{} {options:?}: {blocks}", vm.major);
            run.segment.counter("methods_compared")
        };
        let without = compared(&["-XX:+UseSerialGC", "-XX:-UsePerfData"]);
        let collectors = ["-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:+UseG1GC", "-XX:+UseZGC"];
        for collector in collectors.into_iter().filter(|name| vm.has_zgc() || *name != "-XX:+UseZGC") {
            let with = compared(&[collector]);
            log_line(&format!("JDK {} {collector}: {with} methods compared, {without} without counters", vm.major));
            assert!(with * 10 < without, "{} {collector}: {with}, without counters {without}", vm.major);
        }
    }
}

/// The VM frees the methods of the version before, and gives their memory to others. Each block is at the line of its
/// own version.
#[test]
fn each_version_of_a_redefined_class_has_its_own_lines() {
    let folder = Scratch::new("java-redefined");
    built(folder.path());
    let agent = format!("-javaagent:{}", folder.path().join("agent.jar").display());
    let here = folder.path().to_str().expect("a path");
    let (rounds, line_of) = (200, |version: &str| {
        let source = repository().join("fixtures/java/sites").join(version).join("Body.java");
        let source = fs::read_to_string(source).expect("the fixture");
        1 + source.lines().position(|line| line.contains("allocateMemory(")).expect("in the source") as u16
    });
    for (n, vm) in vms().into_iter().enumerate() {
        for check in [false, true].into_iter().filter(|check| stage::is_full() || *check == (n % 2 == 0)) {
            let run = run(&vm, folder.path(), check, &[&agent, "Redefined", here, &rounds.to_string()]);
            for (version, bytes) in [("body_a", 7808), ("body_b", 7904)] {
                let of = |s: &Site| s.leaf() == ALLOCATE && s.has("Body.leaf") && s.requested == s.blocks * bytes;
                assert_eq!(run.sum(of).0, rounds / 2 * 20, "{} {version}", vm.major);
                for site in run.sites.iter().filter(|s| of(s)) {
                    let leaf = site.frames.iter().find(|frame| frame.name == "Body.leaf").expect("just found");
                    assert_eq!(leaf.line, Some(line_of(version)), "{} {version}: {:#?}", vm.major, site.frames);
                }
            }
            agrees(&run, &format!("redefined {}", vm.major), check, 1000);
        }
    }
}

/// Stubs of foreign functions, down and up, are frames like others.
#[test]
fn stubs_of_foreign_functions_are_frames() {
    let folder = Scratch::new("java-foreign");
    let vm = Vm { jdk: jdk(25).expect("JDK 25 (run .ci/setup)"), root: None };
    let source = repository().join("fixtures/java/sites/Foreign.java");
    must(vm.tool("javac").arg("-d").arg(folder.path()).arg(source));
    for check in [false, true] {
        let run = run(&vm, folder.path(), check, &["--enable-native-access=ALL-UNNAMED", "Foreign", "3000"]);
        let compared =
            run.printed.trim().strip_prefix("compared ").and_then(|n| n.parse::<u64>().ok()).expect("a number");
        // A downcall alone, and a downcall from a callback of libc's qsort.
        let down = run.sum(|s| {
            s.has_in_order(&["Foreign.leaf", "Foreign.down", "Foreign.main"]) && s.requested == s.blocks * 7801
        });
        let order = ["Foreign.leaf", "Foreign.up", "libc.so.6", "Foreign.sort", "Foreign.main"];
        let up = run.sum(|s| s.has_in_order(&order) && !s.is_cut() && s.requested == s.blocks * 7703);
        assert_eq!((down.0, up.0), (3000, compared));
        agrees(&run, "foreign functions", check, 1000);
    }
}

/// The memo disagrees with no walk.
fn agrees(run: &Run, name: &str, check: bool, enough: u64) {
    let (checks, wrong) = (run.segment.counter("memo_checks"), run.segment.counter("memo_disagreements"));
    if check {
        log_line(&format!("java memo {name}: {checks} remembered stacks checked, {wrong} disagreements"));
        assert_eq!(wrong, 0, "{name}, of {checks}");
        assert!(checks >= enough, "{name}: only {checks}");
    }
}

/// javac on as many classes as a real source tree has.
#[test]
#[ignore = "full: compiled code of a big program; make test has C1 and C2 each alone"]
fn the_memo_agrees_with_every_walk_of_javac() {
    let folder = Scratch::new("java-javac");
    let source = folder.path().join("Many.java");
    let methods: String = (0..400)
        .map(|i| format!("  int m{i}(java.util.List<String> l) {{ return l.stream().map(s -> s + {i}).mapToInt(String::length).sum(); }}\n"))
        .collect();
    fs::write(&source, format!("class Many {{\n{methods}}}\n")).expect("scratch");
    // The root's JDKs have no compiler.
    for vm in vms().iter().filter(|vm| vm.root.is_none() && vm.has_compiler()) {
        let out = folder.path().join(vm.major.to_string());
        let arguments = ["-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", out.to_str().expect("a path")];
        for check in [false, true] {
            let run = run(vm, folder.path(), check, &[&arguments[..], &[source.to_str().expect("a path")]].concat());
            agrees(&run, &format!("javac {}", vm.major), check, 10_000);
            share(&run, &format!("javac {}", vm.major));
        }
    }
}

/// In JDK 25 Unsafe's allocation ends in a jump to os::malloc: only the Java code below shows the owner of the memory.
#[test]
fn direct_buffers_are_other_on_17_and_25() {
    const BUFFERS: u64 = 100;
    const EACH: u64 = 100_000;
    let scratch = Scratch::new("buffers");
    let source = scratch.path().join("Buffers.java");
    let text = format!(
        "public class Buffers {{ public static void main(String[] a) {{
            var keep = new java.util.ArrayList<Object>();
            for (int i = 0; i < {BUFFERS}; i++) keep.add(java.nio.ByteBuffer.allocateDirect({EACH}));
            System.out.println(keep.size());
            Runtime.getRuntime().halt(0); }} }}"
    );
    fs::write(&source, text).expect("own folder");
    must(compiler().tool("javac").arg("-d").arg(scratch.path()).arg(&source));
    // Not the JRE 21 from a Python package: its libjvm has no symbols, so no rule finds os::malloc there.
    for (index, vm) in stage::jdks().iter().enumerate() {
        let segments = scratch.path().join(format!("segments-{index}"));
        let mut run = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        run.arg("run")
            .arg("--dir")
            .arg(&segments)
            .arg("--")
            .arg(vm.bin("java"))
            .args(["-Xint", "-cp"])
            .arg(scratch.path());
        must(run.arg("Buffers").stdout(Stdio::null()));
        let report = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["report", "--format", "json"])
            .arg(&segments)
            .output()
            .expect("plimsoll");
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
        let live = |name: &str| {
            let all = report["categories"].as_array().expect("categories").iter();
            all.filter(|c| c["name"] == name).filter_map(|c| c["live_bytes"].as_u64()).sum::<u64>()
        };
        assert!(live("Other") >= BUFFERS * EACH, "JDK {}: {} in Other", vm.major, live("Other"));
        assert!(live("libjvm.so") < EACH, "JDK {}: {} in libjvm.so", vm.major, live("libjvm.so"));
    }
}
