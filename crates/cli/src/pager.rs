//! Text that is higher than the terminal goes through a pager, as with man(1) and git(1).
//!
//! | who runs plimsoll | pager |
//! | --- | --- |
//! | a user without rights beyond the user's own | `$PAGER`, else less |
//! | root, or a process with more rights than its user (sudo, set-user-ID, capabilities) | less, without its commands that start programs or open files |
//!
//! The environment chose `$PAGER` and less's settings: a process with more rights than that environment's owner must
//! not run them. Without a trusted less (busybox's lacks the secure mode), the text is printed as it is.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

const LESS: &str = "/usr/bin/less";
/// Ends if the text fits after all, shows colours, and leaves the text on the screen. git(1) has the same.
const OPTIONS: &str = "FRX";
/// Variables of those who run a program for another user.
const DELEGATES: [&str; 3] = ["SUDO_UID", "DOAS_USER", "PKEXEC_UID"];

/// `--no-pager`.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

pub fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Whether standard output is a terminal on which a pager can work, and there is one.
pub fn is_there() -> bool {
    !FORBIDDEN.load(Ordering::Relaxed)
        && io::stdout().is_terminal()
        && terminal().is_some_and(|name| name != "dumb")
        && command().is_some()
}

/// Writes text to the terminal, through the pager if it is higher than the screen.
pub fn write(text: &[u8]) -> io::Result<()> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let is_high =
        size.is_some_and(|size| size.ws_row > 0 && height(text, usize::from(size.ws_col)) >= usize::from(size.ws_row));
    if is_high && command().is_some_and(|pager| page(pager, text)) {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush())
}

/// False if the pager could not be started, so that nobody has seen the text.
fn page(mut pager: Command, text: &[u8]) -> bool {
    let Ok(mut child) = sys::handing_down(|| pager.stdin(Stdio::piped()).spawn()) else { return false };
    // Ctrl-C reaches both: the pager decides what it means.
    let status = sys::ignoring_interrupts(|| {
        // It is not an error if the pager ends before it has read everything.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(text));
        child.wait()
    });
    // The shell's exit statuses for a program that it can't start or find (sh(1)).
    !status.is_ok_and(|status| matches!(status.code(), Some(126 | 127)))
}

fn command() -> Option<Command> {
    if !Rights::own().are_ordinary() {
        return privileged(Path::new(LESS), &terminal()?);
    }
    let mut command = match std::env::var_os("PAGER") {
        Some(pager) if pager.is_empty() || pager == "cat" => return None,
        Some(pager) => {
            let mut shell = Command::new("/bin/sh");
            shell.arg("-c").arg(pager);
            shell
        }
        None if Path::new(LESS).exists() => Command::new(LESS),
        None => return None,
    };
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", OPTIONS);
    }
    Some(command)
}

/// less(1), section SECURITY.
fn privileged(less: &Path, terminal: &str) -> Option<Command> {
    let file = less.canonicalize().ok()?;
    let meta = file.metadata().ok()?;
    let is_less = file.file_name().is_some_and(|name| name == "less");
    let is_root_s = meta.is_file() && meta.uid() == 0 && meta.mode() & 0o022 == 0;
    if !is_less || !is_root_s {
        return None;
    }
    let mut command = Command::new(file);
    let fixed = [("LESSSECURE", "1"), ("LESSHISTFILE", "-"), ("LESSCHARSET", "utf-8"), ("LESS", OPTIONS)];
    command.env_clear().envs(fixed).env("TERM", terminal).current_dir("/");
    Some(command)
}

/// TERM, if it is the name of a terminal and not a path of a description.
fn terminal() -> Option<String> {
    let name = std::env::var("TERM").ok()?;
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
    Some(name).filter(|name| !name.is_empty() && !name.starts_with('.') && name.chars().all(is_fine))
}

/// Who runs this process, and with which rights.
struct Rights {
    users: [u32; 2],
    groups: [u32; 2],
    has_capabilities: bool,
    /// The kernel found at exec that the program has rights that its caller lacks (AT_SECURE, getauxval(3)).
    is_secure: bool,
    delegates: Vec<OsString>,
}

impl Rights {
    fn own() -> Rights {
        let sets = rustix::thread::capabilities(None);
        Rights {
            users: [sys::uid(), rustix::process::geteuid().as_raw()],
            groups: [sys::gid(), rustix::process::getegid().as_raw()],
            has_capabilities: sets.map_or(true, |sets| !sets.effective.is_empty() || !sets.permitted.is_empty()),
            is_secure: sys::is_secure(),
            delegates: DELEGATES.iter().filter_map(std::env::var_os).collect(),
        }
    }

    /// Whether the process has no rights beyond those of the user whose environment this is.
    fn are_ordinary(&self) -> bool {
        let is_same = |[real, effective]: [u32; 2]| real == effective;
        !self.users.contains(&0)
            && is_same(self.users)
            && is_same(self.groups)
            && !self.has_capabilities
            && !self.is_secure
            && self.delegates.is_empty()
    }
}

/// Rows that text takes on a terminal of that width. Colours take none.
fn height(text: &[u8], columns: usize) -> usize {
    let rows = |line: &str| unicode_width::UnicodeWidthStr::width(line).div_ceil(columns.max(1)).max(1);
    String::from_utf8_lossy(text).lines().map(|line| rows(&without_colours(line))).sum()
}

fn without_colours(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn ordinary() -> Rights {
        Rights {
            users: [1000, 1000],
            groups: [1000, 1000],
            has_capabilities: false,
            is_secure: false,
            delegates: Vec::new(),
        }
    }

    #[test]
    fn one_right_too_many_and_the_environments_pager_is_not_run() {
        assert!(ordinary().are_ordinary());
        for (what, rights) in [
            ("root", Rights { users: [0, 0], ..ordinary() }),
            ("set-user-ID root", Rights { users: [1000, 0], ..ordinary() }),
            ("root with a user's effective id", Rights { users: [0, 1000], ..ordinary() }),
            ("set-user-ID", Rights { users: [1000, 1001], ..ordinary() }),
            ("set-group-ID", Rights { groups: [1000, 42], ..ordinary() }),
            ("capabilities", Rights { has_capabilities: true, ..ordinary() }),
            ("AT_SECURE", Rights { is_secure: true, ..ordinary() }),
            ("sudo", Rights { delegates: vec!["1000".into()], ..ordinary() }),
        ] {
            assert!(!rights.are_ordinary(), "{what}");
        }
    }

    #[test]
    fn with_rights_less_has_no_environment_but_the_fixed_one() {
        let folder = std::env::temp_dir().join(format!("plimsoll-pager-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder");
        let less = folder.join("less");
        fs::write(&less, "").expect("a file");
        let with_mode = |mode| fs::set_permissions(&less, PermissionsExt::from_mode(mode)).expect("our file");
        with_mode(0o755);
        let is_root_s = fs::metadata(&less).expect("a file").uid() == 0;
        if let Some(command) = privileged(&less, "xterm") {
            let set: Vec<_> =
                command.get_envs().filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?))).collect();
            let expected = [
                ("LESS", "FRX"),
                ("LESSCHARSET", "utf-8"),
                ("LESSHISTFILE", "-"),
                ("LESSSECURE", "1"),
                ("TERM", "xterm"),
            ];
            assert_eq!(set, expected);
        } else {
            assert!(!is_root_s);
        }
        with_mode(0o775);
        assert!(privileged(&less, "xterm").is_none(), "a group may write it");
        with_mode(0o755);
        // Where less is busybox.
        fs::write(folder.join("busybox"), "").expect("a file");
        fs::remove_file(&less).expect("our file");
        symlink(folder.join("busybox"), &less).expect("a link");
        assert!(privileged(&less, "xterm").is_none(), "busybox");
        fs::remove_dir_all(folder).expect("our folder");
    }

    #[test]
    fn the_height_of_text_counts_wrapped_lines_and_no_colours() {
        assert_eq!(height(b"", 80), 0);
        assert_eq!(height(b"a\nb\n", 80), 2);
        assert_eq!(height(b"a\n\nb", 80), 3);
        assert_eq!(height("x".repeat(161).as_bytes(), 80), 3);
        assert_eq!(height(format!("\x1b[1;31m{}\x1b[0m\n", "x".repeat(80)).as_bytes(), 80), 1);
        // Two columns each.
        assert_eq!(height("漢".repeat(41).as_bytes(), 80), 2);
    }
}
