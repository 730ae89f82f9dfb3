//! The same programs over musl, by Debian's musl-gcc. Left out: what musl lacks (pvalloc, dlvsym, execveat, contexts,
//! dlclose, errors of mprotect), and programs that include the kernel's headers, which this compiler doesn't find.

use crate::build::compiled;
use crate::harness::{End, Figures, Observed, PLIMSOLL, Situation, fresh_dir, scratch, situation, tidy};
use crate::situations;
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
fn a_program_that_its_loader_starts() {
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
fn a_function_of_glibc_over_musl() {
    row("mix").named("mix_beside_gcompat").links(&["libgcompat"]).moments(6).run();
}

/// musl adds the guard and its own part to the bytes that the program gives; 128 KiB if it gives none.
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
        assert_eq!((figure("stack_low"), figure("guard_bytes")), (low - guard, guard), "{thread}");
        // The thread's descriptor, its TLS and its specific data lie above.
        assert!((0..8192).contains(&(figure("stack_high") - high)), "{thread}: {high}");
    }
}

situations! {
    mix => row("mix").moments(6);
    realloc_zero => row("realloc_zero").moments(4);
    #[ignore = "full: over glibc in `make test`"]
    realloc_null => row("realloc_null").moments(2);
    realloc_fail => row("realloc_fail").moments(2);
    realloc_moves => row("realloc_moves").moments(22);
    aligned => row("aligned").moments(2);
    reallocarray => row("reallocarray").moments(3);
    libc_callers => row("libc_callers").moments(4);
    malloc_zero => row("malloc_zero").moments(2);
    #[ignore = "full: over glibc in `make test`"]
    malloc_enomem => row("malloc_enomem").moments(4);
    errno_kept => row("errno_kept").moments(2);
    usable_size => row("usable_size").moments(2);
    large_blocks => row("large_blocks").moments(4);
    #[ignore = "full: over glibc in `make test`"]
    longjmp_handler => row("longjmp_handler").moments(2);
    #[cfg(target_arch = "x86_64")]
    #[ignore = "full: over glibc in `make test`"]
    misaligned => row("misaligned").moments(4);
    #[ignore = "full: over glibc in `make test`"]
    key_destructors => row("key_destructors");
    #[ignore = "full: over glibc in `make test`"]
    orphans => row("orphans").moments(4);
    #[ignore = "full: over glibc in `make test`"]
    producer_consumer => row("producer_consumer");
    thread_ends => row("thread_ends");
    threads_sequential => row("threads_sequential").moments(5);
    #[ignore = "full: over glibc in `make test`"]
    threads_at_once => row("threads_at_once").moments(2);
    small_stacks => row("small_stacks");
    // Threads on PTHREAD_STACK_MIN.
    small_contexts => row("small_contexts");
    #[ignore = "full: over glibc in `make test`"]
    detached => row("detached");
    #[ignore = "full: over glibc in `make test`"]
    c11_thread => row("c11_thread");
    fork => row("fork").moments(7);
    #[ignore = "full: over glibc in `make test`"]
    fork_both_go_on => row("fork_both_go_on").moments(7);
    #[ignore = "full: over glibc in `make test`"]
    fork_storm => row("fork_storm").moments(12);
    #[ignore = "full: over glibc in `make test`"]
    fork_threads => row("fork_threads");
    #[ignore = "full: over glibc in `make test`"]
    fork_snapshot => row("fork_snapshot").moments(6);
    #[ignore = "full: over glibc in `make test`"]
    fork_storm_of_threads => row("fork_busy_threads").moments(51);
    fork_nested => row("fork_nested").moments(8);
    #[ignore = "full: over glibc in `make test`"]
    fork_in_handler => row("fork_in_handler").links(&["libbump"]).moments(21);
    fork_execs => row("fork_execs");
    vfork_exec => row("vfork_exec").follow().moments(12);
    #[ignore = "full: over glibc in `make test`"]
    spawn => row("spawn").follow().moments(9);
    #[ignore = "full: over glibc in `make test`"]
    ends_by_return => row("endings").exits(47);
    #[ignore = "full: over glibc in `make test`"]
    ends_by_abort => row("endings").named("ends_by_abort_over_musl").args(&["abort"]).dies(libc::SIGABRT);
    ends_by_kill => row("endings").named("ends_by_kill_over_musl").args(&["kill"]).dies(libc::SIGKILL);
    #[ignore = "full: over glibc in `make test`"]
    ends_in_thread => row("endings").named("ends_in_thread_over_musl").args(&["thread_exit"]).exits(29);
    #[ignore = "full: over glibc in `make test`"]
    daemonize => row("daemonize");
    #[ignore = "full: over glibc in `make test`"]
    raw_clone => row("raw_clone").moments(2);
    exec_self => row("exec_self").moments(4);
    #[ignore = "full: over glibc in `make test`"]
    exec_self_followed => row("exec_self").named("exec_self_followed_over_musl").follow().moments(4);
    map_basic => row("map_basic").moments(3);
    #[ignore = "full: over glibc in `make test`"]
    map_commit => row("map_commit").moments(10);
    map_remap => row("map_remap").moments(8);
    #[ignore = "full: over glibc in `make test`"]
    map_partial => row("map_partial").moments(7);
    #[ignore = "full: over glibc in `make test`"]
    map_protect => row("map_protect").moments(6);
    #[ignore = "full: over glibc in `make test`"]
    map_advice => row("map_advice");
    #[ignore = "full: over glibc in `make test`"]
    map_shm => row("map_shm").moments(4);
    #[ignore = "full: over glibc in `make test`"]
    map_threads => row("map_threads");
    #[ignore = "full: over glibc in `make test`"]
    fork_maps => row("fork_maps").moments(3);
    #[ignore = "full: over glibc in `make test`"]
    map_many => row("map_many").moments(3);
    map_raw => row("map_raw").moments(5);
    signal_allocates => row("signal_allocates").links(&["libbump"]).moments(4);
    #[ignore = "full: over glibc in `make test`"]
    signal_jumps_out => row("signal_jumps_out").links(&["libbump"]).moments(2);
    #[ignore = "full: over glibc in `make test`"]
    signal_maps => row("signal_maps").args(&["allocate"]).moments(2);
    #[ignore = "full: over glibc in `make test`"]
    signal_jumps_out_of_maps => row("signal_maps").named("signal_jumps_out_of_maps_over_musl").args(&["jump"]);
    #[ignore = "full: over glibc in `make test`"]
    file_size_limit => row("file_size_limit").moments(2);
    #[ignore = "full: over glibc in `make test`"]
    descriptors_exhausted => row("descriptors_exhausted");
    #[ignore = "full: over glibc in `make test`"]
    descriptors_closed => row("descriptors_closed").moments(2);
    #[ignore = "full: over glibc in `make test`"]
    constructors => row("constructors").moments(2);
    early_blocks => row("early_blocks").links(&["libearly"]).moments(2);
    weak_functions => row("weak_functions");
    missing_names => row("missing_names");
    odd_callers => row("odd_callers").moments(2);
    #[ignore = "full: over glibc in `make test`"]
    pointer_table => row("pointer_table").moments(3);
}
