//! The frame from which rt_sigreturn(2) restores a thread: what the kernel would have put on the stack for a signal.
//!
//! ```text
//! at ─▶ return address │ ucontext: registers, signal mask │ … 64-byte boundary … │ xstate │ magic
//! ```
//! A function that is entered with the stack pointer at `at` returns into libc's restorer, which calls rt_sigreturn. So
//! a borrowed thread finds its own way back, also if plimsoll is killed in the middle.
//! Layouts: `struct rt_sigframe` (arch/x86/include/asm/sigframe.h), `struct _fpx_sw_bytes` (asm/sigcontext.h).

use super::ptrace::Registers;

/// x86-64 ABI: a leaf function may use this many bytes below its stack pointer.
const RED_ZONE: u64 = 128;
const UCONTEXT_BYTES: usize = 304;
/// Where the legacy area of the xstate has the kernel's own words, and where the mask of features is in them.
const SOFTWARE_BYTES: std::ops::Range<usize> = 464..512;
/// The mask of the features that are not in their initial state: XSTATE_BV.
const IN_USE: usize = 512;
/// The legacy area and the header.
const LEAST: usize = 576;
/// XTILEDATA, the tiles of AMX: its bit in masks of features, and its bytes, the last ones of the xstate.
const TILES: u64 = 1 << 18;
const TILES_BYTES: usize = 8192;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
const FLAGS: u64 = 7;
/// A value that sigaltstack(2) refuses: the thread's alternative stack stays as it is.
const NO_ALTERNATIVE_STACK: u64 = 0xffff_ffff;

pub struct Frame {
    /// The stack pointer for the call.
    pub at: u64,
    pub bytes: Vec<u8>,
}

/// How much of the xstate rt_sigreturn takes, and the features in it.
///
/// ptrace(2) shows every thread with an xstate that has space for tiles. The frame of a thread that has never used
/// tiles must be shorter: from a longer one, the kernel restores x87 and SSE only, and sets all other vector registers
/// to zero (`check_xstate_in_sigframe`).
fn restored(xstate: &[u8]) -> Option<(usize, u64)> {
    let word = |at: usize| Some(u64::from_le_bytes(*xstate.get(at..)?.first_chunk()?));
    let (features, in_use) = (word(SOFTWARE_BYTES.start)?, word(IN_USE)?);
    let has_room = features & TILES != 0 && in_use & TILES == 0;
    let less = xstate.len().checked_sub(TILES_BYTES).filter(|bytes| has_room && *bytes >= LEAST);
    Some(less.map_or((xstate.len(), features), |bytes| (bytes, features & !TILES)))
}

/// Builds the frame below the stack pointer `below`. `None`: the xstate is too short to be one.
pub fn build(below: u64, registers: &Registers, mask: u64, xstate: &[u8], restorer: u64) -> Option<Frame> {
    let (restored, features) = restored(xstate)?;
    let length = u64::try_from(xstate.len()).ok().filter(|length| *length >= LEAST as u64)?;
    // XRSTOR faults on memory that isn't aligned to 64 bytes. A function expects 8 bytes beyond a multiple of 16.
    let xstate_at = below.checked_sub(RED_ZONE + length + 4)? & !63;
    let at = (xstate_at.checked_sub(8 + UCONTEXT_BYTES as u64)? & !15).checked_sub(8)?;
    let r = registers;
    let segments = (r.cs & 0xffff) | (r.ss & 0xffff) << 48;
    let mut words = vec![restorer, FLAGS, 0, 0, NO_ALTERNATIVE_STACK, 0];
    words.extend([r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax]);
    words.extend([r.rcx, r.rsp, r.rip, r.eflags, segments, 0, 0, 0, 0, xstate_at]);
    words.extend([0; 8]);
    words.push(mask);
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.resize((xstate_at - at) as usize, 0);
    let start = bytes.len();
    bytes.extend_from_slice(xstate);
    let mut software = Vec::with_capacity(SOFTWARE_BYTES.len());
    software.extend(MAGIC1.to_le_bytes());
    software.extend((restored as u32 + 4).to_le_bytes());
    software.extend(features.to_le_bytes());
    software.extend((restored as u32).to_le_bytes());
    software.resize(SOFTWARE_BYTES.len(), 0);
    bytes[start + SOFTWARE_BYTES.start..start + SOFTWARE_BYTES.end].copy_from_slice(&software);
    bytes.extend(MAGIC2.to_le_bytes());
    // Linux looks for MAGIC2 behind the stated length. From 6.14 on, some versions look behind the length of the
    // thread's state, which is the longer one once the thread has used tiles.
    bytes[start + restored..][..4].copy_from_slice(&MAGIC2.to_le_bytes());
    Some(Frame { at, bytes })
}

/// What the kernel does with an interrupted system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// The thread was in no call, or the call had ended.
    No,
    /// The kernel restarts it when the thread goes on with these registers.
    ByKernel,
    /// The program would see EINTR, but the call has done nothing: it can be made again.
    ByUs,
}

/// ERESTARTNOHAND, ERESTART_RESTARTBLOCK (include/linux/errno.h).
const RESTART_NO_HANDLER: i64 = -514;
const RESTART_BLOCK: i64 = -516;
/// Those two, and ERESTARTSYS, ERESTARTNOINTR.
const RESTARTS: [i64; 4] = [-512, -513, RESTART_NO_HANDLER, RESTART_BLOCK];
const EINTR: i64 = -(libc::EINTR as i64);
/// System calls that return EINTR when a tracer stops the thread, and that have had no effect if they do (signal(7)).
/// io_uring_enter returns the number of the requests that it has submitted instead, if there are any.
const WITHOUT_EFFECT: [libc::c_long; 23] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwritev2,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_msgrcv,
];

pub fn interrupted(registers: &Registers) -> Interrupted {
    let (call, result) = (registers.orig_rax as i64, registers.rax as i64);
    match result {
        _ if call < 0 => Interrupted::No,
        _ if RESTARTS.contains(&result) => Interrupted::ByKernel,
        EINTR if WITHOUT_EFFECT.contains(&call) => Interrupted::ByUs,
        _ => Interrupted::No,
    }
}

/// The registers with which the kernel makes the interrupted call again from its start, unless a handler of a signal
/// runs: then it ends with EINTR (ERESTARTNOHAND). restart_syscall(2) isn't called. `None`: the kernel does so by
/// itself.
pub fn without_restart_syscall(registers: &Registers) -> Option<Registers> {
    let needs_restart_syscall = registers.rax as i64 == RESTART_BLOCK;
    match interrupted(registers) {
        Interrupted::ByKernel if !needs_restart_syscall => None,
        Interrupted::No => None,
        _ => Some(Registers { rax: RESTART_NO_HANDLER as u64, ..*registers }),
    }
}

/// The registers with which the thread makes the interrupted call again, from its start: a timeout starts anew.
pub fn restarted(registers: &Registers) -> Registers {
    let mut again = *registers;
    if interrupted(registers) != Interrupted::No {
        again.rax = registers.orig_rax;
        // The length of the instruction SYSCALL.
        again.rip = registers.rip.wrapping_sub(2);
        again.orig_rax = u64::MAX;
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(orig_rax: i64, rax: i64) -> Registers {
        Registers {
            r15: 15,
            r14: 14,
            r13: 13,
            r12: 12,
            rbp: 5,
            rbx: 3,
            r11: 11,
            r10: 10,
            r9: 9,
            r8: 8,
            rax: rax as u64,
            rcx: 1,
            rdx: 2,
            rsi: 6,
            rdi: 7,
            orig_rax: orig_rax as u64,
            rip: 0x1002,
            cs: 0x33,
            eflags: 0x246,
            rsp: 0x7fff_1238,
            ss: 0x2b,
            fs_base: 0,
            gs_base: 0,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
        }
    }

    #[test]
    fn only_calls_without_effect_are_made_again() {
        for (call, result, expected) in [
            (libc::SYS_futex, -512, Interrupted::ByKernel),
            (libc::SYS_clock_nanosleep, -516, Interrupted::ByKernel),
            (libc::SYS_epoll_wait, -4, Interrupted::ByUs),
            (libc::SYS_close, -4, Interrupted::No),
            (libc::SYS_epoll_wait, 1, Interrupted::No),
            (-1, -512, Interrupted::No),
            (-1, -4, Interrupted::No),
        ] {
            let r = registers(call, result);
            assert_eq!(interrupted(&r), expected, "{call} {result}");
            let again = restarted(&r);
            let is_restarted = expected != Interrupted::No;
            assert_eq!(again.rip, if is_restarted { 0x1000 } else { 0x1002 });
            assert_eq!(again.rax, if is_restarted { call } else { result } as u64);
            let by_kernel = without_restart_syscall(&r).map(|r| (r.orig_rax as i64, r.rax as i64, r.rip));
            let is_changed = result == -516 || expected == Interrupted::ByUs;
            assert_eq!(by_kernel, is_changed.then_some((call, -514, 0x1002)));
        }
    }

    #[test]
    fn the_frame_has_the_kernels_layout() {
        let mut xstate = vec![7u8; 832];
        xstate[464..472].copy_from_slice(&0x207u64.to_le_bytes());
        let r = registers(-1, 99);
        let frame = build(r.rsp, &r, 0x55, &xstate, 0xabc).expect("a frame");
        let word = |at: usize| u64::from_le_bytes(frame.bytes[at..at + 8].try_into().expect("8 bytes"));
        // As in asm/ucontext.h and asm/sigcontext.h, counted from the ucontext, which lies behind the return address.
        let sigcontext = |at: usize| word(8 + 40 + at);
        assert_eq!((word(0), word(8), word(8 + 296)), (0xabc, 7, 0x55));
        assert_eq!((sigcontext(0), sigcontext(64), sigcontext(104), sigcontext(112)), (8, 7, 99, 1));
        assert_eq!((sigcontext(120), sigcontext(128), sigcontext(136)), (r.rsp, r.rip, r.eflags));
        assert_eq!(sigcontext(144), 0x002b_0000_0000_0033);
        let at = (sigcontext(184) - frame.at) as usize;
        assert_eq!((frame.at % 16, sigcontext(184) % 64), (8, 0));
        assert!(frame.at + frame.bytes.len() as u64 <= r.rsp - 128, "the red zone");
        assert_eq!(word(at + 464), u64::from(MAGIC1) | (832 + 4) << 32);
        assert_eq!((word(at + 472), word(at + 480) as u32), (0x207, 832));
        assert_eq!(frame.bytes[at + 832..], MAGIC2.to_le_bytes());
        assert!(build(r.rsp, &r, 0, &xstate[..100], 0).is_none() && build(64, &r, 0, &xstate, 0).is_none());
    }

    /// What ptrace(2) shows on a processor with AMX: 2,816 bytes, and 8 KiB of tiles.
    #[test]
    fn a_thread_without_tiles_gets_a_frame_without_them() {
        const ALL: u64 = 0x602e7;
        let of = |in_use: u64, features: u64| {
            let mut xstate = vec![7u8; 11_008];
            xstate[464..472].copy_from_slice(&features.to_le_bytes());
            xstate[512..520].copy_from_slice(&in_use.to_le_bytes());
            let r = registers(-1, 99);
            let frame = build(r.rsp, &r, 0, &xstate, 0).expect("a frame");
            let at = frame.bytes.len() - 11_008 - 4;
            let word = |from: usize| frame.bytes[at + from..].first_chunk().copied().map_or(0, u32::from_le_bytes);
            let lengths = (word(468), word(480));
            let mask = u64::from(word(472)) | u64::from(word(476)) << 32;
            (lengths, mask, [word(2816), word(11_008)])
        };
        let other = u32::from_le_bytes([7; 4]);
        assert_eq!(of(0x2e7, ALL), ((2820, 2816), 0x202e7, [MAGIC2, MAGIC2]));
        assert_eq!(of(0, ALL), ((2820, 2816), 0x202e7, [MAGIC2, MAGIC2]));
        assert_eq!(of(ALL, ALL), ((11_012, 11_008), ALL, [other, MAGIC2]));
        // Without AMX, another feature has the last bytes.
        assert_eq!(of(0x2e7, 0x2e7), ((11_012, 11_008), 0x2e7, [other, MAGIC2]));
    }
}
