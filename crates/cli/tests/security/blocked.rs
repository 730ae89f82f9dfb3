//! Files that never answer: FIFOs in place of what plimsoll looks for.

use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::child::{Running, wait_until};
use crate::commands::{LIMIT, Scratch, as_mallory, ended, fifo, is_skipped, libc_file, plimsoll};
use crate::kit::{MALLORY, PLIMSOLL};
use crate::stage::log_line;

/// The file's name decides why plimsoll reads it.
const NAMES: [&str; 4] = ["libc.so.6", "libjvm.so", "hsperfdata_mallory/1", "program"];

#[test]
fn a_fifo_in_place_of_a_mapped_file_hangs_nobody() {
    if is_skipped("a_fifo_in_place_of_a_mapped_file_hangs_nobody") {
        return;
    }
    let scratch = Scratch::new("fifo");
    let attack = scratch.compiled("mapped", "mapped", &[]);
    for name in NAMES {
        let folder = scratch.of_mallory("files");
        let path = folder.join(name);
        let parent = path.parent().expect("a folder");
        fs::create_dir_all(parent).expect("folder");
        chown(parent, Some(MALLORY), Some(MALLORY)).expect("chown");
        fs::copy(libc_file(), &path).expect("copy");
        let (target, _) = Running::start(as_mallory(&attack).arg(&path));
        let pid = target.pid().to_string();
        let explained = ended(plimsoll(&scratch).args(["explain", &pid]), LIMIT);
        assert_eq!(explained.code(), Some(0), "{name}: {}", explained.text);
        let recording = scratch.join("recording.jfr");
        let record = ["record", &pid, "--duration", "1s", "-o"];
        let recorded = ended(plimsoll(&scratch).args(record).arg(&recording), LIMIT);
        assert_eq!(recorded.code(), Some(0), "{name}: {}", recorded.text);
        drop(target);
        fs::remove_dir_all(&folder).expect("removed");
    }
}

/// The recording thread stops, as inside a read that does not return.
#[test]
fn a_recording_that_is_held_ends_at_sigterm() {
    let scratch = Scratch::new("held");
    let holder = scratch.compiled("hold", "hold", &[]);
    let sleeper = Running(Command::new("sleep").arg("600").spawn().expect("sleep"));
    let recording = scratch.join("recording.jfr");
    let mut command = plimsoll(&scratch);
    command.args(["record", &sleeper.pid().to_string(), "-o"]).arg(&recording);
    let mut recorder = Running(command.spawn().expect("plimsoll"));
    let limit = Instant::now() + LIMIT;
    while fs::metadata(&recording).map_or(0, |meta| meta.len()) == 0 {
        assert!(Instant::now() < limit, "no recording");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (holder, line) = Running::start(Command::new(holder).arg(recorder.pid().to_string()));
    if line != "held" {
        log_line("a_recording_that_is_held_ends_at_sigterm: skipped, nobody may trace here");
        return;
    }
    let pid = rustix::process::Pid::from_raw(recorder.pid() as i32).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
    let limit = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = recorder.0.try_wait().expect("wait") {
            break status;
        }
        assert!(Instant::now() < limit, "record ignores SIGTERM");
        std::thread::sleep(Duration::from_millis(20));
    };
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status:?}");
    drop(holder);
}

/// The same where plimsoll records a command: it passes the signal on to the command, and ends as the command ends.
#[test]
fn a_signal_reaches_the_program_of_a_recording_that_is_held() {
    const NAME: &str = "a_signal_reaches_the_program_of_a_recording_that_is_held";
    let scratch = Scratch::new("held-own");
    let holder = scratch.compiled("hold", "hold", &[]);
    let (recording, ready, got) = (scratch.join("recording.jfr"), scratch.join("ready"), scratch.join("got"));
    let script =
        format!("trap 'echo >{}; exit 7' TERM; echo >{}; while :; do sleep 0.1; done", got.display(), ready.display());
    let mut command = plimsoll(&scratch);
    command.args(["record", "-o"]).arg(&recording).args(["--", "sh", "-c", &script]);
    let mut recorder = Running(command.spawn().expect("plimsoll"));
    let wait_for = |is_so: &mut dyn FnMut() -> bool, what: &str| {
        let limit = Instant::now() + LIMIT;
        while !is_so() {
            assert!(Instant::now() < limit, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut has_begun = || ready.exists() && fs::metadata(&recording).is_ok_and(|meta| meta.len() > 0);
    wait_for(&mut has_begun, "no recording");
    let (held, line) = Running::start(Command::new(holder).arg(recorder.pid().to_string()));
    if line != "held" {
        log_line(&format!("{NAME}: skipped, nobody may trace here"));
        return;
    }
    let pid = rustix::process::Pid::from_raw(recorder.pid() as i32).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
    let mut is_over = || got.exists() || recorder.0.try_wait().expect("wait").is_some();
    wait_for(&mut is_over, "the program got no signal");
    assert!(got.exists(), "plimsoll died of the signal, and the program was killed");
    drop(held);
    assert_eq!(recorder.0.wait().expect("wait").code(), Some(7));
}

/// Files that the user names: one sentence instead of an endless wait; the pipes of a shell work.
#[test]
fn a_fifo_on_the_command_line_is_refused() {
    let scratch = Scratch::new("named");
    let path = scratch.join("fifo");
    fifo(&path);
    let fifo = path.to_str().expect("UTF-8");
    let own = std::process::id().to_string();
    let verbs: [&[&str]; 6] = [
        &["explain", &own, "--baseline", fifo],
        &["report", fifo],
        &["report", fifo, "--rules", fifo],
        &["run", "--rules", fifo, "--", "true"],
        &["diff", fifo, fifo],
        &["report", "/dev/zero"],
    ];
    for words in verbs {
        let refused = ended(plimsoll(&scratch).args(words), LIMIT);
        assert_eq!(refused.code(), Some(2), "{words:?}: {}", refused.text);
        assert!(refused.text.contains("regular file"), "{words:?}: {}", refused.text);
        assert_eq!(refused.text.lines().count(), 1, "{words:?}: {}", refused.text);
    }
    let sleeper = Running(Command::new("sleep").arg("600").spawn().expect("sleep"));
    let pid = sleeper.pid().to_string();
    let script = format!("set -o pipefail; \"$0\" explain {pid} --baseline <(\"$0\" explain {pid} --format json)");
    let mut shell = Command::new("bash");
    shell.env("XDG_CACHE_HOME", scratch.join("cache")).args(["-c", &script, PLIMSOLL]);
    let piped = ended(&mut shell, LIMIT);
    assert_eq!(piped.code(), Some(0), "{}", piped.text);
}

/// The names in a directory of recordings are its owner's. An open acts on a FIFO and on a device even if it doesn't
/// wait: here a writer, who waits until somebody opens the FIFO, would go on.
#[test]
fn a_fifo_among_recordings_is_not_opened() {
    let scratch = Scratch::new("recordings");
    let folder = scratch.join("folder");
    fs::create_dir(&folder).expect("a folder");
    let path = folder.join("x.jfr");
    fifo(&path);
    std::os::unix::fs::symlink("x.jfr", folder.join("y.jfr")).expect("a link");
    // So the directory is one of recordings.
    fs::write(folder.join("z.jfr"), b"FLR\0").expect("a file");
    let (to_us, from_writer) = std::sync::mpsc::channel();
    let theirs = path.clone();
    let writer = std::thread::spawn(move || {
        to_us.send(rustix::thread::gettid().as_raw_nonzero()).expect("we wait");
        fs::OpenOptions::new().write(true).open(theirs).map(drop).expect("a reader");
    });
    let tid = from_writer.recv().expect("a thread");
    // A thread that was woken has no system call here, even if it has not run since.
    let call = format!("{} ", libc::SYS_openat);
    let waits =
        || fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).is_ok_and(|text| text.starts_with(&call));
    wait_until("a writer that waits", waits);
    let [folder, file, link] =
        [&folder, &path, &folder.join("y.jfr")].map(|path| path.to_str().expect("UTF-8").to_owned());
    let verbs: [&[&str]; 4] = [&["report", &folder], &["report", &file], &["report", &link], &["diff", &folder, &file]];
    for words in verbs {
        let done = ended(plimsoll(&scratch).args(words), LIMIT);
        assert!(waits(), "{words:?} opened the FIFO: {}", done.text);
    }
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let reader = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).expect("a FIFO");
    writer.join().expect("no panic");
    drop(reader);
}
