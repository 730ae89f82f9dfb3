//! Which processes /proc does not show us, and who would see them (proc(5), pid_namespaces(7)):
//!
//! ```text
//! hidepid=1, noaccess      files of processes that we may not trace
//! hidepid=2, invisible     the same, and their directories look as if they did not exist
//! hidepid=4, ptraceable    the same, and the group of gid= isn't an exception
//! another PID namespace    every process outside of ours and its children
//! ```

use crate::proc::{FIRST_PID_NAMESPACE, status_field};

const CAP_SYS_PTRACE: u32 = 19;

/// What the files of this process show: its mounts, its status, its map of users, and its PID namespace.
pub struct ProcTexts<'s> {
    pub mountinfo: &'s str,
    pub own_status: &'s str,
    pub own_user_map: &'s str,
    pub namespace: &'s str,
}

/// How far we see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcView {
    /// /proc hides processes that are not ours: who would see them.
    hidden: Option<String>,
    /// There is no /proc.
    unmounted: bool,
    /// We are not in the machine's first PID namespace, so probably in a container.
    contained: bool,
}

impl ProcView {
    /// Why nothing can be read of a PID: one sentence without a full stop.
    pub fn absent(&self, pid: u32) -> String {
        match self {
            ProcView { unmounted: true, .. } => format!("cannot look for process {pid}: /proc is not mounted"),
            ProcView { hidden: Some(remedy), .. } => format!("no process {pid}, or /proc hides it (hidepid): {remedy}"),
            ProcView { contained: true, .. } => {
                format!("no process {pid} in this PID namespace (a container's): plimsoll explain lists those in it")
            }
            _ => format!("no process {pid}"),
        }
    }

    /// What a list of processes lacks; `None` if it has them all.
    pub fn lacking(&self) -> Option<Lacking> {
        match self {
            ProcView { unmounted: true, .. } => Some(Lacking {
                what: "no process is visible: /proc is not mounted",
                remedy: "mount -t proc proc /proc, or start the container with a /proc".to_owned(),
                within: true,
            }),
            ProcView { hidden: Some(remedy), .. } => Some(Lacking {
                what: "/proc hides processes of other users (hidepid)",
                remedy: remedy.clone(),
                within: true,
            }),
            ProcView { contained: true, .. } => Some(Lacking {
                what: "only processes of this PID namespace (a container's) are visible",
                remedy:
                    "to see others: docker run --pid=host or --pid=container:NAME, kubectl debug --target=CONTAINER, \
                         hostPID: true"
                        .to_owned(),
                within: false,
            }),
            _ => None,
        }
    }
}

/// Processes that exist, but not for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    pub what: &'static str,
    pub remedy: String,
    /// Whether processes of this very container, or machine, are missing.
    pub within: bool,
}

pub fn parse_proc_view(shown: ProcTexts<'_>) -> ProcView {
    let contained = !shown.namespace.is_empty() && shown.namespace != FIRST_PID_NAMESPACE;
    let hidden = options_of_proc(shown.mountinfo).and_then(|options| hidden(options, &shown));
    ProcView { hidden, unmounted: shown.own_status.is_empty(), contained }
}

/// The options of the file system at /proc. Of several mounts there, the last one covers the others.
/// `63 45 0:39 / /proc rw,relatime - proc proc rw,gid=4,hidepid=invisible`
fn options_of_proc(mountinfo: &str) -> Option<&str> {
    let parts = mountinfo.lines().filter_map(|line| line.split_once(" - "));
    let is_proc =
        |point: &str, file_system: &str| point.split(' ').nth(4) == Some("/proc") && file_system.starts_with("proc ");
    let of_proc = parts.filter(|(point, file_system)| is_proc(point, file_system));
    of_proc.filter_map(|(_, file_system)| file_system.rsplit(' ').next()).next_back()
}

/// Who would see the processes that these options hide from us.
fn hidden(options: &str, shown: &ProcTexts<'_>) -> Option<String> {
    let value = |key: &str| options.split(',').find_map(|option| option.strip_prefix(key));
    let mode = value("hidepid=").filter(|mode| !matches!(*mode, "0" | "off"))?;
    // The kernel shows the gid only if it isn't 0.
    let group = value("gid=").unwrap_or("0");
    let has_exception = !matches!(mode, "4" | "ptraceable");
    let status = |key| status_field(shown.own_status, key);
    // `Groups:` lists the supplementary groups; `Gid:` has the real, effective, saved and file-system id. The kernel
    // compares the file-system id and the supplementary groups (in_group_p).
    let own = status("Gid:").and_then(|gids| gids.split_whitespace().nth(3));
    let is_member = own.into_iter().chain(status("Groups:").unwrap_or("").split_whitespace()).any(|gid| gid == group);
    let capabilities = status("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let may_trace = capabilities >> CAP_SYS_PTRACE & 1 == 1;
    let everybody = shown.own_user_map.split_whitespace().eq(["0", "0", "4294967295"]);
    let is_root = status("Uid:").and_then(|uids| uids.split_whitespace().nth(1)) == Some("0");
    match (may_trace, is_root) {
        _ if is_member && has_exception => None,
        (true, _) if everybody || shown.own_user_map.is_empty() => None,
        (true, _) => Some("run plimsoll outside of this user namespace".to_owned()),
        (false, true) => Some("give this root CAP_SYS_PTRACE, as docker run --cap-add SYS_PTRACE does".to_owned()),
        (false, false) if has_exception && group != "0" => {
            Some(format!("run plimsoll as root, or as a member of group {group} (the mount's gid=)"))
        }
        (false, false) => Some("run plimsoll as root".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "19 1 8:1 / / rw - ext4 /dev/vda rw\n45 43 0:21 / /proc rw,relatime - proc proc rw\n";
    const NOBODY: &str = "Uid:\t9\t9\t9\t9\nGid:\t9\t9\t9\t9\nGroups:\t5 6 \nCapEff:\t0000000000000000\n";

    fn shown<'s>(mountinfo: &'s str, own_status: &'s str) -> ProcTexts<'s> {
        ProcTexts {
            mountinfo,
            own_status,
            own_user_map: "         0          0 4294967295\n",
            namespace: FIRST_PID_NAMESPACE,
        }
    }

    fn over(options: &str) -> String {
        format!("{ROOT}63 45 0:39 / /proc rw,relatime - proc proc rw,{options}\n70 45 0:3 / /srv rw - proc proc rw\n")
    }

    #[test]
    fn the_uppermost_mount_decides() {
        assert_eq!(parse_proc_view(shown(ROOT, NOBODY)), ProcView::default());
        assert_eq!(parse_proc_view(shown(&over("hidepid=off"), NOBODY)), ProcView::default());
        for mode in ["noaccess", "invisible", "ptraceable", "1", "2", "4"] {
            let seen = parse_proc_view(shown(&over(&format!("hidepid={mode}")), NOBODY));
            assert_eq!(seen.absent(7), "no process 7, or /proc hides it (hidepid): run plimsoll as root", "{mode}");
            assert!(seen.lacking().is_some_and(|lacking| lacking.what.contains("hidepid") && lacking.within));
        }
    }

    #[test]
    fn the_group_of_the_mount_sees_all_but_with_ptraceable() {
        let of = |options: &str| parse_proc_view(shown(&over(options), NOBODY)).hidden;
        assert_eq!(of("gid=6,hidepid=invisible"), None);
        assert_eq!(of("gid=9,hidepid=noaccess"), None);
        assert!(of("gid=7,hidepid=invisible").is_some_and(|remedy| remedy.contains("a member of group 7")));
        assert!(of("gid=6,hidepid=ptraceable").is_some_and(|remedy| !remedy.contains("group")));
    }

    #[test]
    fn rights_that_we_have_are_no_remedy() {
        let mounts = over("hidepid=ptraceable");
        let root = "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t0\nCapEff:\t000001ffffffffff\n";
        assert_eq!(parse_proc_view(shown(&mounts, root)).hidden, None);
        let inner = ProcTexts { own_user_map: "0 1000 1\n", ..shown(&mounts, root) };
        assert!(parse_proc_view(inner).hidden.is_some_and(|remedy| remedy.contains("user namespace")));
        let bounded = root.replace("1ffffffffff", "1fffff7ffff");
        assert!(
            parse_proc_view(shown(&mounts, &bounded)).hidden.is_some_and(|remedy| remedy.contains("CAP_SYS_PTRACE"))
        );
    }

    #[test]
    fn a_container_has_a_pid_namespace_of_its_own() {
        let seen = parse_proc_view(ProcTexts { namespace: "pid:[4026532214]", ..shown(ROOT, NOBODY) });
        assert!(seen.absent(7).starts_with("no process 7 in this PID namespace"));
        assert!(seen.lacking().is_some_and(|lacking| lacking.remedy.contains("--pid=host") && !lacking.within));
        // Without the mounts and the namespace, the view claims nothing.
        let nothing = ProcTexts { mountinfo: "", own_status: NOBODY, own_user_map: "", namespace: "" };
        assert_eq!(parse_proc_view(nothing), ProcView::default());
    }

    #[test]
    fn without_a_proc_nothing_is_visible() {
        let seen = parse_proc_view(ProcTexts { mountinfo: "", own_status: "", own_user_map: "", namespace: "" });
        assert_eq!(seen.absent(7), "cannot look for process 7: /proc is not mounted");
        assert!(seen.lacking().is_some_and(|lacking| lacking.what.contains("not mounted") && lacking.within));
    }
}
