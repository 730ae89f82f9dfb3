//! One tiny program for each situation, run plain and under the tracker: same behaviour, exact books.

mod allocators;
mod build;
mod death;
mod environment;
#[path = "../harness/executable.rs"]
mod executable;
mod heap;
#[cfg(target_arch = "x86_64")]
mod interrupted;
mod kit;
mod loading;
mod maps;
mod musl;
mod processes;
mod refused;
mod signals;
mod threads;

/// A table of situations. A row `NAME over LIBC => SITUATION;` is a test over each C library that LIBC names: `glibc`,
/// `both`, or `both_musl_in_full`, whose test over musl runs with `make test-full` only. A row over glibc alone says
/// why. The tests over musl have the same names, in the module `over_musl`.
#[macro_export]
macro_rules! situations {
    ($($(#[$m:meta])* $test:ident over $libc:ident => $row:expr;)*) => {
        $($(#[$m])* #[test] fn $test() { $row.run() })*

        mod over_musl {
            #[allow(unused_imports, reason = "a table over glibc alone uses none")]
            use super::*;
            $($crate::over_musl! { $libc $(#[$m])* fn $test() { $row.over_musl().run() } })*
        }
    };
}

/// The test of a row over musl, if it has one.
#[macro_export]
macro_rules! over_musl {
    (glibc $($test:tt)*) => {};
    (both $($test:tt)*) => { #[test] $($test)* };
    (both_musl_in_full $($test:tt)*) => {
        #[test]
        #[ignore = "full: over glibc in `make test`"]
        $($test)*
    };
}

/// The oracle itself: every fixture must keep consistent books without the tracker, and a comparing driver must find a
/// difference that exists.
mod self_check {
    use crate::build::{Program, compiled, library_dir};
    use crate::kit::{Figures, Moment, Observed, Situation, log_line, scratch, situation};
    use std::collections::HashMap;
    use std::path::Path;

    fn figures(count: i64) -> Figures {
        let value = ["live_count", "requested", "usable", "cumulative_count", "reserved", "committed"];
        Figures {
            value: value.iter().map(|k| (k.to_string(), count)).collect(),
            gaps: "[]".into(),
            state: "live".into(),
            ..Figures::default()
        }
    }

    /// The fixtures whose figures the naive twin can confirm.
    fn confirmed() -> Vec<Situation> {
        compiled(&Program::library("libplugin"));
        let plugins = library_dir().display().to_string();
        let root = scratch("empty-root").display().to_string();
        let alone = [
            "mix",
            "realloc_zero",
            "realloc_null",
            "realloc_fail",
            "realloc_moves",
            "aligned",
            "pvalloc",
            "aligned_errors",
            "reallocarray",
            "libc_callers",
            "malloc_zero",
            "malloc_enomem",
            "errno_kept",
            "usable_size",
            "large_blocks",
            "new_delete",
            "bad_alloc",
            "exceptions",
            "longjmp_handler",
            "fork",
            "fork_both_go_on",
            "fork_storm",
            "spawn",
            "vfork_exec",
            "daemonize",
            "raw_clone",
            "seccomp_strict",
            "sandbox",
            "exec_self",
            "tls_constructor",
            "pointer_table",
            "key_destructors",
            "orphans",
            "producer_consumer",
            "thread_ends",
            "threads_sequential",
            "threads_at_once",
            "detached",
            "small_stacks",
            "small_contexts",
            "switched_stacks",
            "odd_callers",
            "file_size_limit",
            "descriptors_exhausted",
            "descriptors_closed",
        ];
        let mut rows: Vec<Situation> = alone.map(situation).into();
        let maps = [
            "basic", "commit", "remap", "partial", "errors", "protect", "refused", "advice", "brk", "shm", "shm_many",
            "many",
        ];
        rows.extend(maps.map(|m| situation(&format!("map_{m}")).env("BOOKS_TWIN", "maps")));
        rows.push(situation("signal_maps").args(&["allocate"]).env("BOOKS_TWIN", "maps"));
        rows.push(situation("signal_maps").args(&["jump"]).env("BOOKS_TWIN", "maps"));
        rows.push(situation("load_unload").args(&[&plugins]));
        rows.push(situation("new_root").args(&[&root]));
        rows
    }

    /// The books that the fixtures keep equal those of a naive twin in the tracker's place.
    #[test]
    fn the_naive_twin_agrees() {
        compiled(&Program::library("libtwin"));
        let (mut found, mut compared) = (vec![], 0);
        for row in confirmed() {
            let row = row.env("LD_PRELOAD", library_dir().join("libtwin.so").to_str().expect("path"));
            let seen = Observed::watch(row.command(&compiled(&row.program), None, Path::new("")), None);
            if seen.output.contains("SKIP") {
                continue;
            }
            if seen.end != row.end || seen.output.contains("FAILED") {
                found.push(format!("{}: {:?} {}", row.name, seen.end, seen.output));
            }
            let mut bases: HashMap<i64, HashMap<String, i64>> = HashMap::new();
            let mut moments = 0;
            for m in seen.moments {
                if m.base == m.pid && !m.last && (m.label == "base" || !bases.contains_key(&m.pid)) {
                    bases.insert(m.pid, m.says);
                    continue;
                }
                let base = &bases[&m.base];
                for key in ["live_count", "requested", "usable", "cumulative_count", "reserved", "committed"] {
                    let (Some(says), twin) = (m.says.get(key), format!("twin_{key}")) else { continue };
                    let (says, twin) = (says - base.get(key).unwrap_or(&0), m.says[&twin] - base[&twin]);
                    let slack = if key == "live_count" { "doubt_count" } else { "doubt_bytes" };
                    if (says - twin).abs() > *m.says.get(slack).unwrap_or(&0) {
                        found.push(format!(
                            "{} '{}' pid {}: {key} {says}, the twin has {twin}",
                            row.name, m.label, m.pid
                        ));
                    }
                }
                moments += 1;
            }
            if moments == 0 {
                found.push(format!("{}: no moment", row.name));
            }
            compared += moments;
        }
        log_line(&format!("the_naive_twin_agrees: {compared} moments"));
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn a_wrong_figure_is_seen() {
        let mut base = Moment::parse("moment ready base pid=7 base=7 live_count=3 requested=50").expect("moment");
        base.report = Some(Ok(figures(100)));
        for (seen, faults) in [(102, 0), (103, 1), (101, 1)] {
            let mut later = Moment::parse("moment ready later on pid=7 base=7 live_count=5").expect("moment");
            assert_eq!(later.label, "later on");
            later.report = Some(Ok(figures(seen)));
            let run = Observed {
                output: String::new(),
                errors: String::new(),
                moments: vec![base.clone(), later],
                end: crate::kit::End::Exit(0),
                late: false,
            };
            let (compared, found) = run.books(std::path::Path::new("/"), || Err("no base".into()));
            assert_eq!((compared, found.len()), (1, faults), "{found:?}");
        }
        assert!(Moment::parse("moment of truth").is_none());
        let _: HashMap<String, i64> = base.says;
    }
}
