//! A process itself: its identity, state and limits, the jars that it has open, and what starts it again.

use std::fs;
use std::io;

use crate::foreign::Target;
use crate::proc::start::read_start;
use crate::proc::started_as::read_started_as;
use crate::proc::status::{
    has_more_rights_than_its_user, parse_command, parse_environment, parse_exiting, parse_limits, parse_start_stack,
    parse_start_ticks, parse_status,
};
use plimsoll_facts::snapshot::{Process, ProcessState, Rss, Start};

/// What starts the process again.
pub fn start_of(target: &Target) -> Start {
    read_process(target).map(|(process, _)| read_start(target, &process)).unwrap_or_default()
}

/// Identity and state of the process, without what starts it and without `is_secure`, which only an exec changes. Every
/// user may read it, unless /proc is mounted with hidepid.
pub fn read_process(target: &Target) -> io::Result<(Process, Rss)> {
    let text = target.read("status")?;
    let mut status = parse_status(&text);
    if target.has_lost_its_first_thread() {
        // The process keeps the name and the numbers of its first thread.
        let first = parse_status(&target.read(&format!("task/{}/status", target.pid()))?);
        (status.name, status.namespaced_pids) = (first.name, first.namespaced_pids);
    }
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    let stat = target.read("stat").unwrap_or_default();
    let started = parse_start_ticks(&stat);
    let boot = fs::read_to_string("/proc/uptime").ok().and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let link = |name: &str| target.link(name).ok().map(|path| String::from_utf8_lossy(&path).into_owned());
    let own = |name: &str| fs::read_link(format!("/proc/self/{name}")).ok().map(|p| p.to_string_lossy().into_owned());
    let elsewhere = |name: &str| matches!((link(name), own(name)), (Some(its), Some(mine)) if its != mine);
    // In a user namespace, capabilities are that user's own.
    let shares_users = || matches!((link("ns/user"), own("ns/user")), (Some(its), Some(mine)) if its == mine);
    let mut process = Process {
        pid: target.pid(),
        namespaced_pid: status.namespaced_pids.last().copied().filter(|pid| *pid != target.pid()),
        name: status.name,
        command: target.read("cmdline").map(|text| parse_command(&text)).unwrap_or_default(),
        start: Start::Unread,
        executable: link("exe"),
        started_as: None,
        state: status.state,
        uid: status.uid,
        thread_count: status.threads,
        cpus_allowed: status.cpus_allowed.filter(|cpus| *cpus > 0),
        // lxcfs shows the container's uptime, while the kernel counts ticks from the machine's boot.
        uptime: (started.zip(boot).map(|(ticks_then, now)| now - ticks_then as f64 / ticks))
            .filter(|uptime| *uptime > -1.0)
            .map(|uptime| uptime.max(0.0)),
        start_ticks: started,
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned()),
        start_stack: parse_start_stack(&stat),
        limits: target.read("limits").map(|text| parse_limits(&text)).unwrap_or_default(),
        environment: target.read("environ").map(|text| parse_environment(&text)).unwrap_or_default(),
        peak_rss: status.peak_rss,
        page_tables: status.page_tables,
        swap: status.swap,
        is_strict: status.is_strict,
        is_secure: false,
        exceeds_user: has_more_rights_than_its_user(&String::from_utf8_lossy(&text)) && shares_users(),
        contained: elsewhere("ns/mnt") || elsewhere("ns/pid"),
    };
    process.started_as = read_started_as(target, &process);
    Ok((process, status.rss))
}

/// Whether the process is between its fatal signal and the zombie state: then its files are inconsistent.
pub fn is_exiting(target: &Target) -> bool {
    target.read("stat").is_ok_and(|stat| parse_exiting(&stat))
}

/// Whether a file below /proc/PID can't be read because the process has ended.
pub(super) fn has_ended(error: &io::Error) -> bool {
    let gone = [rustix::io::Errno::SRCH, rustix::io::Errno::INVAL].map(|errno| errno.raw_os_error());
    error.raw_os_error().is_some_and(|errno| gone.contains(&errno))
}

/// The message if there is nothing to explain.
pub fn refusal(state: ProcessState, pid: u32) -> Option<String> {
    match state {
        ProcessState::Zombie => {
            Some(format!("process {pid} is a zombie: its memory is gone, only its exit status is left"))
        }
        ProcessState::Kernel => Some(format!("process {pid} is a kernel thread: it has no memory of its own")),
        ProcessState::Alive | ProcessState::Stopped => None,
    }
}

/// Limits of descriptors of a JVM that are searched for jars, and of jars that are kept.
const DESCRIPTORS: usize = 4096;
const JARS: usize = 1000;

/// Jars that the process has open, by the names of its descriptors. Empty if they can't be read.
pub fn open_jars(target: &Target) -> Vec<String> {
    let descriptors = target.numbers("fd").unwrap_or_default();
    let names = descriptors.into_iter().take(DESCRIPTORS).filter_map(|fd| target.link(&format!("fd/{fd}")).ok());
    let jars = names.filter(|name| name.ends_with(b".jar")).map(|name| String::from_utf8_lossy(&name).into_owned());
    let mut jars: Vec<String> = jars.take(JARS).collect();
    jars.sort_unstable();
    jars.dedup();
    jars
}
