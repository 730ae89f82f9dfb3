//! How far the segment's sections are populated ahead of use, and by which calls.

use crate::{alone, fresh};
use plimsoll_segment::{ALL_SECTIONS, Section};
use plimsoll_tracker::sys::os;

/// Pages that nobody uses are resident, too.
#[test]
fn a_section_grows_by_little_more_than_it_needs() {
    alone(|| {
        let segment = fresh();
        let (mut growths, mut before) = (0, 0);
        for used in (16..=8 << 20).step_by(16) {
            assert!(segment.grow(Section::Frames, used));
            let populated = segment.populated_of(Section::Frames).0;
            let most = (used / 4).min(64 << 10) + 4096;
            assert!((used..=used + most).contains(&populated), "{populated} bytes for {used}");
            growths += usize::from(populated != before);
            before = populated;
        }
        println!("exercised: {growths} growths");
        assert!((100..200).contains(&growths), "{growths} growths for 8 MiB");
    });
}

/// The bytes of written pages in the mapping at an address. Pages that were only read are the kernel's page of zeros.
fn written(at: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("own mappings");
    let address = |text| usize::from_str_radix(text, 16).ok();
    let mut is_inside = false;
    for line in smaps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        if let Some((start, end)) = range.and_then(|(start, end)| Some((address(start)?, address(end)?))) {
            is_inside = (start..end).contains(&at);
        } else if let Some(kib) = line.strip_prefix("Anonymous:").filter(|_| is_inside) {
            return kib.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10;
        }
    }
    panic!("nothing is mapped at {at:x}");
}

/// Once a program runs, a section grows by reading two pages with each call. A HotSpot VM's grows by one call, which
/// writes, and a fork child of a VM isn't a VM.
#[test]
fn a_section_of_a_vm_grows_by_one_call() {
    alone(|| {
        let skipped = |why: &str| println!("a_section_of_a_vm_grows_by_one_call: skipped, {why}");
        // SAFETY: a new descriptor, and a fresh record for its file system.
        let (file, is_on_tmpfs) = unsafe {
            let file = libc::memfd_create(c"growth".as_ptr(), libc::MFD_CLOEXEC);
            let mut of: libc::statfs = std::mem::zeroed();
            assert_eq!(libc::fstatfs(file, &mut of), 0);
            (file, of.f_type == libc::TMPFS_MAGIC)
        };
        if !is_on_tmpfs {
            return skipped("a memory file isn't on tmpfs");
        }
        os::note_file_system(os::Fd::of_number(file.to_string().as_bytes()).expect("a number"));
        let segment = fresh();
        os::started();
        let first = segment.base() + Section::Frames.offset();
        if !os::populate_at_once(first, 4096) {
            return skipped("the kernel doesn't know the advice");
        }
        let populated = || segment.populated_of(Section::Frames).0;
        // Bytes that were written as the section grew, and by how many bytes it grew.
        let grow = |bytes: usize| {
            let before = (written(first), populated());
            assert!(segment.grow(Section::Frames, bytes));
            (written(first) - before.0, populated() - before.1)
        };
        let (by_reads, read) = grow(1 << 20);
        segment.grow_for_vm();
        let (by_advice, advised) = grow(2 << 20);
        segment.populated(&ALL_SECTIONS.map(|s| segment.populated_of(s).0));
        let (in_child, of_child) = grow(3 << 20);
        println!("exercised: {read}, {advised} and {of_child} bytes");
        assert_eq!((by_reads, by_advice, in_child), (0, advised, 0));
        assert!([read, advised, of_child].iter().all(|bytes| *bytes >= 900 << 10));
    });
}
