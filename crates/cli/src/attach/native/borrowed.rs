//! A thread of the target, borrowed for a few calls of libc's functions, and given back as it was.
//!
//! ```text
//! stop ─▶ fit? ─▶ frame on its stack ─▶ registers: mmap ─▶ signals blocked ─▶ end of the system call
//!                                         mprotect, in the same way ◀─────────────────┘
//!                           pthread_create, by our own code ─▶ its result in the page ─▶ the code waits for a stop
//!                       xstate, mask, registers (last) ◀─ stop ◀───────────────────────────────┘
//! ```
//! Each stop costs two wake-ups, so there are few stops. plimsoll takes the thread over at the end of the system call
//! of mmap and of mprotect. pthread_create, which makes many system calls, runs without a stop.
//!
//! If plimsoll dies at any of these steps, the thread goes on by itself: it finishes the call, returns into
//! rt_sigreturn, and that restores it from the frame. So it does if plimsoll gets no processor time for [`SPIN`].
//! Normally the registers are set directly instead, because the kernel then restarts an interrupted wait with the rest
//! of its timeout; rt_sigreturn would give up that rest.
//!
//! A thread that runs execve meanwhile is let go at once, and its new program isn't touched.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use plimsoll_facts::snapshot::{Backing, Vma};
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::{Target, parse_limits};

use super::frame::{self, Interrupted};
use super::identity::ExecIdentity;
use super::injected_thread::{self, Errno, TALK};
use super::objects::{Objects, RESTORER_BYTES};
use super::own_stack;
use super::ptrace::{Registers, Stop, Thread};
use super::threads;
use super::unwind::{self, Current, Stack};

/// A running thread stops within microseconds; with many threads for each CPU it takes longer.
pub const STOPPING: Duration = Duration::from_secs(5);
/// All calls together: one may wait for a lock that another thread holds, and the borrowed thread does nothing else
/// meanwhile.
const CALLING: Duration = Duration::from_secs(20);
/// A deeper stack isn't searched: the thread would stand still for too long.
const DEEPEST: u64 = 1 << 20;
/// The longest frame, and what mmap uses below it. A signal handler needs as much.
const ROOM: u64 = 16 << 10;
/// The kernel keeps this far below a stack that grows free of other mappings (stack_guard_gap, 256 pages by default).
const GUARD_GAP: u64 = 1 << 20;
/// Stops of any kind in one call. A hostile program could make system calls without end.
const MOST_STOPS: usize = 100;
/// How long the thread spins, once pthread_create has returned, before it restores itself. Only a plimsoll that was
/// killed, or is kept from running, costs the program this time.
pub const SPIN: Duration = Duration::from_millis(100);
/// How long to look for the end of pthread_create without a sleep: the thread stands still until this process notices.
const LOOKING: Duration = Duration::from_micros(300);
/// Instructions PAUSE between two such looks, some microseconds: each look takes the lock of the target's mappings,
/// which pthread_create wants.
const PAUSES: u32 = 50;
/// Between two later looks.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);
const USER_CODE: u64 = 0x33;
/// x86 flags that a function may not find set: trap and direction.
const TRAP_AND_DIRECTION: u64 = 0x500;
/// Signals that the thread itself causes; blocked, they would kill the process.
const OWN_SIGNALS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// How long to look without a sleep here. On one processor that would only keep the thread from running.
pub fn looking() -> Duration {
    if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) { LOOKING } else { Duration::ZERO }
}

/// Why a thread was not borrowed.
pub enum Unfit {
    /// Not here and now: try another thread, or the same one later.
    Now(&'static str),
    /// The thread may be in this code. The second text says why its frames are not proven; `None`: they are.
    There(&'static str, Option<&'static str>),
    /// ptrace(2) is refused.
    Refused,
    /// The process is no longer the one that was examined.
    Replaced,
    /// The thread did not stop; it stays attached until this process ends.
    Stuck,
}

/// Where the borrowed thread is.
#[derive(PartialEq, Eq)]
enum Place {
    /// Stopped, outside of any system call: it goes on from the registers that are set.
    Stopped,
    /// Stopped at the start of a system call.
    CallBegins,
    /// Stopped at the end of one.
    CallEnded,
    /// Running in [`injected_thread::call`], or in what that calls, on the stack of the region that begins here.
    Ours(u64),
    /// No longer ours: it has restored itself, or has ended.
    Gone,
}

pub struct Borrowed<'t> {
    target: &'t Target,
    memory: &'t File,
    thread: Thread,
    tid: u32,
    /// Its /proc/PID/task/TID/status at the stop.
    status: Vec<u8>,
    restorer: u64,
    original: Registers,
    xstate: Vec<u8>,
    mask: u64,
    errno: Option<Errno>,
    is_masked: bool,
    place: Place,
    /// The end of the calls.
    deadline: Deadline,
}

impl<'t> Borrowed<'t> {
    /// Stops the thread, and lets it go unless it may be borrowed where it is.
    pub fn at(
        target: &'t Target,
        memory: &'t File,
        vmas: &[Vma],
        tables: &Current<'_>,
        objects: &Objects,
        identity: &ExecIdentity,
        tid: u32,
    ) -> Result<Borrowed<'t>, Unfit> {
        let gone = |_| Unfit::Now("has ended");
        let mut thread = Thread::seize(target.pid(), tid).map_err(|e| match e.raw_os_error() {
            Some(libc::ESRCH) => Unfit::Now("has ended"),
            // The kernel returns EPERM for an ending thread, too.
            Some(libc::EPERM) if threads::is_ending(target, tid) => Unfit::Now("has ended"),
            Some(libc::EPERM) if threads::is_traced(target, tid) => Unfit::Now("is traced by another process"),
            _ => Unfit::Refused,
        })?;
        stop(&mut thread, target.deadline().sooner(STOPPING))?;
        // From here on the thread cannot exec. A set-user-ID program must not get registers that were meant for the
        // program before it, whose user could have chosen them. A reused PID cannot redirect the handle `target`.
        let status = target.read(&format!("task/{tid}/status")).map_err(gone)?;
        let has_own_rights = !identity.is_that_of(target, &status);
        if has_own_rights && !target.read("status").is_ok_and(|status| identity.is_that_of(target, &status)) {
            return Err(Unfit::Replaced);
        }
        let original = thread.registers().map_err(gone)?;
        let examine = || {
            // A thread may have rights of its own, for example by setfsuid(2). It is not borrowed.
            if has_own_rights {
                return Err(Unfit::Now("has rights of its own"));
            }
            let mask = thread.mask().map_err(gone)?;
            if threads::may_change_user(&status, mask) {
                return Err(Unfit::Now("is changing its user"));
            }
            let lowest = |end| own_stack::lowest(memory, original.fs_base, end);
            let limit = || stack_limit(target);
            let stack = stack(vmas, original.rsp, original.fs_base, lowest, limit).map_err(Unfit::Now)?;
            if original.cs & 0xffff != USER_CODE {
                return Err(Unfit::Now("runs 32-bit code"));
            }
            if in_restartable_sequence(&thread, memory, original.rip) {
                return Err(Unfit::Now("is in a restartable sequence"));
            }
            let mut words = vec![0; (stack.end - stack.start) as usize];
            memory.read_exact_at(&mut words, stack.start).map_err(gone)?;
            let stack = Stack { at: stack.start, bytes: &words };
            let code = |at, into: &mut [u8]| memory.read_exact_at(into, at).is_ok();
            let frames = unwind::walk(tables, &original, &stack, code);
            // The alternate stack for signals may lie in the thread's own stack. Then the functions that the signal
            // interrupted aren't above the stack pointer. Proven frames reach the first function, so a signal's frame
            // between them is a stale one.
            if frames.is_err() && own_stack::is_left_for_a_handler(&stack, objects.restorer) {
                return Err(Unfit::Now("handles a signal on another stack"));
            }
            if let Some(function) = objects.forbidden.found(original.rip, &stack, frames.as_ref().ok()) {
                return Err(Unfit::There(function, frames.err()));
            }
            if threads::has_signal(&status, mask) {
                return Err(Unfit::Now("is about to get a signal"));
            }
            Ok((mask, thread.xstate().map_err(gone)?))
        };
        let (mask, xstate) = examine().inspect_err(|_| undisturbed(&thread, &original))?;
        let errno = objects.errno.and_then(|distance| {
            let (at, mut value) = (original.fs_base.wrapping_add(distance), [0; 4]);
            memory.read_exact_at(&mut value, at).ok().map(|()| Errno { at, value })
        });
        let restorer = objects.restorer;
        let deadline = target.deadline().sooner(CALLING);
        let thread = Borrowed {
            target,
            memory,
            thread,
            tid,
            status,
            restorer,
            original,
            xstate,
            mask,
            errno,
            is_masked: false,
            place: Place::Stopped,
            deadline,
        };
        Ok(thread)
    }

    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// Its /proc/PID/task/TID/status, as it was at the stop.
    pub fn status(&self) -> &[u8] {
        &self.status
    }

    /// `None`: the place of the thread's errno is unknown.
    pub fn errno(&self) -> Option<Errno> {
        self.errno
    }

    /// The thread's seccomp filters.
    pub fn filters(&self) -> io::Result<Vec<Vec<u8>>> {
        self.thread.filters()
    }

    /// Has the thread call a function that makes this system call, on its own stack or below the address `stack`.
    /// Leaves the thread at the end of the system call, and returns that call's result. `None`: the function made no
    /// such call.
    pub fn call(
        &mut self,
        system_call: libc::c_long,
        function: u64,
        arguments: [u64; 6],
        stack: Option<u64>,
    ) -> io::Result<Option<i64>> {
        let back = self.enter(function, arguments, stack, None)?;
        self.thread.run_to_call(0)?;
        for _ in 0..MOST_STOPS {
            let stop = self.thread.wait(self.deadline)?;
            if let Some(signal) = self.signal_to_pass(stop)? {
                self.thread.run_to_call(signal)?;
                continue;
            }
            let begins = self.place != Place::CallBegins;
            self.place = if begins { Place::CallBegins } else { Place::CallEnded };
            let r = self.thread.registers()?;
            let number = r.orig_rax as i64;
            let is_back = r.rsp == back && r.rip == self.restorer + RESTORER_BYTES;
            if begins && is_back && number == libc::SYS_rt_sigreturn {
                return Ok(None);
            }
            if !begins && number == system_call {
                return Ok(Some(r.rax as i64));
            }
            self.thread.run_to_call(0)?;
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Has the thread call a function through [`injected_thread::call`] of the region that begins here. The thread
    /// doesn't stop meanwhile. Returns the function's result: an error of errno(3), or 0. `looking`: see [`looking`].
    pub fn call_in(&mut self, region: u64, function: u64, arguments: [u64; 6], looking: Duration) -> io::Result<i32> {
        let page = region + TALK;
        self.enter(region + injected_thread::call(), arguments, Some(page), Some((page, function)))?;
        self.thread.run()?;
        self.place = Place::Ours(region);
        let began = Instant::now();
        loop {
            // An ended thread may have made the call before.
            let stopped = self.thread.stopped();
            match &stopped {
                Ok(None) => {}
                Ok(Some(_)) if !self.is_in(region)? => self.let_go()?,
                Ok(Some(stop)) => {
                    let signal = self.signal_to_pass(*stop)?.unwrap_or(0);
                    self.thread.run_with(signal)?;
                }
                Err(_) => self.place = Place::Gone,
            }
            if let Some(result) = self.result(page)? {
                return Ok(result);
            }
            stopped?;
            if self.place == Place::Gone {
                return Err(io::Error::other("it has left the call"));
            }
            if self.deadline.has_passed() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if began.elapsed() < looking {
                (0..PAUSES).for_each(|_| std::hint::spin_loop());
            } else {
                std::thread::sleep(BETWEEN_LOOKS);
            }
        }
    }

    /// The result of a call in the region, once it has returned.
    fn result(&self, page: u64) -> io::Result<Option<i32>> {
        let read = || {
            let mut word = [0; 8];
            self.memory.read_exact_at(&mut word, page + injected_thread::CALLED).map(|()| injected_thread::result(word))
        };
        // The result was stored before the flag. One copy of both may be older in one half than in the other.
        Ok(if read()?.is_some() { read()? } else { None })
    }

    /// Whether the stopped thread is on the stack of the region: then it has not restored itself.
    fn is_in(&self, region: u64) -> io::Result<bool> {
        Ok((region..=region + TALK).contains(&self.thread.registers()?.rsp))
    }

    /// A stopped thread that has restored itself: its program must see nothing of the stop.
    fn let_go(&mut self) -> io::Result<()> {
        if let Some(again) = frame::without_restart_syscall(&self.thread.registers()?) {
            self.thread.set_registers(&again)?;
        }
        self.place = Place::Gone;
        Ok(())
    }

    /// Builds the frame and sets the registers for a call. Returns the stack pointer behind the return address.
    /// `ours`: what our own code finds in rbx and r12. It is the first function on its stack, so rbp is 0.
    fn enter(
        &mut self,
        function: u64,
        arguments: [u64; 6],
        stack: Option<u64>,
        ours: Option<(u64, u64)>,
    ) -> io::Result<u64> {
        let again = frame::restarted(&self.original);
        let below = stack.unwrap_or(self.original.rsp);
        let frame = frame::build(below, &again, self.mask, &self.xstate, self.restorer);
        let frame = frame.ok_or(io::ErrorKind::InvalidData)?;
        self.memory.write_all_at(&frame.bytes, frame.at)?;
        let [rdi, rsi, rdx, rcx, r8, r9] = arguments;
        let o = &self.original;
        let (rbx, r12, rbp) = ours.map_or((o.rbx, o.r12, o.rbp), |(rbx, r12)| (rbx, r12, 0));
        self.thread.set_registers(&Registers {
            rip: function,
            rsp: frame.at,
            orig_rax: self.instead(),
            rax: 0,
            eflags: self.original.eflags & !TRAP_AND_DIRECTION,
            rdi,
            rsi,
            rdx,
            rcx,
            r8,
            r9,
            rbx,
            r12,
            rbp,
            ..self.original
        })?;
        if !self.is_masked {
            let open = OWN_SIGNALS.iter().fold(0u64, |set, signal| set | 1 << (signal - 1));
            self.thread.set_mask(!open)?;
            self.is_masked = true;
        }
        Ok(frame.at + 8)
    }

    /// The number of the system call that is made instead of the one that begins where the thread stands. A call that
    /// is cancelled would be number -1 to a seccomp filter, which may kill for it: getpid(2) has no effect. Elsewhere
    /// no call is made, and none is restarted.
    fn instead(&self) -> u64 {
        if self.place == Place::CallBegins { libc::SYS_getpid as u64 } else { u64::MAX }
    }

    /// Handles a stop within a call. Returns the signal to go on with, 0 for none; `None`: a system call begins or
    /// ends.
    fn signal_to_pass(&mut self, stop: Stop) -> io::Result<Option<i32>> {
        match stop {
            Stop::Exec => Err(replaced()),
            // The call itself caused this signal: it is dropped, and the thread goes back to where it was.
            Stop::Signal(signal) if OWN_SIGNALS.contains(&signal) => {
                self.place = Place::Stopped;
                self.thread.drop_signal();
                self.restore()?;
                Err(io::Error::other(format!("the call was ended by signal {signal}")))
            }
            _ if self.deadline.has_passed() => Err(io::ErrorKind::TimedOut.into()),
            Stop::Call => Ok(None),
            Stop::Event => Ok(Some(0)),
            Stop::Signal(signal) => Ok(Some(signal)),
        }
    }

    /// Gives the thread back. It runs on when this returns.
    pub fn give_back(mut self) -> io::Result<()> {
        match self.place {
            Place::Stopped => {}
            Place::CallBegins => {
                // Puts the thread at the restorer, before rt_sigreturn. If plimsoll ends here, the thread makes that
                // call again, which restores it from the frame.
                let r = self.thread.registers()?;
                self.thread.set_registers(&Registers { orig_rax: self.instead(), rip: self.restorer, ..r })?;
                self.thread.interrupt()?;
                self.thread.run()?;
                self.until_stopped()?;
            }
            Place::CallEnded => {
                self.thread.interrupt()?;
                self.thread.run()?;
                self.until_stopped()?;
            }
            Place::Ours(_) | Place::Gone => {
                if !self.recall()? {
                    return Ok(());
                }
            }
        }
        self.restore()
    }

    /// Stops a thread that runs in our code. False: the thread is no longer ours.
    pub fn recall(&mut self) -> io::Result<bool> {
        let Place::Ours(region) = self.place else { return Ok(self.place != Place::Gone) };
        let stopped = self.thread.interrupt().and_then(|()| self.until_stopped());
        if stopped.as_ref().is_err_and(|e| matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ECHILD))) {
            self.place = Place::Gone;
            return Ok(false);
        }
        stopped?;
        if !self.is_in(region)? {
            self.let_go()?;
            return Ok(false);
        }
        // Before rt_sigreturn has run, the thread still has its frame, and can restore itself if plimsoll is killed.
        let rip = self.thread.registers()?.rip;
        let restorer = self.restorer..self.restorer + RESTORER_BYTES;
        match (region..region + injected_thread::PAGE).contains(&rip) || restorer.contains(&rip) {
            true => Ok(true),
            // The target has written into the page.
            false => Err(io::Error::other("the target reports that the call returned, but its thread is still in it")),
        }
    }

    /// Waits until a thread that runs has been interrupted. It is then at a point where the kernel makes an interrupted
    /// call again, if the registers say so.
    fn until_stopped(&mut self) -> io::Result<()> {
        let deadline = self.target.deadline().sooner(CALLING);
        loop {
            match self.thread.wait(deadline)? {
                Stop::Exec => return Err(replaced()),
                Stop::Signal(_) if deadline.has_passed() => return Err(io::ErrorKind::TimedOut.into()),
                Stop::Signal(signal) => self.thread.run_with(signal)?,
                Stop::Event | Stop::Call => break,
            }
        }
        self.place = Place::Stopped;
        Ok(())
    }

    fn restore(&mut self) -> io::Result<()> {
        // A call that failed has changed errno. If errno can't be written, its memory is gone.
        let _ = self.errno.map(|errno| self.memory.write_all_at(&errno.value, errno.at));
        self.thread.set_xstate(&self.xstate)?;
        self.thread.set_mask(self.mask)?;
        let is_ours = frame::interrupted(&self.original) == Interrupted::ByUs;
        // If a signal came meanwhile, EINTR is the right answer.
        let has_signal = || {
            let status = self.target.read(&format!("task/{}/status", self.tid));
            status.is_ok_and(|status| threads::has_signal(&status, self.mask))
        };
        let restarted = is_ours && !has_signal();
        self.thread.set_registers(&if restarted { frame::restarted(&self.original) } else { self.original })
    }
}

/// Makes a thread that is not borrowed repeat its wait if the stop would end that wait with EINTR. The kernel continues
/// other waits by itself, with the rest of their timeout.
fn undisturbed(thread: &Thread, original: &Registers) {
    if frame::interrupted(original) == Interrupted::ByUs {
        // A thread for which this fails has ended.
        let _ = frame::without_restart_syscall(original).map(|again| thread.set_registers(&again));
    }
}

/// Makes a seized thread stop.
pub fn stop(thread: &mut Thread, deadline: Deadline) -> Result<(), Unfit> {
    let why = |e: io::Error| match e.kind() {
        io::ErrorKind::TimedOut => Unfit::Stuck,
        // Another thread's exec has ended this one.
        _ if e.raw_os_error() == Some(libc::ECHILD) => Unfit::Replaced,
        _ => Unfit::Now("has ended"),
    };
    thread.interrupt().map_err(why)?;
    loop {
        let stop = thread.wait(deadline).map_err(why)?;
        match stop {
            Stop::Event => return Ok(()),
            // Signals without end.
            _ if deadline.has_passed() => return Err(Unfit::Stuck),
            Stop::Exec => return Err(Unfit::Replaced),
            Stop::Signal(signal) => thread.run_with(signal).map_err(why)?,
            Stop::Call => thread.run_with(0).map_err(why)?,
        }
    }
}

fn replaced() -> io::Error {
    io::Error::other("it has run another program")
}

/// From the stack pointer to the end of the stack that libc or the kernel gave the thread, or why it isn't fit.
///
/// The first thread may wait at the lowest page of its stack. The kernel then grows the stack below that page: when the
/// frame is written through /proc/PID/mem, up to the limit of this process (mm/memory.c, `__access_remote_vm`), and
/// when the thread itself uses it, up to its own. `limit`: the lower of the two. `thread`: the address in fs.
/// `lowest`: where the thread's stack begins by libc's descriptor, in a mapping that ends there.
fn stack(
    vmas: &[Vma],
    pointer: u64,
    thread: u64,
    lowest: impl FnOnce(u64) -> Option<u64>,
    limit: impl FnOnce() -> u64,
) -> Result<std::ops::Range<u64>, &'static str> {
    const OTHER: &str = "runs on a stack that neither libc nor the kernel made";
    let pointer = pointer & !7;
    let index = vmas.iter().position(|vma| (vma.range.start.0..vma.range.end.0).contains(&pointer)).ok_or(OTHER)?;
    let vma = &vmas[index];
    // The kernel reports where the first thread's stack is. At the end of any other stack lies libc's descriptor of
    // the thread (struct pthread), to which fs points. Its mapping may begin with other memory: the kernel joins equal
    // neighbours, and a program may provide many stacks in one mapping.
    let (start, end) = match vma.backing {
        Backing::MainStack => (vma.range.start.0, vma.range.end.0),
        _ if pointer < thread && thread < vma.range.end.0 => {
            let lowest = lowest(vma.range.end.0).filter(|lowest| *lowest <= pointer).ok_or(OTHER)?;
            (lowest.max(vma.range.start.0), thread)
        }
        _ => return Err(OTHER),
    };
    if end - pointer > DEEPEST {
        return Err("is more than 1 MiB deep in its stack");
    }
    let least = || {
        let below = index.checked_sub(1).map_or(0, |below| vmas[below].range.end.0);
        end.saturating_sub(limit()).max(below.saturating_add(GUARD_GAP))
    };
    let is_within = |lowest: u64| lowest.checked_add(ROOM).is_some_and(|least| least <= pointer);
    let may_grow = vma.backing == Backing::MainStack;
    if is_within(start) || (may_grow && is_within(least())) {
        Ok(pointer..end)
    } else {
        Err("has less than 16 KiB of its stack left")
    }
}

/// To how many bytes the target's first stack may grow: the lower RLIMIT_STACK, of the target and of this process.
fn stack_limit(target: &Target) -> u64 {
    let limit = |of: &Target| {
        let limits = of.read("limits").ok().map(|text| parse_limits(&text))?;
        Some(limits.stack.map_or(u64::MAX, |bytes| bytes.0))
    };
    let own = Target::open(std::process::id(), target.deadline()).ok();
    own.and_then(|own| Some(limit(&own)?.min(limit(target)?))).unwrap_or(0)
}

/// Whether the thread is in a critical section of rseq(2), which the kernel would abort.
fn in_restartable_sequence(thread: &Thread, memory: &File, instruction: u64) -> bool {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at).ok().map(|()| u64::from_le_bytes(bytes))
    };
    // struct rseq: rseq_cs at 8. struct rseq_cs: start_ip at 8, post_commit_offset at 16 (linux/rseq.h).
    let section = thread.rseq().and_then(|rseq| word(rseq.checked_add(8)?)).filter(|section| *section != 0);
    section.is_some_and(|section| {
        let part = |at| section.checked_add(at).and_then(word);
        let (Some(start), Some(length)) = (part(8), part(16)) else { return true };
        instruction.wrapping_sub(start) < length
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    const KIB: u64 = 1 << 10;

    /// The first thread, 6 KiB above the start of its stack's mapping, and another one on a stack of a fixed size.
    #[test]
    fn only_the_first_thread_has_a_stack_that_grows() {
        use plimsoll_facts::units::{AddressRange, Avma};
        let (start, end) = (0x7ffe_0000_0000, 0x7ffe_0003_0000);
        let vma = |start, end, backing| {
            let range = AddressRange::new(Avma(start), Avma(end));
            Vma { range, backing, readable: true, writable: true, ..Vma::default() }
        };
        let fit = |below: u64, backing, above: u64, limit: u64| {
            let other = vma(start - below - 0x1000, start - below, Backing::Anonymous);
            let vmas = [other, vma(start, end, backing)];
            stack(&vmas, start + above, end - 0x900, |_| Some(start), || limit).map(|range| range.start)
        };
        let little = Err("has less than 16 KiB of its stack left");
        let (at, far) = (6 * KIB, 64 << 20);
        assert_eq!(fit(far, Backing::MainStack, at, 8 << 20), Ok(start + at));
        assert_eq!(fit(far, Backing::MainStack, at, u64::MAX), Ok(start + at));
        // RLIMIT_STACK, the lowest that suffices, and another mapping too near.
        assert_eq!(fit(far, Backing::MainStack, at, 192 * KIB), little);
        assert_eq!(fit(far, Backing::MainStack, at, 192 * KIB - at + ROOM), Ok(start + at));
        assert_eq!(fit(far, Backing::MainStack, at, 192 * KIB - at + ROOM - 8), little);
        assert_eq!(fit(GUARD_GAP, Backing::MainStack, at, 8 << 20), little);
        assert_eq!(fit(far, Backing::Anonymous, at, 8 << 20), little);
        assert_eq!(fit(far, Backing::Anonymous, ROOM, 8 << 20), Ok(start + ROOM));
        assert_eq!(
            fit(far, Backing::Anonymous, 192 * KIB - 8, 8 << 20),
            Err("runs on a stack that neither libc nor the kernel made")
        );
    }

    /// A stack of 64 KiB in a mapping that begins with other memory, such as another stack.
    #[test]
    fn a_stack_begins_where_libc_says() {
        use plimsoll_facts::units::{AddressRange, Avma};
        let (start, end) = (0x7f00_0000_0000, 0x7f00_0004_0000);
        let range = AddressRange::new(Avma(start), Avma(end));
        let vmas = [Vma { range, backing: Backing::Anonymous, readable: true, writable: true, ..Vma::default() }];
        let lowest = end - 64 * KIB;
        let fit = |pointer, lowest: Option<u64>| {
            stack(&vmas, pointer, end - 0x900, |_| lowest, || 0).map(|range| range.start)
        };
        let other = Err("runs on a stack that neither libc nor the kernel made");
        assert_eq!(fit(lowest + ROOM, Some(lowest)), Ok(lowest + ROOM));
        assert_eq!(fit(lowest + ROOM - 8, Some(lowest)), Err("has less than 16 KiB of its stack left"));
        assert_eq!(fit(lowest - 8, Some(lowest)), other);
        // The first thread's descriptor lies in no stack.
        assert_eq!(fit(lowest + ROOM, None), other);
    }

    struct Spinning(std::process::Child);
    impl Drop for Spinning {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A thread that spins in such a section (fixtures/c/rseq_spins.c), stopped until it was in it twenty times.
    /// Between two sections it has a few instructions outside of any.
    #[test]
    #[expect(clippy::print_stdout, reason = "a skipped test names its reason")]
    fn a_restartable_sequence_is_known_by_its_addresses() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = repository.join("target/tmp/unwound");
        std::fs::create_dir_all(&folder).expect("a folder");
        let program = folder.join(format!("rseq_spins-{}", std::process::id()));
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-w"]).arg(repository.join("fixtures/c/rseq_spins.c")).arg("-o").arg(&program);
        // sys/rseq.h: glibc 2.35 and later. The kernel shows the address from Linux 5.13 on.
        let compiled = gcc.output().expect("gcc");
        let why = String::from_utf8_lossy(&compiled.stderr).into_owned();
        if why.contains("sys/rseq.h: No such file") {
            return println!("restartable sequences: skipped, this glibc has no sys/rseq.h");
        }
        assert!(compiled.status.success(), "{why}");
        let child = Command::new(&program).stdout(Stdio::piped()).spawn().expect("it starts");
        let Spinning(child) = &mut Spinning(child);
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        if line.trim() == "no rseq" {
            return println!("restartable sequences: skipped, this kernel or libc has none");
        }
        let mut numbers = line.split_whitespace().skip(1).map(|hex| u64::from_str_radix(hex, 16).expect("hex"));
        let section = numbers.next().expect("an address")..numbers.next().expect("an address");
        let deadline = Deadline::after(Duration::from_secs(120));
        let memory = Target::open(child.id(), deadline).expect("it lives").memory_for_writing().expect("memory");
        let mut inside = 0;
        while inside < 20 {
            assert!(!deadline.has_passed(), "{inside} stops in the section");
            let mut thread = Thread::seize(child.id(), child.id()).expect("seized");
            assert!(stop(&mut thread, deadline).is_ok(), "it stops");
            if thread.rseq().is_none() {
                return println!("restartable sequences: skipped, this kernel doesn't show where they are");
            }
            let instruction = thread.registers().expect("registers").rip;
            let is_known = in_restartable_sequence(&thread, &memory, instruction);
            // Before it stores the address of the section, and after an abort, it is in none.
            assert!(is_known == section.contains(&instruction), "{instruction:x} {section:x?}");
            inside += usize::from(is_known);
        }
        std::fs::remove_file(program).expect("removed");
    }
}
