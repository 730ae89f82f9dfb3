//! A VM's own structures, read from the memory of a process that only claims to be one.

use plimsoll_observer::parsers::{direct_buffers, heap, names, objects};

use crate::image::Image;

/// Address of the first static field; the input decides what is there. The other fields have small offsets.
const FIELDS: u64 = 0x1_0000;

pub fn run(bytes: &[u8]) {
    let image = Image::parse(bytes);
    let at = |n: u64| FIELDS + n * 8;
    let objects = objects::ObjectFields {
        oop_base: at(0),
        oop_shift: at(1),
        klass_base: at(2),
        klass_shift: at(3),
        z_globals: if bytes.len().is_multiple_of(2) { at(4) } else { 0 },
        z_load_shift: 8,
    };
    let is_version_8 = bytes.first().is_some_and(|byte| byte & 1 != 0);
    let direct_fields = direct_buffers::BufferFields {
        classes: match is_version_8 {
            true => direct_buffers::Classes::Below { object: at(5), first: 8, next: 24, loader: 32 },
            false => direct_buffers::Classes::OfLoaders { head: at(5), next_loader: 0, klasses: 16, next_klass: 8 },
        },
        loader_object: 8,
        klass_name: 0,
        klass_mirror: 16,
        symbol_length: 0,
        symbol_body: 6,
        mirror_size: at(6),
        objects,
    };
    if let Some(classes) = direct_buffers::find_classes(&image, &direct_fields) {
        direct_buffers::read(&image, &direct_fields, classes);
    }
    let heap_fields = heap::HeapFields {
        heap: at(7),
        reserved: 8,
        cards: match is_version_8 {
            true => heap::CardTable::OfHeap(24),
            false => heap::CardTable::OfBarriers { barrier_set: at(8), card_table: 8 },
        },
        whole_heap: 0,
        byte_map: 16,
        byte_map_size: 24,
    };
    let code_fields = heap::CodeFields { heap: at(7), memory: 8, low_boundary: 0, high_boundary: 8, low: 16, high: 24 };
    for region in heap::regions(&image, &heap_fields).into_iter().chain(heap::code(&image, &code_fields)) {
        assert!(region.range.start <= region.range.end);
    }
    let name_fields = names::ThreadFields {
        objects,
        list: at(9),
        length: 0,
        threads: 8,
        os_thread: 0,
        thread_id: 0,
        object: 8,
        string: at(10),
        layout: 8,
    };
    if let Some(threads) = names::threads(&image, &name_fields) {
        assert!(threads.iter().all(|thread| thread.name.len() <= 4096));
    }
}
