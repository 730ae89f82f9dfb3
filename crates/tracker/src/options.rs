//! The options: one table of environment variables. `plimsoll run` sets them; containers without it set them by hand.

use core::ffi::{CStr, c_char};

macro_rules! options {
    ($($(#[doc = $doc:literal])* $name:ident $variable:literal;)*) => {
        /// Values as found in the environment; `None` = not set, or empty.
        #[derive(Clone, Copy, Default)]
        pub struct Options { $($(#[doc = $doc])* pub $name: Option<&'static CStr>,)* }

        /// The table: variable, meaning.
        pub const TABLE: &[(&str, &str)] = &[$(($variable, concat!($($doc,)*)),)*];

        impl Options {
            /// Reads them from an environment block.
            ///
            /// # Safety
            /// `environment` is a NULL-terminated array of C strings that lives as long as the process.
            pub unsafe fn parse(environment: *const *const c_char) -> Options {
                let mut o = Options::default();
                let mut at = environment;
                // SAFETY: the caller's contract.
                unsafe {
                    while !at.is_null() && !(*at).is_null() {
                        let e = CStr::from_ptr(*at);
                        $(
                            let name = concat!($variable, "=").as_bytes();
                            if e.to_bytes().starts_with(name) {
                                o.$name = Some(CStr::from_ptr((*at).add(name.len()))).filter(|v| !v.is_empty());
                            }
                        )*
                        at = at.add(1);
                    }
                }
                o
            }
        }
    };
}

options! {
    /// Directory of the segments. Default: the first usable one of plimsoll-UID in /dev/shm, /tmp and /run.
    directory "PLIMSOLL_DIR";
    /// Blocks whose deep stack is recorded: off (none), sampled or exact (all). Default: sampled.
    sites "PLIMSOLL_SITES";
    /// Mean number of bytes between two samples, 256 to 2^40. Default: 524288, and up to 4194304 at high rates.
    sample "PLIMSOLL_SAMPLE";
    /// Maximum number of frames of a deep stack, 16 to 1024; the innermost are kept, and a mark shows the cut. Default:
    /// 256.
    depth "PLIMSOLL_DEPTH";
    /// 1: also track processes that this program starts. Default: the tracker removes itself from LD_PRELOAD and tracks
    /// only what takes the place of this program by exec.
    follow "PLIMSOLL_FOLLOW";
    /// File with compiled category rules, made by `plimsoll run`. Default: built-in rules for whole objects.
    rules "PLIMSOLL_RULES";
    /// Signal (name or number) that makes the tracker write a summary. Default: none.
    signal "PLIMSOLL_SIGNAL";
    /// File for that summary; %p is the process id. Default: plimsoll-PID.txt in the directory.
    summary "PLIMSOLL_SUMMARY";
    /// Number of segments of dead processes that are kept in the directory; up to half as many more until the next
    /// deletion. Default: 16.
    retain "PLIMSOLL_RETAIN";
    /// 1: walk each remembered stack again, compare, and count disagreements. Slow; for debugging.
    check "PLIMSOLL_CHECK";
}

/// Beyond the range of every option; one and a half times it fits in an i64.
const MOST: usize = 999_999_999_999_999;

/// A decimal number; a larger one counts as `MOST`.
pub fn number(text: Option<&CStr>) -> Option<usize> {
    let b = text?.to_bytes();
    if b.is_empty() || !b.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(b.iter().fold(0, |n: usize, d| n.saturating_mul(10).saturating_add((d - b'0') as usize)).min(MOST))
}
