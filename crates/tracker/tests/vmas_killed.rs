//! A child books operations in a shared map while its parent executes it instruction by instruction. The parent reads
//! the map after each instruction: the state that a SIGKILL there would leave. So the test covers the compiler's order
//! of the stores.

use plimsoll_segment::vmap::{Attributes, MappingKind, VmaMap};
use plimsoll_tracker::account::vmas::{Placement, VmaBook};

const BYTES: usize = 32 << 10;
const PAGES: usize = 256;
const BASE: u64 = 0x7f00_0000_0000;

type Pages = Vec<u32>;

/// The `n`th operation on a map: a mixture that splits, joins and commits.
fn operate<G: FnMut(usize) -> bool>(book: &mut VmaBook<G>, n: u64) {
    let random = |salt: u64, below: u64| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (20 + salt * 7)) % below;
    let (at, bytes) = (BASE + random(0, 240) * 4096, (1 + random(1, 12)) * 4096);
    let prot = [0, 1, 3][random(2, 3) as usize];
    match random(3, 8) {
        0..=3 => {
            let new = Attributes::new(1 + random(4, 3) as u32, 1, MappingKind::Anonymous, prot, 0);
            book.map(at, bytes, new, Placement::Fixed, |_| ());
        }
        4 | 5 => drop(book.unmap(at, bytes, |_| (), |_| ())),
        _ => drop(book.protect(at, bytes, prot, 9, 0, |_| ())),
    }
}

/// A number for the state of each page; 0: not mapped.
fn read(bytes: &[u8]) -> Pages {
    let mut pages = vec![0; PAGES];
    let mut entries = VmaMap::new(bytes).expect("a map").entries();
    for vma in entries.by_ref() {
        let (first, a) = ((vma.start - BASE) as usize / 4096, vma.attributes());
        let state = 1 + a.prot() as u32 + 8 * a.reserve_caller() + 256 * a.commit_caller();
        pages[first..first + vma.bytes() as usize / 4096].fill(state);
    }
    assert_eq!(entries.damaged(), 0);
    pages
}

#[test]
fn killed_at_any_instruction_the_map_is_old_or_new() {
    const PREPARED: u64 = 250;
    let is_full = std::env::var_os("PLIMSOLL_TESTS").is_some_and(|tier| tier == "full");
    let stepped = if is_full { 40 } else { 15 };
    // SAFETY: a fresh shared mapping, which has one writer at a time: the parent's book before the fork, then the
    // child's while the parent only reads.
    let base = unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), BYTES, prot, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    let base = base.cast::<u8>();
    let copy = || {
        let mut bytes = vec![0; BYTES];
        // SAFETY: BYTES are mapped at `base`, and the child stands still.
        unsafe { std::ptr::copy_nonoverlapping(base, bytes.as_mut_ptr(), BYTES) };
        bytes
    };
    // SAFETY: the mapping above.
    let mut book = unsafe { VmaBook::create(base, BYTES, |_| true) }.expect("room");
    (0..PREPARED).for_each(|n| operate(&mut book, n));
    // The expected state after each operation, from a separate map.
    let mut own: Vec<u64> = copy().chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let bytes_of = |own: &[u64]| own.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    // SAFETY: the vector outlives the book.
    let mut beside = unsafe { VmaBook::resume(own.as_mut_ptr().cast(), BYTES, BYTES, |_| true) }.expect("the copy");
    let mut states = vec![read(&copy())];
    for n in PREPARED..PREPARED + stepped {
        operate(&mut beside, n);
        states.push(read(&bytes_of(&own)));
    }
    // SAFETY: the child only books (no allocation, no lock), stops itself and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain system calls.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                libc::_exit(2);
            }
            libc::raise(libc::SIGSTOP);
        }
        (PREPARED..PREPARED + stepped).for_each(|n| operate(&mut book, n));
        // SAFETY: as above.
        unsafe { libc::_exit(0) }
    }
    assert!(child > 0);
    let (mut status, mut seen, mut torn, mut steps) = (0, copy(), 0u32, 0u64);
    // SAFETY: waits for and steps the child that was just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    if libc::WIFEXITED(status) {
        // Fails: ptrace is forbidden here, so the test could observe nothing.
        panic!("ptrace is not permitted");
    }
    let begun = VmaMap::new(&seen).expect("a map").seq();
    while libc::WIFSTOPPED(status) {
        let now = copy();
        if now != seen {
            let map = VmaMap::new(&now).expect("a map");
            let done = ((map.seq() - begun) / 2) as usize;
            let pages = read(&now);
            let (old, new) = (&states[done], states.get(done + 1).unwrap_or(&states[done]));
            for page in 0..PAGES {
                assert!(pages[page] == old[page] || pages[page] == new[page], "page {page}, operation {done}");
            }
            if map.seq().is_multiple_of(2) {
                assert_eq!(&pages, old);
            }
            torn += (map.in_flight().is_some() && pages != *old) as u32;
            seen = now;
        }
        steps += 1;
        // SAFETY: as above.
        unsafe {
            libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0);
            libc::waitpid(child, &mut status, 0);
        }
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:x}");
    assert_eq!(read(&copy()), states[stepped as usize]);
    assert!(torn > 20 && steps > 10_000, "{torn} changes seen within operations, {steps} instructions");
    println!("{steps} instructions, {torn} changes within operations");
}
