//! Categories: names registered once, then a number.
//!
//! Order of decision for a caller: pushed by the program → a rule → the loaded object that calls.

use super::{Segment, set_text};
use core::sync::atomic::{AtomicU16, Ordering::*};
use plimsoll_segment::rules::{self, ModuleRules, RuleTarget};
use plimsoll_segment::{Category, CategoryKind, Counter, FIXED_CATEGORIES, Section, text};

const NAME_BYTES: usize = 48;

/// Rule category → category + 1.
static BY_RULE: [AtomicU16; rules::CATEGORIES] = [const { AtomicU16::new(0) }; rules::CATEGORIES];

/// Hash of the name → category + 1. Twice the section's capacity: there is always an empty cell.
static BY_NAME: [AtomicU16; 2 * Section::Categories.capacity()] =
    [const { AtomicU16::new(0) }; 2 * Section::Categories.capacity()];

/// Category 'other'.
pub const OTHER: u16 = 0;
/// Category 'before start'.
pub const EARLY: u16 = 1;
/// Category of code that lies in no file.
pub const NO_FILE: u16 = 6;

/// Registers the fixed categories in a fresh segment.
pub fn init(segment: Segment) -> bool {
    forget();
    (0..).zip(FIXED_CATEGORIES).all(|(i, name)| find_or_make(segment, name.as_bytes(), CategoryKind::Own) == Some(i))
}

fn forget() {
    // A store would make an untouched page resident.
    BY_NAME.iter().chain(&BY_RULE).filter(|cell| cell.load(Relaxed) != 0).for_each(|cell| cell.store(0, Relaxed));
}

fn is(c: &Category, name: &[u8]) -> bool {
    c.name.iter().zip(name).all(|(have, want)| have.load(Relaxed) == *want)
        && c.name.get(name.len()).is_none_or(|end| end.load(Relaxed) == 0)
}

/// `Err`: the cell where the name belongs.
fn find(segment: Segment, name: &[u8]) -> Result<u16, &'static AtomicU16> {
    let hash = name.iter().fold(0xcbf2_9ce4u32, |h, b| (h ^ *b as u32).wrapping_mul(0x0100_0193));
    let mut at = (hash ^ hash >> 15) as usize;
    loop {
        let cell = &BY_NAME[at % BY_NAME.len()];
        match cell.load(Acquire).checked_sub(1) {
            None => return Err(cell),
            Some(i) if is(segment.category(i), name) => return Ok(i),
            Some(_) => at += 1,
        }
    }
}

fn find_or_make(segment: Segment, name: &[u8], kind: CategoryKind) -> Option<u16> {
    loop {
        let cell = match find(segment, name) {
            Ok(i) => return Some(i),
            Err(cell) => cell,
        };
        let i = segment.append(Section::Categories)? as u16;
        let c = segment.category(i);
        c.kind.store(kind as u32, Relaxed);
        set_text(&c.name, name);
        match cell.compare_exchange(0, i + 1, AcqRel, Acquire) {
            Ok(_) => return Some(i),
            // Another thread took the place, perhaps for the same name: look again; ours stays an entry without a name.
            Err(_) => set_text(&c.name, b""),
        }
    }
}

/// The category with this name, registered if it is new. 'other' when there is no space. Two threads with the same new
/// name make only one category, and nobody waits: an entry that is found is complete, as with callers.
pub fn register(segment: Segment, name: &[u8], kind: CategoryKind) -> u16 {
    let name = &name[..name.len().min(NAME_BYTES - 1)];
    find_or_make(segment, name, kind).unwrap_or_else(|| {
        segment.count(Counter::categories_lost, 1);
        OTHER
    })
}

/// The category of a rule.
pub fn of_rule(segment: Segment, i: u16) -> u16 {
    let Some(cell) = BY_RULE.get(i as usize) else { return OTHER };
    let known = cell.load(Relaxed);
    if known != 0 {
        return known - 1;
    }
    let Some(rules) = crate::rules::rules() else { return OTHER };
    let c = register(segment, rules.category_name(i), CategoryKind::Rule);
    cell.store(c + 1, Relaxed);
    c
}

/// The category of callers in an object that no symbol rule names.
pub fn of_module(segment: Segment, path: &[u8], rules: &ModuleRules) -> u16 {
    match rules.whole() {
        RuleTarget::Category(i) => of_rule(segment, i),
        _ => register(segment, rules::file_name(path), CategoryKind::Module),
    }
}

/// In a fork child, whose copy of the section may be newer than its table.
pub fn reset_after_fork(child: Segment) {
    forget();
    for i in 0..child.used(Section::Categories) as u16 {
        let mut name = [0; NAME_BYTES];
        for (to, from) in name.iter_mut().zip(&child.category(i).name) {
            *to = from.load(Relaxed);
        }
        if let (false, Err(cell)) = (text(&name).is_empty(), find(child, text(&name))) {
            cell.store(i + 1, Relaxed);
        }
    }
}
