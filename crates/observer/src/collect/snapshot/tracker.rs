//! The tracker's traces in a process: its segment, its own mappings, and the books of an attached one.

use std::path::PathBuf;

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{BookedCategory, OwnMapping, Vma};
use plimsoll_process::proc::{self, Target};
use plimsoll_tracked::books::{Booked, Books, Category};
use plimsoll_tracked::segment;

/// The segment of a tracked or detached process, which has it mapped.
pub(super) fn tracked(target: &Target, vmas: &[Vma]) -> Option<(PathBuf, segment::Life)> {
    has_segment(vmas)
        .then(|| segment::find_by_pid(target.pid(), target.deadline()))
        .flatten()
        .map(|(path, _, life)| (path, life))
}

fn has_segment(vmas: &[Vma]) -> bool {
    vmas.iter().any(|vma| vma.name.ends_with(".seg"))
}

/// The tracker's own mappings, and whether it was detached. `found` is its segment.
pub(super) fn own_mappings(
    target: &Target,
    vmas: &[Vma],
    found: Option<(PathBuf, segment::Life)>,
    gaps: &mut Vec<Gap>,
) -> (Vec<OwnMapping>, bool) {
    let read = match &found {
        Some((path, _)) => segment::own_mappings(path, target.deadline()),
        None if has_segment(vmas) => segment::refused(target.pid(), target.deadline()).map_or(Ok(Vec::new()), Err),
        None => Ok(Vec::new()),
    };
    let own = read.unwrap_or_else(|error| {
        gaps.push(unread_segment(
            target,
            &error,
            "the tracker's memory is in other-anonymous, and its books are unknown",
        ));
        Vec::new()
    });
    (own, found.is_some_and(|(_, life)| life == segment::Life::Detached))
}

pub(super) fn unread_segment(target: &Target, error: &segment::ReadError, effect: &str) -> Gap {
    let gap = Gap::new(Source::Segment, error.to_string(), effect);
    if error.is_of_contents() { gap } else { gap.remedy(proc::file_remedy(target.pid())) }
}

/// The books, if the tracker was attached to a running process. A segment that isn't found is reported by
/// `own_mappings`.
pub(super) fn attached_books(
    target: &Target,
    tracked: Option<&(PathBuf, segment::Life)>,
) -> Result<Option<Booked>, segment::ReadError> {
    let Some((path, _)) = tracked.filter(|(_, life)| *life == segment::Life::Live) else { return Ok(None) };
    if !segment::was_attached(path, target.deadline())? {
        return Ok(None);
    }
    Ok(books(target, tracked)?.map(|books| books.booked()))
}

/// The categories with live blocks. Empty if the tracker doesn't count, or its segment can't be read: then
/// `own_mappings` reports that.
pub(super) fn booked_categories(target: &Target, tracked: Option<&(PathBuf, segment::Life)>) -> Vec<BookedCategory> {
    let categories = books(target, tracked).ok().flatten().map(|books| books.categories).unwrap_or_default();
    let booked = |category: Category| BookedCategory {
        live: category.figures.live,
        live_count: category.figures.live_count,
        name: category.name,
    };
    categories.into_iter().filter(|category| category.figures.live_count > 0).map(booked).collect()
}

fn books(target: &Target, tracked: Option<&(PathBuf, segment::Life)>) -> Result<Option<Books>, segment::ReadError> {
    let Some((path, life)) = tracked.filter(|(_, life)| *life == segment::Life::Live) else { return Ok(None) };
    let segment = segment::read_books(path, target.deadline())?;
    Ok(Some(Books::without_frames(&segment, *life, segment.last_sign_ns())))
}
