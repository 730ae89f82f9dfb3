//! Finds the tracker's own memory by address: the segment, the library, and what the library has mapped.

use crate::segment::LASTING;
use crate::sys::{elf, os};
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::FILE_BYTES;

/// Visits the parts of a mapping that aren't the tracker's. The kernel joins equal neighbours, so a line of
/// /proc/self/maps may have mappings of both.
pub fn each_part_of_program(mapping: Range<usize>, visit: &mut impl FnMut(Range<usize>)) {
    let mut at = mapping.start;
    while at < mapping.end {
        let own = own_from(at).unwrap_or(mapping.end..mapping.end);
        let end = own.start.min(mapping.end);
        if at < end {
            visit(at..end);
        }
        at = own.end;
    }
}

/// The first memory of the tracker that ends behind an address.
pub fn own_from(at: usize) -> Option<Range<usize>> {
    let segment = LASTING.load(Relaxed);
    let mut first: Option<Range<usize>> = None;
    let mut consider = |range: Range<usize>| {
        if range.end > at && !range.is_empty() && first.as_ref().is_none_or(|f| range.start < f.start) {
            first = Some(range);
        }
    };
    if segment != 0 {
        consider(segment..segment + FILE_BYTES);
    }
    consider(elf::own_extent());
    os::each_mapping(|m| {
        // A piece that begins inside a page belongs to a pool, which is listed itself.
        if m.start.is_multiple_of(4096) {
            consider(m.start..m.start + m.bytes.next_multiple_of(4096));
        }
    });
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use plimsoll_segment::Purpose;

    /// munlock(2) rounds to pages. A range that isn't whole pages would unlock the page behind a pool, which may be the
    /// program's.
    #[test]
    fn the_trackers_memory_is_whole_pages_of_its_own_mappings() {
        let piece = || os::table(64, Purpose::SideTable).expect("memory") as usize;
        let pool = |piece: usize| piece >> 23;
        let mut pieces = vec![piece()];
        // The last piece of a pool lies in the pool's last page.
        while pool(pieces[0]) == pool(pieces[pieces.len() - 1]) {
            pieces.push(piece());
        }
        let (mut ranges, mut at) = (vec![], 0);
        while let Some(own) = own_from(at) {
            at = own.end;
            ranges.push(own);
        }
        println!("exercised: {} pieces, {} ranges", pieces.len(), ranges.len());
        assert!(pieces.iter().step_by(100).all(|piece| ranges.iter().any(|own| own.contains(piece))));
        let mut mappings = vec![elf::own_extent(), Segment::mapped().map_or(0..0, |s| s.base()..s.base() + FILE_BYTES)];
        os::each_mapping(|m| mappings.push(m.start..m.start + m.bytes));
        for own in &ranges {
            assert!(own.start.is_multiple_of(4096) && own.end.is_multiple_of(4096), "{own:x?}");
            assert!(mappings.iter().any(|m| m.start <= own.start && own.end <= m.end), "{own:x?}");
        }
    }
}
