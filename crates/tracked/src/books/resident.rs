//! Resident bytes of the mappings, from the kernel's page map (/proc/PID/pagemap), for a live process that we may read.
//! 'Committed' is memory that may be touched, 'resident' memory that was.

use plimsoll_segment::Purpose;

use super::Books;
use super::without_caller::{LOADED_LIBRARIES, PLIMSOLL, THREAD_STACK};
use crate::segment::names::is_library_or_rules;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Backing, OwnMapping, Residency, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::{Target, can_scan, parse_maps, read_residency, scan_residency};

/// The page map has 8 bytes per page: 8 MiB for this much address space, a few milliseconds. Above the limit, only a
/// scan is cheap, whose cost is that of the resident pages (Linux 6.7).
const MOST: Bytes = Bytes::mib(4096);

/// Each range needs a read of its own.
const MOST_MAPPINGS: usize = 4096;

impl Books {
    /// Fills in `resident` for the lines whose mappings are known. If the kernel refuses, adds a gap.
    pub fn read_resident(&mut self, pid: u32, deadline: Deadline) {
        let maps = Target::open(pid, deadline).ok().and_then(|target| target.read("maps").ok());
        let maps = maps.map(|text| parse_maps(&text, &[]).vmas).unwrap_or_default();
        self.take_out_unloaded(&maps);
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
            chosen.map(|m| AddressRange::new(m.start, m.end)).collect::<Vec<_>>()
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
        self.book_resident(&residency, &stacks, &libraries);
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

    fn book_resident(&mut self, residency: &Residency, stacks: &[AddressRange], libraries: &[AddressRange]) {
        let sum = |ranges: &[AddressRange]| ranges.iter().map(|r| residency.resident(*r)).sum::<Bytes>();
        for mapping in &mut self.mappings {
            let range = AddressRange::new(mapping.start, mapping.end);
            if !residency.covers(range) || range.is_empty() {
                continue;
            }
            let resident = residency.resident(range);
            mapping.resident = Some(resident);
            let files = if mapping.is_file() { resident } else { Bytes::ZERO };
            self.categories[mapping.category].figures.add_resident(Some(resident), files);
            if let Some(caller) = mapping.by_whom() {
                let caller = &mut self.callers[caller];
                caller.figures.add_resident(Some(resident), files);
                if let Some(module) = caller.frames.first().and_then(|frame| frame.module) {
                    self.modules[module].figures.add_resident(Some(resident), files);
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
            self.categories[index].figures.add_resident(Some(resident), files);
        }
        if self.is_resident_known() {
            for category in &self.categories {
                self.total.add_resident(category.figures.resident, category.figures.resident_files);
            }
        }
    }

    fn gap_of_residency(&mut self, reason: String, remedy: String) {
        self.gaps.push(Gap::new(Source::Pagemap, reason, "resident sizes are missing").remedy(remedy));
    }
}

fn total(ranges: &[AddressRange]) -> Bytes {
    ranges.iter().map(|r| r.length()).sum()
}
