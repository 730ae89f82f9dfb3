//! Adds what the kernel's map has and the tracker's lists lack. The tracker lists a library once a block's stack leads
//! through it. At an attach it lists all loaded libraries. It sees no call of `__libc_free`.

use super::without_caller::LOADED_LIBRARIES;
use super::{Books, Mapping, Module};
use crate::segment::names::is_library_or_rules;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Backing, Vma};
use plimsoll_facts::units::{AddressRange, Bytes, merged, without};

impl Books {
    /// Adds the objects with code that the list lacks: files that the program has not mapped itself.
    pub(super) fn add_unlisted(&mut self, maps: &[Vma]) {
        let loaded = self.modules.iter().filter(|module| module.unloaded_ns == 0);
        let loaded = loaded.map(|module| AddressRange::new(module.range.0, module.range.1));
        let taken: Vec<AddressRange> = loaded.chain(self.mappings.iter().map(Mapping::range)).collect();
        let is_file = |vma: &Vma| vma.backing == Backing::File && !vma.shared;
        let is_one = |a: &Vma, b: &Vma| {
            let follows = a.range.end == b.range.start;
            let is_bss = follows && is_file(a) && a.writable && b.writable && b.name.is_empty();
            is_bss || (is_file(a) && is_file(b) && (a.device, a.inode) == (b.device, b.inode))
        };
        let objects = maps.chunk_by(is_one).filter(|object| {
            let whole = AddressRange::new(object[0].range.start, object[object.len() - 1].range.end);
            let has_code = object.iter().any(|vma| is_file(vma) && vma.executable);
            has_code && !is_library_or_rules(&object[0].name) && !taken.iter().any(|other| other.overlaps(whole))
        });
        let objects = objects.map(|object| Module {
            path: object[0].name.clone(),
            range: (object[0].range.start, object[object.len() - 1].range.end),
            ..Module::default()
        });
        let objects: Vec<Module> = objects.collect();
        let bytes = objects.iter().map(|module| AddressRange::new(module.range.0, module.range.1).length()).sum();
        self.modules.extend(objects);
        let index = self.category_named(LOADED_LIBRARIES);
        for figures in [&mut self.categories[index].figures, &mut self.total] {
            figures.reserved += bytes;
            figures.committed += bytes;
            figures.files += bytes;
            // A peak isn't below the present value.
            figures.peak_reserved += bytes;
            figures.peak_committed += bytes;
        }
    }

    /// The most that glibc can have for blocks: all anonymous memory that neither the program nor the tracker has
    /// mapped, and that isn't a stack. `None`: another allocator has blocks too, or may have.
    pub fn most_of_glibc(&self, maps: &[Vma]) -> Option<Bytes> {
        if self.process.allocator != "glibc" || maps.is_empty() {
            return None;
        }
        let stacks = self.threads.iter().filter(|thread| thread.in_use);
        let stacks = stacks.map(|thread| AddressRange::new(thread.stack_range.0, thread.stack_range.1));
        let own = self.own_mappings.iter().map(|own| own.range);
        let taken = merged(self.mappings.iter().map(Mapping::range).chain(own).chain(stacks).collect());
        let may_hold = |vma: &&Vma| !matches!(vma.backing, Backing::File | Backing::MainStack) && !vma.shared;
        let accessible = maps.iter().filter(may_hold).filter(|vma| vma.readable || vma.writable);
        let accessible: Vec<AddressRange> = accessible.map(|vma| vma.range).collect();
        Some(without(&accessible, &taken).iter().map(|part| part.length()).sum())
    }

    /// Adds the gap of live blocks for which glibc has no memory. `later` is the total of a reading after the reading
    /// of the map: a program that freed memory between the readings has no such blocks.
    pub fn note_freed_past(&mut self, most: Bytes, later: Bytes) {
        let live = self.total.live.min(later);
        if live > most {
            let reason = format!(
                "{live} are live in the books, and glibc has at most {most}: the program frees blocks past the tracker \
                 (by __libc_free, for example)"
            );
            let effect = format!("live bytes are too high by at least {}", live - most);
            self.gaps.push(Gap::new(Source::Segment, reason, effect));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{Category, Figures, Thread};
    use plimsoll_facts::units::Avma;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Avma(start), Avma(end))
    }

    fn vma(start: u64, end: u64, name: &str, permissions: &str) -> Vma {
        let inode = name.bytes().map(u64::from).sum();
        let backing = if inode == 0 { Backing::Anonymous } else { Backing::File };
        let has = |letter| permissions.contains(letter);
        let (readable, writable, executable) = (has('r'), has('w'), has('x'));
        let name = name.into();
        Vma { range: range(start, end), readable, writable, executable, inode, name, backing, ..Vma::default() }
    }

    /// Known are libknown.so and a file with code that the program has mapped itself.
    #[test]
    fn the_kernels_map_has_the_libraries_that_no_stack_leads_through() {
        let maps = [
            vma(0x1000, 0x2000, "/lib/libknown.so", "r"),
            vma(0x2000, 0x4000, "/lib/libknown.so", "rx"),
            vma(0x5000, 0x6000, "/lib/libnew.so", "r"),
            vma(0x6000, 0x8000, "/lib/libnew.so", "rx"),
            vma(0x8000, 0x9000, "/lib/libnew.so", "rw"),
            vma(0x9000, 0xb000, "", "rw"),
            vma(0x1_0000, 0x2_0000, "/usr/lib/locale/archive", "r"),
            vma(0x2_0000, 0x3_0000, "/tmp/code", "rx"),
            vma(0x3_0000, 0x4_0000, "/tmp/.plimsoll/libplimsoll.so", "rx"),
            vma(0x4_0000, 0x5_0000, "", "rwx"),
        ];
        let module =
            |path: &str, start, end| Module { path: path.into(), range: (Avma(start), Avma(end)), ..Module::default() };
        let known = module("/lib/libknown.so", 0x1000, 0x4000);
        let mut books = Books { modules: vec![known.clone()], ..Books::default() };
        books.mappings = vec![Mapping::of_test(range(0x2_0000, 0x3_0000))];
        books.add_unlisted(&maps);
        let named: Vec<(&str, u64, u64)> =
            books.modules.iter().map(|m| (m.path.as_str(), m.range.0.0, m.range.1.0)).collect();
        assert_eq!(named, [("/lib/libknown.so", 0x1000, 0x4000), ("/lib/libnew.so", 0x5000, 0xb000)]);
        let (reserved, peak_reserved) = (Bytes(0x6000), Bytes(0x6000));
        let (committed, peak_committed, files) = (reserved, reserved, reserved);
        let added = Figures { reserved, peak_reserved, committed, peak_committed, files, ..Figures::default() };
        assert_eq!((books.categories[0].figures, books.total), (added, added));
    }

    /// 64 KiB of heap and 16 KiB elsewhere; a stack, the program's own mapping and a file hold no blocks.
    #[test]
    fn live_blocks_without_memory_are_a_gap() {
        let heap = Vma { backing: Backing::Brk, ..vma(0x10_0000, 0x11_0000, "", "rw") };
        let maps = [
            heap,
            vma(0x20_0000, 0x24_0000, "", "rw"),
            vma(0x30_0000, 0x31_0000, "/lib/libnew.so", "rw"),
            vma(0x40_0000, 0x44_0000, "", "rw"),
            vma(0x50_0000, 0x90_0000, "", ""),
        ];
        let mut books = Books::default();
        books.process.allocator = "glibc";
        books.mappings = vec![Mapping::of_test(range(0x20_0000, 0x24_0000))];
        let stack = (Avma(0x40_0000), Avma(0x43_c000));
        books.threads = vec![Thread { in_use: true, stack_range: stack, ..Thread::default() }];
        books.categories = vec![Category { name: "other".into(), ..Category::default() }];
        let most = Bytes::kib(80);
        assert_eq!(books.most_of_glibc(&maps), Some(most));
        for (live, later, is_gap) in [(80, 80, false), (81, 80, false), (80, 81, false), (90, 100, true)] {
            books.total = Figures { live: Bytes::kib(live), ..Figures::default() };
            books.gaps.clear();
            books.note_freed_past(most, Bytes::kib(later));
            assert_eq!(books.gaps.len(), usize::from(is_gap), "{live} {later}: {:?}", books.gaps);
        }
        assert_eq!(books.gaps[0].effect, "live bytes are too high by at least 10.0 KiB");
        books.process.allocator = "jemalloc";
        assert_eq!(books.most_of_glibc(&maps), None);
    }
}
