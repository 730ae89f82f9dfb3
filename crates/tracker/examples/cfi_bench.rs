//! Cold rule lookups over a file's unwind tables, to be counted in instructions:
//!
//! ```sh
//! cargo build --release -p plimsoll-tracker --example cfi_bench
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*lookups*' \
//!     target/release/examples/cfi_bench /lib/x86_64-linux-gnu/libc.so.6 10000
//! ```
//! The total divided by the number of lookups is the figure. The pcs are spread evenly over the code that the tables
//! cover.

#[path = "../tests/stack/image.rs"]
mod image;
#[path = "../tests/stack/random.rs"]
mod random;

use plimsoll_tracker::stack::{Image, Rule, rule_for};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "/lib/x86_64-linux-gnu/libc.so.6".to_owned());
    let n: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let module = image::Module::load(&path).expect("an ELF file with .eh_frame_hdr");

    // The copy stands at its own address here: what the tables say is relative.
    let at = module.bytes.as_ptr() as u64;
    // SAFETY: the module's bytes: they outlive the reads, and nobody writes to them.
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
}

#[inline(never)]
fn lookups(memory: Image<'_>, hdr: u64, pcs: &[u64]) -> usize {
    pcs.iter().filter(|&&pc| rule_for(memory, hdr, pc) == Rule::UNKNOWN).count()
}
