//! Paths, files and directories of other users, as an attacker may arrange them.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use object::ReadRef;
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

use super::file_kind::HOLES;
use super::target::{LONGEST, LONGEST_STRINGS};
use super::*;

/// A directory that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-foreign-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn fifo(path: &Path) {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
}

/// openat2 and the walk that replaces it find the same inode, or both find nothing.
#[test]
fn no_path_leads_out_of_a_root() {
    let folder = Folder::new("root");
    let inside = folder.0.join("root");
    fs::create_dir_all(inside.join("usr/lib")).unwrap();
    fs::write(inside.join("usr/lib/a.so"), "inside").unwrap();
    fs::write(folder.0.join("secret"), "outside").unwrap();
    fs::create_dir_all(inside.join("etc")).unwrap();
    symlink("usr/lib", inside.join("lib")).unwrap();
    symlink("/usr/lib", inside.join("absolute")).unwrap();
    symlink("../../../../secret", inside.join("up")).unwrap();
    symlink(folder.0.join("secret"), inside.join("out")).unwrap();
    symlink("lib", inside.join("tower")).unwrap();
    symlink("b", inside.join("a")).unwrap();
    symlink("a", inside.join("b")).unwrap();
    symlink("../usr/./lib/../lib/a.so", inside.join("etc/winding")).unwrap();
    let root = rustix::fs::open(&inside, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let paths = [
        ("/usr/lib/a.so", true, true),
        ("/lib/a.so", true, true),
        ("/absolute/a.so", true, true),
        ("/tower/a.so", true, true),
        ("/etc/winding", true, false),
        ("/tower", true, false),
        ("/a/b", false, false),
        ("/../../usr/lib/../lib/a.so", true, true),
        ("/", true, true),
        ("/up", false, false),
        ("/out", false, false),
        ("/a", false, false),
        ("/../secret", false, false),
        ("/usr/lib/a.so/..", false, false),
        ("/nothing", false, false),
    ];
    for (path, with_links, without) in paths {
        for (links, expected) in [(true, with_links), (false, without)] {
            let found = resolve::below(&root, Path::new(path), links);
            let walked = resolve::walk(&root, Path::new(path), links);
            assert_eq!((found.is_ok(), walked.is_ok()), (expected, expected), "{path}, links {links}");
            if let (Ok(found), Ok(walked)) = (found, walked) {
                let [found, walked] = [found, walked].map(|of| rustix::fs::fstat(&of).unwrap());
                assert_eq!((found.st_dev, found.st_ino), (walked.st_dev, walked.st_ino), "{path}");
            }
        }
    }
}

#[test]
fn only_a_regular_file_is_opened_and_without_waiting() {
    let folder = Folder::new("regular");
    fs::write(folder.0.join("file"), "text").unwrap();
    fifo(&folder.0.join("fifo"));
    symlink("fifo", folder.0.join("link")).unwrap();
    let root = Root::at(&folder.0, soon()).unwrap();
    for name in ["fifo", "link", "."] {
        let refused = root.open(Path::new(name), Requirements::of(FileKind::Object));
        assert!(matches!(refused, Err(Why::NotAFile)), "{name}: {refused:?}");
    }
    let refused = Root::own(soon()).open(Path::new("/dev/zero"), Requirements::of(FileKind::Text));
    assert!(matches!(refused, Err(Why::NotAFile)), "{refused:?}");
    assert_eq!(root.open(Path::new("file"), Requirements::of(FileKind::Text)).unwrap().text().unwrap(), "text");
}

/// Our own tree and a process's agree on which link is followed: where /tmp is a link, a file in it is found.
#[test]
fn only_the_last_component_must_not_be_a_link() {
    let folder = Folder::new("last-link");
    fs::create_dir(folder.0.join("scratch")).unwrap();
    fs::write(folder.0.join("scratch/file"), "text").unwrap();
    symlink("scratch", folder.0.join("tmp")).unwrap();
    symlink("file", folder.0.join("scratch/link")).unwrap();
    let requirements = Requirements { links: false, ..Requirements::of(FileKind::Text) };
    let [inside, own] = [Root::at(&folder.0, soon()).unwrap(), Root::own(soon())];
    let both = |name: &str| [inside.open(Path::new(name), requirements), own.open(&folder.0.join(name), requirements)];
    for found in both("tmp/file") {
        assert_eq!(found.unwrap().text().unwrap(), "text");
    }
    for name in ["scratch/link", "tmp/link", "tmp"] {
        for refused in both(name) {
            let why = refused.unwrap_err();
            assert!(matches!(&why, Why::Io(e) if e.raw_os_error() == Some(libc::ELOOP)), "{name}: {why}");
        }
    }
}

#[test]
fn owner_inode_and_links_must_be_as_expected() {
    let folder = Folder::new("expected");
    let path = folder.0.join("file");
    fs::write(&path, "text").unwrap();
    symlink("file", folder.0.join("link")).unwrap();
    let meta = fs::metadata(&path).unwrap();
    let root = Root::at(&folder.0, soon()).unwrap();
    let of = Requirements::of(FileKind::Text);
    let requirements = |name: &str, requirements: Requirements<'_>| root.open(Path::new(name), requirements).map(drop);
    assert!(requirements("file", Requirements { owners: Some(&[meta.uid()]), inode: Some(meta.ino()), ..of }).is_ok());
    assert!(matches!(requirements("file", Requirements { owners: Some(&[meta.uid() + 1]), ..of }), Err(Why::Owner(_))));
    assert!(matches!(requirements("file", Requirements { inode: Some(meta.ino() + 1), ..of }), Err(Why::Replaced)));
    assert!(requirements("link", of).is_ok());
    assert!(requirements("link", Requirements { links: false, ..of }).is_err());
    let late = Root::at(&folder.0, Deadline::after(Duration::ZERO)).unwrap();
    assert!(matches!(late.open(Path::new("file"), of), Err(Why::Late)));
}

/// A path below a process's root is resolved inside that root, also if it is written out.
#[test]
fn a_path_through_proc_stays_in_that_root() {
    let folder = Folder::new("through");
    fs::write(folder.0.join("file"), "text").unwrap();
    symlink(folder.0.join("file"), folder.0.join("link")).unwrap();
    for pid in ["self".to_string(), std::process::id().to_string()] {
        let path = PathBuf::from(format!("/proc/{pid}/root{}", folder.0.join("link").display()));
        assert_eq!(open(&path, Requirements::of(FileKind::Text), soon()).unwrap().text().unwrap(), "text");
    }
}

#[test]
fn reads_are_limited_by_kind_and_not_by_length() {
    let folder = Folder::new("bounded");
    let path = folder.0.join("sparse");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"head\0").unwrap();
    file.set_len(1 << 40).unwrap();
    // Processor time: a busy machine lends it slowly.
    let spent = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
    let before = spent();
    let root = Root::at(&folder.0, soon()).unwrap();
    let large = root.open(Path::new("sparse"), Requirements::of(FileKind::Text)).unwrap();
    assert!(matches!(large.read(), Err(Why::TooLarge(_))));
    let object = root.open(Path::new("sparse"), Requirements::of(FileKind::Object)).unwrap();
    let pieces = object.pieces();
    assert_eq!((&pieces).read_bytes_at(0, 4), Ok(&b"head"[..]));
    assert_eq!((&pieces).read_bytes_at_until(0..1 << 40, 0), Ok(&b"head"[..]));
    assert_eq!(pieces.refused(), None);
    for size in [HOLES + (1 << 20), object.cap(), 1 << 40] {
        assert_eq!((&pieces).read_bytes_at(0, size), Err(()), "{size}");
        assert!(pieces.refused().is_some());
    }
    // Below the size limit, but one large hole.
    file.set_len(HOLES + (8 << 20)).unwrap();
    let holes = root.open(Path::new("sparse"), Requirements::of(FileKind::JitMap)).unwrap();
    assert!(matches!(holes.read(), Err(Why::Sparse)), "{:?}", holes.read());
    assert!(spent() - before < 50, "{} s", spent() - before);
}

/// Every slice that a parser could read equals the file's bytes; many small ones stay within the limit.
#[test]
fn pieces_are_the_files_bytes() {
    let folder = Folder::new("pieces");
    let mut file = fs::File::create(folder.0.join("file")).unwrap();
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    file.write_all(&bytes).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let root = Root::at(&folder.0, soon()).unwrap();
    let opened = root.open(Path::new("file"), Requirements::of(FileKind::Object)).unwrap();
    let pieces = opened.pieces();
    let whole = bytes.as_slice();
    for at in (0..bytes.len() as u64).step_by(997).chain(bytes.len() as u64 - 300..bytes.len() as u64 + 5) {
        for size in [0, 1, 8, 300, 70_000] {
            assert_eq!((&pieces).read_bytes_at(at, size), whole.read_bytes_at(at, size), "{at} {size}");
            let end = at.saturating_add(size);
            assert_eq!(
                (&pieces).read_bytes_at_until(at..end, 250).ok(),
                whole.read_bytes_at_until(at..end, 250).ok(),
                "{at} {size}"
            );
        }
    }
    assert_eq!(opened.read().unwrap(), bytes);
    assert_eq!(opened.head(10).unwrap(), bytes[..10]);
    drop(pieces);
}

/// With a filter that refuses openat2, as in old container runtimes, the walk replaces it.
#[test]
fn without_openat2_no_path_leads_out_either() {
    let folder = Folder::new("refused");
    let inside = folder.0.join("root");
    fs::create_dir_all(inside.join("usr/lib")).unwrap();
    fs::write(inside.join("usr/lib/a.so"), "inside").unwrap();
    fs::write(folder.0.join("secret"), "outside").unwrap();
    symlink("/usr/lib", inside.join("lib")).unwrap();
    symlink("../../secret", inside.join("up")).unwrap();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let inside = inside.clone();
        // A filter applies to one thread.
        let thread = std::thread::spawn(move || {
            refuse(libc::SYS_openat2, errno);
            let direct = rustix::fs::openat2(
                rustix::fs::CWD,
                "/",
                OFlags::PATH,
                Mode::empty(),
                rustix::fs::ResolveFlags::IN_ROOT,
            );
            assert_eq!(direct.map(drop).unwrap_err().raw_os_error(), errno);
            let root = Root::at(&inside, soon()).unwrap();
            assert_eq!(
                root.open(Path::new("/lib/a.so"), Requirements::of(FileKind::Text)).unwrap().text().unwrap(),
                "inside"
            );
            assert!(root.open(Path::new("/up"), Requirements::of(FileKind::Text)).is_err());
        });
        thread.join().unwrap();
    }
}

/// The same for the child that acts as a user: a VM's /tmp, or the parent of a cache.
#[test]
fn without_openat2_the_child_enters_the_same_directories() {
    let folder = Folder::new("refused-child");
    let inside = folder.0.join("a/b");
    fs::create_dir_all(&inside).unwrap();
    fs::write(folder.0.join("file"), "").unwrap();
    symlink("a/../a", folder.0.join("link")).unwrap();
    symlink(&inside, folder.0.join("whole")).unwrap();
    symlink("circle", folder.0.join("circle")).unwrap();
    symlink("/proc/self/cwd", folder.0.join("magic")).unwrap();
    let up = Path::new("/../..").join(inside.strip_prefix("/").unwrap());
    for errno in [None, Some(libc::EPERM), Some(libc::ENOSYS)] {
        let (folder, inside, up) = (folder.0.clone(), inside.clone(), up.clone());
        // A filter applies to one thread, and to the processes that it makes.
        let thread = std::thread::spawn(move || {
            if let Some(errno) = errno {
                refuse(libc::SYS_openat2, errno);
            }
            let target = Target::open(std::process::id(), soon()).unwrap();
            let mut child = as_target::AsTarget::start(&target, Duration::from_secs(60)).unwrap();
            let inode = |path: &Path| fs::metadata(path).unwrap().ino();
            for path in [&inside, &folder.join("link/b"), &folder.join("whole"), &folder.join("a/b/../b/."), &up] {
                let entered = child.enter(path).unwrap_or_else(|e| panic!("{errno:?}, {}: {e}", path.display()));
                assert_eq!(entered.inode, inode(&inside), "{errno:?}, {}", path.display());
            }
            assert_eq!(child.enter(Path::new("/")).unwrap().inode, inode(Path::new("/")));
            for (name, why) in
                [("none", libc::ENOENT), ("file", libc::ENOTDIR), ("circle", libc::ELOOP), ("magic", libc::ELOOP)]
            {
                let refused = child.enter(&folder.join(name)).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(why), "{errno:?}, {name}: {refused}");
            }
        });
        thread.join().unwrap();
    }
}

fn refuse(call: libc::c_long, errno: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the filter, which outlives the call. Only this thread is affected.
    let made = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    assert!(made, "{}", std::io::Error::last_os_error());
}

/// docs/security.md states these limits.
#[test]
fn limits_and_deadlines_equal_those_in_security_md() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md")).unwrap();
    let kinds = [
        ("program, library, debug file: what is read of it in all", FileKind::Object),
        ("perf map, jitdump", FileKind::JitMap),
        ("hsperfdata", FileKind::Counters),
        ("segment", FileKind::Segment),
        ("text: rules, `ld.so.conf`, cgroup files", FileKind::Text),
        ("kept names and tables", FileKind::Cache),
        ("saved report, baseline", FileKind::Saved),
    ];
    let size = |bytes: u64| match bytes >> 20 {
        0 => "none: they must be our own".to_owned(),
        mib if mib % 1024 == 0 => format!("{} GiB", mib >> 10),
        mib => format!("{mib} MiB"),
    };
    for (name, kind) in kinds {
        let row = format!("| {name} | {} | {} |", size(kind.cap(true)), size(kind.cap(false)));
        assert!(page.contains(&row), "no row {row}");
    }
    let flat = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let [look, names, attach] = [LOOK, NAMES, ATTACH].map(|limit| limit.as_secs());
    for sentence in [
        format!("{look} s for `explain`, `doctor` and each instant of `record`; {names} s for `report`, `diff`,"),
        format!("{attach} s for `attach` and `detach`."),
        format!("by its holes ({} MiB)", HOLES >> 20),
        format!("{} MiB each; {} MiB of arguments or environment", LONGEST >> 20, LONGEST_STRINGS >> 20),
    ] {
        assert!(flat.contains(&sentence), "no sentence {sentence}");
    }
}

/// Whoever can exchange a directory on the way can exchange the library in the cache.
#[test]
fn a_cache_is_used_only_if_nobody_else_can_change_its_path() {
    use std::os::unix::fs::{PermissionsExt, chown, lchown};
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "a_cache_is_used_only_if_nobody_else_can_change_its_path: skipped, only root can give directories away"
        );
        return;
    }
    const OTHER: Option<u32> = Some(65_534);
    let top = Folder::new("cache");
    let make = |name: &str, mode: u32, user: Option<u32>, group: Option<u32>| {
        let path = top.0.join(name);
        fs::create_dir(&path).unwrap();
        chown(&path, user, group).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    };
    make("closed", 0o755, None, None);
    make("private-group", 0o775, None, None);
    make("group", 0o775, None, OTHER);
    make("open", 0o777, None, None);
    make("sticky", 0o1777, None, None);
    make("theirs", 0o755, OTHER, OTHER);
    symlink("closed", top.0.join("link")).unwrap();
    symlink("closed", top.0.join("their-link")).unwrap();
    lchown(top.0.join("their-link"), OTHER, OTHER).unwrap();
    let requirements = |name: &str| own_files::Directory::open(&top.0.join(name)).map(|directory| directory.path);
    for name in ["closed/new", "private-group/new", "sticky/new", "link/other"] {
        assert_eq!(requirements(name), Ok(top.0.join(name)));
        assert_eq!(fs::metadata(top.0.join(name)).unwrap().permissions().mode() & 0o7777, 0o700, "{name}");
    }
    for (name, why) in [
        ("group/new", "can be written to by others"),
        ("open/new", "can be written to by others"),
        ("theirs/new", "belongs to user 65534"),
        ("theirs", "belongs to user 65534"),
        ("their-link/third", "symbolic link of user 65534"),
        ("link", "is a symbolic link"),
    ] {
        let refused = requirements(name);
        assert!(refused.as_ref().is_err_and(|reason| reason.contains(why)), "{name}: {refused:?}");
        assert!(!name.contains('/') || !top.0.join(name).exists(), "{name} was made");
    }
    // A directory for programs of all users, if all may search its parents.
    let for_all = |name: &str| own_files::Directory::open_for_all(&top.0.join(name)).map(|directory| directory.path);
    let mode = |name: &str| fs::metadata(top.0.join(name)).unwrap().permissions().mode() & 0o7777;
    for name in ["sticky/all", "closed/all/below", "closed/new"] {
        let reached = for_all(name);
        // The folder of this test may lie in a closed one.
        match reached {
            Ok(path) => assert_eq!((path, mode(name)), (top.0.join(name), 0o711)),
            Err(why) => assert!(why.contains("isn't searchable for all users") && !why.contains(name), "{name}: {why}"),
        }
    }
    make("hidden", 0o710, None, None);
    assert!(for_all("hidden/new").is_err_and(|why| why.contains("isn't searchable for all users")));
    assert!(!top.0.join("hidden/new").exists());
    assert!(for_all("open/new").is_err() && for_all("theirs").is_err() && for_all("link").is_err());
    // An existing directory that is open to others is closed.
    fs::set_permissions(top.0.join("closed/new"), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(requirements("closed/new").is_ok());
    assert_eq!(fs::metadata(top.0.join("closed/new")).unwrap().permissions().mode() & 0o7777, 0o700);
}

/// The mode of a directory whose list lets another user write looks like that of a private group.
#[test]
fn an_access_control_list_may_open_a_directory_to_others() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "an_access_control_list_may_open_a_directory_to_others: skipped, the group of the user may not be private"
        );
        return;
    }
    let top = Folder::new("list");
    let entry =
        |tag: u16, rights: u16, id: u32| [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat();
    let refused = |name: &str, users: &[Vec<u8>], groups: &[Vec<u8>]| {
        let path = top.0.join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o775)).unwrap();
        // The kernel wants this order; the last two are the mask and the others.
        let list = [
            2u32.to_le_bytes().to_vec(),
            entry(1, 7, u32::MAX),
            users.concat(),
            entry(4, 7, u32::MAX),
            groups.concat(),
            entry(0x10, 7, u32::MAX),
            entry(0x20, 5, u32::MAX),
        ];
        let flags = rustix::fs::XattrFlags::empty();
        if let Err(error) = rustix::fs::setxattr(&path, "system.posix_acl_access", &list.concat(), flags) {
            eprintln!("an_access_control_list_may_open_a_directory_to_others: skipped, {error}");
            return None;
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o775);
        Some(own_files::Directory::open(&path.join("new")).err())
    };
    let Some(writer) = refused("writer", &[entry(2, 7, 65_534)], &[]) else { return };
    assert!(writer.is_some_and(|why| why.contains("can be written to by others")));
    assert!(refused("group", &[], &[entry(8, 6, 65_534)]).flatten().is_some());
    assert_eq!(refused("reader", &[entry(2, 5, 65_534)], &[entry(8, 4, 65_534)]), Some(None));
    assert_eq!(refused("nobody", &[], &[]), Some(None));
}

/// In a sticky directory (/tmp), another user may have made a link before us. `fs.protected_symlinks` is 0 by default.
#[test]
fn an_output_in_a_sticky_directory_follows_no_link() {
    use std::os::unix::fs::PermissionsExt;
    let top = Folder::new("sticky");
    let sticky = top.0.join("tmp");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, PermissionsExt::from_mode(0o1777)).unwrap();
    let theirs = top.0.join("theirs");
    fs::write(&theirs, "kept").unwrap();
    let refused = |name: &str, why: &str| {
        let refused = own_files::create(&sticky.join(name)).map(drop);
        assert!(refused.as_ref().is_err_and(|reason| reason.contains(why)), "{name}: {refused:?}");
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "kept", "{name}");
    };
    symlink(&theirs, sticky.join("link")).unwrap();
    refused("link", "symbolic link");
    symlink(top.0.join("none"), sticky.join("dangling")).unwrap();
    refused("dangling", "symbolic link");
    assert!(!top.0.join("none").exists());
    fs::hard_link(&theirs, sticky.join("second")).unwrap();
    refused("second", "second hard link");
    for contents in ["new", "again"] {
        own_files::create(&sticky.join("plain")).unwrap().write_all(contents.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(sticky.join("plain")).unwrap(), contents);
    }
    // Beside it, where nobody else can make entries, links are followed.
    symlink("theirs", top.0.join("own-link")).unwrap();
    own_files::create(&top.0.join("own-link")).unwrap().write_all(b"written").unwrap();
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "written");
}

/// Another user who could guess a temporary name could plant a link there, which leads to a file of ours.
#[test]
fn no_file_is_made_through_a_link_under_a_temporary_name() {
    let top = Folder::new("aside");
    let aside = || own_files::aside(OsStr::new("x.jfr"));
    let names: BTreeSet<_> = std::iter::repeat_with(aside).take(100).collect();
    assert_eq!(names.len(), 100, "{names:?}");
    fs::write(top.0.join("ours"), "kept").unwrap();
    let folder = own_files::Folder::open(&top.0).unwrap();
    for (name, to) in names.iter().zip(["ours", "none"]) {
        symlink(to, top.0.join(name)).unwrap();
        let refused = folder.create(name, 0o666).map(drop).map_err(|error| error.kind());
        assert_eq!(refused, Err(std::io::ErrorKind::AlreadyExists), "{to}");
    }
    assert_eq!(fs::read_to_string(top.0.join("ours")).unwrap(), "kept");
    assert!(!top.0.join("none").exists());
}
