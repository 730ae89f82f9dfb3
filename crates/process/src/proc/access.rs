//! Why the kernel refuses access to a process, and what to type. It only returns EACCES or EPERM; the reason follows
//! from our own rights (ptrace(2), "Ptrace access mode checking"):
//!
//! ```text
//! CAP_SYS_PTRACE in the first user namespace   everything except what a security module protects
//! CAP_SYS_PTRACE in a user namespace           processes of that namespace
//! none, the same user                          its own, if dumpable and if yama allows it
//! none, another user                           nothing
//! ```
//! Yama restricts only what may change a process: PTRACE_MODE_ATTACH, which /proc/PID/mem needs, too, and not
//! PTRACE_MODE_READ, which suffices for maps, smaps and pagemap (security/yama/yama_lsm.c, `yama_ptrace_access_check`).

use super::status::status_field;

const CAP_SYS_PTRACE: u32 = 19;

/// What the kernel checks before it opens a file of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// maps, smaps, pagemap.
    Read,
    /// mem, syscall, and ptrace(2) itself.
    Attach,
}

/// Two sentences without a full stop; the second is empty if nothing helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Text that follows "process PID".
    pub reason: String,
    pub remedy: String,
}

#[derive(Clone, Copy, Debug)]
struct Facts {
    own_user: u32,
    its_user: u32,
    may_trace: bool,
    /// Whether we are in a user namespace: our rights apply only inside it.
    in_namespace: bool,
    yama: u32,
    has_sudo: bool,
}

/// What /proc reports about us and about the process, as text; empty if unknown.
pub struct AccessTexts<'s> {
    pub own_status: &'s str,
    pub its_status: &'s str,
    pub own_user_map: &'s str,
    pub yama: &'s str,
    /// Containers seldom have it.
    pub has_sudo: bool,
}

/// `refused` is the command that was refused.
pub fn parse_closed(texts: AccessTexts<'_>, refused: &str) -> Closed {
    let user = |status| status_field(status, "Uid:").and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    let capabilities = status_field(texts.own_status, "CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let everybody = texts.own_user_map.split_whitespace().eq(["0", "0", "4294967295"]);
    let facts = Facts {
        own_user: user(texts.own_status).unwrap_or(u32::MAX),
        its_user: user(texts.its_status).unwrap_or(u32::MAX),
        may_trace: capabilities.unwrap_or(0) >> CAP_SYS_PTRACE & 1 == 1,
        in_namespace: !texts.own_user_map.is_empty() && !everybody,
        yama: texts.yama.trim().parse().unwrap_or(0),
        has_sudo: texts.has_sudo,
    };
    closed(facts, refused)
}

/// A command for root, and what else would do. It can be pasted also where sudo is absent.
pub(super) fn by_root(has_sudo: bool, command: &str, or: &str) -> String {
    match (has_sudo, or) {
        (true, "") => format!("sudo {command}"),
        (true, or) => format!("sudo {command}   # or {or}"),
        (false, "") => format!("{command}   # as root"),
        (false, or) => format!("{command}   # as root, or {or}"),
    }
}

/// A command that root runs as another user, by sudo or by util-linux. Without `gid`, sudo takes the user's first group.
pub(super) fn by_user(has_sudo: bool, uid: u64, gid: Option<u32>, command: &str) -> String {
    let (group, regid) = match gid {
        Some(gid) => (format!(" -g '#{gid}'"), format!(" --regid={gid}")),
        None => Default::default(),
    };
    match has_sudo {
        true => format!("sudo -u '#{uid}'{group} {command}"),
        false => format!("setpriv --reuid={uid}{regid} --clear-groups {command}"),
    }
}

fn closed(facts: Facts, refused: &str) -> Closed {
    let by_root = |or: &str| by_root(facts.has_sudo, refused, or);
    let (reason, remedy) = match facts {
        Facts { yama: 3, .. } => {
            let remedy =
                "plimsoll run --   # and then the command that starts it: its books can be read without tracing";
            ("is closed to everybody: kernel.yama.ptrace_scope = 3 until the next boot", remedy.to_owned())
        }
        Facts { may_trace: true, in_namespace: true, .. } => (
            "belongs to an outer user namespace, in which this root has no rights",
            format!("sudo {refused}   # outside of this container"),
        ),
        Facts { may_trace: true, .. } => (
            "can't be read even by root, because of a security module (SELinux, AppArmor, Landlock, BPF; cat /sys/kernel/security/lsm)",
            String::new(),
        ),
        Facts { own_user: 0, .. } => (
            "can't be read without CAP_SYS_PTRACE, which this root doesn't have",
            format!("{refused}   # with CAP_SYS_PTRACE; from inside a container: --cap-add SYS_PTRACE"),
        ),
        Facts { own_user, its_user, yama, .. } if own_user == its_user => (
            match yama {
                0 => "belongs to this user, but is setuid or not dumpable (prctl(2)), so it can't be read",
                1 => "belongs to this user, but isn't a child of plimsoll, as kernel.yama.ptrace_scope = 1 requires",
                _ => "belongs to this user, but kernel.yama.ptrace_scope = 2 leaves tracing to root",
            },
            by_root(""),
        ),
        _ => ("is another user's", by_root("with CAP_SYS_PTRACE; from inside a container: --cap-add SYS_PTRACE")),
    };
    Closed { reason: reason.to_owned(), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A VM accepts commands only from its own user and group, so a line with the user alone would be refused again.
    #[test]
    fn a_command_as_another_user_has_its_group() {
        let of = |has_sudo, gid| by_user(has_sudo, 7, gid, "plimsoll explain 9");
        assert_eq!(of(true, Some(8)), "sudo -u '#7' -g '#8' plimsoll explain 9");
        assert_eq!(of(true, None), "sudo -u '#7' plimsoll explain 9");
        assert_eq!(of(false, Some(8)), "setpriv --reuid=7 --regid=8 --clear-groups plimsoll explain 9");
        assert_eq!(of(false, None), "setpriv --reuid=7 --clear-groups plimsoll explain 9");
    }

    #[test]
    fn the_remedy_never_names_a_right_that_the_caller_has() {
        let facts =
            Facts { own_user: 1000, its_user: 0, may_trace: false, in_namespace: false, yama: 0, has_sudo: true };
        let of = |facts| closed(facts, "plimsoll explain 7");
        assert_eq!(of(facts).reason, "is another user's");
        assert!(of(facts).remedy.starts_with("sudo plimsoll explain 7   # or with CAP_SYS_PTRACE; "));
        let without = of(Facts { has_sudo: false, ..facts }).remedy;
        assert!(without.starts_with("plimsoll explain 7   # as root, or with CAP_SYS_PTRACE; "), "{without}");
        let root = of(Facts { own_user: 0, may_trace: true, ..facts });
        assert!(root.reason.contains("security module") && root.remedy.is_empty(), "{root:?}");
        let contained = of(Facts { own_user: 0, may_trace: true, in_namespace: true, ..facts });
        assert!(contained.reason.contains("namespace") && contained.remedy.contains("outside"), "{contained:?}");
        let bounded = of(Facts { own_user: 0, ..facts });
        assert!(bounded.reason.contains("CAP_SYS_PTRACE") && bounded.remedy.contains("--cap-add"), "{bounded:?}");
        assert!(!bounded.remedy.contains("sudo"), "{bounded:?}");
        assert!(of(Facts { its_user: 1000, ..facts }).reason.contains("dumpable"));
        for scope in [1, 2] {
            let own = of(Facts { its_user: 1000, yama: scope, ..facts });
            assert!(own.reason.contains(&format!("ptrace_scope = {scope}")), "{own:?}");
            assert_eq!(own.remedy, "sudo plimsoll explain 7");
            let without = of(Facts { its_user: 1000, yama: scope, has_sudo: false, ..facts }).remedy;
            assert_eq!(without, "plimsoll explain 7   # as root");
        }
        let nobody = of(Facts { own_user: 0, may_trace: true, yama: 3, ..facts });
        assert!(nobody.reason.contains("= 3") && nobody.remedy.starts_with("plimsoll run --   # "), "{nobody:?}");
    }
}
