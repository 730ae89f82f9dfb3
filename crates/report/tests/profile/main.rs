//! The outputs of profiles: each is read back by an independent reader, and its sums compared with the profile's.

use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_profiles::profile::{
    Column, Focus, Frame, FrameId, FrameOrigin, GroupBy, Labels, Module, Profile, ProfileDiff, Value, Weight,
};
use plimsoll_report::profile::{View, diff, folded, html, json, pprof, svg, text};

mod pprof_reader;
#[path = "../../../../fixtures/random.rs"]
mod random;
#[path = "../text_of/mod.rs"]
mod text_of;
use random::Random;
use text_of::text_of;

fn scratch() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("profile");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The profile of a server on a JVM while it is built, and the modules of its frames.
struct Shop {
    profile: Profile,
    libjvm: Module,
    libzip: Module,
    libc: Module,
}

impl Shop {
    fn new() -> Shop {
        let module = |path: &str, start: u64, id: u8| Module {
            path: path.into(),
            build_id: vec![id; 20],
            range: AddressRange::sized(Avma(start), Bytes::mib(20)),
            bias: start,
        };
        let columns = vec![
            Column::bytes("live"),
            Column::count("live", "block"),
            Column::bytes("peak").of_many_moments(),
            Column::bytes("cumulative"),
            Column::count("cumulative", "block"),
        ];
        let mut profile = Profile::new(columns);
        profile.title = "native memory of java -jar shop.jar, pid 4711".into();
        profile.time_ns = 1_795_211_234_567_000_000;
        Shop {
            profile,
            libjvm: module("/usr/lib/jvm/lib/server/libjvm.so", 0x7f10_0000_0000, 1),
            libzip: module("/usr/lib/jvm/lib/libzip.so", 0x7f20_0000_0000, 2),
            libc: module("/usr/lib/x86_64-linux-gnu/libc.so.6", 0x7f30_0000_0000, 3),
        }
    }

    /// `J:` a Java method, `V:` of the VM, `Z:` libzip, `C:` libc, `?:` code without a name in the VM; `@` a line.
    fn frame(&mut self, text: &str) -> FrameId {
        let (kind, name) = text.split_once(':').expect("a kind");
        let (name, line) = name.split_once('@').map_or((name, None), |(name, line)| (name, line.parse().ok()));
        let hash = name.bytes().fold(17u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()) & 0xf_ffff);
        let module = match kind {
            "V" | "?" => Some(self.libjvm.clone()),
            "Z" => Some(self.libzip.clone()),
            "C" => Some(self.libc.clone()),
            _ => None,
        };
        let base = module.as_ref().map_or(0, |m| m.range.start.0);
        let class = name.rsplit('.').nth(1).unwrap_or(name);
        let frame = Frame {
            function: (kind != "?").then(|| name.to_string()),
            module: module.map(|m| self.profile.module(m)),
            offset: hash,
            address: Avma(if base == 0 { 0 } else { base + hash }),
            file: line.is_some().then(|| format!("{class}.{}", if kind == "J" { "java" } else { "c" })),
            line,
            kind: if kind == "J" { FrameOrigin::Java } else { FrameOrigin::Native },
            inlined: kind == "V" && name.starts_with("inline_"),
        };
        self.profile.frame(frame)
    }

    /// Outermost first.
    fn book(&mut self, frames: &[&str], thread: &str, category: &str, live: u64, count: u64, variance: f64) {
        let ids: Vec<FrameId> = frames.iter().rev().map(|f| self.frame(f)).collect();
        let stack = self.profile.stack(&ids);
        let labels = Labels {
            thread: Some(self.profile.name(thread)),
            category: Some(self.profile.name(category)),
            class: None,
        };
        let values = [
            Value::estimated(live, variance),
            Value::exact(count),
            Value::exact(live + live / 4),
            Value::exact(live * 7),
            Value::exact(count * 7),
        ];
        self.profile.add(stack, labels, &values);
    }
}

const START: [&str; 6] = [
    "C:clone3",
    "C:start_thread",
    "V:thread_native_entry",
    "V:Thread::call_run",
    "V:JavaThread::thread_main_inner",
    "V:JavaCalls::call_helper",
];

/// Native and Java frames, threads, estimates. `grown` scales the largest site, in percent. Above 100, the profile is
/// the later one of two, and has a new site.
fn shop(grown: u64) -> Profile {
    const MIB: u64 = 1 << 20;
    let mut shop = Shop::new();
    let job = ["J:java.lang.Thread.run@1583", "J:org.acme.shop.Worker.run@40"];
    let path = |inner: &[&'static str]| [&START[..], &job, inner].concat();
    let inflate: &[&str] = &[
        "J:org.acme.shop.Images.scale@88",
        "J:java.util.zip.Inflater.<init>@118",
        "J:java.util.zip.Inflater.init",
        "Z:Java_java_util_zip_Inflater_init@61",
        "Z:inflateInit2_@203",
        "Z:updatewindow",
    ];
    let direct: &[&str] = &[
        "J:org.acme.shop.Upload.read@132",
        "J:java.nio.ByteBuffer.allocateDirect@332",
        "J:java.nio.DirectByteBuffer.<init>@121",
        "J:jdk.internal.misc.Unsafe.allocateMemory0",
        "V:Unsafe_AllocateMemory0@520",
        "V:os::malloc",
    ];
    let parse: &[&str] = &["J:org.acme.shop.Orders.parse@17", "V:inline_alloc@9", "V:Arena::grow", "V:os::malloc"];
    shop.book(&path(inflate), "worker-1", "zlib", 310 * MIB * grown / 100, 4_400 * grown / 100, 3e13);
    shop.book(&path(inflate), "worker-2", "zlib", 140 * MIB, 2_000, 1e13);
    shop.book(&path(direct), "worker-1", "Direct buffers", 180 * MIB, 90, 0.0);
    shop.book(&path(parse), "worker-2", "Arena", 33 * MIB, 12_000, 1e12);
    for i in 0..40u64 {
        let name: &'static str =
            ["V:Metaspace::grow", "V:SymbolTable::add", "V:G1RemSet::init", "V:ParseInfo::read"][(i % 4) as usize];
        let compiler: [&str; 5] = ["?:a", "?:b", "?:c", name, "V:os::malloc"];
        let call = format!("V:Compile::phase_{i}@{i}");
        let frames = [&START[..4], &[call.as_str()], &compiler].concat();
        shop.book(&frames, "C2 CompilerThread0", "Compiler", 3 * MIB / (i + 1) + 100, 10 + i, 0.0);
    }
    if grown > 100 {
        let reports = ["J:org.acme.shop.Reports.render@201", "J:com.sun.jna.Native.malloc", "C:malloc_hook"];
        shop.book(&path(&reports), "worker-3", "malloc", 21 * MIB, 5, 0.0);
    }
    let id = shop.profile.stack(&[]);
    shop.profile.add(id, Labels::default(), &[Value::exact(512), Value::exact(1)]);
    shop.profile
}

fn view(profile: &Profile) -> View<'_> {
    View::new(profile, None, Weight::Bytes).expect("bytes")
}

/// Names that try to be markup, fields of a line, or commands of a terminal.
const HOSTILE: [&str; 9] = [
    "</title><script>alert(1)</script>",
    "]]></script><svg onload=alert(1)>",
    "a;b 12\nc 13",
    "\x1b[2J\u{202e}txt",
    "'\"><img src=x onerror=alert(1)>",
    "&lt;b&gt;",
    "[u8; 4]",
    "\u{fffe}\u{0}\u{85}",
    "‹日本語›",
];

/// Small figures (text shows them to the byte), deep and branching stacks, hostile names.
fn hostile(dice: &mut Random) -> Profile {
    let mut profile = Profile::new(vec![Column::bytes("live"), Column::count("live", "block")]);
    profile.title = HOSTILE.join(" ");
    profile.gaps = vec![Gap::new(Source::Segment, HOSTILE[0], HOSTILE[3]).remedy(HOSTILE[4])];
    let mut left = 1000;
    for _ in 0..dice.below(200) + 1 {
        let frames: Vec<FrameId> = (0..dice.below(12))
            .map(|_| {
                let at = dice.below(HOSTILE.len() as u64) as usize;
                let name = Some(HOSTILE[at].to_string());
                let module = profile.module(Module { path: format!("/x/{}", HOSTILE[at]), ..Module::default() });
                let function = if dice.below(4) == 0 { None } else { name.clone() };
                profile.frame(Frame { function, file: name, line: Some(1), module: Some(module), ..Frame::default() })
            })
            .collect();
        let stack = profile.stack(&frames);
        let labels = Labels { thread: Some(profile.name(HOSTILE[dice.below(9) as usize])), ..Labels::default() };
        let bytes = dice.below(left / 20 + 2);
        left -= bytes.min(left);
        profile.add(stack, labels, &[Value::exact(bytes), Value::exact(dice.below(3))]);
    }
    profile
}

fn whole(profile: &Profile) -> (i64, i64) {
    let total = profile.total();
    (total[0].amount, total[1].amount)
}

fn parsed(svg: &str) -> roxmltree::Document<'_> {
    roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}"))
}

/// (row, left, width, title) of each box.
fn boxes(svg: &str) -> Vec<(i64, f64, f64, String)> {
    let document = parsed(svg);
    let groups = document.descendants().filter(|n| n.attribute("class").is_some_and(|c| c.starts_with("f ")));
    groups
        .map(|g| {
            let child = |name: &str| g.children().find(|c| c.has_tag_name(("http://www.w3.org/2000/svg", name)));
            let rect = child("rect").expect("a rect");
            let number = |name: &str| rect.attribute(name).expect(name).parse::<f64>().expect("a number");
            let title = child("title").expect("a title").text().unwrap_or_default().to_string();
            (number("y") as i64, number("x"), number("width"), title)
        })
        .collect()
}

#[test]
fn a_flame_graph_is_one_tree_whose_boxes_lie_within_their_callers() {
    let mut dice = Random(7);
    let (mut below, mut hostile_names) = (0, 0);
    for _ in 0..40 {
        let profile = hostile(&mut dice);
        for weight in [Weight::Bytes, Weight::Calls] {
            let svg = text_of(|out| svg::write(out, &View::new(&profile, None, weight).expect("both")));
            let boxes = boxes(&svg);
            // As the script does: a box's caller is the last one in the row above.
            let mut last: HashMap<i64, (f64, f64)> = HashMap::new();
            for (y, x, width, title) in &boxes {
                if let Some((left, wide)) = last.get(&(y - 18)) {
                    assert!(*x >= left - 0.02 && x + width <= left + wide + 0.7, "{title} sticks out");
                    below += 1;
                }
                last.insert(*y, (*x, *width));
                hostile_names += usize::from(title.contains("</title>"));
            }
            let rows: std::collections::BTreeSet<i64> = boxes.iter().map(|b| b.0).collect();
            for row in rows {
                let mut row: Vec<_> = boxes.iter().filter(|b| b.0 == row).collect();
                row.sort_by(|a, b| a.1.total_cmp(&b.1));
                assert!(row.windows(2).all(|w| w[0].1 + w[0].2 <= w[1].1 + 0.02), "boxes overlap");
            }
        }
    }
    assert!(below > 1000 && hostile_names > 10, "{below} {hostile_names}");
}

#[test]
fn boxes_say_what_they_hold_and_are_as_wide() {
    let profile = shop(100);
    let svg = text_of(|out| svg::write(out, &view(&profile)));
    let boxes = boxes(&svg);
    let (_, _, all, title) = &boxes[0];
    assert_eq!(title.lines().next(), Some("all"));
    assert!(title.contains("676 MiB ±12.0 MiB, 100.0 % of all in 19,671 blocks"), "{title}");
    let (_, _, width, title) = boxes.iter().find(|b| b.3.starts_with("updatewindow\n")).expect("the biggest site");
    assert_eq!(title, "updatewindow\n450 MiB ±11.8 MiB, 66.6 % of all in 6,400 blocks\nnative, libzip.so");
    assert!((width / all - 450.0 / 675.8).abs() < 0.002, "{width} of {all}");
    // A box that is too narrow for a Java name shows it without the package.
    assert!(svg.contains(">org.acme.shop.Upload.read</text>") && svg.contains(">Orders…</text>"), "{svg}");
    let run = boxes.iter().find(|b| b.3.starts_with("org.acme.shop.Worker.run\n")).expect("a Java method");
    assert!(run.3.ends_with("Java, Worker.java:40"), "{}", run.3);
}

#[test]
fn nothing_foreign_becomes_markup() {
    let mut dice = Random(3);
    let count = |text: &str, tag: &str| text.matches(tag).count();
    let mut shown = 0;
    let plain = shop(100);
    let later = shop(160);
    let plain_difference = ProfileDiff::new((&plain, 0), (&later, 0));
    for _ in 0..20 {
        let (profile, other) = (hostile(&mut dice), hostile(&mut dice));
        let diff = ProfileDiff::new((&profile, 0), (&other, 0));
        for (hostile, harmless) in [
            (text_of(|out| svg::write(out, &view(&profile))), text_of(|out| svg::write(out, &view(&plain)))),
            (text_of(|out| html::write(out, &view(&profile))), text_of(|out| html::write(out, &view(&plain)))),
            (text_of(|out| svg::diff(out, &diff)), text_of(|out| svg::diff(out, &plain_difference))),
            (text_of(|out| html::diff(out, &diff)), text_of(|out| html::diff(out, &plain_difference))),
        ] {
            for tag in ["<script", "<svg", "<img", "]]>", "<style"] {
                assert_eq!(count(&hostile, tag), count(&harmless, tag), "{tag}");
            }
            assert!(!hostile.contains(|c: char| c.is_control() && c != '\n') && !hostile.contains('\u{202e}'));
            shown += count(&hostile, "&lt;script&gt;alert(1)");
        }
        let text = text_of(|out| text::write(out, &view(&profile), GroupBy::Site, true));
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
    assert!(shown > 100, "{shown}");
}

/// The text tree read back: indentation gives the tree, figures the sums.
fn check_tree(text: &str, total: i64) -> usize {
    let lines: Vec<&str> = text.lines().skip_while(|l| !l.contains("stack, outermost first")).collect();
    let indent = lines[0].chars().count() - "stack, outermost first".chars().count();
    let mut entries: Vec<(usize, i64)> = vec![];
    for line in &lines[1..] {
        let figures: String = line.chars().take(10).collect();
        let Some(bytes) = figures.trim().strip_suffix(" B") else { continue };
        let level = line.chars().skip(indent).take_while(|c| *c == ' ').count() / 2;
        entries.push((level, bytes.parse().expect("bytes")));
    }
    let mut checked = 0;
    for (at, (level, bytes)) in entries.iter().enumerate() {
        let inner: Vec<_> = entries[at + 1..].iter().take_while(|(l, _)| l > level).collect();
        if !inner.is_empty() {
            let sum: i64 = inner.iter().filter(|(l, _)| *l == level + 1).map(|(_, b)| b).sum();
            assert_eq!(sum, *bytes, "entry {at} of\n{text}");
            checked += 1;
        }
    }
    assert_eq!(entries.iter().filter(|(l, _)| *l == 0).map(|(_, b)| b).sum::<i64>(), total, "{text}");
    checked
}

#[test]
fn the_text_tree_sums_at_every_level() {
    let mut dice = Random(99);
    let (mut checked, mut small) = (0, 0);
    for round in 0..200 {
        let profile = hostile(&mut dice);
        // Whole figures are printed below 1 KiB.
        assert!(whole(&profile).0 < 1024);
        let text = text_of(|out| text::write(out, &view(&profile), GroupBy::Site, round % 2 == 0));
        checked += check_tree(&text, whole(&profile).0);
        small += usize::from(text.contains("smaller callee"));
        let entries = text.lines().skip_while(|l| !l.contains("outermost first")).take_while(|l| !l.starts_with("gap"));
        let widest = entries.map(|l| l.chars().count()).max();
        assert!(widest <= Some(text::WIDTH), "{widest:?}: {text}");
    }
    assert!(checked > 1000 && small > 20, "{checked} {small}");
}

#[test]
fn tables_sum_to_the_whole() {
    let profile = shop(100);
    for by in GroupBy::ALL.into_iter().filter(|by| *by != GroupBy::Site) {
        let text = text_of(|out| {
            text::write(out, &View::new(&profile, Some("live"), Weight::Calls).expect("calls"), by, false)
        });
        let amounts = text.lines().skip(4).filter_map(|l| l.get(..10)?.trim().replace(',', "").parse::<i64>().ok());
        let amounts: Vec<i64> = amounts.collect();
        let (sum, lines) = amounts.split_last().expect("a sum");
        assert_eq!(lines.iter().sum::<i64>(), *sum, "{text}");
        assert_eq!(*sum, whole(&profile).1);
    }
}

#[test]
fn folded_stacks_keep_the_total_and_the_format() {
    let mut dice = Random(12);
    let mut commas = 0;
    for _ in 0..50 {
        let profile = hostile(&mut dice);
        let folded = text_of(|out| folded::write(out, &view(&profile)));
        let mut sum = 0;
        for line in folded.lines() {
            let (stack, amount) = line.rsplit_once(' ').expect("an amount");
            sum += amount.parse::<i64>().expect("a number");
            assert!(stack.split(';').all(|frame| !frame.is_empty()), "{line}");
            commas += usize::from(stack.contains("[u8, 4]"));
        }
        assert_eq!(sum, whole(&profile).0);
    }
    assert!(commas > 0);
    let folded = text_of(|out| folded::write(out, &view(&shop(100))));
    let inflate = folded.lines().find(|l| l.contains("updatewindow")).expect("the biggest");
    assert_eq!(
        inflate,
        "clone3;start_thread;thread_native_entry;Thread::call_run;JavaThread::thread_main_inner;JavaCalls::call_helper;\
         java.lang.Thread.run;org.acme.shop.Worker.run;org.acme.shop.Images.scale;java.util.zip.Inflater.<init>;\
         java.util.zip.Inflater.init;Java_java_util_zip_Inflater_init;inflateInit2_;updatewindow 471859200"
    );
}

/// What a profile holds, as a pprof reader should see it.
fn expected(profile: &Profile) -> Vec<pprof_reader::Sample> {
    let mut samples = vec![];
    for (entry, values) in profile.entries() {
        let frames = profile.frames_of(entry.stack).iter().map(|id| {
            let (frame, function) = (profile.frame_at(*id), profile.function_at(profile.function_of(*id)));
            let named = function.named || frame.module.is_none();
            let name = if named {
                plimsoll_report::words::printable(&function.name)
            } else {
                format!("{:#x}", frame.address.0.saturating_sub(1))
            };
            (name, if named { i64::from(frame.line.unwrap_or(0)) } else { 0 })
        });
        let label = |key: &str, id: Option<plimsoll_profiles::profile::NameId>| {
            id.map(|id| (key.to_string(), plimsoll_report::words::printable(profile.name_at(id))))
        };
        let labels = [label("category", entry.labels.category), label("thread", entry.labels.thread)];
        samples.push(pprof_reader::Sample {
            frames: frames.collect(),
            values: values.iter().map(|v| v.amount).collect(),
            labels: labels.into_iter().flatten().collect(),
        });
    }
    samples.sort();
    samples
}

#[test]
fn pprof_says_what_the_profile_says() {
    let mut dice = Random(8);
    let mut profiles: Vec<Profile> = (0..20).map(|_| hostile(&mut dice)).collect();
    profiles.push(shop(100));
    for profile in &profiles {
        let mut gz = vec![];
        pprof::write(&mut gz, &view(profile)).expect("written");
        let mut read = pprof_reader::read(&gz);
        read.samples.sort();
        assert_eq!(read.samples, expected(profile));
        assert_eq!(read.default_type, "live_space");
    }
    let mut gz = vec![];
    pprof::write(&mut gz, &View::new(&profiles[20], Some("cumulative"), Weight::Calls).expect("calls"))
        .expect("written");
    let read = pprof_reader::read(&gz);
    let types: Vec<(&str, &str)> = read.types.iter().map(|(t, u)| (t.as_str(), u.as_str())).collect();
    let bytes = |t| (t, "bytes");
    let count = |t| (t, "count");
    assert_eq!(
        types,
        [bytes("live_space"), count("live_objects"), bytes("peak_space"), bytes("alloc_space"), count("alloc_objects")]
    );
    assert_eq!((read.default_type.as_str(), read.time_ns), ("alloc_objects", 1_795_211_234_567_000_000));
    let jvm = read.mappings.iter().find(|m| m.0.ends_with("libjvm.so")).expect("libjvm");
    assert_eq!((jvm.1.as_str(), jvm.2, jvm.3), ("01".repeat(20).as_str(), 0x7f10_0000_0000, 0x7f10_0140_0000));
    // Some of its frames have no name: pprof should look for its symbols.
    assert!(!jvm.4 && read.mappings.iter().any(|m| m.4));
    let inlined = read.locations.iter().filter(|l| l.all(4).len() == 2).count();
    assert_eq!(inlined, 1, "inline_alloc shares a location with the method it was compiled into");
}

/// In a recording, each native frame may name another module. A search of all modules for each takes minutes here.
#[test]
fn pprof_of_many_modules_takes_time_in_proportion() {
    const MODULES: u64 = 60_000;
    let mut profile = Profile::new(vec![Column::bytes("live")]);
    let frames: Vec<FrameId> = (1..=MODULES)
        .map(|n| {
            let module = Some(profile.module(Module { path: format!("/lib/{n}.so"), ..Module::default() }));
            let (function, kind) = (Some("f".to_string()), FrameOrigin::Native);
            profile.frame(Frame { function, module, address: Avma(n), kind, ..Frame::default() })
        })
        .collect();
    for frames in frames.chunks(1000) {
        let stack = profile.stack(frames);
        profile.add(stack, Labels::default(), &[Value::exact(1)]);
    }
    let mut gz = vec![];
    pprof::write(&mut gz, &view(&profile)).expect("written");
    let mut raw = vec![];
    flate2::read::GzDecoder::new(gz.as_slice()).read_to_end(&mut raw).expect("gzip");
    let last = format!("/lib/{MODULES}.so");
    assert!(raw.windows(last.len()).any(|window| window == last.as_bytes()));
}

#[test]
fn a_difference_in_other_formats_has_both_moments_and_the_growth() {
    let (before, after) = (shop(100), shop(140));
    let diff = ProfileDiff::new((&before, 0), (&after, 0));
    let sums = [&before, &after].map(|of| of.total()[0].amount);
    assert!(sums[0] < sums[1]);
    let folded = text_of(|out| (folded::EXPORTER.diff)(out, &diff, false));
    let column = |of: &str, at: usize| of.rsplit(' ').nth(at).and_then(|n| n.parse::<i64>().ok()).expect("an amount");
    for (at, sum) in [(1, sums[0]), (0, sums[1])] {
        assert_eq!(folded.lines().map(|line| column(line, at)).sum::<i64>(), sum, "{folded}");
    }
    let mut gz = vec![];
    (pprof::EXPORTER.diff)(&mut gz, &diff, false).expect("written");
    let read = pprof_reader::read(&gz);
    let types: Vec<&str> = read.types.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        (types.as_slice(), &*read.default_type),
        (&["before_space", "after_space", "growth_space"][..], "growth_space")
    );
    let sum = |at: usize| read.samples.iter().map(|sample| sample.values[at]).sum::<i64>();
    assert_eq!([sum(0), sum(1), sum(2)], [sums[0], sums[1], sums[1] - sums[0]]);
}

#[test]
fn go_tool_pprof_opens_it() {
    let path = scratch().join("shop.pb.gz");
    let mut gz = vec![];
    pprof::write(&mut gz, &view(&shop(100))).expect("written");
    std::fs::write(&path, gz).expect("written");
    let pprof = |arguments: &[&str]| {
        let mut command = Command::new("go");
        command.args(["tool", "pprof", "-symbolize=none"]).args(arguments).arg(&path);
        let output = command.env("PPROF_TMPDIR", scratch()).stdin(Stdio::null()).output();
        output.ok().map(|o| {
            assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
            String::from_utf8_lossy(&o.stdout).into_owned()
        })
    };
    let Some(top) = pprof(&["-top", "-cum", "-unit=MB"]) else {
        eprintln!("SKIPPED: there is no go here");
        return;
    };
    assert!(top.contains("Type: live_space") && top.contains("675.84MB total"), "{top}");
    let line = |text: &str, name: &str| text.lines().find(|l| l.trim_end().ends_with(name)).map(str::to_string);
    assert!(line(&top, " updatewindow").is_some_and(|l| l.trim_start().starts_with("450MB")), "{top}");
    let objects = pprof(&["-top", "-sample_index=live_objects"]).expect("go");
    assert!(line(&objects, " updatewindow").is_some_and(|l| l.trim_start().starts_with("6400")), "{objects}");
    let tags = pprof(&["-tags"]).expect("go");
    assert!(tags.contains("worker-1") && tags.contains("Direct buffers"), "{tags}");
    let peek = pprof(&["-peek=inline_alloc"]).expect("go");
    assert!(peek.contains("(inline)"), "{peek}");
}

/// A site's frames, by its indices into the document's table.
fn frames_of<'a>(json: &'a serde_json::Value, site: &serde_json::Value) -> Vec<&'a serde_json::Value> {
    let indexes = site["stack"].as_array().expect("a stack").iter();
    indexes.map(|index| &json["frames"][index.as_u64().expect("an index") as usize]).collect()
}

#[test]
fn json_has_each_site_with_its_figures() {
    let profile = shop(100);
    let text = text_of(|out| json::write(out, &view(&profile)));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["schema"], "plimsoll.profile/2");
    let sites = json["sites"].as_array().expect("sites");
    assert_eq!(sites.len(), profile.entries().len());
    for (at, column) in
        ["live_bytes", "live_count", "peak_bytes", "cumulative_bytes", "cumulative_count"].iter().enumerate()
    {
        let sum: i64 = sites.iter().map(|s| s[*column].as_i64().expect("a figure")).sum();
        assert_eq!(sum, profile.total()[at].amount);
        assert_eq!(json["total"][*column], sum);
    }
    let first = &sites[0];
    assert_eq!(first["thread"], "worker-1");
    assert_eq!(first["category"], "zlib");
    assert_eq!(first["error_bytes"], (1.96 * 3e13f64.sqrt()).ceil() as u64);
    let frames = frames_of(&json, first);
    assert_eq!(frames.len(), 14);
    assert_eq!(frames[0]["function"], "updatewindow");
    assert_eq!(frames[0]["module"], "/usr/lib/jvm/lib/libzip.so");
    assert_eq!(frames[5]["kind"], "java");
    assert_eq!((&frames[6]["file"], &frames[6]["line"]), (&"Worker.java".into(), &40.into()));
}

#[test]
fn a_focus_says_what_is_elsewhere() {
    let profile = shop(100);
    let focus = Focus::new(r"Upload\.").expect("a pattern");
    let focused = profile.focus(&focus);
    let below = view(&focused.profile).focused(r"Upload\.", &focused.left_out);
    let text = text_of(|out| text::write(out, &below, GroupBy::Site, false));
    assert!(text.contains("live: 180 MiB in 90 blocks\nbelow /Upload\\./; 496 MiB are elsewhere"), "{text}");
    assert!(text.contains("100.0 %  ████████  org.acme.shop.Upload.read:132 › java.nio"), "{text}");
    let svg = text_of(|out| svg::write(out, &below));
    assert!(svg.contains("496 MiB are elsewhere"), "{svg}");
}

#[test]
fn a_difference_names_new_stacks_first() {
    let (before, after) = (shop(100), shop(160));
    let changes = ProfileDiff::new((&before, 0), (&after, 0));
    let text = text_of(|out| diff::write(out, &changes, false));
    let (new, grew) = (text.find("new: 1 stack, +21.0 MiB"), text.find("grew: 1 site, +186 MiB"));
    assert!(new.is_some() && grew > new, "{text}");
    assert!(text.contains("malloc_hook  (libc.so.6)\n              com.sun.jna.Native.malloc\n"), "{text}");
    let svg = text_of(|out| svg::diff(out, &changes));
    let boxes = boxes(&svg);
    let hook = boxes.iter().find(|b| b.3.starts_with("malloc_hook\n")).expect("the new one");
    assert!(hook.3.contains("0 B → 21.0 MiB (+21.0 MiB)"), "{}", hook.3);
    let json: serde_json::Value = serde_json::from_str(&text_of(|out| json::diff(out, &changes))).expect("JSON");
    assert_eq!(json["sites"][0]["verdict"], "new");
    assert_eq!(frames_of(&json, &json["sites"][0])[0]["function"], "malloc_hook");
    assert_eq!(json["change"], whole(&after).0 - whole(&before).0);
    assert_eq!(
        (&json["counts"]["new"], &json["counts"]["grew"], &json["counts"]["same"]),
        (&1.into(), &1.into(), &43.into())
    );
}

/// Of 200 MiB, 4 KiB are noise in the list, so they are in the picture.
#[test]
fn a_picture_has_the_noise_of_its_list() {
    let profile = |more: u64| {
        let mut shop = Shop::new();
        shop.book(&["C:main", "C:steady"], "main", "Other", (200 << 20) + more, 1, 0.0);
        shop.book(&["C:other"], "main", "Other", (1 << 20) + more * 1000, 1, 0.0);
        shop.profile
    };
    let (before, after) = (profile(0), profile(4096));
    let changes = ProfileDiff::new((&before, 0), (&after, 0));
    let svg = text_of(|out| svg::diff(out, &changes));
    for (name, class) in [("main", "noise"), ("steady", "noise"), ("other", "g4")] {
        assert!(svg.contains(&format!("<g class=\"f {class}\"><title>{name}\n")), "{name}: {svg}");
    }
    let json: serde_json::Value = serde_json::from_str(&text_of(|out| json::diff(out, &changes))).expect("JSON");
    let noise = json["sites"].as_array().expect("sites").iter().find(|site| site["verdict"] == "noise").expect("noise");
    assert_eq!((&noise["change"], noise["noise_up_to"].as_u64() >= Some(4096)), (&4096.into(), true));
}

/// The distance of ranges isn't an error, so no ± stands behind it.
#[test]
fn the_picture_of_several_runs_has_no_errors() {
    let run = |live: u64| {
        let mut shop = Shop::new();
        shop.book(&["C:main", "C:steady"], "main", "Other", live << 20, 1, 0.0);
        shop.profile
    };
    let runs = [[1, 2, 1], [9, 7, 8]].map(|side| side.map(run));
    let [before, after] = runs.each_ref().map(|side| side.iter().map(|run| (run, 0)).collect::<Vec<_>>());
    let changes = ProfileDiff::of_runs(&before, &after);
    assert!(changes.sites[0].bound > 0, "{:?}", changes.sites);
    let svg = text_of(|out| svg::diff(out, &changes));
    assert!(!svg.contains('±') && svg.contains("<title>steady\n1.33 MiB → 8.00 MiB (+6.67 MiB)\n"), "{svg}");
    assert!(!svg.contains("noise of estimates"), "{svg}");
}

#[test]
fn an_empty_profile_is_not_an_error() {
    let profile = Profile::new(vec![Column::bytes("live")]);
    let diff = ProfileDiff::new((&profile, 0), (&profile, 0));
    parsed(&text_of(|out| svg::write(out, &view(&profile))));
    parsed(&text_of(|out| svg::diff(out, &diff)));
    for by in GroupBy::ALL {
        assert!(text_of(|out| text::write(out, &view(&profile), by, false)).contains("live: 0 B"));
    }
    assert_eq!(text_of(|out| folded::write(out, &view(&profile))), "");
    text_of(|out| html::write(out, &view(&profile)));
    let refused = View::new(&profile, None, Weight::Calls).err().expect("no calls");
    assert_eq!(refused, "nothing here is counted in calls");
    let refused = View::new(&profile, Some("peak"), Weight::Bytes).err().expect("no peak");
    assert_eq!(refused, "there is no 'peak' in bytes here, only live");
}

/// Texts are compared with goldens (BLESS=1 takes new ones). The test leaves all formats in target/tmp/profile, to look
/// at.
#[test]
fn every_format_of_one_profile() {
    let (before, after) = (shop(100), shop(160));
    let changes = ProfileDiff::new((&before, 0), (&after, 0));
    let lines = |by| text_of(|out| text::write(out, &view(&before), by, false));
    for (name, bytes) in [
        ("profile-tree.txt", lines(GroupBy::Site)),
        ("profile-by-category.txt", lines(GroupBy::Category)),
        ("profile-by-package.txt", lines(GroupBy::Package)),
        ("profile-diff.txt", text_of(|out| diff::write(out, &changes, false))),
        ("profile.folded", text_of(|out| folded::write(out, &view(&before)))),
        ("shop.svg", text_of(|out| svg::write(out, &view(&before)))),
        ("shop.html", text_of(|out| html::write(out, &view(&before)))),
        ("diff.svg", text_of(|out| svg::diff(out, &changes))),
        ("diff.html", text_of(|out| html::diff(out, &changes))),
    ] {
        std::fs::write(scratch().join(name), &bytes).expect("written");
        // Other tests check pictures and pages: their layout changes often.
        if name.ends_with(".svg") || name.ends_with(".html") {
            continue;
        }
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(name);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &bytes).expect("written");
        }
        let want = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}; BLESS=1 makes it"));
        assert!(want == bytes, "{name} differs; BLESS=1 takes the new one:\n{bytes}");
    }
}
