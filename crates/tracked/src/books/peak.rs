//! Peaks: of the total, and their composition.

use super::{Books, Clock, Figures};
use crate::segment::Segment;
use plimsoll_facts::units::Bytes;

/// The central figures lag behind the rows by the drift. A peak below the live bytes is such a lag, except for the part
/// by which the live bytes may be too high.
pub(super) fn at_least_live(figures: &mut Figures, live_error: Bytes) {
    if figures.peak < figures.live - live_error {
        // Both figures of the pair now belong to the same moment, the present.
        let live = figures.live - live_error;
        (figures.peak, figures.count_at_peak, figures.peak_time_ns) = (live, figures.live_count, None);
    }
    figures.peak_reserved = figures.peak_reserved.max(figures.reserved);
    figures.peak_committed = figures.peak_committed.max(figures.committed);
}

/// Totals = Σ categories. The total's own peak is the one that the tracker recorded.
pub(super) fn book(books: &mut Books, segment: &Segment, clock: &Clock) {
    let (head, live_error) = (&segment.head, Bytes(segment.rows_skew));
    let mut total = Figures {
        peak: Bytes(head.peak_bytes),
        count_at_peak: head.count_at_peak,
        peak_time_ns: (head.peak_ns != 0).then(|| clock.real(head.peak_ns)),
        ..Figures::default()
    };
    let (mut reserved, mut committed) = (Bytes(0), Bytes(0));
    for category in &mut books.categories {
        at_least_live(&mut category.figures, live_error);
        total.add(&category.figures);
        // The header has no peaks for thread stacks, libraries and own cost, so their present size is used: a lower
        // bound.
        reserved += category.figures.peak_reserved;
        committed += category.figures.peak_committed;
    }
    total.peak_reserved = Bytes(head.peak_reserved_bytes).min(reserved);
    total.peak_committed = Bytes(head.peak_committed_bytes).min(committed);
    at_least_live(&mut total, live_error);
    books.total = total;
    // A row may withhold at most the bound from the central figures, and at most what it ever allocated.
    let bound = segment.counter("drift_bound");
    let withheld: Bytes = segment.rows.iter().map(|row| Bytes(bound.min(row.alloc_bytes))).sum();
    books.peak_error = Bytes(withheld.0.saturating_add(segment.counter("drift_unreported")));
}
