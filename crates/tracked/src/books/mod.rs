//! The books: the sums over a segment's facts. Pure; every sum is computed here and nowhere else.
//!
//! ```text
//! rows ─Σ─► callers ─Σ─► categories ─Σ─► total        live = Σ (alloc − free), requested and cumulative likewise
//!       └Σ─► threads (allocated and freed by each; another thread may free a block)
//! callers ─Σ─► modules (of the innermost frame)
//! map, thread table, module table, own counters ─► reserved and committed of categories
//! ```
//! So Σ categories = total by construction, except for peaks, which belong to different moments. `at_peak` is what a
//! category held when the *total* was at its recorded peak, and Σ at_peak = total.at_peak again.
//!
//! The central peak may lag behind the rows by the drift. `max` restores peak ≥ live. `peak_error` bounds how much the
//! peak may be too low: Σ rows min(drift bound, bytes that the row ever allocated).

pub use plimsoll_segment::NATIVE_IMAGE_CATEGORIES;
use plimsoll_segment::{CALLER_OVERFLOW, CallerFacts, CategoryFacts, FIXED_CATEGORIES, ModuleFacts, text};

use crate::segment::parse::CounterFacts;
use crate::segment::{Life, Segment};
use plimsoll_facts::ending::{Ending, How};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::OwnMapping;
use plimsoll_facts::units::{AddressRange, Avma, Bytes, counted};

mod before_attach;
mod mappings;
mod module_index;
mod peak;
mod resident;
mod types;
mod unlisted;
mod without_caller;

pub use before_attach::{Before, before};
pub use mappings::Mapping;
pub use plimsoll_facts::snapshot::{Booked, BookedSince};
pub use types::{Caller, Category, Figures, Frame, Mode, Module, Origin, ProcessFacts, Runtime, Thread};
pub use without_caller::TrackerCost;

pub(crate) use mappings::outside_stacks;
pub(crate) use module_index::ModuleIndex;
use without_caller::PLIMSOLL;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Books {
    pub process: ProcessFacts,
    /// Time of the snapshot, ns since 1970. For an ended process: the time of its end if it is known, otherwise of its
    /// last entry in the segment.
    pub time_ns: u64,
    /// Whether `time_ns` is the time of the end: the process ran its exit handlers, or its parent saw the end.
    pub end_is_known: bool,
    pub life: Life,
    /// How the process ended, if it has.
    pub ending: Option<Ending>,
    pub mode: Mode,
    /// Since when the mode applies, if these books began with another mode.
    pub mode_since_ns: Option<u64>,
    /// Mean of the sampling as it was set; 0: an older report doesn't say.
    pub sample_mean: Bytes,
    pub total: Figures,
    /// In the segment's order. `callers` and `modules` refer to categories by index.
    pub categories: Vec<Category>,
    pub callers: Vec<Caller>,
    pub threads: Vec<Thread>,
    pub modules: Vec<Module>,
    /// In address order, without those inside thread stacks.
    pub mappings: Vec<Mapping>,
    /// Inaccessible mappings inside thread stacks: a JavaThread has its own guard pages there. libc's guard lies outside
    /// the stack.
    pub stack_guards: Bytes,
    pub counters: Vec<CounterFacts>,
    pub own: TrackerCost,
    /// The tracker's private mappings, as listed in the segment.
    pub own_mappings: Vec<OwnMapping>,
    /// The arenas of glibc and its blocks with mappings of their own, sorted and disjoint, if they were found
    /// ([`Books::note_arenas`]).
    pub arenas: Vec<AddressRange>,
    /// How much a peak may be too low.
    pub peak_error: Bytes,
    /// Memory from before a late attach, if the arenas could be walked.
    pub before: Option<Before>,
    pub gaps: Vec<Gap>,
}

impl Books {
    /// The category of what malloc itself mapped, if it isn't glibc's: its name is the allocator's. All live blocks lie
    /// in these mappings, unless the books began with an attach: then older mappings hold some. (glibc calls the kernel
    /// past the hooks, so its arenas have no category.)
    pub fn mappings_of_malloc(&self) -> Option<&Category> {
        let is_its = |category: &&Category| category.name == self.process.allocator;
        let holds = |category: &&Category| category.figures.committed > self.total.live;
        self.categories.iter().filter(is_its).find(holds).filter(|_| self.counter("attaches") == 0)
    }

    /// What the category is known to hold. The mappings of malloc hold what is beyond the live blocks in them, so that
    /// no byte counts twice.
    pub fn held_by(&self, category: &Category) -> Bytes {
        let (held, live) = (category.figures.held(), category.figures.live);
        let is_its = self.mappings_of_malloc().is_some_and(|its| std::ptr::eq(its, category));
        if is_its { live + (held - live - self.total.live) } else { held }
    }

    /// Anonymous memory that is resident, and that these books don't have: at least this much, because not all memory
    /// in the books need be resident. None where the resident part of a mapping is unknown: then its bytes would count
    /// here.
    pub fn beside(&self) -> Option<Bytes> {
        if !self.is_resident_known() {
            return None;
        }
        let held: Bytes = self.categories.iter().map(|category| self.held_by(category)).sum();
        let before = self.before.as_ref().map(|before| before.live).unwrap_or_default();
        Some(self.process.anonymous? - held - before)
    }

    /// Whether the resident part of every mapping of the program is known. It is known for a running process whose page
    /// map we may read. For a dead process, only the committed size is known.
    pub fn is_resident_known(&self) -> bool {
        let is_known = |category: &Category| {
            let figures = &category.figures;
            figures.resident.is_some() || figures.committed <= figures.files || category.name == PLIMSOLL
        };
        self.categories.iter().all(is_known)
    }

    /// `now_boottime_ns` is the time of the reading; for a dead process, pass the time when it was last seen alive.
    pub fn new(segment: &Segment, life: Life, now_boottime_ns: u64) -> Books {
        Books::of(segment, life, now_boottime_ns, true)
    }

    /// As [`Books::new`], but callers have no frames, so modules have no figures. A recorder makes books each second
    /// and writes neither.
    pub fn without_frames(segment: &Segment, life: Life, now_boottime_ns: u64) -> Books {
        Books::of(segment, life, now_boottime_ns, false)
    }

    /// Notes the end of a process that its parent saw, `lived_ns` after the tracker's start.
    pub fn ended_after(&mut self, lived_ns: u64) {
        self.end_is_known = true;
        self.time_ns = self.process.start_ns.saturating_add(lived_ns);
        self.process.up_ns = Some(lived_ns).filter(is_whole_tick);
    }

    fn of(segment: &Segment, life: Life, now_boottime_ns: u64, has_frames: bool) -> Books {
        let ending = match life {
            Life::Live | Life::Detached => None,
            Life::Exited => Some(Ending::of(How::Exited)),
            Life::Killed => Some(Ending::UNKNOWN),
        };
        let mut books = Books { life, ending, ..Books::default() };
        books.gaps = segment.gaps.clone();
        books.counters = segment.counters.clone();
        let head = &segment.head;
        let clock = Clock { boot: head.start_boottime_ns, real: head.start_realtime_ns };
        let known = head.end_ns().filter(|_| matches!(life, Life::Exited | Life::Killed));
        books.end_is_known = known.is_some();
        let end = known.unwrap_or(now_boottime_ns);
        books.time_ns = clock.real(end);
        books.mode = match head.mode {
            0 => Mode::Off,
            2 => Mode::Exact,
            _ => Mode::Sampled,
        };
        books.mode_since_ns = segment.mode_changed_ns().map(|at| clock.real(at));
        books.sample_mean = Bytes(head.sample_mean);
        books.process = process(segment, end, &clock);
        books.modules = segment.modules.iter().map(module).collect();
        name_program(&mut books.modules, &books.process);
        books.categories = segment.categories.iter().map(|c| category(c, head.composition, &clock)).collect();
        if books.categories.is_empty() {
            books.categories.push(Category { name: FIXED_CATEGORIES[0].into(), ..Category::default() });
        }
        let index = ModuleIndex::new(if has_frames { &books.modules } else { &[] });
        books.callers = segment.callers.iter().map(|c| books.caller(c, has_frames, &index)).collect();
        books.threads = without_caller::threads(segment);
        books.book_rows(segment);
        books.book_callers(Bytes(segment.rows_skew));
        mappings::book(&mut books, segment);
        without_caller::book(&mut books, segment);
        peak::book(&mut books, segment, &clock);
        books.process.threads = without_caller::count(&books.threads);
        let overflow = books.callers.get(CALLER_OVERFLOW as usize).map(|caller| caller.figures);
        books.gaps.extend(lost(segment, overflow.unwrap_or_default()));
        books
    }

    fn caller(&self, facts: &CallerFacts, has_frames: bool, index: &ModuleIndex) -> Caller {
        // A site's own figures belong to another report. Here its blocks count under its caller, and its own line stays
        // empty.
        let site = facts.is_site();
        let depth = if site || !has_frames { 0 } else { usize::from(facts.depth).min(facts.frames.len()) };
        let frame = |address: &u64| self.frame(Avma(*address), facts.first_ns, index);
        let frames = facts.frames[..depth].iter().map(frame).collect();
        Caller {
            frames,
            category: usize::from(facts.category),
            truncated: facts.flags & 1 != 0,
            figures: Figures {
                peak: if site { Bytes(0) } else { Bytes(facts.peak_bytes) },
                count_at_peak: if site { 0 } else { facts.count_at_peak },
                ..Figures::default()
            },
        }
    }

    /// The module that was at `address` when the caller was first seen: dlclose makes addresses available again.
    fn frame(&self, address: Avma, seen_ns: u64, index: &ModuleIndex) -> Frame {
        // A return address may be the first byte after a function that never returns, so look up the byte before it.
        let call = Avma(address.0.saturating_sub(1));
        let module = index.at(call, seen_ns);
        let offset = module.map_or(0, |i| address.0.wrapping_sub(self.modules[i].bias));
        Frame { address, module, offset, ..Frame::default() }
    }

    fn book_rows(&mut self, segment: &Segment) {
        // The last entry collects rows that refer to a missing caller.
        let mut sums = vec![[0u64; 6]; self.callers.len() + 1];
        let (mut lost_callers, mut lost_slots) = (0u64, 0u64);
        for row in &segment.rows {
            let caller = segment.caller_of(row.caller as usize).min(self.callers.len());
            lost_callers += u64::from(caller == self.callers.len());
            let figures = [
                row.alloc_count,
                row.alloc_bytes,
                row.alloc_requested,
                row.free_count,
                row.free_bytes,
                row.free_requested,
            ];
            for (sum, figure) in sums[caller].iter_mut().zip(figures) {
                *sum = sum.saturating_add(figure);
            }
            match self.threads.get_mut(row.slot as usize) {
                Some(thread) => {
                    thread.allocated += Bytes(row.alloc_bytes);
                    thread.allocated_count = thread.allocated_count.saturating_add(row.alloc_count);
                    thread.freed += Bytes(row.free_bytes);
                    thread.freed_count = thread.freed_count.saturating_add(row.free_count);
                }
                None => lost_slots += 1,
            }
        }
        if lost_callers > 0 {
            self.callers.push(Caller::default());
            let reason = format!("{lost_callers} rows name a caller that the segment doesn't have");
            self.gaps.push(Gap::new(Source::Segment, reason, "their blocks are in the first category"));
        }
        if lost_slots > 0 {
            let reason = format!("{lost_slots} rows name a thread that the segment doesn't have");
            self.gaps.push(Gap::new(Source::Segment, reason, "they are missing in the figures by thread"));
        }
        let (mut negative, mut blocks, mut bytes) = (0u64, 0u64, Bytes::ZERO);
        for (caller, sums) in self.callers.iter_mut().zip(&sums) {
            let [alloc_count, alloc, alloc_requested, free_count, free, free_requested] = *sums;
            let f = &mut caller.figures;
            f.fault = free_count > alloc_count || free > alloc || free_requested > alloc_requested;
            negative += u64::from(f.fault);
            blocks = blocks.saturating_add(free_count.saturating_sub(alloc_count));
            bytes += Bytes(free) - Bytes(alloc);
            f.live = Bytes(alloc.saturating_sub(free));
            f.live_count = alloc_count.saturating_sub(free_count);
            f.requested = Bytes(alloc_requested.saturating_sub(free_requested));
            f.cumulative = Bytes(alloc);
            f.cumulative_count = alloc_count;
        }
        if negative > 0 {
            let callers = if negative == 1 { "1 caller has" } else { &format!("{negative} callers have") };
            let blocks = counted(blocks, "block");
            let reason = format!("fault: {callers} more freed than allocated, by {blocks}, {bytes}");
            let effect = "their live bytes are unknown, and so is each sum with them (marked 'fault')";
            self.gaps.push(Gap::new(Source::Segment, reason, effect));
        }
        if segment.lacks_rows {
            self.callers.iter_mut().for_each(|caller| caller.figures.fault = true);
            self.categories.iter_mut().for_each(|category| category.figures.fault = true);
        }
    }

    fn book_callers(&mut self, live_error: Bytes) {
        let mut lost = 0u64;
        for caller in &mut self.callers {
            if caller.category >= self.categories.len() {
                lost += 1;
                caller.category = 0;
            }
            peak::at_least_live(&mut caller.figures, live_error);
            self.categories[caller.category].figures.add(&caller.figures);
            if let Some(module) = caller.frames.first().and_then(|frame| frame.module) {
                self.modules[module].figures.add(&caller.figures);
            }
        }
        if lost > 0 {
            let reason = format!("{lost} callers name a category that the segment doesn't have");
            self.gaps.push(Gap::new(Source::Segment, reason, "their blocks are in the first category"));
        }
    }

    /// Index of the category with this name; added if missing.
    pub(crate) fn category_named(&mut self, name: &str) -> usize {
        self.categories.iter().position(|c| c.name == name).unwrap_or_else(|| {
            self.categories.push(Category { name: name.into(), ..Category::default() });
            self.categories.len() - 1
        })
    }

    /// A counter by name; 0 if the tracker doesn't have it.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|c| c.name == name).map_or(0, |c| c.value)
    }
}

/// Converts CLOCK_BOOTTIME to ns since 1970, by the pair of times that the tracker recorded at its start.
struct Clock {
    boot: u64,
    real: u64,
}

impl Clock {
    fn real(&self, boottime_ns: u64) -> u64 {
        self.real.saturating_add(boottime_ns.saturating_sub(self.boot))
    }
}

fn category(facts: &CategoryFacts, composition: Option<usize>, clock: &Clock) -> Category {
    let figures = Figures {
        peak: Bytes(facts.peak_bytes),
        count_at_peak: facts.count_at_peak,
        peak_time_ns: (facts.peak_ns != 0).then(|| clock.real(facts.peak_ns)),
        reserved: Bytes(facts.reserved_bytes),
        committed: Bytes(facts.committed_bytes),
        peak_reserved: Bytes(facts.peak_reserved_bytes),
        peak_committed: Bytes(facts.peak_committed_bytes),
        at_peak: Bytes(composition.map_or(0, |half| facts.at_peak_bytes[half])),
        at_peak_count: composition.map_or(0, |half| facts.at_peak_count[half]),
        ..Figures::default()
    };
    let name = String::from_utf8_lossy(text(&facts.name)).into_owned();
    Category { name, kind: Origin::from_segment(facts.kind), figures }
}

fn module(facts: &ModuleFacts) -> Module {
    let build_id = facts.build_id[..usize::from(facts.build_id_bytes).min(facts.build_id.len())].to_vec();
    Module {
        path: String::from_utf8_lossy(text(&facts.path)).into_owned(),
        range: (Avma(facts.start), Avma(facts.end)),
        bias: facts.bias,
        build_id,
        loaded_ns: facts.loaded_ns,
        unloaded_ns: facts.unloaded_ns,
        figures: Figures::default(),
    }
}

/// musl's loader names the program as it was called (argv[0]); the tracker knows its path.
fn name_program(modules: &mut [Module], process: &ProcessFacts) {
    let Some(called) = process.arguments.first().filter(|called| !called.starts_with('/')) else { return };
    if process.executable.starts_with('/') {
        modules.iter_mut().filter(|m| m.path == *called).for_each(|m| m.path.clone_from(&process.executable));
    }
}

fn process(segment: &Segment, end_boottime_ns: u64, clock: &Clock) -> ProcessFacts {
    let head = &segment.head;
    let mut words = segment.command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
    ProcessFacts {
        pid: head.pid,
        namespaced_pid: None,
        parent: head.ppid,
        executable: words.next().unwrap_or_default(),
        arguments: words.collect(),
        runtime: match head.runtime {
            1 => Runtime::HotSpot,
            2 => Runtime::NativeImage,
            _ => Runtime::Native,
        },
        runtime_version: None,
        allocator: match head.allocator {
            1 => "glibc",
            2 => "jemalloc",
            3 => "tcmalloc",
            4 => "mimalloc",
            5 => "musl",
            _ => "unknown",
        },
        threads: 0,
        anonymous: None,
        start_ns: head.start_realtime_ns,
        since_ns: clock.real(segment.begun_ns()),
        up_ns: end_boottime_ns.checked_sub(head.start_boottime_ns).filter(is_whole_tick),
    }
}

/// The start is the time of the last tick of the tracker's clock. So the run time of a process that ran for less than a
/// tick isn't known. A tick is 4 ms with CONFIG_HZ=250, Debian's setting.
fn is_whole_tick(lived_ns: &u64) -> bool {
    *lived_ns >= 4_000_000
}

/// The tracker counts what it could not book. Each such counter that isn't 0 becomes a gap. Most count calls, not what
/// these calls were for. `overflow` has the blocks of all callers that found no space.
fn lost(segment: &Segment, overflow: Figures) -> Vec<Gap> {
    const LOST: [(&str, &str, &str); 13] = [
        ("unbooked_blocks", "blocks could not be booked", "live bytes are too low by their size"),
        ("sites_merged", "calls found no space for a site", "their blocks have only the short stack of their caller"),
        (
            "frames_cut",
            "calls found no space for a deep stack",
            "their blocks have only the short stack of their caller",
        ),
        ("methods_lost", "look-ups of Java methods found no space", "frames in these methods are bare addresses"),
        (
            "nested_entries",
            "operations were booked in signal handlers that interrupted the tracker",
            "they count under the shared slot in the figures by thread",
        ),
        ("threads_shared", "threads have no slot of their own", "they share one in the figures by thread"),
        (
            "stacks_unwalked",
            "calls came from threads with too little stack for a walk",
            "they are booked with their innermost function at most",
        ),
        ("modules_lost", "loaded objects did not fit", "callers in them are without a module"),
        ("categories_lost", "categories did not fit", "their blocks are in 'other'"),
        (
            "grow_failures",
            "times the segment could not grow (its file system full, or a sandbox that the program is in)",
            "what did not fit is missing",
        ),
        ("vmap_lost", "mapping operations could not be booked", "reserved and committed may be off"),
        ("forks_untracked", "children of fork() continued untracked", "they have no segment"),
        ("faults", "faults of the tracker itself", "some figures may be off"),
    ];
    let counted = LOST.iter().map(|&(name, what, effect)| (segment.counter(name), what, effect));
    let counted = counted.filter(|(count, ..)| *count > 0);
    let gaps = counted.map(|(count, what, effect)| Gap::new(Source::Segment, format!("{count} {what}"), effect));
    gaps.chain(without_caller(segment, overflow))
        .chain(dropped_samples(segment))
        .chain(past_the_tracker(segment))
        .collect()
}

/// Frees of blocks that the books don't have. After an attach, these are mostly blocks from before it.
fn past_the_tracker(segment: &Segment) -> Option<Gap> {
    let frees = Some(segment.counter("unknown_frees")).filter(|frees| *frees > 0)?;
    if segment.counter("attaches") > 0 {
        return None;
    }
    let bytes = Bytes(segment.counter("unknown_free_bytes"));
    let blocks = counted(frees, "block");
    let reason = format!(
        "the program freed {blocks} ({bytes}) that the books don't have: allocated past the tracker (by \
         __libc_malloc, for example, or while a library was being loaded), or overwritten at the end"
    );
    let effect = "live bytes lack blocks that are allocated past the tracker, and keep blocks that are freed past it, or \
                  that were overwritten at the end";
    Some(Gap::new(Source::Segment, reason, effect))
}

/// The gap of blocks that lost their caller because the tables of callers and rows were full.
fn without_caller(segment: &Segment, overflow: Figures) -> Option<Gap> {
    let tables = match (segment.counter("callers_merged"), segment.counter("rows_shared")) {
        (0, 0) => return None,
        (_, 0) => "table of callers is",
        (0, _) => "table of rows is",
        _ => "tables of callers and rows are",
    };
    let (ever, live) = (counted(overflow.cumulative_count, "block"), overflow.live);
    let reason = format!("the {tables} full: {ever} ever allocated, {live} of them live, found no space");
    let effect = match segment.counter("rows_shared") {
        0 => "they have no caller, and are under 'other'",
        _ => "they have no caller and no thread, and are under 'other'",
    };
    Some(Gap::new(Source::Segment, reason, effect))
}

fn dropped_samples(segment: &Segment) -> Option<Gap> {
    let dropped = Some(segment.counter("samples_dropped")).filter(|dropped| *dropped > 0)?;
    let bytes = Bytes(segment.counter("samples_dropped_bytes"));
    // One counter for three causes. One of them: the index is full for one address, because blocks that were sampled at
    // that address were freed past the tracker.
    let blocks = counted(dropped, "sampled block");
    let reason = format!("{blocks} could not be kept: the stack was not walked, or the samples were full");
    Some(Gap::new(Source::Segment, reason, format!("estimates of sites are up to {bytes} too low")))
}

#[cfg(test)]
#[test]
fn a_program_that_was_called_by_a_relative_path_has_its_own_path() {
    let process = |executable: &str, called: &str| ProcessFacts {
        executable: executable.into(),
        arguments: vec![called.into(), "an argument".into()],
        ..ProcessFacts::default()
    };
    for (process, path) in [
        (process("/opt/bin/server", "server"), "/opt/bin/server"),
        (process("/opt/bin/server", "/other/server"), "server"),
        (process("server", "server"), "server"),
    ] {
        let module = |path: &str| Module { path: path.into(), ..Module::default() };
        let mut modules = vec![module("server"), module("/opt/lib/libserver.so")];
        name_program(&mut modules, &process);
        assert_eq!([&*modules[0].path, &*modules[1].path], [path, "/opt/lib/libserver.so"]);
    }
}
