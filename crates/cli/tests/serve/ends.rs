//! How the server starts, is refused, and ends.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::child::wait_for;
use crate::kit::{PLIMSOLL, Server, Subject, scratch};

/// The exit status and the sentence of a server that does not start.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("timeout")
        .args(["-s", "KILL", "60", PLIMSOLL, "serve"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("plimsoll");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn what_cannot_be_served_is_refused_in_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let own = std::process::id().to_string();
    let short = scratch("short").join("token");
    std::fs::write(&short, "too short\n").expect("a file");
    let short = short.to_str().expect("UTF-8");
    for (arguments, expected) in [
        (&[][..], "<PID|NAME>"),
        (&["4194305"], "no process 4194305"),
        (&[&own, "--listen", &address], "another program does"),
        (&[&own, "--listen", "nowhere"], "127.0.0.1:9464"),
        (&[&own, "--listen", "0.0.0.0:0"], "add --token-file FILE"),
        (&[&own, "--token-file", short], "16 visible characters"),
        (&[&own, "--token-file", "/nonexistent"], "/nonexistent"),
        (&[&own, "--interval", "10ms"], "at least 1s"),
        (&[&own, "--keep", "1s"], "at least 1m"),
        (&[&own, "--history", "/proc/x"], "--history /proc/x"),
    ] {
        let (code, stderr) = refused(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected) && stderr.trim_end().lines().count() == 1, "{arguments:?}: {stderr}");
    }
}

/// The sender looks its receivers up, and prints why it can't. No name ends in .invalid (RFC 2606).
#[test]
fn a_receiver_that_cannot_be_looked_up_is_one_sentence() {
    let own = std::process::id().to_string();
    let (code, stderr) = refused(&[&own, "--listen", "127.0.0.1:0", "--otlp", "http://plimsoll.invalid"]);
    let last: Vec<&str> =
        stderr.lines().filter(|line| !line.contains("listening at") && !line.contains("can read the pages")).collect();
    assert_eq!((code, last.len()), (Some(2), 1), "{stderr}");
    assert!(last[0].starts_with("plimsoll: cannot look up http://plimsoll.invalid"), "{stderr}");
}

#[test]
fn a_signal_ends_both_processes_and_leaves_nothing() {
    for signal in ["-TERM", "-INT"] {
        let subject = Subject::named("shop");
        let server = Server::of(&subject, &[]);
        let (port, listener) = (server.port, server.listener);
        server.kill(server.child.id(), signal);
        let (status, stderr) = server.ended();
        assert_eq!(status.code(), Some(0), "{signal}: {stderr}");
        assert!(is_gone(listener));
        TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    }
}

#[test]
fn the_end_of_one_process_is_the_end_of_the_other() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    let (reader, listener) = (server.child.id(), server.listener);
    server.kill(listener, "-KILL");
    let (status, stderr) = server.ended();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("the listening process was killed by signal 9: plimsoll serve ends"), "{stderr}");
    assert!(is_gone(reader) && is_gone(listener));

    let server = Server::of(&subject, &[]);
    let listener = server.listener;
    server.kill(server.child.id(), "-KILL");
    let (_, stderr) = server.ended();
    assert!(stderr.contains("the reading process has ended: plimsoll serve ends"), "{stderr}");
    // Its parent is gone, so the first process of the machine reaps it.
    wait_for("the end of the listener", || {
        let state = std::fs::read_to_string(format!("/proc/{listener}/stat")).unwrap_or_default();
        (is_gone(listener) || state.contains(") Z ")).then_some(())
    });
}

#[test]
fn the_first_lines_name_who_may_connect() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    // What the line says of the listener is what the kernel says. Landlock has no figure there, and may be absent.
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.listener)).expect("the listener's status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    let user = match field("Uid:") {
        Some("65534") => "user nobody, ",
        Some("0") => "root without capabilities, ",
        _ => "your user, ",
    };
    let seccomp = if field("Seccomp:") == Some("2") { ", seccomp" } else { ", no seccomp here" };
    let printed = server.printed.replace("no Landlock here", "Landlock");
    assert!(printed.contains(&format!("{user}Landlock{seccomp}")), "{}\n{status}", server.printed);
    server.kill(server.child.id(), "-TERM");
    let (_, stderr) = server.ended();
    assert!(stderr.contains("every user of this machine can read the pages"), "{stderr}");
    assert!(stderr.contains(&format!("serving process {} as /shop", subject.pid())), "{stderr}");
}
