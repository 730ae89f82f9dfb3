//! Ranges beyond all bounds, and damaged bytes.

use super::*;

#[test]
fn ranges_beyond_all_bounds_are_harmless() {
    let mut region = region(64 << 10);
    let mut book = book(&mut region);
    let odd = [0, 1, 4095, BASE, ADDRESS_END - 1, ADDRESS_END, ADDRESS_END + 1, u64::MAX - 4096, u64::MAX];
    let mut sums = (0, 0);
    for start in odd {
        for bytes in odd {
            let mut post = |d: Delta| sums = (sums.0 + d.reserved, sums.1 + d.committed);
            book.map(start, bytes, Attributes::new(1, 1, MappingKind::Shared, 3, 0), Placement::Fixed, &mut post);
            book.protect(start, bytes / 2, 0, 2, 0, &mut post);
            for new in odd {
                let remap = Remap { old: start, old_bytes: bytes, new, new_bytes: bytes / 3, keeps_old: false };
                book.remap(remap, &mut post);
            }
            book.unmap(start, bytes / 5, &mut post, |_| ());
            let copy = bytes_of(&region);
            let map = VmaMap::new(&copy).expect("a map");
            let mut entries = map.entries();
            let total: u64 = entries.by_ref().map(|vma| vma.bytes()).sum();
            assert_eq!((total as i64, entries.damaged()), (sums.0, 0));
        }
    }
}

#[test]
fn damaged_bytes_give_gaps_and_disjoint_ranges() {
    let mut region = region(256 << 10);
    let mut book = book(&mut region);
    let mut random = Random(0xabcd_ef12_3456_789a);
    let mut books = Totals::new();
    for round in 0..5_000 {
        perform(&mut book, random_op(&mut random, 1200, 100), round, &mut books);
    }
    let used = book.used() as usize;
    let whole = bytes_of(&region);
    let (mut refused, mut damaged, mut unharmed) = (0, 0, 0);
    let mut bytes = whole[..used].to_vec();
    for round in 0..100_000 {
        let mut undo = Vec::new();
        for _ in 0..1 + random.below(4) {
            // Often damages the words that steer the walk.
            let at = match random.below(3) {
                0 => random.below(15 * 8) as usize,
                1 => random.below((used / BLOCK) as u64) as usize * BLOCK + random.below(16) as usize,
                _ => random.below(used as u64) as usize,
            };
            undo.push((at, bytes[at]));
            bytes[at] = match random.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ 1 << random.below(8),
                _ => random.below(256) as u8,
            };
        }
        let cut = if round % 5 == 0 { random.below(used as u64) as usize } else { used };
        match VmaMap::new(&bytes[..cut]) {
            Err(_) => refused += 1,
            Ok(map) => {
                map.in_flight();
                let (mut entries, mut end, mut n) = (map.entries(), 0, 0);
                for vma in entries.by_ref() {
                    assert!(vma.start >= end && vma.end > vma.start && vma.end <= ADDRESS_END);
                    end = vma.end;
                    n += 1;
                }
                assert!(n <= cut / 32);
                damaged += (entries.damaged() > 0) as u64;
                unharmed += (entries.damaged() == 0) as u64;
            }
        }
        for (at, byte) in undo.into_iter().rev() {
            bytes[at] = byte;
        }
    }
    assert!(refused > 100 && damaged > 10_000 && unharmed > 100, "{refused} {damaged} {unharmed}");
}

#[test]
fn a_scribbled_region_never_leads_the_writer_out_of_it() {
    const PAGES: usize = 1024;
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..3000u32 {
        let mut space = region(96 << 10);
        let guard = space.len() - 2048;
        let mut book = book(&mut space[2048..guard]);
        let mut books = Totals::new();
        for n in 0..100 {
            perform(&mut book, random_op(&mut random, PAGES, 100), n, &mut books);
        }
        let used = book.used();
        for _ in 0..1 + random.below(8) {
            let at = 2048 + random.below(used / 8) as usize;
            let word = random.below(1 << 31) << random.below(33);
            space[at] = if random.below(2) == 0 { word } else { space[at] ^ 1 << random.below(64) };
        }
        for n in 0..100 {
            let op = random_op(&mut random, PAGES, 100);
            // The sums can be anything now, but the calls return.
            match op {
                Op::Unmap { at, n } => drop(book.unmap(address(at), n as u64 * 4096, |_| (), |_| ())),
                Op::Map { at, n: size, page, .. } => {
                    book.map(address(at), size as u64 * 4096, attributes(page, n), Placement::Fixed, |_| ());
                }
                Op::Protect { at, n, prot, caller } => {
                    book.protect(address(at), n as u64 * 4096, prot, caller, 0, |_| ());
                }
                Op::Remap { at, n, to, to_n, keeps } => {
                    let size = |n: usize| n as u64 * 4096;
                    let (old, new) = (address(at), address(to));
                    let remap = Remap { old, old_bytes: size(n), new, new_bytes: size(to_n), keeps_old: keeps };
                    book.remap(remap, |_| ());
                }
                Op::UnmapFails { .. } => {}
            }
        }
        let mut around = space[..2048].iter().chain(&space[guard..]);
        assert!(around.all(|&word| word == 0xdead_beef_dead_beef), "round {round}");
    }
}
