//! What holds over musl only. The situations over both C libraries are in the tables of the other files; Debian's
//! musl-gcc compiles them.

use crate::build::compiled;
use crate::kit::{End, Figures, Observed, PLIMSOLL, Situation, fresh_dir, scratch, situation, tidy};
use std::process::Command;

/// A row over musl.
fn row(source: &str) -> Situation {
    situation(source).over_musl()
}

/// The report at the first moment of a program over musl, and what the program printed.
fn first_report(row: &Situation) -> (Figures, String) {
    let dir = fresh_dir(&row.name);
    let seen = Observed::watch(row.command(&compiled(&row.program), Some("exact"), &dir), Some(&dir));
    tidy(&dir);
    let report = seen.moments.first().and_then(|moment| moment.report.clone()).expect("a moment");
    (report.expect("a report"), seen.output)
}

/// musl calls constructors without main's arguments.
#[test]
fn the_command_and_the_allocator_are_known() {
    let row = row("nothing").named("command_over_musl").args(&["one", "two words"]);
    let process = &first_report(&row).0.json["process"];
    let arguments: Vec<&str> =
        process["arguments"].as_array().expect("arguments").iter().skip(1).filter_map(|word| word.as_str()).collect();
    assert_eq!((arguments, process["allocator"].as_str()), (vec!["one", "two words"], Some("musl")));
}

/// The loader is the program then, and has no record of its objects in its own headers.
#[test]
fn a_program_that_its_loader_starts_is_tracked() {
    let row = row("mix").named("mix_by_the_loader_of_musl");
    let (program, dir) = (compiled(&row.program), fresh_dir(&row.name));
    let mut command = Command::new(PLIMSOLL);
    command.args(["run", "--sites", "exact", "--dir"]).arg(&dir).arg("--");
    command.arg(format!("/lib/ld-musl-{}.so.1", std::env::consts::ARCH)).arg(program);
    command.env("XDG_CACHE_HOME", scratch("cache"));
    let seen = Observed::watch(command, Some(&dir));
    let (compared, differences) = seen.books(&dir, || Err("no base".into()));
    assert_eq!((seen.end, compared, differences), (End::Exit(0), 6, vec![]), "{}", seen.errors);
    tidy(&dir);
}

/// gcompat has glibc's functions over musl.
#[test]
fn a_function_of_glibc_works_over_musl() {
    row("mix").named("mix_beside_gcompat").links(&["libgcompat"]).moments(6).run();
}

/// musl adds its own part to the bytes that the program gives; 128 KiB if it gives none.
#[test]
fn stacks_of_threads_lie_where_musl_says() {
    let (figures, output) = first_report(&row("thread_stacks"));
    let threads = figures.json["threads"].as_array().expect("threads");
    let lines: Vec<Vec<u64>> = output
        .lines()
        .filter_map(|line| line.strip_prefix("stack "))
        .map(|line| line.split(' ').map(|word| word.parse().expect("a number")).collect())
        .collect();
    assert_eq!(lines.len(), 3, "{output}");
    for line in lines {
        let &[tid, low, high, guard] = line.as_slice() else { panic!("{line:?}") };
        let thread = threads.iter().find(|thread| thread["tid"] == tid).expect("the thread");
        let figure = |name: &str| thread[name].as_u64().expect("a number");
        assert_eq!((figure("stack_low"), figure("guard_bytes")), (low, guard), "{thread}");
        // The thread's descriptor, its TLS and its specific data lie above.
        assert!((0..8192).contains(&(figure("stack_high") - high)), "{thread}: {high}");
    }
}
