//! Categories: names registered once, then a number.
//!
//! Order of decision for a caller: pushed by the program → a rule → the loaded object that calls.

use super::segment::{Segment, set_text};
use core::sync::atomic::{AtomicBool, AtomicU16, Ordering::*};
use plimsoll_segment::rules::{self, ModuleRules, Target};
use plimsoll_segment::{CategoryKind, Counter, FIXED_CATEGORIES, Section};

/// Rule category → category + 1.
static BY_RULE: [AtomicU16; rules::CATEGORIES] = [const { AtomicU16::new(0) }; rules::CATEGORIES];
static BUSY: AtomicBool = AtomicBool::new(false);

/// Category 'other'.
pub const OTHER: u16 = 0;
/// Category 'before start'.
pub const EARLY: u16 = 1;
/// Category of code that lies in no file.
pub const NO_FILE: u16 = 6;

/// Registers the fixed ones in a fresh segment.
pub fn init(segment: Segment) -> bool {
    FIXED_CATEGORIES.iter().enumerate().all(|(i, name)| {
        let made = segment.append(Section::Categories) == Some(i as u32);
        if made {
            let c = segment.category(i as u16);
            set_text(&c.name, name.as_bytes());
            c.kind.store(CategoryKind::Own as u32, Relaxed);
        }
        made
    })
}

/// The category with this name, registered if it is new. 'other' when there is no room.
pub fn register(segment: Segment, name: &[u8], kind: CategoryKind) -> u16 {
    let known = |from: usize| {
        let n = segment.used(Section::Categories);
        (from..n).find(|&i| {
            let c = segment.category(i as u16);
            let cut = name.len().min(c.name.len() - 1);
            (0..cut).all(|j| c.name[j].load(Relaxed) == name[j]) && c.name[cut].load(Relaxed) == 0
        })
    };
    if let Some(i) = known(0) {
        return i as u16;
    }
    // Two threads with the same new name must not make two of it. A signal handler on top of the holder, or a holder
    // that isn't scheduled, costs a duplicate, which a reader merges by name.
    let mut mine = false;
    for _ in 0..1000 {
        mine = !BUSY.swap(true, Acquire);
        if mine {
            break;
        }
        core::hint::spin_loop();
    }
    let i = known(0).map(|i| i as u32).or_else(|| {
        let i = segment.append(Section::Categories)?;
        let c = segment.category(i as u16);
        c.kind.store(kind as u32, Relaxed);
        set_text(&c.name, name);
        Some(i)
    });
    if mine {
        BUSY.store(false, Release);
    }
    i.map_or_else(
        || {
            segment.count(Counter::categories_lost, 1);
            OTHER
        },
        |i| i as u16,
    )
}

/// The category of a rule.
pub fn of_rule(segment: Segment, i: u16) -> u16 {
    let Some(cell) = BY_RULE.get(i as usize) else { return OTHER };
    let known = cell.load(Relaxed);
    if known != 0 {
        return known - 1;
    }
    let Some(rules) = crate::stack::module::rules() else { return OTHER };
    let c = register(segment, rules.category_name(i), CategoryKind::Rule);
    cell.store(c + 1, Relaxed);
    c
}

/// The category of callers in an object that no symbol rule names.
pub fn of_module(segment: Segment, path: &[u8], rules: &ModuleRules) -> u16 {
    match rules.whole() {
        Target::Category(i) => of_rule(segment, i),
        _ => register(segment, rules::file_name(path), CategoryKind::Module),
    }
}

/// In a fork child: the lock's holder isn't here. Numbers stay: the section was copied.
pub fn reset_after_fork() {
    BUSY.store(false, Relaxed);
}
