//! The program's filters of system calls, asked before each call of the tracker's own: what one of them answers with
//! anything but leave (most kill) isn't made. A filter is a program of classic BPF over number, arguments and architecture
//! of a call (seccomp(2), bpf(4) of the BSDs); it can't go back, so it ends.
//!
//! Kept for the process: where one thread has a filter, calls of all threads go by it. Filters that the process began with
//! are not known; what the start did under them, they allow.
//!
//! This file makes no call itself: [`super::filter_copy`] copies a filter out of the program's memory.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// What a filter finds as the calls' architecture (linux/audit.h).
#[cfg(target_arch = "x86_64")]
pub const AUDIT_ARCH: u32 = 0xc000_003e;
/// What a filter finds as the calls' architecture (linux/audit.h).
#[cfg(target_arch = "aarch64")]
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// Instructions to skip where a condition holds,
    pub yes: u8,
    /// and where not.
    pub no: u8,
    /// Operand.
    pub k: u32,
}

/// Filters that are kept.
pub(super) const KNOWN: usize = 16;
/// Copies, as [`Filter`] has them; 0: being added.
static FILTERS: [[AtomicUsize; 2]; KNOWN] = [const { [const { AtomicUsize::new(0) }; 2] }; KNOWN];
static ADDED: AtomicUsize = AtomicUsize::new(0);
/// There is a filter that can't be asked.
static CLOSED: AtomicBool = AtomicBool::new(false);
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether no filter has anything against a call.
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

/// `None`: there is none, or it is being added.
pub(super) fn known(i: usize) -> Option<Filter> {
    let [first, n] = FILTERS.get(i)?;
    let (first, n) = (first.load(Acquire) as *const Instruction, n.load(Relaxed));
    // SAFETY: a copy that is never given back, whose length was stored before its address.
    (!first.is_null()).then(|| Filter(unsafe { core::slice::from_raw_parts(first, n) }))
}

/// A filter, in memory that is never given back.
#[derive(Clone, Copy)]
pub struct Filter(pub(super) &'static [Instruction]);

impl Filter {
    /// From now on it is asked too.
    pub fn add(self) {
        let i = ADDED.fetch_add(1, AcqRel);
        if let Some([first, n]) = FILTERS.get(i) {
            n.store(self.0.len(), Relaxed);
            first.store(self.0.as_ptr() as usize, Release);
        }
        ANY.store(true, Release);
    }

    /// Whether it lets this call be made.
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

/// What a filter answers to `struct seccomp_data`; `None`: it is none that the kernel takes.
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
            // By a register that is 0: the kernel answers 0 for the whole filter, which kills.
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
