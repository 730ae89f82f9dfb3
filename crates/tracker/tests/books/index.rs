//! segment/index.rs against a map, and how much memory few entries touch.

use crate::{Random, alone, touched};
use plimsoll_segment::Purpose;
use plimsoll_tracker::segment::index::Index;
use plimsoll_tracker::sys::os;
use std::collections::HashMap;

const CAPACITY: usize = 1 << 17;

/// Inserts the keys of a stream, as frames and callers do: a hash, and a key.
fn fill(index: &Index, twin: &mut HashMap<u64, u32>, keys: &mut Vec<u64>, stream: impl Iterator<Item = (u64, u64)>) {
    for (hash, key) in stream {
        let found = index.find(hash, keys.len(), |i| keys[i as usize] == key);
        match (found, twin.get(&key)) {
            (Ok(found), known) => assert_eq!(Some(&found), known),
            (Err(free), known) => {
                assert_eq!(known, None, "{key:#x} is lost");
                let number = keys.len() as u32;
                assert!(free.expect("a full section fits").put(number));
                keys.push(key);
                twin.insert(key, number);
            }
        }
    }
}

#[test]
fn an_index_finds_what_was_entered_until_its_section_is_full() {
    static INDEX: Index = Index::new(CAPACITY, &[10, 14, 17, 16], Purpose::FrameIndex);
    assert!(INDEX.init());
    let mut random = Random(5);
    // Number 0 means none; some keys share a hash.
    let (mut twin, mut keys) = (HashMap::new(), vec![u64::MAX]);
    let hash = |key: u64| (key >> 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    while keys.len() < CAPACITY {
        let key = random.below(keys.len() as u64 * 4);
        fill(&INDEX, &mut twin, &mut keys, std::iter::once((hash(key), key)));
    }
    let all = twin.clone();
    fill(&INDEX, &mut twin, &mut keys, all.into_keys().map(|key| (hash(key), key)));
    println!("exercised: {} keys", twin.len());
    assert_eq!(twin.len(), CAPACITY - 1);
}

#[test]
fn few_entries_touch_little_of_an_index() {
    alone(|| {
        static INDEX: Index = Index::new(1 << 20, &[11, 14, 17, 20, 18], Purpose::FrameIndex);
        assert!(INDEX.init());
        let resident = || {
            let mut sum = 0;
            os::each_mapping(|mapping| sum += touched(mapping));
            sum
        };
        let before = resident();
        let (mut random, mut twin, mut keys) = (Random(9), HashMap::new(), vec![u64::MAX]);
        let mut most = Vec::new();
        for entries in [1_000, 10_000, 80_000] {
            while keys.len() < entries {
                let key = random.next();
                fill(&INDEX, &mut twin, &mut keys, std::iter::once((key, key)));
            }
            most.push(resident() - before);
        }
        println!("exercised: {most:?} bytes");
        // Four bytes an entry would be 4, 40 and 320 KB.
        assert!(most[0] <= 12 << 10 && most[1] <= 76 << 10 && most[2] <= 600 << 10, "{most:?}");
    });
}
