//! Bytes of a segment → facts. It does no I/O and trusts nothing in the bytes: a contradiction is a gap.
//!
//! The rows are read twice. `free_*` is taken from the first reading and `alloc_*` from the second. So each caller has
//! `allocated ≥ freed`, whatever the program did in between. The reason: the counters only grow, and a block is booked
//! out after it was booked in.

use std::mem::offset_of;

use plimsoll_segment::{
    BadHeader, CallerFacts, CategoryFacts, Composition, ENDED_AT_SHIFT, FrameNodeFacts, Header, HeaderFacts,
    MethodFacts, ModuleFacts, OwnMappingFacts, RowFacts, SampleFacts, Section, SiteSamplesFacts, State, ThreadFacts,
    of_control, sites, text,
};

use super::row_sums::{RowSums, count_moved_blocks_once};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::OwnMapping;
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

/// The bytes read from the file, by section.
#[derive(Clone, Debug, Default)]
pub struct Raw {
    pub header: Vec<u8>,
    pub schema: Vec<u8>,
    pub command: Vec<u8>,
    pub rows_first: Vec<u8>,
    pub rows_second: Vec<u8>,
    /// By how much the live bytes of both readings of the rows may be too high.
    pub rows_skew: u64,
    pub callers: Vec<u8>,
    pub threads: Vec<u8>,
    pub modules: Vec<u8>,
    pub categories: Vec<u8>,
    pub vmap: Vec<u8>,
    pub frames: Vec<u8>,
    pub methods: Vec<u8>,
    pub names: Vec<u8>,
    pub samples: Vec<u8>,
    pub own: Vec<u8>,
    /// Two readings, as for the rows.
    pub site_samples_first: Vec<u8>,
    pub site_samples_second: Vec<u8>,
    /// The map changed during each attempt to copy it.
    pub vmap_moved: bool,
    /// Sections with fewer entries than the header states: entries present, entries counted.
    pub cut: Vec<(Section, u64, u64)>,
}

/// The header's own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Size of the sparse file, and of its mapping.
    pub file_bytes: u64,
    pub pid: u32,
    pub ppid: u32,
    pub start_boottime_ns: u64,
    pub start_realtime_ns: u64,
    pub end_boottime_ns: u64,
    pub state: u32,
    pub mode: u32,
    /// Mean of the sampling in bytes, as it was set, and since when mode and mean apply. While the process
    /// allocates fast, its threads' means are larger.
    pub sample_mean: u64,
    pub in_force_ns: u64,
    /// How and when the process ended, as written by its parent; 0: nothing was written.
    pub ended: u64,
    pub allocator: u32,
    pub runtime: u32,
    /// The valid half of the composition, if there is one.
    pub composition: Option<usize>,
    pub composition_ns: u64,
    pub peak_bytes: u64,
    pub count_at_peak: u64,
    pub peak_ns: u64,
    pub reserved_bytes: u64,
    pub committed_bytes: u64,
    pub peak_reserved_bytes: u64,
    pub peak_committed_bytes: u64,
}

/// A header counter, with the name and unit from the file itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterFacts {
    pub name: String,
    pub unit: String,
    pub value: u64,
}

/// All facts of a segment. Indexes in rows and callers aren't checked against the other sections yet.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    pub head: Head,
    pub counters: Vec<CounterFacts>,
    /// Executable first, then the arguments.
    pub command: Vec<Vec<u8>>,
    pub categories: Vec<CategoryFacts>,
    pub modules: Vec<ModuleFacts>,
    pub threads: Vec<ThreadFacts>,
    /// Callers and sites; see [`Segment::caller_of`].
    pub callers: Vec<CallerFacts>,
    pub rows: Vec<RowSums>,
    /// By how much the live bytes of the rows may be too high, if that is much ([`RowsSkew`]). Otherwise 0.
    pub rows_skew: u64,
    /// The file is cut short: it lacks rows.
    pub lacks_rows: bool,
    /// Stacks of the sites; see [`sites::stack`].
    pub frames: Vec<FrameNodeFacts>,
    pub methods: Vec<MethodFacts>,
    /// Texts of the methods; see [`MethodFacts::names`].
    pub names: Vec<u8>,
    /// Live blocks that were sampled.
    pub samples: Vec<SampleFacts>,
    /// Estimates; [`CallerFacts::samples`] has their indexes.
    pub site_samples: Vec<SiteSamplesFacts>,
    /// The tracker's private mappings.
    pub own_mappings: Vec<OwnMapping>,
    /// The virtual memory map's section, unparsed; its reader checks it.
    pub vmap: Vec<u8>,
    pub gaps: Vec<Gap>,
}

impl Segment {
    /// A counter by name; 0 if the writer didn't have it.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|c| c.name == name).map_or(0, |c| c.value)
    }

    /// When these books began: a later attach starts new ones in the same segment.
    pub(crate) fn begun_ns(&self) -> u64 {
        self.head.start_boottime_ns.max(self.counter("attached_ns"))
    }

    /// When the mode came into force, if that was more than a second after the books began. Booting may take up to a
    /// second.
    pub(crate) fn mode_changed_ns(&self) -> Option<u64> {
        Some(self.head.in_force_ns).filter(|&at| at > self.begun_ns().saturating_add(1_000_000_000))
    }

    /// The caller under which an entry of `callers` counts: a site's blocks also belong to its caller.
    pub fn caller_of(&self, index: usize) -> usize {
        sites::caller_of(&self.callers, index)
    }

    /// CLOCK_BOOTTIME of the latest event that the segment records. For a killed process, it is the last sign of life.
    pub fn last_sign_ns(&self) -> u64 {
        let own = [self.head.start_boottime_ns, self.head.end_boottime_ns, self.head.peak_ns, self.head.composition_ns];
        let threads = self.threads.iter().flat_map(|t| [t.start_ns, t.end_ns]);
        let callers = self.callers.iter().map(|c| c.first_ns);
        let modules = self.modules.iter().flat_map(|m| [m.loaded_ns, m.unloaded_ns]);
        own.into_iter().chain(threads).chain(callers).chain(modules).max().unwrap_or(0)
    }
}

impl Head {
    /// CLOCK_BOOTTIME of the end, ns: of the exit handlers, or when the parent saw it. None: nobody has written it.
    pub fn end_ns(&self) -> Option<u64> {
        let after_ms = self.ended >> ENDED_AT_SHIFT;
        let seen = self.start_boottime_ns.saturating_add(after_ms.saturating_mul(1_000_000));
        match self.end_boottime_ns {
            0 => (after_ms > 0).then_some(seen),
            orderly => Some(orderly),
        }
    }
}

/// `header` is the first page. Only its magic, version and section table are checked here.
pub fn head(header: &[u8]) -> Result<Head, BadHeader> {
    let h = HeaderFacts::parse(header)?;
    let composition = match h.u32(offset_of!(Header, composition)) {
        half @ (0 | 1) => Some(half as usize),
        _ => None,
    };
    let half = offset_of!(Header, compositions) + composition.unwrap_or(0) * size_of::<Composition>();
    Ok(Head {
        file_bytes: h.u64(offset_of!(Header, file_bytes)),
        pid: h.u32(offset_of!(Header, pid)),
        ppid: h.u32(offset_of!(Header, ppid)),
        start_boottime_ns: h.u64(offset_of!(Header, start_boottime_ns)),
        start_realtime_ns: h.u64(offset_of!(Header, start_realtime_ns)),
        end_boottime_ns: h.u64(offset_of!(Header, end_boottime_ns)),
        state: h.u32(offset_of!(Header, state)),
        mode: h.u32(offset_of!(Header, mode)),
        sample_mean: of_control(h.u64(offset_of!(Header, in_force))).1,
        in_force_ns: h.u64(offset_of!(Header, in_force_ns)),
        ended: h.u64(offset_of!(Header, ended)),
        allocator: h.u32(offset_of!(Header, allocator)),
        runtime: h.u32(offset_of!(Header, runtime)),
        composition,
        composition_ns: if composition.is_some() { h.u64(half + offset_of!(Composition, time_ns)) } else { 0 },
        peak_bytes: h.u64(offset_of!(Header, peak_bytes)),
        count_at_peak: h.u64(offset_of!(Header, count_at_peak)),
        peak_ns: h.u64(offset_of!(Header, peak_ns)),
        reserved_bytes: h.u64(offset_of!(Header, reserved_bytes)),
        committed_bytes: h.u64(offset_of!(Header, committed_bytes)),
        peak_reserved_bytes: h.u64(offset_of!(Header, peak_reserved_bytes)),
        peak_committed_bytes: h.u64(offset_of!(Header, peak_committed_bytes)),
    })
}

/// The tracker's own mappings. Invalid and incomplete entries are left out.
pub fn own_mappings(section: &[u8]) -> Vec<OwnMapping> {
    let listed = entries(section, Section::Own, OwnMappingFacts::decode).into_iter();
    let range = |own: &OwnMappingFacts| AddressRange::new(Avma(own.start), Avma(own.start.saturating_add(own.bytes)));
    let complete = listed.filter(|own| own.bytes > 0);
    complete.map(|own| OwnMapping { range: range(&own), purpose: own.purpose }).collect()
}

/// Joins the sections. Parts that can't be read become gaps.
pub fn segment(raw: &Raw) -> Result<Segment, BadHeader> {
    let facts = HeaderFacts::parse(&raw.header)?;
    let head = head(&raw.header)?;
    let mut gaps = Vec::new();
    if head.state == State::Booting as u32 {
        gaps.push(gap("the process was killed while starting, or is starting now", "everything is incomplete"));
    }
    if raw.vmap_moved {
        gaps.push(gap(
            "the virtual memory map changed while it was copied",
            "reserved and committed may be of two moments",
        ));
    }
    if raw.rows_skew > 0 {
        let bytes = Bytes(raw.rows_skew);
        gaps.push(gap(
            &format!("the program allocated and freed {bytes} or more while the rows were read"),
            &format!("live bytes may be up to {bytes} too high"),
        ));
    }
    let counters = counters(&facts, &raw.schema, &mut gaps);
    let command = raw.command.split(|&b| b == 0).filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect();
    let categories = entries(&raw.categories, Section::Categories, CategoryFacts::decode);
    let callers = entries(&raw.callers, Section::Callers, CallerFacts::decode);
    let mut rows = rows(&raw.rows_first, &raw.rows_second);
    let mut site_samples = site_samples(&raw.site_samples_first, &raw.site_samples_second);
    count_moved_blocks_once(&mut rows, &mut site_samples, &callers);
    for (section, have, used) in &raw.cut {
        let name = plimsoll_segment::SECTION_NAMES[*section as usize];
        gaps.push(gap(
            &format!("the file is cut short: it has {have} of the {used} entries of its section '{name}'"),
            "figures that need the missing ones are too low or in 'other'",
        ));
    }
    Ok(Segment {
        head,
        counters,
        command,
        categories,
        modules: entries(&raw.modules, Section::Modules, ModuleFacts::decode),
        threads: entries(&raw.threads, Section::Threads, ThreadFacts::decode),
        callers,
        rows,
        rows_skew: raw.rows_skew,
        lacks_rows: raw.cut.iter().any(|(section, ..)| *section == Section::Rows),
        frames: entries(&raw.frames, Section::Frames, FrameNodeFacts::decode),
        methods: entries(&raw.methods, Section::Methods, MethodFacts::decode),
        names: raw.names.clone(),
        samples: entries(&raw.samples, Section::Samples, SampleFacts::decode)
            .into_iter()
            .filter(|sample| sample.address > 1)
            .collect(),
        site_samples,
        own_mappings: own_mappings(&raw.own),
        vmap: raw.vmap.clone(),
        gaps,
    })
}

fn gap(reason: &str, effect: &str) -> Gap {
    Gap::new(Source::Segment, reason, effect)
}

fn entries<T>(bytes: &[u8], section: Section, decode: fn(&[u8]) -> Option<T>) -> Vec<T> {
    bytes.chunks_exact(section.entry_bytes()).filter_map(decode).collect()
}

/// Pairs the entries of both readings. An entry added after the first reading had no frees at that time, so it reads as
/// zeros there.
fn twice<'a>(first: &'a [u8], second: &'a [u8], section: Section) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    static NOTHING: [u8; 256] = [0; 256];
    let mut first = first.chunks_exact(section.entry_bytes());
    second.chunks_exact(section.entry_bytes()).map(move |second| (first.next().unwrap_or(&NOTHING), second))
}

/// How well two readings of the rows fit together.
///
/// ```text
/// live = allocated (second) − freed (first) = live at the second reading + freed between the readings
///                                           = live at the first reading + allocated between the readings
/// ```
/// So the smaller of the two amounts is how much live may be too high for the closer moment, in the sum and for every
/// caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowsSkew {
    pub bytes: u64,
    live: u64,
}

impl RowsSkew {
    pub(super) fn of(first: &[u8], second: &[u8]) -> RowsSkew {
        let (mut allocated, mut freed, mut live) = (0u64, 0u64, 0u64);
        for (first, second) in twice(first, second, Section::Rows) {
            let (Some(first), Some(second)) = (RowFacts::decode(first), RowFacts::decode(second)) else { continue };
            allocated = allocated.saturating_add(second.alloc_bytes.saturating_sub(first.alloc_bytes));
            freed = freed.saturating_add(second.free_bytes.saturating_sub(first.free_bytes));
            live = live.wrapping_add(second.alloc_bytes).wrapping_sub(first.free_bytes);
        }
        RowsSkew { bytes: allocated.min(freed), live }
    }

    /// Whether the skew is more than 1 % of the live bytes. A few pages are never much.
    pub(super) fn is_much(self) -> bool {
        self.bytes > (self.live / 100).max(64 << 10)
    }
}

fn rows(first: &[u8], second: &[u8]) -> Vec<RowSums> {
    let rows = twice(first, second, Section::Rows).filter_map(|(first, second)| {
        let (first, second) = (RowFacts::decode(first)?, RowFacts::decode(second)?);
        // A key of 0 is an entry that is claimed but not complete: it holds nothing yet.
        let slot = second.slot.checked_sub(1)?;
        Some(RowSums {
            caller: second.caller,
            slot,
            alloc_count: second.alloc_count,
            alloc_bytes: second.alloc_bytes,
            alloc_requested: second.alloc_requested,
            free_count: first.free_count,
            free_bytes: first.free_bytes,
            free_requested: first.free_requested,
        })
    });
    rows.collect()
}

/// Like the rows: frees from the first reading, allocations from the second.
fn site_samples(first: &[u8], second: &[u8]) -> Vec<SiteSamplesFacts> {
    let joined = twice(first, second, Section::SiteSamples).filter_map(|(first, second)| {
        let (first, second) = (SiteSamplesFacts::decode(first)?, SiteSamplesFacts::decode(second)?);
        Some(SiteSamplesFacts {
            free_samples: first.free_samples,
            free_bytes: first.free_bytes,
            free_requested: first.free_requested,
            free_count_256: first.free_count_256,
            temporary_bytes: first.temporary_bytes,
            temporary_count_256: first.temporary_count_256,
            free_bytes_variance: first.free_bytes_variance,
            free_count_variance: first.free_count_variance,
            ..second
        })
    });
    joined.collect()
}

/// The schema page has the names of the file's own counters: after the title, one line `name unit` each.
pub(super) fn counters(facts: &HeaderFacts<'_>, schema: &[u8], gaps: &mut Vec<Gap>) -> Vec<CounterFacts> {
    let count = facts.u32(offset_of!(Header, counters)) as usize;
    let room = plimsoll_segment::counters::COUNTER_CAPACITY;
    if count > room {
        gaps.push(gap(&format!("the header claims {count} counters, there is room for {room}"), "the others are lost"));
    }
    let schema = String::from_utf8_lossy(text(schema)).into_owned();
    let mut lines = schema.lines();
    if lines.next() != plimsoll_segment::counters::SCHEMA.lines().next() {
        gaps.push(gap("the schema page doesn't begin with its title", "counters may be missing"));
    }
    let values = (0..count.min(room)).map(|i| facts.u64(offset_of!(Header, values) + 8 * i));
    lines
        .zip(values)
        .filter_map(|(line, value)| {
            let (name, unit) = line.split_once(' ')?;
            Some(CounterFacts { name: name.into(), unit: unit.into(), value })
        })
        .collect()
}
