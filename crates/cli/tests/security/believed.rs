//! Files in places that others can change: which of them root believes, and what happens where one is gone.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use plimsoll_observer::collect::{Regions, take_snapshot};
use plimsoll_process::foreign::{Deadline, FileKind, LOOK};
use plimsoll_process::proc::Target;
use plimsoll_segment::Header;
use plimsoll_tracked::segment::start_time_ns;
use rustix::time::{ClockId, clock_gettime};

use crate::child::Running;
use crate::commands::{LIMIT, fifo, only_segment};
use crate::kit::{MALLORY, can, compiled, of_mallory, roots, start, text};
use crate::rights::{LOOKER, Stage};
use crate::stage::Scratch;

/// Calls its library once, keeps the block, prints its PID and waits.
const CALLER: &str = r#"
#include <stdio.h>
#include <unistd.h>
void *entry(void);
void *volatile kept;
int main(void) {
    kept = entry();
    printf("%d\n", getpid()); fflush(stdout);
    for (;;) pause();
}"#;

/// A library whose function allocates.
fn library(scratch: &Scratch, name: &str, function: &str, build_id: &str) -> PathBuf {
    let source = include_str!("attacks/library.c");
    let function = format!("-DNAME={function}");
    compiled(scratch, name, source, &["-shared", "-fPIC", &function, &format!("-Wl,--build-id={build_id}")])
}

/// A program that loads `DIRECTORY/libtwin.so`.
fn caller(scratch: &Scratch, directory: &Path) -> PathBuf {
    let directory = directory.to_str().expect("UTF-8");
    compiled(scratch, "caller", CALLER, &["-L", directory, "-ltwin", &format!("-Wl,-rpath,{directory}")])
}

/// Mallory's program, tracked.
fn tracked(stage: &Stage, program: &[&Path]) -> (Running, String) {
    let home = of_mallory(&stage.scratch, &format!("home-{MALLORY}"));
    let mut command = Command::new(&stage.plimsoll);
    command.args(["run", "--"]).args(program).env("HOME", &home).env("PLIMSOLL_DIR", home.join("books"));
    start(command.env_remove("XDG_CACHE_HOME"))
}

/// Another file lies where the mapped one was. Root reads the mapped inode; a user who may not is given no names.
#[test]
fn a_replaced_file_is_read_through_its_mapping() {
    if !can("a replaced file") {
        return;
    }
    let stage = Stage::new();
    let path = library(&stage.scratch, "libtwin.so", "genuine_function", "none");
    let program = caller(&stage.scratch, stage.scratch.path());
    // In a mount namespace of its own: a mount puts another file at the same path while the mapped file keeps its name.
    let home = of_mallory(&stage.scratch, &format!("home-{MALLORY}"));
    let user = MALLORY.to_string();
    let mut command = Command::new("unshare");
    command.args(["-m", "setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&stage.plimsoll);
    command.args(["run", "--"]).arg(&program).env("HOME", &home).env("PLIMSOLL_DIR", home.join("books"));
    let (_target, pid) = Running::start(command.env_remove("XDG_CACHE_HOME"));
    let genuine = fs::read(&path).expect("ours");
    let other = library(&stage.scratch, "other.so", "mallorys_function", "none");
    let mounted = Command::new("nsenter").args(["-t", &pid, "-m", "mount", "--bind"]).arg(other).arg(&path).status();
    assert!(mounted.expect("nsenter").success());
    let report = |column| text(&stage.run(column, &["report", &pid, "--by", "caller"]));
    let roots = report((0, ""));
    assert!(roots.contains("genuine_function") && !roots.contains("mallorys_function"), "{roots}");
    let users = report((MALLORY, ""));
    assert!(users.contains("was replaced since it was loaded"), "{users}");
    assert!(!users.contains("genuine_function") && !users.contains("mallorys_function"), "{users}");
    // `explain` reads mapped files by other code. A FIFO may lie at the path, too.
    let number = pid.parse().expect("a PID");
    let mapped = || {
        let snapshot = take_snapshot(number, Regions::AsNeeded, Deadline::after(LOOK)).expect("a snapshot");
        let vma = snapshot.vmas.iter().find(|vma| vma.name.ends_with("/libtwin.so")).expect("it is mapped").clone();
        let target = Target::open(number, Deadline::after(LOOK)).expect("it runs");
        target.mapped(&vma, FileKind::Object).expect("root may").read().expect("root may")
    };
    assert!(mapped() == genuine, "another file was read");
    fs::remove_file(&path).expect("ours");
    fifo(&path);
    assert!(mapped() == genuine, "another file was read");
}

/// Removes a file in /tmp at the end.
struct InTmp(PathBuf);

impl Drop for InTmp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Names of generated code: who may give them, and when they were written.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_perf_map_or_jitdump_belongs_to_its_user_and_is_no_older_than_the_process() {
    if !can("names of generated code") {
        return;
    }
    let stage = Stage::new();
    let program = compiled(&stage.scratch, "jit", include_str!("attacks/jit.c"), &[]);
    let own = of_mallory(&stage.scratch, "dumps");
    for dumps in [false, true] {
        let mut words: Vec<&Path> = vec![&program];
        words.extend(dumps.then_some(&*own));
        let (_target, line) = tracked(&stage, &words);
        let (pid, address) = line.split_once(' ').expect("PID and address");
        let file = match dumps {
            true => own.join(format!("jit-{pid}.dump")),
            false => PathBuf::from(format!("/tmp/perf-{pid}.map")),
        };
        let file = InTmp(file);
        if !dumps {
            fs::write(&file.0, format!("{address} 40 from_file\n")).expect("ours");
        }
        let report = || text(&stage.run((0, ""), &["report", pid, "--by", "caller"]));
        let is_refused = |why: &str| {
            let report = report();
            let sentence = format!("{} {why}", file.0.display());
            assert!(report.contains(&sentence) && !report.contains("from_file"), "{sentence}: {report}");
        };
        let is_believed = |of: &str| {
            let report = report();
            assert!(report.contains("from_file"), "{of}: {report}");
        };
        chown(&file.0, Some(LOOKER), Some(LOOKER)).expect("root may");
        is_refused("is another user's");
        for user in [0, MALLORY] {
            chown(&file.0, Some(user), Some(user)).expect("root may");
            is_believed(&format!("user {user}"));
        }
        let written = |when| fs::File::options().write(true).open(&file.0).expect("ours").set_modified(when);
        // Left by an earlier process with the same PID.
        written(SystemTime::now() - Duration::from_secs(3600)).expect("ours");
        is_refused("is older than the process");
        written(SystemTime::now()).expect("ours");
        is_believed("the process's time");
        // The name of a dump comes from maps, where the kernel resolved all links.
        if dumps {
            continue;
        }
        let elsewhere = InTmp(file.0.with_extension("elsewhere"));
        fs::rename(&file.0, &elsewhere.0).expect("ours");
        symlink(&elsewhere.0, &file.0).expect("ours");
        is_refused("is a symbolic link");
    }
}

/// A program that compiles no new code doesn't write its map again. Then the map is older than the attach, but not than
/// the process.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_perf_map_from_before_the_attach_is_believed() {
    if !can("a perf map from before the attach") {
        return;
    }
    let stage = Stage::new();
    let program = compiled(&stage.scratch, "jit", include_str!("attacks/jit.c"), &[]);
    let (_target, line) = start(Command::new(program).env("HOME", of_mallory(&stage.scratch, "target")));
    let (pid, address) = line.split_once(' ').expect("PID and address");
    let file = InTmp(PathBuf::from(format!("/tmp/perf-{pid}.map")));
    fs::write(&file.0, format!("{address} 40 from_file\n")).expect("ours");
    chown(&file.0, Some(MALLORY), Some(MALLORY)).expect("root may");
    let written = |when| fs::File::options().write(true).open(&file.0).expect("ours").set_modified(when);
    // At the start of the process, as exactly as /proc/PID/stat has it.
    let began = start_time_ns(pid.parse().expect("a PID")).expect("it runs");
    let now = clock_gettime(ClockId::Boottime);
    let age = Duration::new(now.tv_sec as u64, now.tv_nsec as u32) - Duration::from_nanos(began);
    let began = SystemTime::now() - age;
    written(began).expect("ours");
    let attached = stage.run((0, ""), &["attach", pid, "--yes"]);
    assert!(attached.status.success(), "{}", text(&attached));
    let report = || text(&stage.run((0, ""), &["report", pid, "--by", "caller"]));
    let until = Instant::now() + LIMIT;
    let mut printed = report();
    while !printed.contains("from_file") {
        assert!(!printed.contains(&*file.0.to_string_lossy()), "the map is refused: {printed}");
        assert!(Instant::now() < until, "the process allocates nothing from its code: {printed}");
        std::thread::sleep(Duration::from_millis(50));
        printed = report();
    }
    written(began - Duration::from_secs(3600)).expect("ours");
    let printed = report();
    assert!(printed.contains("is older than the process") && !printed.contains("from_file"), "{printed}");
}

/// In /dev/shm anybody can make the directory of another user's segments first.
#[test]
fn a_directory_of_segments_is_read_if_it_belongs_to_its_user_or_root() {
    if !can("directories of segments") {
        return;
    }
    let scratch = Scratch::new("directories");
    let run = roots(&scratch, &["run", "--", "true"]).output().expect("plimsoll");
    assert!(run.status.success(), "{}", text(&run));
    let segment = only_segment(&scratch.path().join("root-s/books"));
    let script = "set -e
        mount -t tmpfs -o mode=1777 none /dev/shm
        mkdir /dev/shm/plimsoll-$user
        cp $segment /dev/shm/plimsoll-$user/$pid-1.seg
        chown $user /dev/shm/plimsoll-$user/$pid-1.seg
        chown $owner /dev/shm/plimsoll-$user
        exec \"$@\"";
    for user in [0, MALLORY] {
        let mut sleeper = Command::new("sleep");
        let sleeper = Running(sleeper.arg("600").uid(user).gid(user).stdin(Stdio::null()).spawn().expect("sleep"));
        let pid = sleeper.pid();
        // Everything but the directory is as it should be.
        let file = fs::File::options().write(true).open(&segment).expect("ours");
        file.write_all_at(&pid.to_ne_bytes(), std::mem::offset_of!(Header, pid) as u64).expect("ours");
        for (owner, is_found) in [(LOOKER, false), (0, true), (user, true)] {
            let report = roots(&scratch, &["report", &pid.to_string()]);
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", script, "sh"]).arg(report.get_program()).args(report.get_args());
            command.env("HOME", scratch.path()).env_remove("PLIMSOLL_DIR").env_remove("XDG_CACHE_HOME");
            command.env("segment", &segment).env("pid", pid.to_string());
            command.env("user", user.to_string()).env("owner", owner.to_string());
            let report = text(&command.stdin(Stdio::null()).output().expect("unshare"));
            let found = report.contains(&format!("/dev/shm/plimsoll-{user}/{pid}-1.seg"));
            assert!(report.contains("is not tracked"), "{report}");
            assert_eq!(found, is_found, "the directory of user {user} belongs to {owner}: {report}");
        }
    }
}

/// Segments in a directory that everybody can write to: those of other users have no line.
#[test]
fn a_list_of_segments_has_none_of_other_users() {
    if !can("a list of segments") {
        return;
    }
    let scratch = Scratch::new("listed");
    let run = roots(&scratch, &["run", "--", "true"]).output().expect("plimsoll");
    assert!(run.status.success(), "{}", text(&run));
    let books = scratch.path().join("root-s/books");
    let segment = only_segment(&books);
    fs::set_permissions(&books, PermissionsExt::from_mode(0o1777)).expect("ours");
    let has_row = || {
        let printed = text(&roots(&scratch, &["doctor"]).output().expect("plimsoll"));
        (printed.contains(segment.to_str().expect("UTF-8")), printed)
    };
    let (row, printed) = has_row();
    assert!(row, "root's own: {printed}");
    chown(&segment, Some(MALLORY), Some(MALLORY)).expect("root may");
    let (row, printed) = has_row();
    assert!(!row, "mallory's: {printed}");
}

/// Root in a container is not root here: a file in the container supplies no names for a file of this machine with the
/// same build id.
#[test]
fn names_from_a_container_are_not_given_to_a_file_that_is_gone() {
    if !can("names from a container") {
        return;
    }
    const BUILD_ID: &str = "0xc0ffee0000000000000000000000000000000f0f";
    let scratch = Scratch::new("container");
    let [host, inner] = ["host", "inner"].map(|name| scratch.path().join(name));
    for (folder, function) in [(&host, "genuine_function"), (&inner, "containers_function")] {
        fs::create_dir(folder).expect("a folder");
        let library = library(&scratch, "library.so", function, BUILD_ID);
        fs::rename(library, folder.join("libtwin.so")).expect("ours");
    }
    let program = caller(&scratch, &host);
    let script = "mount --bind $inner $host && exec \"$@\"";
    let start = |contained: bool, books: &Path| {
        let run = roots(&scratch, &["run", "--dir", books.to_str().expect("UTF-8"), "--"]);
        // Without its `timeout`, which would be the process that is started.
        let run: Vec<_> = run.get_args().skip(3).map(ToOwned::to_owned).collect();
        let mut command = Command::new(if contained { "unshare" } else { "env" });
        if contained {
            command.args(["-m", "sh", "-c", script, "sh"]).env("inner", &inner).env("host", &host);
        }
        command.args(&run).arg(&program).env("HOME", scratch.path().join("root-s/home"));
        Running::start(command.env_remove("XDG_CACHE_HOME").env_remove("PLIMSOLL_DIR"))
    };
    let report =
        |target: &str| text(&roots(&scratch, &["report", target, "--by", "caller"]).output().expect("plimsoll"));
    let books = scratch.path().join("books-inner");
    let (_contained, _) = start(true, &books);
    let printed = report(only_segment(&books).to_str().expect("UTF-8"));
    assert!(printed.contains("containers_function"), "{printed}");
    let books = scratch.path().join("books-host");
    let (running, _) = start(false, &books);
    drop(running);
    fs::remove_file(host.join("libtwin.so")).expect("ours");
    let printed = report(only_segment(&books).to_str().expect("UTF-8"));
    assert!(printed.contains("libtwin.so+0x") && !printed.contains("containers_function"), "{printed}");
}

/// The stated limit: in a user namespace an unmapped user can't be distinguished from root.
#[test]
fn in_a_user_namespace_unmapped_users_pass_for_the_owner_of_the_root() {
    if !can("unmapped users") {
        return;
    }
    let stage = Stage::new();
    // Another user's home, with a directory of mallory's in it.
    let home = stage.scratch.path().join("home");
    let cache = home.join("plimsoll");
    fs::create_dir_all(&cache).expect("a folder");
    chown(&home, Some(LOOKER), Some(LOOKER)).expect("root may");
    chown(&cache, Some(MALLORY), Some(MALLORY)).expect("root may");
    let own = of_mallory(&stage.scratch, "own");
    let library = |before: &[&str]| {
        let words = ["run", "--follow", "--", "sh", "-c", "echo $LD_PRELOAD"];
        let mut command = Command::new(before[0]);
        command.args(&before[1..]).arg(&stage.plimsoll).args(words).uid(MALLORY).gid(MALLORY).stdin(Stdio::null());
        command.env("XDG_CACHE_HOME", &home).env("HOME", &own).env("PLIMSOLL_DIR", own.join("books"));
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", text(&output));
        PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
    };
    assert!(library(&["env"]).starts_with(own.join(".cache/plimsoll")), "another user's directory was taken");
    assert!(library(&["unshare", "-Ur"]).starts_with(&cache), "they are distinguished now: change docs/security.md");
}

/// A cleaner of /tmp deletes the library, which a program then passes on: the loader reports that it is missing, and
/// the next program runs.
#[test]
fn a_library_that_was_cleaned_away_is_missing_and_nothing_else() {
    if !can("a cleaned cache") {
        return;
    }
    let stage = Stage::new();
    let script = "rm \"$LD_PRELOAD\"; setpriv --no-new-privs sh -c 'echo it runs'";
    let follows = stage.run((LOOKER, ""), &["run", "--follow", "--", "sh", "-c", script]);
    assert!(follows.status.success() && follows.stdout == b"it runs\n", "{}", text(&follows));
    let printed = String::from_utf8_lossy(&follows.stderr);
    assert!(printed.contains("libplimsoll") && printed.contains("cannot be preloaded"), "{printed}");
    // The next command puts it back.
    let words = ["run", "--follow", "--", "sh", "-c", "setpriv --no-new-privs sh -c 'echo it runs'"];
    let again = stage.run((LOOKER, ""), &words);
    assert!(again.status.success() && again.stderr.is_empty(), "{}", text(&again));
}
