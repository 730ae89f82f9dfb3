//! The program's filters of system calls (seccomp). The tracker evaluates them before each system call of its own, and
//! doesn't make a call that a filter wouldn't allow: most filters would kill the process. A filter is a program of
//! classic BPF over a call's number, arguments and architecture (seccomp(2), bpf(4) of the BSDs). Its jumps go forward
//! only, so it ends.
//!
//! The list is the process's: if one thread has a filter, it is applied to the tracker's calls in all threads. Filters
//! that the process was started with are unknown; they allow the calls that the tracker made at the start.
//!
//! This file makes no call itself: [`super::filter_copy`] copies a filter out of the program's memory.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// The architecture of a call, as a filter sees it (linux/audit.h).
#[cfg(target_arch = "x86_64")]
pub const AUDIT_ARCH: u32 = 0xc000_003e;
/// The architecture of a call, as a filter sees it (linux/audit.h).
#[cfg(target_arch = "aarch64")]
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub yes: u8,
    /// Instructions to skip if it doesn't.
    pub no: u8,
    /// Operand.
    pub k: u32,
}

/// Maximum number of filters in the list. With one more, no call is permitted.
pub(super) const KNOWN: usize = 16;
/// Address and length of each copy ([`Filter`]); address 0: none yet, or being added.
static FILTERS: [[AtomicUsize; 2]; KNOWN] = [const { [const { AtomicUsize::new(0) }; 2] }; KNOWN];
static ADDED: AtomicUsize = AtomicUsize::new(0);
/// The program has a filter that could not be copied: no call is permitted.
static CLOSED: AtomicBool = AtomicBool::new(false);
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether all filters allow a call.
#[inline(always)]
pub fn permit(number: usize, arguments: &[usize; 6]) -> bool {
    !ANY.load(Relaxed) || all_permit(number, arguments)
}

#[cold]
#[inline(never)]
fn all_permit(number: usize, arguments: &[usize; 6]) -> bool {
    let added = ADDED.load(Acquire);
    !CLOSED.load(Relaxed)
        && added <= KNOWN
        && (0..added).all(|i| known(i).is_some_and(|f| f.permits(number, arguments)))
}

/// `None`: there is no such filter, or it is being added.
pub(super) fn known(i: usize) -> Option<Filter> {
    let [first, n] = FILTERS.get(i)?;
    let (first, n) = (first.load(Acquire) as *const Instruction, n.load(Relaxed));
    // SAFETY: a copy is never freed, and its length was stored before its address.
    (!first.is_null()).then(|| Filter(unsafe { core::slice::from_raw_parts(first, n) }))
}

/// A copy of a filter, in memory that is never freed.
#[derive(Clone, Copy)]
pub struct Filter(pub(super) &'static [Instruction]);

impl Filter {
    /// Adds the filter to the list.
    pub fn add(self) {
        let i = ADDED.fetch_add(1, AcqRel);
        if let Some([first, n]) = FILTERS.get(i) {
            n.store(self.0.len(), Relaxed);
            first.store(self.0.as_ptr() as usize, Release);
        }
        ANY.store(true, Release);
    }

    /// Whether the filter allows this call.
    pub fn permits(self, number: usize, arguments: &[usize; 6]) -> bool {
        const LOG: u32 = 0x7ffc_0000;
        const ALLOW: u32 = 0x7fff_0000;
        let mut data = [0u32; 16];
        (data[0], data[1]) = (number as u32, AUDIT_ARCH);
        for (i, a) in arguments.iter().enumerate() {
            (data[4 + 2 * i], data[5 + 2 * i]) = (*a as u32, (*a as u64 >> 32) as u32);
        }
        matches!(run(self.0, &data).map(|answer| answer & 0xffff_0000), Some(LOG | ALLOW))
    }
}

/// From now on no call is permitted.
pub(super) fn close() {
    CLOSED.store(true, Relaxed);
    ANY.store(true, Release);
}

/// The filter's result for a `struct seccomp_data`. `None`: the kernel would refuse to install this filter.
pub fn run(filter: &[Instruction], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    loop {
        let Instruction { code, yes, no, k } = *filter.get(at)?;
        at += 1;
        let operand = if code & 8 != 0 { x } else { k };
        match code {
            0x00 => a = k,
            0x01 => x = k,
            0x20 if k % 4 == 0 => a = *data.get(k as usize / 4)?,
            0x60 => a = *memory.get(k as usize)?,
            0x61 => x = *memory.get(k as usize)?,
            0x80 => a = size_of_val(data) as u32,
            0x81 => x = size_of_val(data) as u32,
            0x02 => *memory.get_mut(k as usize)? = a,
            0x03 => *memory.get_mut(k as usize)? = x,
            0x07 => x = a,
            0x87 => a = x,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            // Division by a register that is 0: the kernel then returns 0 for the whole filter, which kills.
            0x34 | 0x3c => a = a.checked_div(operand)?,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.wrapping_shl(operand),
            0x74 | 0x7c => a = a.wrapping_shr(operand),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            0x05 => at = at.checked_add(k as usize)?,
            0x15 | 0x1d => at += if a == operand { yes } else { no } as usize,
            0x25 | 0x2d => at += if a > operand { yes } else { no } as usize,
            0x35 | 0x3d => at += if a >= operand { yes } else { no } as usize,
            0x45 | 0x4d => at += if a & operand != 0 { yes } else { no } as usize,
            0x06 => return Some(k),
            0x16 => return Some(a),
            _ => return None,
        }
    }
}
