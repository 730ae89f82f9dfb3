//! Walks all chunks of a file and all events of a chunk.
//!
//! A finished chunk's header gives the offsets of its metadata and last checkpoint. An unfinished chunk's header has
//! none, or those of the last flush. So the walker first steps through such a chunk by the sizes of its events to find
//! them. It does the same if a finished chunk's header or chain is wrong. A copy of a chunk may be cut off: then stepping
//! may not meet the metadata (Plimsoll's lie inside an event), and the header's offset is tried last.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::Limits;
use super::chunk::Header;
use super::cursor::{Broken, Cursor, Parsed};
use super::event::{self, Event};
use super::flaw::Flaw;
use super::pools::{self, Pools};
use super::schema::Schema;
use super::types::Type;
use super::value::Chunk;
use super::window::Window;
use crate::format::{CHECKPOINT, HEADER_BYTES, MAGIC, METADATA};

/// Selects the events that are passed to the visitor.
pub struct EventFilter {
    by_type: Box<dyn Fn(&Type) -> bool>,
    from_ns: i64,
    to_ns: i64,
}

impl EventFilter {
    /// Every event.
    pub fn all() -> EventFilter {
        EventFilter::when(|_| true)
    }

    /// Events of these types: `jdk.ResidentSetSize`.
    pub fn named(names: &[&str]) -> EventFilter {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        EventFilter::when(move |of| names.contains(&of.name))
    }

    /// Selects by the event's type as declared in the chunk's metadata.
    pub fn when(by_type: impl Fn(&Type) -> bool + 'static) -> EventFilter {
        EventFilter { by_type: Box::new(by_type), from_ns: i64::MIN, to_ns: i64::MAX }
    }

    /// Keeps only events that begin within these times (ns since 1970 UTC, both inclusive).
    pub fn between(self, from_ns: Option<i64>, to_ns: Option<i64>) -> EventFilter {
        EventFilter { from_ns: from_ns.unwrap_or(i64::MIN), to_ns: to_ns.unwrap_or(i64::MAX), ..self }
    }

    fn is_bounded(&self) -> bool {
        (self.from_ns, self.to_ns) != (i64::MIN, i64::MAX)
    }
}

/// One chunk of a recording.
#[derive(Clone, Debug)]
pub struct ChunkSummary {
    /// Name of the input.
    pub file: Option<PathBuf>,
    /// Offset of its header, in bytes from the start of the input.
    pub offset: u64,
    /// Size of a finished chunk; for an unfinished one, the bytes up to the end of the last complete event.
    pub bytes: u64,
    /// Major and minor version.
    pub version: (u16, u16),
    /// Begin, ns since 1970 UTC.
    pub begin_ns: i64,
    /// End, ns since 1970 UTC; for an unfinished chunk, the time of its last metadata or checkpoint.
    pub end_ns: i64,
    /// False if the recorder was killed or is still writing the chunk.
    pub is_finished: bool,
}

/// What a recording holds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Chunks in the order of the inputs.
    pub chunks: Vec<ChunkSummary>,
    /// Number of events by type, selected or not; without checkpoints and metadata.
    pub counts: BTreeMap<String, u64>,
    /// What could not be read, in the order in which it was found, up to `Limits::flaws`.
    pub flaws: Vec<Flaw>,
    /// Number of further flaws beyond that limit.
    pub more_flaws: u64,
}

enum ReadProblem {
    Io(io::Error),
    Broken(u64, &'static str),
}

impl From<io::Error> for ReadProblem {
    fn from(error: io::Error) -> ReadProblem {
        ReadProblem::Io(error)
    }
}

/// Bytes of an event's size and type: at most 9 each.
const HEAD: usize = 18;

fn head(bytes: &[u8], compressed: bool) -> Parsed<(u64, i64)> {
    let mut cursor = Cursor::new(bytes, compressed);
    let (size, id) = (cursor.count()?, cursor.i64()?);
    if size < cursor.at {
        return Err(Broken::Malformed("an event smaller than its own header"));
    }
    Ok((size as u64, id))
}

pub(super) struct Walker {
    limits: Limits,
    file: Option<PathBuf>,
    /// Where the last unfinished chunk of this file ended, if the bytes behind it were reported as skipped.
    skipped_from: Option<u64>,
    pub summary: Summary,
    pools: Pools,
    starts: Vec<u32>,
    /// Schema of the previous chunk, used if the recorder was killed before it wrote this chunk's own.
    schema: Option<Schema>,
}

/// Result of stepping through a chunk.
#[derive(Default)]
struct Steps {
    metadata: Option<u64>,
    checkpoints: Vec<u64>,
    /// Offset after the last complete event.
    end: u64,
    last_ns: i64,
    reason: Option<&'static str>,
}

/// How to handle the events of one type.
struct Slot {
    type_index: u32,
    is_wanted: bool,
    count: u64,
    broken: u64,
    /// Number of events that were skipped, because they have more fields than the limit allows.
    skipped: u64,
}

impl Walker {
    pub(super) fn new(limits: Limits) -> Walker {
        Walker {
            pools: Pools::new(limits.decoding),
            limits,
            file: None,
            skipped_from: None,
            summary: Summary::default(),
            starts: vec![],
            schema: None,
        }
    }

    pub(super) fn begin_file(&mut self, path: Option<&Path>) {
        self.file = path.map(Path::to_path_buf);
        self.skipped_from = None;
    }

    pub(super) fn flaw(&mut self, offset: u64, what: &str) {
        self.flaw_with(offset, what, "the events there are missing");
    }

    fn flaw_with(&mut self, offset: u64, what: &str, effect: &'static str) {
        if self.summary.flaws.len() >= self.limits.flaws {
            self.summary.more_flaws += 1;
            return;
        }
        self.summary.flaws.push(Flaw { file: self.file.clone(), offset, what: what.to_owned(), effect });
    }

    fn problem(&mut self, base: u64, problem: ReadProblem) {
        match problem {
            ReadProblem::Io(error) => self.flaw(base, &format!("can't be read: {error}")),
            ReadProblem::Broken(offset, what) => self.flaw(offset, what),
        }
    }

    /// Walks every chunk of a file.
    pub(super) fn file(
        &mut self,
        window: &mut Window<'_>,
        wanted: &EventFilter,
        visit: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut base = 0;
        while let Some((header, steps)) = self.next_chunk(window, &mut base) {
            let end = steps.as_ref().map_or(base.saturating_add(header.size), |steps| steps.end);
            let chunk = self.summary.chunks.last().map_or(i64::MAX, |chunk| chunk.end_ns);
            // No event begins after the end of its chunk. An event may have begun before the chunk's start.
            if steps.is_some() || chunk >= wanted.from_ns {
                match self.chunk(window, (base, end), &header, steps, wanted, visit) {
                    Ok(ControlFlow::Break(())) => return ControlFlow::Break(()),
                    Ok(ControlFlow::Continue(())) => {}
                    Err(problem) => self.problem(base, problem),
                }
            }
            base = end;
        }
        ControlFlow::Continue(())
    }

    pub(super) fn outline(&mut self, window: &mut Window<'_>) {
        let mut base = 0;
        while let Some((header, steps)) = self.next_chunk(window, &mut base) {
            base = steps.map_or(base.saturating_add(header.size), |steps| steps.end);
        }
    }

    /// Finds the chunk at `base`, or the next valid one, and adds it to the summary.
    fn next_chunk(&mut self, window: &mut Window<'_>, base: &mut u64) -> Option<(Header, Option<Steps>)> {
        while *base < window.length {
            let header = match window.view(*base, HEADER_BYTES) {
                Ok(bytes) => Header::parse(bytes),
                Err(error) => {
                    self.problem(*base, ReadProblem::Io(error));
                    return None;
                }
            };
            match header {
                Ok(header) => {
                    let end = base.saturating_add(header.size);
                    let is_finished = header.state == 0 && header.size >= HEADER_BYTES as u64 && end <= window.length;
                    let steps = if is_finished { None } else { self.steps_or_flaw(window, *base, &header) };
                    let (bytes, end_ns) = match &steps {
                        Some(steps) => (steps.end - *base, steps.last_ns.max(header.start_ns)),
                        None if is_finished => (header.size, header.end_ns()),
                        None => return None,
                    };
                    self.summary.chunks.push(ChunkSummary {
                        file: self.file.clone(),
                        offset: *base,
                        bytes,
                        version: (header.major, header.minor),
                        begin_ns: header.start_ns,
                        end_ns,
                        is_finished,
                    });
                    return Some((header, steps));
                }
                Err(reason) => {
                    let next = find_chunk(window, *base + 1);
                    let to = next.unwrap_or(window.length);
                    // Stepping has reported the bytes behind the last event already.
                    if self.skipped_from != Some(*base) {
                        self.flaw(*base, &format!("{reason}; {}", skipped(to - *base, "")));
                    }
                    *base = next?;
                }
            }
        }
        None
    }

    fn steps_or_flaw(&mut self, window: &mut Window<'_>, base: u64, header: &Header) -> Option<Steps> {
        let steps = match step_through(window, base, window.length, header, &self.limits) {
            Ok(steps) => steps,
            Err(error) => {
                self.problem(base, ReadProblem::Io(error));
                return None;
            }
        };
        let rest = match (steps.reason, find_chunk(window, steps.end)) {
            (None, _) => 0,
            (Some(_), next) => next.unwrap_or(window.length) - steps.end,
        };
        if let Some(reason) = steps.reason {
            self.flaw(steps.end, &format!("{reason}; {}", skipped(rest, " of an unfinished chunk")));
            self.skipped_from = Some(steps.end);
        }
        Some(steps)
    }

    fn chunk(
        &mut self,
        window: &mut Window<'_>,
        (base, end): (u64, u64),
        header: &Header,
        steps: Option<Steps>,
        wanted: &EventFilter,
        visit: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ReadProblem> {
        let mut steps = steps;
        // The offset of a flush may be wrong, so in an unfinished chunk metadata found by stepping comes first.
        let offset = steps.as_ref().map_or(Some(base.saturating_add(header.metadata)), |steps| steps.metadata);
        let parsed = offset.map(|offset| self.metadata(window, offset, end, header)).transpose();
        let schema = match parsed {
            Ok(Some(schema)) => schema,
            failed => {
                if let Err(problem) = failed {
                    self.problem(base, problem);
                }
                // The metadata may exist although the header's offset is wrong, or although stepping doesn't meet them.
                let found = match &steps {
                    Some(_) => self.metadata(window, base.saturating_add(header.metadata), end, header).ok(),
                    None => {
                        let found = step_through(window, base, end, header, &self.limits)?;
                        let offset = found.metadata;
                        steps = Some(found);
                        offset.and_then(|offset| self.metadata(window, offset, end, header).ok())
                    }
                };
                let before = self.schema.take();
                match found.or_else(|| before.inspect(|_| self.borrowed(base))) {
                    Some(schema) => schema,
                    None => {
                        self.flaw(base, "a chunk without metadata: its events can't be read");
                        return Ok(ControlFlow::Continue(()));
                    }
                }
            }
        };
        let mut slots = Slots::new(&schema, wanted);
        self.pools.begin(&schema, slots.wanted());
        self.pools.allow(end - base);
        if self.pools.wants_any() {
            let checkpoints = match &mut steps {
                Some(steps) => std::mem::take(&mut steps.checkpoints),
                None => match self.chain(window, base, end, header) {
                    Ok(chain) => chain,
                    Err(problem) => {
                        self.problem(base, problem);
                        step_through(window, base, end, header, &self.limits)?.checkpoints
                    }
                },
            };
            self.constants(window, &checkpoints, end, header, &schema);
        }
        let done = self.events(window, (base, end), header, &schema, &mut slots, wanted, visit);
        if self.pools.is_exhausted() {
            let what = "decoding its texts and stacks exceeds the limit for a recording of this size";
            self.flaw_with(base, what, "names and stacks are missing to the end of this chunk");
        }
        slots.report(self, &schema, base);
        self.schema = Some(schema);
        done
    }

    fn borrowed(&mut self, base: u64) {
        let effect = "its events are read with the types of the previous chunk";
        self.flaw_with(base, "the chunk was cut off before its metadata was written", effect);
    }

    fn metadata(&self, window: &mut Window<'_>, at: u64, end: u64, header: &Header) -> Result<Schema, ReadProblem> {
        let broken = |broken| match broken {
            Broken::Short => ReadProblem::Broken(at, "metadata that is cut off"),
            Broken::Malformed(what) => ReadProblem::Broken(at, what),
        };
        let (size, id) = head(window.view(at, HEAD)?, header.compressed).map_err(broken)?;
        if id != METADATA || size > end.saturating_sub(at) {
            return Err(ReadProblem::Broken(at, "no metadata where the header has it"));
        }
        if size > self.limits.metadata as u64 {
            return Err(ReadProblem::Broken(at, "metadata beyond the limit of this reader"));
        }
        let bytes = window.view(at, size as usize)?;
        let bytes = bytes.get(..size as usize).ok_or(ReadProblem::Broken(at, "metadata that is cut off"))?;
        Schema::parse(bytes, header.compressed).map_err(broken)
    }

    /// Offsets of the checkpoints in the order of the file, found by following their chain.
    fn chain(&self, window: &Window<'_>, base: u64, end: u64, header: &Header) -> Result<Vec<u64>, ReadProblem> {
        let mut at = base.saturating_add(header.checkpoint);
        let (mut chain, mut bytes) = (vec![], [0; 64]);
        loop {
            if at < base + HEADER_BYTES as u64 || at >= end {
                return Err(ReadProblem::Broken(at, "the chain of checkpoints leads out of the chunk"));
            }
            let bytes = window.peek(at, &mut bytes)?;
            let checkpoint = pools::checkpoint(&mut Cursor::new(bytes, header.compressed));
            let delta = match checkpoint {
                Ok(checkpoint) => checkpoint.delta,
                Err(_) => return Err(ReadProblem::Broken(at, "the chain of checkpoints leads to something else")),
            };
            chain.push(at);
            if delta == 0 {
                break;
            }
            if delta > 0 || chain.len() >= self.limits.checkpoints {
                return Err(ReadProblem::Broken(at, "the chain of checkpoints doesn't lead backwards"));
            }
            at = at.saturating_sub(delta.unsigned_abs());
        }
        chain.reverse();
        Ok(chain)
    }

    fn constants(&mut self, window: &mut Window<'_>, checkpoints: &[u64], end: u64, header: &Header, schema: &Schema) {
        for (number, at) in checkpoints.iter().enumerate() {
            // Never read beyond the next checkpoint: overlapping ones would cost the square of their size.
            let end = checkpoints.get(number + 1).map_or(end, |next| end.min(*next));
            if let Err(problem) = self.checkpoint(window, *at, end, header, schema) {
                let (offset, what) = match problem {
                    ReadProblem::Io(error) => (*at, format!("can't be read: {error}")),
                    ReadProblem::Broken(offset, what) => (offset, what.to_string()),
                };
                self.flaw_with(offset, &what, "names, stacks and threads from there on are missing");
            }
        }
        self.pools.finish();
        if self.pools.left_out.0 > 0 {
            let (count, bytes) = self.pools.left_out;
            let at = checkpoints.first().copied().unwrap_or(0);
            let what = format!("{count} constants ({bytes} bytes) beyond the limit of this reader");
            self.flaw_with(at, &what, "names, stacks and threads are missing");
        }
    }

    fn checkpoint(
        &mut self,
        window: &mut Window<'_>,
        offset: u64,
        end: u64,
        header: &Header,
        schema: &Schema,
    ) -> Result<(), ReadProblem> {
        let broken = |at: u64| {
            move |broken| match broken {
                Broken::Short => ReadProblem::Broken(at, "a checkpoint that is cut off"),
                Broken::Malformed(what) => ReadProblem::Broken(at, what),
            }
        };
        let bytes = window.view(offset, 64)?;
        let (size, _) = head(bytes, header.compressed).map_err(broken(offset))?;
        let end = end.min(offset.saturating_add(size));
        let mut cursor = Cursor::new(bytes, header.compressed);
        let count = pools::checkpoint(&mut cursor).map_err(broken(offset))?.pools;
        let mut at = offset + cursor.at as u64;
        for _ in 0..count {
            let bytes = window.view(at, HEAD)?;
            let available = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
            let mut cursor = Cursor::new(&bytes[..bytes.len().min(available)], header.compressed);
            let pool = (|| Ok((cursor.i64()?, cursor.count()?)))().map_err(broken(at))?;
            let (id, mut left) = pool;
            let Some(type_index) = schema.index_of(id) else {
                return Err(ReadProblem::Broken(at, "constants of a type that the metadata doesn't describe"));
            };
            at += cursor.at as u64;
            let mut need = 1 << 12;
            while left > 0 {
                let bytes = window.view(at, need)?;
                let available = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
                let is_rest = bytes.len() >= available || bytes.len() < need;
                let bytes = &bytes[..bytes.len().min(available)];
                let (done, used, result) =
                    self.pools.entries((schema, &self.limits), type_index, left, bytes, header.compressed);
                left -= done;
                at += used as u64;
                match result {
                    Ok(()) => {}
                    Err(Broken::Short) if !is_rest && used > 0 => need = 1 << 12,
                    Err(Broken::Short) if !is_rest && need < self.limits.event => need *= 4,
                    Err(Broken::Short) if !is_rest => {
                        return Err(ReadProblem::Broken(at, "a constant beyond the limit"));
                    }
                    Err(error) => return Err(broken(at)(error)),
                }
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "a step of one function, with all that it has at hand")]
    fn events(
        &mut self,
        window: &mut Window<'_>,
        (base, end): (u64, u64),
        header: &Header,
        schema: &Schema,
        slots: &mut Slots,
        wanted: &EventFilter,
        visit: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ReadProblem> {
        let chunk = Chunk { header, schema, pools: &self.pools };
        let chunk_number = self.summary.chunks.len().saturating_sub(1) as u32;
        let mut at = base + HEADER_BYTES as u64;
        let mut need = HEAD;
        while at < end {
            let bytes = window.view(at, need)?;
            let bytes = &bytes[..bytes.len().min(usize::try_from(end - at).unwrap_or(usize::MAX))];
            let is_rest = bytes.len() as u64 == end - at || bytes.len() < need;
            need = HEAD;
            let mut position = 0;
            while position < bytes.len() {
                let rest = &bytes[position..];
                if rest.len() < HEAD && !is_rest {
                    break;
                }
                let here = at + position as u64;
                let (size, id) = head(rest, header.compressed).map_err(|broken| match broken {
                    Broken::Short => ReadProblem::Broken(here, "an event that is cut off"),
                    Broken::Malformed(what) => ReadProblem::Broken(here, what),
                })?;
                if size > end - here {
                    return Err(ReadProblem::Broken(here, "an event that reaches beyond its chunk"));
                }
                let slot = slots.get(id);
                if slot.is_wanted && size <= self.limits.event as u64 {
                    let size = size as usize;
                    let Some(bytes) = rest.get(..size) else {
                        if is_rest {
                            return Err(ReadProblem::Broken(here, "an event that is cut off"));
                        }
                        need = size;
                        break;
                    };
                    let is_paid = event::pay(chunk, slot.type_index, bytes);
                    if !is_paid {
                        slot.skipped += 1;
                    } else if event::starts(chunk, slot.type_index, bytes, &mut self.starts).is_err() {
                        slot.broken += 1;
                    }
                    let starts = &self.starts;
                    let type_index = slot.type_index;
                    let event = Event { chunk, type_index, bytes, starts, offset: here, chunk_number };
                    let is_within = || {
                        !wanted.is_bounded()
                            || event.time().is_none_or(|time| (wanted.from_ns..=wanted.to_ns).contains(&time))
                    };
                    if is_paid && is_within() && visit(&event).is_break() {
                        slot.count += 1;
                        return Ok(ControlFlow::Break(()));
                    }
                } else if slot.is_wanted {
                    slot.broken += 1;
                }
                slot.count += 1;
                position = position.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
            }
            at += position as u64;
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Maps a type id to its slot. JVMs number their types from 0, so the table finds nearly all.
struct Slots {
    slots: Vec<Slot>,
    dense: Vec<u32>,
    sparse: HashMap<i64, u32>,
}

const DENSE: usize = 1 << 13;

impl Slots {
    fn new(schema: &Schema, wanted: &EventFilter) -> Slots {
        let unknown = Slot { type_index: u32::MAX, is_wanted: false, count: 0, broken: 0, skipped: 0 };
        let mut slots = Slots { slots: vec![unknown], dense: vec![0; DENSE], sparse: HashMap::new() };
        for (index, of) in schema.types.iter().enumerate().filter(|(_, of)| of.is_event()) {
            let number = slots.slots.len() as u32;
            let is_wanted = (wanted.by_type)(of);
            slots.slots.push(Slot { type_index: index as u32, is_wanted, count: 0, broken: 0, skipped: 0 });
            match usize::try_from(of.id).ok().and_then(|id| slots.dense.get_mut(id)) {
                Some(position) => *position = number,
                None => drop(slots.sparse.insert(of.id, number)),
            }
        }
        slots
    }

    #[inline]
    fn get(&mut self, id: i64) -> &mut Slot {
        let number = match usize::try_from(id).ok().and_then(|id| self.dense.get(id)) {
            Some(number) => *number,
            None => self.sparse.get(&id).copied().unwrap_or(0),
        };
        &mut self.slots[number as usize]
    }

    fn wanted(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().filter(|slot| slot.is_wanted).map(|slot| slot.type_index)
    }

    fn report(self, walker: &mut Walker, schema: &Schema, base: u64) {
        // The first slot counts checkpoints, metadata and events of unknown types.
        for slot in self.slots.iter().skip(1).filter(|slot| slot.count > 0) {
            let of = &schema.types[slot.type_index as usize];
            *walker.summary.counts.entry(of.name.clone()).or_insert(0) += slot.count;
            if slot.broken > 0 {
                let what = format!("{} of {} events {} can't be read completely", slot.broken, slot.count, of.name);
                walker.flaw_with(base, &what, "fields of these events are missing");
            }
            if slot.skipped > 0 {
                let (skipped, count, name) = (slot.skipped, slot.count, &of.name);
                let what =
                    format!("{skipped} of {count} events {name} have more fields than the limit for their size allows");
                walker.flaw_with(base, &what, "these events are missing");
            }
        }
    }
}

/// Steps from event to event by sizes alone, until the bytes end or make no sense, or another chunk begins.
fn step_through(window: &mut Window<'_>, base: u64, end: u64, header: &Header, limits: &Limits) -> io::Result<Steps> {
    let mut steps = Steps { end: base + HEADER_BYTES as u64, last_ns: header.start_ns, ..Steps::default() };
    while steps.end < end {
        let at = steps.end;
        let bytes = window.view(at, HEADER_BYTES)?;
        let bytes = &bytes[..bytes.len().min(usize::try_from(end - at).unwrap_or(usize::MAX))];
        if bytes.starts_with(&MAGIC) && Header::parse(bytes).is_ok() {
            return Ok(steps);
        }
        let (size, id) = match head(bytes, header.compressed) {
            Ok(head) => head,
            Err(Broken::Short) => {
                steps.reason = Some("the last event is cut off");
                return Ok(steps);
            }
            Err(Broken::Malformed(what)) => {
                steps.reason = Some(what);
                return Ok(steps);
            }
        };
        if size > end - at {
            steps.reason = Some("the last event is cut off");
            return Ok(steps);
        }
        if id == METADATA || id == CHECKPOINT {
            let mut cursor = Cursor::new(bytes, header.compressed);
            let time = (|| {
                cursor.i32()?;
                cursor.i64()?;
                cursor.i64()
            })();
            steps.last_ns = steps.last_ns.max(time.map_or(0, |ticks| header.time(ticks)));
            if id == METADATA {
                steps.metadata = Some(at);
            } else if steps.checkpoints.len() < limits.checkpoints {
                steps.checkpoints.push(at);
            }
        }
        steps.end += size;
    }
    Ok(steps)
}

fn skipped(bytes: u64, of: &str) -> String {
    if bytes == 1 { format!("1 byte{of} is skipped") } else { format!("{bytes} bytes{of} are skipped") }
}

/// Finds the next offset of a chunk header.
fn find_chunk(window: &mut Window<'_>, from: u64) -> Option<u64> {
    let mut at = from;
    while at < window.length {
        let bytes = window.view(at, HEADER_BYTES).ok()?;
        let found = memchr::memmem::find_iter(bytes, &MAGIC).find(|position| {
            // A header that the end of the bytes cuts off is checked again in the next round.
            bytes.len() - position < HEADER_BYTES || Header::parse(&bytes[*position..]).is_ok()
        });
        match found {
            Some(position) if bytes.len() - position >= HEADER_BYTES => return Some(at + position as u64),
            Some(position) if position > 0 => at += position as u64,
            Some(_) => return None,
            None if bytes.len() < MAGIC.len() => return None,
            None => at += (bytes.len() + 1 - MAGIC.len()) as u64,
        }
    }
    None
}
