//! Takes every right from this process that its purpose doesn't need.
//!
//! ```text
//! root?            user nobody, no groups, no capability, none in the bounding set
//! every user       no_new_privs, not dumpable (nobody traces or reads us), rlimits
//! Landlock         no file, no directory, no bind, no connect but to the ports of       Linux 5.13 and later; ports: 6.7;
//!                  `Purpose::Connect`, no signal to other processes                     signals: 6.12
//! seccomp          the system calls of the purpose only: no open, exec, ptrace;        where the kernel has it
//!                  a listener makes no socket and no connection, a sender TCP only
//! ```
//! The result says what is in force. This module decides nothing: the caller ends if too little is in force.

use std::io;

use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The user that owns nothing (Debian's and the kernel's overflow id).
const NOBODY: u32 = 65534;

/// What is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confined {
    /// The process was root and is nobody now.
    pub is_nobody: bool,
    /// The process is still root: it may not change its user (a user namespace, a container without CAP_SETUID).
    pub is_root: bool,
    pub landlock: bool,
    pub seccomp: bool,
}

impl Confined {
    pub fn bits(self) -> u8 {
        let all = [self.is_nobody, self.is_root, self.landlock, self.seccomp];
        all.iter().enumerate().map(|(at, is_on)| u8::from(*is_on) << at).sum()
    }

    pub fn of_bits(bits: u8) -> Confined {
        let on = |at: u8| bits & 1 << at != 0;
        Confined { is_nobody: on(0), is_root: on(1), landlock: on(2), seccomp: on(3) }
    }
}

/// What the process does from now on.
#[derive(Clone, Copy)]
pub enum Purpose<'p> {
    /// Serve sockets that are already open.
    Listen,
    /// Connect by TCP to these ports.
    Connect { ports: &'p [u16] },
}

/// Limits of the confined process.
pub struct Limits {
    pub descriptors: u64,
    pub memory: u64,
}

/// Closes every descriptor from `first` on. The process must have no value that owns one of them.
pub fn close_from(first: i32) {
    // SAFETY: the caller has just started and owns only descriptors below `first`; no memory is passed.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, i32::MAX, 0) };
    if closed != 0 {
        // Before Linux 5.9.
        for fd in first..1 << 16 {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// Confines this process, which must have one thread only.
pub fn confine(purpose: Purpose<'_>, limits: &Limits) -> io::Result<Confined> {
    let mut done = Confined::default();
    rustix::thread::set_no_new_privs(true)?;
    for number in 0..63 {
        // Fails after the last capability, and without CAP_SETPCAP: then no_new_privs alone keeps rights from coming
        // back.
        if rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)).is_err() {
            break;
        }
    }
    let _ = rustix::thread::clear_ambient_capability_set();
    if rustix::process::geteuid().is_root() || rustix::process::getuid().is_root() {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        let became = rustix::thread::set_thread_groups(&[])
            .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
            .and_then(|()| rustix::thread::set_thread_res_uid(uid, uid, uid));
        done.is_nobody = became.is_ok();
        done.is_root = became.is_err();
    }
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    // After the change of user, which may make a process dumpable again.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    for (resource, most) in [
        (Resource::Nofile, limits.descriptors),
        (Resource::As, limits.memory),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
        (Resource::Nproc, 0),
    ] {
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    done.landlock = landlock(match purpose {
        Purpose::Listen => &[],
        Purpose::Connect { ports } => ports,
    });
    done.seccomp = seccomp(&filter(purpose));
    Ok(done)
}

/// `struct landlock_ruleset_attr` (linux/landlock.h).
#[repr(C)]
struct Ruleset {
    files: u64,
    net: u64,
    scoped: u64,
}

/// `struct landlock_net_port_attr`.
#[repr(C)]
struct Port {
    allowed: u64,
    port: u64,
}

/// Denies everything that the kernel's version of Landlock knows, except connections to `ports`. Open descriptors stay
/// usable.
fn landlock(ports: &[u16]) -> bool {
    const VERSION: libc::c_ulong = 1;
    const RULE_OF_A_PORT: libc::c_int = 2;
    const CONNECT: u64 = 2;
    let none: *const Ruleset = std::ptr::null();
    // SAFETY: a null attribute of size 0 queries the version.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, VERSION) };
    // Bits of each kind by version; an unknown bit is an error.
    let files = match version {
        ..1 => return false,
        1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    let ruleset = Ruleset {
        files: (1 << files) - 1,
        net: if version >= 4 { 3 } else { 0 },
        scoped: if version >= 6 { 3 } else { 0 },
    };
    // SAFETY: the struct outlives the calls; an older kernel accepts the longer struct, because its tail is 0.
    unsafe {
        let fd = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const ruleset, size_of::<Ruleset>(), 0);
        if fd < 0 {
            return false;
        }
        let allow = |port: &u16| {
            let rule = Port { allowed: CONNECT, port: u64::from(*port) };
            libc::syscall(libc::SYS_landlock_add_rule, fd, RULE_OF_A_PORT, &raw const rule, 0) == 0
        };
        let is_whole = ruleset.net == 0 || ports.iter().all(allow);
        let done = is_whole && libc::syscall(libc::SYS_landlock_restrict_self, fd, 0) == 0;
        libc::close(fd as libc::c_int);
        done
    }
}

/// What every purpose needs: bytes in and out of open descriptors, memory, time, the end.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];
/// New connections of an open socket.
const TO_LISTEN: &[libc::c_long] = &[libc::SYS_accept4, libc::SYS_recvfrom, libc::SYS_sendto];
/// Connections to others. Not `sendto`: with MSG_FASTOPEN it connects where Landlock doesn't see it.
const TO_CONNECT: &[libc::c_long] = &[libc::SYS_connect, libc::SYS_getsockopt];

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// Offsets in `struct seccomp_data`: of the arguments, which have 8 bytes each, the low half.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST: u32 = 16;
const SECOND: u32 = 24;
/// The only type of socket that a confined process opens.
const STREAM: i32 = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

/// A filter that refuses all other calls with EPERM. A call of another architecture, which has other numbers, ends the
/// process.
fn filter(purpose: Purpose<'_>) -> Vec<libc::sock_filter> {
    const X32: u32 = 0x4000_0000;
    let connects = matches!(purpose, Purpose::Connect { .. });
    let load = |at: u32| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let done = |action: u32| step(libc::BPF_RET | libc::BPF_K, 0, 0, action);
    let equal = |value: u32, yes: u8, no: u8| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, value);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut all = vec![load(ARCHITECTURE), equal(ARCH, 1, 0), done(libc::SECCOMP_RET_KILL_PROCESS), load(NUMBER)];
    // On x86-64 these are the same calls with another layout of arguments.
    all.extend([step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32), done(refuse)]);
    for number in ALLOWED.iter().chain(if connects { TO_CONNECT } else { TO_LISTEN }) {
        all.extend([equal(*number as u32, 0, 1), done(libc::SECCOMP_RET_ALLOW)]);
    }
    if connects {
        all.extend([
            equal(libc::SYS_socket as u32, 0, 6),
            load(FIRST),
            equal(libc::AF_INET as u32, 1, 0),
            equal(libc::AF_INET6 as u32, 0, 3),
            load(SECOND),
            equal(STREAM as u32, 0, 1),
            done(libc::SECCOMP_RET_ALLOW),
        ]);
    }
    all.push(done(refuse));
    all
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn seccomp(steps: &[libc::sock_filter]) -> bool {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_ptr().cast_mut() };
    // SAFETY: the program points to `steps`, which lives through the call; the kernel copies and checks it.
    unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does.
    fn verdict(steps: &[libc::sock_filter], number: u32, arch: u32) -> u32 {
        of_call(steps, number, arch, [0; 2])
    }

    fn of_call(steps: &[libc::sock_filter], number: u32, arch: u32, arguments: [i32; 2]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let step = steps[at];
            let taken = match u32::from(step.code) & 0xf7 {
                code if code == libc::BPF_LD | libc::BPF_ABS => {
                    value = match step.k {
                        NUMBER => number,
                        ARCHITECTURE => arch,
                        FIRST => arguments[0] as u32,
                        SECOND => arguments[1] as u32,
                        other => panic!("the filter loads {other}"),
                    };
                    0
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ => {
                    if value == step.k {
                        step.jt
                    } else {
                        step.jf
                    }
                }
                code if code == libc::BPF_JMP | libc::BPF_JGE => {
                    if value >= step.k {
                        step.jt
                    } else {
                        step.jf
                    }
                }
                _ => return step.k,
            };
            at += 1 + usize::from(taken);
        }
    }

    #[test]
    fn the_filter_lets_only_listed_calls_pass() {
        let steps = filter(Purpose::Listen);
        for number in 0..600 {
            let is_listed = [ALLOWED, TO_LISTEN].concat().contains(&libc::c_long::from(number));
            let expected =
                if is_listed { libc::SECCOMP_RET_ALLOW } else { libc::SECCOMP_RET_ERRNO | libc::EPERM as u32 };
            assert_eq!(verdict(&steps, number, ARCH), expected, "{number}");
            assert_ne!(verdict(&steps, number | 0x4000_0000, ARCH), libc::SECCOMP_RET_ALLOW);
            assert_eq!(verdict(&steps, number, 3), libc::SECCOMP_RET_KILL_PROCESS);
        }
        let forbidden = [
            libc::SYS_openat,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_execve,
            libc::SYS_clone,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_kill,
            libc::SYS_sendmsg,
            libc::SYS_pidfd_getfd,
            libc::SYS_io_uring_setup,
            libc::SYS_setuid,
            libc::SYS_mount,
            libc::SYS_bpf,
        ];
        assert!(forbidden.iter().all(|number| ![ALLOWED, TO_LISTEN].concat().contains(number)));
    }

    #[test]
    fn who_connects_opens_tcp_sockets_only() {
        let steps = filter(Purpose::Connect { ports: &[80] });
        let of = |number: libc::c_long, arguments| of_call(&steps, number as u32, ARCH, arguments);
        let is_allowed = |number, arguments| of(number, arguments) == libc::SECCOMP_RET_ALLOW;
        assert!(is_allowed(libc::SYS_socket, [libc::AF_INET, STREAM]));
        assert!(is_allowed(libc::SYS_socket, [libc::AF_INET6, STREAM]));
        for arguments in [
            [libc::AF_UNIX, STREAM],
            [libc::AF_NETLINK, STREAM],
            [libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK],
            [libc::AF_INET, libc::SOCK_RAW],
            [libc::AF_INET, 0],
        ] {
            assert_eq!(of(libc::SYS_socket, arguments), libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, "{arguments:?}");
        }
        let none = [0; 2];
        assert!(is_allowed(libc::SYS_connect, none) && is_allowed(libc::SYS_write, none));
        let forbidden = [
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_accept4,
            libc::SYS_openat,
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
        ];
        assert!(forbidden.iter().all(|number| !is_allowed(*number, none)));
    }

    #[test]
    fn bits_name_what_is_in_force() {
        for bits in 0..16 {
            assert_eq!(Confined::of_bits(bits).bits(), bits);
        }
    }
}
