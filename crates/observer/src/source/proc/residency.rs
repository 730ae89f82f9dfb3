//! Which pages are resident, from `/proc/PID/pagemap`: 8 bytes for each page of address space, bit 63 present, bit 62
//! swapped (Documentation/admin-guide/mm/pagemap.rst). Frame numbers need CAP_SYS_ADMIN; these two bits don't.
//!
//! One difference from smaps: a page that was only read is the shared zero page, which is present here but doesn't
//! count in Rss.

use crate::units::{AddressRange, Avma, Bytes};

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
pub(super) const ENTRY: usize = 8;

/// Runs of pages from entries of the page map, in address order.
#[derive(Default)]
pub(super) struct Found {
    pub runs: Vec<AddressRange>,
    pub swapped_pages: u64,
}

impl Found {
    pub fn entries(&mut self, first_page: u64, page: u64, bytes: &[u8]) {
        for (index, entry) in bytes.chunks_exact(ENTRY).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            if entry & SWAPPED != 0 {
                self.swapped_pages += 1;
            }
            if entry & PRESENT == 0 {
                continue;
            }
            let start = Avma((first_page + index as u64).saturating_mul(page));
            let end = start.offset(Bytes(page));
            match self.runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => self.runs.push(AddressRange { start, end }),
            }
        }
    }
}
