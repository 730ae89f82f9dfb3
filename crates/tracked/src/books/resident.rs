//! Resident bytes of the mappings, from the kernel's page map (/proc/PID/pagemap), for a live process that we may read.
//! 'Committed' is memory that may be touched, 'resident' memory that was.

use plimsoll_segment::Purpose;
use plimsoll_segment::vmap::MappingKind;

use super::without_caller::{LOADED_LIBRARIES, PLIMSOLL, THREAD_STACK};
use super::{Books, Category, Figures, Mapping};
use crate::segment::names::is_library_or_rules;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Backing, OwnMapping, Residency, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::{Target, can_scan, read_ranges, read_residency, scan_residency};

/// The page map has 8 bytes per page: 8 MiB for this much address space, a few milliseconds. Above the limit, only a
/// scan is cheap (Linux 6.7), because its cost depends on the resident pages alone.
const MOST: Bytes = Bytes::mib(4096);

/// Each range needs a read of its own. A scan of it takes the kernel a microsecond.
const MOST_MAPPINGS: usize = 4096;

impl Books {
    /// Fills in `resident` for the lines whose mappings are known. If the kernel refuses, adds a gap. Returns the
    /// kernel's map.
    pub fn read_resident(&mut self, pid: u32, deadline: Deadline) -> Vec<Vma> {
        let maps = Target::open(pid, deadline).map(|target| read_ranges(&target)).unwrap_or_default();
        self.read_resident_of(&maps, pid, deadline);
        maps
    }

    fn read_resident_of(&mut self, maps: &[Vma], pid: u32, deadline: Deadline) {
        self.take_out_unloaded(maps);
        self.add_unlisted(maps);
        let files = self.find_files(maps);
        self.read_own(pid, maps, deadline);
        let stacks = self.threads.iter().filter(|t| t.in_use && t.stack_kind != 1);
        let stacks: Vec<AddressRange> = stacks.map(|t| AddressRange::new(t.stack_range.0, t.stack_range.1)).collect();
        let modules = self.modules.iter().filter(|m| m.unloaded_ns == 0);
        let libraries: Vec<AddressRange> = modules.map(|m| AddressRange::new(m.range.0, m.range.1)).collect();
        let file = Target::open(pid, deadline).map_err(|_| "the process is gone".to_string());
        let file = file.and_then(|target| target.file("pagemap").map_err(|e| e.to_string()));
        let can_scan = file.as_ref().is_ok_and(|file| can_scan(file, deadline));
        let ranges = |committed| {
            let chosen = self.mappings.iter().filter(move |m| m.committed == committed);
            chosen.map(Mapping::range).collect::<Vec<_>>()
        };
        // Pages stay in memory after mprotect made them inaccessible. Most such mappings are empty reservations, of
        // which a process may have terabytes: only a scan passes over them quickly.
        let reserved = if can_scan { ranges(false) } else { Vec::new() };
        let mapped = [ranges(true), reserved.clone()].concat();
        let mut all = [stacks.as_slice(), &libraries, &mapped].concat();
        let is_large = |ranges: &[AddressRange]| total(ranges) > MOST || ranges.len() > MOST_MAPPINGS;
        let scanned = can_scan && (!reserved.is_empty() || is_large(&all));
        if is_large(&all) && !scanned && file.is_ok() {
            let what = match total(&all) > MOST {
                true => format!("more than {MOST}"),
                false => format!("more than {MOST_MAPPINGS} mappings"),
            };
            let reason = format!("{what} are committed, and Linux can scan so much from version 6.7 on");
            self.gap_of_residency(reason, format!("plimsoll explain {pid}"));
            all = [stacks.as_slice(), &libraries].concat();
            if total(&all) > MOST {
                return;
            }
        }
        let page = Bytes(rustix::param::page_size() as u64);
        let read = |file| match scanned {
            true => scan_residency(&file, &all, deadline),
            false => read_residency(&file, &all, page, deadline),
        };
        let residency = match file.and_then(|file| read(file).map_err(|e| e.to_string())) {
            Ok(residency) => residency,
            Err(error) => {
                let remedy = match deadline.has_passed() {
                    true => format!("plimsoll explain {pid}"),
                    false => "run plimsoll as the process's user or as root".to_string(),
                };
                return self.gap_of_residency(format!("the page map can't be read ({error})"), remedy);
            }
        };
        self.book_resident(&residency, &stacks, &libraries, &files);
    }

    /// The tracker learns that a library was unloaded only when a new object lies at its addresses. Until then the
    /// kernel's map shows it. Memory of the program may lie there by now; it is writable, and an object's start isn't.
    fn take_out_unloaded(&mut self, maps: &[Vma]) {
        if maps.is_empty() {
            return;
        }
        let is_gone = |start: Avma| {
            let at = maps.partition_point(|vma| vma.range.end <= start);
            let here = maps.get(at).filter(|vma| vma.range.contains(start));
            here.is_none_or(|vma| vma.backing == Backing::Anonymous && vma.writable)
        };
        let mut unloaded = Bytes::ZERO;
        for module in self.modules.iter_mut().filter(|module| module.unloaded_ns == 0) {
            if is_gone(module.range.0) {
                module.unloaded_ns = u64::MAX;
                unloaded += AddressRange::new(module.range.0, module.range.1).length();
            }
        }
        let index = self.category_named(LOADED_LIBRARIES);
        for figures in [&mut self.categories[index].figures, &mut self.total] {
            figures.reserved -= unloaded;
            figures.committed -= unloaded;
            figures.files -= unloaded;
        }
    }

    /// Reads how much of the tracker's own memory is resident. The tracker counts what it has allocated for itself, but
    /// a table is resident only where it was touched, and two pieces may share a page. Without a page map, its count
    /// stays.
    fn read_own(&mut self, pid: u32, maps: &[Vma], deadline: Deadline) {
        let page = Bytes(rustix::param::page_size() as u64);
        let is_table = |own: &&OwnMapping| own.purpose == Purpose::SideTable as u32;
        let pools: Vec<AddressRange> =
            self.own_mappings.iter().filter(|own| !is_table(own)).map(|own| own.range).collect();
        // Small levels of the side table lie inside a pool.
        let tables: Vec<AddressRange> = self.own_mappings.iter().filter(is_table).map(|own| own.range).collect();
        let others = tables.iter().filter(|table| !pools.iter().any(|pool| pool.overlaps(**table)));
        let private: Vec<AddressRange> = pools.iter().chain(others).copied().collect();
        let Ok(target) = Target::open(pid, deadline) else { return };
        let named = maps.iter().filter(|vma| is_library_or_rules(&vma.name)).map(|vma| vma.range);
        // An anonymous mapping directly after the library's writable part is its .bss, as in `explain`.
        let bss = maps.windows(2).filter(|pair| {
            let follows = pair[0].range.end == pair[1].range.start && pair[0].writable && pair[1].writable;
            follows && is_library_or_rules(&pair[0].name) && pair[1].name.is_empty()
        });
        let bss = bss.map(|pair| pair[1].range).filter(|bss| !private.iter().any(|own| own.overlaps(*bss)));
        let files: Vec<AddressRange> = named.chain(bss).collect();
        let own_file = format!("/{}-", self.process.pid);
        let is_segment = |name: &str| {
            let name = name.trim_end_matches(" (deleted)");
            name.ends_with(".seg") && name.rfind('/').is_some_and(|at| name[at..].starts_with(&own_file))
        };
        let segment: Vec<AddressRange> =
            maps.iter().filter(|vma| vma.shared && is_segment(&vma.name)).map(|vma| vma.range).collect();
        let all = [private.as_slice(), &files, &segment].concat();
        if private.is_empty() || total(&all) > MOST {
            return;
        }
        let residency = target.file("pagemap").ok().and_then(|pages| read_residency(&pages, &all, page, deadline).ok());
        if let Some(residency) = residency {
            let sum = |ranges: &[AddressRange]| ranges.iter().map(|range| residency.resident(*range)).sum();
            (self.own.private, self.own.library) = (sum(&private), sum(&files));
            self.own.side_table = sum(&tables);
            // More is resident than was populated if the program has locked its memory.
            self.own.segment = self.own.segment.max(sum(&segment));
            self.own.by_page = true;
        }
    }

    /// Finds the mappings of files by the kernel's map, and books their size. Returns the files' ranges. The segment
    /// distinguishes a shared mapping of a file neither from shared memory nor from a memfd.
    fn find_files(&mut self, maps: &[Vma]) -> Vec<AddressRange> {
        let ranges = |is: fn(&Vma) -> bool| maps.iter().filter(|vma| is(vma)).map(|vma| vma.range).collect::<Vec<_>>();
        let files = ranges(|vma| vma.backing == Backing::File && !vma.is_kernels_buffer());
        let memory = ranges(|vma| !matches!(vma.backing, Backing::File | Backing::Device));
        if maps.is_empty() {
            return files;
        }
        for index in 0..self.mappings.len() {
            let mapping = &self.mappings[index];
            let sum = |of| overlaps(of, mapping.range()).map(AddressRange::length).sum::<Bytes>();
            let bytes = match mapping.kind {
                MappingKind::Shared => sum(&files),
                // What the program has unmapped since the segment was read isn't in the map.
                MappingKind::File => mapping.files - sum(&memory),
                _ => continue,
            };
            self.book_files(index, bytes);
        }
        files
    }

    /// Sets how much of a mapping is files, in all sums.
    fn book_files(&mut self, index: usize, files: Bytes) {
        let Books { mappings, categories, callers, modules, total, .. } = self;
        let mapping = &mut mappings[index];
        let before = mapping.committed_files();
        mapping.files = files;
        let now = mapping.committed_files();
        let book = |figures: &mut Figures| figures.files = (figures.files + now) - before;
        book(&mut categories[mapping.category].figures);
        book(total);
        if let Some(caller) = mapping.by_whom() {
            let caller = &mut callers[caller];
            book(&mut caller.figures);
            if let Some(module) = caller.frames.first().and_then(|frame| frame.module) {
                book(&mut modules[module].figures);
            }
        }
    }

    /// Pages that the program has written in a private mapping of a file are copies: memory, and no longer the file's.
    fn book_resident(
        &mut self,
        residency: &Residency,
        stacks: &[AddressRange],
        libraries: &[AddressRange],
        files: &[AddressRange],
    ) {
        let sum = |ranges: &[AddressRange]| ranges.iter().map(|r| residency.resident(*r)).sum::<Bytes>();
        let copies = |ranges: &[AddressRange]| ranges.iter().map(|r| residency.anonymous(*r)).sum::<Bytes>();
        for index in 0..self.mappings.len() {
            let mapping = &self.mappings[index];
            let range = mapping.range();
            if !residency.covers(range) || range.is_empty() {
                continue;
            }
            let resident = residency.resident(range);
            let parts: Vec<AddressRange> = match mapping.files {
                Bytes::ZERO => Vec::new(),
                all if all == range.length() => vec![range],
                _ => overlaps(files, range).collect(),
            };
            let copied = copies(&parts);
            let in_files = sum(&parts) - copied;
            let arenas: Vec<AddressRange> = overlaps(&self.arenas, range).filter(|_| parts.is_empty()).collect();
            let arenas = sum(&arenas);
            self.book_files(index, self.mappings[index].files - copied);
            let mapping = &mut self.mappings[index];
            mapping.resident = Some(resident);
            (mapping.resident_files, mapping.resident_arenas) = (in_files, arenas);
            self.categories[mapping.category].figures.add_resident(Some(resident), in_files, arenas);
            if let Some(caller) = mapping.by_whom() {
                let caller = &mut self.callers[caller];
                caller.figures.add_resident(Some(resident), in_files, arenas);
                if let Some(module) = caller.frames.first().and_then(|frame| frame.module) {
                    self.modules[module].figures.add_resident(Some(resident), in_files, arenas);
                }
            }
        }
        // May exceed the committed bytes: the tracker counts what it allocated for itself, and whole pages are
        // resident.
        let own = self.own.private + self.own.segment;
        let (libraries, written) = (sum(libraries), copies(libraries));
        let index = self.category_named(LOADED_LIBRARIES);
        for figures in [&mut self.categories[index].figures, &mut self.total] {
            figures.files -= written;
        }
        for (name, resident, files) in [
            (THREAD_STACK, sum(stacks), Bytes::ZERO),
            (LOADED_LIBRARIES, libraries, libraries - written),
            (PLIMSOLL, own, Bytes::ZERO),
        ] {
            let index = self.category_named(name);
            self.categories[index].figures.add_resident(Some(resident), files, Bytes::ZERO);
        }
        if self.is_resident_known() {
            for Category { figures: f, .. } in &self.categories {
                self.total.add_resident(f.resident, f.resident_files, f.resident_arenas);
            }
        }
    }

    fn gap_of_residency(&mut self, reason: String, remedy: String) {
        self.gaps.push(Gap::new(Source::Pagemap, reason, "resident sizes are missing").remedy(remedy));
    }
}

/// The parts of `range` that lie in sorted, disjoint ranges.
fn overlaps(ranges: &[AddressRange], range: AddressRange) -> impl Iterator<Item = AddressRange> + '_ {
    let first = ranges.partition_point(|other| other.end <= range.start);
    ranges[first..].iter().take_while(move |other| other.start < range.end).map(move |other| other.intersection(range))
}

fn total(ranges: &[AddressRange]) -> Bytes {
    ranges.iter().map(|r| r.length()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(range: AddressRange, kind: MappingKind) -> Mapping {
        Mapping { kind, ..Mapping::of_test(range) }
    }

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Avma(start), Avma(end))
    }

    fn books_of(mapping: Mapping) -> Books {
        let figures = Figures { reserved: mapping.bytes(), committed: mapping.bytes(), ..Figures::default() };
        let categories = vec![Category { name: "before".into(), figures, ..Category::default() }];
        Books { categories, mappings: vec![mapping], total: figures, ..Books::default() }
    }

    /// A mapping from before an attach: an arena, and 64 KiB of the program's own. The blocks in the arena have lines of
    /// their own, and its free memory has none.
    #[test]
    fn arenas_from_before_an_attach_hold_nothing_by_themselves() {
        let all = range(0x7f00_0000, 0x7f40_0000);
        let mut books = books_of(mapping(all, MappingKind::Anonymous));
        books.arenas = vec![range(0x7000_0000, 0x7100_0000), range(0x7f01_0000, 0x7f30_0000)];
        let residency = Residency::new(vec![all], vec![range(0x7f00_0000, 0x7f20_0000)], Bytes::ZERO);
        books.book_resident(&residency, &[], &[], &[]);
        let figures = books.categories[0].figures;
        assert_eq!((figures.resident, figures.resident_arenas), (Some(Bytes::mib(2)), Bytes(0x1f_0000)));
        assert_eq!(figures.held(), Bytes::kib(64));
        assert_eq!(books.mappings[0].held(), Bytes::kib(64));
    }

    /// The map has one entry for neighbours with equal attributes: a file, and shared memory.
    #[test]
    fn a_writable_shared_mapping_is_a_file_as_far_as_the_kernel_says() {
        let (file, memory) = (range(0x10_0000, 0x30_0000), range(0x30_0000, 0x70_0000));
        let all = range(0x10_0000, 0x70_0000);
        let mut books = books_of(mapping(all, MappingKind::Shared));
        let vma = |range, backing, shared| Vma { range, backing, shared, ..Vma::default() };
        let maps = [
            vma(range(0x1_0000, 0x2_0000), Backing::File, false),
            vma(file, Backing::File, true),
            vma(memory, Backing::Shmem, true),
        ];
        let files = books.find_files(&maps);
        assert_eq!((books.categories[0].figures.files, books.total.files), (Bytes::mib(2), Bytes::mib(2)));
        let touched = range(0x20_0000, 0x50_0000);
        books.book_resident(&Residency::new(vec![all], vec![touched], Bytes::ZERO), &[], &[], &files);
        let figures = books.categories[0].figures;
        assert_eq!((figures.resident, figures.resident_files), (Some(Bytes::mib(3)), Bytes::mib(1)));
        assert_eq!(figures.held(), Bytes::mib(2));
    }

    /// The segment doesn't show what a mapping without write access maps: a memfd that was filled before, or code that
    /// is written at other addresses (HotSpot, .NET, V8).
    #[test]
    fn shared_memory_without_write_access_is_no_file() {
        let all = range(0x10_0000, 0x30_0000);
        for (backing, files) in [(Backing::Shmem, Bytes::ZERO), (Backing::File, Bytes::mib(2))] {
            for kind in [MappingKind::Shared, MappingKind::File] {
                let mut read_only = mapping(all, kind);
                (read_only.writable, read_only.files) = (false, all.length());
                let mut books = books_of(read_only);
                for figures in [&mut books.categories[0].figures, &mut books.total] {
                    figures.files = all.length();
                }
                let vma = Vma { range: all, backing: backing.clone(), shared: true, ..Vma::default() };
                let ranges = books.find_files(&[vma]);
                assert_eq!((books.categories[0].figures.files, books.total.files), (files, files), "{backing:?}");
                books.book_resident(&Residency::new(vec![all], vec![all], Bytes::ZERO), &[], &[], &ranges);
                let held = books.categories[0].figures.held();
                assert_eq!((held, books.mappings[0].held()), (all.length() - files, all.length() - files));
                assert!(books.find_files(&[]).is_empty(), "an unreadable map decides nothing");
                assert_eq!(books.total.files, files);
            }
        }
    }

    /// The kernel can't drop copies, wherever they are: in a file of the program's, or in a library's .data.
    #[test]
    fn what_is_written_in_a_private_mapping_of_a_file_is_held() {
        let (all, library) = (range(0x10_0000, 0x30_0000), range(0x7f00_0000, 0x7f20_0000));
        let mut file = mapping(all, MappingKind::File);
        file.files = all.length();
        let mut books = books_of(file);
        let index = books.category_named(LOADED_LIBRARIES);
        books.categories[index].figures =
            Figures { reserved: Bytes::mib(2), committed: Bytes::mib(2), files: Bytes::mib(2), ..Figures::default() };
        books.categories[0].figures.files = all.length();
        books.total.files = Bytes::mib(4);
        let written = vec![range(0x10_0000, 0x20_0000), range(0x7f10_0000, 0x7f18_0000)];
        let residency = Residency::new(vec![all, library], vec![range(0x10_0000, 0x28_0000), library], Bytes::ZERO);
        books.book_resident(&residency.with_anonymous(written), &[], &[library], &[all]);
        let figures = books.categories[0].figures;
        assert_eq!((figures.resident, figures.resident_files), (Some(Bytes::kib(1536)), Bytes::kib(512)));
        assert_eq!(
            (figures.held(), books.mappings[0].held(), figures.files),
            (Bytes::mib(1), Bytes::mib(1), Bytes::mib(1))
        );
        let libraries = books.categories[index].figures;
        assert_eq!((libraries.held(), libraries.files), (Bytes::kib(512), Bytes::kib(1536)));
        assert_eq!(books.total.files, Bytes::kib(2560));
    }

    #[test]
    fn what_the_books_lack_is_unknown_where_a_residency_is() {
        let all = range(0x10_0000, 0x30_0000);
        let mut books = books_of(mapping(all, MappingKind::Anonymous));
        books.process.anonymous = Some(Bytes::mib(3));
        assert_eq!(books.beside(), None);
        books.book_resident(&Residency::new(vec![all], vec![all], Bytes::ZERO), &[], &[], &[]);
        assert_eq!(books.beside(), Some(Bytes::mib(1)));
    }
}
