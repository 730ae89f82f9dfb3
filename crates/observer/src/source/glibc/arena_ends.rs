//! The end of a thread arena, which a trim can't release.
//!
//! `mtrim` first consolidates: a fastbin chunk joins its free neighbours, and joins top if it touches top. Then it
//! releases whole pages of binned chunks. After that only the main arena's top is cut (`systrim`). So in `binned | fast
//! | top`, all of it stays.

use std::collections::HashMap;

use super::lists::ListedChunk;
use super::walk::{FLAGS, FREE_CHUNK_FIELDS, PREV_INUSE, whole_pages};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PageStates};

/// Whole resident pages of those binned chunks of `heap` that consolidation joins to `top`. `fast` has the chunks in
/// the arena's fastbins.
pub(crate) fn joins_top<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    heap: AddressRange,
    top: u64,
    fast: &[ListedChunk],
) -> Bytes {
    let fast: HashMap<u64, u64> =
        fast.iter().map(|chunk| (chunk.at.0.wrapping_add(chunk.size.0), chunk.at.0)).collect();
    let mut joined = Bytes(0);
    let mut end = top;
    // A binned chunk that touched top would be part of it. So a fastbin chunk follows each of them, and the loop ends.
    while let Some(start) = fast.get(&end).copied().filter(|start| *start < end && heap.contains(Avma(*start))) {
        end = start;
        let Some(field) = memory.word(Avma(end + 8)) else { break };
        if field & PREV_INUSE != 0 {
            continue;
        }
        let before = memory.word(Avma(end)).and_then(|size| end.checked_sub(size & !FLAGS));
        let Some(binned) = before.filter(|start| *start < end && heap.contains(Avma(*start))) else { break };
        joined += whole_pages(pages, binned, end, FREE_CHUNK_FIELDS);
        end = binned;
    }
    joined
}
