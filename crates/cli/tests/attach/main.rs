//! `plimsoll attach` and `detach` on running JVMs 17, 21 and 25, and on native programs (`native`). Under load over
//! many rounds, the books equal the program's own log and nothing grows. After a detach no call passes a hook. Every
//! refusal is one line.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../../fixtures/child.rs"]
mod child;
mod environments;
mod failures;
mod kit;
// Native programs are entered on this CPU only.
#[cfg(target_arch = "x86_64")]
mod changes_of_user;
#[cfg(target_arch = "x86_64")]
mod filter_kernel;
#[cfg(target_arch = "x86_64")]
mod filtered;
#[cfg(target_arch = "x86_64")]
mod first_thread;
#[cfg(target_arch = "x86_64")]
mod languages;
#[cfg(target_arch = "x86_64")]
mod late;
#[cfg(target_arch = "x86_64")]
mod library_mapped_twice;
#[cfg(target_arch = "x86_64")]
mod list_held;
#[cfg(target_arch = "x86_64")]
mod loading;
#[cfg(target_arch = "x86_64")]
mod locked;
#[cfg(target_arch = "x86_64")]
mod mappings_before;
#[cfg(target_arch = "x86_64")]
mod native;
#[cfg(target_arch = "x86_64")]
mod real_time;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../harness/redis.rs"]
mod redis;
#[cfg(target_arch = "x86_64")]
mod small_stacks;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/stage.rs"]
mod stage;
#[cfg(target_arch = "x86_64")]
mod threads_not_borrowed;
#[cfg(target_arch = "x86_64")]
mod waits_without_eintr;

use child::{Running, wait_until};
use kit::{Java, Log, PLIMSOLL, is_trackers, jdks, plimsoll, scratch};

/// Bytes that a leak must reach before the test looks for it; samples can show it then.
const LEAK: u64 = 8 << 20;

/// Live blocks and requested bytes of a category.
fn category(report: &Value, name: &str) -> (u64, u64) {
    let all = report["categories"].as_array().expect("categories");
    let of =
        |c: &Value| (c["live_count"].as_u64().expect("a number"), c["requested_bytes"].as_u64().expect("a number"));
    all.iter().filter(|c| c["name"] == name).map(of).fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1))
}

fn dump(report: &Value) -> String {
    let all = report["categories"].as_array().expect("categories").iter();
    all.map(|c| format!("\n{} {} {}", c["name"], c["live_count"], c["requested_bytes"])).collect()
}

fn counter(report: &Value, name: &str) -> u64 {
    let counters = report["counters"].as_array().expect("counters");
    counters.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no counter {name}"))["value"]
        .as_u64()
        .expect("a number")
}

/// One round: attach under load, free the earlier blocks, compare. Returns the report.
fn round(java: &mut Java, sites: &str, looks_up: bool) -> (Log, Value) {
    let pid = java.pid();
    java.done(&["attach", &pid, "--sites", sites]);
    if looks_up {
        java.send("lookup");
    }
    assert_eq!(java.send("turn"), "turned");
    let log = java.stop();
    let report = java.report();
    assert_eq!(unsafe_blocks(java, &report, sites, log.unsafe_), log.unsafe_, "Unsafe: {log:?}{}", dump(&report));
    for (name, held) in [("code in no file", log.pointers), ("librounds.so", log.jni)] {
        assert_eq!(category(&report, name), held, "{name}: {log:?}{}", dump(&report));
    }
    // Two blocks for each inflater: libzip allocates the stream, zlib its state.
    assert_eq!(category(&report, "zlib").0, 2 * log.inflaters, "zlib: {log:?}");
    assert_eq!(counter(&report, "unbooked_blocks"), 0);
    assert_eq!(counter(&report, "faults"), 0);
    assert_eq!(counter(&report, "import_words_left"), 0);
    assert_eq!(java.send("go"), "gone");
    (log, report)
}

/// The blocks of Unsafe have their own category if libjvm's symbols name the function. Otherwise they are in the
/// category of the VM's own blocks, and only whole stacks distinguish them. In sampled mode nothing does: then this
/// returns the program's own figure, if the category is large enough for it.
fn unsafe_blocks(java: &Java, report: &Value, sites: &str, printed: (u64, u64)) -> (u64, u64) {
    let (named, unnamed) = (category(report, "Other"), category(report, "libjvm.so"));
    if named.0 > 0 {
        return (named.0 + unnamed.0, named.1 + unnamed.1);
    }
    if sites == "sampled" {
        return (printed.0.min(unnamed.0), printed.1.min(unnamed.1));
    }
    let report = java.done(&["report", &java.pid(), "--by", "site", "--format", "json"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let is_unsafe = |site: &&Value| {
        let mut names = site["frames"].as_array().expect("frames").iter().map(|frame| &frame["function"]);
        names.any(|name| name.as_str().is_some_and(|name| name.contains("Unsafe.allocateMemory0")))
    };
    let of = |site: &Value, name: &str| site[name].as_u64().expect("a number");
    let found = report["sites"].as_array().expect("sites").iter().filter(is_unsafe);
    found.fold((0, 0), |sum, s| (sum.0 + of(s, "live_count"), sum.1 + of(s, "requested_bytes")))
}

/// What must not grow over the rounds: the tracker's mappings and its own memory.
fn held(java: &Java, report: &Value) -> [u64; 3] {
    let maps = java.mappings();
    let own = maps.lines().filter(|line| is_trackers(line)).count() as u64;
    [own, counter(report, "own_private_bytes"), counter(report, "own_reserved_bytes")]
}

/// The slots of ended threads are reused: as many threads, started at once, take them. The number of slots alone proves
/// nothing: on a busy machine several threads end at the same time, each in its own slot. If each round, or every
/// tenth, left a slot behind, the sum would exceed the VM's few short-lived threads.
fn slots_are_reused(java: &mut Java) {
    // No other threads start meanwhile.
    java.stop();
    let gone = |java: &Java| -> Vec<u64> {
        let report = java.report();
        let slots = report["threads"].as_array().expect("threads").iter().map(|t| t["tid"].as_u64().expect("a number"));
        let slots: Vec<u64> = slots.collect();
        let tasks = fs::read_dir(format!("/proc/{}/task", java.child.id())).expect("threads").flatten();
        let tasks: BTreeSet<u64> = tasks.filter_map(|t| t.file_name().to_str()?.parse().ok()).collect();
        let live: Vec<u64> = slots.iter().copied().filter(|tid| tasks.contains(tid)).collect();
        assert_eq!(live.len(), live.iter().collect::<BTreeSet<_>>().len(), "a slot each: {slots:?}");
        slots.into_iter().filter(|tid| !tasks.contains(tid)).collect()
    };
    let mut left = gone(java);
    // The second pass is for threads that were still ending.
    for _ in 0..2 {
        assert_eq!(java.send(&format!("threads {}", left.len())), "started");
        println!("exercised: {} slots of threads that are gone", left.len());
        left = gone(java);
    }
    assert!(left.len() <= 6, "slots of threads that are gone, and of no use to new ones: {left:?}");
    assert_eq!(java.send("go"), "gone");
}

/// The targets of the VM's file descriptors. It opens more of them for a moment, for example during an attach.
fn descriptors(java: &Java) -> Vec<String> {
    let list = fs::read_dir(format!("/proc/{}/fd", java.child.id())).expect("descriptors").flatten();
    let mut to: Vec<_> = list.filter_map(|e| Some(fs::read_link(e.path()).ok()?.display().to_string())).collect();
    to.sort();
    to
}

/// Only the books are compared: growth shows only over many rounds.
#[test]
fn rounds_under_load_lose_nothing() {
    for jdk in jdks() {
        rounds(jdk, 6);
    }
}

#[test]
#[ignore = "full: 100 rounds; make test has 6 of them"]
fn a_hundred_rounds_under_load_lose_and_leak_nothing() {
    for jdk in jdks() {
        rounds(jdk, 100);
    }
}

fn rounds(jdk: &kit::Jdk, rounds: usize) {
    let mut java = jdk.start("rounds", &[]);
    let (mut exercised, mut settled, mut open) = (0, [0; 3], vec![]);
    let mut began = String::new();
    let modes = ["sampled", "exact"];
    for n in 0..rounds {
        let (log, report) = round(&mut java, modes[n % 2], n < 3);
        assert_eq!(counter(&report, "attaches"), n as u64 + 1);
        let since = report["process"]["since"].as_str().expect("a moment").to_owned();
        assert!(since > began, "round {n}: books since {since}, the last ones since {began}");
        began = since;
        if n == 1 {
            let text = java.done(&["report", &java.pid()]);
            let is_marked = text.contains("   live   tracked ") && !text.contains("   up ");
            assert!(is_marked && text.contains(&format!(" since {}", began[..19].replace('T', " "))), "{text}");
        }
        assert!(counter(&report, "unknown_frees") > 0, "blocks from before are freed in every round");
        exercised += log.unsafe_.0 + log.pointers.0 + log.inflaters + log.jni.0;
        if n == 2 {
            // From here on a library is loaded while the tracker is attached.
            assert_eq!(java.send(&format!("load {}", jdk.native("rounds").display())), "loaded");
        }
        if n == 30 {
            settled = held(&java, &report);
            open = descriptors(&java);
        }
        if n == 99 {
            let [own, private, reserved] = held(&java, &report);
            let then = settled;
            // A memo that doubles may need one or two more pools of address space: 8 MiB each.
            assert!(own <= then[0] + 2, "mappings: {own}, {} in round 30", then[0]);
            assert!(reserved <= then[2] + (16 << 20), "reserved: {reserved}, {} in round 30", then[2]);
            wait_until(&format!("the descriptors of round 30 at most: {open:?}"), || {
                descriptors(&java).len() <= open.len()
            });
            slots_are_reused(&mut java);
            // A thread's memo doubles after many misses, up to a bound; a leak in each round would be 69 times that.
            assert!(private <= 2 * then[1], "private bytes: {private}, {} in round 30", then[1]);
            assert!(log.jni.0 > 0 && (!jdk.has_foreign_functions() || log.pointers.0 > 0), "{log:?}");
        }
        java.done(&["detach", &java.pid()]);
    }
    assert!(exercised > 100 * rounds as u64, "{exercised} blocks compared");
    println!("exercised: JDK {}: {exercised} live blocks compared in {rounds} rounds", jdk.major);
    let warnings = std::fs::read_to_string(&java.errors).expect("errors");
    let agent = warnings.matches("has been loaded dynamically").count();
    assert_eq!(agent, usize::from(jdk.warns_of_agents()), "the VM warns once: {warnings}");
}

/// After a detach no import table of any object holds a hook, and the pages of the tables have their old protection.
#[test]
fn a_detach_gives_everything_back() {
    for jdk in jdks() {
        let mut java = jdk.start("back", &[]);
        let library = jdk.native("rounds");
        let protections = |java: &Java| -> Vec<String> {
            let maps = java.mappings();
            let objects = maps.lines().filter(|l| l.contains(".so") && !is_trackers(l));
            objects.map(|l| l.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
        };
        java.send(&format!("load {}", library.display()));
        let before = protections(&java);
        let words = hooked_words(&java);
        assert_eq!(words, 0, "before the attach");
        java.done(&["attach", &java.pid()]);
        assert_eq!(protections(&java), before, "attached");
        assert!(hooked_words(&java) > 30, "{} words hold hooks", hooked_words(&java));
        let detached = java.done(&["detach", &java.pid()]);
        assert_eq!(hooked_words(&java), 0, "detached");
        assert_eq!(protections(&java), before, "detached");
        // The program's calls no longer pass a hook, and its books stay as they were.
        let log = java.stop();
        // On a busy machine no thread of the program may have run yet.
        wait_until("the program to go on", || {
            assert_eq!(java.send("go"), "gone");
            std::thread::sleep(Duration::from_millis(50));
            java.stop().operations > log.operations
        });
        let refused = java.plimsoll(&["report", &java.pid()]);
        let sentence = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2));
        assert!(sentence.contains("was detached") && sentence.contains(".seg"), "{sentence}");
        // The same path in both messages, and a remedy that works: the library alone keeps no books.
        let kept = |text: &str| {
            let path = text.split_whitespace().find(|word| word.contains(".seg")).expect("a file");
            path.trim_end_matches('.').to_owned()
        };
        assert_eq!(kept(&sentence), kept(&detached));
        assert!(
            detached.contains("of the tracker's library and tables, ") && detached.contains(": rm /"),
            "{detached}"
        );
        let explained = String::from_utf8_lossy(&java.plimsoll(&["explain", &java.pid()]).stdout).into_owned();
        assert!(!explained.contains(&format!("plimsoll report {} --by site\n", java.pid())), "{explained}");
        let again = java.plimsoll(&["detach", &java.pid()]);
        assert_eq!(again.status.code(), Some(2), "{}", String::from_utf8_lossy(&again.stderr));
    }
}

/// Words in writable or relocated data of loaded objects that point at the tracker's code.
fn hooked_words(java: &Java) -> usize {
    use std::os::unix::fs::FileExt;
    let maps = java.mappings();
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    };
    let own = maps.lines().filter(|l| is_trackers(l) && l.contains("r-xp")).find_map(range);
    let Some(own) = own else { return 0 };
    let memory = std::fs::File::open(format!("/proc/{}/mem", java.child.id())).expect("its memory");
    let objects = maps.lines().filter(|l| l.contains(".so") && !is_trackers(l) && !l.contains("r-x"));
    let mut words = 0;
    for range in objects.filter_map(range) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        if memory.read_exact_at(&mut bytes, range.start).is_ok() {
            let word = |w: &[u8]| u64::from_ne_bytes(w.try_into().expect("eight bytes"));
            words += bytes.chunks_exact(8).filter(|w| own.contains(&word(w))).count();
        }
    }
    words
}

/// `plimsoll attach PID && sleep … && plimsoll diff …` names the Java line that leaks, and what it calls, in each mode.
#[test]
fn a_leak_behind_jni_is_named_by_its_java_line() {
    for jdk in jdks() {
        let java = jdk.leaks();
        for sites in ["sampled", "exact"] {
            let file = |n: u32| scratch(&format!("leak-{}", jdk.major)).join(format!("{sites}-{n}.json"));
            java.done(&["attach", &java.pid(), "--sites", sites, "--sample", "65536"]);
            let save = |n: u32| {
                let to = file(n);
                let to = to.to_str().expect("a path");
                java.done(&["report", &java.pid(), "--by", "site", "--format", "json", "-o", to]);
            };
            // Only the library's blocks: the VM's own memory grows as well.
            let leaked = || category(&java.report(), "liborders.so").1;
            save(1);
            let before = leaked();
            wait_until("the leak", || leaked() > before + LEAK);
            save(2);
            let [before, after] = [file(1), file(2)].map(|f| f.to_str().expect("a path").to_string());
            let diff = java.done(&["diff", &before, &after, "--by", "site"]);
            // Only the stack of the program that grew by megabytes is listed. The second report may also have caught
            // the VM's compiler at work.
            let lines: Vec<&str> = diff.lines().collect();
            let by_mebibytes = |l: &str| {
                let mut words = l.split_whitespace();
                words.next().is_some_and(|n| n.starts_with('+')) && words.next() == Some("MiB")
            };
            // Entries without a stack (blocks of other samples, mappings) have no frames below them.
            let is_frame = |l: &&&str| l.starts_with("        ") && !l.contains('→');
            let is_orders = |i: usize| lines[i + 1..].iter().take_while(is_frame).any(|l| l.contains("Orders."));
            let stacks: Vec<usize> = (3..lines.len()).filter(|&i| by_mebibytes(lines[i]) && is_orders(i)).collect();
            assert_eq!(stacks.len(), 1, "JDK {} {sites}: {diff}", jdk.major);
            let stack: Vec<&str> = lines[stacks[0] + 1..].iter().take(5).map(|l| l.trim()).collect();
            assert_eq!(stack.len(), 5, "JDK {} {sites}: {diff}", jdk.major);
            for (frame, words) in stack.iter().zip([
                &["keep", "orders.c"][..],
                &["Java_Orders_sign", "orders.c"],
                &["Orders.sign"],
                &["Orders.handle", ":9"],
                &["Orders.main", ":23"],
            ]) {
                assert!(words.iter().all(|w| frame.contains(w)), "JDK {} {sites}: {frame} in {diff}", jdk.major);
            }
            java.done(&["detach", &java.pid()]);
        }
    }
}

/// Blocks from before the attach are one line, measured in glibc's arenas. It matches what the program holds of them
/// within the stated error.
#[test]
fn blocks_from_before_are_one_line() {
    for jdk in jdks() {
        let mut java = jdk.start("before", &[]);
        let mut before = java.stop();
        wait_until("the program to hold something", || {
            assert_eq!(java.send("go"), "gone");
            std::thread::sleep(Duration::from_millis(200));
            before = java.stop();
            before.operations >= 5_000
        });
        java.done(&["attach", &java.pid()]);
        // Most of its threads have allocated nothing since the attach.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", java.child.id())).expect("threads").count() as u64;
        let threads = java.report()["process"]["threads"].as_u64().expect("threads");
        assert!(tasks > 8 && threads.abs_diff(tasks) <= 3, "{threads} of {tasks}");
        let line = |java: &Java| {
            let report = java.report();
            let of = |name: &str| report["before_the_attach"][name].as_u64().expect("the line");
            assert_eq!(report["before_the_attach"]["grade"], "derived");
            (of("live_bytes"), of("live_count"), of("error_bytes"))
        };
        let (bytes, blocks, _) = line(&java);
        let held = before.unsafe_.0 + before.pointers.0 + 2 * before.inflaters;
        assert!(blocks > held && bytes > before.unsafe_.1, "{blocks} blocks, {bytes} B; {before:?}");
        // The program frees all its earlier blocks and makes new ones: the line from before shrinks by the freed bytes.
        assert_eq!(java.send("go"), "gone");
        assert_eq!(java.send("turn"), "turned");
        let now = java.stop();
        let (later, fewer, error) = line(&java);
        println!(
            "exercised: JDK {}: {bytes} B in {blocks} blocks, then {later} B ± {error} in {fewer}; {before:?} {now:?}",
            jdk.major
        );
        let gone = before.unsafe_.1 + before.pointers.1;
        // Calls through pointers from before the attach still bypass the hooks: their blocks come on top.
        let slack = error + 2 * now.pointers.1.max(before.pointers.1) + (1 << 20);
        assert!(later + gone <= bytes + slack, "{bytes} B, then {later} B ± {error}, {gone} B were freed");
        assert!(fewer < blocks, "{blocks} blocks, then {fewer}");
    }
}

#[test]
fn what_cannot_be_attached_to_is_refused_in_one_line() {
    let refused = |arguments: &[&str], words: &[&str]| {
        let output = plimsoll(arguments);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
        assert!(words.iter().all(|w| printed.contains(w)), "{arguments:?}: {printed}");
    };
    refused(&["attach", "999999999"], &["no process 999999999"]);
    refused(&["detach", "999999999"], &["no process 999999999"]);
    let mut sleep = Running(Command::new("sleep").arg("3600").spawn().expect("sleep"));
    let pid = sleep.id().to_string();
    refused(&["detach", &pid], &[&pid, "not attached"]);
    sleep.kill().expect("our child");
    // Not reaped: a zombie.
    wait_until("its end", || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z ")));
    refused(&["attach", &pid], &[&pid, "is a zombie"]);
    sleep.wait().expect("our child");
    refused(&["attach", &pid], &["no process"]);

    let jdk = jdks().last().expect("a JDK");
    let java = jdk.start("stopped", &["-XX:+EnableDynamicAgentLoading"]);
    let task = std::fs::read_dir(format!("/proc/{}/task", java.pid())).expect("threads");
    let thread = task.flatten().filter_map(|t| t.file_name().into_string().ok()).find(|t| *t != java.pid());
    refused(&["attach", &thread.expect("a thread")], &["is a thread of process", &java.pid()]);
    java.halt();
    refused(&["attach", &java.pid()], &[&java.pid(), "stopped"]);
    java.signal("-CONT");
    assert!(plimsoll(&["attach", &java.pid()]).status.success(), "it goes on");
    drop(java);
    if jdk.warns_of_agents() {
        let java = jdk.start("shut", &["-XX:-EnableDynamicAgentLoading"]);
        let output = plimsoll(&["attach", &java.pid(), "--yes"]);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && printed.contains("-XX:-EnableDynamicAgentLoading"), "{printed}");
    }
}

/// JDK 17 does not warn of an agent. Without its counters, the version of a VM is unknown, and so is its warning.
#[test]
fn a_warning_is_announced_only_as_far_as_it_is_known() {
    for jdk in jdks() {
        for (flags, known) in [(&[][..], true), (&["-XX:-UsePerfData"][..], false)] {
            let java = jdk.start(&format!("warns-{known}"), flags);
            let output = plimsoll(&["attach", &java.pid(), "--yes"]);
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "JDK {}: {printed}", jdk.major);
            let claims = printed.contains(&format!("JDK 21 and newer: process {} will warn on its", java.pid()));
            assert_eq!(claims, known && jdk.warns_of_agents(), "JDK {}, {flags:?}: {printed}", jdk.major);
            assert_eq!(printed.contains("shows no JDK version"), !known, "JDK {}, {flags:?}: {printed}", jdk.major);
        }
    }
}

/// A process that was started with the tracker: attach changes its sites, detach turns them off, and the books go on.
#[test]
fn what_is_tracked_from_the_start_keeps_its_books() {
    let dir = scratch("segments-from-the-start");
    let mut run = Command::new(PLIMSOLL);
    run.args(["run", "--dir"]).arg(&dir).args(["--", "sleep", "3600"]).env("XDG_CACHE_HOME", scratch("cache"));
    let run = Running(run.spawn().expect("plimsoll"));
    let pid = run.id().to_string();
    let printed = |arguments: &[&str]| {
        let output = Command::new(PLIMSOLL).args(arguments).env("PLIMSOLL_DIR", &dir).output().expect("plimsoll");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &err)
    };
    wait_until("its books", || printed(&["report", &pid]).0 == Some(0));
    let (code, text) = printed(&["attach", &pid, "--sites", "exact"]);
    assert!(code == Some(0) && text.contains("tracked already") && text.contains("exact"), "{text}");
    let (code, text) = printed(&["detach", &pid]);
    assert!(code == Some(0) && text.contains("stays"), "{text}");
    assert_eq!(printed(&["report", &pid]).0, Some(0), "its books go on");
}
