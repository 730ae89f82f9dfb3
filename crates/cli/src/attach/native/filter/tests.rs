//! What filters forbid: filters whose results are known, and filters in force in processes that a test stops.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::*;

const KILL: u32 = 0x8000_0000;

fn later() -> Deadline {
    Deadline::after(Duration::from_secs(600))
}

/// `result` for this call, and ALLOW for others.
fn filter(number: libc::c_long, result: u32) -> Vec<u8> {
    let all =
        [(0x20u16, [0, 0], 0), (0x15, [0, 1], number as u32), (0x06, [0, 0], result), (0x06, [0, 0], 0x7fff_0000)];
    all.into_iter().flat_map(|(code, jumps, k)| [&code.to_le_bytes()[..], &jumps, &k.to_le_bytes()].concat()).collect()
}

fn refusal(lists: &[&[Vec<u8>]], is_needed: impl Fn(Need) -> bool) -> Option<Closed> {
    let lists = lists.iter().map(|list| list.to_vec()).collect();
    Filters { lists, ..Filters::default() }.refusal(later(), calls::all(), is_needed)
}

#[test]
fn a_call_is_refused_unless_all_filters_of_all_threads_allow_it() {
    const LOG: u32 = 0x7ffc_0000;
    let error = |code: i32| 0x5_0000 | code as u32;
    let needed = |need| need != Need::FromMemory;
    let of = |number, result| refusal(&[&[filter(-1, 0), filter(number, result)], &[]], needed);
    assert_eq!(refusal(&[], needed), None);
    assert_eq!(of(libc::SYS_ptrace, KILL), None, "nobody makes this call");
    for call in calls::all() {
        let is_needed = needed(call.need);
        let refused = Some(Closed::Call(call.name)).filter(|_| is_needed);
        let name = |closed: Option<Closed>| {
            closed.map(|closed| match closed {
                Closed::Call(name) => name.split(' ').next().unwrap_or_default(),
                other => panic!("{other:?}"),
            })
        };
        let own = name(refused);
        // Another row may need the same call always.
        let always = calls::all().any(|other| other.number == call.number && other.need == Need::Always);
        let of = |result| name(of(call.number, result));
        // A program that is killed for a call doesn't make it, and then the tracker doesn't make it either.
        let waives_itself = matches!(call.need, Need::With(calls) if calls.contains(&call.number))
            || (call.need == Need::ToLock && call.number == libc::SYS_mlockall);
        let handles_errors = matches!(call.need, Need::MayFail | Need::ToLock | Need::WhereLocked);
        if is_needed {
            assert_eq!(of(KILL), own.filter(|_| !waives_itself), "{}", call.name);
        }
        assert_eq!(of(LOG), None, "{}", call.name);
        let may_fail = !is_needed || (handles_errors && !always);
        if may_fail {
            assert_eq!(of(error(libc::EPERM)), None, "{}", call.name);
        } else {
            assert_eq!(of(error(libc::EPERM)), own, "{}", call.name);
        }
    }
    assert_eq!(of(libc::SYS_clone3, error(libc::ENOSYS)), None);
    assert_eq!(of(libc::SYS_clone, error(libc::ENOSYS)), Some(Closed::Call("clone")));
    let kills = filter(libc::SYS_memfd_create, KILL);
    assert_eq!(refusal(&[std::slice::from_ref(&kills)], needed), None);
    assert_eq!(refusal(&[&[kills]], |need| need == Need::FromMemory), Some(Closed::Call("memfd_create")));
}

/// A program that is killed for execve(2) never reaches the calls before an exec. A program that gets an error from
/// execve goes on.
#[test]
fn a_call_before_an_exec_is_waived_only_if_every_exec_kills_the_process() {
    const EPERM: u32 = 0x5_0001;
    let of = |rules: &[(libc::c_long, u32)]| {
        let list: Vec<_> = rules.iter().map(|(number, result)| filter(*number, *result)).collect();
        refusal(&[&list], |need| need != Need::FromMemory)
    };
    let (access, execve, execveat) = (libc::SYS_access, libc::SYS_execve, libc::SYS_execveat);
    let refused = Some(Closed::Call("access"));
    assert_eq!(of(&[(access, KILL)]), refused);
    assert_eq!(of(&[(access, KILL), (execve, KILL), (execveat, KILL)]), None);
    assert_eq!(of(&[(access, KILL), (execve, KILL)]), refused);
    for survived in [EPERM, 0, 0x7ff0_0000] {
        assert_eq!(of(&[(access, KILL), (execve, survived), (execveat, KILL)]), refused, "{survived:x}");
        assert_eq!(of(&[(access, KILL), (execve, KILL), (execveat, survived)]), refused, "{survived:x}");
    }
    let (shmctl, shmat) = (libc::SYS_shmctl, libc::SYS_shmat);
    assert_eq!(of(&[(shmctl, KILL), (shmat, EPERM)]), Some(Closed::Call("shmctl")));
    assert_eq!(of(&[(shmctl, KILL), (shmat, KILL)]), None);
}

fn status(mode: u32, count: Option<u32>) -> Vec<u8> {
    let count = count.map(|count| format!("Seccomp_filters:\t{count}\n")).unwrap_or_default();
    format!("State:\tS\nSeccomp:\t{mode}\n{count}").into_bytes()
}

/// Filters after the reading of thread 2, which has the list "a".
fn read_once() -> (Filters, List, List) {
    let [a, b] = [libc::SYS_ptrace, libc::SYS_ioperm].map(|number| vec![filter(number, KILL)]);
    let mut filters = Filters::default();
    let list = filters.unknown(2, &status(2, Some(1)), later(), || Ok(Some(a.clone()))).expect("read");
    filters.add(list.expect("a new one")).expect("the first");
    (filters, a, b)
}

#[test]
fn filters_are_known_as_long_as_a_thread_has_as_many() {
    let (mut filters, a, b) = read_once();
    let unread = || -> Result<Option<List>, Closed> { panic!("read again") };
    let mut check = |tid, status: &[u8], list: &List| filters.check(tid, status, later(), || Ok(Some(list.clone())));
    assert_eq!(check(2, &status(2, Some(2)), &b), Err(Closed::New));
    assert_eq!(check(1, &status(1, Some(0)), &a), Err(Closed::Strict));
    // Two threads that have begun since, each with one filter: its parent's, and another one.
    assert_eq!(check(3, &status(2, Some(1)), &a), Ok(()));
    assert_eq!(check(4, &status(2, Some(1)), &b), Err(Closed::New));
    let (mut filters, ..) = read_once();
    assert_eq!(filters.check(2, &status(2, Some(1)), later(), unread), Ok(()));
    assert_eq!(filters.check(5, &status(0, Some(0)), later(), unread), Ok(()));
    assert_eq!(filters.check(6, &status(2, Some(1)), later(), || Ok(None)), Ok(()), "it is ending");
}

#[test]
fn without_the_kernels_count_filters_are_read_each_time() {
    let (mut filters, a, b) = read_once();
    assert_eq!(filters.check(2, &status(2, None), later(), || Ok(Some(a.clone()))), Ok(()));
    assert_eq!(filters.check(2, &status(2, None), later(), || Ok(Some(b))), Err(Closed::New));
}

#[test]
fn neither_time_nor_the_number_of_lists_is_without_a_bound() {
    let past = Deadline::after(Duration::ZERO);
    let (mut filters, a, _) = read_once();
    assert_eq!(filters.refusal(past, calls::all(), |_| true), Some(Closed::Late));
    assert_eq!(filters.check(9, &status(2, Some(1)), past, || Ok(Some(a))), Err(Closed::Late));
    let us = Target::open(std::process::id(), later()).expect("we live");
    assert_eq!(Filters::read(&us, &identity(&us), Purpose::Track, past).err(), Some(Closed::Late));
    for n in 1..MOST_LISTS {
        filters.add(vec![filter(n as libc::c_long, KILL)]).expect("as many as that");
    }
    assert_eq!(filters.add(Vec::new()), Err(Closed::TooMany));
}

/// Returns once the only thread is in this system call.
fn wait_for(target: &Target, call: libc::c_long) {
    let number = format!("{call} ");
    let began = std::time::Instant::now();
    while !target.read("syscall").is_ok_and(|now| now.starts_with(number.as_bytes())) {
        assert!(began.elapsed() < Duration::from_secs(60), "it isn't in call {call}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn identity(target: &Target) -> ExecIdentity {
    ExecIdentity::of(target, &target.read("status").expect("it lives")).expect("it lives")
}

struct Waiting(std::process::Child);
impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No filter shows that restart_syscall is allowed: the program has none, or this process may not read filters. So each
/// wait must go on without that call.
#[test]
fn a_wait_goes_on_after_the_stop_unless_a_signals_handler_ran() {
    let script = "import ctypes, os, signal, sys\n\
                  libc = ctypes.CDLL(None, use_errno=True)\n\
                  signal.signal(signal.SIGUSR1, lambda *_: None)\n\
                  e = libc.epoll_create1(0)\n\
                  events = ctypes.create_string_buffer(64)\n\
                  waits = {'pause': libc.pause, 'poll': lambda: libc.poll(None, 0, -1),\n\
                           'epoll': lambda: libc.epoll_wait(e, events, 1, -1)}\n\
                  for line in sys.stdin:\n print(waits[line.strip()](), ctypes.get_errno(), flush=True)\n";
    let mut python = Command::new("/usr/bin/python3");
    let python = python.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Waiting(python) = &mut Waiting(python.expect("python"));
    let pid = python.id();
    let mut to = python.stdin.take().expect("piped");
    let (sent, answers) = std::sync::mpsc::channel();
    let output = BufReader::new(python.stdout.take().expect("piped"));
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sent.send(line)));
    let target = Target::open(pid, later()).expect("it lives");
    for (name, call) in [("pause", libc::SYS_pause), ("poll", libc::SYS_poll), ("epoll", libc::SYS_epoll_wait)] {
        writeln!(to, "{name}").expect("it reads");
        wait_for(&target, call);
        let identity = identity(&target);
        let stop = || stopped(&target, pid, &identity, later()).unwrap_or_else(|closed| panic!("{closed:?}"));
        let thread = stop();
        let before = thread.registers().expect("registers");
        assert_ne!(frame::interrupted(&before), Interrupted::No, "{name}");
        let _ = copied(&thread);
        drop(thread);
        // It goes on in the same call, never by restart_syscall.
        wait_for(&target, call);
        assert_eq!(answers.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty), "{name}");
        // Waits until the thread is inside the call: a signal that comes just before the call doesn't end the wait.
        let thread = loop {
            let thread = stop();
            if frame::interrupted(&thread.registers().expect("registers")) != Interrupted::No {
                break thread;
            }
        };
        let _ = copied(&thread);
        // SAFETY: a signal to our own child.
        assert_eq!(unsafe { libc::kill(pid as libc::pid_t, libc::SIGUSR1) }, 0);
        drop(thread);
        let answer = answers.recv_timeout(Duration::from_secs(60));
        assert_eq!(answer.as_deref(), Ok("-1 4"), "{name} ends with EINTR");
    }
}

#[test]
fn a_thread_of_another_process_is_let_go_untouched() {
    let sleep = || Waiting(Command::new("/bin/sleep").arg("1000").spawn().expect("sleep"));
    let (one, other) = (sleep(), sleep());
    let target = Target::open(one.0.id(), later()).expect("it lives");
    // Before that call, the child may still run this program.
    wait_for(&target, libc::SYS_clock_nanosleep);
    let identity = identity(&target);
    assert_eq!(stopped(&target, one.0.id(), &identity, later()).err(), None);
    assert!(matches!(stopped(&target, other.0.id(), &identity, later()), Err(Closed::Thread(_))));
}
