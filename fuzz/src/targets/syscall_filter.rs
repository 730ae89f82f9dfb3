//! The tracked program's own system call filters, which the tracker copies and evaluates.
//! crates/tracker/tests/filter_kernel.rs compares the results with the kernel's.

use plimsoll_tracker::sys::filter::{Instruction, run as answer};

pub fn run(bytes: &[u8]) {
    let filter: Vec<Instruction> = bytes
        .chunks_exact(8)
        .take(4096)
        .map(|b| Instruction {
            code: u16::from_le_bytes([b[0], b[1]]),
            yes: b[2],
            no: b[3],
            k: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        })
        .collect();
    for number in [0, 28, u32::MAX] {
        let mut data = [number; 16];
        data[1] = 0xc000_003e;
        let first = answer(&filter, &data);
        assert_eq!(first, answer(&filter, &data), "two runs of a filter differ");
    }
}
