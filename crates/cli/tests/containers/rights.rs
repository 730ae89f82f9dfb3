//! A container that shares the PID namespace of its target (`--pid=container:NAME`, `shareProcessNamespace`, `kubectl
//! debug --target`): what it reads depends on its user and its capabilities.

use crate::kit::{Container, Explained, NOBODY};

/// The capabilities that Docker and containerd give a container by default.
const DEFAULT: &str = "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,\
                       +net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap";

fn container(case: &str) -> Option<Container> {
    Container::new(case).map(Container::with_target)
}

/// The ledger has the target's blocks within 3 %, and no source of the process was refused.
#[track_caller]
fn is_whole(live: u64, explained: &Explained) {
    let found = explained.resident("glibc-live").unwrap_or(0);
    assert!(found >= live && found <= live + live * 3 / 100, "{found} of {live}: {:?}", explained.gaps());
    let closed: Vec<_> = explained.gaps().into_iter().filter(|gap| gap.contains("can't be")).collect();
    assert!(closed.is_empty(), "{closed:?}");
}

#[test]
fn with_the_rights_of_its_target_it_reads_everything() {
    let Some(container) = container("same rights") else { return };
    let root = format!("setpriv {DEFAULT}");
    for (target, observer) in [(&*root, &*root), (NOBODY, NOBODY)] {
        let (live, explained) = container.explain(target, observer);
        is_whole(live, &explained);
    }
}

#[test]
fn of_another_users_target_it_reads_only_rss_and_names_the_capability() {
    let Some(container) = container("another user") else { return };
    let root = format!("setpriv {DEFAULT}");
    // Root of a default container, whose target dropped root; and a target that kept more capabilities than we have.
    for (target, observer) in [(NOBODY, &*root), (&*root, NOBODY), ("", &*root)] {
        let (live, explained) = container.explain(target, observer);
        assert!(explained.0["rss_bytes"].as_u64().is_some_and(|rss| rss >= live), "{}", explained.0["rss_bytes"]);
        assert_eq!(explained.resident("glibc-live"), None, "{target} {observer}");
        let closed = explained.gaps().into_iter().find(|gap| gap.contains("smaps can't be read")).expect("a gap");
        assert!(closed.contains("--cap-add SYS_PTRACE"), "{closed}");
        assert!(
            explained.gaps().iter().all(|gap| !gap.starts_with(' ')),
            "a file without a name: {:?}",
            explained.gaps()
        );
    }
}

#[test]
fn with_sys_ptrace_it_reads_everything() {
    let Some(container) = container("SYS_PTRACE") else { return };
    let (live, explained) = container.explain(NOBODY, &format!("setpriv {DEFAULT},+sys_ptrace"));
    is_whole(live, &explained);
}
