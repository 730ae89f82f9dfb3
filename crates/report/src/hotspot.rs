//! Writes `VM.native_memory summary` and `detail` of JDK 25 for any program, so that existing parsers can read it.
//!
//! Two categories differ from those of our books: HotSpot's 'Thread' includes the thread stacks, and 'Native Memory
//! Tracking' stands for the tracker's own cost, the category Plimsoll.
//!
//! HotSpot rounds each figure to the nearest KB by itself, so its lines need not add up. Here the KB of a column are
//! apportioned (largest remainder): Σ categories = Total as printed, and reserved = malloc + mmap in each line.
//!
//! The tracker keeps no peaks of stacks and libraries. Their lines have none, as those of stacks on JDK 17.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_tracked::books::{Books, Caller, Figures};

use crate::words::printable;

/// A category as HotSpot would print it, in KB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: String,
    pub malloc: u64,
    pub count: u64,
    /// KB and number of blocks at the peak; `None` if it isn't above the current figure.
    pub peak: Option<(u64, u64)>,
    pub reserved: u64,
    pub committed: u64,
    pub peak_committed: Option<u64>,
    /// The part of `reserved` and `committed` that is thread stacks.
    pub stack: Option<(u64, u64)>,
    pub threads: u64,
    pub overhead: Option<u64>,
}

/// Total and categories, rounded so that they add up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub total: Entry,
    pub entries: Vec<Entry>,
}

const THREAD: &str = "Thread";
const STACKS: &str = "Thread Stack";
const OWN: &str = "Plimsoll";
const LIBRARIES: &str = "Loaded Libraries";

pub fn summary(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    let s = summarize(books);
    writeln!(out, "\nNative Memory Tracking:\n\n(Omitting categories weighting less than 1KB)\n")?;
    let t = &s.total;
    writeln!(out, "Total: reserved={}KB, committed={}KB", t.malloc + t.reserved, t.malloc + t.committed)?;
    writeln!(out, "       malloc: {}KB #{}{}", t.malloc, t.count, total_peak(t))?;
    writeln!(out, "       mmap:   reserved={}KB, committed={}KB\n", t.reserved, t.committed)?;
    for e in s.entries.iter().filter(|e| e.malloc + e.reserved > 0) {
        entry(out, e)?;
        writeln!(out)?;
    }
    Ok(())
}

fn total_peak(t: &Entry) -> String {
    match t.peak {
        Some((kb, count)) => format!(", peak={kb}KB #{count}"),
        None => ", at peak".into(),
    }
}

fn entry(out: &mut dyn Write, e: &Entry) -> io::Result<()> {
    let (name, indent) = (printable(&e.name), "");
    let (reserved, committed) = (e.malloc + e.reserved, e.malloc + e.committed);
    writeln!(out, "-{name:>26} (reserved={reserved}KB, committed={committed}KB)")?;
    if e.threads > 0 {
        writeln!(out, "{indent:28}(threads #{})", e.threads)?;
    }
    let (mut mmap_reserved, mut mmap_committed) = (e.reserved, e.committed);
    if let Some((reserved, committed)) = e.stack {
        writeln!(out, "{indent:28}(stack: reserved={reserved}KB, committed={committed}KB)")?;
        (mmap_reserved, mmap_committed) =
            (mmap_reserved.saturating_sub(reserved), mmap_committed.saturating_sub(committed));
    }
    if e.malloc > 0 {
        let peak = peak_text(e.peak);
        writeln!(out, "{indent:28}(malloc={}KB tag={name} #{}) {peak}", e.malloc, e.count)?;
    }
    if let Some(overhead) = e.overhead {
        writeln!(out, "{indent:28}(tracking overhead={overhead}KB)")?;
    } else if mmap_reserved > 0 {
        let peak = match e.peak_committed {
            Some(kb) => format!(", peak={kb}KB"),
            None if e.name == LIBRARIES => String::new(),
            None => ", at peak".into(),
        };
        writeln!(out, "{indent:28}(mmap: reserved={mmap_reserved}KB, committed={mmap_committed}KB{peak})")?;
    }
    Ok(())
}

fn peak_text(peak: Option<(u64, u64)>) -> String {
    peak.map_or("(at peak)".into(), |(kb, count)| format!("(peak={kb}KB #{count})"))
}

/// A reservation and its committed parts.
struct Region<'a> {
    start: u64,
    end: u64,
    category: &'a str,
    caller: Option<usize>,
    /// Committed parts in address order.
    committed: Vec<(u64, u64)>,
}

/// Adjoining mappings of one category and one reserving caller are one reservation. Each thread stack is one too.
fn regions(books: &Books) -> Vec<Region<'_>> {
    let mut regions: Vec<Region<'_>> = Vec::new();
    for m in &books.mappings {
        let category = books.categories.get(m.category).map_or("", |c| &c.name);
        let committed = m.committed.then_some((m.start.0, m.end.0));
        match regions.last_mut() {
            Some(r) if r.end == m.start.0 && r.category == category && r.caller == m.reserved_by => {
                r.end = m.end.0;
                match (r.committed.last_mut(), committed) {
                    (Some(last), Some(more)) if last.1 == more.0 => last.1 = more.1,
                    _ => r.committed.extend(committed),
                }
            }
            _ => regions.push(Region {
                start: m.start.0,
                end: m.end.0,
                category,
                caller: m.reserved_by,
                committed: committed.into_iter().collect(),
            }),
        }
    }
    for t in books.threads.iter().filter(|t| t.in_use && t.stack_kind != 1 && t.stack > Bytes::ZERO) {
        let (low, high) = (t.stack_range.0.0, t.stack_range.1.0);
        // The kernel maps the main thread's stack as it grows.
        let committed = if t.stack_kind == 2 { Vec::new() } else { vec![(low, high)] };
        let start = low.saturating_sub(t.guard.0);
        regions.push(Region { start, end: high, category: STACKS, caller: None, committed });
    }
    regions.sort_by_key(|r| (r.start, r.end));
    // A thread that ended past libc keeps its slot, and a later thread has its stack.
    regions.dedup_by(|r, last| {
        r.category == STACKS && last.category == STACKS && (r.start, r.end) == (last.start, last.end)
    });
    regions
}

/// Summary, map and callers. HotSpot 25 prints the map from the top down.
pub fn detail(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    summary(out, books)?;
    writeln!(out, "Virtual memory map:\n")?;
    for r in regions(books).iter().rev() {
        region(out, books, r)?;
    }
    writeln!(out, "Details:\n")?;
    let mut callers: Vec<&Caller> = books.callers.iter().filter(|c| c.figures.live > Bytes::ZERO).collect();
    callers.sort_by_key(|c| std::cmp::Reverse(c.figures.live));
    let small = callers.iter().filter(|c| nearest(c.figures.live.0) == 0).count();
    for caller in &callers[..callers.len() - small] {
        frames(out, books, &caller.frames, 0)?;
        let name = books.categories.get(caller.category).map_or("", |c| &c.name);
        let f = &caller.figures;
        let peak = peak_text(peak(f));
        writeln!(
            out,
            "{:29}((malloc={}KB tag={} #{}) {peak})\n",
            "",
            nearest(f.live.0),
            printable(name),
            f.live_count
        )?;
    }
    writeln!(out, "({small} call sites weighting less than 1KB each omitted.)\n")
}

fn region(out: &mut dyn Write, books: &Books, r: &Region<'_>) -> io::Result<()> {
    let whole = r.committed == [(r.start, r.end)];
    let what = if whole { "reserved and committed" } else { "reserved" };
    let stack = r.caller.and_then(|i| books.callers.get(i)).map_or(&[][..], |c| &c.frames);
    let from = if stack.is_empty() { "" } else { " from" };
    let (start, end, kb) = (r.start, r.end, nearest(r.end.saturating_sub(r.start)));
    writeln!(out, "[{start:#018x} - {end:#018x}] {what} {kb}KB for {}{from}", printable(r.category))?;
    frames(out, books, stack, 4)?;
    writeln!(out)?;
    for &(start, end) in r.committed.iter().rev().filter(|_| !whole) {
        let kb = nearest(end.saturating_sub(start));
        writeln!(out, "        [{start:#018x} - {end:#018x}] committed {kb}KB\n")?;
    }
    Ok(())
}

fn frames(
    out: &mut dyn Write,
    books: &Books,
    frames: &[plimsoll_tracked::books::Frame],
    indent: usize,
) -> io::Result<()> {
    for frame in frames {
        let module = frame.module.and_then(|i| books.modules.get(i)).map(|m| m.name());
        let library = match module {
            // HotSpot prints no name for its own library.
            None | Some("libjvm.so") => String::new(),
            Some(name) => format!(" in {}", printable(name)),
        };
        let symbol = match (&frame.function, module) {
            (Some(f), _) => format!("{}+{:#x}{library}", printable(f), frame.function_offset),
            (None, Some(_)) => library,
            (None, None) => String::new(),
        };
        writeln!(out, "{:indent$}[{:#018x}]{symbol}", "", frame.address.0)?;
    }
    Ok(())
}

fn nearest(bytes: u64) -> u64 {
    bytes / 1024 + u64::from(bytes % 1024 >= 512)
}

fn peak(f: &Figures) -> Option<(u64, u64)> {
    (f.peak > f.live).then(|| (nearest(f.peak.0), f.count_at_peak))
}

pub(crate) fn summarize(books: &Books) -> Summary {
    let column = |figure: fn(&Figures) -> Bytes| {
        let bytes: Vec<u64> = books.categories.iter().map(|c| figure(&c.figures).0).collect();
        apportion(&bytes)
    };
    let (malloc, reserved) = (column(|f| f.live), column(|f| f.reserved));
    // HotSpot counts the resident part of a stack as committed (virtualMemoryTracker.cpp: SnapshotThreadStackWalker, by
    // mincore), because the kernel maps the rest only when it is touched. If the kernel was not queried, the whole
    // mapping counts.
    // A JavaThread commits its guard pages before it protects them (os::create_stack_guard_pages), and NMT keeps them
    // as committed.
    let guards = books.stack_guards;
    let stack = |f: &Figures| f.resident.map_or(f.committed, |resident| resident.min(f.committed) + guards);
    let all = books.categories.iter();
    let committed = all.map(|c| if c.name == STACKS { stack(&c.figures) } else { c.figures.committed }.0);
    let committed = apportion(&committed.collect::<Vec<_>>());
    let mut entries: Vec<Entry> = Vec::new();
    for (i, category) in books.categories.iter().enumerate() {
        let f = &category.figures;
        let name = match category.name.as_str() {
            STACKS => THREAD,
            OWN => "Native Memory Tracking",
            other => other,
        };
        let at = entries.iter().position(|e| e.name == name).unwrap_or_else(|| {
            entries.push(Entry { name: name.into(), ..Entry::default() });
            entries.len() - 1
        });
        let e = &mut entries[at];
        e.malloc = e.malloc.saturating_add(malloc[i]);
        e.count = e.count.saturating_add(f.live_count);
        e.reserved = e.reserved.saturating_add(reserved[i]);
        e.committed = e.committed.saturating_add(committed[i]);
        match category.name.as_str() {
            STACKS => {
                // The threads whose stacks are counted here: an attached process can have more.
                let with_stack = books.threads.iter().filter(|thread| thread.in_use && thread.tid != 0).count() as u64;
                (e.stack, e.threads) = (Some((reserved[i], committed[i])), with_stack);
            }
            OWN => e.overhead = Some(committed[i]),
            _ => {
                // A printed peak must not be below the printed current figure only because of rounding.
                e.peak = peak(f).map(|(kb, count)| (kb.max(malloc[i]), count));
                let higher = f.peak_committed > f.committed;
                e.peak_committed = higher.then(|| nearest(f.peak_committed.0).max(committed[i]));
            }
        }
    }
    let sum = |figure: fn(&Entry) -> u64| entries.iter().fold(0u64, |sum, e| sum.saturating_add(figure(e)));
    let malloc = sum(|e| e.malloc);
    let total = Entry {
        name: "Total".into(),
        malloc,
        count: books.total.live_count,
        peak: peak(&books.total).map(|(kb, count)| (kb.max(malloc), count)),
        reserved: sum(|e| e.reserved),
        committed: sum(|e| e.committed),
        ..Entry::default()
    };
    Summary { total, entries }
}

/// Rounds to KB so that the results add up to the rounded sum. First rounds all figures down, then rounds up those with
/// the largest remainders until the sum is right.
fn apportion(bytes: &[u64]) -> Vec<u64> {
    let sum = bytes.iter().fold(0u64, |sum, b| sum.saturating_add(*b));
    let mut kb: Vec<u64> = bytes.iter().map(|b| b / 1024).collect();
    let mut missing = nearest(sum).saturating_sub(kb.iter().fold(0u64, |sum, b| sum.saturating_add(*b)));
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(bytes[i] % 1024));
    for i in order {
        if missing == 0 {
            break;
        }
        kb[i] += 1;
        missing -= 1;
    }
    kb
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn apportioned_figures_add_up() {
        let mut random = Random(88_172_645_463_325_252);
        for _ in 0..2000 {
            let bytes: Vec<u64> = (0..17)
                .map(|_| {
                    let bits = random.below(30);
                    random.below(1 << bits)
                })
                .collect();
            let kb = apportion(&bytes);
            assert_eq!(kb.iter().sum::<u64>(), nearest(bytes.iter().sum()));
            assert!(bytes.iter().zip(&kb).all(|(b, kb)| *kb == b / 1024 || *kb == b / 1024 + 1));
        }
    }
}
