//! The process that listens can read nothing, and the process that reads does not listen.

use std::collections::BTreeSet;
use std::fs;

use crate::kit::{Server, Subject};

pub fn status(pid: u32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{field}: {text}")).trim().to_owned()
}

/// Sockets that a process has open.
pub fn sockets(pid: u32) -> BTreeSet<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").flatten();
    let links = entries.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.display().to_string()));
    links.filter(|link| link.starts_with("socket:")).collect()
}

/// Inodes of the TCP sockets that listen at a port (proc_pid_net(5): state 0A).
fn listening_at(port: u16) -> BTreeSet<String> {
    let text = fs::read_to_string("/proc/net/tcp").expect("sockets");
    let at = format!(":{port:04X}");
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row.len() > 9 && row[1].ends_with(&at) && row[3] == "0A");
    rows.map(|row| format!("socket:[{}]", row[9])).collect()
}

#[test]
fn the_listener_has_no_right_and_no_file() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    let pid = server.listener;
    // The tests run as root, so the listener is nobody.
    assert_eq!(status(pid, "Uid").split_whitespace().collect::<BTreeSet<_>>(), BTreeSet::from(["65534"]));
    assert_eq!(status(pid, "Gid").split_whitespace().collect::<BTreeSet<_>>(), BTreeSet::from(["65534"]));
    assert_eq!(status(pid, "Groups"), "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(pid, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(pid, "NoNewPrivs"), "1");
    // 2: a filter.
    assert_eq!(status(pid, "Seccomp"), "2");
    assert_eq!(status(pid, "Threads"), "1");
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
    let of = |name: &str| limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    assert!(of("Max processes").starts_with("0 "), "{limits}");
    assert!(of("Max file size").starts_with("0 "), "{limits}");
    // The pipe to the reader, the listening socket and clients are all sockets. The rest is standard error.
    let links = || fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").flatten();
    let open = links().filter_map(|entry| fs::read_link(entry.path()).ok()).map(|link| link.display().to_string());
    let files: Vec<String> = open.filter(|link| !link.starts_with("socket:")).collect();
    assert!(files.len() == 1 && files[0].starts_with("pipe:"), "{files:?}");
    // It is not dumpable, so its files in /proc belong to root: no process of user nobody can trace it.
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(format!("/proc/{pid}/mem")).expect("a file"));
    assert_eq!(owner, 0);
}

#[test]
fn the_reader_does_not_listen() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    let listening = listening_at(server.port);
    assert_eq!(listening.len(), 1);
    assert!(listening.is_subset(&sockets(server.listener)), "the listener has it");
    assert!(listening.is_disjoint(&sockets(server.child.id())), "the reader has it not");
}
