//! Resident bytes of the mappings, from the kernel's page map (/proc/PID/pagemap), for a live process that we may read.
//! 'Committed' is memory that may be touched, 'resident' memory that was.

use plimsoll_segment::Purpose;
use plimsoll_segment::vmap::MappingKind;

use super::without_caller::{LOADED_LIBRARIES, PLIMSOLL, THREAD_STACK};
use super::{Books, Category, Mapping};
use crate::segment::names::is_library_or_rules;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Backing, OwnMapping, Residency, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::{Target, can_scan, read_ranges, read_residency, scan_residency};

/// The page map has 8 bytes per page: 8 MiB for this much address space, a few milliseconds. Above the limit, only a
/// scan is cheap, whose cost is that of the resident pages (Linux 6.7).
const MOST: Bytes = Bytes::mib(4096);

/// Each range needs a read of its own.
const MOST_MAPPINGS: usize = 4096;

impl Books {
    /// Fills in `resident` for the lines whose mappings are known. If the kernel refuses, adds a gap.
    pub fn read_resident(&mut self, pid: u32, deadline: Deadline) {
        let maps = Target::open(pid, deadline).map(|target| read_ranges(&target)).unwrap_or_default();
        self.take_out_unloaded(&maps);
        let shared_files = self.find_shared_files(&maps);
        self.read_own(pid, &maps, deadline);
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
        let mut mapped = ranges(true);
        // Pages stay in memory after mprotect made them inaccessible. Most such mappings are empty reservations, of
        // which a process may have terabytes: only a scan passes over them quickly.
        let reserved = if can_scan { ranges(false) } else { Vec::new() };
        let scanned = can_scan && (!reserved.is_empty() || total(&stacks) + total(&libraries) + total(&mapped) > MOST);
        let many = mapped.len() > MOST_MAPPINGS;
        if mapped.len() + reserved.len() <= MOST_MAPPINGS {
            mapped.extend(reserved);
        }
        let mut all = [stacks.clone(), libraries.clone(), mapped].concat();
        if (total(&all) > MOST && !scanned) || many {
            all = [stacks.clone(), libraries.clone()].concat();
            let reason = format!("more than {MOST} or {MOST_MAPPINGS} mappings are committed");
            self.gap_of_residency(reason, format!("plimsoll explain {pid}"));
        }
        if total(&all) > MOST && !scanned {
            return;
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
        self.book_resident(&residency, &stacks, &libraries, &shared_files);
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
        let all = [private.as_slice(), &files].concat();
        if private.is_empty() || total(&all) > MOST {
            return;
        }
        let residency = target.file("pagemap").ok().and_then(|pages| read_residency(&pages, &all, page, deadline).ok());
        if let Some(residency) = residency {
            let sum = |ranges: &[AddressRange]| ranges.iter().map(|range| residency.resident(*range)).sum();
            (self.own.private, self.own.library) = (sum(&private), sum(&files));
            self.own.side_table = sum(&tables);
            self.own.by_page = true;
        }
    }

    /// Finds writable shared mappings of files by the kernel's map, and books their size. Returns their ranges. The
    /// segment doesn't distinguish them from shared memory.
    fn find_shared_files(&mut self, maps: &[Vma]) -> Vec<AddressRange> {
        let is_file = |vma: &&Vma| vma.backing == Backing::File && vma.shared;
        let files: Vec<AddressRange> = maps.iter().filter(is_file).map(|vma| vma.range).collect();
        let Books { mappings, categories, callers, modules, total, .. } = self;
        let is_open = |mapping: &&mut Mapping| mapping.kind == MappingKind::Shared && mapping.writable;
        for mapping in mappings.iter_mut().filter(is_open) {
            mapping.files = overlaps(&files, mapping.range()).map(|part| part.length()).sum();
            let bytes = mapping.committed_files();
            categories[mapping.category].figures.files += bytes;
            total.files += bytes;
            if let Some(caller) = mapping.by_whom() {
                let caller = &mut callers[caller];
                caller.figures.files += bytes;
                if let Some(module) = caller.frames.first().and_then(|frame| frame.module) {
                    modules[module].figures.files += bytes;
                }
            }
        }
        files
    }

    fn book_resident(
        &mut self,
        residency: &Residency,
        stacks: &[AddressRange],
        libraries: &[AddressRange],
        shared_files: &[AddressRange],
    ) {
        let sum = |ranges: &[AddressRange]| ranges.iter().map(|r| residency.resident(*r)).sum::<Bytes>();
        let within = |ranges, range| overlaps(ranges, range).map(|part| residency.resident(part)).sum::<Bytes>();
        for mapping in &mut self.mappings {
            let range = mapping.range();
            if !residency.covers(range) || range.is_empty() {
                continue;
            }
            let resident = residency.resident(range);
            let is_part = mapping.files != Bytes::ZERO && mapping.files != range.length();
            let files = match mapping.files {
                Bytes::ZERO => Bytes::ZERO,
                _ if is_part => within(shared_files, range),
                _ => resident,
            };
            let arenas = if files == Bytes::ZERO { within(&self.arenas, range) } else { Bytes::ZERO };
            mapping.resident = Some(resident);
            (mapping.resident_files, mapping.resident_arenas) = (files, arenas);
            self.categories[mapping.category].figures.add_resident(Some(resident), files, arenas);
            if let Some(caller) = mapping.by_whom() {
                let caller = &mut self.callers[caller];
                caller.figures.add_resident(Some(resident), files, arenas);
                if let Some(module) = caller.frames.first().and_then(|frame| frame.module) {
                    self.modules[module].figures.add_resident(Some(resident), files, arenas);
                }
            }
        }
        // May exceed the committed bytes: the tracker counts what it allocated for itself, and whole pages are
        // resident.
        let own = self.own.private + self.own.segment;
        let libraries = sum(libraries);
        for (name, resident, files) in [
            (THREAD_STACK, sum(stacks), Bytes::ZERO),
            (LOADED_LIBRARIES, libraries, libraries),
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
    use crate::books::Figures;

    fn mapping(range: AddressRange, kind: MappingKind) -> Mapping {
        Mapping {
            start: range.start,
            end: range.end,
            committed: true,
            writable: true,
            kind,
            category: 0,
            files: Bytes::ZERO,
            resident: None,
            resident_files: Bytes::ZERO,
            resident_arenas: Bytes::ZERO,
            reserved_by: None,
            committed_by: None,
        }
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
        let files = books.find_shared_files(&maps);
        assert_eq!((books.categories[0].figures.files, books.total.files), (Bytes::mib(2), Bytes::mib(2)));
        let touched = range(0x20_0000, 0x50_0000);
        books.book_resident(&Residency::new(vec![all], vec![touched], Bytes::ZERO), &[], &[], &files);
        let figures = books.categories[0].figures;
        assert_eq!((figures.resident, figures.resident_files), (Some(Bytes::mib(3)), Bytes::mib(1)));
        assert_eq!(figures.held(), Bytes::mib(2));
    }
}
