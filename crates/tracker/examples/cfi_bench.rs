//! Cold rule lookups over a file's unwind tables, and walks with known rules. callgrind counts their instructions:
//!
//! ```sh
//! cargo build --release -p plimsoll-tracker --example cfi_bench
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect=cfi_bench::lookups \
//!     target/release/examples/cfi_bench /lib/x86_64-linux-gnu/libc.so.6 10000
//! ```
//! The total divided by the number of lookups is the figure; with `--toggle-collect=cfi_bench::walks`, by the number of
//! frames. The pcs are spread evenly over the code that the tables cover, so long functions weigh more than short ones.

#[path = "../tests/stack/image.rs"]
mod image;
#[path = "../../../fixtures/random.rs"]
mod random;

use std::hint::black_box;

use plimsoll_tracker::stack::rule::{Base, Cfa, SavedFp};
use plimsoll_tracker::stack::{Entry, Image, Read, Rule, Stack, Walker, rule_for};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "/lib/x86_64-linux-gnu/libc.so.6".to_owned());
    let n: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let module = image::Module::load(&path).expect("an ELF file with .eh_frame_hdr");

    // The copy lies at another address than the original. That is harmless: the tables contain only relative addresses.
    let at = module.bytes.as_ptr() as u64;
    // SAFETY: the module's bytes outlive the reads, and nothing writes to them.
    let memory = unsafe { Image::mapped(at, at + module.bytes.len() as u64) };
    let hdr = module.eh_frame_hdr - module.base + at;
    let mut random = random::Random(42);
    let mut pcs = Vec::new();
    while pcs.len() < n {
        let pc = at + random.below(module.bytes.len() as u64);
        if rule_for(memory, hdr, pc) != Rule::FRAME_POINTER {
            pcs.push(pc);
        }
    }
    let unknown = lookups(memory, hdr, &pcs);
    println!("{path}: {n} lookups, {unknown} unknown");

    // Frames of 64 bytes that save rbp as data, a thousand stacks of sixteen.
    let words: Vec<u64> = (0..16 * 8).map(|i| if i % 8 == 0 { 0x1000 + i } else { 0 }).collect();
    println!("{} frames walked", walks(&words, 1000));
}

#[inline(never)]
fn walks(words: &[u64], n: usize) -> usize {
    let start = words.as_ptr() as u64;
    let stack = start..start + 8 * words.len() as u64;
    // SAFETY: the vector outlives the walks.
    let memory = unsafe { Stack::new(stack.start, stack.end) };
    let walker = Walker { stack, through_jit: false, records: 0..0 };
    let frame = Rule::frame(Cfa { base: Base::Sp, offset: 64, deref: None }, SavedFp::Cfa(-16));
    let (mut frames, mut reads) = ([0; 16], [Read::default(); 48]);
    let mut walked = 0;
    for _ in 0..n {
        let entry = Entry { ra: words[0], sp: start, fp: 0 };
        walked += walker.walk(&memory, |_| black_box(Some(frame)), entry, &mut frames, &mut reads).frames;
    }
    walked
}

#[inline(never)]
fn lookups(memory: Image<'_>, hdr: u64, pcs: &[u64]) -> usize {
    pcs.iter().filter(|&&pc| rule_for(memory, hdr, pc) == Rule::UNKNOWN).count()
}
