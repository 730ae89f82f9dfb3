//! Names the native objects that a walk of malloc counted: the library and the class whose table each begins with.
//!
//! ```text
//! block ──first word──▶ library's constant data ──.dynsym──▶ _ZTVN7rocksdb18ArenaWrappedDBIterE
//!                                                            LRUCache: capacity and use (rocksdb)
//! ```
//! Not found: blocks that begin with anything else (plain buffers, structures of C), and classes of a library that
//! hides its symbols. In that case the library is known, but not the class.

mod names;
mod rocksdb;

use names::symbols_at;
pub use rocksdb::block_cache;

use crate::source::other_heaps::timely;
use plimsoll_facts::snapshot::{Backing, BlockCache, NativeObjects, ObjectBlocks, ObjectClass, Vma};
use plimsoll_facts::units::{AddressRange, Avma};
use plimsoll_process::foreign::FileKind;
use plimsoll_process::proc::Target;

/// Mappings of libraries that aren't executable: these contain the tables of classes. The JDK's libraries are left out.
pub(crate) fn data_of_libraries(vmas: &[Vma]) -> Vec<AddressRange> {
    let jdk = vmas.iter().find_map(|vma| vma.name.strip_suffix("/lib/server/libjvm.so"));
    let is_library = |vma: &&Vma| {
        vma.backing == Backing::File
            && vma.readable
            && !vma.executable
            && !vma.shared
            && vma.name.rsplit('/').next().unwrap_or_default().contains(".so")
            && !jdk.is_some_and(|home| vma.name.starts_with(home))
    };
    let mut ranges: Vec<AddressRange> = vmas.iter().filter(is_library).map(|vma| vma.range).collect();
    ranges.sort_unstable();
    ranges
}

pub(crate) fn read(target: &Target, vmas: &[Vma], blocks: &[ObjectBlocks]) -> NativeObjects {
    let mut found = NativeObjects::default();
    let library_of = |word: Avma| vmas.iter().find(|vma| vma.range.contains(word));
    let mut libraries: Vec<&Vma> = blocks.iter().filter_map(|blocks| library_of(blocks.first_word)).collect();
    libraries.sort_unstable_by_key(|vma| (&vma.name, vma.range));
    libraries.dedup_by_key(|vma| &vma.name);
    let memory = timely(target).ok();
    for library in libraries {
        let own: Vec<(&ObjectBlocks, &Vma)> = blocks
            .iter()
            .filter_map(|blocks| Some((blocks, library_of(blocks.first_word)?)))
            .filter(|(_, vma)| vma.name == library.name)
            .collect();
        let offsets: Vec<u64> = own
            .iter()
            .map(|(blocks, vma)| vma.offset.saturating_add(blocks.first_word.0 - vma.range.start.0))
            .collect();
        let names = match target.mapped(library, FileKind::Object) {
            Ok(file) => symbols_at(&file.pieces(), &offsets),
            Err(_) => vec![String::new(); offsets.len()],
        };
        for ((blocks, _), symbol) in own.into_iter().zip(names) {
            if rocksdb::is_cache(&symbol) {
                let caches = blocks.some.iter().filter_map(|block| block_cache(memory.as_ref()?, *block));
                let cache = |(capacity, used)| BlockCache { library: library.name.clone(), capacity, used };
                found.caches.extend(caches.map(cache));
            }
            match found.classes.iter_mut().find(|class| class.library == library.name && class.symbol == symbol) {
                Some(class) => {
                    class.count = class.count.saturating_add(blocks.count);
                    class.resident += blocks.resident;
                }
                None => found.classes.push(ObjectClass {
                    library: library.name.clone(),
                    symbol,
                    count: blocks.count,
                    resident: blocks.resident,
                }),
            }
        }
    }
    found.classes.sort_by_key(|class| std::cmp::Reverse(class.resident));
    found
}
