//! A VM's own structures, read from the memory of a process that only claims to be one.

use plimsoll_observer::parsers::{direct, heap, names, objects};

use crate::image::Image;

/// Addresses of the static fields, and small offsets of the others: the input decides what is there.
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
    let direct_fields = direct::BufferFields {
        loaders: at(5),
        loader_next: 0,
        loader_object: 8,
        loader_klasses: 16,
        klass_name: 0,
        klass_next: 8,
        klass_mirror: 16,
        symbol_length: 0,
        symbol_body: 6,
        mirror_size: at(6),
        objects,
    };
    if let Some(place) = direct::place(&image, &direct_fields) {
        direct::direct_buffers(&image, &direct_fields, place);
    }
    let heap_fields = heap::HeapFields {
        heap: at(7),
        reserved: 8,
        barrier_set: at(8),
        card_table: 8,
        whole_heap: 0,
        byte_map: 16,
        byte_map_size: 24,
    };
    for region in heap::regions(&image, &heap_fields) {
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
