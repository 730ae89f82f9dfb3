//! Finds the context in the data of musl's libc, or of a static program (src/malloc/mallocng/meta.h, glue.h). Its first
//! word is `secret`. At a fixed distance it has the address of the first area of records, which begins with the same
//! word.

use crate::source::heap_data::{Anonymous, Data, words};
use plimsoll_facts::units::Avma;
use plimsoll_process::proc::memory::{Memory, PAGE, Untouched};

/// Why the heap can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    NoContext,
    Broken,
    Unreadable,
}

impl WalkError {
    pub const fn reason(self) -> &'static str {
        match self {
            WalkError::NoContext => "no records with its secret were found (musl before 1.2.1 has another malloc)",
            WalkError::Broken => "the list of its records is broken",
            WalkError::Unreadable => "its records can't be read",
        }
    }
}

/// Words from `secret` to `meta_area_head`: with a fixed page size (x86-64), and with the page size as a member
/// (aarch64).
const TO_FIRST_AREA: [usize; 2] = [7, 8];
/// Addresses tried. In libc's data the context is among the first.
const MOST: usize = 4096;

pub(super) struct Context {
    pub(super) secret: u64,
    pub(super) first_area: u64,
}

pub(super) fn find<M: Memory>(memory: &M, data: &[Data], anonymous: &Anonymous) -> Option<Context> {
    let memory = Untouched::new(memory);
    let mut tried = 0;
    for data in data {
        let all: Vec<u64> = words(&data.bytes).collect();
        for (at, secret) in all.iter().enumerate().filter(|(_, word)| **word != 0) {
            for distance in TO_FIRST_AREA {
                let Some(first_area) = all.get(at + distance).copied() else { continue };
                if !first_area.is_multiple_of(PAGE) || !anonymous.holds(first_area, PAGE) {
                    continue;
                }
                tried += 1;
                let mut word = [0; 8];
                if memory.read(Avma(first_area), &mut word) && u64::from_le_bytes(word) == *secret {
                    return Some(Context { secret: *secret, first_area });
                }
                if tried == MOST {
                    return None;
                }
            }
        }
    }
    None
}
