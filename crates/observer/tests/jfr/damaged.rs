//! Mutated recordings of JDKs: whatever they contain, reading ends, stays within its limits, and never panics.

use crate::damage::{Outcomes, Random, look_at};
use crate::foreign::{record, scratch};
use crate::processes::{is_full, jdks};

#[test]
fn mutated_recordings_are_read_within_limits() {
    let folder = scratch("mutated");
    let mut outcomes = Outcomes::default();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for jdk in jdks() {
        let file = folder.join(format!("{}.jfr", jdk.major));
        record(
            &jdk,
            &file,
            ",settings=none,jdk.NativeMemoryUsage#enabled=true,jdk.ThreadSleep#enabled=true",
            &[],
            &["30"],
        );
        let whole = std::fs::read(&file).expect("recorded");
        let number = |at: usize| u64::from_be_bytes(whole[at..at + 8].try_into().expect("8 bytes")) as usize;
        let (checkpoint, metadata) = (number(16), number(24));
        for round in 0..if is_full() { 300 } else { 100 } {
            let mut bytes = whole.clone();
            let range = match round % 5 {
                0 => 0..68,
                1 => metadata..metadata + 60,
                2 => checkpoint..bytes.len(),
                _ => 68..bytes.len(),
            };
            random.mutate(&mut bytes, range);
            look_at(&bytes, &mut outcomes);
        }
    }
    eprintln!("{outcomes:?}");
    assert!(outcomes.with_flaws > 50 && outcomes.events > 1000, "{outcomes:?}");
    let _ = std::fs::remove_dir_all(folder);
}
