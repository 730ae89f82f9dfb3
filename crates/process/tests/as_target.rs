//! What a child that acts as the target's user may do, holds and leaves behind, according to the kernel.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use plimsoll_process::foreign::as_target::{AsTarget, Refused, User};
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::proc::Target;

const NOBODY: u32 = 65534;
const LIMIT: Duration = Duration::from_secs(60);

fn is_root(case: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("as_target, {case}: skipped, it takes root to become another user");
    }
    root
}

/// A process of the user; it is killed at the end.
struct Sleeper(Child);

impl Sleeper {
    fn of(uid: u32, in_directory: &Path) -> Sleeper {
        let mut command = Command::new("sleep");
        command.arg("600").current_dir(in_directory).stdin(Stdio::null());
        if uid != rustix::process::geteuid().as_raw() {
            command.uid(uid).gid(uid);
        }
        Sleeper(command.spawn().expect("sleep"))
    }

    fn target(&self) -> Target {
        Target::open(self.0.id(), Deadline::after(LOOK)).expect("it runs")
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory that any user may traverse, with one directory of the user and one of ours.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(name: &str, uid: u32) -> Tmpfs {
        let top = std::env::temp_dir().join(format!("plimsoll-as-target-{name}-{}", std::process::id()));
        fs::create_dir_all(top.join("theirs")).expect("a directory");
        fs::create_dir_all(top.join("ours")).expect("a directory");
        fs::set_permissions(&top, PermissionsExt::from_mode(0o755)).expect("ours");
        fs::set_permissions(top.join("ours"), PermissionsExt::from_mode(0o755)).expect("ours");
        std::os::unix::fs::chown(top.join("theirs"), Some(uid), Some(uid)).expect("root may");
        Tmpfs(top)
    }

    fn theirs(&self) -> PathBuf {
        self.0.join("theirs")
    }

    fn ours(&self) -> PathBuf {
        self.0.join("ours")
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn refused(result: io::Result<impl Sized>) -> bool {
    result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Locked by tests with a child that has nobody's user: `helpers` would otherwise find another test's child.
static NOBODYS: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    NOBODYS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The children of this test that act as a user. They don't exec, so they have this program's name.
fn helpers(uid: u32) -> Vec<u32> {
    let own = std::process::id().to_string();
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().next().unwrap_or_default().to_owned()
        };
        field("PPid:") == own && field("Uid:") == uid.to_string() && field("NoNewPrivs:") == "1"
    })
    .collect()
}

#[test]
fn the_kernel_checks_what_the_target_may_do() {
    if !is_root("another user's rights") {
        return;
    }
    let _alone = alone();
    let tmpfs = Tmpfs::new("rights", NOBODY);
    let sleeper = Sleeper::of(NOBODY, &tmpfs.ours());
    let mut child = AsTarget::start(&sleeper.target(), LIMIT).expect("a child");
    assert_eq!(child.user().uid, NOBODY);

    // Where the user may write, the file belongs to the user from the start and is closed to others, whatever our umask
    // is.
    child.enter(&tmpfs.theirs()).expect("its directory");
    child.write_whole(".aside", "made", b"bytes").expect("it may");
    let made = fs::metadata(tmpfs.theirs().join("made")).expect("the file");
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (NOBODY, NOBODY, 0o500));
    assert_eq!(fs::read(tmpfs.theirs().join("made")).expect("root may"), b"bytes");
    assert!(child.holds("made", b"bytes", |_| false).expect("it may read"));
    assert!(!child.holds("made", b"bytez", |_| false).expect("it may read"));
    let entered = child.make("inner".as_ref()).expect("it may");
    assert_eq!((entered.uid, entered.mode & 0o7777), (u64::from(NOBODY), 0o700));

    // Where the user may not write, root's rights don't help.
    for directory in [tmpfs.ours(), PathBuf::from("/etc")] {
        child.enter(&directory).expect("all may enter");
        assert!(refused(child.create("new")) && refused(child.make("new".as_ref())) && refused(child.stamp("new")));
        assert!(!directory.join("new").exists());
    }
    fs::write(tmpfs.ours().join("canary"), "kept").expect("ours");
    child.enter(&tmpfs.ours()).expect("all may enter");
    assert!(refused(child.unlink("canary")) && refused(child.rename("canary", "gone")));
    // The user may not write to the target's working directory either.
    child.enter_cwd().expect("its own");
    assert!(refused(child.create("new")));
    fs::set_permissions(tmpfs.ours(), PermissionsExt::from_mode(0o700)).expect("ours");
    assert!(refused(child.enter(&tmpfs.ours().join("below"))));
}

#[test]
fn no_name_in_the_target_leads_out_of_it() {
    if !is_root("links") {
        return;
    }
    let _alone = alone();
    let tmpfs = Tmpfs::new("links", NOBODY);
    let sleeper = Sleeper::of(NOBODY, &tmpfs.theirs());
    let mut child = AsTarget::start(&sleeper.target(), LIMIT).expect("a child");
    let canary = tmpfs.ours().join("canary");
    fs::write(&canary, "kept").expect("ours");
    fs::set_permissions(&canary, PermissionsExt::from_mode(0o600)).expect("ours");
    symlink(&canary, tmpfs.theirs().join("link")).expect("a link");
    child.enter(&tmpfs.theirs()).expect("its directory");
    let exists = |e: io::Error| e.kind() == io::ErrorKind::AlreadyExists;
    assert!(child.create("link").is_err_and(exists));
    assert!(child.stamp("link").is_err() && child.holds("link", b"kept", |_| true).is_err());
    assert_eq!(fs::read(&canary).expect("ours"), b"kept");
    // Links in /proc lead to what the child holds, which is ours.
    for link in ["/proc/self/root", "/proc/self/cwd", "/proc/self/fd/3"] {
        symlink(link, tmpfs.theirs().join("magic")).expect("a link");
        assert!(child.enter(&tmpfs.theirs().join("magic")).is_err(), "{link}");
        fs::remove_file(tmpfs.theirs().join("magic")).expect("ours");
    }
}

/// The target loads a library by its path: whoever can exchange a directory on it chooses what is loaded.
#[test]
fn a_directory_is_trusted_if_nobody_else_can_exchange_it() {
    const OTHER: u32 = 65_003;
    if !is_root("directories of a third user") {
        return;
    }
    let _alone = alone();
    let tmpfs = Tmpfs::new("trusted", NOBODY);
    let make = |name: &str, uid: u32, mode: u32| {
        let path = tmpfs.0.join(name);
        fs::create_dir_all(path.join("below")).expect("a directory");
        for path in [path.join("below"), path.clone()] {
            std::os::unix::fs::chown(&path, Some(uid), Some(uid)).expect("root may");
        }
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("ours");
    };
    let link = |name: &str, to: &str, uid: u32| {
        symlink(to, tmpfs.0.join(name)).expect("a link");
        std::os::unix::fs::lchown(tmpfs.0.join(name), Some(uid), Some(uid)).expect("root may");
    };
    make("own", NOBODY, 0o700);
    make("roots", 0, 0o755);
    make("sticky", 0, 0o1777);
    make("open", 0, 0o777);
    make("others", OTHER, 0o755);
    link("own-link", "roots/../own", NOBODY);
    link("whole-link", tmpfs.0.join("own").to_str().expect("UTF-8"), 0);
    link("others-link", "own", OTHER);
    link("circle", "circle", NOBODY);
    let sleeper = Sleeper::of(NOBODY, &tmpfs.theirs());
    let mut child = AsTarget::start(&sleeper.target(), LIMIT).expect("a child");
    for (name, is) in [
        ("own/below", "own/below"),
        ("roots", "roots"),
        ("sticky", "sticky"),
        ("own/below/../../roots/./below", "roots/below"),
        ("own-link/below", "own/below"),
        ("whole-link/below", "own/below"),
    ] {
        let entered = child.enter_trusted(&tmpfs.0.join(name)).expect(name);
        assert_eq!(entered.inode, fs::metadata(tmpfs.0.join(is)).expect("a directory").ino(), "{name}");
    }
    // From the root, `..` leads nowhere.
    let up = Path::new("/../..").join(tmpfs.0.strip_prefix("/").expect("absolute"));
    assert!(child.enter_trusted(&up).is_ok());
    for (name, why) in [
        ("open/below", "open can be written to by others (mode 777)"),
        ("open", "open can be written to by others (mode 777)"),
        ("others/below", "others belongs to user 65003"),
        ("others", "others belongs to user 65003"),
        ("others-link/below", "others-link is a symbolic link of user 65003"),
        ("circle", "os error 40"),
        ("none", "os error 2"),
    ] {
        let refused = child.enter_trusted(&tmpfs.0.join(name)).expect_err(name).to_string();
        assert!(refused.contains(why), "{name}: {refused}");
        // If only access is in question, the directory may be entered.
        assert_eq!(child.enter(&tmpfs.0.join(name)).is_ok(), !why.starts_with("os error"), "{name}");
    }
    for magic in ["/proc/self/root", "/proc/self/cwd"] {
        assert!(child.enter_trusted(Path::new(magic)).is_err(), "{magic}");
    }
}

/// The mode of a directory whose list lets another user write looks like that of a private group.
#[test]
fn a_directory_with_a_list_is_trusted_if_nobody_else_may_write() {
    const CASE: &str = "an access control list";
    if !is_root(CASE) {
        return;
    }
    let _alone = alone();
    let tmpfs = Tmpfs::new("listed", NOBODY);
    let entry =
        |tag: u16, rights: u16, id: u32| [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat();
    let sleeper = Sleeper::of(NOBODY, &tmpfs.ours());
    let mut child = AsTarget::start(&sleeper.target(), LIMIT).expect("a child");
    for (rights, is_trusted) in [(5, true), (7, false)] {
        // The owner, another user, the group, the mask, the others (acl(5)).
        let list = [
            2u32.to_le_bytes().to_vec(),
            entry(1, 7, u32::MAX),
            entry(2, rights, 65_003),
            entry(4, 7, u32::MAX),
            entry(0x10, 7, u32::MAX),
            entry(0x20, 5, u32::MAX),
        ];
        let flags = rustix::fs::XattrFlags::empty();
        if let Err(error) = rustix::fs::setxattr(tmpfs.theirs(), "system.posix_acl_access", &list.concat(), flags) {
            eprintln!("as_target, {CASE}: skipped, {error}");
            return;
        }
        assert_eq!(fs::metadata(tmpfs.theirs()).expect("theirs").mode() & 0o7777, 0o775);
        let entered = child.enter_trusted(&tmpfs.theirs());
        assert_eq!(entered.is_ok(), is_trusted, "{rights}: {entered:?}");
    }
}

/// Checks the child's /proc directory: the target's user finds nothing usable there.
#[test]
fn the_child_holds_nothing_of_ours() {
    if !is_root("the child's rights") {
        return;
    }
    let _alone = alone();
    let tmpfs = Tmpfs::new("holds", NOBODY);
    let sleeper = Sleeper::of(NOBODY, &tmpfs.theirs());
    let ours = fs::File::open("/etc/shadow").or_else(|_| fs::File::open("/etc/passwd")).expect("a file of root's");
    let child = AsTarget::start(&sleeper.target(), LIMIT).expect("a child");
    let mut seen = 0;
    for helper in helpers(NOBODY) {
        let status = fs::read_to_string(format!("/proc/{helper}/status")).expect("it lives");
        let field = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(field("Uid:"), vec![NOBODY.to_string(); 4]);
        assert_eq!(field("Gid:"), vec![NOBODY.to_string(); 4]);
        assert_eq!(field("Groups:"), Vec::<String>::new());
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), ["0000000000000000"], "{set} of\n{status}");
        }
        let descriptors = fs::read_dir(format!("/proc/{helper}/fd")).expect("root may").flatten();
        let open: Vec<_> = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
        let is_known =
            |path: &Path| path.starts_with("socket:") || path.is_dir() || path.to_string_lossy().starts_with("socket:");
        assert!(open.iter().all(|path| is_known(path)), "{open:?}");
        // The child isn't dumpable: its files in /proc belong to root, and its own user can't read its memory.
        assert_eq!(fs::metadata(format!("/proc/{helper}/mem")).expect("it lives").uid(), 0);
        let read =
            Command::new("head").args(["-c1", &format!("/proc/{helper}/environ")]).uid(NOBODY).gid(NOBODY).output();
        assert!(!read.expect("head").status.success(), "its memory is open to its user");
        seen += 1;
    }
    assert_eq!(seen, 1, "the child");
    drop((child, ours));
}

/// Restores fs.suid_dumpable when dropped.
struct SuidDumpable(String);

const SUID_DUMPABLE: &str = "/proc/sys/fs/suid_dumpable";

impl Drop for SuidDumpable {
    fn drop(&mut self) {
        let _ = fs::write(SUID_DUMPABLE, &self.0);
    }
}

/// If fs.suid_dumpable is 1, a change of user makes a process dumpable. The child is held in the very next system call,
/// and its user tries to read its memory.
#[test]
fn nobody_looks_into_the_child_between_its_change_of_user_and_the_next_call() {
    const CASE: &str = "a dumpable child";
    if !is_root(CASE) {
        return;
    }
    let _alone = alone();
    let before = SuidDumpable(fs::read_to_string(SUID_DUMPABLE).expect("a number"));
    if let Err(e) = fs::write(SUID_DUMPABLE, "1") {
        eprintln!("as_target, {CASE}: skipped, {SUID_DUMPABLE}: {e}");
        return;
    }
    let tmpfs = Tmpfs::new("dumpable", NOBODY);
    let sleeper = Sleeper::of(NOBODY, &tmpfs.theirs());
    let target = sleeper.target();
    let (to_us, from_child) = std::sync::mpsc::channel();
    // A filter applies to its thread, and to the children of that thread.
    let starting = std::thread::spawn(move || {
        to_us.send(held_calls::filter()).expect("a listener");
        AsTarget::start(&target, LIMIT).map(drop)
    });
    let listener = from_child.recv().expect("a listener");
    let mut looks = Vec::new();
    while !starting.is_finished() {
        held_calls::each(&listener, |pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it is held");
            if status.contains(&format!("Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}")) {
                let mut look = Command::new("head");
                look.args(["-c1", &format!("/proc/{pid}/environ")]).uid(NOBODY).gid(NOBODY);
                looks.push(look.output().expect("head").status.success());
            }
        });
    }
    starting.join().expect("no panic").expect("a child");
    assert_eq!(looks, [false], "its user has looked into the child, or it never made the call");
    drop(before);
}

/// Calls of prctl(PR_SET_DUMPABLE, 0) wait until somebody lets them go on (seccomp_unotify(2)).
mod held_calls {
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// Holds those calls of this thread, and of processes that it makes from now on.
    pub fn filter() -> OwnedFd {
        const LISTENER: libc::c_ulong = 1 << 3;
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
        let unless = |value, skip| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value);
        // struct seccomp_data: the number, and the lower halves of the first two arguments.
        let mut steps = [
            load(0),
            unless(libc::SYS_prctl as u32, 5),
            load(16),
            unless(libc::PR_SET_DUMPABLE as u32, 3),
            load(24),
            unless(0, 1),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the kernel copies the filter, which outlives the call. Only this thread is affected, and nobody else
        // has the new descriptor.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_SET_MODE_FILTER;
            let listener = libc::syscall(libc::SYS_seccomp, mode, LISTENER, &raw const program);
            assert!(listener >= 0, "{}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(listener as i32)
        }
    }

    /// Shows the PID of each process that is held, and lets it go on. Returns when there has been none for a moment.
    pub fn each(listener: &OwnedFd, mut show: impl FnMut(u32)) {
        // linux/seccomp.h: _IOWR('!', 0, struct seccomp_notif), _IOWR('!', 1, struct seccomp_notif_resp)
        const RECEIVE: libc::c_ulong = 0xc050_2100;
        const SEND: libc::c_ulong = 0xc018_2101;
        const GO_ON: u32 = 1;
        let mut ready = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which is ours.
        while unsafe { libc::poll(&raw mut ready, 1, 5) } > 0 && ready.revents & libc::POLLIN != 0 {
            // SAFETY: the kernel expects zeros, and writes no more than the struct: the request's number contains its
            // size.
            let held = unsafe {
                let mut held: libc::seccomp_notif = std::mem::zeroed();
                (libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut held) == 0).then_some(held)
            };
            let Some(held) = held else { return };
            show(held.pid);
            let mut answer = libc::seccomp_notif_resp { id: held.id, val: 0, error: 0, flags: GO_ON };
            // SAFETY: the struct that belongs to the request.
            assert_eq!(unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw mut answer) }, 0);
        }
    }
}

/// The same calls without privileges, as our own user.
#[test]
fn the_own_user_needs_no_rights() {
    let own = rustix::process::geteuid().as_raw();
    let top = std::env::temp_dir().join(format!("plimsoll-as-target-own-{}", std::process::id()));
    fs::create_dir_all(&top).expect("a directory");
    let sleeper = Sleeper::of(own, &top);
    let mut child = AsTarget::start(&sleeper.target(), LIMIT).expect("a child");
    child.enter_cwd().expect("its own");
    child.create("begun").expect("it may");
    assert!(top.join("begun").exists());
    let mut names = child.names().expect("it may");
    names.sort();
    assert_eq!(names, ["begun"]);
    // An unfinished file is removed with the child.
    drop(child);
    assert!(!top.join("begun").exists());
    fs::remove_dir_all(&top).expect("ours");
}

/// The attach request of a killed command stays until the VM has made its socket: a VM that finds no request prints its
/// threads.
#[test]
fn a_request_outlives_its_command_until_the_answer() {
    const DIRECTORY: &str = "PLIMSOLL_TEST_REQUEST";
    if let Some(top) = std::env::var_os(DIRECTORY).map(PathBuf::from) {
        let sleeper = Sleeper::of(rustix::process::geteuid().as_raw(), &top);
        let mut child = AsTarget::start(&sleeper.target(), LIMIT).expect("a child");
        child.enter_cwd().expect("its own");
        child.outlive("answer").expect("a name");
        child.create("request").expect("it may");
        drop(sleeper);
        // Like SIGKILL, this runs no destructor.
        std::process::abort();
    }
    let top = std::env::temp_dir().join(format!("plimsoll-as-target-request-{}", std::process::id()));
    fs::create_dir_all(&top).expect("a directory");
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "a_request_outlives_its_command_until_the_answer"]).env(DIRECTORY, &top);
    let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("this test");
    assert!(!ended.success(), "it was to be killed");
    assert!(top.join("request").exists());
    fs::write(top.join("answer"), "").expect("ours");
    let began = std::time::Instant::now();
    while top.join("request").exists() {
        assert!(began.elapsed() < LIMIT, "the request is left behind");
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::remove_dir_all(&top).expect("ours");
}

/// The target's user may signal the child. If the child is killed, the request fails at once; if it is stopped, at the
/// deadline.
#[test]
fn a_child_that_its_user_kills_or_stops_is_an_error() {
    if !is_root("the child's user") {
        return;
    }
    // The children of other tests have another user.
    const OTHER: u32 = 65_001;
    let tmpfs = Tmpfs::new("signals", OTHER);
    for (signal, state, limit) in [("-KILL", 'Z', LIMIT), ("-STOP", 'T', Duration::from_secs(1))] {
        let sleeper = Sleeper::of(OTHER, &tmpfs.theirs());
        let mut child = AsTarget::start(&sleeper.target(), LIMIT).expect("a child");
        child.enter(&tmpfs.theirs()).expect("its directory");
        let found = helpers(OTHER);
        let [helper] = found[..] else { panic!("one child: {found:?}") };
        let mut kill = Command::new("kill");
        let sent = kill.args([signal, &helper.to_string()]).uid(OTHER).gid(OTHER).status().expect("kill");
        assert!(sent.success(), "the user may signal it");
        let began = std::time::Instant::now();
        let is_hit = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(state));
        while !fs::read_to_string(format!("/proc/{helper}/stat")).is_ok_and(is_hit) {
            assert!(began.elapsed() < LIMIT, "{signal} has no effect");
            std::thread::sleep(Duration::from_millis(2));
        }
        let began = std::time::Instant::now();
        child.allow(limit);
        assert!(child.create("made").is_err(), "{signal}");
        let took = began.elapsed();
        assert!(took < LIMIT, "{signal}: no request ends by itself");
        // A request to a stopped child ends at the deadline, and not before.
        assert!(state == 'Z' || took >= limit, "{signal}: {took:?}");
        drop(child);
        while !helpers(OTHER).is_empty() {
            assert!(began.elapsed() < LIMIT, "{signal}: the child is left behind");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn a_set_user_id_program_has_no_child() {
    if !is_root("another user's rights") {
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(["--ruid", "65001", "--euid", "65002", "--clear-groups", "sleep", "600"]).stdin(Stdio::null());
    let mixed = Sleeper(command.spawn().expect("setpriv"));
    let uids = || fs::read_to_string(format!("/proc/{}/status", mixed.0.id())).expect("it runs");
    let began = std::time::Instant::now();
    while !uids().contains("Uid:\t65001\t65002") {
        assert!(began.elapsed() < LIMIT, "setpriv does nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(matches!(AsTarget::start(&mixed.target(), LIMIT), Err(Refused::Mixed)));
}

#[test]
fn an_ended_process_has_no_child() {
    let sleeper = Sleeper::of(rustix::process::geteuid().as_raw(), Path::new("/"));
    let target = sleeper.target();
    drop(sleeper);
    assert!(matches!(User::of(&target), Err(Refused::Gone)));
    assert!(matches!(AsTarget::start(&target, LIMIT), Err(Refused::Gone)));
}

/// Many names need several packets.
#[test]
fn a_long_list_is_whole() {
    let top = std::env::temp_dir().join(format!("plimsoll-as-target-list-{}", std::process::id()));
    fs::create_dir_all(&top).expect("a directory");
    let mut expected: Vec<String> = (0..3000).map(|n| format!("{n:064}")).collect();
    expected.iter().for_each(|name| fs::write(top.join(name), "").expect("a file"));
    let sleeper = Sleeper::of(rustix::process::geteuid().as_raw(), Path::new("/"));
    let mut child = AsTarget::start(&sleeper.target(), LIMIT).expect("a child");
    child.enter(&top).expect("a directory");
    let mut names = child.names().expect("names");
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
    fs::remove_dir_all(&top).expect("ours");
}
