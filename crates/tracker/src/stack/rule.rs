//! How to step from one frame to its caller, for one pc, in 8 bytes:
//!
//! ```text
//!   0        4        6      7      8
//!   ├─ cfa ──┼── fp ──┼ add ─┼ kind ┤
//!   i32      i16      i8     u8
//!
//!   CFA         = base + cfa                    base: sp, or fp with FROM_FP
//!               = *(base + cfa) + add           with DEREF (frames realigned by gcc; hand-written cryptography)
//!   caller's fp = fp                            fp == SAME
//!               = unknown                       fp == LOST
//!               = *(CFA + fp)                   else; *(fp + .fp) with FP_FROM_FP
//!   return addr = *(CFA - 8)
//!   caller's sp = CFA
//! ```
//! The CFA (canonical frame address, DWARF 5, 6.4) is the stack pointer before the call.

/// One step of a walk. All kinds but `FRAME` have no operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Rule {
    cfa: i32,
    fp: i16,
    add: i8,
    kind: u8,
}

const _: () = assert!(size_of::<Rule>() == 8);

const UNKNOWN: u8 = 0;
const END: u8 = 1;
const SIGNAL: u8 = 2;
const FRAME_POINTER: u8 = 3;
const FRAME: u8 = 0x10;
const FROM_FP: u8 = 1;
const DEREF: u8 = 2;
const FP_FROM_FP: u8 = 4;

const SAME: i16 = 0;
const LOST: i16 = i16::MIN;

/// The register that an offset counts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    Sp,
    Fp,
}

/// Where the canonical frame address comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cfa {
    pub base: Base,
    pub offset: i32,
    /// `Some(add)`: the word at `base + offset`, plus `add`.
    pub deref: Option<i8>,
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SavedFp {
    /// Still in the register.
    Same,
    /// In a register that the walk doesn't follow, or nowhere.
    Lost,
    /// At this offset from the CFA.
    Cfa(i16),
    /// At this offset from the frame pointer.
    Fp(i16),
}

/// A rule taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The tables say something that a rule can't, or are damaged.
    Unknown,
    /// The outermost frame: its return address is undefined (`_start`, a thread's first function).
    End,
    /// The trampoline that a signal handler returns to: the registers lie in the `ucontext` at the stack pointer.
    Signal,
    /// No table covers this code: try the chain of frame pointers.
    FramePointer,
    Frame {
        cfa: Cfa,
        fp: SavedFp,
    },
}

impl Rule {
    pub const UNKNOWN: Self = Self::plain(UNKNOWN);
    pub const END: Self = Self::plain(END);
    pub const SIGNAL: Self = Self::plain(SIGNAL);
    pub const FRAME_POINTER: Self = Self::plain(FRAME_POINTER);

    const fn plain(kind: u8) -> Self {
        Self { cfa: 0, fp: 0, add: 0, kind }
    }

    #[inline]
    pub const fn frame(cfa: Cfa, fp: SavedFp) -> Self {
        let mut kind = FRAME;
        if matches!(cfa.base, Base::Fp) {
            kind |= FROM_FP;
        }
        let add = match cfa.deref {
            Some(add) => {
                kind |= DEREF;
                add
            }
            None => 0,
        };
        let fp = match fp {
            SavedFp::Same => SAME,
            // At the CFA itself lies the caller's frame, and at its lowest offset nothing real.
            SavedFp::Lost | SavedFp::Cfa(SAME | LOST) => LOST,
            SavedFp::Cfa(offset) => offset,
            SavedFp::Fp(offset) => {
                kind |= FP_FROM_FP;
                offset
            }
        };
        Self { cfa: cfa.offset, fp, add, kind }
    }

    #[inline]
    pub const fn step(self) -> Step {
        match self.kind {
            END => Step::End,
            SIGNAL => Step::Signal,
            FRAME_POINTER => Step::FramePointer,
            kind if kind & FRAME != 0 => {
                let base = if kind & FROM_FP != 0 { Base::Fp } else { Base::Sp };
                let deref = if kind & DEREF != 0 { Some(self.add) } else { None };
                let fp = match self.fp {
                    offset if kind & FP_FROM_FP != 0 => SavedFp::Fp(offset),
                    SAME => SavedFp::Same,
                    LOST => SavedFp::Lost,
                    offset => SavedFp::Cfa(offset),
                };
                Step::Frame { cfa: Cfa { base, offset: self.cfa, deref }, fp }
            }
            _ => Step::Unknown,
        }
    }

    /// For a cache whose entries are one atomic word each.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.cfa as u32 as u64
            | (self.fp as u16 as u64) << 32
            | (self.add as u8 as u64) << 48
            | (self.kind as u64) << 56
    }

    /// Any word is some rule: a torn or foreign one can mislead a walk, and not break it.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self { cfa: bits as i32, fp: (bits >> 32) as i16, add: (bits >> 48) as i8, kind: (bits >> 56) as u8 }
    }
}

impl core::fmt::Debug for Rule {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.step().fmt(f)
    }
}
