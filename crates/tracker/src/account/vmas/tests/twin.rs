//! The writer against a naive twin, one record for each page.

use super::*;

#[test]
fn books_equal_the_naive_twins() {
    const PAGES: usize = 4096;
    for seed in 1..=2 {
        let mut random = Random(0x1E37_79B9_7F4A_7C15 * seed);
        let mut region = region(1 << 20);
        let mut book = book(&mut region);
        let mut twin = Twin(vec![None; PAGES]);
        let (mut books, mut before) = (Totals::new(), Totals::new());
        for round in 0..55_000u32 {
            // Now and then nearly everything is unmapped, so that the tree shrinks, too.
            let op = match round % 10_000 {
                9_000..=9_400 => {
                    let at = random.below(PAGES as u64 - 33) as usize;
                    Op::Unmap { at, n: 1 + random.below(32) as usize }
                }
                9_401 => Op::Unmap { at: 0, n: PAGES },
                // Makes each page an entry of its own, in sequence, so that nodes are full. Then unmaps a node's whole
                // share.
                9_402 => {
                    for at in 0..PAGES {
                        let page = Page { category: at as u16 % 2, ..random_page(&mut Random(at as u64 + 1)) };
                        perform(&mut book, Op::Map { at, n: 1, page, fixed: false }, round, &mut books);
                        twin.apply(Op::Map { at, n: 1, page, fixed: false });
                    }
                    let share = (NODE_SLOTS - 7) * LEAF_ENTRIES;
                    Op::Unmap { at: 2 * share - 15, n: share + 30 }
                }
                _ => random_op(&mut random, PAGES, 300).beside(&twin, &mut random),
            };
            twin.classify(op);
            let diff = perform(&mut book, op, round, &mut books);
            assert_eq!(diff.lost, 0);
            twin.apply(op);
            if round % 64 == 0 {
                before = strip(books.clone());
                assert_eq!(before, twin.books(), "after {op:?} in round {round}");
            }
            if round % 256 == 0 || matches!(op, Op::Unmap { n: PAGES, .. }) {
                let (found, damaged) = pages_of(&bytes_of(&region), PAGES);
                assert_eq!(damaged, 0);
                assert!(found == twin.0, "round {round}, {op:?}");
                for _ in 0..8 {
                    let page = random.below(PAGES as u64) as usize;
                    let found = book.lookup(address(page) + random.below(4096));
                    assert_eq!(found.map(|vma| Page::of(&vma)), twin.0[page]);
                }
            }
        }
        assert!(!before.is_empty());
    }
    met(&PRESENT);
}

#[test]
fn a_full_region_loses_operations_and_nothing_else() {
    const PAGES: usize = 4096;
    for room in [32 << 10, 64 << 10] {
        let mut region = region(64 << 10);
        let bytes = region.len() * 8;
        let base = region.as_mut_ptr().cast();
        // SAFETY: the vector outlives the book.
        let mut book = unsafe { VmaBook::create(base, bytes, move |upto| upto <= room) }.expect("room");
        let mut random = Random(77);
        let mut books = Totals::new();
        let (mut lost_ops, mut lost_bytes, mut kept) = (0, 0, 0);
        for round in 0..60_000u32 {
            let op = random_op(&mut random, PAGES, 20);
            let diff = perform(&mut book, op, round, &mut books);
            lost_bytes += diff.lost;
            match op {
                // These are two or more operations.
                Op::UnmapFails { .. } => lost_ops = book.lost_ops(),
                _ => lost_ops += (diff.lost > 0) as u64,
            }
            kept += (diff.lost == 0) as u64;
            assert_eq!((book.lost_ops(), book.lost_bytes()), (lost_ops, lost_bytes));
            if round % 128 == 0 {
                let copy = bytes_of(&region);
                let (found, damaged) = pages_of(&copy, PAGES);
                assert_eq!(damaged, 0);
                assert_eq!(Twin(found).books(), strip(books.clone()), "what was posted is what the map says");
                let map = VmaMap::new(&copy).expect("a map");
                assert!(map.used() as usize <= room && map.lost_ops() == lost_ops && map.lost_bytes() == lost_bytes);
            }
        }
        assert!(lost_ops > 1000 && kept > 1000, "{lost_ops} lost, {kept} kept");
        assert!(book.used() as usize > room - 16 * BLOCK, "the region was full");
        // After everything is unmapped, there is space again.
        book.unmap(BASE, 4096 * PAGES as u64, |_| (), |_| ());
        assert_eq!(pages_of(&bytes_of(&region), PAGES).0, vec![None; PAGES]);
        let lost = book.lost_ops();
        for page in 0..100 {
            book.map(
                address(page),
                4096,
                Attributes::new(page as u32, 0, MappingKind::File, 1, 0),
                Placement::Chosen,
                |_| (),
            );
        }
        assert_eq!(book.lost_ops(), lost);
        assert_eq!(VmaMap::new(&bytes_of(&region)).expect("a map").entries().count(), 100);
    }
}

#[test]
fn ascending_and_descending_mappings_fill_the_leaves() {
    for descending in [true, false] {
        let mut region = region(4 << 20);
        let mut book = book(&mut region);
        let count = 65_530;
        for n in 0..count {
            let page = 2 * if descending { count - n } else { n };
            // Three mappings far below, like the program's own.
            let fixed = [10, 20, 30].map(|low| 0x5500_0000_0000 + low * 8192);
            if n < 3 {
                book.map(fixed[n], 4096, Attributes::new(9, 0, MappingKind::File, 5, 0), Placement::Chosen, |_| ());
            }
            book.map(address(page), 4096, Attributes::new(1, 0, MappingKind::File, 1, 0), Placement::Chosen, |_| ());
        }
        assert_eq!(book.lost_ops(), 0);
        let fill = count as f64 * 32.0 / book.used() as f64;
        // The fill would be 0.47 if leaves were cut in the middle. The three mappings far below cost one leaf in five.
        assert!(fill > 0.7, "descending {descending}: {fill}");
        assert_eq!(VmaMap::new(&bytes_of(&region)).expect("a map").entries().count(), count + 3);
    }
}

#[test]
fn a_copied_map_goes_on() {
    let mut region = region(256 << 10);
    let mut parent = book(&mut region);
    let mut books = Totals::new();
    let mut random = Random(31);
    for round in 0..2000 {
        perform(&mut parent, random_op(&mut random, 1024, 100), round, &mut books);
    }
    let used = parent.used() as usize;
    let mut copy = vec![0u64; (256 << 10) / 8];
    copy[..used / 8].copy_from_slice(&region[..used / 8]);
    // SAFETY: the vector outlives the book.
    let child = unsafe { VmaBook::resume(copy.as_mut_ptr().cast(), 256 << 10, 256 << 10, |_| true) };
    let mut child = child.expect("the parent's map");
    for round in 0..2000 {
        perform(&mut child, random_op(&mut random, 1024, 100), round, &mut books);
    }
    let (found, damaged) = pages_of(&bytes_of(&copy), 1024);
    assert_eq!((Twin(found).books(), damaged), (strip(books), 0));
    // SAFETY: the parent's book isn't used any more; its vector is longer than that.
    assert!(unsafe { VmaBook::resume(region[1..].as_mut_ptr().cast(), 64 << 10, 64 << 10, |_| true) }.is_none());
}

#[test]
fn times_are_of_the_state_and_the_oldest_wins() {
    let mut region = region(64 << 10);
    let mut book = book(&mut region);
    let anonymous = |prot, time| Attributes::new(1, 2, MappingKind::Anonymous, prot, time);
    book.map(BASE, 8192, anonymous(3, 50), Placement::Chosen, |_| ());
    book.map(BASE - 4096, 4096, anonymous(3, 60), Placement::Chosen, |_| ());
    let vma = book.lookup(BASE - 1).expect("mapped");
    assert_eq!((vma.start, vma.end, vma.attributes().time()), (BASE - 4096, BASE + 8192, 50));
    book.protect(BASE, 4096, 1, 7, 70, |_| ());
    assert_eq!(book.lookup(BASE).map(|vma| vma.attributes().time()), Some(50));
    book.protect(BASE, 4096, 0, 7, 80, |_| ());
    assert_eq!(book.lookup(BASE).map(|vma| vma.attributes().time()), Some(80));
    book.protect(BASE, 4096, 3, 7, 90, |_| ());
    let vma = book.lookup(BASE).expect("mapped").attributes();
    assert_eq!((vma.time(), vma.reserve_caller(), vma.commit_caller()), (90, 1, 7));
    assert_eq!(book.lookup(BASE + 8192), None);
}
