//! One thread of the target under ptrace(2): the only file here that makes these system calls.
//!
//! PTRACE_SEIZE sends no signal, and no option kills the thread. If plimsoll ends at any moment, the kernel detaches
//! the thread and the thread runs on from the registers that it has.

use std::io;
use std::time::{Duration, Instant};

use plimsoll_process::foreign::Deadline;

pub type Registers = libc::user_regs_struct;

/// PTRACE_EVENT_STOP (linux/ptrace.h).
const EVENT_STOP: i32 = 128;
/// PTRACE_SECCOMP_GET_FILTER (linux/ptrace.h).
const SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
/// The longest filter: BPF_MAXINSNS instructions (`struct sock_filter`) of eight bytes.
const FILTER_BYTES: usize = 4096 * 8;
/// The kernel limits the instructions of all filters together to 2^15.
const MOST_FILTERS: usize = 1 << 15;
/// ELF note type of the extended processor state (linux/elf.h).
const NT_X86_XSTATE: usize = 0x202;
/// Larger than the state of any processor: AMX has 11 KiB.
const XSTATE_BYTES: usize = 64 << 10;
/// How long a wait spins before it sleeps: most stops come within microseconds, and the thread stands still meanwhile.
/// A longer spin would take the processor from the thread that must stop; sched_yield(2) could give it away for long.
const SPIN: Duration = Duration::from_micros(30);
/// The longest sleep before another look. The kernel ends it with SIGCHLD when the thread stops.
const SLEEP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };

/// Why the thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// PTRACE_INTERRUPT, or the whole process is stopped.
    Event,
    /// The start or the end of a system call.
    Call,
    /// The thread has run execve: its memory is another program's.
    Exec,
    /// A signal is about to be delivered.
    Signal(i32),
}

/// A seized thread. The kernel detaches it when this process ends.
pub struct Thread {
    tid: libc::pid_t,
    /// The number of its process, which a thread takes over when it runs execve.
    process: libc::pid_t,
    is_stopped: bool,
    /// The signal that stopped it; 0: none. It is delivered when the thread goes on, also where we give up.
    signal: i32,
}

impl Thread {
    /// Attaches without stopping the thread.
    pub fn seize(process: u32, tid: u32) -> io::Result<Thread> {
        let number = |id: u32| libc::pid_t::try_from(id).map_err(io::Error::other);
        let (process, tid) = (number(process)?, number(tid)?);
        hold_back_child_signals();
        request(libc::PTRACE_SEIZE, tid, 0, (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC) as usize)?;
        Ok(Thread { tid, process, is_stopped: false, signal: 0 })
    }

    /// Makes the thread stop with `Stop::Event`.
    pub fn interrupt(&self) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)
    }

    /// Waits for the next stop. An error of kind `TimedOut`: the thread did not stop in time. Any other: it has ended.
    pub fn wait(&mut self, deadline: Deadline) -> io::Result<Stop> {
        let began = Instant::now();
        loop {
            match self.stopped()? {
                Some(stop) => return Ok(stop),
                None if deadline.has_passed() => return Err(io::ErrorKind::TimedOut.into()),
                None if began.elapsed() < SPIN => std::hint::spin_loop(),
                None => sleep(),
            }
        }
    }

    /// Whether the thread has stopped since it last ran. An error: it has ended.
    pub fn stopped(&mut self) -> io::Result<Option<Stop>> {
        loop {
            let mut status = 0;
            // SAFETY: `status` is ours; the call returns at once.
            match unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) } {
                0 => return Ok(None),
                -1 if self.tid != self.process && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) => {
                    // After its execve, the thread has the number of the process, and stops under it. If another thread
                    // has run execve, this thread is gone, and nothing stops.
                    self.tid = self.process;
                }
                -1 => return Err(io::Error::last_os_error()),
                _ if libc::WIFSTOPPED(status) => {
                    self.is_stopped = true;
                    let signal = libc::WSTOPSIG(status);
                    let stop = match status >> 16 {
                        EVENT_STOP => Stop::Event,
                        libc::PTRACE_EVENT_EXEC => Stop::Exec,
                        _ if signal == libc::SIGTRAP | 0x80 => Stop::Call,
                        _ => Stop::Signal(signal),
                    };
                    self.signal = if let Stop::Signal(signal) = stop { signal } else { 0 };
                    return Ok(Some(stop));
                }
                _ => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        }
    }

    /// Lets the thread run until its next system call begins or ends.
    pub fn run_to_call(&mut self, signal: i32) -> io::Result<()> {
        (self.is_stopped, self.signal) = (false, 0);
        request(libc::PTRACE_SYSCALL, self.tid, 0, signal as usize)
    }

    /// Lets the thread run.
    pub fn run(&mut self) -> io::Result<()> {
        self.run_with(0)
    }

    /// Lets the thread run and delivers the signal.
    pub fn run_with(&mut self, signal: i32) -> io::Result<()> {
        (self.is_stopped, self.signal) = (false, 0);
        request(libc::PTRACE_CONT, self.tid, 0, signal as usize)
    }

    /// The signal that stopped the thread is ours: nobody gets it.
    pub fn drop_signal(&mut self) {
        self.signal = 0;
    }

    pub fn registers(&self) -> io::Result<Registers> {
        // SAFETY: the struct is plain numbers.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        request(libc::PTRACE_GETREGS, self.tid, 0, &raw mut registers as usize)?;
        Ok(registers)
    }

    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        request(libc::PTRACE_SETREGS, self.tid, 0, &raw const *registers as usize)
    }

    /// The floating-point and vector registers, in the layout of XSAVE.
    pub fn xstate(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0u8; XSTATE_BYTES];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        request(libc::PTRACE_GETREGSET, self.tid, NT_X86_XSTATE, &raw mut part as usize)?;
        bytes.truncate(part.iov_len);
        Ok(bytes)
    }

    pub fn set_xstate(&self, xstate: &[u8]) -> io::Result<()> {
        // The kernel only reads through this vector (ptrace(2), PTRACE_SETREGSET).
        let mut part = libc::iovec { iov_base: xstate.as_ptr().cast_mut().cast(), iov_len: xstate.len() };
        request(libc::PTRACE_SETREGSET, self.tid, NT_X86_XSTATE, &raw mut part as usize)
    }

    /// The thread's seccomp filters, the newest first, as the kernel has them.
    pub fn filters(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut filters = Vec::new();
        // The kernel takes no length: it writes a whole filter, and returns the number of its instructions.
        let mut bytes = vec![0u8; FILTER_BYTES];
        while filters.len() < MOST_FILTERS {
            match answer(SECCOMP_GET_FILTER, self.tid, filters.len(), bytes.as_mut_ptr() as usize) {
                Ok(instructions) => {
                    let filter = bytes.get(..8 * instructions as usize).ok_or(io::ErrorKind::InvalidData)?;
                    filters.push(filter.to_vec());
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(filters)
    }

    /// The blocked signals; bit 0 is signal 1.
    pub fn mask(&self) -> io::Result<u64> {
        let mut mask = 0u64;
        request(libc::PTRACE_GETSIGMASK, self.tid, 8, &raw mut mask as usize)?;
        Ok(mask)
    }

    pub fn set_mask(&self, mask: u64) -> io::Result<()> {
        request(libc::PTRACE_SETSIGMASK, self.tid, 8, &raw const mask as usize)
    }

    /// The address of the thread's `struct rseq`; `None` if it has none, or if the kernel is older than 5.13.
    pub fn rseq(&self) -> Option<u64> {
        // struct ptrace_rseq_configuration (linux/ptrace.h): pointer, size, signature, flags, padding.
        let mut words = [0u64; 3];
        request(libc::PTRACE_GET_RSEQ_CONFIGURATION, self.tid, size_of_val(&words), words.as_mut_ptr() as usize)
            .ok()?;
        Some(words[0]).filter(|pointer| *pointer != 0)
    }
}

impl Drop for Thread {
    /// A thread that runs cannot be detached; the end of this process detaches it.
    fn drop(&mut self) {
        if self.is_stopped {
            let _ = request(libc::PTRACE_DETACH, self.tid, 0, self.signal as usize);
        }
    }
}

/// Keeps SIGCHLD for [`sleep`]. By default it is thrown away.
fn hold_back_child_signals() {
    let set = child_signal();
    // SAFETY: the set is ours; the call changes this thread's mask only.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

fn sleep() {
    let set = child_signal();
    // SAFETY: the set is ours, the time is constant, and no information is requested.
    unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &SLEEP) };
}

fn child_signal() -> libc::sigset_t {
    // SAFETY: the set is plain numbers, and both calls only write it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}

fn request(what: libc::c_uint, tid: libc::pid_t, address: usize, data: usize) -> io::Result<()> {
    answer(what, tid, address, data).map(drop)
}

fn answer(what: libc::c_uint, tid: libc::pid_t, address: usize, data: usize) -> io::Result<libc::c_long> {
    // SAFETY: if the request reads or writes memory of ours, each caller in this file passes a pointer to a live object
    // of the size that the request needs (ptrace(2)). Everything else happens in the target.
    match unsafe { libc::ptrace(what, tid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// The program is let go while we live, and is not left stopped.
    #[test]
    fn an_exec_of_another_thread_than_the_first_is_seen_and_let_go() {
        let script = "import ctypes, os, sys, threading\n\
                      def run():\n print(threading.get_native_id(), flush=True); sys.stdin.readline(); os.execv('/bin/sleep', ['sleep', '1000'])\n\
                      threading.Thread(target=run).start()\n";
        let mut command = Command::new("/usr/bin/python3");
        let mut child =
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python");
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().expect("piped")), &mut line)
            .expect("a line");
        let tid: u32 = line.trim().parse().expect("a number");
        assert_ne!(tid, child.id());
        let deadline = Deadline::after(Duration::from_secs(60));
        let mut thread = Thread::seize(child.id(), tid).expect("seized");
        child.stdin.take().expect("piped").write_all(b"\n").expect("it reads");
        assert_eq!(thread.wait(deadline).expect("a stop"), Stop::Exec);
        drop(thread);
        let status = || std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it lives");
        while !status().contains("Name:\tsleep") || !status().contains("State:\tS") {
            assert!(!deadline.has_passed(), "{}", status());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(status().contains("TracerPid:\t0"));
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
