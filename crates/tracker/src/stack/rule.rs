//! A rule: how to step from one frame to its caller, for one pc, in 8 bytes.
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

/// One step of a walk. Kinds other than `FRAME` have no operands, or the operands of their constructor.
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
const INTERPRETED: u8 = 4;
const DEOPTIMISED: u8 = 5;
const CONTINUATION: u8 = 6;
const FRAME: u8 = 0x10;
const FROM_FP: u8 = 1;
const DEREF: u8 = 2;
const FP_FROM_FP: u8 = 4;
const CONVENTION: u8 = 8;

/// Set in a pc to request the rule from the object's tables; no address has this bit.
pub const BY_TABLE: u64 = 1 << 63;

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

/// A decoded rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The tables are damaged, or a rule cannot express them.
    Unknown,
    /// The outermost frame: its return address is undefined (`_start`, a thread's first function).
    WalkEnd,
    /// The trampoline that a signal handler returns to: the registers lie in the `ucontext` at the stack pointer.
    Signal,
    /// No table covers this code: try the chain of frame pointers.
    FramePointer,
    Frame {
        cfa: Cfa,
        fp: SavedFp,
    },
    /// HotSpot's interpreter: fixed slots around the frame pointer, one of which holds the caller's stack pointer. The
    /// offset of the bytecode pointer's slot depends on the version.
    Interpreted {
        bytecode_slot: i32,
    },
    /// HotSpot: a frame of this many bytes, whose return address was replaced; its own is kept at this offset from its
    /// stack pointer.
    Deoptimised {
        bytes: i32,
        original_pc: i32,
    },
    /// HotSpot: the callers lie in the Java heap. On the stack, behind a few words of arguments, follows the frame
    /// through which the virtual thread was entered, of this many bytes.
    Continuation {
        entry_bytes: i32,
    },
}

impl Rule {
    pub const UNKNOWN: Self = Self::plain(UNKNOWN);
    pub const END: Self = Self::plain(END);
    pub const SIGNAL: Self = Self::plain(SIGNAL);
    pub const FRAME_POINTER: Self = Self::plain(FRAME_POINTER);

    /// See [`Step::Interpreted`].
    pub const fn interpreted(bytecode_slot: i32) -> Self {
        Self { cfa: bytecode_slot, fp: 0, add: 0, kind: INTERPRETED }
    }

    /// See [`Step::Deoptimised`]; both are multiples of 8.
    pub const fn deoptimised(bytes: i32, original_pc: i32) -> Self {
        Self { cfa: bytes, fp: (original_pc / 8) as i16, add: 0, kind: DEOPTIMISED }
    }

    /// See [`Step::Continuation`].
    pub const fn continuation(entry_bytes: i32) -> Self {
        Self { cfa: entry_bytes, fp: 0, add: 0, kind: CONTINUATION }
    }

    /// A frame of fixed size that keeps the caller's frame pointer below the return address: HotSpot's compilers' form.
    pub const fn compiled(bytes: i32) -> Self {
        Self::frame(Cfa { base: Base::Sp, offset: bytes, deref: None }, SavedFp::Cfa(-16))
    }

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
            // The caller's frame begins at the CFA, and no register is saved at the lowest offset.
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
            END => Step::WalkEnd,
            SIGNAL => Step::Signal,
            FRAME_POINTER => Step::FramePointer,
            INTERPRETED => Step::Interpreted { bytecode_slot: self.cfa },
            DEOPTIMISED => Step::Deoptimised { bytes: self.cfa, original_pc: self.fp as i32 * 8 },
            CONTINUATION => Step::Continuation { entry_bytes: self.cfa },
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

    /// A frame of Java code, or a stub of its compilers.
    pub const fn is_java(self) -> bool {
        match self.step() {
            Step::Interpreted { .. } | Step::Deoptimised { .. } => true,
            Step::Frame { cfa, fp } => {
                matches!(cfa.base, Base::Sp) && cfa.deref.is_none() && matches!(fp, SavedFp::Cfa(-16))
            }
            _ => false,
        }
    }

    /// The step of an object whose build flags keep frame pointers, taken without reading its tables. Code that was
    /// linked into the object from elsewhere may not keep them: if the step leads nowhere, the rule for `pc | BY_TABLE`
    /// is used.
    pub const fn convention() -> Self {
        // Behind a call the frame is complete: the saved pointer below the return address.
        let mut rule = Self::frame(Cfa { base: Base::Fp, offset: 16, deref: None }, SavedFp::Cfa(-16));
        rule.kind |= CONVENTION;
        rule
    }

    /// See [`Rule::convention`].
    pub const fn is_convention(self) -> bool {
        self.kind & (FRAME | CONVENTION) == FRAME | CONVENTION
    }

    /// For a cache whose entries are one atomic word each.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.cfa as u32 as u64
            | (self.fp as u16 as u64) << 32
            | (self.add as u8 as u64) << 48
            | (self.kind as u64) << 56
    }

    /// Every bit pattern decodes: a torn or foreign word can mislead a walk, but stays memory-safe.
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
