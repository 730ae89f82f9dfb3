//! Allocation events of real recordings: known answers for a program that allocates known sizes, and every entry
//! compared with `jfr print --json`.

#[path = "../../../fixtures/random.rs"]
mod random;

use random::Random;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use plimsoll_facts::units::Bytes;
use plimsoll_profiles::allocation::{self, Allocations, Choice, OBJECT_BYTES, SLOW_PATH_BYTES, SLOW_PATHS};
use plimsoll_profiles::jfr::RecordingFiles;
use plimsoll_profiles::profile::{ChangeKind, Focus, GroupBy, ProfileDiff, Value};
use serde_json::Value as Json;

mod processes;

use processes::{Jdk, jdks, native_image};

const TLAB_EVENTS: [&str; 2] =
    ["jdk.ObjectAllocationInNewTLAB#enabled=true", "jdk.ObjectAllocationOutsideTLAB#enabled=true"];
/// An array of 4 MiB with its header.
const ARRAY: i64 = (4 << 20) + 16;

fn scratch_file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("allocation");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder.join(format!("{}-{name}", std::process::id()))
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Records with settings in the syntax of `jfr configure`; an empty list means the JDK's default.
fn recorded(jdk: &Jdk, name: &str, settings: &[&str], arguments: &[&str]) -> PathBuf {
    let name = format!("{name}-{}", jdk.major);
    let (file, jfc) = (scratch_file(&format!("{name}.jfr")), scratch_file(&format!("{name}.jfc")));
    let mut options = format!("-XX:StartFlightRecording=filename={}", file.display());
    if !settings.is_empty() {
        run(jdk.tool("jfr").arg("configure").args(settings).arg("--output").arg(&jfc));
        options += &format!(",settings={}", jfc.display());
    }
    run(&mut jdk.program("Allocates", &["-Xmx256m", "-XX:+UseSerialGC", "-Xlog:disable", &options], arguments));
    file
}

fn read(path: &Path) -> Allocations {
    allocation::read(&RecordingFiles::open(path).expect("a recording"), Choice::default())
}

/// Thread, class, frames (innermost first) → bytes taken, slow paths, object bytes.
type Entries = BTreeMap<(String, String, Vec<String>), [i64; 3]>;

/// The twin: the same sums, from the JDK's own output.
fn printed(jdk: &Jdk, path: &Path) -> Entries {
    let mut command = jdk.tool("jfr");
    command.args(["print", "--json", "--stack-depth", "64", "--events"]);
    command.arg("jdk.ObjectAllocationInNewTLAB,jdk.ObjectAllocationOutsideTLAB").arg(path);
    let output = command.output().expect("jfr");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Json = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |json: &Json| json.as_str().unwrap_or_default().to_string();
    let mut entries = Entries::new();
    for event in json["recording"]["events"].as_array().expect("events") {
        let values = &event["values"];
        let thread = &values["eventThread"];
        let name = if thread["javaName"].is_string() { &thread["javaName"] } else { &thread["osName"] };
        let name = if thread.is_null() { "(no thread)".to_string() } else { text(name) };
        let mut stack: Vec<String> = vec![];
        for frame in values["stackTrace"]["frames"].as_array().into_iter().flatten() {
            let method = &frame["method"];
            let class = text(&method["type"]["name"]).replace('/', ".");
            stack.push(stable(format!("{class}.{}", text(&method["name"]))));
        }
        if values["stackTrace"]["truncated"] == true {
            stack.push("[truncated]".into());
        }
        let class = text(&values["objectClass"]["name"]).replace('/', ".");
        let object = values["allocationSize"].as_i64().expect("a size");
        let taken = values["tlabSize"].as_i64().unwrap_or(object);
        let sum = entries.entry((name, class, stack)).or_default();
        *sum = [sum[0] + taken, sum[1] + 1, sum[2] + object];
    }
    entries
}

/// The profile removes the addresses of hidden classes from names.
fn stable(name: String) -> String {
    let Some(at) = name.find("$$Lambda") else { return name };
    let method = name.rsplit('.').next().expect("a method");
    format!("{}$$Lambda.{method}", &name[..at])
}

/// Class names as in the profile, such as `byte[]` for `[B`.
fn readable(class: &str) -> String {
    let names =
        [("B", "byte"), ("C", "char"), ("D", "double"), ("F", "float"), ("I", "int"), ("J", "long"), ("S", "short")];
    let names = names.into_iter().chain([("Z", "boolean")]);
    let element = class.trim_start_matches('[');
    let dimensions = class.len() - element.len();
    if dimensions == 0 {
        return class.into();
    }
    let primitive = names.into_iter().find(|(code, _)| *code == element).map(|(_, name)| name.to_string());
    let element = primitive.unwrap_or_else(|| element[1..element.len() - 1].to_string());
    element + &"[]".repeat(dimensions)
}

fn check_beside_the_jdk(jdk: &Jdk, path: &Path, of: &Allocations) -> usize {
    let profile = &of.profile;
    let mut ours = Entries::new();
    for (entry, values) in profile.entries() {
        if values[SLOW_PATHS].amount == 0 {
            continue;
        }
        let frames = profile.frames_of(entry.stack).iter();
        let frames = frames.map(|f| profile.function_at(profile.function_of(*f)).name.clone()).collect();
        let thread = profile.name_at(entry.labels.thread.expect("a thread")).to_string();
        let class = profile.name_at(entry.labels.class.expect("a class")).to_string();
        let sum = ours.entry((thread, class, frames)).or_default();
        for (sum, column) in sum.iter_mut().zip([SLOW_PATH_BYTES, SLOW_PATHS, OBJECT_BYTES]) {
            *sum += values[column].amount;
        }
    }
    let theirs = printed(jdk, path);
    let theirs: Entries = theirs.into_iter().map(|((t, class, f), sums)| ((t, readable(&class), f), sums)).collect();
    for (key, sums) in &theirs {
        assert_eq!(ours.get(key), Some(sums), "{key:?}");
    }
    assert_eq!(ours.len(), theirs.len());
    theirs.len()
}

fn amounts(values: &[Value]) -> [i64; 3] {
    [SLOW_PATH_BYTES, SLOW_PATHS, OBJECT_BYTES].map(|c| values[c].amount)
}

#[test]
fn every_jdks_recording_names_the_allocators() {
    for jdk in jdks() {
        let path = recorded(&jdk, "tlab", &TLAB_EVENTS, &["400000", "10", "3"]);
        let of = read(&path);
        assert!(check_beside_the_jdk(&jdk, &path, &of) > 4, "JDK {}", jdk.major);
        assert_eq!((of.vm.feature(), of.vm.is_native_image(), of.measure()), (Some(jdk.major), false, "slow_path"));
        assert_eq!(of.chunks, None, "HotSpot's buffers aren't heap chunks");
        assert!(of.profile.gaps.is_empty(), "{:?}", of.profile.gaps);

        // Ten arrays below doStart, three below doMore: each causes a slow path.
        for (root, arrays) in [(r"^Allocates\.doStart$", 10), (r"^Allocates\.doMore$", 3)] {
            let focused = of.profile.focus(&Focus::new(root).expect("a pattern"));
            let [taken, slow_paths, objects] = amounts(&focused.profile.total());
            assert_eq!((slow_paths, objects), (arrays, ARRAY * arrays), "JDK {}", jdk.major);
            // In an empty heap, a buffer is large enough for one array.
            assert!(taken >= objects && taken < objects + ARRAY, "{taken} {objects}, JDK {}", jdk.major);
            // Reading with a focus gives the same result; the rest is left out.
            let focus = Focus::new(root).expect("a pattern");
            let recording = RecordingFiles::open(&path).expect("a recording");
            let below = allocation::read(&recording, Choice { focus: Some(&focus), ..Choice::default() });
            assert_eq!(below.profile.total(), focused.profile.total());
            assert_eq!(below.left_out, focused.left_out);
            assert_eq!((below.threads.len(), below.threads[0].thread.as_str()), (1, "main"));
            assert_eq!((below.threads[0].slow_paths, below.slow_paths()), (arrays as u64, arrays as u64));
            assert!(below.profile.gaps.is_empty(), "{:?}", below.profile.gaps);
            let classes = focused.profile.group(GroupBy::Class, SLOW_PATHS);
            assert_eq!((classes.len(), classes[0].name.as_str()), (1, "byte[]"));
            let sites = focused.profile.group(GroupBy::Site, SLOW_PATHS);
            assert_eq!((sites.len(), sites[0].name.as_str()), (1, "Allocates.arrays"));
        }
        // Boxes lie in their thread's buffers. So the buffers' bytes belong to the boxes, except in the last, partly
        // filled one.
        let threads = of.profile.group(GroupBy::Thread, SLOW_PATH_BYTES);
        let maker = threads.iter().find(|g| g.name == "box-maker").expect("the thread");
        let boxes = 400_000 * 80;
        let [taken, slow_paths, _] = amounts(&maker.values);
        assert!(taken >= boxes * 95 / 100 && taken <= boxes * 130 / 100, "{taken} for {boxes}, JDK {}", jdk.major);
        let by_thread = of.threads.iter().find(|t| t.thread == "box-maker").expect("the thread");
        assert_eq!((by_thread.slow_paths as i64, by_thread.bytes as i64), (slow_paths, taken));
        assert_eq!(of.threads.iter().map(|t| t.slow_paths).sum::<u64>(), of.slow_paths());
        let packages = of.profile.group(GroupBy::Package, SLOW_PATH_BYTES);
        let ours = packages.iter().find(|g| g.name == "(default package)").expect("ours");
        assert!(amounts(&ours.values)[0] >= 13 * ARRAY + boxes * 9 / 10);
    }
}

#[test]
fn missing_events_are_a_gap_with_the_command_that_enables_them() {
    for jdk in jdks() {
        let path = recorded(&jdk, "default", &[], &["400000", "10", "0"]);
        let of = read(&path);
        assert_eq!((of.slow_paths(), of.measure()), (0, "sampled"), "JDK {}", jdk.major);
        let is_recorded: Vec<bool> = of.profile.columns.iter().map(|column| column.is_recorded).collect();
        assert_eq!(is_recorded, [false, false, false, true, true], "JDK {}", jdk.major);
        assert!(of.profile.total()[allocation::SAMPLES].amount > 0, "JDK {}", jdk.major);
        let [gap] = &of.profile.gaps[..] else { panic!("{:?}", of.profile.gaps) };
        assert_eq!(
            gap.reason,
            "the recording has no jdk.ObjectAllocationInNewTLAB and no jdk.ObjectAllocationOutsideTLAB"
        );
        // The command in the remedy works.
        let line = gap.remedy.split(';').next().expect("a line");
        let arguments: Vec<&str> = line.strip_prefix("jfr configure ").expect("of jfr").split(' ').collect();
        let jfc = scratch_file(&format!("remedy-{}.jfc", jdk.major));
        let configured: Vec<&str> = arguments[..arguments.len() - 1].to_vec();
        run(jdk.tool("jfr").arg("configure").args(configured).arg(&jfc));
        let file = scratch_file(&format!("remedy-{}.jfr", jdk.major));
        let options = format!("-XX:StartFlightRecording=settings={},filename={}", jfc.display(), file.display());
        run(&mut jdk.program(
            "Allocates",
            &["-Xmx256m", "-XX:+UseSerialGC", "-Xlog:disable", &options],
            &["10", "5", "0"],
        ));
        let of = read(&file);
        assert!(of.slow_paths() >= 5 && of.profile.gaps.is_empty(), "{:?}", of.profile.gaps);
        // Enabled events that didn't occur aren't a gap: here, a range without new buffers.
        let range = allocation::read(
            &RecordingFiles::open(&file).expect("a recording"),
            Choice { from_ns: Some(0), to_ns: Some(1), focus: None },
        );
        assert_eq!((range.slow_paths(), range.profile.gaps.len()), (0, 0), "{:?}", range.profile.gaps);
    }
}

#[test]
fn new_stacks_come_first_in_a_comparison() {
    for jdk in jdks() {
        let before = read(&recorded(&jdk, "before", &TLAB_EVENTS, &["100000", "10", "0"]));
        let after = read(&recorded(&jdk, "after", &TLAB_EVENTS, &["100000", "12", "7"]));
        let difference = ProfileDiff::new((&before.profile, SLOW_PATHS), (&after.profile, SLOW_PATHS));
        let of = |method: &str| {
            let sites = difference.sites.iter().filter(|s| {
                let frames = difference.profile.frames_of(s.stack);
                frames.iter().any(|f| difference.profile.function_at(difference.profile.function_of(*f)).name == method)
            });
            sites.map(|s| (s.change, s.before.amount, s.after.amount)).collect::<Vec<_>>()
        };
        assert_eq!(of("Allocates.doMore"), [(ChangeKind::New, 0, 7)], "JDK {}", jdk.major);
        // A lambda's class has a different name in each run, but is the same site.
        let changes: Vec<ChangeKind> = of("Allocates.boxes").into_iter().map(|(change, ..)| change).collect();
        assert!(
            matches!(changes[..], [ChangeKind::Same | ChangeKind::Grew | ChangeKind::Shrank]),
            "{changes:?}, JDK {}",
            jdk.major
        );
        assert_eq!(of("Allocates.doStart"), [(ChangeKind::Grew, 10, 12)], "JDK {}", jdk.major);
        assert_eq!(difference.sites[0].change, ChangeKind::New);
    }
}

#[test]
fn a_native_images_slow_paths_and_chunks_are_counted() {
    let jdks = jdks();
    let jdk = jdks.iter().max_by_key(|jdk| jdk.major).expect("a JDK");
    // A native image of GraalVM 25.
    let image = native_image("app");
    let (file, jfc) = (scratch_file("image.jfr"), scratch_file("image.jfc"));
    run(jdk.tool("jfr").arg("configure").args(TLAB_EVENTS).arg("--output").arg(&jfc));
    let options = format!("-XX:StartFlightRecording=settings={},filename={}", jfc.display(), file.display());
    run(Command::new(&image).args(["-XX:+FlightRecorder", &options, "24", "1", "1", "4", "0"]));
    let of = read(&file);
    assert!(check_beside_the_jdk(jdk, &file, &of) > 10);
    assert!(of.vm.is_native_image() && of.vm.feature().is_some(), "{:?}", of.vm);
    // 24 arrays of 1 MiB by main take one chunk each. 1,536 arrays of 1 KiB share chunks, in slices or outside them.
    let chunks = of.chunks.as_ref().expect("an estimate");
    assert!(chunks.why.contains("slices of heap chunks of 512 KiB that threads share"), "{}", chunks.why);
    assert_eq!(chunks.own, 24);
    assert!(chunks.own_bytes >= Bytes::mib(24) && chunks.own_bytes < Bytes::mib(25), "{}", chunks.own_bytes);
    let main = of.threads.iter().find(|t| t.thread == "main").expect("main");
    let of_main = main.chunks.as_ref().expect("an estimate");
    assert_eq!(of_main.own, 24);
    let small = Bytes(main.bytes) - of_main.own_bytes;
    assert!(small >= Bytes(1536 * 1040), "{small}");
    assert_eq!((of_main.aligned, of_main.slices), (0, small));
    assert_eq!(
        chunks.aligned,
        of.threads.iter().map(|t| t.chunks.as_ref().map_or(0, |c| c.slices.0)).sum::<u64>().div_ceil(512 << 10)
    );
    // Frames of the slow path can be searched for. Below the program's own method, there are only its arrays.
    let main = of.profile.focus(&Focus::new(r"^App\.main$").expect("a pattern")).profile;
    let arrays = main.group(GroupBy::Class, SLOW_PATH_BYTES);
    let arrays = arrays.iter().find(|g| g.name == "byte[]").expect("its arrays");
    let [_, _, objects] = amounts(&arrays.values);
    // Arrays of 1 KiB that fitted into a buffer had no slow path.
    assert!(objects >= 24 * ((1 << 20) + 16) + 1400 * 1040, "{objects}");
    let slow = of.profile.focus(&Focus::new("slowPathNew").expect("a pattern"));
    assert_eq!(amounts(&slow.profile.total())[1] + amounts(&slow.left_out)[1], of.slow_paths() as i64);
    assert!(amounts(&slow.profile.total())[1] > 24);
}

#[test]
fn a_cut_or_mutated_recording_is_a_gap() {
    let jdks = jdks();
    let path = recorded(&jdks[0], "mutated", &TLAB_EVENTS, &["10000", "5", "0"]);
    let bytes = std::fs::read(path).expect("the recording");
    let whole = allocation::read(&RecordingFiles::of_bytes(bytes.clone()), Choice::default());
    assert!(whole.profile.gaps.is_empty(), "{:?}", whole.profile.gaps);
    let mut gaps = 0;
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..60 {
        let mut bytes = bytes.clone();
        // Damage only the second half (events and constants): the first half is metadata, in which most changes make
        // the file unreadable.
        if round % 2 == 0 {
            bytes.truncate(random.index(bytes.len()));
        } else {
            for _ in 0..1 + random.index(8) {
                let half = bytes.len() / 2;
                bytes[half + random.index(half)] = random.index(256) as u8;
            }
        }
        let of = allocation::read(&RecordingFiles::of_bytes(bytes), Choice::default());
        let by_thread: u64 = of.threads.iter().map(|t| t.slow_paths).sum();
        assert_eq!(by_thread, of.slow_paths());
        gaps += usize::from(!of.profile.gaps.is_empty());
    }
    assert!(gaps > 20, "{gaps}");
}
