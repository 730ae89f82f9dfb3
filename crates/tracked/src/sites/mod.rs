//! Sites: how much memory each stack holds or requested. Pure: a segment, its books and names → a profile.
//!
//! ```text
//! entry     = a site; and for each caller, what isn't known to belong to one of its sites (under its short stack)
//! Σ entries = the books' total, in each column of one moment; Σ entries of a category = that category
//! held      = live + resident without files: lines are ordered by it, never by what is only committed
//! ```
//! Memory without a stack (thread stacks, libraries, Plimsoll's own) is one entry without frames per category. In exact
//! mode, a site's figures are counted; otherwise `estimate.rs` divides the figures of its caller.

use std::collections::{BTreeMap, HashMap};

use plimsoll_segment::vmap::VmaMap;
use plimsoll_segment::{CALLER_SITE, CallerFacts};

use crate::books::{Books, Category, Figures, Mode};
use crate::segment::Segment;
use crate::symbols::Symbols;
use plimsoll_facts::shell::one_line;
use plimsoll_facts::units::Bytes;
use plimsoll_profiles::profile::{Column, Entry, FrameId, Labels, NameId, Profile, Value};

mod comparison;
mod estimate;
mod frames;
mod modules;
mod recategorize;
mod wrappers;

pub use comparison::{comparable, of_one_run};
pub use wrappers::Wrappers;

use estimate::{SampleWeight, Times, divide};
use frames::Frames;

pub const LIVE: usize = 0;
pub const LIVE_COUNT: usize = 1;
pub const CUMULATIVE: usize = 2;
pub const CUMULATIVE_COUNT: usize = 3;
pub const REQUESTED: usize = 4;
pub const PEAK: usize = 5;
pub const PEAK_COUNT: usize = 6;
pub const TEMPORARY: usize = 7;
pub const RESERVED: usize = 8;
pub const COMMITTED: usize = 9;
pub const MAPPED: usize = 10;
pub const MAPPED_COUNT: usize = 11;
/// Live blocks, and resident mappings without files. Where the resident part isn't known: live blocks.
pub const HELD: usize = 12;
/// Resident part of the mappings; 0 where it isn't known.
pub const RESIDENT: usize = 13;
/// Part of `COMMITTED` that maps files.
pub const FILES: usize = 14;
const COLUMNS: usize = 15;

/// The columns in the order of these constants.
pub fn columns() -> Vec<Column> {
    vec![
        Column::bytes("live").means("blocks not freed"),
        Column::count("live", "block").means("number of live blocks"),
        Column::bytes("cumulative").means("all blocks allocated since the tracker counts"),
        Column::count("cumulative", "call").means("calls that allocated"),
        Column::bytes("requested").means("what the program requested for the live blocks"),
        Column::bytes("peak").of_many_moments().means("the most that was live"),
        Column::count("peak", "block").of_many_moments().means("number of live blocks at the peak"),
        Column::bytes("temporary").means("blocks freed within 0.1 s"),
        Column::bytes("reserved").means("mapped addresses"),
        Column::bytes("committed").means("mapped and accessible"),
        Column::bytes("mapped").means("by all calls of mmap"),
        Column::count("mapped", "call").means("calls of mmap"),
        Column::bytes("held").means("live blocks, and resident mappings without files"),
        Column::bytes("resident").means("mappings in memory, files too"),
        Column::bytes("mapped_file").means("the part of committed that maps files"),
    ]
}

/// The figures of an entry with all of [`columns`], without resident bytes: a value of 0 may mean that they are
/// unknown. Negative differences, which only two segments can have, are 0.
pub fn figures(values: &[Value]) -> Figures {
    let n = |column: usize| u64::try_from(values[column].amount).unwrap_or(0);
    Figures {
        live: Bytes(n(LIVE)),
        live_count: n(LIVE_COUNT),
        requested: Bytes(n(REQUESTED)),
        peak: Bytes(n(PEAK)),
        count_at_peak: n(PEAK_COUNT),
        cumulative: Bytes(n(CUMULATIVE)),
        cumulative_count: n(CUMULATIVE_COUNT),
        reserved: Bytes(n(RESERVED)),
        committed: Bytes(n(COMMITTED)),
        files: Bytes(n(FILES)),
        ..Figures::default()
    }
}

/// What samples say about a site besides its sums.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    /// Samples taken, and live ones.
    pub samples: u64,
    pub live_samples: u64,
    /// Estimated number of all blocks ever allocated by requested size: below 16, below 32, … below 256 KiB, all
    /// larger.
    pub sizes: [u64; 16],
    /// Age of live samples in ns: of the oldest, and the median by blocks.
    pub oldest_ns: Option<u64>,
    pub median_age_ns: Option<u64>,
    /// Threads that allocated live blocks; those with most bytes first.
    pub threads: Vec<String>,
    /// Variances of live bytes and blocks if no site was missed; used to compare two reports.
    pub division: [f64; 2],
    /// Whether these are blocks of a caller without samples, under its short stack.
    pub unsampled: bool,
}

/// Maximum number of threads named for a site.
const THREADS: usize = 5;

#[derive(Clone, Debug, Default)]
pub struct Sites {
    pub profile: Profile,
    pub details: HashMap<Entry, Detail>,
    /// Whether `HELD` has the resident part of all mappings.
    pub is_resident_known: bool,
}

/// The samples of one site.
#[derive(Clone, Default)]
struct Sampled {
    bytes: SampleWeight,
    requested: SampleWeight,
    count: SampleWeight,
    /// For live samples: (age, blocks), and bytes by thread.
    ages: Vec<(u64, f64)>,
    threads: HashMap<(u32, u64), f64>,
    live: u64,
}

type SiteLine = [Value; COLUMNS];
const NOTHING: SiteLine = [Value { amount: 0, variance: 0.0 }; COLUMNS];

/// Sums of rows: count, bytes and requested bytes, each of allocations and of frees.
type RowTotals = [u64; 6];

impl Sites {
    /// `now_boottime_ns` is the time of the reading, for ages. `by_thread`: entries are divided by allocating thread.
    pub fn new(
        segment: &Segment,
        books: &Books,
        symbols: &mut Symbols,
        now_boottime_ns: u64,
        by_thread: bool,
    ) -> Sites {
        let mut of = SitesBuilder {
            segment,
            books,
            rows: rows(segment),
            sampled: sampled(segment, now_boottime_ns),
            mapped: mapped(segment, books),
            times: times(segment),
            out: Sites {
                profile: Profile::new(columns()),
                is_resident_known: books.is_resident_known(),
                ..Sites::default()
            },
            names: HashMap::new(),
            by_thread,
            by_slot: HashMap::new(),
        };
        of.out.profile.title = title(books);
        of.out.profile.time_ns = books.time_ns;
        if by_thread {
            of.by_slot = rows_by_slot(segment);
        }
        of.build(symbols);
        let total = of.out.profile.total();
        for ((at, column), sum) in of.out.profile.columns.iter_mut().enumerate().zip(total) {
            let is_divided = column.of_one_moment && at != TEMPORARY;
            column.exact_total = (is_divided && sum.variance > 0.0).then_some(sum.amount);
        }
        of.out.profile.gaps = books.gaps.clone();
        of.out.profile.gaps.append(&mut symbols.gaps);
        of.out
    }
}

impl Sites {
    /// The same with innermost frames dropped; `leading` gives their number.
    pub fn trimmed(&self, mut leading: impl FnMut(&Profile, &[FrameId]) -> usize) -> Sites {
        let (profile, to) = self.profile.trimmed(|frames| leading(&self.profile, frames));
        let mut details: HashMap<Entry, Detail> = HashMap::new();
        for (entry, detail) in &self.details {
            let Some(stack) = to.get(&entry.stack) else { continue };
            let entry = Entry { stack: *stack, ..*entry };
            // If several stacks became one, keep the detail with more samples.
            let known = details.entry(entry).or_default();
            if known.samples <= detail.samples {
                known.clone_from(detail);
            }
        }
        Sites { profile, details, ..*self }
    }
}

/// One line that describes the profile.
pub fn title(books: &Books) -> String {
    let process = &books.process;
    let command = if process.arguments.is_empty() { process.executable.clone() } else { one_line(&process.arguments) };
    format!("native memory of {command}, pid {}", process.pid)
}

fn rows(segment: &Segment) -> Vec<RowTotals> {
    let mut sums = vec![RowTotals::default(); segment.callers.len()];
    for row in &segment.rows {
        let Some(sum) = sums.get_mut(row.caller as usize) else { continue };
        let figures =
            [row.alloc_count, row.alloc_bytes, row.alloc_requested, row.free_count, row.free_bytes, row.free_requested];
        sum.iter_mut().zip(figures).for_each(|(s, f)| *s = s.saturating_add(f));
    }
    sums
}

fn rows_by_slot(segment: &Segment) -> HashMap<u32, Vec<(u32, f64)>> {
    let mut by: HashMap<u32, Vec<(u32, f64)>> = HashMap::new();
    for row in segment.rows.iter().filter(|row| row.alloc_count > 0) {
        by.entry(row.caller).or_default().push((row.slot, row.alloc_bytes.max(1) as f64));
    }
    by
}

fn sampled(segment: &Segment, now_ns: u64) -> HashMap<u32, Sampled> {
    let mut by: HashMap<u32, Sampled> = HashMap::new();
    for sample in &segment.samples {
        let of = by.entry(sample.site).or_default();
        let weight = f64::from_bits(sample.weight);
        let weight = if weight.is_finite() { weight.clamp(1.0, 1e12) } else { 1.0 };
        // In exact mode, the site's own rows contain the blocks for which this sample stands.
        if !(segment.head.mode == 2 && sample.time_ns >= segment.head.in_force_ns) {
            of.bytes.add(sample.usable as f64, weight);
            of.requested.add(sample.requested as f64, weight);
            of.count.add(1.0, weight);
        }
        of.live += 1;
        of.ages.push((now_ns.saturating_sub(sample.time_ns), weight));
        *of.threads.entry((sample.slot, sample.generation)).or_default() += sample.usable as f64 * weight;
    }
    by
}

/// The columns of mappings.
const OF_MAPPINGS: [usize; 5] = [RESERVED, COMMITTED, HELD, RESIDENT, FILES];
type Extent = [u64; OF_MAPPINGS.len()];

/// Mapped bytes by entry of `callers` and by category. A mapping's category may differ from its caller's (parts of a
/// native image, whose heap one function maps piece by piece).
fn mapped(segment: &Segment, books: &Books) -> HashMap<u32, BTreeMap<usize, Extent>> {
    let mut by: HashMap<u32, BTreeMap<usize, Extent>> = HashMap::new();
    let Ok(map) = VmaMap::new(&segment.vmap) else { return by };
    let mut beyond_blocks = BeyondBlocks::of(books);
    // The books have one mapping for each entry of the map.
    for (vma, mapping) in map.entries().zip(&books.mappings) {
        let attributes = vma.attributes();
        let known = |index: u32| (index != 0 && (index as usize) < segment.callers.len()).then_some(index);
        let is_file = mapping.is_file();
        let resident = mapping.resident.unwrap_or_default();
        let held = beyond_blocks.held(mapping.category, if is_file { Bytes::ZERO } else { resident });
        let Some(by_whom) = known(attributes.commit_caller()).or_else(|| known(attributes.reserve_caller())) else {
            continue;
        };
        let bytes = vma.end.saturating_sub(vma.start);
        let category = usize::from(attributes.category());
        // As in the books: a mapping with a missing category counts in the first one.
        let category = if category < segment.categories.len() { category } else { 0 };
        let of = by.entry(by_whom).or_default().entry(category).or_default();
        let committed = if mapping.committed { bytes } else { 0 };
        let files = if is_file { committed } else { 0 };
        for (sum, part) in of.iter_mut().zip([bytes, committed, held.0, resident.0, files]) {
            *sum = sum.saturating_add(part);
        }
    }
    by
}

/// The blocks lie in the mappings that malloc made. So these hold only what is beyond the blocks, and each of them has
/// its share of that, in proportion to its resident bytes. Running sums are rounded, so that the shares add up.
struct BeyondBlocks {
    /// Category of malloc's mappings.
    category: Option<usize>,
    resident: Bytes,
    beyond: Bytes,
    run: Bytes,
    given: Bytes,
}

impl BeyondBlocks {
    fn of(books: &Books) -> BeyondBlocks {
        let its = books.mappings_of_malloc();
        let is_its = |category: &Category| its.is_some_and(|its| std::ptr::eq(its, category));
        let resident = its.map(|its| its.figures.resident.unwrap_or_default() - its.figures.resident_files);
        let beyond = its.map(|its| books.held_by(its) - its.figures.live);
        BeyondBlocks {
            category: books.categories.iter().position(is_its),
            resident: resident.unwrap_or_default(),
            beyond: beyond.unwrap_or_default(),
            run: Bytes::ZERO,
            given: Bytes::ZERO,
        }
    }

    /// What a mapping holds. Every mapping must be passed once.
    fn held(&mut self, category: usize, resident: Bytes) -> Bytes {
        if self.category != Some(category) {
            return resident;
        }
        self.run += resident;
        let until = self.beyond.scaled(self.run.0, self.resident.0);
        let part = until - self.given;
        self.given = until;
        part
    }
}

/// Whether every block since the books began could be sampled.
fn times(segment: &Segment) -> Times {
    if segment.head.mode != 0 && segment.mode_changed_ns().is_none() { Times::Whole } else { Times::Parts }
}

struct SitesBuilder<'a> {
    segment: &'a Segment,
    books: &'a Books,
    rows: Vec<RowTotals>,
    sampled: HashMap<u32, Sampled>,
    mapped: HashMap<u32, BTreeMap<usize, Extent>>,
    times: Times,
    out: Sites,
    names: HashMap<String, NameId>,
    by_thread: bool,
    by_slot: HashMap<u32, Vec<(u32, f64)>>,
}

impl SitesBuilder<'_> {
    fn build(&mut self, symbols: &mut Symbols) {
        let (segment, books) = (self.segment, self.books);
        let mut sites_of: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut frames = Frames::new(segment, books);
        frames.program(&mut self.out.profile);
        for (index, facts) in segment.callers.iter().enumerate() {
            if facts.flags & CALLER_SITE == 0 {
                continue;
            }
            let caller = segment.caller_of(index);
            if self.is_used(index) {
                sites_of.entry(caller).or_default().push(index);
                frames.note(facts.stack, facts.first_ns);
            }
        }
        for caller in &books.callers {
            if !caller.figures.is_empty() {
                frames.note_short(&caller.frames);
            }
        }
        frames.name(symbols);

        let mut left: Vec<[i64; COLUMNS]> = books.categories.iter().map(|c| of_figures(&c.figures)).collect();
        for (left, category) in left.iter_mut().zip(&books.categories) {
            left[HELD] = i64::try_from(books.held_by(category).0).unwrap_or(i64::MAX);
        }
        for (index, caller) in books.callers.iter().enumerate() {
            if segment.caller_of(index) != index {
                continue;
            }
            let sites = sites_of.remove(&index).unwrap_or_default();
            if caller.figures.is_empty() && sites.is_empty() && !self.mapped.contains_key(&(index as u32)) {
                continue;
            }
            let divided = self.divide(index, &caller.figures, &sites);
            for (entry, values, detail) in divided {
                if values.iter().all(|v| v.amount == 0) && !self.mapped.contains_key(&(entry.unwrap_or(index) as u32)) {
                    continue;
                }
                let stack = match entry {
                    Some(site) => frames.stack(&mut self.out.profile, symbols, segment.callers[site].stack),
                    None => frames.short(&mut self.out.profile, symbols, &caller.frames),
                };
                let mut stack = stack;
                if entry.is_none() && caller.truncated && !stack.is_empty() {
                    stack.push(self.out.profile.frame(plimsoll_profiles::profile::Frame::truncated()));
                }
                let id = self.out.profile.stack(&stack);
                let raw = entry.unwrap_or(index);
                for (category, values) in self.by_category(raw, caller.category, values) {
                    if let Some(left) = left.get_mut(category) {
                        left.iter_mut().zip(&values).for_each(|(left, v)| *left = left.saturating_sub(v.amount));
                    }
                    let detail = if category == caller.category { detail.clone() } else { Detail::default() };
                    self.add(id, category, raw, &values, detail);
                }
            }
        }
        // Memory without a caller: thread stacks, libraries, Plimsoll's own.
        for (category, left) in left.into_iter().enumerate() {
            let mut values = left.map(|amount| Value { amount, variance: 0.0 });
            for column in [PEAK, PEAK_COUNT, TEMPORARY, MAPPED, MAPPED_COUNT] {
                values[column] = Value::default();
            }
            if values.iter().any(|v| v.amount != 0) {
                let id = self.out.profile.stack(&[]);
                let labels = Labels { category: self.category(category), ..Labels::default() };
                self.out.profile.add(id, labels, &values);
            }
        }
    }

    fn is_used(&self, index: usize) -> bool {
        let calls = mapped_calls(&self.segment.callers[index]);
        self.rows[index] != RowTotals::default() || self.mapped.contains_key(&(index as u32)) || calls != (0, 0)
    }

    fn category(&mut self, index: usize) -> Option<NameId> {
        let name = &self.books.categories.get(index)?.name;
        if let Some(id) = self.names.get(name) {
            return Some(*id);
        }
        let id = self.out.profile.name(name);
        self.names.insert(name.clone(), id);
        Some(id)
    }

    fn add(
        &mut self,
        stack: plimsoll_profiles::profile::StackId,
        category: usize,
        raw: usize,
        values: &SiteLine,
        detail: Detail,
    ) {
        let labels = Labels { category: self.category(category), ..Labels::default() };
        if !self.by_thread {
            self.out.profile.add(stack, labels, values);
            if detail != Detail::default() {
                self.out.details.insert(Entry { stack, labels }, detail);
            }
            return;
        }
        for (thread, values) in self.threads(raw, values) {
            let thread = thread.map(|name| self.out.profile.name(&name));
            self.out.profile.add(stack, Labels { thread, ..labels }, &values);
        }
    }

    /// Divides an entry by thread: live memory by its live samples, cumulative figures by the rows.
    fn threads(&self, raw: usize, values: &SiteLine) -> Vec<(Option<String>, SiteLine)> {
        let allocated: Vec<(String, f64)> = match self.by_slot.get(&(raw as u32)) {
            Some(rows) => rows.iter().map(|(slot, bytes)| (self.thread_name(*slot, None), *bytes)).collect(),
            None => Vec::new(),
        };
        let mut live: Vec<(String, f64)> = match self.sampled.get(&(raw as u32)) {
            Some(s) => s.threads.iter().map(|((slot, g), w)| (self.thread_name(*slot, Some(*g)), *w)).collect(),
            None => Vec::new(),
        };
        if live.is_empty() {
            live.clone_from(&allocated);
        }
        let mut by: HashMap<Option<String>, SiteLine> = HashMap::new();
        for (column, value) in values.iter().enumerate() {
            let shares = if matches!(column, CUMULATIVE | CUMULATIVE_COUNT | TEMPORARY) { &allocated } else { &live };
            let sum: f64 = shares.iter().map(|s| s.1).sum();
            if shares.is_empty() || sum <= 0.0 {
                let of = &mut by.entry(None).or_insert(NOTHING)[column];
                *of = of.plus(*value);
                continue;
            }
            let (mut run, mut given) = (0.0, 0i64);
            for (i, (name, weight)) in shares.iter().enumerate() {
                run += weight;
                let until = if i + 1 == shares.len() { value.amount } else { (value.amount as f64 * run / sum) as i64 };
                let part = Value { amount: until - given, variance: value.variance * weight / sum };
                given = until;
                let of = &mut by.entry(Some(name.clone())).or_insert(NOTHING)[column];
                *of = of.plus(part);
            }
        }
        by.into_iter().collect()
    }

    fn thread_name(&self, slot: u32, generation: Option<u64>) -> String {
        match self.books.threads.get(slot as usize) {
            Some(t) if generation.is_some_and(|g| g != t.generation) => "an earlier thread".into(),
            Some(t) if t.tid == 0 => "threads without a slot".into(),
            Some(t) => match &t.name {
                Some(name) => format!("{name} ({})", t.tid),
                None => t.tid.to_string(),
            },
            None => "unknown".into(),
        }
    }

    /// A caller's figures: for each of its sites, and (`None`) the rest. They sum to the caller's.
    #[allow(clippy::type_complexity)]
    fn divide(&self, caller: usize, figures: &Figures, sites: &[usize]) -> Vec<(Option<usize>, SiteLine, Detail)> {
        let none = Sampled::default();
        let of = |site: &usize| self.sampled.get(&(*site as u32)).unwrap_or(&none);
        let mean = self.segment.head.sample_mean.max(self.segment.counter("sample_mean_highest")) as f64;
        let known = |sums: &RowTotals, column: usize| match column {
            LIVE => sums[1].saturating_sub(sums[4]),
            LIVE_COUNT => sums[0].saturating_sub(sums[3]),
            REQUESTED => sums[2].saturating_sub(sums[5]),
            CUMULATIVE => sums[1],
            _ => sums[0],
        };
        let all = of_figures(figures);
        let mut lines = vec![NOTHING; sites.len()];
        let mut rest = NOTHING;
        let mut division = vec![[0.0; 2]; sites.len()];
        let mean_block = figures.cumulative.0 as f64 / figures.cumulative_count.max(1) as f64;
        for column in [LIVE, LIVE_COUNT, REQUESTED, CUMULATIVE, CUMULATIVE_COUNT] {
            let (mut weights, mut booked, mut counted) = (Vec::with_capacity(sites.len()), Vec::new(), 0u64);
            for site in sites {
                let rows = known(&self.rows[*site], column);
                booked.push(rows);
                counted = counted.saturating_add(rows);
                weights.push(match column {
                    LIVE => of(site).bytes,
                    LIVE_COUNT => of(site).count,
                    REQUESTED => of(site).requested,
                    _ => self.cumulative(*site, column, rows),
                });
            }
            let whole = u64::try_from(all[column]).unwrap_or(0).saturating_sub(counted);
            let unseen =
                if matches!(column, LIVE_COUNT | CUMULATIVE_COUNT) { mean / mean_block.max(1.0) } else { mean };
            let (parts, left) = divide(whole, &weights, self.times, unseen);
            for (i, (booked, part)) in booked.into_iter().zip(parts).enumerate() {
                lines[i][column] = Value::estimated(booked.saturating_add(part.amount), part.variance);
                if let LIVE | LIVE_COUNT = column {
                    division[i][column] = part.division;
                }
            }
            rest[column] = Value::exact(left);
        }
        let exact = self.books.mode == Mode::Exact && self.times == Times::Whole;
        let bytes_at_peak = PeakDivision::of(figures.peak.0, BYTES, &all, lines.iter().chain([&rest]));
        let count_at_peak = PeakDivision::of(figures.count_at_peak, COUNTS, &all, lines.iter().chain([&rest]));
        for (line, site) in lines.iter_mut().zip(sites) {
            let facts = &self.segment.callers[*site];
            let (bytes, count) = match exact && facts.peak_bytes > 0 {
                true => (facts.peak_bytes, facts.count_at_peak),
                false => (bytes_at_peak.part(line), count_at_peak.part(line)),
            };
            let (live, live_count) = (line[LIVE].amount, line[LIVE_COUNT].amount);
            line[PEAK] = Value::exact(bytes.max(live as u64));
            line[PEAK_COUNT] = Value::exact(if bytes > live as u64 { count } else { live_count as u64 });
            if let Some(s) = facts.samples().and_then(|i| self.segment.site_samples.get(i)) {
                let part = s.temporary_bytes as f64 / (s.alloc_bytes.max(1)) as f64;
                line[TEMPORARY] = Value::exact((line[CUMULATIVE].amount as f64 * part.clamp(0.0, 1.0)) as u64);
            }
            self.mappings(*site, line);
        }
        if sites.is_empty() {
            rest[PEAK] = Value::exact(figures.peak.0);
            rest[PEAK_COUNT] = Value::exact(figures.count_at_peak);
        } else {
            rest[PEAK] = match exact {
                true => rest[LIVE],
                false => Value::exact(bytes_at_peak.part(&rest)),
            };
            rest[PEAK_COUNT] = match exact {
                true => rest[LIVE_COUNT],
                false => Value::exact(count_at_peak.part(&rest)),
            };
        }
        self.mappings(caller, &mut rest);
        let of_site = |((site, line), division): ((&usize, SiteLine), [f64; 2])| {
            (Some(*site), line, Detail { division, ..self.detail(*site) })
        };
        let mut out: Vec<_> = sites.iter().zip(lines).zip(division).map(of_site).collect();
        out.push((None, rest, Detail { unsampled: self.books.mode == Mode::Sampled, ..Detail::default() }));
        out
    }

    /// What the samples say about all blocks that a site ever allocated, beyond those in its rows.
    fn cumulative(&self, site: usize, column: usize, rows: u64) -> SampleWeight {
        let Some(s) = self.segment.callers[site].samples().and_then(|i| self.segment.site_samples.get(i)) else {
            return SampleWeight::default();
        };
        let e = if column == CUMULATIVE { s.cumulative_bytes() } else { s.cumulative_count() };
        SampleWeight { beyond: (e.value as f64 - rows as f64).max(0.0), variance: e.variance }
    }

    fn mappings(&self, raw: usize, line: &mut SiteLine) {
        let (calls, bytes) = self.segment.callers.get(raw).map(mapped_calls).unwrap_or_default();
        line[MAPPED] = Value::exact(bytes);
        line[MAPPED_COUNT] = Value::exact(calls);
        line[HELD] = line[LIVE];
    }

    /// An entry's blocks under its caller's category, its mappings under their own.
    fn by_category(&self, raw: usize, category: usize, values: SiteLine) -> Vec<(usize, SiteLine)> {
        let mut lines = vec![(category, values)];
        for (of, extent) in self.mapped.get(&(raw as u32)).into_iter().flatten() {
            if !lines.iter().any(|(c, _)| c == of) {
                lines.push((*of, NOTHING));
            }
            for (_, line) in lines.iter_mut().filter(|(c, _)| c == of) {
                for (column, bytes) in OF_MAPPINGS.into_iter().zip(extent) {
                    line[column] = line[column].plus(Value::exact(*bytes));
                }
            }
        }
        lines.retain(|(_, line)| line.iter().any(|v| v.amount != 0));
        lines
    }

    fn detail(&self, site: usize) -> Detail {
        let mut detail = Detail::default();
        if let Some(s) = self.segment.callers[site].samples().and_then(|i| self.segment.site_samples.get(i)) {
            detail.samples = s.alloc_samples;
            detail.sizes = s.sizes_256.map(|n| n / 256);
        }
        if let Some(s) = self.sampled.get(&(site as u32)) {
            detail.live_samples = s.live;
            let mut ages = s.ages.clone();
            ages.sort_unstable_by_key(|a| a.0);
            detail.oldest_ns = ages.last().map(|a| a.0);
            let half = ages.iter().map(|a| a.1).sum::<f64>() / 2.0;
            let mut run = 0.0;
            detail.median_age_ns = ages
                .iter()
                .find(|a| {
                    run += a.1;
                    run >= half
                })
                .map(|a| a.0);
            let mut threads: Vec<(String, f64)> =
                s.threads.iter().map(|((slot, g), w)| (self.thread_name(*slot, Some(*g)), *w)).collect();
            threads.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            threads.dedup_by(|a, b| a.0 == b.0);
            detail.threads = threads.into_iter().take(THREADS).map(|t| t.0).collect();
        }
        detail
    }
}

const BYTES: [usize; 2] = [LIVE, CUMULATIVE];
const COUNTS: [usize; 2] = [LIVE_COUNT, CUMULATIVE_COUNT];

/// Divides a caller's peak among its sites and the rest. What is live now is each one's own; what the caller held beyond
/// that, and has freed since, is divided in the proportion of what each has freed: nothing more is known of it.
struct PeakDivision {
    columns: [usize; 2],
    peak: u64,
    /// Live now, of the caller.
    held: u64,
    /// What sites and rest have freed. Live and cumulative figures of a site are estimated from different samples, so one may
    /// seem to have freed less than nothing: it counts as nothing.
    freed: f64,
}

impl PeakDivision {
    fn of<'l>(
        peak: u64,
        columns: [usize; 2],
        all: &[i64; COLUMNS],
        lines: impl Iterator<Item = &'l SiteLine>,
    ) -> PeakDivision {
        let freed = lines.map(|line| freed(line, columns)).sum();
        PeakDivision { columns, peak, held: u64::try_from(all[columns[0]]).unwrap_or(0), freed }
    }

    fn part(&self, line: &SiteLine) -> u64 {
        let live = u64::try_from(line[self.columns[0]].amount).unwrap_or(0);
        let of =
            |whole: u64, part: f64, sum: f64| if sum > 0.0 { (whole as f64 * part / sum).round() as u64 } else { 0 };
        match self.peak.checked_sub(self.held) {
            Some(beyond) => live.saturating_add(of(beyond, freed(line, self.columns), self.freed)),
            // The count at the peak of the bytes may be below today's.
            None => of(self.peak, live as f64, self.held as f64),
        }
    }
}

fn freed(line: &SiteLine, [live, cumulative]: [usize; 2]) -> f64 {
    (line[cumulative].amount as f64 - line[live].amount as f64).max(0.0)
}

#[cfg(test)]
mod peak_tests {
    use super::*;

    /// The second site's samples say that more is live than was ever allocated.
    #[test]
    fn the_parts_of_a_peak_add_up() {
        let line = |live: u64, cumulative: u64| {
            let mut line = NOTHING;
            (line[LIVE], line[CUMULATIVE]) = (Value::exact(live), Value::exact(cumulative));
            line
        };
        let lines = [line(10, 45), line(80, 60), line(10, 45), line(0, 0)];
        let mut all = [0; COLUMNS];
        (all[LIVE], all[CUMULATIVE]) = (100, 150);
        let division = PeakDivision::of(140, BYTES, &all, lines.iter());
        assert_eq!(lines.each_ref().map(|line| division.part(line)), [30, 80, 30, 0]);
        // Nothing was freed, or less is said of the peak than is live.
        let division = PeakDivision::of(100, BYTES, &all, [].iter());
        assert_eq!(division.part(&lines[0]), 10);
        let division = PeakDivision::of(50, BYTES, &all, lines.iter());
        assert_eq!(lines.each_ref().map(|line| division.part(line)), [5, 40, 5, 0]);
        let division = PeakDivision::of(u64::MAX, BYTES, &all, [].iter());
        assert_eq!(division.part(&line(i64::MAX as u64, 0)), i64::MAX as u64);
    }
}

/// Number of calls of the mmap family and their bytes, in a site's entry.
fn mapped_calls(facts: &CallerFacts) -> (u64, u64) {
    if facts.is_site() { (facts.frames[1], facts.frames[2]) } else { (0, 0) }
}

fn of_figures(f: &Figures) -> [i64; COLUMNS] {
    let i = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let b = |n: Bytes| i(n.0);
    let mut out = [0; COLUMNS];
    out[LIVE] = b(f.live);
    out[LIVE_COUNT] = i(f.live_count);
    out[CUMULATIVE] = b(f.cumulative);
    out[CUMULATIVE_COUNT] = i(f.cumulative_count);
    out[REQUESTED] = b(f.requested);
    out[RESERVED] = b(f.reserved);
    out[COMMITTED] = b(f.committed);
    out[HELD] = b(f.held());
    out[RESIDENT] = b(f.resident.unwrap_or_default());
    out[FILES] = b(f.files);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// jemalloc mapped 64 resident MiB in four pieces; 60 MiB of live blocks lie in them.
    #[test]
    fn the_mappings_of_malloc_hold_what_is_beyond_its_blocks() {
        let figures = Figures { committed: Bytes::mib(80), resident: Some(Bytes::mib(64)), ..Figures::default() };
        let its = Category { name: "jemalloc".into(), figures, ..Category::default() };
        let mut books = Books { categories: vec![Category::default(), its], ..Books::default() };
        (books.process.allocator, books.total.live) = ("jemalloc", Bytes::mib(60));
        let pieces = [Bytes(1), Bytes::mib(32), Bytes::mib(8), Bytes(24 * (1 << 20) - 1)];
        let mut beyond = BeyondBlocks::of(&books);
        let held = pieces.map(|piece| beyond.held(1, piece));
        assert_eq!(held.into_iter().sum::<Bytes>(), Bytes::mib(4), "{held:?}");
        assert_eq!((held[0], held[1]), (Bytes(0), Bytes::mib(2)));
        assert_eq!(beyond.held(0, Bytes::mib(5)), Bytes::mib(5), "a mapping of the program");
        // More blocks than resident pages: the mappings hold nothing besides.
        books.total.live = Bytes::mib(70);
        let mut beyond = BeyondBlocks::of(&books);
        assert_eq!(pieces.map(|piece| beyond.held(1, piece)), [Bytes::ZERO; 4]);
    }
}
