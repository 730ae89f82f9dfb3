//! Root writes beside another user or in that user's directories: attach, record, run, explain.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::{Running, wait_until};
use crate::executable;
use crate::kit::{Canary, MALLORY, can, clear_socket, compiled, names, of_mallory, roots, start, text};
use crate::stage::{Scratch, installed};

const IDLE: &str = "public class Idle { public static void main(String[] a) throws Exception {
    System.out.println(ProcessHandle.current().pid()); Thread.sleep(600_000); } }";

/// Other users run this, too: they may read /usr/lib/jvm, but perhaps not the JDK in JAVA_HOME.
pub fn java() -> PathBuf {
    let jdks = installed();
    let jdk = jdks.iter().find(|jdk| jdk.home.starts_with("/usr/lib/jvm")).or(jdks.first());
    jdk.expect("a JDK (run .ci/setup)").bin("java")
}

/// The source of a JVM that waits, and the command line that starts it.
pub fn idle(scratch: &Scratch) -> String {
    let source = scratch.path().join("Idle.java");
    fs::write(&source, IDLE).expect("written");
    format!("exec \"{}\" -Xmx64m -XX:+EnableDynamicAgentLoading {}", java().display(), source.display())
}

/// A bind mount over `.pruned` in the target's mount namespace: O_NOFOLLOW does not prevent that. Giving the opened
/// file to the target's user would give away root's file.
#[test]
fn attach_gives_away_no_file_of_root() {
    if !can("a mount over the stamp") {
        return;
    }
    let scratch = Scratch::new("pruned");
    let home = of_mallory(&scratch, "home");
    let canary = Canary::new(scratch.path());
    let cache = home.join(".cache/plimsoll");
    let script = format!(
        "umask 077; mkdir -p {cache}; : > {cache}/.pruned; exec unshare -Urm sh -c 'mount --bind {canary} {cache}/.pruned && {idle}'",
        cache = cache.display(),
        canary = canary.path.display(),
        idle = idle(&scratch)
    );
    let mut command = Command::new("sh");
    let (target, line) = start(
        command
            .args(["-c", &script])
            .env("HOME", &home)
            .env("PLIMSOLL_DIR", home.join("books"))
            .env_remove("XDG_CACHE_HOME"),
    );
    let pid = target.0.id().to_string();
    assert_eq!(line, pid, "the JVM is the process itself");
    // The attack works if any process opens that name with root's rights.
    let naive = fs::metadata(format!("/proc/{pid}/root{}/.pruned", cache.display())).expect("root may");
    assert_eq!(naive.ino(), canary.inode());
    clear_socket(&pid);
    let output = roots(&scratch, &["attach", &pid, "--yes"]).output().expect("plimsoll");
    assert!(output.status.success(), "{}", text(&output));
    canary.sings();
    // The attach succeeded: the library is there, and belongs to mallory.
    let library = names(&cache).into_iter().find(|name| name.ends_with(".so")).expect("the library");
    assert_eq!(fs::metadata(cache.join(library)).expect("a file").uid(), MALLORY);
}

/// The target's environment names a directory that its user cannot write to.
#[test]
fn attach_makes_no_directory_where_the_target_could_not() {
    if !can("a directory of root's") {
        return;
    }
    let scratch = Scratch::new("envdir");
    let (home, roots_own) = (of_mallory(&scratch, "home"), scratch.path().join("etc"));
    fs::create_dir(&roots_own).expect("a folder");
    let canary = Canary::new(&roots_own);
    let mut command = Command::new("sh");
    command
        .args(["-c", &idle(&scratch)])
        .env("XDG_CACHE_HOME", &roots_own)
        .env("HOME", &home)
        .env("PLIMSOLL_DIR", home.join("books"));
    let (target, pid) = start(&mut command);
    clear_socket(&pid);
    let output = roots(&scratch, &["attach", &pid, "--yes"]).output().expect("plimsoll");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(names(&roots_own), ["canary"], "made in root's directory");
    assert_eq!(fs::metadata(&roots_own).expect("a folder").uid(), 0);
    canary.sings();
    drop(target);
}

/// Mounts a directory over a name and unmounts it, in an endless loop.
const SPIN: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int c, char **v) {
    // Ends with the JVM, whose child it is.
    for (int parent = getppid(); getppid() == parent;) { mkdir(v[2], 0700); mount(v[1], v[2], 0, MS_BIND, 0); sched_yield(); umount2(v[2], MNT_DETACH); rmdir(v[2]); sched_yield(); }
}"#;

/// A directory of root is mounted over the cache's name and unmounted, all the time: it may be exchanged between the
/// creation of the directory and its opening.
#[test]
fn attach_wins_no_race_for_the_cache() {
    if !can("a race") {
        return;
    }
    let scratch = Scratch::new("race");
    let (home, roots_own) = (of_mallory(&scratch, "home"), scratch.path().join("etc"));
    fs::create_dir(&roots_own).expect("a folder");
    let canary = Canary::new(&roots_own);
    let name = home.join("plimsoll");
    let spin = compiled(&scratch, "spin", SPIN, &[]);
    let script = format!(
        "exec unshare -Urm sh -c '{spin} {roots_own} {name} > /dev/null & {idle}'",
        spin = spin.display(),
        roots_own = roots_own.display(),
        name = name.display(),
        idle = idle(&scratch)
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("XDG_CACHE_HOME", &home).env("HOME", "/nowhere");
    let (target, pid) = start(command.env("PLIMSOLL_DIR", home.join("books")));
    // A process that creates the directory with root's rights and then looks at it sometimes finds root's own.
    let inside = PathBuf::from(format!("/proc/{pid}/root{}", name.display()));
    let own = fs::metadata(&roots_own).expect("a folder").ino();
    wait_until("a race that is won", || {
        fs::create_dir(&inside).is_ok() && (0..8).any(|_| fs::metadata(&inside).is_ok_and(|meta| meta.ino() == own))
    });
    clear_socket(&pid);
    for _ in 0..10 {
        let output = roots(&scratch, &["attach", &pid, "--yes"]).output().expect("plimsoll");
        assert_eq!(names(&roots_own), ["canary"], "{}", text(&output));
        assert_eq!(fs::metadata(&roots_own).expect("a folder").uid(), 0, "{}", text(&output));
        let _ = roots(&scratch, &["detach", &pid]).output().expect("plimsoll");
    }
    canary.sings();
    drop(target);
}

/// A cache of the target's user in a directory of another user's, who could exchange the library after it is written
/// and before it is loaded: the target loads it by its path.
#[test]
fn attach_puts_no_library_where_another_user_can_exchange_it() {
    const EVE: u32 = 54_322;
    if !can("another user's directory above the cache") {
        return;
    }
    let scratch = Scratch::new("exchange");
    // Like /tmp, where eve has made .cache.
    let (shared, home) = (scratch.path().join("shared"), of_mallory(&scratch, "home"));
    let eves = shared.join(".cache");
    fs::create_dir_all(&eves).expect("folders");
    for (folder, mode) in [(&shared, 0o1777), (&eves, 0o777)] {
        fs::set_permissions(folder, PermissionsExt::from_mode(mode)).expect("ours");
    }
    lchown(&eves, Some(EVE), Some(EVE)).expect("given away");
    of_mallory(&scratch, "home/.cache");
    let mut command = Command::new("sh");
    command.args(["-c", &idle(&scratch)]).env("XDG_CACHE_HOME", &eves).env("HOME", &home);
    let (_target, pid) = start(command.env("PLIMSOLL_DIR", home.join("books")));
    clear_socket(&pid);
    let output = roots(&scratch, &["attach", &pid, "--yes"]).output().expect("plimsoll");
    assert!(output.status.success(), "{}", text(&output));
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("root may");
    let library = maps.lines().find(|line| line.contains("/libplimsoll-")).expect("it is attached");
    assert!(library.contains(&format!("{}/.cache/plimsoll/", home.display())), "{library}");
    assert_eq!(names(&eves), Vec::<String>::new(), "something of mallory's lies in eve's directory");
}

/// Exchanges two names in an endless loop.
const SWAP: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <fcntl.h>
int main(int c, char **v) {
    puts("on"); fflush(stdout);
    for (;;) { renameat2(AT_FDCWD, v[1], AT_FDCWD, v[2], RENAME_EXCHANGE); for (volatile int i = 0; i < 100000; i++); }
}"#;

/// A library that leaves a trace wherever it is loaded.
const EVIL: &str = r#"
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void go(void) { close(open(TRACE, O_CREAT | O_WRONLY, 0644)); }"#;

/// HOME or XDG_CACHE_HOME of root lies in a directory of mallory's, who exchanges the cache for one with another
/// library.
#[test]
fn run_loads_no_library_from_another_users_directory() {
    if !can("another user's HOME") {
        return;
    }
    let scratch = Scratch::new("home");
    let home = of_mallory(&scratch, "home");
    let trace = scratch.path().join("trace");
    let evil = compiled(&scratch, "evil.so", EVIL, &["-shared", "-fPIC", &format!("-DTRACE=\"{}\"", trace.display())]);
    // The library leaves its trace if it is loaded.
    assert!(Command::new("true").env("LD_PRELOAD", &evil).status().expect("true").success());
    fs::remove_file(&trace).expect("it left its trace");

    let shown = |variable: &str| {
        let mut command = roots(&scratch, &["run", "--follow", "--", "sh", "-c", "echo $LD_PRELOAD"]);
        let output = command.env(variable, &home).output().expect("plimsoll");
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    for variable in ["HOME", "XDG_CACHE_HOME"] {
        let library = shown(variable);
        assert!(library.contains("/libplimsoll-") && !library.starts_with(home.to_str().expect("a path")), "{library}");
        let mut at = Path::new(&library);
        while let Some(parent) = at.parent() {
            let meta = fs::metadata(parent).expect("a directory");
            let closed = meta.mode() & 0o022 == 0 || meta.mode() & 0o1000 != 0;
            assert!(meta.uid() == 0 && closed, "{} on the way to {library}", parent.display());
            at = parent;
        }
    }
    assert_eq!(names(&home), Vec::<String>::new(), "nothing of root's lies in mallory's directory");

    // Root's existing cache, in a directory of mallory's: the name is exchanged between check and use.
    let name = Path::new(&shown("HOME")).file_name().expect("a name").to_owned();
    let (cache, other) = (home.join("plimsoll"), home.join("other"));
    fs::create_dir(&cache).expect("a folder");
    fs::set_permissions(&cache, PermissionsExt::from_mode(0o700)).expect("root may");
    of_mallory(&scratch, "home/other");
    fs::set_permissions(&other, PermissionsExt::from_mode(0o755)).expect("root may");
    fs::copy(&evil, other.join(&name)).expect("copied");
    let swap = compiled(&scratch, "swap", SWAP, &[]);
    let (swapping, _) = start(Command::new(&swap).arg(&cache).arg(&other));
    wait_until("mallory's", || fs::metadata(&cache).is_ok_and(|meta| meta.uid() == MALLORY));
    wait_until("root's", || fs::metadata(&cache).is_ok_and(|meta| meta.uid() == 0));
    for _ in 0..30 {
        let mut command = roots(&scratch, &["run", "--", "true"]);
        assert!(command.env("XDG_CACHE_HOME", &home).status().expect("plimsoll").success());
        assert!(!trace.exists(), "root ran mallory's library");
    }
    drop(swapping);
}

/// Names and links in a directory of mallory's. Its temporary names are in the tests of `own_files`.
#[test]
fn no_output_is_written_through_another_users_link() {
    if !can("links beside an output") {
        return;
    }
    let scratch = Scratch::new("output");
    let home = of_mallory(&scratch, "home");
    let canary = Canary::new(scratch.path());
    let recording = home.join("x.jfr");
    let recorded = ["run", "--record", recording.to_str().expect("a path"), "--", "sleep", "1"];
    let output = roots(&scratch, &recorded).output().expect("plimsoll");
    assert!(output.status.success() && recording.metadata().is_ok_and(|meta| meta.uid() == 0), "{}", text(&output));
    assert_eq!(names(&home), ["x.jfr"]);

    // The name itself is a link, a hard link to root's file, or a FIFO without a reader.
    let refused = |file: &Path, expected: &str| {
        let arguments = ["run", "--report", "summary", "--report-to", file.to_str().expect("a path"), "--", "true"];
        let output = roots(&scratch, &arguments).output().expect("plimsoll");
        assert_eq!(output.status.code(), Some(2), "{}: {}", file.display(), text(&output));
        assert!(text(&output).contains(expected), "{}: {}", file.display(), text(&output));
        canary.sings();
    };
    let report = |name: &str, expected: &str| refused(&home.join(name), expected);
    // In a sticky directory of root's, like /tmp, too.
    let sticky = scratch.path().join("sticky");
    fs::create_dir(&sticky).expect("a folder");
    fs::set_permissions(&sticky, PermissionsExt::from_mode(0o1777)).expect("its mode");
    for folder in [&home, &sticky] {
        let link = folder.join("link");
        symlink(&canary.path, &link).expect("a link");
        lchown(&link, Some(MALLORY), Some(MALLORY)).expect("given away");
        refused(&link, "symbolic link");
    }
    fs::hard_link(&canary.path, home.join("second")).expect("a link");
    report("second", "second hard link");
    let fifo = home.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success()
        && Command::new("chown").arg(MALLORY.to_string()).arg(&fifo).status().expect("chown").success();
    assert!(made);
    report("fifo", "FIFO of user");
    // A new file, or one in a directory of root's own, is written as usual.
    let own = scratch.path().join("root-s/report");
    for file in [home.join("new"), own] {
        let arguments = ["run", "--report", "summary", "--report-to", file.to_str().expect("a path"), "--", "true"];
        assert!(roots(&scratch, &arguments).status().expect("plimsoll").success());
        assert!(file.metadata().expect("written").len() > 0);
    }
    // Where only root can write, it behaves like a shell's `>`. In mallory's directory a file of root's own is
    // overwritten.
    let linked = scratch.path().join("root-s/linked");
    symlink("to", &linked).expect("a link");
    for file in [linked.as_path(), Path::new("/dev/stdout"), &home.join("new")] {
        let arguments = ["run", "--report", "summary", "--report-to", file.to_str().expect("a path"), "--", "true"];
        let output = roots(&scratch, &arguments).output().expect("plimsoll");
        assert!(output.status.success(), "{}: {}", file.display(), text(&output));
        assert_eq!(!output.stdout.is_empty(), file == Path::new("/dev/stdout"), "{}", text(&output));
    }
    assert!(fs::metadata(scratch.path().join("root-s/to")).expect("written").len() > 0);
}

/// A user's report goes into no file of another user's, who would read and change it, where others can make entries.
#[test]
fn a_users_output_goes_into_no_file_of_another_user() {
    const EVE: u32 = 54_322;
    if !can("outputs of a user") {
        return;
    }
    let scratch = Scratch::new("outputs");
    let sticky = scratch.path().join("sticky");
    fs::create_dir(&sticky).expect("a folder");
    fs::set_permissions(&sticky, PermissionsExt::from_mode(0o1777)).expect("its mode");
    // In a folder where mallory may run it.
    let plimsoll = scratch.path().join("plimsoll");
    executable::copy(crate::kit::PLIMSOLL, &plimsoll);
    fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    let home = of_mallory(&scratch, "home");
    let file = sticky.join("report");
    for owner in [EVE, MALLORY] {
        fs::write(&file, "kept").expect("a file");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).expect("its mode");
        lchown(&file, Some(owner), Some(owner)).expect("given away");
        let mut command = Command::new(&plimsoll);
        command.args(["run", "--report", "summary", "--report-to"]).arg(&file).args(["--", "true"]);
        command.uid(MALLORY).gid(MALLORY).env("HOME", &home).env_remove("XDG_CACHE_HOME").stdin(Stdio::null());
        let output = command.env("PLIMSOLL_DIR", home.join("books")).output().expect("plimsoll");
        let written = fs::read_to_string(&file).expect("a file");
        if owner == MALLORY {
            assert!(output.status.success() && written != "kept", "{}", text(&output));
        } else {
            assert_eq!((output.status.code(), written.as_str()), (Some(2), "kept"), "{}", text(&output));
            assert!(text(&output).contains("it belongs to user 54322"), "{}", text(&output));
        }
    }
}

/// Where the cache lies if the first directories are unusable: HOME of another user, a home directory that others can
/// write to, or none.
#[test]
fn the_cache_is_the_first_usable_directory() {
    if !can("places of the cache") {
        return;
    }
    let scratch = Scratch::new("places");
    let home = of_mallory(&scratch, "home");
    // In a folder where mallory may run it; nothing of the machine is changed.
    let plimsoll = scratch.path().join("plimsoll");
    executable::copy(crate::kit::PLIMSOLL, &plimsoll);
    let script = "set -e
        for place in /root /var/cache; do mount -t tmpfs -o mode=$mode none $place; done
        exec setpriv --reuid $user --regid $user --clear-groups \"$0\" run --follow -- sh -c 'echo $LD_PRELOAD'";
    let shown = |user: &str, mode: &str, home: &Path| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(&plimsoll).stdin(Stdio::null());
        command.env("user", user).env("mode", mode).env("HOME", home).env_remove("XDG_CACHE_HOME");
        let output =
            command.env("PLIMSOLL_DIR", scratch.path().join(format!("books-{user}"))).output().expect("unshare");
        assert!(output.status.success(), "{}", text(&output));
        let library = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        library.parent().expect("a folder").to_owned()
    };
    fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o1777)).expect("ours");
    let user = MALLORY.to_string();
    assert_eq!(shown("0", "755", &home), Path::new("/root/.cache/plimsoll"), "another user's HOME");
    assert_eq!(shown(&user, "755", &home), home.join(".cache/plimsoll"));
    let of_user = PathBuf::from(format!("/tmp/plimsoll-{user}-cache"));
    assert_eq!(shown(&user, "755", Path::new("/nonexistent")), of_user);
    fs::remove_dir_all(of_user).expect("root may");
    // A home directory that any user may change.
    let open = "set -e; mount -t tmpfs -o mode=777 none /root; mount -t tmpfs -o mode=755 none /var/cache
        exec \"$0\" run --follow -- sh -c 'echo $LD_PRELOAD'";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", open]).arg(&plimsoll).env("HOME", &home).env_remove("XDG_CACHE_HOME");
    let output = command.env("PLIMSOLL_DIR", scratch.path().join("books-open")).output().expect("unshare");
    let library = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(library.starts_with("/var/cache/plimsoll/"), "{}", text(&output));
}

/// On a file system that is read-only except for what the page says that a command writes, each command works.
#[test]
fn a_verb_writes_only_what_the_page_names() {
    if !can("read-only file systems") {
        return;
    }
    let scratch = Scratch::new("verbs");
    let own = scratch.path().join("own");
    fs::create_dir(&own).expect("a folder");
    let books = own.join("books");
    let run = roots(&scratch, &["run", "--", "true"]).env("PLIMSOLL_DIR", &books).output().expect("plimsoll");
    assert!(run.status.success(), "{}", text(&run));
    let segment = crate::commands::only_segment(&books);
    let (_target, pid) = start(Command::new("sh").args(["-c", "echo $$; exec sleep 600"]));
    let script = "set -e
        own=$1; shift
        mount --make-rprivate /
        mount --bind $own $own
        awk '{print $5}' /proc/self/mountinfo | while read at; do
            case $at in $own|/proc|/proc/*|/sys/*) ;; *) mount -o remount,bind,ro $at 2> /dev/null || true ;; esac
        done
        for at in /tmp /var/tmp /dev/shm /run $HOME; do
            if touch $at/plimsoll-test 2> /dev/null; then rm $at/plimsoll-test; echo $at can be written to; exit 9; fi
        done
        exec \"$@\"";
    let segment = segment.to_str().expect("UTF-8");
    let (recording, more) = (own.join("recording.jfr"), own.join("more"));
    let more = more.to_str().expect("UTF-8");
    let recording = recording.to_str().expect("UTF-8");
    let verbs: [(&[&str], &[&str]); 7] = [
        (&["explain", &pid], &["cache"]),
        (&["record", &pid, "--duration", "1s", "-o", recording], &["cache", "recording.jfr"]),
        (&["report", segment], &["cache"]),
        (&["diff", segment, segment], &["cache"]),
        (&["why", "native-leak"], &[]),
        (&["run", "--dir", more, "--", "true"], &["cache", "more"]),
        (&["doctor"], &["cache"]),
    ];
    for (words, may) in verbs {
        let _ = fs::remove_dir_all(own.join("cache"));
        let before = names(&books);
        let plimsoll = roots(&scratch, words);
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&own).arg(plimsoll.get_program()).args(plimsoll.get_args());
        command.envs(plimsoll.get_envs().filter_map(|(key, value)| Some((key, value?)))).stdin(Stdio::null());
        // For doctor: it may write to the directory of the segments.
        command.env("XDG_CACHE_HOME", own.join("cache")).env("PLIMSOLL_DIR", &books);
        let output = command.output().expect("unshare");
        assert!(output.status.success(), "{words:?}: {}", text(&output));
        let made = names(&own).into_iter().filter(|name| name != "books");
        assert!(made.clone().all(|name| may.contains(&&*name)), "{words:?} made {:?}", made.collect::<Vec<_>>());
        assert_eq!(names(&books), before, "{words:?}");
        for name in ["recording.jfr", "more"] {
            let _ = fs::remove_file(own.join(name)).or_else(|_| fs::remove_dir_all(own.join(name)));
        }
    }
}

/// A process that looks like a JVM: libjvm mapped, SIGQUIT caught and ignored.
const FAKE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
static void quit(int s) { }
/* fake LIBJVM DIRECTORY MODE SECONDS: none, or a listening attach socket that drips, floods, prints short lines without end, or
   answers each command after SECONDS. It prints a line for each command. With a second word in MODE a FIFO takes
   libjvm's place. */
int main(int c, char **v) {
    signal(SIGQUIT, quit); signal(SIGPIPE, SIG_IGN); signal(SIGCHLD, SIG_IGN);
    int f = open(v[1], O_RDONLY);
    if (chdir(v[2]) || mmap(0, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE, f, 0) == MAP_FAILED) return 1;
    if (strchr(v[3], ' ') && (unlink(v[1]) || mkfifo(v[1], 0666))) return 3;
    int s = -1;
    struct sockaddr_un a = { AF_UNIX };
    if (strcmp(v[3], "none")) {
        sprintf(a.sun_path, "/tmp/.java_pid%d", getpid()); unlink(a.sun_path);
        s = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(s, (void *)&a, sizeof a) || listen(s, 50)) return 2;
    }
    printf("%d\n", getpid()); fflush(stdout);
    if (s < 0) for (;;) pause();
    static char flood[1 << 16]; memset(flood, 'x', sizeof flood);
    static char lines[1 << 16]; for (int i = 0; i < sizeof lines; i++) lines[i] = i % 2 ? '\n' : 'y';
    for (;;) {
        int k = accept(s, 0, 0);
        if (k < 0 || fork()) { close(k); continue; }
        char request[999]; if (read(k, request, sizeof request) > 0) { puts("asked"); fflush(stdout); }
        if (*v[3] == 'd') for (;;) { if (write(k, "0", 1) <= 0) _exit(0); sleep(1); }
        if (*v[3] == 's') {
            static char text[] = "0\nNative memory tracking is not enabled\n";
            sleep(atoi(v[4])); write(k, text, sizeof text - 1); _exit(0);
        }
        write(k, "0\n", 2);
        while (write(k, *v[3] == 'f' ? flood : lines, sizeof flood) > 0);
        _exit(0);
    }
}"#;

pub fn fake(scratch: &Scratch, directory: &Path, mode: &str) -> (Running, String) {
    let libjvm = java().parent().and_then(Path::parent).expect("a JDK").join("lib/server/libjvm.so");
    fake_with(scratch, &libjvm, directory, mode, 0)
}

/// `seconds`: the time for each answer of a slow one.
pub fn fake_with(scratch: &Scratch, libjvm: &Path, directory: &Path, mode: &str, seconds: u64) -> (Running, String) {
    let program = compiled(scratch, "fake", FAKE, &[]);
    // If a killed JVM of root's had the same PID, its socket is in the way, and the program ends silently.
    let attempt = || start(Command::new(&program).arg(libjvm).arg(directory).arg(mode).arg(seconds.to_string()));
    let running = std::iter::repeat_with(attempt).take(20).find(|(_, pid)| !pid.is_empty());
    running.expect("one of 20 PIDs has no socket yet")
}

/// How many commands the fake VM has received until its end.
pub fn commands_of(mut target: Running) -> usize {
    let mut printed = String::new();
    let mut output = target.0.stdout.take().expect("piped");
    drop(target);
    output.read_to_string(&mut printed).expect("text");
    printed.lines().filter(|line| *line == "asked").count()
}

/// The request file of the handshake is never created where the target's user could not have created it, and is never
/// left behind.
#[test]
fn explain_leaves_no_request_file() {
    if !can("a request file") {
        return;
    }
    let scratch = Scratch::new("request");
    let roots_own = scratch.path().join("etc");
    fs::create_dir(&roots_own).expect("a folder");
    let canary = Canary::new(&roots_own);
    let (_target, pid) = fake(&scratch, &roots_own, "none");
    clear_socket(&pid);
    let request = PathBuf::from(format!("/tmp/.attach_pid{pid}"));
    let output = roots(&scratch, &["explain", &pid]).output().expect("plimsoll");
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("did not open its attach socket"), "the VM was queried: {}", text(&output));
    assert_eq!(names(&roots_own), ["canary"], "made in root's directory");
    assert!(!request.exists());
    // Also when killed halfway: plimsoll waits for the VM for a second and a half, in which a busy machine may not run
    // this test.
    assert!((0..20).any(|_| is_killed_with_its_request(&scratch, &pid, &roots_own)), "no attempt came in time");
    canary.sings();
}

/// Kills an `explain` that waits for the VM, and looks for what it leaves. False: it ended before the kill.
fn is_killed_with_its_request(scratch: &Scratch, pid: &str, roots_own: &Path) -> bool {
    let request = PathBuf::from(format!("/tmp/.attach_pid{pid}"));
    let mut explain = roots(scratch, &["explain", pid]);
    let mut explain = Running(explain.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("plimsoll"));
    let (mut owner, mut has_ended) = (None, false);
    wait_until("a request file", || {
        owner = fs::metadata(&request).map(|meta| meta.uid()).ok();
        has_ended = explain.try_wait().expect("our child").is_some();
        assert_eq!(names(roots_own), ["canary"], "made in root's directory");
        owner.is_some() || has_ended
    });
    if has_ended {
        assert!(!request.exists());
        return false;
    }
    assert_eq!(owner, Some(MALLORY), "it is the target's user's");
    // kill(2) on the child of timeout: starting a program such as kill(1) may take longer than the wait.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", explain.id())).unwrap_or_default();
    for child in children.split_whitespace() {
        let child = rustix::process::Pid::from_raw(child.parse().expect("a PID")).expect("a PID");
        let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    }
    let status = explain.wait().expect("our child");
    wait_until("the request file gone", || !request.exists());
    assert_eq!(names(roots_own), ["canary"]);
    // timeout ends as its child did, or by the shell's number of the signal.
    status.signal() == Some(9) || status.code() == Some(128 + 9)
}

/// A file of another user in place of a VM's attach socket: the advice is never an rm by root along the target's links.
#[test]
fn only_its_owner_can_remove_a_taken_attach_socket() {
    if !can("a taken attach socket") {
        return;
    }
    const OWNER: u32 = MALLORY + 2;
    let scratch = Scratch::new("taken");
    let idle = idle(&scratch);
    let has_sudo =
        std::env::split_paths(&std::env::var_os("PATH").expect("PATH")).any(|dir| dir.join("sudo").is_file());
    let as_owner = match has_sudo {
        true => format!("sudo -u '#{OWNER}' rm /tmp/.java_pid"),
        false => format!("setpriv --reuid={OWNER} --clear-groups rm /tmp/.java_pid"),
    };
    let places = [
        (idle.clone(), as_owner),
        (
            format!("exec unshare -Urm sh -c '{idle}'"),
            format!("inside its container, as user {OWNER}: rm /tmp/.java_pid"),
        ),
    ];
    for (script, expected) in places {
        let home = of_mallory(&scratch, "target");
        let (_target, pid) = start(Command::new("sh").args(["-c", &script]).env("HOME", home));
        let socket = format!("/tmp/.java_pid{pid}");
        clear_socket(&pid);
        fs::write(&socket, "").expect("root may");
        std::os::unix::fs::chown(&socket, Some(OWNER), Some(OWNER)).expect("root may");
        let output = roots(&scratch, &["explain", "--format", "json", &pid]).output().expect("plimsoll");
        let _ = fs::remove_file(&socket);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let mut gaps = report["gaps"].as_array().expect("gaps").iter();
        let gap = gaps
            .find(|g| g["reason"].as_str().is_some_and(|r| r.contains("name of its attach socket")))
            .expect("the gap");
        let remedy = gap["remedy"].as_str().expect("text");
        assert!(remedy.starts_with(&format!("{expected}{pid} ")), "{remedy}");
    }
}

/// An attach socket that answers one byte a second, or endlessly: one limit for the whole command, and one for what is
/// kept.
#[test]
fn no_answer_of_a_vm_costs_root_its_time_or_memory() {
    if !can("an attach socket") {
        return;
    }
    let scratch = Scratch::new("socket");
    for mode in ["drip", "flood", "lines"] {
        let (target, pid) = fake(&scratch, Path::new("/"), mode);
        let mut command = Command::new("prlimit");
        // Far above what explain needs for any process here.
        let explain = roots(&scratch, &["explain", &pid]);
        command.arg("--as=2147483648").arg(explain.get_program()).args(explain.get_args()).stdin(Stdio::null());
        // A command that waits for the end of such an answer is killed.
        let output = command.output().expect("plimsoll");
        let _ = fs::remove_file(format!("/tmp/.java_pid{pid}"));
        assert!(output.status.success(), "{mode}: {}", text(&output));
        // The first command uses up the time for all of them.
        let asked = commands_of(target);
        assert!(mode != "drip" || asked == 1, "{mode}: {asked} commands");
    }
}

/// Any user can create root's directory names for segments in /dev/shm and /tmp; root then uses one where only root
/// can.
#[test]
fn nobody_keeps_root_from_tracking() {
    if !can("squatted directories") {
        return;
    }
    let scratch = Scratch::new("squat");
    let script = "set -e
        keep=$1; shift
        mount -t tmpfs -o mode=755 none /run
        mount -t tmpfs -o mode=1777 none /dev/shm
        mkdir /dev/shm/plimsoll-0; chown $mallory /dev/shm/plimsoll-0
        mkdir -p /dev/shm/here; mount --bind $keep /dev/shm/here
        mount -t tmpfs -o mode=1777 none /tmp
        mkdir -p /tmp/plimsoll-0 $keep; mount --bind /dev/shm/here $keep; chown $mallory /tmp/plimsoll-0
        \"$@\"; ls /run/plimsoll-0; ls /tmp/plimsoll-0 /dev/shm/plimsoll-0";
    let run = roots(&scratch, &["run", "--", "true"]);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(scratch.path()).arg(run.get_program()).args(run.get_args());
    command.env("mallory", MALLORY.to_string()).env("HOME", scratch.path().join("root-s/home"));
    command.env_remove("PLIMSOLL_DIR").env_remove("XDG_CACHE_HOME");
    let output = command.output().expect("unshare");
    assert!(output.status.success(), "{}", text(&output));
    let printed = text(&output);
    assert_eq!(printed.matches(".seg").count(), 1, "{printed}");
    let squatted = printed.split_once("/tmp/plimsoll-0:").expect("a listing").1;
    assert!(!squatted.contains(".seg"), "root's books lie in mallory's directory: {printed}");
}

/// The user can make nothing beside its directory of segments: a volume in a read-only root, or a name that another
/// user made first.
#[test]
fn tracked_runs_of_compare_leave_their_segments_in_a_directory_of_the_user() {
    if !can("tracked runs of compare") {
        return;
    }
    let scratch = Scratch::new("compared");
    let (plimsoll, books) = (scratch.path().join("plimsoll"), of_mallory(&scratch, "books"));
    executable::copy(crate::kit::PLIMSOLL, &plimsoll);
    fs::set_permissions(&plimsoll, PermissionsExt::from_mode(0o755)).expect("ours");
    let source = include_str!("../../../../fixtures/c/startup.c");
    let program = compiled(&scratch, "startup", source, &["-fno-builtin"]);
    let [a, b] = ["4 0 end", "24 0 end"].map(|arguments| format!("{} {arguments}", program.display()));
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300"]).arg(&plimsoll).args(["compare", "--runs", "3", "--tracked", "1"]);
    command.args(["--a", &a, "--b", &b]).uid(MALLORY).gid(MALLORY).current_dir("/").stdin(Stdio::null());
    command.env("HOME", of_mallory(&scratch, "home")).env("PLIMSOLL_DIR", &books).env_remove("XDG_CACHE_HOME");
    let output = command.output().expect("timeout");
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("load_index") && !printed.contains("no call stacks"), "{printed}");
    assert_eq!(names(&books), Vec::<String>::new(), "segments of the runs are left");
}

/// The entrypoint of a database's image gives up root, and then each exec loads the tracker as that user. Nobody
/// reaches what lies below a closed home directory.
#[test]
fn a_program_that_gave_up_root_still_loads_the_tracker() {
    if !can("a program that gives up root") {
        return;
    }
    let scratch = Scratch::new("given-up");
    // Nothing of the machine is changed: the mounts are in a namespace of their own. The umask must not matter.
    let script = "set -e; umask 077
        for place in /root /var/cache /dev/shm; do mount -t tmpfs none $place; done
        chmod $home /root; chmod 755 /var/cache; chmod 1777 /dev/shm
        if [ -n \"$old\" ]; then mkdir -p $old; chmod 700 $old; fi
        \"$0\" run --follow $dir -- setpriv --reuid $user --regid $user --clear-groups sh -c \
            'echo $LD_PRELOAD; echo $PLIMSOLL_RULES; ls -ld ${LD_PRELOAD%/*} >&2; id -u'
        # Another command opens its cache, and leaves this one open to others.
        \"$0\" run --report detail --report-to /dev/null -- true
        stat -c '%a %u' $at $at/*.so; find $at -perm /022 ! -type l; ls -A /dev/shm/plimsoll-$user";
    let user = MALLORY.to_string();
    let plimsoll = scratch.path().join("plimsoll");
    executable::copy(crate::kit::PLIMSOLL, &plimsoll);
    let run = |home: &str, (variable, value): (&str, &str), old: &str, at: &str, dir: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(&plimsoll).stdin(Stdio::null());
        command.env("HOME", "/root").env_remove("XDG_CACHE_HOME").env_remove("PLIMSOLL_DIR").env_remove("LD_PRELOAD");
        command.env("user", &user).env("home", home).env("old", old).env("at", at).env("dir", dir);
        command.env(variable, value).output().expect("unshare")
    };
    let books = scratch.path().join("books");
    let into = format!("--dir {}", books.display());
    for (home, variable, old, at) in [
        ("700", ("none", ""), "", "/var/cache/plimsoll"),
        ("700", ("none", ""), "/root/.cache/plimsoll", "/var/cache/plimsoll"),
        ("700", ("none", ""), "/var/cache/plimsoll", "/var/cache/plimsoll"),
        ("755", ("none", ""), "", "/root/.cache/plimsoll"),
        ("700", ("XDG_CACHE_HOME", "/var/cache/chosen"), "", "/var/cache/chosen/plimsoll"),
    ] {
        let output = run(home, variable, old, at, "");
        let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && !said.contains("ld.so"), "{at}, {old}: {printed}{said}");
        let lines: Vec<&str> = printed.lines().collect();
        let [library, rules, id, of_folder, of_library, segments @ ..] = &lines[..] else { panic!("{printed}{said}") };
        assert!(library.starts_with(&format!("{at}/libplimsoll-")), "{at}: {library}");
        assert!(rules.starts_with(&format!("{at}/run-")), "{at}: {rules}");
        assert_eq!((*id, *of_folder, *of_library), (&*user, "711 0", "555 0"), "{at}, {old}: {printed}");
        // The shell, ls and id; setpriv's are root's.
        assert!(segments.len() >= 3 && segments.iter().all(|name| name.ends_with(".seg")), "{at}: {printed}");
    }
    // Root's directory of segments stays closed: no books, but no complaint of ld.so either.
    let output = run("700", ("none", ""), "", "/var/cache/plimsoll", &into);
    assert!(!text(&output).contains("ld.so") && text(&output).contains(&user), "{}", text(&output));
    assert_eq!(fs::metadata(&books).expect("made").mode() & 0o7777, 0o700);
    assert_eq!(names(&books).len(), 1, "setpriv's alone: {:?}", names(&books));
    // Then the report at the end is of root's books, and says why there are no others.
    let output = run("700", ("none", ""), "", "/var/cache/plimsoll", &format!("{into} --report summary"));
    assert!(
        text(&output).contains(&format!("which user {MALLORY} ran. No books of it were found")),
        "{}",
        text(&output)
    );
    // Where XDG_CACHE_HOME is closed to others, it is kept: it was chosen.
    let output = run("700", ("XDG_CACHE_HOME", "/root/chosen"), "", "/root/chosen/plimsoll", "");
    assert!(text(&output).contains("/root/chosen/plimsoll/libplimsoll-"), "{}", text(&output));
}
