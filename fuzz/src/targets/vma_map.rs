//! The tree of mappings in a segment, torn or invented.

use plimsoll_segment::vmap::{ADDRESS_END, VmaMap};

pub fn run(bytes: &[u8]) {
    let Ok(map) = VmaMap::new(bytes) else { return };
    map.in_flight();
    assert!(map.used() <= map.capacity().max(512));
    let (mut entries, mut reached, mut count) = (map.entries(), 0, 0usize);
    for vma in entries.by_ref() {
        assert!(reached <= vma.start && vma.start < vma.end && vma.end <= ADDRESS_END, "entries that overlap");
        vma.attributes().kind();
        (reached, count) = (vma.end, count + 1);
    }
    entries.damaged();
    assert!(count <= bytes.len(), "more entries than bytes");
}
