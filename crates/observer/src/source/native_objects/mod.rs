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

use std::collections::{BTreeMap, HashMap};

use names::symbols_at;
pub use rocksdb::block_cache;

use crate::source::other_heaps::timely;
use plimsoll_facts::snapshot::{Backing, BlockCache, NativeObjects, ObjectBlocks, ObjectClass, Vma, folder_of_jdk};
use plimsoll_facts::units::AddressRange;
use plimsoll_process::foreign::FileKind;
use plimsoll_process::proc::Target;

/// Mappings of libraries that aren't executable: these contain the tables of classes. The JDK's libraries are left out.
pub(crate) fn data_of_libraries(vmas: &[Vma]) -> Vec<AddressRange> {
    let jdk = folder_of_jdk(vmas);
    let is_library = |vma: &&Vma| {
        vma.backing == Backing::File
            && vma.readable
            && !vma.executable
            && !vma.shared
            && vma.name.rsplit('/').next().unwrap_or_default().contains(".so")
            && !jdk.is_some_and(|folder| vma.name.starts_with(folder))
    };
    let mut ranges: Vec<AddressRange> = vmas.iter().filter(is_library).map(|vma| vma.range).collect();
    ranges.sort_unstable();
    ranges
}

pub(crate) fn read(target: &Target, vmas: &[Vma], blocks: &[ObjectBlocks]) -> NativeObjects {
    let mut found = NativeObjects::default();
    let memory = timely(target).ok();
    // After the target's deadline, no library is opened, and so no more symbols are looked up.
    for (name, own) in by_library(vmas, blocks) {
        let Some(library) = own.iter().map(|(_, vma)| *vma).min_by_key(|vma| vma.range) else { continue };
        let offsets: Vec<u64> = own
            .iter()
            .map(|(blocks, vma)| vma.offset.saturating_add(blocks.first_word.0 - vma.range.start.0))
            .collect();
        let names = match target.mapped(library, FileKind::Object) {
            Ok(file) => symbols_at(&file.pieces(), &offsets),
            Err(_) => vec![String::new(); offsets.len()],
        };
        let mut class_of: HashMap<String, usize> = HashMap::new();
        for ((blocks, _), symbol) in own.into_iter().zip(names) {
            if rocksdb::is_cache(&symbol) {
                let caches = blocks.some.iter().filter_map(|block| block_cache(memory.as_ref()?, *block));
                let cache = |(capacity, used)| BlockCache { library: name.to_owned(), capacity, used };
                found.caches.extend(caches.map(cache));
            }
            let index = *class_of.entry(symbol).or_insert_with_key(|symbol| {
                let (library, symbol) = (name.to_owned(), symbol.clone());
                found.classes.push(ObjectClass { library, symbol, ..ObjectClass::default() });
                found.classes.len() - 1
            });
            let class = &mut found.classes[index];
            class.count = class.count.saturating_add(blocks.count);
            class.resident += blocks.resident;
        }
    }
    found.classes.sort_by_key(|class| std::cmp::Reverse(class.resident));
    found
}

/// The blocks by the path of the library in which their first word lies. A process may have 65,000 of each.
fn by_library<'a>(vmas: &'a [Vma], blocks: &'a [ObjectBlocks]) -> BTreeMap<&'a str, Vec<(&'a ObjectBlocks, &'a Vma)>> {
    let mut sorted: Vec<&Vma> = vmas.iter().collect();
    sorted.sort_unstable_by_key(|vma| vma.range.start);
    let mut all: BTreeMap<&str, Vec<(&ObjectBlocks, &Vma)>> = BTreeMap::new();
    for blocks in blocks {
        let before = sorted.partition_point(|vma| vma.range.start <= blocks.first_word).checked_sub(1);
        if let Some(vma) = before.map(|at| sorted[at]).filter(|vma| vma.range.contains(blocks.first_word)) {
            all.entry(&vma.name).or_default().push((blocks, vma));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::units::Avma;

    #[test]
    fn the_jdks_libraries_are_found_in_each_layout() {
        for (libjvm, folder) in [
            (
                "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
                Some("/usr/lib/jvm/java-17-openjdk-amd64/lib/"),
            ),
            (
                "/usr/lib/jvm/java-8-openjdk-amd64/jre/lib/amd64/server/libjvm.so",
                Some("/usr/lib/jvm/java-8-openjdk-amd64/jre/lib/amd64/"),
            ),
            ("/app/natives/libjvm.so", None),
        ] {
            let vma = |name: &str| Vma {
                range: AddressRange::new(Avma(4096), Avma(8192)),
                backing: Backing::File,
                readable: true,
                name: name.to_owned(),
                ..Vma::default()
            };
            let beside = folder.map(|folder| vma(&format!("{folder}libjava.so")));
            let vmas: Vec<Vma> = [vma(libjvm)].into_iter().chain(beside).collect();
            assert_eq!(folder_of_jdk(&vmas), folder);
            assert_eq!(data_of_libraries(&vmas).is_empty(), folder.is_some());
        }
    }

    /// A search through all mappings for each block of each library would take days.
    #[test]
    fn each_block_belongs_to_the_library_that_its_first_word_lies_in() {
        const NUMBER: u64 = 65_000;
        let vma = |n: u64| Vma {
            range: AddressRange::new(Avma(n * 4096), Avma(n * 4096 + 2048)),
            name: format!("/lib/{}.so", n % (NUMBER / 2)),
            ..Vma::default()
        };
        // Not in the order of addresses.
        let vmas: Vec<Vma> = (1..=NUMBER).rev().map(vma).collect();
        let block = |n: u64| ObjectBlocks { first_word: Avma(n * 1024), count: n, ..ObjectBlocks::default() };
        let blocks: Vec<ObjectBlocks> = (0..NUMBER).map(block).collect();
        let all = by_library(&vmas, &blocks);
        // Each mapping has two of the four words in its page and the gap behind it; the first lies in no mapping.
        let mut found = 0;
        for (name, own) in &all {
            for (blocks, vma) in own {
                assert!(vma.name == *name && blocks.count % 4 < 2 && vma.range.start.0 / 4096 == blocks.count / 4);
                found += 1;
            }
        }
        assert_eq!((found, all.len() as u64), (NUMBER / 2 - 2, NUMBER / 4 - 1));
        let counts = all["/lib/7.so"].iter().map(|(blocks, _)| blocks.count);
        assert_eq!(counts.collect::<Vec<_>>(), [28, 29]);
    }
}
