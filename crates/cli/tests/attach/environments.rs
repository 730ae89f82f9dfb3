//! Targets in containers, in roots of their own, on mounts without exec, and of other users. Cases that need root are
//! counted and reported if the machine cannot run them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::{Running, wait_until};
use crate::kit::{Java, Jdk, PLIMSOLL, can_read_filters, jdks, launcher, plimsoll};
use crate::stage::{Scratch, log_line, mounting};

const NOBODY: u32 = 65534;

/// Whether this machine allows the case. A case that it does not allow is reported.
fn can(case: &str, command: &mut Command) -> bool {
    let can = command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success());
    if !can {
        log_line(&format!("attach, {case}: skipped, the machine doesn't allow {command:?}"));
    }
    can
}

pub fn can_contain(case: &str) -> bool {
    can(case, Command::new("unshare").args(["-mpf", "--mount-proc", "mount", "-t", "tmpfs", "none", "/mnt"]))
}

/// The command in PID and mount namespaces of its own, after a script of mounts.
pub fn contained(unshare: &[&str], script: &str, command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(["-mpf", "--mount-proc", "--kill-child"]).args(unshare).args(mounting(script));
    inside.arg(command.get_program()).args(command.get_args());
    inside
}

/// One round on a JVM in any environment: after the attach the books equal the program's log, and after the detach the
/// program goes on.
fn attach_and_detach(java: &mut Java, context: &str) -> String {
    let stderr = java.done(&["attach", &java.pid(), "--sites", "exact"]);
    // With the path of the call: PATH doesn't lead to this build.
    let then = format!("{0} report {1}   {0} detach {1}", crate::kit::PLIMSOLL, java.pid());
    assert!(stderr.contains(&then), "{stderr}");
    assert_eq!(java.send("turn"), "turned");
    let log = java.stop();
    let report = java.report();
    let inflaters = crate::category(&report, "zlib").0;
    assert_eq!(inflaters, 2 * log.inflaters, "{context}: {log:?}{}", crate::dump(&report));
    assert!(inflaters > 0 && report["state"] == "live", "{context}: {log:?}");
    assert_eq!(java.send("go"), "gone");
    java.done(&["detach", &java.pid()]);
    let again = java.done(&["attach", &java.pid(), "--sites", "sampled"]);
    assert!(again.contains("attached to process"), "{context}: {again}");
    assert_eq!(java.send("turn"), "turned");
    java.done(&["detach", &java.pid()]);
    stderr
}

/// The path of the mapped library as the target sees it.
fn library(java: &Java) -> String {
    let maps = java.mappings();
    let line = maps
        .lines()
        .find(|line| line.rsplit('/').next().is_some_and(|name| name.starts_with("libplimsoll-")))
        .expect("the library is mapped");
    line.split_once('/').map(|(_, path)| format!("/{path}")).expect("a path")
}

/// Own namespaces for PID, mount and IPC, with own /tmp and /dev/shm, as docker makes them.
#[test]
fn a_vm_in_a_container_is_tracked() {
    if !can_contain("a container") {
        return;
    }
    for jdk in jdks() {
        let mounts = "mount -t tmpfs none /tmp; mount -t tmpfs -o mode=1777 none /dev/shm";
        let mut command = contained(&["-i", "-u"], mounts, &jdk.java(&[], &["Rounds"]));
        command.env("HOME", "/nowhere").env_remove("XDG_CACHE_HOME").env_remove("PLIMSOLL_DIR");
        let mut java = Java::start_as_it_is(command, &format!("container-{}", jdk.major));
        assert_ne!(java.pid(), java.child.id().to_string(), "it runs in namespaces of its own");
        let stderr = attach_and_detach(&mut java, &format!("JDK {}", jdk.major));
        assert!(stderr.contains("/root/dev/shm/plimsoll-0/1-"), "the segment is process 1's: {stderr}");
        assert!(library(&java).starts_with("/tmp/plimsoll-0-cache/"), "{}", library(&java));
    }
}

/// A root of its own, in which only some directories of this machine exist.
#[test]
fn a_vm_in_a_root_of_its_own_is_tracked() {
    if !can_contain("a root of its own") {
        return;
    }
    let jdk = jdks().last().expect("a JDK");
    let root = Scratch::new("root");
    let java = jdk.java(&[], &["Rounds"]);
    let classes = jdk.classes();
    let script = format!(
        "mount -t tmpfs none {root}; cd {root}; mkdir proc tmp etc dev home
         for d in usr lib lib64 bin; do mkdir $d; mount --rbind /$d $d; done
         mkdir -p \".{classes}\" \".{home}\"
         mount --bind \"{classes}\" \".{classes}\"; mount --bind \"{home}\" \".{home}\"
         mount -t proc none proc; mount -t tmpfs none dev; mkdir dev/shm; mknod dev/null c 1 3; mknod dev/random c 1 8; mknod dev/urandom c 1 9
         set -- chroot {root} \"$@\"",
        root = root.path().display(),
        classes = classes.display(),
        home = jdk.home.display(),
    );
    let mut command = contained(&[], &script, &java);
    command.env("HOME", "/home").env_remove("XDG_CACHE_HOME").env_remove("PLIMSOLL_DIR");
    let mut java = Java::start_as_it_is(command, "root");
    let link = fs::read_link(format!("/proc/{}/root", java.pid())).expect("its root");
    assert_eq!(link, root.path());
    attach_and_detach(&mut java, "chroot");
    assert!(library(&java).contains("/tmp/plimsoll-0-cache/"), "{}", library(&java));
    assert!(!Path::new("/home/.cache/plimsoll").exists(), "nothing was written outside");
}

/// Mounts noexec file systems over all directories that any user may write to.
pub fn nothing_executable() -> String {
    noexec(&["/tmp", "/var/tmp", "/dev/shm", "/var/cache", "/run"])
}

fn noexec(directories: &[&str]) -> String {
    directories.iter().map(|d| format!("mount -t tmpfs -o noexec,mode=1777 none {d}\n")).collect()
}

/// /tmp and the caches are mounted noexec: attach finds the next directory. If there is none, it loads the library from
/// memory. If that is impossible, too, one sentence names each directory.
#[test]
fn a_library_that_no_folder_may_execute_comes_from_memory() {
    if !can_contain("noexec") {
        return;
    }
    let jdk = jdks().last().expect("a JDK");
    let start = |name: &str, mounts: &str, command: &Command| {
        let mounts = format!("{mounts}mkdir -p /tmp/home/.cache /tmp/xdg; chmod 700 /tmp/home /tmp/xdg");
        let mut command = contained(&[], &mounts, command);
        command.env("HOME", "/tmp/home").env("XDG_CACHE_HOME", "/tmp/xdg").env_remove("PLIMSOLL_DIR");
        Java::start_as_it_is(command, name)
    };
    let rounds = jdk.java(&[], &["Rounds"]);
    let mut java = start("noexec", &noexec(&["/tmp", "/var/tmp"]), &rounds);
    attach_and_detach(&mut java, "noexec");
    assert!(library(&java).starts_with("/dev/shm/plimsoll-0-cache/"), "{}", library(&java));

    let mut java = start("noexec-everywhere", &nothing_executable(), &rounds);
    attach_and_detach(&mut java, "from memory");
    assert!(library(&java).starts_with("/memfd:/plimsoll/libplimsoll-"), "{}", library(&java));

    let shut = jdk.java(&["-XX:-EnableDynamicAgentLoading"], &["Rounds"]);
    let java = start("noexec-and-shut", &nothing_executable(), &shut);
    let output = plimsoll(&["attach", &java.pid(), "--yes"]);
    let sentence = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{sentence}");
    assert!(sentence.ends_with("accepts no agent: it was started with -XX:-EnableDynamicAgentLoading\n"), "{sentence}");
    assert!(java.is_untouched(), "its options forbid agents");

    if !can_read_filters("noexec, and a filter that forbids memfd_create") {
        return;
    }
    let mut filtered = Command::new(launcher());
    filtered.args([&format!("{}=50001", libc::SYS_memfd_create), "7fff0000", "--"]);
    filtered.arg(rounds.get_program()).args(rounds.get_args());
    let mut java = start("noexec-and-filtered", &nothing_executable(), &filtered);
    let output = plimsoll(&["attach", &java.pid(), "--yes"]);
    let sentence = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = sentence.lines().last().expect("a sentence");
    assert_eq!(output.status.code(), Some(2), "{sentence}");
    for place in ["/tmp/xdg/plimsoll", "/tmp/home/.cache/plimsoll", "/var/tmp/", "/dev/shm/", "/var/cache/", "/run/"] {
        assert!(last.contains(place), "{place}: {last}");
    }
    assert!(last.contains("is mounted noexec") && last.contains("plimsoll run"), "{last}");
    assert!(last.contains("a file in its memory: ") && last.contains("does not allow memfd_create"), "{last}");
    assert_eq!(last.matches("plimsoll run").count(), 1, "{last}");
    assert!(java.is_untouched(), "nothing was left in it");
    assert_eq!(java.send("turn"), "turned");
}

/// A full directory is skipped, and the partly written file is removed from it.
#[test]
fn a_full_cache_is_skipped() {
    if !can_contain("a full cache") {
        return;
    }
    let jdk = jdks().last().expect("a JDK");
    let mounts = "mount -t tmpfs none /tmp; mkdir /tmp/small; mount -t tmpfs -o size=64k none /tmp/small; mount -t tmpfs none /dev/shm";
    let mut command = contained(&[], mounts, &jdk.java(&[], &["Rounds"]));
    command.env("XDG_CACHE_HOME", "/tmp/small").env("HOME", "/nowhere").env_remove("PLIMSOLL_DIR");
    let mut java = Java::start_as_it_is(command, "full-cache");
    attach_and_detach(&mut java, "full cache");
    assert!(library(&java).starts_with("/tmp/plimsoll-0-cache/"), "{}", library(&java));
    let left = fs::read_dir(format!("/proc/{}/root/tmp/small/plimsoll", java.pid())).expect("it was tried");
    assert_eq!(left.count(), 0, "half a library was left");
}

/// Copies a program or folder to where any user may go.
fn open_to_all(scratch: &Scratch, from: &Path) -> PathBuf {
    let to = scratch.path().join(from.file_name().expect("a name"));
    assert!(Command::new("cp").arg("-r").arg(from).arg(&to).status().expect("cp").success());
    assert!(Command::new("chmod").args(["-R", "a+rX"]).arg(&to).status().expect("chmod").success());
    to
}

/// The JVM of another user, started as that user would.
fn of_nobody(jdk: &Jdk, scratch: &Scratch, wrap: &[&str], name: &str) -> Java {
    let classes = open_to_all(scratch, &jdk.classes());
    let own = |name: &str| {
        let folder = scratch.path().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        chown(&folder, Some(NOBODY), Some(NOBODY)).expect("root may");
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).expect("root may");
        folder
    };
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]).args(wrap);
    let java = if jdk.home.starts_with("/usr") {
        jdk.home.join("bin/java")
    } else {
        open_to_all(scratch, &jdk.home).join("bin/java")
    };
    command.arg(java).args(["-Xmx64m", "-cp"]).arg(classes).arg("Rounds");
    command.env("HOME", own("home")).env("XDG_CACHE_HOME", own("cache")).env("PLIMSOLL_DIR", own("books"));
    command.current_dir(scratch.path());
    Java::start_as_it_is(command, &format!("{name}-{}", jdk.major))
}

pub fn is_root(case: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        log_line(&format!("attach, {case}: skipped, it takes root to become another user"));
    }
    root
}

#[test]
fn root_attaches_to_another_users_process() {
    if !is_root("another user's") {
        return;
    }
    for jdk in jdks() {
        let scratch = Scratch::new("nobody");
        let mut java = of_nobody(jdk, &scratch, &[], "nobody");
        // As if a killed VM of root had had the same PID: its socket is in the way. Plimsoll removes nothing with
        // root's rights; the message names the file.
        let dead = format!("/tmp/.java_pid{}", java.pid());
        let _ = fs::remove_file(&dead);
        drop(UnixListener::bind(&dead).expect("a socket"));
        // A child that another test forks has a copy of the listener until its exec.
        wait_until("nobody to listen", || UnixStream::connect(&dead).is_err());
        let refused = plimsoll(&["attach", &java.pid(), "--yes"]);
        let sentence = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{sentence}");
        assert!(sentence.contains(&format!("{dead}, the name of its attach socket, belongs to user 0")), "{sentence}");
        fs::remove_file(&dead).expect("it was left alone");
        let stderr = attach_and_detach(&mut java, &format!("JDK {}, nobody's", jdk.major));
        assert!(stderr.contains(&format!("{}/books/", scratch.path().display())), "{stderr}");
        use std::os::unix::fs::MetadataExt;
        let entries = |name: &str| fs::read_dir(scratch.path().join(name)).expect("it is there").flatten();
        let files: Vec<_> = entries("cache/plimsoll").chain(entries("books")).map(|e| e.path()).collect();
        assert!(files.len() >= 3, "library, rules, segment: {files:?}");
        for file in files {
            assert_eq!(file.metadata().expect("a file").uid(), NOBODY, "{}", file.display());
        }
    }
}

/// A VM in a user namespace takes commands only from its own user: root outside of the namespace has no special rights
/// in it.
#[test]
fn root_attaches_into_a_user_namespace() {
    let mut inside = Command::new("setpriv");
    inside.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
    inside.args(["unshare", "-Umpf", "--map-root-user", "--mount-proc", "true"]);
    if !is_root("a user namespace") || !can("a user namespace", &mut inside) {
        return;
    }
    let jdk = jdks().last().expect("a JDK");
    let scratch = Scratch::new("namespace");
    let wrap = ["unshare", "-Umpf", "--map-root-user", "--mount-proc", "--kill-child"];
    let mut java = of_nobody(jdk, &scratch, &wrap, "namespace");
    attach_and_detach(&mut java, "a user namespace");
}

/// A user without the right gets one sentence with what to type, and nothing happens.
#[test]
fn another_user_is_refused() {
    if !is_root("another user") {
        return;
    }
    let jdk = jdks().last().expect("a JDK");
    let mut java = jdk.start("roots", &["-XX:+EnableDynamicAgentLoading"]);
    let scratch = Scratch::new("other");
    let copy = open_to_all(&scratch, Path::new(PLIMSOLL));
    for verb in ["attach", "detach"] {
        let mut command = Command::new(&copy);
        command.args([verb, &java.pid()]).uid(NOBODY).gid(NOBODY).env("HOME", "/nowhere").env_remove("PLIMSOLL_DIR");
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.lines().count() == 1 && stderr.contains("another user"), "{stderr}");
        let again = format!("plimsoll {verb} {}", java.pid());
        let commands = [format!("sudo {again}"), format!("{again}   # as root, or ")];
        assert!(commands.iter().any(|command| stderr.contains(command)), "{stderr}");
    }
    assert!(java.is_untouched());
    assert_eq!(java.send("turn"), "turned");
}

/// Root without the right to trace others (as in many containers; CAP_PERFMON is enough from Linux 6.16 on) is not
/// advised to use sudo.
#[test]
fn root_without_the_right_is_not_advised_to_use_sudo() {
    let without = ["--bounding-set=-sys_ptrace,-perfmon,-sys_admin"];
    if !is_root("root without capabilities") || !can("no ptrace", Command::new("setpriv").args(without).arg("true")) {
        return;
    }
    // A process of another user: root may trace its own without the capability.
    let sleep = Running(Command::new("sleep").arg("3600").uid(NOBODY).gid(NOBODY).spawn().expect("sleep"));
    let pid = sleep.id().to_string();
    for verb in ["attach", "detach"] {
        let mut command = Command::new("setpriv");
        let output = command.args(without).arg(PLIMSOLL).args([verb, &pid]).stdin(Stdio::null()).output().expect("it");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.lines().count() == 1
                && stderr.contains("which this root doesn't have")
                && stderr.contains("CAP_SYS_PTRACE")
                && !stderr.contains("sudo"),
            "{stderr}"
        );
    }
}
