//! The memory for the frames of Python functions (CPython 3.11 and later). Each thread has a list of chunks that the
//! interpreter maps (Python/pystate.c, `push_chunk`; `_PyStackChunk`, 64 bit):
//!
//! ```text
//!  0 previous chunk, or 0    8 size: 16 KiB × 2ⁿ    16 top, in words    24 the frames
//! ```
//!
//! The first word of the frames of a thread's first chunk stays 0. A frame begins with the address of its function or
//! code.
//!
//! The kernel joins a chunk's mapping with others, such as the allocator's arenas, so a chunk may begin at any page. At
//! the beginning of each mapping chunks are always found. Further up only a bounded number of pages is searched: a
//! process may have gigabytes of arrays.

use plimsoll_facts::snapshot::{Backing, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, word_at};

const LEAST: u64 = 16 << 10;
const WORD: u64 = 8;
/// Previous chunk, size, top, and two words of the frames.
const HEADER: usize = 5 * WORD as usize;
/// Maximum number of chunks: a process has one for each thread and 16 KiB of frames.
const MOST: usize = 1 << 17;
/// Limits of the touched pages that are read further up: 16 MiB of one mapping, 256 MiB of all.
const READS_OF_ONE: usize = 1 << 12;
const READS_OF_ALL: usize = 1 << 16;
/// Limit of pages whose state is looked up further up: 64 GiB.
const LOOKS: usize = 1 << 24;

/// The chunks of a process that runs CPython, in ascending order. `pools` aren't chunks.
pub(super) fn find<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    vmas: &[Vma],
    pools: &[AddressRange],
) -> Vec<AddressRange> {
    let could_hold = |vma: &&Vma| {
        let is_data = vma.readable && vma.writable && !vma.shared;
        vma.backing == Backing::Anonymous && is_data && vma.name.is_empty() && vma.rss.0 > 0
    };
    let mut found: Vec<AddressRange> = Vec::new();
    let (mut of_all, mut looks) = (READS_OF_ALL, LOOKS);
    for vma in vmas.iter().filter(could_hold) {
        let (mut rest, mut of_one) = (vma.range, READS_OF_ONE);
        while found.len() < MOST && rest.start < rest.end {
            if let Some(pool) = pool_at(pools, rest.start) {
                rest.start = pool.end;
                continue;
            }
            // An untouched page has no header, and reading it would make the kernel map it.
            let is_touched = pages.of(rest.start.0 / PAGE) == PageState::Present;
            if is_touched && let Some(size) = chunk(memory, vmas, rest) {
                found.push(AddressRange::sized(rest.start, size));
                rest.start = rest.start.offset(size);
                continue;
            }
            if looks == 0 || is_touched && (of_one == 0 || of_all == 0) {
                break;
            }
            looks -= 1;
            if is_touched {
                (of_one, of_all) = (of_one - 1, of_all - 1);
            }
            rest.start = rest.start.offset(Bytes(PAGE));
        }
    }
    found
}

fn pool_at(pools: &[AddressRange], address: Avma) -> Option<&AddressRange> {
    let after = pools.partition_point(|pool| pool.start <= address);
    pools[..after].last().filter(|pool| pool.contains(address))
}

/// The size of the chunk with which the memory begins.
fn chunk(memory: &impl Memory, vmas: &[Vma], within: AddressRange) -> Option<Bytes> {
    let mut header = [0; HEADER];
    if within.length().0 < LEAST || !memory.read(within.start, &mut header) {
        return None;
    }
    let word = |index: usize| word_at(&header, index * WORD as usize);
    let (previous, size, top) = (word(0)?, word(1)?, word(2)?);
    let frame = match previous {
        0 if word(3)? != 0 => return None,
        0 => word(4)?,
        _ => word(3)?,
    };
    let is_size = size.is_power_of_two() && (LEAST..=within.length().0).contains(&size);
    let is_object = frame.is_multiple_of(WORD) && is_readable(vmas, frame);
    (is_size && is_object && top <= size / WORD && previous.is_multiple_of(PAGE)).then_some(Bytes(size))
}

fn is_readable(vmas: &[Vma], address: u64) -> bool {
    let after = vmas.partition_point(|vma| vma.range.start.0 <= address);
    vmas[..after].last().is_some_and(|vma| vma.readable && vma.range.contains(Avma(address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x7f00_0010_0000;

    struct Image(Vec<u64>);

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            let from = ((at.0 - START) / WORD) as usize;
            let words = self.0.get(from..from + into.len() / 8);
            words.is_some_and(|words| {
                into.chunks_exact_mut(8)
                    .zip(words)
                    .for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
                true
            })
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(1 << 63);
            true
        }
    }

    fn vmas(lengths: &[u64]) -> Vec<Vma> {
        let mut at = START;
        let vma = |length: &u64| {
            let range = AddressRange::sized(Avma(at), Bytes(*length));
            at += length;
            Vma { range, readable: true, writable: true, rss: Bytes(PAGE), ..Vma::default() }
        };
        lengths.iter().map(vma).collect()
    }

    fn image(chunks: &[(u64, &[u64])], length: u64) -> Image {
        let mut words = vec![0; (length / WORD) as usize];
        for (at, header) in chunks {
            let at = (at / WORD) as usize;
            words[at..at + header.len()].copy_from_slice(header);
        }
        Image(words)
    }

    fn found(image: &Image, vmas: &[Vma], pools: &[AddressRange]) -> Vec<(u64, u64)> {
        let found = find(image, &mut PageStates::new(image), vmas, pools);
        found.iter().map(|range| (range.start.0 - START, range.length().0)).collect()
    }

    const FIRST: [u64; 5] = [0, LEAST, 0, 0, START + 64];

    #[test]
    fn chunks_are_found_among_other_memory() {
        let second = [START, 2 * LEAST, 12, START + 72, 7];
        // Three mappings: two threads' chunks and other memory; a chunk with its successor; a pool, a page, and a
        // chunk.
        let lengths = [3 * LEAST, 3 * LEAST, 2 * LEAST + PAGE];
        let chunks = [
            (0, &FIRST[..]),
            (LEAST, &FIRST),
            (3 * LEAST, &FIRST),
            (4 * LEAST, &second),
            // This one lies in a pool, so it is an object.
            (6 * LEAST, &FIRST),
            (7 * LEAST + PAGE, &FIRST),
        ];
        let image = image(&chunks, 8 * LEAST + PAGE);
        let pools = [AddressRange::sized(Avma(START + 6 * LEAST), Bytes(LEAST))];
        let expected =
            [(0, LEAST), (LEAST, LEAST), (3 * LEAST, LEAST), (4 * LEAST, 2 * LEAST), (7 * LEAST + PAGE, LEAST)];
        assert_eq!(found(&image, &vmas(&lengths), &pools), expected);
    }

    #[test]
    fn the_search_ends_but_finds_what_begins_a_mapping() {
        let length = (READS_OF_ONE as u64 + 2) * PAGE;
        let mappings = READS_OF_ALL / READS_OF_ONE + 2;
        let last = (mappings as u64 - 1) * length;
        let chunks = [(READS_OF_ONE as u64 / 2 * PAGE, &FIRST[..]), (last, &FIRST), (last + 2 * LEAST, &FIRST)];
        let image = image(&chunks, mappings as u64 * length);
        let expected = [(READS_OF_ONE as u64 / 2 * PAGE, LEAST), (last, LEAST)];
        assert_eq!(found(&image, &vmas(&vec![length; mappings]), &[]), expected);
    }

    #[test]
    fn other_memory_is_no_chunk() {
        let wrong = |index: usize, word: u64| {
            let mut header = FIRST;
            header[index] = word;
            header
        };
        let others = [
            wrong(0, 1),
            wrong(1, 0),
            wrong(1, LEAST / 2),
            wrong(1, 3 * LEAST),
            wrong(1, 4 * LEAST),
            wrong(2, LEAST / WORD + 1),
            wrong(3, 8),
            wrong(4, 0),
            wrong(4, START + 65),
            wrong(4, START - 8),
        ];
        let vmas = vmas(&[2 * LEAST]);
        assert_eq!(found(&image(&[(0, &FIRST)], 2 * LEAST), &vmas, &[]), [(0, LEAST)]);
        for header in others {
            assert_eq!(found(&image(&[(0, &header)], 2 * LEAST), &vmas, &[]), [], "{header:?}");
        }
    }
}
