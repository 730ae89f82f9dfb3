//! Files of /proc/PID with parts that the process writes: its name, command, environment, limits.

use plimsoll_process::parsers::access::{AccessTexts, parse_closed};
use plimsoll_process::parsers::kernel_log;
use plimsoll_process::parsers::proc_view::{ProcTexts, parse_proc_view};
use plimsoll_process::parsers::sockets;
use plimsoll_process::parsers::start;
use plimsoll_process::parsers::status::*;

pub fn run(bytes: &[u8]) {
    kernel_log::parse(bytes);
    sockets::parse_listening(bytes);
    sockets::parse_listening_unix(bytes);
    if let Ok(words) = start::parse_arguments(bytes) {
        assert!(!words[0].contains('\0') && words.len() <= bytes.len());
    }
    start::parse_unit(bytes);
    start::parse_parent(bytes);
    // A shell must be able to assign to them.
    for (name, _) in start::parse_variables(bytes).unwrap_or_default() {
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
    }
    parse_status(bytes);
    parse_exiting(bytes);
    parse_start_ticks(bytes);
    parse_start_stack(bytes);
    parse_limits(bytes);
    parse_command(bytes);
    parse_environment(bytes);
    parse_tmpfs_devices(bytes);
    parse_stack_pointer(bytes);
    let text = String::from_utf8_lossy(bytes);
    cpu_count(&text);
    let (own, its) = text.split_once("\n\n").unwrap_or((&text, &text));
    let has_sudo = own.len() % 2 == 0;
    let texts = AccessTexts { own_status: own, its_status: its, own_user_map: its, yama: own, has_sudo };
    let closed = parse_closed(texts, "plimsoll explain 7");
    assert!(!closed.reason.is_empty());
    let seen = parse_proc_view(ProcTexts { mountinfo: &text, own_status: own, own_user_map: its, namespace: own });
    assert!(seen.absent(7).starts_with("no process 7"));
}
