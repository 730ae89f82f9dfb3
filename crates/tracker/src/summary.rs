//! The summary on a signal: written by the tracker itself, into a file, in the form of Native Image's report. For
//! containers that don't have the program `plimsoll` (requested in graal#8814).
//!
//! Everything is static: no allocation, and little stack (the handler may run on an 8 KiB sigaltstack). Only one
//! summary is written at a time.

use crate::account::segment_file;
use crate::fixed_string::FixedString;
use crate::segment::Segment;
use crate::sys::{libc, os};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering::*};
use plimsoll_segment::{Counter, Section};

static BUSY: AtomicBool = AtomicBool::new(false);

struct Static<T>(UnsafeCell<T>);
// SAFETY: PATH is written once, at boot, before the handler that reads it is installed; WORK belongs to the holder of
// BUSY.
unsafe impl<T> Sync for Static<T> {}

static PATH: Static<FixedString<512>> = Static(UnsafeCell::new(FixedString::new()));

#[derive(Clone, Copy)]
struct Sum {
    bytes: u64,
    count: u64,
}

struct Work {
    sums: [Sum; Section::Categories.capacity()],
    text: FixedString<4096>,
}

static WORK: Static<Work> = Static(UnsafeCell::new(Work {
    sums: [Sum { bytes: 0, count: 0 }; Section::Categories.capacity()],
    text: FixedString::new(),
}));

/// Installs the handler. An unknown signal name installs nothing.
pub fn init(signal: &CStr, path: Option<&CStr>) {
    let Some(number) = parse_signal(signal.to_bytes()) else { return };
    // SAFETY: boot runs once, in one thread, and the handler is installed below.
    let to = unsafe { &mut *PATH.0.get() };
    match path {
        Some(p) => {
            to.push(p.to_bytes());
        }
        None => {
            to.push(segment_file::directory().bytes()).push(b"/plimsoll-%p.txt");
        }
    }
    libc::handle_signal(number, handler);
}

/// A number, or a name with or without SIG.
fn parse_signal(text: &[u8]) -> Option<c_int> {
    const NAMES: [(&[u8], c_int); 9] = [
        (b"HUP", 1),
        (b"USR1", 10),
        (b"USR2", 12),
        (b"URG", 23),
        (b"VTALRM", 26),
        (b"PROF", 27),
        (b"WINCH", 28),
        (b"IO", 29),
        (b"PWR", 30),
    ];
    if text.iter().all(u8::is_ascii_digit) && !text.is_empty() && text.len() < 3 {
        let n = text.iter().fold(0, |n, d| n * 10 + (d - b'0') as c_int);
        return (1..=64).contains(&n).then_some(n);
    }
    let name = text.strip_prefix(b"SIG").unwrap_or(text);
    if let Some(by) = name.strip_prefix(b"RTMIN") {
        let plus = by.strip_prefix(b"+").unwrap_or(by);
        let n = plus.iter().fold(0, |n, d| n * 10 + (*d as c_int - 48));
        return (0..=30).contains(&n).then_some(34 + n);
    }
    NAMES.iter().find(|(n, _)| *n == name).map(|(_, s)| *s)
}

/// In a fork child: a thread that was writing a summary doesn't exist here.
pub fn reset_after_fork() {
    if BUSY.load(Relaxed) {
        BUSY.store(false, Relaxed);
    }
}

extern "C" fn handler(_: c_int) {
    let errno = libc::errno();
    if let Some(segment) = Segment::current()
        && !BUSY.swap(true, Acquire)
    {
        // SAFETY: BUSY is held.
        write(segment, unsafe { &mut *WORK.0.get() });
        segment.count(Counter::summaries, 1);
        BUSY.store(false, Release);
    }
    libc::set_errno(errno);
}

fn write(segment: Segment, work: &mut Work) {
    let mut name = FixedString::<544>::new();
    // SAFETY: written at boot only.
    let pattern = unsafe { &*PATH.0.get() }.bytes();
    let mut rest = pattern;
    while let Some(at) = rest.windows(2).position(|w| w == b"%p") {
        name.push(&rest[..at]).push_number(os::getpid() as u64);
        rest = &rest[at + 2..];
    }
    name.push(rest);
    let Some(fd) = os::create_path(name.as_c()) else {
        segment.count(Counter::faults, 1);
        return;
    };
    // Reads all freed figures first, then all allocated ones, so that no sum is negative (crates/segment/src/lib.rs).
    // The number of rows is read each time, since a block freed through an old row may have been allocated in a new
    // one.
    let sums = &mut work.sums;
    sums.fill(Sum { bytes: 0, count: 0 });
    for allocated in [false, true] {
        for i in 1..segment.used(Section::Rows) as u32 {
            let r = segment.seen(i);
            if !r.is_used() {
                continue;
            }
            let c = segment.caller(r.caller()).category.load(Relaxed);
            let Some(s) = sums.get_mut(c as usize) else { continue };
            if allocated {
                let (bytes, count) = r.allocated();
                (s.bytes, s.count) = (s.bytes.wrapping_add(bytes), s.count.wrapping_add(count));
            } else {
                let (bytes, count) = r.freed();
                (s.bytes, s.count) = (s.bytes.wrapping_sub(bytes), s.count.wrapping_sub(count));
            }
        }
    }
    let h = segment.header();
    let total =
        sums.iter().fold(Sum { bytes: 0, count: 0 }, |a, s| Sum { bytes: a.bytes + s.bytes, count: a.count + s.count });
    let load = |c: &core::sync::atomic::AtomicU64| c.load(Relaxed);
    let text = &mut work.text;
    text.clear().push(b"Native memory tracking\n\n");
    let (peak, at) = peak(total, load(&h.peak_bytes), load(&h.count_at_peak));
    let mapped = [&h.reserved_bytes, &h.committed_bytes, &h.peak_reserved_bytes, &h.peak_committed_bytes].map(load);
    group(text, b"Total", total, peak, at, mapped);
    os::write_all(fd, text.bytes());
    for (i, sum) in sums.iter().enumerate().take(segment.used(Section::Categories)) {
        let k = segment.category(i as u16);
        let mut name = [0u8; 48];
        for (b, c) in name.iter_mut().zip(&k.name) {
            *b = c.load(Relaxed);
        }
        let (peak, at) = self::peak(*sum, load(&k.peak_bytes), load(&k.count_at_peak));
        let mapped = [&k.reserved_bytes, &k.committed_bytes, &k.peak_reserved_bytes, &k.peak_committed_bytes].map(load);
        text.clear();
        group(text, plimsoll_segment::text(&name), *sum, peak, at, mapped);
        os::write_all(fd, text.bytes());
    }
    os::close(fd);
}

/// The central peak lags behind the books: what is live now is a peak too.
fn peak(now: Sum, bytes: u64, count: u64) -> (u64, u64) {
    if now.bytes > bytes { (now.bytes, now.count) } else { (bytes, count) }
}

/// The lines of Native Image's report for one category.
fn group(out: &mut FixedString<4096>, name: &[u8], live: Sum, peak: u64, at: u64, mapped: [u64; 4]) {
    let [reserved, committed, peak_reserved, peak_committed] = mapped;
    let kb = |n: u64| n / 1024;
    out.push(name).push(b"\n    (reserved=").push_number(kb(live.bytes + reserved));
    out.push(b"KB, committed=").push_number(kb(live.bytes + committed)).push(b"KB)\n    (malloc=");
    out.push_number(kb(live.bytes)).push(b"KB, count=").push_number(live.count).push(b")\n    (peak malloc=");
    out.push_number(kb(peak)).push(b"KB, count at peak=").push_number(at).push(b")\n    (mmap: reserved=");
    out.push_number(kb(reserved)).push(b"KB, committed=").push_number(kb(committed));
    out.push(b"KB)\n    (mmap: peak reserved=").push_number(kb(peak_reserved)).push(b"KB, peak committed=");
    out.push_number(kb(peak_committed)).push(b"KB)\n");
}
