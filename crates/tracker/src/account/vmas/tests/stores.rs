//! Tests the reader, and a writer that continues, at every store.

use super::*;

#[test]
fn every_store_leaves_the_old_or_the_new_state() {
    const PAGES: usize = 1500;
    let mut random = Random(0xfeed_5eed_0000_0001);
    let mut region = region(256 << 10);
    let mut book = book(&mut region);
    let mut twin = Twin(vec![None; PAGES]);
    let mut books = Totals::new();
    let (stores, mixed) = (std::rc::Rc::new(RefCell::new(0u64)), std::rc::Rc::new(RefCell::new(0u64)));
    for round in 0..6000 {
        let op = match round {
            4000..=4300 => Op::Unmap { at: random.below(PAGES as u64 - 16) as usize, n: 1 + random.below(16) as usize },
            _ => random_op(&mut random, PAGES, PAGES),
        };
        // A failed munmap is two operations: the pages are old, gone, or old again.
        let absent = matches!(op, Op::UnmapFails { .. });
        let (old, mut new) = (twin.0.clone(), twin.clone());
        new.apply(op);
        // Few rounds are watched at first, while the map is small and its stores are of no new kind.
        if round > 1000 && (round % 4 == 0 || (4000..4301).contains(&round)) {
            let touched = Twin::touched(op);
            let (new, stores, mixed) = (new.0.clone(), stores.clone(), mixed.clone());
            WATCH.set(Some(Box::new(move |bytes| {
                let (found, damaged) = pages_of(bytes, PAGES);
                assert_eq!(damaged, 0, "{op:?}");
                let (mut some_old, mut some_new) = (false, false);
                for (page, found) in found.iter().enumerate() {
                    if !touched.iter().any(|range| range.contains(&page)) {
                        assert_eq!(*found, old[page], "an untouched page, in {op:?}");
                        continue;
                    }
                    some_old |= *found != new[page];
                    some_new |= *found != old[page];
                    let states = *found == old[page] || *found == new[page] || absent && found.is_none();
                    assert!(states, "page {page} in {op:?}: {found:?} is neither {:?} nor {:?}", old[page], new[page]);
                }
                *stores.borrow_mut() += 1;
                *mixed.borrow_mut() += (some_old && some_new) as u64;
            })));
        }
        twin.classify(op);
        perform(&mut book, op, round, &mut books);
        WATCH.set(None);
        twin = new;
    }
    let (stores, mixed) = (*stores.borrow(), *mixed.borrow());
    assert!(stores > 20_000 && mixed > 100, "{stores} stores seen, {mixed} of them between old and new");
    met(&[
        "LeafSplit",
        "LeafJoined",
        "LeafRemoved",
        "RootRaised",
        "OneMapped",
        "OneUnmapped",
        "OneCut",
        "OneChanged",
        "OneChangedLow",
        "OneChangedHigh",
        "split middle",
        "remap moves",
        "commit over reservation",
    ]);
}

#[test]
fn an_operation_in_flight_is_named() {
    let mut region = region(64 << 10);
    let mut book = book(&mut region);
    let seen = std::rc::Rc::new(RefCell::new((0, 0)));
    let watched = seen.clone();
    WATCH.set(Some(Box::new(move |bytes| {
        let map = VmaMap::new(bytes).expect("a map");
        let mut seen = watched.borrow_mut();
        match map.in_flight() {
            Some(op) => {
                assert_eq!((op.operation, op.start, op.bytes), (Operation::Map, BASE, 8192));
                seen.0 += 1;
            }
            None => {
                assert_eq!(map.entries().count(), (seen.0 > 0) as usize);
                seen.1 += 1;
            }
        }
    })));
    book.map(BASE, 8192, Attributes::new(1, 2, MappingKind::Anonymous, 3, 9), Placement::Chosen, |_| ());
    WATCH.set(None);
    assert!(seen.borrow().0 > 2 && seen.borrow().1 > 2, "{:?}", seen.borrow());

    // Only a remap has a destination. The destination that it leaves in the header isn't the next operation's.
    let destinations = std::rc::Rc::new(RefCell::new(Vec::new()));
    let watched = destinations.clone();
    WATCH.set(Some(Box::new(move |bytes| {
        let op = VmaMap::new(bytes).expect("a map").in_flight();
        watched.borrow_mut().extend(op.map(|op| (op.operation, op.new_start, op.new_bytes)));
    })));
    let to = BASE + (1 << 20);
    book.remap(Remap { old: BASE, old_bytes: 8192, new: to, new_bytes: 4096, keeps_old: false }, |_| ());
    book.unmap(to, 4096, |_| (), |_| ());
    WATCH.set(None);
    destinations.borrow_mut().dedup();
    assert_eq!(*destinations.borrow(), [(Operation::Remap, to, 4096), (Operation::Unmap, 0, 0)]);
}

#[test]
fn grow_is_called_before_the_first_store() {
    use std::rc::Rc;
    let mut region = region(1 << 20);
    let (safe, grow_calls) = (Rc::new(RefCell::new(0)), Rc::new(RefCell::new(0)));
    let (grown, calls) = (safe.clone(), grow_calls.clone());
    let grow = move |upto: usize| {
        assert!(upto > *grown.borrow());
        *grown.borrow_mut() = upto;
        *calls.borrow_mut() += 1;
        true
    };
    let watched = safe.clone();
    WATCH.set(Some(Box::new(move |bytes| {
        let untouched = 0xdead_beef_dead_beef_u64.to_le_bytes();
        let safe = *watched.borrow();
        assert!(bytes[safe..].chunks(8).take(BLOCK).all(|word| word == untouched), "a store beyond {safe}");
    })));
    // SAFETY: the vector outlives the book.
    let mut book = unsafe { VmaBook::create(region.as_mut_ptr().cast(), 1 << 20, grow) }.expect("room");
    let mut random = Random(5);
    for _ in 0..3000 {
        let page = random.below(1 << 20) as usize;
        book.map(address(page), 4096, Attributes::new(1, 0, MappingKind::File, 1, 0), Placement::Chosen, |_| ());
    }
    WATCH.set(None);
    assert!(*grow_calls.borrow() > 5 && book.lost_ops() == 0);
}

/// A signal handler jumps out of an update, or a fork copies it, at any store. A writer that continues with what lies
/// there has a sound map, and no block in two places.
#[test]
fn a_writer_that_was_left_at_any_store_goes_on() {
    const PAGES: usize = 500;
    const BYTES: usize = 64 << 10;
    let mut random = Random(0x1ef7_0000_0000_0007);
    let mut region = region(BYTES);
    let mut book = book(&mut region);
    let mut books = Totals::new();
    let stores = std::rc::Rc::new(RefCell::new(Vec::<Vec<u8>>::new()));
    let mut left = 0;
    for round in 0..4000 {
        let op = match round % 500 {
            // Holes, so that leaves are joined and their blocks given back.
            400.. => Op::Unmap { at: random.below(PAGES as u64 - 16) as usize, n: 1 + random.below(16) as usize },
            _ => random_op(&mut random, PAGES, 40),
        };
        if round > 400 && round % 40 == 0 {
            let stores = stores.clone();
            WATCH.set(Some(Box::new(move |bytes| stores.borrow_mut().push(bytes.to_vec()))));
        }
        perform(&mut book, op, round, &mut books);
        WATCH.set(None);
        for bytes in stores.borrow_mut().drain(..) {
            let mut copy: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            // SAFETY: the vector outlives the book.
            let resumed = unsafe { VmaBook::resume(copy.as_mut_ptr().cast(), BYTES, BYTES, |_| true) };
            let mut resumed = resumed.expect("a map");
            let mut twin = Twin(pages_of(&bytes, PAGES).0);
            let mut own = twin.books();
            for later in 0..60 {
                // Splits until blocks are taken, then makes holes until blocks are given back.
                let at = random.below(PAGES as u64 - 24) as usize;
                let op = match later {
                    30.. => Op::Unmap { at, n: 24 },
                    _ => Op::Map { at, n: 1, page: random_page(&mut random), fixed: false },
                };
                assert_eq!(perform(&mut resumed, op, 9999, &mut own).lost, 0);
                twin.apply(op);
            }
            let (found, damaged) = pages_of(&bytes_of(&copy), PAGES);
            assert_eq!(damaged, 0, "after {op:?} was left");
            assert!(found == twin.0, "after {op:?} was left");
            left += 1;
        }
    }
    assert!(left > 800, "left {left} times");
    met(&["LeafSplit", "LeafJoined", "LeafRemoved"]);
}
