//! Bytes of a segment → facts. No I/O, and nothing in the bytes is believed: a contradiction is a gap.
//!
//! The rows come twice. All `free_*` are taken from the first reading and all `alloc_*` from the second, so that for each
//! caller `allocated ≥ freed` whatever the program did in between (the counters are monotone, and a block is booked out
//! only after it was booked in).

use std::mem::offset_of;

use plimsoll_segment::{
    BadHeader, CallerFacts, CategoryFacts, Composition, FrameNodeFacts, Header, HeaderFacts, MethodFacts, ModuleFacts,
    OwnMappingFacts, RowFacts, SampleFacts, Section, SiteSamplesFacts, State, ThreadFacts, of_control, sites, text,
};

use crate::gap::{Gap, Source};
use crate::snapshot::OwnMapping;
use crate::units::{AddressRange, Avma};

/// What was read from the file, section by section.
#[derive(Clone, Debug, Default)]
pub struct Raw {
    pub header: Vec<u8>,
    pub schema: Vec<u8>,
    pub command: Vec<u8>,
    pub rows_first: Vec<u8>,
    pub rows_second: Vec<u8>,
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
    /// Twice, as the rows are.
    pub site_samples_first: Vec<u8>,
    pub site_samples_second: Vec<u8>,
    /// The map changed during each of the tries to copy it.
    pub vmap_moved: bool,
    /// Sections that were shorter than the header in force when they were read: entries had, entries counted.
    pub cut: Vec<(Section, u64, u64)>,
}

/// The header's own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Size of the sparse file, which is also that of its mapping.
    pub file_bytes: u64,
    pub pid: u32,
    pub ppid: u32,
    pub start_boottime_ns: u64,
    pub start_realtime_ns: u64,
    pub end_boottime_ns: u64,
    pub state: u32,
    pub mode: u32,
    /// Mean of the sampling in force, bytes, and since when mode and mean are in force.
    pub sample_mean: u64,
    pub in_force_ns: u64,
    /// What the parent has written of the end; 0 nothing.
    pub ended: u64,
    pub allocator: u32,
    pub runtime: u32,
    /// Which half of the composition is valid, if one is.
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

/// A header counter by the name and unit that the file itself gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterFacts {
    pub name: String,
    pub unit: String,
    pub value: u64,
}

/// A row after both readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSums {
    pub caller: u32,
    /// Thread slot.
    pub slot: u32,
    pub alloc_count: u64,
    pub alloc_bytes: u64,
    pub alloc_requested: u64,
    pub free_count: u64,
    pub free_bytes: u64,
    pub free_requested: u64,
}

/// All facts of a segment. Indexes in rows and callers are not yet checked against the other sections.
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
    /// Stacks of the sites: [`sites::stack`].
    pub frames: Vec<FrameNodeFacts>,
    pub methods: Vec<MethodFacts>,
    /// Texts of the methods: [`MethodFacts::names`].
    pub names: Vec<u8>,
    /// Live blocks that were sampled.
    pub samples: Vec<SampleFacts>,
    /// Estimates; indexes are those of [`CallerFacts::samples`].
    pub site_samples: Vec<SiteSamplesFacts>,
    /// The tracker's private mappings.
    pub own_mappings: Vec<OwnMapping>,
    /// The virtual memory map's section as it is; its reader checks it.
    pub vmap: Vec<u8>,
    pub gaps: Vec<Gap>,
}

impl Segment {
    /// A counter by name; 0 where the writer didn't know it.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|c| c.name == name).map_or(0, |c| c.value)
    }

    /// When these books began: a later attach begins new ones in the same segment.
    pub fn begun_ns(&self) -> u64 {
        self.head.start_boottime_ns.max(self.counter("attached_ns"))
    }

    /// When the mode came into force, if that was after the books' beginning: more than a second, which boot may take.
    pub fn mode_changed_ns(&self) -> Option<u64> {
        Some(self.head.in_force_ns).filter(|&at| at > self.begun_ns().saturating_add(1_000_000_000))
    }

    /// The caller that an entry of `callers` counts for: a site's blocks are its caller's too.
    pub fn caller_of(&self, index: usize) -> usize {
        sites::caller_of(&self.callers, index)
    }

    /// CLOCK_BOOTTIME of the last moment that the segment itself tells of: what a killed process leaves.
    pub fn last_sign_ns(&self) -> u64 {
        let own = [self.head.start_boottime_ns, self.head.end_boottime_ns, self.head.peak_ns, self.head.composition_ns];
        let threads = self.threads.iter().flat_map(|t| [t.start_ns, t.end_ns]);
        let callers = self.callers.iter().map(|c| c.first_ns);
        let modules = self.modules.iter().flat_map(|m| [m.loaded_ns, m.unloaded_ns]);
        own.into_iter().chain(threads).chain(callers).chain(modules).max().unwrap_or(0)
    }
}

/// `header` is the first page; only its own magic, version and section table are judged here.
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

/// The tracker's own mappings. What is no range, or not complete, is left out.
pub fn own_mappings(section: &[u8]) -> Vec<OwnMapping> {
    let listed = entries(section, Section::Own, OwnMappingFacts::decode).into_iter();
    let range = |own: &OwnMappingFacts| AddressRange::new(Avma(own.start), Avma(own.start.saturating_add(own.bytes)));
    let complete = listed.filter(|own| own.bytes > 0);
    complete.map(|own| OwnMapping { range: range(&own), purpose: own.purpose }).collect()
}

/// Joins the sections. Total: what can't be read is a gap.
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
    let counters = counters(&facts, &raw.schema, &mut gaps);
    let command = raw.command.split(|&b| b == 0).filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect();
    let categories = entries(&raw.categories, Section::Categories, CategoryFacts::decode);
    let rows = rows(&raw.rows_first, &raw.rows_second);
    for (section, have, used) in &raw.cut {
        let name = plimsoll_segment::SECTION_NAMES[*section as usize];
        gaps.push(gap(
            &format!("the file holds {have} of the {used} {name} that its header counts"),
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
        callers: entries(&raw.callers, Section::Callers, CallerFacts::decode),
        rows,
        frames: entries(&raw.frames, Section::Frames, FrameNodeFacts::decode),
        methods: entries(&raw.methods, Section::Methods, MethodFacts::decode),
        names: raw.names.clone(),
        samples: entries(&raw.samples, Section::Samples, SampleFacts::decode)
            .into_iter()
            .filter(|sample| sample.address > 1)
            .collect(),
        site_samples: site_samples(&raw.site_samples_first, &raw.site_samples_second),
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

/// Entries of both readings. One that came after the first had nothing freed in it by then: it reads as zeros there.
fn twice<'a>(first: &'a [u8], second: &'a [u8], section: Section) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    static NOTHING: [u8; 256] = [0; 256];
    let mut first = first.chunks_exact(section.entry_bytes());
    second.chunks_exact(section.entry_bytes()).map(move |second| (first.next().unwrap_or(&NOTHING), second))
}

fn rows(first: &[u8], second: &[u8]) -> Vec<RowSums> {
    let rows = twice(first, second, Section::Rows).filter_map(|(first, second)| {
        let (first, second) = (RowFacts::decode(first)?, RowFacts::decode(second)?);
        // A key of 0 is an entry between claim and completion: it holds nothing yet.
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

/// As the rows: what is freed from the first reading, what is allocated from the second.
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

/// The schema page says what the file's own counters are called: a line `name unit` each, after the title line.
fn counters(facts: &HeaderFacts<'_>, schema: &[u8], gaps: &mut Vec<Gap>) -> Vec<CounterFacts> {
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
