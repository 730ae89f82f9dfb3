//! The parts of the main arena: the brk heap, its continuations, and the piece with top where brk can't grow.

use super::finds::Finds;
use super::pieces::{BYTES_OF_ATTEMPTS, Walked, walk_piece};
use crate::source::glibc::layout::ALIGN;
use crate::source::glibc::parameters::MallocParameters;
use crate::source::glibc::walk::{ArenaEnd, walk};
use plimsoll_facts::snapshot::Vma;
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, word_at};

/// How far to search for the continuation of the brk heap after another user of sbrk.
const FOREIGN_BRK_AT_MOST: u64 = 4 << 20;

/// Limit of addresses that are tried as the start of such a piece, and of such pieces. A hostile program's brk may have
/// a start at every address and a fencepost behind every chunk.
const MOST_STARTS: usize = 1 << 16;
const MOST_PIECES: usize = 1 << 12;

/// The brk heap, its continuations after other users of sbrk, and the mmapped piece with top if brk can't grow.
#[allow(clippy::too_many_arguments, reason = "a step of one function, with all that it has at hand")]
pub(super) fn main_pieces<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    top: Avma,
    system: Bytes,
    vmas: &[Vma],
    brk: Option<AddressRange>,
    parameters: MallocParameters,
    finds: &mut Finds,
) -> Walked {
    let Walked { mut pieces, mut sizes, mut failed_bytes, .. } = Walked::default();
    if system.0 == 0 {
        return Walked { whole: true, ..Walked::default() };
    }
    let mut foreign = Bytes(0);
    if let Some(brk) = brk {
        let start = if brk.contains(parameters.sbrk_base) { parameters.sbrk_base } else { brk.start };
        let (mut at, mut searched_from, mut starts) = (start, start, 0);
        // After a piece that ends at a fencepost, the heap may continue after memory that another user took from brk.
        while starts < MOST_STARTS
            && pieces.len() < MOST_PIECES
            && failed_bytes <= BYTES_OF_ATTEMPTS
            && let Some(first) = continuation(memory, pages, at, searched_from, brk.end, pieces.is_empty())
        {
            if !pieces.is_empty()
                && let Err(passed) = probe(memory, pages, first, brk.end, top)
            {
                starts += 1;
                failed_bytes += passed;
                at = first.offset(Bytes(ALIGN));
                continue;
            }
            let within = AddressRange::new(first, brk.end);
            let mut piece = walk_piece(memory, pages, within, first, top, finds, &mut sizes);
            if pieces.is_empty() {
                piece.sums.overhead += Bytes(first.0 - start.0);
                piece.range.start = start;
            } else {
                foreign += Bytes(first.0 - searched_from.0);
            }
            at = piece.range.end;
            searched_from = at;
            let last = piece.range.contains(top) || !piece.whole;
            pieces.push(piece);
            if last {
                break;
            }
        }
    }
    if !pieces.iter().any(|piece| piece.range.contains(top)) {
        let holder = vmas.iter().find(|vma| vma.range.contains(top) && vma.writable && !vma.shared);
        if let Some(vma) = holder {
            let begin = pieces.last().filter(|piece| vma.range.contains(piece.range.end)).map(|piece| piece.range.end);
            let mut start = begin.unwrap_or(vma.range.start).0.next_multiple_of(PAGE);
            for _ in 0..MOST_STARTS {
                if start > top.0 || failed_bytes > BYTES_OF_ATTEMPTS {
                    break;
                }
                // Most pages aren't a start, and a walk from each of them would read much. So the first header decides.
                if could_begin(memory, start, vma.range.end) {
                    match probe(memory, pages, Avma(start), vma.range.end, top) {
                        Ok(()) => {
                            let range = AddressRange::new(Avma(start), vma.range.end);
                            pieces.push(walk_piece(memory, pages, range, range.start, top, finds, &mut sizes));
                            break;
                        }
                        Err(passed) => failed_bytes += passed,
                    }
                }
                start += PAGE;
            }
        }
    }
    let covered: Bytes = pieces.iter().map(|piece| piece.range.length()).sum();
    // sysmalloc counts what another user took from brk as the arena's own, if the heap continues behind it.
    let adds_up = (covered == system || covered + foreign == system) && pieces.iter().any(|p| p.range.contains(top));
    // The bytes that a failed walk passed may be a piece that changed meanwhile.
    let whole = adds_up && (covered == system || failed_bytes == Bytes(0));
    Walked { pieces, sizes, whole, adds_up, failed_bytes, reserved: Bytes(0) }
}

/// Walks from an address that may be the start of a piece, and keeps nothing. An error has the number of bytes that the
/// walk passed before it failed.
fn probe<M: Memory>(memory: &M, pages: &mut PageStates<'_, M>, first: Avma, end: Avma, top: Avma) -> Result<(), Bytes> {
    match walk(memory, pages, first, end, top, |_, _| {}) {
        // Reading the first header costs a page at least.
        (sums, ArenaEnd::Broken(_)) => Err((sums.inuse + sums.binned).max(Bytes(PAGE))),
        _ => Ok(()),
    }
}

/// The first address from `at` on where a chunk without predecessor could begin. At the heap's start, it is the first
/// aligned address; after a foreign piece, which begins at `from`, this searches for it.
fn continuation<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    at: Avma,
    from: Avma,
    end: Avma,
    at_start: bool,
) -> Option<Avma> {
    let mut at = at.0.next_multiple_of(ALIGN);
    if at_start {
        return (at < end.0).then_some(Avma(at));
    }
    let stop = end.0.min(from.0.saturating_add(FOREIGN_BRK_AT_MOST));
    let mut bytes = [0; PAGE as usize];
    while at + 32 <= stop {
        let next = (at / PAGE + 1) * PAGE;
        let length = (next.min(stop) - at) as usize;
        // An untouched page has no header.
        if pages.of(at / PAGE) != PageState::Absent && memory.read(Avma(at), &mut bytes[..length]) {
            let begins = |offset: &usize| {
                let field = word_at(&bytes[..length], offset + 8);
                field.is_some_and(|field| is_first(field, at + *offset as u64, end))
            };
            if let Some(offset) = (0..length).step_by(ALIGN as usize).find(begins) {
                return Some(Avma(at + offset as u64));
            }
        }
        at = next;
    }
    None
}

/// Whether the first chunk of a piece could start at `at`: no free chunk precedes it, and it fits.
fn could_begin(memory: &impl Memory, at: u64, end: Avma) -> bool {
    memory.word(Avma(at.saturating_add(8))).is_some_and(|field| is_first(field, at, end))
}

/// Whether this is the size field of such a chunk at `at`.
fn is_first(field: u64, at: u64, end: Avma) -> bool {
    let size = field & !7;
    field & 7 == 1 && size >= 32 && size.is_multiple_of(ALIGN) && at.saturating_add(size) <= end.0
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const BASE: u64 = 0x5000_0000_0000;

    /// A brk heap of these bytes, all of it present; counts the bytes that are read, and the reads.
    struct Brk(Vec<u8>, Cell<u64>, Cell<u64>);

    impl Brk {
        /// Its first chunk has 32 bytes, and a fencepost after it. `words` gives the other words, by their offset.
        fn new(words: impl Fn(u64) -> u64) -> Brk {
            let word = |at: u64| match at {
                8 => 0x21,
                40 => 0x11,
                _ => words(at),
            };
            Brk((0..1 << 20).step_by(8).flat_map(|at| word(at).to_le_bytes()).collect(), Cell::new(0), Cell::new(0))
        }

        fn walk(&self) -> Walked {
            self.walk_to(self.0.len() as u64)
        }

        /// The arena's top is at this offset.
        fn walk_to(&self, top: u64) -> Walked {
            let range = AddressRange::sized(Avma(BASE), Bytes(self.0.len() as u64));
            let top = Avma(BASE + top);
            let parameters = MallocParameters { sbrk_base: range.start, ..MallocParameters::default() };
            let mut pages = PageStates::new(self);
            main_pieces(self, &mut pages, top, range.length(), &[], Some(range), parameters, &mut Finds::default())
        }
    }

    impl Memory for Brk {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            self.1.set(self.1.get() + into.len() as u64);
            self.2.set(self.2.get() + 1);
            let from = at.0.wrapping_sub(BASE) as usize;
            let found = from.checked_add(into.len()).and_then(|end| self.0.get(from..end));
            found.map(|found| into.copy_from_slice(found)).is_some()
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(1 << 63);
            true
        }
    }

    /// Each piece with its own counters of sizes would cost 128 KiB.
    #[test]
    fn a_brk_heap_of_nothing_but_short_pieces_is_walked_in_part() {
        let memory = Brk::new(|at| match at % 64 {
            8 => 0x21,
            40 => 0x11,
            _ => 0,
        });
        let walked = memory.walk();
        assert_eq!((walked.pieces.len(), walked.whole), (MOST_PIECES, false));
        assert!(walked.pieces.iter().all(|piece| piece.whole && piece.range.length() == Bytes(64)));
    }

    /// A walk from each address leads to the end of the heap, and finds no piece.
    #[test]
    fn a_brk_heap_with_a_start_at_every_address_is_given_up() {
        let memory = Brk::new(|_| 0x401);
        let walked = memory.walk();
        assert_eq!((walked.pieces.len(), walked.whole), (1, false));
        assert!(walked.failed_bytes > BYTES_OF_ATTEMPTS);
        assert!(memory.1.get() < 2 * BYTES_OF_ATTEMPTS.0, "{} bytes", memory.1.get());
    }

    /// A library has taken memory from brk itself.
    #[test]
    fn a_brk_heap_continues_behind_the_memory_of_another_user() {
        let at = 200 << 10;
        let memory = Brk::new(|offset| match offset {
            // A start that leads nowhere, and then the second piece.
            200 => 0x31,
            _ if offset == at + 8 => 0x101,
            _ if offset == at + 0x108 => 0x11,
            _ => 0,
        });
        let walked = memory.walk();
        let pieces: Vec<AddressRange> = walked.pieces.iter().map(|piece| piece.range).collect();
        let second = AddressRange::sized(Avma(BASE + at), Bytes(0x120));
        assert_eq!(pieces, [AddressRange::sized(Avma(BASE), Bytes(64)), second]);
        assert_eq!(walked.failed_bytes, Bytes(PAGE));
    }

    /// sysmalloc adds that memory to the arena's system_mem.
    #[test]
    fn a_brk_heap_with_the_memory_of_another_user_is_whole() {
        let at = 200 << 10;
        let heap = |foreign: u64| {
            let top = at + 0x100;
            Brk::new(move |offset| match offset {
                200 => foreign,
                _ if offset == at + 8 => 0x101,
                _ if offset == top + 8 => ((1 << 20) - top) | 1,
                _ => 0,
            })
        };
        let clean = heap(0);
        let walked = clean.walk_to(at + 0x100);
        assert_eq!((walked.pieces.len(), walked.whole, walked.failed_bytes), (2, true, Bytes(0)));
        assert!(clean.2.get() < 100, "{} reads", clean.2.get());
        // A start that leads nowhere may be a piece that changed meanwhile.
        let walked = heap(0x31).walk_to(at + 0x100);
        assert_eq!((walked.pieces.len(), walked.whole, walked.adds_up), (2, false, true));
    }
}
