//! Makes segments with known contents, for tests only. It shares no code with the tracker, so that a wrong offset on
//! one side can't be hidden by the other.
#![allow(dead_code, reason = "shared with other test programs")]

use std::mem::offset_of;

use plimsoll_segment::{
    ALL_SECTIONS, Caller, Category, Composition, FIXED_CATEGORIES, FrameNode, Header, MAGIC, Method, Module, Row,
    SECTIONS, Sample, Section, SectionEntry, SiteSamples, Thread, VERSION,
};

/// The length in the header: reserved address space in reports. It isn't today's `plimsoll_segment::FILE_BYTES`, so
/// that a larger section changes no golden; `goldens/report-schema-1.json` has the same length.
pub const FILE_BYTES: u64 = 181_682_176;

/// A file under construction; `bytes` is the whole file, as a sparse file reads.
#[derive(Clone)]
pub struct Synthetic {
    pub bytes: Vec<u8>,
    used: [u64; SECTIONS],
}

#[derive(Clone, Copy, Default)]
pub struct RowOf {
    pub caller: u32,
    pub slot: u32,
    pub alloc: (u64, u64, u64),
    pub free: (u64, u64, u64),
}

impl Synthetic {
    /// The state after boot: fixed categories, callers 0 to 2, the shared slot.
    pub fn new(pid: u32) -> Synthetic {
        // Unused parts are left out: a reader reads a short file as far as it goes.
        let mut s = Synthetic { bytes: vec![0; Section::Rows.offset() + (1 << 20)], used: [0; SECTIONS] };
        s.u64(offset_of!(Header, magic), MAGIC);
        s.u32(offset_of!(Header, version), VERSION);
        s.u32(offset_of!(Header, header_bytes), 4096);
        s.u64(offset_of!(Header, file_bytes), FILE_BYTES);
        s.u32(offset_of!(Header, pid), pid);
        s.u32(offset_of!(Header, state), 1);
        s.u32(offset_of!(Header, mode), 1);
        s.u32(offset_of!(Header, allocator), 1);
        s.u32(offset_of!(Header, composition), 2);
        s.u32(offset_of!(Header, counters), plimsoll_segment::counters::COUNTERS.len() as u32);
        s.u64(offset_of!(Header, start_boottime_ns), 1_000_000_000_000);
        s.u64(offset_of!(Header, start_realtime_ns), 1_795_211_234_000_000_000);
        for section in ALL_SECTIONS {
            let at = offset_of!(Header, sections) + section as usize * size_of::<SectionEntry>();
            s.u32(at + offset_of!(SectionEntry, kind), section as u32);
            s.u32(at + offset_of!(SectionEntry, entry_bytes), section.entry_bytes() as u32);
            s.u64(at + offset_of!(SectionEntry, offset), section.offset() as u64);
            s.u64(at + offset_of!(SectionEntry, capacity), section.capacity() as u64);
        }
        s.text(Section::Schema.offset(), plimsoll_segment::counters::SCHEMA.as_bytes());
        for name in FIXED_CATEGORIES {
            s.category(name, 0);
        }
        for _ in 0..3 {
            s.caller(0, &[]);
        }
        s.thread(0, 1, 0, 0, 0);
        s
    }

    pub fn u64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    pub fn u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    pub fn u16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    }
    pub fn text(&mut self, at: usize, text: &[u8]) {
        self.bytes[at..at + text.len()].copy_from_slice(text);
    }

    /// Claims the next entry of a section; returns its index and offset.
    fn claim(&mut self, section: Section) -> (usize, usize) {
        let index = self.used[section as usize] as usize;
        self.used[section as usize] += 1;
        self.set_used(section, index as u64 + 1);
        let at = section.offset() + index * section.entry_bytes();
        if at + section.entry_bytes() > self.bytes.len() {
            self.bytes.resize(at + section.entry_bytes(), 0);
        }
        (index, at)
    }

    pub fn set_used(&mut self, section: Section, used: u64) {
        let at = offset_of!(Header, sections) + section as usize * size_of::<SectionEntry>();
        self.u64(at + offset_of!(SectionEntry, used), used);
    }

    pub fn command(&mut self, words: &[&str]) {
        let joined = words.join("\0");
        self.text(Section::Command.offset(), joined.as_bytes());
    }

    pub fn counter(&mut self, counter: plimsoll_segment::Counter, value: u64) {
        self.u64(offset_of!(Header, values) + 8 * counter as usize, value);
    }

    pub fn category(&mut self, name: &str, kind: u32) -> usize {
        let (index, at) = self.claim(Section::Categories);
        self.text(at + offset_of!(Category, name), name.as_bytes());
        self.u32(at + offset_of!(Category, kind), kind);
        index
    }

    /// Sets peak (bytes, count, ns) and mapping figures (reserved, committed) of a category.
    pub fn category_figures(&mut self, index: usize, peak: (u64, u64, u64), mapped: (u64, u64)) {
        let at = Section::Categories.offset() + index * Category::BYTES;
        self.u64(at + offset_of!(Category, peak_bytes), peak.0);
        self.u64(at + offset_of!(Category, count_at_peak), peak.1);
        self.u64(at + offset_of!(Category, peak_ns), peak.2);
        self.u64(at + offset_of!(Category, reserved_bytes), mapped.0);
        self.u64(at + offset_of!(Category, committed_bytes), mapped.1);
        self.u64(at + offset_of!(Category, peak_reserved_bytes), mapped.0);
        self.u64(at + offset_of!(Category, peak_committed_bytes), mapped.1);
    }

    /// Writes both halves of the composition: the valid one gets the figures, the other one invalid data.
    pub fn composition(&mut self, half: usize, at_peak: &[(u64, u64)], time_ns: u64) {
        self.u32(offset_of!(Header, composition), half as u32);
        let base = offset_of!(Header, compositions) + half * size_of::<Composition>();
        self.u64(base + offset_of!(Composition, time_ns), time_ns);
        for (i, (bytes, count)) in at_peak.iter().enumerate() {
            let at = Section::Categories.offset() + i * Category::BYTES;
            self.u64(at + offset_of!(Category, at_peak_bytes) + 8 * half, *bytes);
            self.u64(at + offset_of!(Category, at_peak_count) + 8 * half, *count);
            self.u64(at + offset_of!(Category, at_peak_bytes) + 8 * (1 - half), 999_983);
        }
    }

    pub fn peak(&mut self, bytes: u64, count: u64, ns: u64) {
        self.u64(offset_of!(Header, peak_bytes), bytes);
        self.u64(offset_of!(Header, count_at_peak), count);
        self.u64(offset_of!(Header, peak_ns), ns);
    }

    pub fn module(&mut self, path: &str, start: u64, end: u64, bias: u64) -> usize {
        let (index, at) = self.claim(Section::Modules);
        self.u64(at + offset_of!(Module, start), start);
        self.u64(at + offset_of!(Module, end), end);
        self.u64(at + offset_of!(Module, bias), bias);
        self.text(at + offset_of!(Module, path), path.as_bytes());
        index
    }

    pub fn module_times(&mut self, index: usize, loaded_ns: u64, unloaded_ns: u64) {
        let at = Section::Modules.offset() + index * Module::BYTES;
        self.u64(at + offset_of!(Module, loaded_ns), loaded_ns);
        self.u64(at + offset_of!(Module, unloaded_ns), unloaded_ns);
    }

    pub fn thread(&mut self, tid: u32, state: u32, low: u64, high: u64, guard: u64) -> u32 {
        let (index, at) = self.claim(Section::Threads);
        self.u32(at + offset_of!(Thread, tid), tid);
        self.u32(at + offset_of!(Thread, state), state);
        self.u64(at + offset_of!(Thread, stack_low), low);
        self.u64(at + offset_of!(Thread, stack_high), high);
        self.u64(at + offset_of!(Thread, guard_bytes), guard);
        self.u64(at + offset_of!(Thread, generation), 1);
        index as u32
    }

    pub fn caller(&mut self, category: u16, frames: &[u64]) -> u32 {
        let (index, at) = self.claim(Section::Callers);
        self.u16(at + offset_of!(Caller, depth), frames.len() as u16);
        self.u16(at + offset_of!(Caller, category), category);
        self.u64(at + offset_of!(Caller, hash), index as u64 + 1);
        for (i, frame) in frames.iter().enumerate() {
            self.u64(at + offset_of!(Caller, frames) + 8 * i, *frame);
        }
        index as u32
    }

    /// A stack, innermost first; every frame has its own node. Returns the index of the innermost one.
    pub fn stack(&mut self, frames: &[(u64, u8)]) -> u32 {
        if self.used(Section::Frames) == 0 {
            self.claim(Section::Frames);
        }
        let mut parent = 0;
        for (depth, &(value, kind)) in frames.iter().rev().enumerate() {
            let (index, at) = self.claim(Section::Frames);
            self.u64(at + offset_of!(FrameNode, value), value);
            self.u32(at + offset_of!(FrameNode, parent), parent);
            self.bytes[at + offset_of!(FrameNode, kind)] = kind;
            self.u16(at + offset_of!(FrameNode, depth), depth as u16 + 1);
            parent = index as u32;
        }
        parent
    }

    /// Adds a site under a caller.
    pub fn site(&mut self, parent: u32, category: u16, depth: u16, stack: u32) -> u32 {
        let (index, at) = self.claim(Section::Callers);
        self.u16(at + offset_of!(Caller, depth), depth);
        self.u16(at + offset_of!(Caller, category), category);
        self.u32(at + offset_of!(Caller, flags), 8);
        self.u64(at + offset_of!(Caller, hash), index as u64 + 1);
        self.u32(at + offset_of!(Caller, parent), parent);
        self.u32(at + offset_of!(Caller, stack), stack);
        index as u32
    }

    /// Adds a live sample to a site without samples.
    pub fn sample(&mut self, site: u32, slot: u32, requested: u64, weight: f64) {
        if self.used(Section::SiteSamples) == 0 {
            self.claim(Section::SiteSamples);
        }
        let (index, at) = self.claim(Section::SiteSamples);
        let usable = requested + 8;
        self.u64(Section::Callers.offset() + site as usize * Caller::BYTES + offset_of!(Caller, frames), index as u64);
        self.u32(at + offset_of!(SiteSamples, site), site);
        self.u64(at + offset_of!(SiteSamples, alloc_samples), 1);
        self.u64(at + offset_of!(SiteSamples, alloc_bytes), (usable as f64 * weight).round() as u64);
        self.u64(at + offset_of!(SiteSamples, alloc_requested), (requested as f64 * weight).round() as u64);
        self.u64(at + offset_of!(SiteSamples, alloc_count_256), (256.0 * weight).round() as u64);
        let variance = weight * (weight - 1.0);
        let bytes = (usable * usable) as f64 * variance;
        self.u64(at + offset_of!(SiteSamples, alloc_bytes_variance), bytes.to_bits());
        self.u64(at + offset_of!(SiteSamples, alloc_count_variance), variance.to_bits());
        let (_, at) = self.claim(Section::Samples);
        self.u64(at + offset_of!(Sample, address), 0x1_0000 + 64 * index as u64);
        self.u64(at + offset_of!(Sample, usable), usable);
        self.u64(at + offset_of!(Sample, requested), requested);
        self.u64(at + offset_of!(Sample, weight), weight.to_bits());
        self.u32(at + offset_of!(Sample, site), site);
        self.u32(at + offset_of!(Sample, slot), slot);
    }

    /// Adds a method; the pairs (bytecode index, line) are ascending.
    pub fn method(&mut self, class: &str, name: &str, signature: &str, source: &str, lines: &[(u16, u16)]) -> u32 {
        let (index, at) = self.claim(Section::Methods);
        self.u64(at + offset_of!(Method, first_ns), 1);
        for (text, from, bytes) in [
            (class, offset_of!(Method, class_at), offset_of!(Method, class_bytes)),
            (name, offset_of!(Method, name_at), offset_of!(Method, name_bytes)),
            (signature, offset_of!(Method, signature_at), offset_of!(Method, signature_bytes)),
            (source, offset_of!(Method, source_at), offset_of!(Method, source_bytes)),
        ] {
            let first = self.name(text.as_bytes());
            self.u32(at + from, first);
            self.u16(at + bytes, text.len() as u16);
        }
        let lines: Vec<u8> =
            lines.iter().flat_map(|(bci, line)| [bci.to_ne_bytes(), line.to_ne_bytes()]).flatten().collect();
        let first = self.name(&lines);
        self.u32(at + offset_of!(Method, lines_at), first);
        self.u32(at + offset_of!(Method, lines_bytes), lines.len() as u32);
        index as u32
    }

    fn name(&mut self, bytes: &[u8]) -> u32 {
        let first = self.used(Section::Names);
        for _ in bytes {
            self.claim(Section::Names);
        }
        self.text(Section::Names.offset() + first, bytes);
        first as u32
    }

    pub fn row(&mut self, row: RowOf) {
        let (_, at) = self.claim(Section::Rows);
        self.u32(at + offset_of!(Row, caller), row.caller);
        self.u32(at + offset_of!(Row, slot), row.slot + 1);
        self.u64(at + offset_of!(Row, alloc_count), row.alloc.0);
        self.u64(at + offset_of!(Row, alloc_bytes), row.alloc.1);
        self.u64(at + offset_of!(Row, alloc_requested), row.alloc.2);
        self.u64(at + offset_of!(Row, free_count), row.free.0);
        self.u64(at + offset_of!(Row, free_bytes), row.free.1);
        self.u64(at + offset_of!(Row, free_requested), row.free.2);
    }

    /// Writes the map with one leaf; each entry is (start, end, category, caller, protection), ascending.
    pub fn vmap(&mut self, seq: u64, entries: &[(u64, u64, u16, u32, u64)]) {
        let base = Section::Vmap.offset();
        self.bytes.resize(self.bytes.len().max(base + 1024), 0);
        self.set_used(Section::Vmap, 1024);
        let words =
            [u64::from_le_bytes(*b"PLVMAP\x00\x01"), 16 << 20, seq, 1, 1024, 4096, 0, 0, 3, 12_288, 1, 0x1000, 8192];
        for (i, word) in words.into_iter().enumerate() {
            self.u64(base + 8 * i, word);
        }
        self.u64(base + 512, 0xFEDC_BA98_7654_3210 + entries.len() as u64);
        self.u64(base + 520, u64::MAX);
        for (i, &(start, end, category, caller, prot)) in entries.iter().enumerate() {
            let commit = if prot == 0 { 0 } else { u64::from(caller) << 32 };
            let flags = prot | 1 << 4 | u64::from(prot == 0) << 3;
            let words = [start, end, commit | u64::from(caller), u64::from(category) << 16 | flags];
            for (j, word) in words.into_iter().enumerate() {
                self.u64(base + 512 + 32 + 32 * i + 8 * j, word);
            }
        }
    }

    /// Number of entries in use.
    pub fn used(&self, section: Section) -> usize {
        self.used[section as usize] as usize
    }

    /// Cuts the file after the last entry in use, to get small files for fuzzing.
    pub fn trimmed(&self) -> Vec<u8> {
        let last = Section::Rows.offset() + self.used[Section::Rows as usize] as usize * Row::BYTES;
        self.bytes[..last].to_vec()
    }
}

/// A small server: three categories with known sums, two threads, two modules.
pub fn server(pid: u32) -> Synthetic {
    let mut s = Synthetic::new(pid);
    s.command(&["/usr/bin/server", "server", "--port", "80"]);
    let zlib = s.category("zlib", 1) as u16;
    let heap = s.category("Java Heap", 1);
    let own = s.category("server", 2) as u16;
    s.module("/usr/bin/server", 0x40_0000, 0x50_0000, 0);
    s.module("/usr/lib/libz.so.1", 0x7000_0000, 0x7010_0000, 0x7000_0000);
    let main = s.thread(4711, 1, 0x7ff0_0000, 0x7ff8_0000, 0);
    let worker = s.thread(4712, 1, 0x6000_0000, 0x6080_0000, 4096);
    let deflate = s.caller(zlib, &[0x7000_1234, 0x40_1000]);
    let request = s.caller(own, &[0x40_2000]);
    let jit = s.caller(own, &[0x1234]);
    s.row(RowOf { caller: 1, slot: 0, alloc: (3, 300, 290), free: (0, 0, 0) });
    s.row(RowOf { caller: deflate, slot: main, alloc: (100, 1_000_000, 990_000), free: (10, 100_000, 99_000) });
    // The worker frees what the main thread allocated: this row alone would be negative.
    s.row(RowOf { caller: deflate, slot: worker, alloc: (0, 0, 0), free: (40, 400_000, 396_000) });
    s.row(RowOf {
        caller: request,
        slot: worker,
        alloc: (7919, 7919 * 64, 7919 * 57),
        free: (7900, 7900 * 64, 7900 * 57),
    });
    s.row(RowOf { caller: jit, slot: worker, alloc: (1, 1_999_993, 1_999_993), free: (0, 0, 0) });
    s.category_figures(heap, (0, 0, 0), (256 << 20, 64 << 20));
    s.category_figures(usize::from(zlib), (1_000_000, 100, 1_005_000_000_000), (0, 0));
    s.peak(3_100_000, 8020, 1_006_000_000_000);
    let mut at_peak = vec![(0, 0); usize::from(own) + 1];
    at_peak[0] = (300, 3);
    at_peak[usize::from(zlib)] = (900_000, 90);
    at_peak[usize::from(own)] = (2_100_000, 7000);
    s.composition(1, &at_peak, 1_006_000_000_000);
    s.counter(plimsoll_segment::Counter::own_private_bytes, 65_536);
    s.counter(plimsoll_segment::Counter::own_segment_bytes, 131_072);
    s.counter(plimsoll_segment::Counter::drift_bound, 4096);
    s
}
