//! The compiled rules of this run: which category each caller's code has. Set once, at boot.

use core::sync::atomic::{AtomicUsize, Ordering::*};
use plimsoll_segment::rules::{self, Rules};

static RULES: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets the rules: `compiled`, or the default rules if it is missing or damaged.
pub fn init(compiled: Option<&'static [u8]>) {
    let bytes = compiled.filter(|b| Rules::parse(b).is_some()).unwrap_or(rules::DEFAULT);
    BYTES.store(bytes.len(), Relaxed);
    RULES.store(bytes.as_ptr() as usize, Release);
}

/// The rules in force.
pub fn rules() -> Option<Rules<'static>> {
    let p = RULES.load(Acquire);
    if p == 0 {
        return None;
    }
    // SAFETY: set by `init`, its length first, from a slice that lives as long as the process.
    Rules::parse(unsafe { core::slice::from_raw_parts(p as *const u8, BYTES.load(Relaxed)) })
}
