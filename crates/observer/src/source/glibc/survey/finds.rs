//! Collects what a walk finds out about chunks in use, in addition to their sums.

use crate::source::glibc::layout::CHUNK_HEADER;
use crate::source::glibc::native_objects::Objects;
use crate::source::glibc::nmt_headers::Tagged;
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageStates, word_at};

/// Limit of candidates for thread caches: a program may have many other chunks of the same size, full of zeros and
/// addresses.
pub(super) const MOST_CANDIDATES: usize = 200_000;

/// What the walk collects about chunks in use.
#[derive(Default)]
pub(super) struct Finds {
    /// Chunks with the size of a thread's cache.
    pub(super) caches: Vec<(Avma, u64)>,
    /// Sums of blocks with NMT's headers, if requested.
    pub(super) tagged: Option<Tagged>,
    /// Blocks by their first word, if requested.
    pub(super) objects: Option<Objects>,
}

impl Finds {
    /// Nothing yet, for an attempt that may have to be repeated.
    pub(super) fn empty(&self) -> Finds {
        Finds {
            caches: Vec::new(),
            tagged: self.tagged.as_ref().map(Tagged::empty),
            objects: self.objects.as_ref().map(Objects::empty),
        }
    }

    /// Adds the results of the attempt that counts.
    pub(super) fn merge(&mut self, attempt: Finds) {
        let room = MOST_CANDIDATES.saturating_sub(self.caches.len());
        self.caches.extend(attempt.caches.into_iter().take(room));
        if let (Some(tagged), Some(more)) = (&mut self.tagged, attempt.tagged) {
            tagged.merge(more);
        }
        if let (Some(objects), Some(more)) = (&mut self.objects, attempt.objects) {
            objects.merge(more);
        }
    }

    pub(super) fn wants_first_bytes(&self) -> bool {
        self.tagged.is_some() || self.objects.is_some()
    }

    pub(super) fn add<M: Memory>(
        &mut self,
        first_bytes: &[u8; 16],
        chunk: AddressRange,
        mmapped: bool,
        pages: &mut PageStates<'_, M>,
    ) {
        if let Some(tagged) = &mut self.tagged {
            tagged.add(first_bytes, chunk.start, chunk.length().0, mmapped, pages);
        }
        if let Some(objects) = &mut self.objects {
            let first_word = word_at(first_bytes, 0).unwrap_or_default();
            objects.add(first_word, AddressRange::new(chunk.start.offset(Bytes(CHUNK_HEADER)), chunk.end), || {
                resident(pages, chunk)
            });
        }
    }
}

/// Resident bytes of a chunk in use. Its header was read, so a chunk of less than a page counts as resident.
pub(super) fn resident<M: Memory>(pages: &mut PageStates<'_, M>, chunk: AddressRange) -> Bytes {
    if chunk.length() < Bytes(PAGE) { chunk.length() } else { pages.resident(chunk) }
}
