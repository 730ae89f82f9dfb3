//! The messages of plimsoll: they never disturb the program, are always one sentence, and say what to type.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "subjects/stage.rs"]
mod stage;

use stage::Scratch;

/// The folder of one test.
struct Workspace(Scratch);

impl Workspace {
    fn new(name: &str) -> Workspace {
        Workspace(Scratch::new(&format!("sentences-{name}")))
    }

    fn plimsoll(&self, arguments: &[&str]) -> Command {
        // A sentence that never comes is a failure, not an endless test.
        let mut command = Command::new("timeout");
        command
            .args(["-s", "KILL", "100", env!("CARGO_BIN_EXE_plimsoll")])
            .args(arguments)
            .current_dir(self.0.path())
            .env("XDG_CACHE_HOME", self.0.path().join("cache"))
            .env("PLIMSOLL_DIR", self.0.path().join("segments"))
            .stdin(Stdio::null());
        command
    }

    fn status_and_error(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self.plimsoll(arguments).output().unwrap();
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    }

    fn static_program(&self) -> PathBuf {
        let program = self.0.path().join("static");
        let mut cc = Command::new("cc")
            .args(["-static", "-x", "c", "-o"])
            .arg(&program)
            .arg("-")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        cc.stdin.take().unwrap().write_all(b"int main(void) { return 3; }").unwrap();
        assert!(cc.wait().unwrap().success());
        program
    }
}

#[test]
fn a_report_whose_standard_output_is_closed_is_refused() {
    let workspace = Workspace::new("closed");
    assert_eq!(workspace.status_and_error(&["run", "--", "true"]).0, Some(0));
    for verb in [&["doctor"][..], &["report", "segments"], &["diff", "segments", "segments"]] {
        let plimsoll = workspace.plimsoll(verb);
        let shell = format!("exec {} \"$@\" >&-", plimsoll.get_program().to_str().unwrap());
        let mut closed = Command::new("sh");
        closed.args(["-c", &shell, "sh"]).args(plimsoll.get_args()).current_dir(workspace.0.path());
        closed.envs(plimsoll.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let Output { status, stderr, .. } = closed.output().unwrap();
        let error = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{verb:?}: {error}");
        assert!(error.contains("standard output is closed") && error.trim_end().lines().count() == 1, "{error}");
    }
}

/// The program's own command line, to be pasted; without one, the line says where to put it.
#[test]
fn a_report_of_an_untracked_process_says_how_to_start_it_tracked() {
    let workspace = Workspace::new("untracked");
    let long = "x".repeat(2000);
    let cases = [
        (
            "/bin/sh",
            ["-c", "echo; read line", "it's"],
            r"cd /usr && MALLOC_ARENA_MAX=2 plimsoll run -- /bin/sh -c 'echo; read line' 'it'\''s'",
        ),
        (
            "/bin/sh",
            ["-c", "echo; read line", long.as_str()],
            "plimsoll run --   # and then the command that starts it (not printed: it has 2,0",
        ),
        (
            "/usr/bin/perl",
            ["-e", "$0 = 'worker'; $| = 1; print qq(\\n); <STDIN>", ""],
            "plimsoll run --   # and then the command that starts it (not printed: the process shows a title",
        ),
    ];
    for (program, words, expected) in cases {
        let mut command = Command::new(program);
        command.args(words).current_dir("/usr").stdin(Stdio::piped()).stdout(Stdio::piped());
        // cargo sets LD_LIBRARY_PATH.
        command.env_remove("LD_LIBRARY_PATH").env("MALLOC_ARENA_MAX", "2").env("TOKEN", "secret");
        let mut child = command.spawn().expect("a child");
        // The program prints a line, then waits for one.
        child.stdout.as_mut().expect("its output").read_exact(&mut [0]).expect("a line");
        let pid = child.id().to_string();
        let (status, error) = workspace.status_and_error(&["report", &pid]);
        child.kill().and_then(|()| child.wait()).expect("its end");
        let how = format!("process {pid} is not tracked. Use 'plimsoll attach {pid}', or start it with: {expected}");
        assert_eq!((status, error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.contains(&how), "{error}");
    }
}

/// A process that ends with its standard input. It has printed a line.
fn waiting(program: &Path) -> std::process::Child {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
    child.stdout.as_mut().expect("its output").read_exact(&mut [0]).expect("a line");
    child
}

#[test]
fn what_can_never_be_tracked_is_not_sent_to_attach() {
    let workspace = Workspace::new("never");
    let program = workspace.0.path().join("waits");
    let source = workspace.0.path().join("waits.c");
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"\"); fflush(stdout); return getchar(); }")
        .unwrap();
    let cc = Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(cc.success());
    let mut child = waiting(&program);
    let pid = child.id().to_string();
    let said = [["report", &pid], ["attach", &pid]].map(|arguments| workspace.status_and_error(&arguments));
    child.kill().and_then(|()| child.wait()).expect("its end");
    for (status, error) in said {
        assert!(status == Some(2) && error.contains("it is a static program, which loads no library"), "{error}");
        assert!(error.contains("plimsoll explain") && !error.contains("plimsoll run"), "{error}");
    }
    // In a container there is no kernel thread.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        for verb in WHOLE_PROCESSES {
            let (status, error) = workspace.status_and_error(&[verb, &["2"][..]].concat());
            assert!(status == Some(2) && error.contains("process 2 is a kernel thread"), "{verb:?}: {error}");
        }
    }
}

/// Commands that read or change a process.
const WHOLE_PROCESSES: [&[&str]; 8] = [
    &["explain"],
    &["report"],
    &["record", "-o", "x.jfr"],
    &["watch"],
    &["serve", "--listen", "127.0.0.1:0"],
    &["attach"],
    &["detach"],
    &["try", "--pid"],
];

#[test]
fn each_command_says_that_a_zombie_has_ended() {
    let workspace = Workspace::new("zombie");
    let mut child = Command::new("true").spawn().expect("a child");
    let pid = child.id().to_string();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is not reaped");
    while !state().contains(") Z ") {
        std::thread::yield_now();
    }
    for verb in WHOLE_PROCESSES {
        let (status, error) = workspace.status_and_error(&[verb, &[&pid]].concat());
        let ended = format!("process {pid} is a zombie: its memory is gone, only its exit status is left\n");
        assert!(status == Some(2) && error.ends_with(&ended), "{verb:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{verb:?}: {error}");
    }
    child.wait().expect("its end");
}

#[test]
fn a_recording_refuses_what_only_books_can_show() {
    let workspace = Workspace::new("books");
    assert_eq!(workspace.status_and_error(&["record", "-o", "x.jfr", "--", "true"]).0, Some(0));
    // The program has most likely ended before its first reading: then the recording has the command from the books.
    let out = workspace.plimsoll(&["report", "x.jfr"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.lines().next().is_some_and(|line| line.contains("true") && line.contains("native")), "{text}");
    std::fs::write(workspace.0.path().join("rules"), "category A: b\n").unwrap();
    for arguments in [
        &["report", "x.jfr", "--style", "hotspot"][..],
        &["report", "x.jfr", "--detail"],
        &["report", "x.jfr", "--by", "site", "--rules", "rules"],
        &["report", "x.jfr", "--by", "site", "--symbols", "rules"],
        &["diff", "x.jfr", "x.jfr", "--style", "hotspot"],
    ] {
        let (status, error) = workspace.status_and_error(arguments);
        let wanted = "needs a process, a segment or a saved report";
        assert!(status == Some(2) && error.contains(wanted), "{arguments:?}: {error}");
    }
    assert_eq!(workspace.status_and_error(&["report", "x.jfr", "--by", "site"]).0, Some(0));
}

#[test]
fn an_option_that_the_format_cannot_follow_is_refused() {
    let workspace = Workspace::new("no-effect");
    assert_eq!(workspace.status_and_error(&["run", "--", "true"]).0, Some(0));
    let report = |more: &[&'static str]| [&["report", "segments"], more].concat();
    let diff = |more: &[&'static str]| [&["diff", "segments", "segments"], more].concat();
    for (arguments, wanted) in [
        (report(&["--measure", "nonsense", "--format", "json"]), "there is no 'nonsense' in bytes here, only live"),
        (report(&["--measure", "peak", "--format", "json"]), "leave --measure and --weight out"),
        (report(&["--weight", "calls", "--by", "site", "--format", "json"]), "leave --measure and --weight out"),
        (report(&["--all", "--format", "json"]), "leave it out with --format json"),
        (report(&["--style", "hotspot", "--format", "json"]), "leave it out with --format json"),
        (report(&["--style", "native-image", "--format", "folded"]), "leave it out with --format folded"),
        (report(&["--measure", "liv", "--by", "site"]), "there is no measure 'liv'. Did you mean 'live'?\n"),
        (report(&["--measure", "resident"]), "not known of a process that has ended: use --measure committed\n"),
        (report(&["--measure", "resident", "--format", "tree"]), "use --measure committed\n"),
        (report(&["--measure", "resident", "--format", "svg"]), "use --measure committed\n"),
        (diff(&["--measure", "resident"]), "not known of a process that has ended: use --measure committed\n"),
        (report(&["--style", "hotspot", "--by", "caller"]), "--style hotspot has lines of its own: leave --by out"),
        (
            report(&["--style", "native-image", "--by", "thread"]),
            "--style native-image has lines of its own: leave --by",
        ),
        (report(&["--style", "hotspot", "--all"]), "--style hotspot has lines of its own: leave --all out"),
        (report(&["--style", "native-image-23", "--detail"]), "--style native-image-23 has no callers"),
        (report(&["--detail", "--by", "site"]), "--detail adds callers to a table of the books"),
        (report(&["--detail", "--format", "tree"]), "--detail adds callers to a table of the books"),
        (diff(&["--style", "hotspot", "--by", "caller"]), "--style hotspot has lines of its own: leave --by out"),
        (diff(&["--style", "hotspot", "--all"]), "--style hotspot has lines of its own: leave --all out"),
        (diff(&["--all", "--format", "json"]), "leave it out with --format json"),
        (diff(&["--style", "hotspot", "--format", "json"]), "leave it out with --format json"),
        (vec!["run", "--report", "none", "--style", "hotspot", "--", "true"], "need --report summary or detail"),
        (vec!["run", "--report", "none", "--report-to", "x", "--", "true"], "need --report summary or detail"),
    ] {
        let (status, error) = workspace.status_and_error(&arguments);
        assert!(status == Some(2) && error.contains(wanted), "{arguments:?}: {error}");
    }
    for arguments in [
        report(&["--by", "site", "--format", "json"]),
        report(&["--by", "caller", "--detail", "--format", "json"]),
        report(&["--focus", "main", "--measure", "peak", "--format", "json"]),
        report(&["--all", "--by", "site", "--format", "tree"]),
        report(&["--style", "hotspot", "--detail"]),
        diff(&["--measure", "live", "--format", "json"]),
        report(&["--detail", "--by", "module"]),
        report(&["--measure", "committed"]),
        vec!["run", "--report", "none", "--", "true"],
    ] {
        assert_eq!(workspace.status_and_error(&arguments), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn a_program_that_cannot_be_looked_up_is_not_called_absent() {
    let workspace = Workspace::new("lookup");
    for (program, code, words) in
        [("/etc/passwd/x", 126, "Not a directory"), ("/no/such/program", 127, "there is no such file")]
    {
        let (status, error) = workspace.status_and_error(&["run", "--", program]);
        assert!(status == Some(code) && error.contains(words), "{program}: {status:?} {error}");
    }
}

#[test]
fn watch_reports_that_its_output_takes_nothing() {
    let workspace = Workspace::new("full");
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let out = workspace.plimsoll(&["watch", &child.id().to_string()]).stdout(full).output().unwrap();
    child.kill().and_then(|()| child.wait()).expect("its end");
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && error.contains("cannot write standard output: No space left"), "{error}");
}

#[test]
fn help_of_diff_offers_what_diff_can_do() {
    let workspace = Workspace::new("help");
    let help = |verb: &str| {
        String::from_utf8_lossy(&workspace.plimsoll(&[verb, "--help"]).output().unwrap().stdout).into_owned()
    };
    for (word, of_diff) in [
        ("class:", false),
        ("jfr:", false),
        ("native-image:", false),
        ("native-image-23:", false),
        ("hotspot:", true),
        ("svg:", true),
    ] {
        assert!(help("report").contains(word), "{word}");
        assert_eq!(help("diff").contains(word), of_diff, "{word}");
    }
    let (status, stderr) = workspace.status_and_error(&["diff", "a", "b", "--format", "jfr"]);
    assert!(status == Some(2) && stderr.contains("a diff has no --format jfr"), "{stderr}");
}

#[test]
fn a_mean_that_nothing_can_be_sampled_by_is_refused() {
    let workspace = Workspace::new("mean");
    for (verb, rest) in [("run", "true"), ("attach", "1"), ("record", "true")] {
        for bytes in ["0", "255", "1099511627777"] {
            let rest = if verb == "attach" { &[rest][..] } else { &["--", rest] };
            let (status, stderr) = workspace.status_and_error(&[&[verb, "--sample", bytes], rest].concat());
            assert!(status == Some(2) && stderr.contains("--sample") && stderr.contains(bytes), "{verb}: {stderr}");
        }
    }
}

/// A recording is written to a temporary file and renamed: without a check, root would replace /dev/null by a regular
/// file.
#[test]
fn a_recording_replaces_nothing_but_a_file() {
    let workspace = Workspace::new("odd-files");
    let path = |name: &str| workspace.0.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(path("folder")).unwrap();
    std::os::unix::fs::symlink("/dev/null", path("link")).unwrap();
    assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
    let own = std::process::id().to_string();
    for (name, word) in [("folder", "directory"), ("link", "symbolic link"), ("fifo", "not a regular file")] {
        let kind = || std::fs::symlink_metadata(path(name)).unwrap().file_type();
        let before = kind();
        for target in [&[own.as_str()][..], &["--", "true"]] {
            let (status, stderr) =
                workspace.status_and_error(&[&["record", "--duration", "100ms", "-o", &path(name)], target].concat());
            assert!(status == Some(2) && stderr.contains(word) && stderr.trim_end().lines().count() == 1, "{stderr}");
            assert_eq!(kind(), before);
        }
    }
    std::fs::write(path("old.jfr"), "old").unwrap();
    assert_eq!(workspace.status_and_error(&["record", "--duration", "100ms", "-o", &path("old.jfr"), &own]).0, Some(0));
}

/// `ulimit -f` kills a process that writes beyond it, unless the process ignores the signal. If nobody reads the
/// message about it, SIGPIPE comes on top. Neither signal is for the program.
#[test]
fn a_file_that_may_not_grow_ends_a_recording_and_not_the_program() {
    let workspace = Workspace::new("small-files");
    let limited = |arguments: &[&str]| {
        let plimsoll = workspace.plimsoll(arguments);
        let shell = format!("ulimit -f 8; exec {} \"$@\"", plimsoll.get_program().to_str().unwrap());
        let mut limited = Command::new("sh");
        limited
            .args(["-c", &shell, "sh"])
            .args(plimsoll.get_args())
            .current_dir(workspace.0.path())
            .stdin(Stdio::null());
        limited.envs(plimsoll.get_envs().filter_map(|(name, value)| Some((name, value?)))).stderr(Stdio::piped());
        limited.spawn().unwrap()
    };
    let status_and_error = |arguments: &[&str]| {
        let Output { status, stderr, .. } = limited(arguments).wait_with_output().unwrap();
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    };
    let program = ["record", "-o", "a.jfr", "--interval", "50ms", "--", "sh", "-c", "sleep 0.6; exit 7"];
    let (status, words) = status_and_error(&program);
    assert!(status == Some(7) && words.contains("a.jfr: File too large"), "{status:?} {words}");
    let mut unheard = limited(&program);
    drop(unheard.stderr.take());
    assert_eq!(unheard.wait().unwrap().code(), Some(7));
    let own = std::process::id().to_string();
    let (status, words) =
        status_and_error(&["record", &own, "-o", "b.jfr", "--interval", "50ms", "--duration", "400ms"]);
    assert!(status == Some(2) && words.contains("b.jfr: File too large"), "{status:?} {words}");
}

#[test]
fn a_standard_error_that_takes_nothing_harms_nobody() {
    let workspace = Workspace::new("full");
    let program = workspace.static_program();
    let program = program.to_str().unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for (arguments, code) in [
        (&["run", "--", program][..], 3),
        (&["run", "--report", "summary", "--", program], 3),
        (&["run", "--report", "summary", "--", "sh", "-c", "exit 5"], 5),
        (&["record", "-o", "x.jfr", "--", "sh", "-c", "exit 5"], 5),
        (&["run", "--", "/nowhere/at-all"], 127),
        (&["report", "/nowhere"], 2),
        (&["nonsense"], 2),
        (&["--help"], 2),
        (&["diff", "--help"], 2),
        (&["--version"], 2),
        (&[], 2),
    ] {
        let status = workspace.plimsoll(arguments).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}: {status}");
    }
}

#[test]
fn a_wrong_command_line_names_what_would_be_right() {
    let workspace = Workspace::new("usage");
    std::fs::create_dir(workspace.0.path().join("there")).unwrap();
    std::os::unix::fs::symlink("there", workspace.0.path().join("link")).unwrap();
    for (arguments, words) in [
        (&["report"][..], "<TARGET> is missing. Usage: plimsoll report"),
        (&["diff", "1"], "<AFTER> is missing. Usage: plimsoll diff"),
        (&["run"], "<CMD>... is missing. Usage: plimsoll run -- <CMD>..."),
        (&["run", "ls", "/"], "put -- before the command: plimsoll run -- ls"),
        (&["reprot", "1"], "unknown command 'reprot'. Did you mean 'report'?"),
        (&["exlpain", "1"], "unknown command 'exlpain'. Did you mean 'explain'?\n"),
        (&["explain", "1", "--format", "jsn"], "invalid value 'jsn' for '--format <FORMAT>'. Did you mean 'json'?"),
        (&["report", "1", "--by", "sites"], "invalid value 'sites' for '--by <BY>'. Did you mean 'site'?"),
        (&["diff", "1", "2", "--format", "jfr"], "a diff has no --format jfr"),
        (&["explain", "1", "--format", "yaml"], "[possible values: text, json, html, prometheus]"),
        (&["why", "arena-retetion"], "unknown verdict 'arena-retetion'. Did you mean 'arena-retention'?"),
        (&["why", "everything"], "unknown verdict 'everything'. The verdicts are: allocator-retention, "),
        (&["report", "1", "--symbols", "nofile"], "--symbols: 'nofile' can't be read: No such file or directory"),
        (&["diff", "1", "1", "--symbols", "nofile"], "--symbols: 'nofile' can't be read: No such file or directory"),
        (&["frobnicate"], "unknown command 'frobnicate'. List the commands: plimsoll --help"),
        (&["report", "--formt", "svg", "1"], "unexpected argument '--formt'. Did you mean '--format'?"),
        (&["explain", "no-such-name-anywhere"], "no process is named 'no-such-name-anywhere'"),
        (&["explain", "99999999999999999999"], "no process 99999999999999999999"),
        (&["explain", "/no/such/program"], "no process runs '/no/such/program'"),
        (&["watch", "99999999"], "no process 99999999"),
        (&["watch", "1", "--all"], "give --all or PID|NAME, not both\n"),
        (
            &["try", "--load", "x", "--url", "http://x/", "--", "true"],
            "give --url <URL> or --load <COMMAND>, not both\n",
        ),
        (&["diff"], "<BEFORE>, <AFTER> are missing. Usage: plimsoll diff"),
        (&["try"], "-- <CMD>... or: plimsoll try [OPTIONS] --pid"),
        (&["run", "--depth", "5", "--", "true"], "'--depth <FRAMES>': expected a number from 16 to 1024\n"),
        (&["compare", "one.jfr"], "give A.jfr and B.jfr: expected 2 values, not 1\n"),
        (&["compare", "a.jfr", "b.jfr", "--runs", "5"], "give --runs <N> or A.jfr B.jfr, not both\n"),
        (&["compare", "a.jfr", "b.jfr", "--tracked", "1"], "give --tracked <N> or A.jfr B.jfr, not both\n"),
        (&["compare", "a.jfr", "b.jfr", "--ready", "port:1"], "give --ready <WHEN> or A.jfr B.jfr, not both\n"),
        (&["compare", "a.jfr", "b.jfr", "--for", "3"], "give --for <SECONDS> or A.jfr B.jfr, not both\n"),
        (
            &["record", "--duration", "-1s", "--", "true"],
            "unexpected argument '-1': if it begins the value of an option",
        ),
        (&["run", "--interval", "1s", "--", "true"], "unexpected argument '--interval'. Usage: plimsoll run"),
        (&["run", "--no-pagr", "--", "true"], "unexpected argument '--no-pagr'. Did you mean '--no-pager'?"),
        (&["run", "--signal", "PORF", "--", "true"], "'PORF' for '--signal <SIGNAL>'. Did you mean 'PROF'?"),
        (&["try", "--with", "jemaloc", "--", "true"], "'jemaloc' for '--with <REMEDY>'. Did you mean 'jemalloc'?"),
        (&["try", "--with", "arena=2", "--", "true"], "'arena=2' for '--with <REMEDY>'. Did you mean 'arenas=2'?"),
        (&["try", "--ready", "prt:80", "--", "true"], "'prt:80' for '--ready <WHEN>'. Did you mean 'port:80'?"),
        (&["try", "--ready", "socket:80", "--", "true"], "expected port:N, url:http://…, log:REGEX or seconds:N\n"),
        (&["compare", "one.jfr", "two.jfr"], "no file 'one.jfr'"),
        (&["explain", "-o", "lst.txt"], "-o needs a process: plimsoll explain PID."),
        (&["explain", "--format", "json"], "--format needs a process: plimsoll explain PID."),
        (&["explain", "--maps"], "--maps needs a process: plimsoll explain PID."),
        (&["explain", "--arenas"], "--arenas needs a process: plimsoll explain PID."),
        (&["explain", "--limit", "1g"], "--limit needs a process: plimsoll explain PID."),
        (&["explain", "--baseline", "before.json"], "--baseline needs a process: plimsoll explain PID."),
        (&["watch", "--all", "--limit", "1g"], "--limit needs a process: plimsoll watch PID."),
        (&["watch", "--limit", "1g"], "--limit needs a process: plimsoll watch PID."),
        (&["explain", "1", "--format", "prometheus", "--target", ""], "give a name that isn't empty\n"),
        (&["explain", "1", "--arenas", "--format", "json"], "--arenas prints a table: leave --format out\n"),
        (&["diff", "1", "2", "--by", "class"], "compare stacks with --by site"),
        (&["run", "--dir", "link", "--", "true"], "--dir link is a symbolic link"),
        (&["run", "--dir", "/tmp", "--", "true"], "; name another directory\n"),
    ] {
        let (code, text) = workspace.status_and_error(arguments);
        assert_eq!(code, Some(2), "{arguments:?}");
        assert!(text.starts_with("plimsoll: ") && text.contains(words), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn a_budget_with_a_mistyped_line_proposes_the_line() {
    let workspace = Workspace::new("budget");
    for (name, hint) in [
        ("java-hep", "'java-hep' isn't a line of the ledger. Did you mean 'java-heap'?"),
        ("RSS", "'RSS' isn't a line of the ledger. Did you mean 'rss'?"),
        ("everything", "'everything' isn't a line of the ledger; expected rss, * or one of "),
    ] {
        std::fs::write(workspace.0.path().join("budget.txt"), format!("rss 2%\n{name} 1m\n")).unwrap();
        let (code, text) =
            workspace.status_and_error(&["compare", "--a", "true", "--b", "true", "--budget", "budget.txt"]);
        assert!(code == Some(2) && text.contains(&format!("budget.txt: line 2: {hint}")), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let workspace = Workspace::new("fifo");
    let folder = workspace.0.path().join("repository");
    std::fs::create_dir(&folder).unwrap();
    for path in [workspace.0.path().join("fifo"), folder.join("chunk.jfr")] {
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    }
    for arguments in [
        &["report", "fifo"][..],
        &["report", "--by", "site", "fifo"],
        &["report", "repository"],
        &["diff", "fifo", "fifo"],
        &["run", "--", "./fifo"],
    ] {
        let out = workspace.plimsoll(arguments).output().unwrap();
        assert!(matches!(out.status.code(), Some(2 | 126)), "{arguments:?}: {}", out.status);
    }
}

/// Any user may put a recording with a number as its name into /tmp, where root types that PID.
#[test]
fn a_number_is_a_pid_even_if_a_recording_has_that_name() {
    let workspace = Workspace::new("number");
    let pid = std::process::id().to_string();
    std::fs::write(workspace.0.path().join(&pid), b"FLR\0").unwrap();
    let named = format!("process {pid} is not tracked");
    for arguments in [&["report", &pid][..], &["report", "-p", &pid], &["diff", &pid, &pid]] {
        let (code, text) = workspace.status_and_error(arguments);
        assert!(code == Some(2) && text.contains(&named), "{arguments:?}: {text}");
    }
    // With a slash, it is a path, so the file is meant.
    let (_, text) = workspace.status_and_error(&["report", &format!("./{pid}")]);
    assert!(!text.contains(&named), "{text}");
}

#[test]
fn a_path_that_is_not_utf8_is_a_target_like_any_other() {
    let workspace = Workspace::new("bytes");
    let name = Path::new(std::ffi::OsStr::from_bytes(b"b\xff\n.json"));
    let run = ["run", "--report", "summary", "--report-to"];
    let status = workspace.plimsoll(&run).arg(name).args(["--", "true"]).status().unwrap();
    assert!(status.success());
    assert!(std::fs::read_to_string(workspace.0.path().join(name)).unwrap().contains("category"));
    let out = workspace.plimsoll(&["report", "--format", "json", "segments", "-o"]).arg(name).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let out = workspace.plimsoll(&["report"]).arg(name).output().unwrap();
    assert!(out.status.success() && out.stdout.starts_with(b"true"), "{out:?}");
    let out = workspace.plimsoll(&["diff"]).arg(name).arg(name).output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn a_script_without_a_first_line_runs_in_the_shell_as_execvp_has_it() {
    let workspace = Workspace::new("script");
    let script = workspace.0.path().join("script");
    // Copied by cp: while this process writes a file, a child that another test forks has it open for writing, too.
    // Until that child's exec the kernel refuses to run the file (ETXTBSY).
    let install = |bytes: &[u8]| {
        std::fs::write(workspace.0.path().join("written"), bytes).unwrap();
        let status = Command::new("install").arg(workspace.0.path().join("written")).arg(&script).status().unwrap();
        assert!(status.success());
    };
    install(b"echo \"$0 $1\"; exit 7\n");
    for launch in [&["run"][..], &["run", "--report", "summary"]] {
        let out = workspace.plimsoll(&[launch, &["--", "./script", "one"]].concat()).output().unwrap();
        assert_eq!((out.status.code(), &*out.stdout), (Some(7), &b"./script one\n"[..]), "{out:?}");
    }
    // An ELF file for another machine is not a script.
    let mut elf = std::fs::read("/bin/true").unwrap();
    elf[18] = 0xf3;
    install(&elf);
    let (code, text) = workspace.status_and_error(&["run", "--", "./script"]);
    assert_eq!(code, Some(126), "{text}");
}
