//! Compares two books line by line. Lines are matched by what survives a restart: a category by its name, a module by
//! its path, a caller by its category and its frames. A frame is compared as module + offset, because addresses change
//! and offsets in the same file don't.

use std::collections::BTreeMap;

use plimsoll_facts::units::Bytes;

use crate::books::{Before, Books, Caller, Figures};

/// A line before and after. If one side lacks the line, its figures are all zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FigureChange {
    pub before: Figures,
    pub after: Figures,
}

impl FigureChange {
    /// Growth of the live blocks, and of the mappings' resident part if it is known at both moments. Committed memory
    /// that nobody touched costs nothing, so it doesn't count.
    pub fn growth(&self, of: MappingFigure) -> i128 {
        let size = |f: &Figures| match of {
            MappingFigure::Resident => f.held().0,
            MappingFigure::Committed => f.live.0,
        };
        i128::from(size(&self.after)) - i128::from(size(&self.before))
    }

    pub fn has_blocks(&self) -> bool {
        self.before.live_count + self.after.live_count > 0 || self.before.live != self.after.live
    }

    pub fn is_none(&self, of: MappingFigure) -> bool {
        let same = |f: fn(&Figures) -> u64| f(&self.before) == f(&self.after);
        let blocks = same(|f| f.live.0) && same(|f| f.live_count);
        blocks && same(|f| f.committed.0) && same(|f| f.reserved.0) && self.growth(of) == 0
    }
}

/// The figure of the mappings that is known at both moments: their resident part, or only their committed part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MappingFigure {
    Resident,
    #[default]
    Committed,
}

impl MappingFigure {
    pub fn of(before: &Books, after: &Books) -> MappingFigure {
        if before.is_resident_known() && after.is_resident_known() {
            MappingFigure::Resident
        } else {
            MappingFigure::Committed
        }
    }
}

/// Heap that an attached tracker doesn't book, at both moments. It has blocks from before the attach, and blocks of
/// callers that kept a pointer to malloc from before the attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotBooked {
    pub before: Before,
    pub after: Before,
}

impl NotBooked {
    /// `None`: unknown for one of the moments.
    pub fn of(before: &Books, after: &Books) -> Option<NotBooked> {
        Some(NotBooked { before: before.before?, after: after.before? })
    }

    pub fn growth(&self) -> i128 {
        i128::from(self.after.live.0) - i128::from(self.before.live.0)
    }

    /// Bound of the growth's error.
    pub fn error(&self) -> Bytes {
        self.before.error + self.after.error
    }

    /// Whether it changed by more than its error.
    pub fn has_changed(&self) -> bool {
        self.growth().unsigned_abs() > u128::from(self.error().0)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Diff {
    pub known: MappingFigure,
    pub total: FigureChange,
    pub not_booked: Option<NotBooked>,
    /// In the order of `after`, then what only `before` had.
    pub categories: Vec<(String, FigureChange)>,
    pub modules: Vec<(String, FigureChange)>,
    /// A caller whose frames can be printed, and its change.
    pub callers: Vec<(Caller, FigureChange)>,
}

pub fn diff(before: &Books, after: &Books) -> Diff {
    let callers = pair(
        before.callers.iter().map(|c| (key(before, c), c.clone(), c.figures)),
        after.callers.iter().map(|c| (key(after, c), c.clone(), c.figures)),
    );
    let by_name = |books: &Books| -> Vec<(String, String, Figures)> {
        books.categories.iter().map(|c| (c.name.clone(), c.name.clone(), c.figures)).collect()
    };
    let by_path = |books: &Books| -> Vec<(String, String, Figures)> {
        books.modules.iter().map(|m| (m.path.clone(), m.path.clone(), m.figures)).collect()
    };
    Diff {
        known: MappingFigure::of(before, after),
        total: FigureChange { before: before.total, after: after.total },
        not_booked: NotBooked::of(before, after),
        categories: pair(by_name(before).into_iter(), by_name(after).into_iter()),
        modules: pair(by_path(before).into_iter(), by_path(after).into_iter()),
        callers,
    }
}

/// Category name, then module path and offset of each frame.
type Key = (String, Vec<(String, u64)>);

fn key(books: &Books, caller: &Caller) -> Key {
    let category = books.categories.get(caller.category).map(|c| c.name.clone()).unwrap_or_default();
    let frame = |f: &crate::books::Frame| match f.module.and_then(|i| books.modules.get(i)) {
        Some(module) => (module.path.clone(), f.offset),
        None => (String::new(), f.address.0),
    };
    (category, caller.frames.iter().map(frame).collect())
}

/// Pairs lines by key. Lines with the same key (a module loaded twice) become one line.
fn pair<K: Ord + Clone, T>(
    before: impl Iterator<Item = (K, T, Figures)>,
    after: impl Iterator<Item = (K, T, Figures)>,
) -> Vec<(T, FigureChange)> {
    let mut index: BTreeMap<K, usize> = BTreeMap::new();
    let mut lines: Vec<(T, FigureChange)> = Vec::new();
    for (key, what, figures) in after {
        let at = *index.entry(key).or_insert(lines.len());
        match lines.get_mut(at) {
            Some((_, change)) => change.after.add(&figures),
            None => lines.push((what, FigureChange { before: Figures::default(), after: figures })),
        }
    }
    for (key, what, figures) in before {
        let at = *index.entry(key).or_insert(lines.len());
        match lines.get_mut(at) {
            Some((_, change)) => change.before.add(&figures),
            None => lines.push((what, FigureChange { before: figures, after: Figures::default() })),
        }
    }
    lines
}
