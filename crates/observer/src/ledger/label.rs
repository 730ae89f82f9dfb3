//! What a line is called on a screen. `other-allocator` may have the heaps of several allocators, so its label names
//! them. The id and the name in JSON stay.

use super::ownership::{GO_HEAP, PYTHON_FRAMES, PYTHON_POOLS};
use super::{Line, LineId};
use plimsoll_facts::snapshot::AllocatorKind;
use plimsoll_facts::units::Bytes;

/// Columns of the widest label. A table has this many for the name.
const WIDEST: usize = 26;

impl Line {
    /// The name of the line; for `other-allocator` its allocators, the largest first: `jemalloc`, `V8 + jemalloc`.
    pub fn label(&self) -> String {
        let resident = self.children.iter().filter(|child| child.resident > Bytes(0));
        label_of(self.id, resident.map(|child| child.name.as_str()))
    }
}

/// The label by the names of the line's children, largest first.
pub fn label_of<'n>(id: LineId, children: impl Iterator<Item = &'n str>) -> String {
    let mut label = String::new();
    for child in children.filter(|_| id == LineId::OtherAllocator) {
        let holder = holder(child);
        if label.split(" + ").any(|known| known == holder) {
            continue;
        }
        label += if label.is_empty() { "" } else { " + " };
        label += &holder;
        // A saved file may have any number of names.
        if label.chars().count() > WIDEST {
            return id.name().to_owned();
        }
    }
    if label.is_empty() { id.name().to_owned() } else { label }
}

/// The allocator that a child belongs to: the part of its name before the colon.
fn holder(child: &str) -> String {
    match child.split(": ").next().unwrap_or(child) {
        GO_HEAP => "Go".to_owned(),
        PYTHON_POOLS | PYTHON_FRAMES => "CPython".to_owned(),
        kind if kind == AllocatorKind::Go.to_string() => "Go".to_owned(),
        kind => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::child_of_heap;
    use plimsoll_facts::snapshot::HeapPart;

    #[test]
    fn the_line_is_called_by_its_allocators() {
        let of = |kind| child_of_heap(kind, HeapPart::Live);
        let label = |children: &[&str]| label_of(LineId::OtherAllocator, children.iter().copied());
        use AllocatorKind::{Jemalloc, Mimalloc, Musl, Tcmalloc, V8};
        for kind in [Jemalloc, Tcmalloc, Mimalloc, Musl, V8] {
            // Parts of a heap that was walked, and one that was not.
            let name = kind.to_string();
            assert_eq!(label(&[&of(kind), &child_of_heap(kind, HeapPart::Dirty), &name]), name);
        }
        assert_eq!(label(&[&of(AllocatorKind::Go), GO_HEAP, "Go's runtime"]), "Go");
        assert_eq!(label(&[PYTHON_POOLS, &of(Jemalloc)]), "CPython + jemalloc");
        // Too long for the table, or nothing known.
        assert_eq!(label(&[PYTHON_POOLS, &of(Tcmalloc), &of(Mimalloc)]), "other allocator");
        assert_eq!(label(&[]), "other allocator");
        assert_eq!(label_of(LineId::GlibcLive, ["thread arenas"].into_iter()), "glibc, live");
    }
}
