//! Attach to programs under seccomp filters: a container's default, one that kills for each call that is not expected,
//! and those that don't let the tracker in. fixtures/c/filter.h has the language of the rules.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::environments::{can_contain, contained, nothing_executable};
use crate::kit::{Java as Program, can_read_filters, fixtures, jdks, launcher, plimsoll, scratch};
use crate::native::{Redis, books, compiled, compiled_from, done, killed_at_any_step, live_bytes, own, start, stop};
use crate::{category, counter};

#[path = "../../src/attach/native/filter/calls.rs"]
mod calls;

const ALLOW: &str = "7fff0000";
const KILL: &str = "80000000";
const EPERM: u32 = 0x5_0001;
const ENOSYS: u32 = 0x5_0026;

/// Docker's default list as of version 27, for a container without capabilities of its own: these calls fail with EPERM
/// (clone3 with ENOSYS, clone with EPERM only for new namespaces), and so do those that are newer than the list.
fn of_docker() -> Vec<String> {
    let refused = [
        134, 136, 139, 153, 154, 155, 156, 159, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, 173, 174, 175, 176,
        177, 178, 179, 180, 212, 227, 237, 238, 239, 246, 248, 249, 250, 256, 272, 279, 298, 300, 303, 304, 305, 308,
        312, 313, 320, 321, 323, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 443,
    ];
    let mut rules = vec![format!("435={ENOSYS:x}"), format!("56:0&7e020000={EPERM:x}")];
    rules.extend(refused.map(|number| format!("{number}={EPERM:x}")));
    rules.extend([format!("0-334={ALLOW}"), format!("424-457={ALLOW}"), format!("{EPERM:x}")]);
    rules
}

/// Attach, books, detach, twice.
fn is_entered(mut program: Program, file: &Path, context: &str) {
    for sites in ["exact", "sampled"] {
        program.done(&["attach", &program.pid(), "--sites", sites]);
        assert_eq!(program.send("turn"), "turned", "{context}");
        let log = stop(&mut program);
        let report = program.report();
        assert_eq!(category(&report, &own(file)), (log.blocks, log.bytes), "{context}");
        assert!(log.blocks > 0 && counter(&report, "faults") == 0, "{context}");
        assert_eq!(log.interrupted, 0, "{context}: the stop ended waits of the program");
        assert_eq!(program.send("go"), "gone");
        program.done(&["detach", &program.pid()]);
    }
    assert_eq!((program.send("turn").as_str(), program.stderr().as_str()), ("turned", ""), "{context}");
}

fn under(launcher: &Path, rules: &[String], program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(launcher);
    command.args(rules).arg("--").arg(program).args(arguments);
    command
}

#[test]
fn under_dockers_filter_the_books_are_exact() {
    if !can_read_filters("Docker's filter") {
        return;
    }
    let (launcher, file) = (launcher(), compiled(&[]));
    let program = Program::start(under(&launcher, &of_docker(), &file, &["2"]), "filtered-docker");
    is_entered(program, &file, "Docker's filter");
    // Two filters, one of which alone allows everything.
    let mut rules = of_docker();
    rules.extend(["--".into(), launcher.display().to_string(), ALLOW.into()]);
    let program = Program::start(under(&launcher, &rules, &file, &["2"]), "filtered-twice");
    is_entered(program, &file, "two filters");

    let redis = Redis::start_under("redis-filtered", under(&launcher, &of_docker(), Path::new("redis-server"), &[]));
    let status = fs::read_to_string(format!("/proc/{}/status", redis.server.id())).expect("status");
    assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
    let pid = redis.server.id().to_string();
    let used = || redis.figure("memory", "used_memory:");
    let before = used();
    done(&["attach", &pid, "--sites", "exact"]);
    let script = "for i=1,20000 do redis.call('set', 'key:'..i, string.rep('v', i % 700)) end return 1";
    assert_eq!(redis.command(&["eval", script, "0"]).trim(), "1");
    let (own, ours) = (used() - before, live_bytes(&books(&pid)));
    assert!(
        own > 5 << 20 && ours.abs_diff(own) < own / 20,
        "redis counts {own} B since the attach, the books {ours} B"
    );
    done(&["detach", &pid]);
    assert_eq!(redis.command(&["dbsize"]).trim(), "20000", "it serves on");
}

/// What the fixture calls itself: read, write, its waits, its sockets, malloc's mremap, exit_group.
const OWN: [i64; 15] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_futex,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd2,
    libc::SYS_clock_nanosleep,
    libc::SYS_socketpair,
    libc::SYS_setsockopt,
    libc::SYS_recvfrom,
    libc::SYS_mremap,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_exit_group,
];

/// A filter that kills for every call, and for every known argument, that is not in the table of an attach.
fn only_the_table() -> Vec<String> {
    only(calls::all())
}

fn only(table: impl Iterator<Item = calls::Call>) -> Vec<String> {
    let rule = |call: calls::Call| {
        let known = call.arguments.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?)));
        let conditions: String = known.map(|(at, value)| format!(":{at}@{:x}", value as u32)).collect();
        format!("{}{conditions}={ALLOW}", call.number)
    };
    let own = OWN.into_iter().map(|number| format!("{number}={ALLOW}"));
    table.map(rule).chain(own).chain([KILL.to_owned()]).collect()
}

#[test]
fn no_call_is_made_that_is_not_in_the_table() {
    if !can_read_filters("the table of calls") {
        return;
    }
    let file = compiled(&[]);
    let arguments = |rules: &[String]| [vec!["3".to_owned()], rules.to_vec()].concat();
    let start = |rules: &[String], name: &str| {
        let arguments = arguments(rules);
        start(name, &file, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    is_entered(start(&only_the_table(), "filtered-table"), &file, "the table");
    // clone3 fails, so glibc calls clone. Each call whose failure plimsoll handles fails, too.
    let mut rules = vec![format!("435={ENOSYS:x}")];
    for call in calls::all().filter(|call| call.need == calls::Need::MayFail) {
        let known = call.arguments.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?)));
        let conditions: String = known.map(|(at, value)| format!(":{at}@{:x}", value as u32)).collect();
        rules.push(format!("{}{conditions}={EPERM:x}", call.number));
    }
    rules.extend(only_the_table());
    is_entered(start(&rules, "filtered-least"), &file, "what may fail fails");

    if !can_contain("the table of calls, from memory") {
        return;
    }
    let mut command = Command::new(&file);
    command.args(arguments(&only_the_table()));
    let mut command = contained(&[], &nothing_executable(), &command);
    command.env("HOME", "/nowhere").env_remove("XDG_CACHE_HOME").env_remove("PLIMSOLL_DIR");
    let program = Program::start_as_it_is(command, "filtered-memory");
    let maps = fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("maps");
    assert!(!maps.contains("memfd:"));
    is_entered(program, &file, "from memory");
}

/// Each allocator gives memory back in a program that is killed for any call that isn't in the table of releases.
#[test]
fn a_release_makes_no_call_that_is_not_in_its_table() {
    if !can_read_filters("the table of calls, for a release") {
        return;
    }
    let file = compiled_from("filtered_idle", &[]);
    let rules = only(calls::release());
    let libraries =
        ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"].map(|name| format!("/usr/lib/x86_64-linux-gnu/{name}"));
    for (library, step) in [(None, "trim"), (Some(&libraries[0]), "purge"), (Some(&libraries[1]), "purge")] {
        let mut command = Command::new(&file);
        command.args(&rules).envs(library.map(|library| ("LD_PRELOAD", library)));
        let mut program = Program::start(command, "filtered-release");
        let resident = |pid: &str| {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
            let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a sum");
            line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
        };
        let before = resident(&program.pid());
        done(&["try", "--pid", &program.pid(), "--with", step, "--idle", "0.1"]);
        let after = resident(&program.pid());
        assert!(after + (16 << 10) < before, "{library:?}: {before} KiB, then {after}");
        assert_eq!((program.send("").as_str(), program.stderr().as_str()), ("here", ""), "{library:?}");
    }
}

/// As `native::plimsoll_is_killed_at_any_step`, but each call that is not in the table would end the program. Here all
/// threads stop once. If plimsoll is killed before it has set a thread to make its call again, a wait that can't be
/// restarted ends with EINTR: two threads have such a wait.
#[test]
#[ignore = "full: a hundred kills"]
fn plimsoll_is_killed_at_any_step_under_a_filter() {
    if !can_read_filters("killed under a filter") {
        return;
    }
    let rules = only_the_table();
    let arguments: Vec<&str> = ["2"].into_iter().chain(rules.iter().map(String::as_str)).collect();
    let mut program = start("filtered-killed", &compiled(&[]), &arguments);
    let interrupted = killed_at_any_step(&mut program, 1);
    assert!(interrupted <= 4, "{interrupted} waits ended");
}

/// The table has each call that the tracker's sources name.
#[test]
fn the_table_has_every_call_of_the_tracker() {
    let sources = fixtures().join("../crates/tracker/src/sys");
    let names: Vec<&str> = calls::all().map(|call| call.name).collect();
    let (mut seen, mut left) = (0, vec![sources]);
    while let Some(file) = left.pop() {
        if file.is_dir() {
            left.extend(fs::read_dir(&file).expect("a folder").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        for name in text.split("nr::").skip(1) {
            let name: String = name.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            // Only aarch64 has it instead of access.
            if !name.is_empty() && name != "FACCESSAT" {
                assert!(names.contains(&name.to_lowercase().as_str()), "{}: {name}", file.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "only {seen} calls found");
}

fn refused(pid: &str, words: &[&str]) {
    let output = plimsoll(&["attach", pid]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
    assert!(words.iter().all(|word| stderr.contains(word)), "{words:?}: {stderr}");
}

/// Nothing is called that a filter would kill or refuse: the sentence names the first such call. All waits go on, also
/// where restart_syscall(2) would kill.
#[test]
fn what_a_filter_does_not_allow_is_not_called() {
    if !can_read_filters("refusing filters") {
        return;
    }
    let file = compiled(&[]);
    for (rules, call) in [
        (&["56=80000000", "435=50026"][..], "clone,"),
        (&["435=50001"], "clone3,"),
        (&["10:2&4=80000000"], "mprotect with PROT_EXEC,"),
        (&["9:2&4=50001"], "mmap with PROT_EXEC,"),
        (&["219=80000000"], "restart_syscall,"),
        (&["28:2@17=80000000"], "madvise,"),
        // A tracer, a supervisor or SIGSYS instead of the call.
        (&["77=7ff00000"], "ftruncate,"),
        (&["77=7fc00000"], "ftruncate,"),
        (&["77=30000"], "ftruncate,"),
        // Whether it kills depends on an address.
        (&["73=50001", "11:0&ff0=80000000"], "munmap,"),
        (&["thread", "257=80000000"], "openat,"),
        // It could go on after a refused exec, but not after the tracker's call before it.
        (&["59=50001", "21=80000000"], "access,"),
    ] {
        // Under the first two the program itself can't start a thread.
        let workers = if call.starts_with("clone") { "0" } else { "1" };
        let arguments = [&[workers], rules, &[ALLOW]].concat();
        let mut program = start("filtered-refused", &file, &arguments);
        refused(
            &program.pid(),
            &[&program.pid(), &format!("does not allow {call}"), "Start it with: ", "plimsoll run"],
        );
        let log = stop(&mut program);
        assert_eq!(log.interrupted, 0, "{rules:?}");
        assert!(program.send("go") == "gone" && program.send("turn") == "turned" && program.stderr().is_empty());
        assert!(program.is_untouched(), "{rules:?}");
    }
    // Nothing that is needed is forbidden: a filter of one thread only, calls that nobody makes, a call that is logged.
    for rules in [&["thread", ALLOW][..], &["30=80000000", "31=80000000", ALLOW], &["9=7ffc0000", ALLOW]] {
        is_entered(start("filtered-one", &file, &[&["1"], rules].concat()), &file, &format!("{rules:?}"));
    }
    // Without the right to read a filter.
    let program = start("filtered-hidden", &file, &["1", ALLOW]);
    let without = [
        vec!["setpriv".to_owned(), "--bounding-set=-sys_admin".into()],
        vec![launcher().display().to_string(), ALLOW.into(), "--".into()],
    ];
    for wrap in without {
        let mut command = Command::new(&wrap[0]);
        command.args(&wrap[1..]).arg(crate::kit::PLIMSOLL).args(["attach", &program.pid()]);
        let output = command.env("XDG_CACHE_HOME", scratch("cache")).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
        assert!(stderr.contains("CAP_SYS_ADMIN") && stderr.contains("plimsoll attach"), "{stderr}");
    }
    assert!(program.is_untouched());
}

/// A VM loads the tracker itself, and a call that its filter forbids could end it. So plimsoll first looks up the
/// tracker's calls in the filter.
#[test]
fn a_vm_whose_filter_forbids_a_call_of_the_tracker_is_refused() {
    if !can_read_filters("a VM under a filter") {
        return;
    }
    let jdk = jdks().last().expect("a JDK");
    let start = |rules: &[&str], name: &str| {
        let mut command = Command::new(launcher());
        let rounds = jdk.java(&[], &["Rounds"]);
        command.args(rules).arg("--").arg(rounds.get_program()).args(rounds.get_args());
        Program::start(command, name)
    };
    let mut java = start(&["296=80000000", ALLOW], "filtered-vm");
    let output = plimsoll(&["attach", &java.pid(), "--yes"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = stderr.lines().last().expect("a sentence");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(last.contains("does not allow pwritev,") && last.contains("plimsoll run"), "{stderr}");
    assert!(java.is_untouched() && java.send("turn") == "turned");
    // Calls that only an attach to a native program makes don't matter: the VM gets no injected thread.
    let mut java = start(&["7:0@0:1@0:2@1=80000000", ALLOW], "filtered-vm-allowed");
    java.done(&["attach", &java.pid(), "--sites", "exact"]);
    assert_eq!(java.send("turn"), "turned");
    java.done(&["detach", &java.pid()]);
    // If plimsoll may not read the filter, it sends its request to the VM all the same.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", crate::kit::PLIMSOLL, "attach", &java.pid(), "--yes"]);
    let output = command.env("XDG_CACHE_HOME", scratch("cache")).output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && stderr.contains("a seccomp filter that can't be read here"), "{stderr}");
    assert_eq!(java.send("turn"), "turned");
}
