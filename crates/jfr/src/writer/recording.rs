//! A recording that is a valid file at every moment: if the recorder is killed at any time, every reader can open it.
//!
//! A chunk counts once its header has the right values, but size, offsets and file length can't change in one step. So
//! each step that readers can see is one write of 8 bytes within one page, or of one page. The kernel does such a write
//! completely or not at all, whatever signal comes (mm/filemap.c, generic_perform_write: signals are checked between
//! pages). Before and after each step, the file consists of finished chunks:
//!
//! ```text
//! chunk = header gap ┃ skip ┃ event event checkpoint ┃ skip ┃ event … ┃ tail ──────────────────┐
//!                    each instant begins with a skip                   ┗ to the end of the file ┘
//! ```
//! - The **tail** is an event of the metadata's type (0) that extends to the chunk's end. Readers skip it, and
//!   JDK Mission Control stops reading events there. So nothing inside the tail is visible.
//! - An instant is written into the tail, with a new tail after it. Then the header gets the newest checkpoint's
//!   offset, and last the old tail becomes a **skip**: an empty checkpoint event of a few bytes, which no chain refers
//!   to.
//! - The file grows by pages of **reserve**, one write each. A reserve page is a chunk of its own without events.
//!   When the header's size includes it, readers see it as events of unknown types ('F' is a size of 70, 'L' a type
//!   of 76), until the tail extends over it. Shrinking takes the same steps in reverse.
//! - A new chunk starts as a reserve page whose header is extended over the following pages.
//!
//! The JDK's readers convert the times of all chunks with the clock of the first one, also in files that were joined. So
//! the **ticks** of all chunks, and of all files of a series, count from one zero: the series' first instant.
//!
//! So the file is at most the reserve (16 KiB) longer than its contents, a kill loses only the instant being written,
//! and nothing is written twice. The order of writes on the disk is not guaranteed if the machine crashes: that would
//! need an fsync per step.

use std::io;

use super::batch::Batch;
use super::constants::{Constants, empty_checkpoint};
use super::event::Table;
use super::{integers, metadata};
use crate::format::{HEADER_BYTES, MAGIC, MAJOR};

/// Where a recording is written. `write_at` within one existing page must write all bytes or none. A new page may be
/// written in part (RLIMIT_FSIZE, a full disk with small blocks); the writer then cuts that page off.
pub trait Store {
    /// Writes bytes; they end at most one page past the end. `offset` is in bytes.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts off the end. `length` is in bytes.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

impl Store for Vec<u8> {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start + bytes.len();
        if self.len() < end {
            self.resize(end, 0);
        }
        self[start..end].copy_from_slice(bytes);
        Ok(())
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        Vec::truncate(self, usize::try_from(length).map_err(io::Error::other)?);
        Ok(())
    }
}

const PAGE: u64 = 4096;
/// Pages by which the file grows.
const RESERVE: u64 = 4;
const HEADER: u64 = HEADER_BYTES as u64;
/// An event of 12 bytes follows the header, so that the first tail's offset is a multiple of 8.
const FIRST: u64 = HEADER + 12;
/// Offset of a reserve page's metadata and checkpoint. In a chunk's first page they stay, and end the chain.
const NOTHING: u64 = FIRST + 16;
/// The part of a skip that one write changes; flags, number of pools and padding follow.
const SKIP: u64 = 8;
/// A tail's length has 28 bits (`integers::padded`).
const LARGEST_CHUNK: u64 = 1 << 27;

/// An instant's time is kept to the millisecond: three bytes are then enough for half an hour, four for three days.
const TICKS_A_SECOND: u64 = 1000;
const NS_A_TICK: u64 = 1_000_000_000 / TICKS_A_SECOND;
/// Age at which a new chunk begins. A chunk repeats metadata and constants: 12 KiB, or 90 KiB with 200 deep stacks.
const CHUNK_NS: u64 = 900 * 1_000_000_000;

/// What the files of one recorder share, so that readers can join them (`jfr assemble`, cat): the numbers of the
/// constants and the zero of the clock.
pub struct Series {
    table: &'static Table,
    constants: Constants,
    /// Time of the first instant, a whole number of ticks.
    zero_ns: Option<u64>,
    /// Time of the last instant. Time never goes backwards in a series, whatever the clock does.
    time_ns: u64,
}

impl Series {
    /// Starts a series without files.
    pub fn new(table: &'static Table) -> Series {
        Series { table, constants: Constants::new(table.names), zero_ns: None, time_ns: 0 }
    }
}

/// A recording while it is written.
pub struct Recording<S: Store> {
    store: S,
    series: Series,
    /// End of the file, and of its last chunk.
    end: u64,
    chunk: Option<Chunk>,
}

/// When a chunk starts, on both clocks of its header.
#[derive(Clone, Copy)]
struct Start {
    ns: u64,
    ticks: u64,
}

struct Chunk {
    start: u64,
    time: Start,
    tail: u64,
    checkpoint: u64,
}

impl<S: Store> Recording<S> {
    /// Starts a recording in an empty store. From the first instant on, the store holds complete chunks.
    pub fn new(store: S, table: &'static Table) -> Recording<S> {
        Recording::of_series(store, Series::new(table))
    }

    /// Starts the next recording of a series in an empty store. It is complete without the earlier ones.
    pub fn of_series(store: S, series: Series) -> Recording<S> {
        Recording { store, series, end: 0, chunk: None }
    }

    /// The store that the recording is written to.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Length of the file in bytes, reserve included.
    pub fn length(&self) -> u64 {
        self.end
    }

    /// Writes one instant: all its events have the same time. They can be read as soon as this returns.
    ///
    /// `time_ns` counts from 1970 UTC and is kept to the millisecond. A time before the last instant is replaced by
    /// that instant's.
    ///
    /// # Errors
    /// Errors of the store; and an error if this instant makes the chunk larger than 128 MiB (63 MiB of events and new
    /// constants always fit). The store remains a valid file.
    pub fn instant(&mut self, time_ns: u64, write: impl FnOnce(&mut Batch<'_>)) -> io::Result<()> {
        let time_ns = time_ns.max(self.series.time_ns);
        self.series.time_ns = time_ns;
        let zero_ns = *self.series.zero_ns.get_or_insert(time_ns - time_ns % NS_A_TICK);
        let ticks = (time_ns - zero_ns) / NS_A_TICK;
        let full = |chunk: &Chunk| {
            time_ns.saturating_sub(chunk.time.ns) >= CHUNK_NS || chunk.tail - chunk.start >= LARGEST_CHUNK / 2
        };
        let opens_chunk = self.chunk.as_ref().is_none_or(full);
        let start = match &self.chunk {
            Some(chunk) if !opens_chunk => chunk.time,
            _ => Start { ns: zero_ns + ticks * NS_A_TICK, ticks },
        };
        if opens_chunk {
            self.open_chunk(start)?;
        }
        let mut batch = Batch::new(&mut self.series.constants, ticks, opens_chunk);
        write(&mut batch);
        let events = batch.events;
        self.append(&events, ticks)?;
        self.patch(40, time_ns - start.ns)
    }

    /// Releases the reserve. The last chunk then ends with the page that holds its last event.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn finish(self) -> io::Result<S> {
        self.finish_file().map(|(store, _)| store)
    }

    /// Like `finish`, and also returns the series for the next file.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn finish_file(mut self) -> io::Result<(S, Series)> {
        if let Some(chunk) = &self.chunk {
            let (start, tail) = (chunk.start, chunk.tail);
            let end = (tail + 8).next_multiple_of(PAGE);
            if end < self.end {
                let page = reserve_page(chunk.time);
                for at in (end..self.end).step_by(PAGE as usize) {
                    self.store.write_at(at, &page)?;
                }
                self.store.write_at(tail, &tail_of(end - tail))?;
                self.store.write_at(start + 8, &(end - start).to_be_bytes())?;
                self.store.truncate(end)?;
            }
        }
        Ok((self.store, self.series))
    }

    fn open_chunk(&mut self, time: Start) -> io::Result<()> {
        self.series.constants.next_chunk();
        let metadata = metadata::all(self.series.table);
        let metadata_at = NOTHING + nothing().len() as u64;
        let start = self.end;
        let pages = pages(metadata_at + metadata.len() as u64 + 16);
        self.reserve(pages, time)?;
        let size = pages * PAGE;
        let mut page = reserve_page(time);
        page[8..16].copy_from_slice(&size.to_be_bytes());
        page[HEADER as usize..FIRST as usize].copy_from_slice(&[12, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        page[FIRST as usize..FIRST as usize + 8].copy_from_slice(&tail_of(size - FIRST));
        // Now the chunk's tail begins right after its header.
        self.store.write_at(start, &page)?;
        let checkpoint = start + NOTHING + metadata::none().len() as u64;
        let chunk = Chunk { start, time, tail: start + FIRST, checkpoint };
        // Mission Control would stop at metadata among the events, so the metadata lies inside the first skip.
        let at = start + metadata_at;
        let tail = (at + metadata.len() as u64).next_multiple_of(8);
        self.store.write_at(at, &metadata)?;
        self.store.write_at(tail, &tail_of(self.end - tail))?;
        self.chunk = Some(chunk);
        self.patch(24, at - start)?;
        self.show(tail - (start + FIRST), tail)
    }

    /// Writes events into the tail, then makes them visible.
    fn append(&mut self, events: &[u8], ticks: u64) -> io::Result<()> {
        let Some(Chunk { tail, checkpoint: newest, .. }) = self.chunk else { return Ok(()) };
        // A negative distance always takes 9 bytes, so the checkpoint's length is known before its position.
        let length =
            if self.series.constants.has_fresh() { self.series.constants.checkpoint(ticks, -1).len() } else { 0 };
        let bare = SKIP + 2 + (events.len() + length) as u64;
        let padding = bare.next_multiple_of(8) - bare;
        let next = tail + bare + padding;
        if next + 8 > self.end {
            self.grow(next + 8)?;
        }
        let mut piece = vec![0; 2 + padding as usize];
        piece.extend_from_slice(events);
        let checkpoint = tail + SKIP + piece.len() as u64;
        if length > 0 {
            piece.extend(self.series.constants.checkpoint(ticks, newest.wrapping_sub(checkpoint) as i64));
        }
        piece.extend_from_slice(&tail_of(self.end - next));
        self.store.write_at(tail + SKIP, &piece)?;
        if length > 0
            && let Some(chunk) = &mut self.chunk
        {
            self.series.constants.mark_written();
            chunk.checkpoint = checkpoint;
            let offset = checkpoint - chunk.start;
            self.patch(16, offset)?;
        }
        self.show(SKIP + 2 + padding, next)
    }

    /// Turns the old tail into a skip of this length, which makes what lies before the next tail visible.
    fn show(&mut self, length: u64, next: u64) -> io::Result<()> {
        let Some(chunk) = &mut self.chunk else { return Ok(()) };
        // Type 1. Start, duration and delta are 0, and so are the flags and the number of pools after them.
        let [a, b, c, d] = integers::padded(length as u32);
        self.store.write_at(chunk.tail, &[a, b, c, d, 1, 0, 0, 0])?;
        chunk.tail = next;
        Ok(())
    }

    fn grow(&mut self, wanted: u64) -> io::Result<()> {
        let Some(Chunk { start, time, tail, .. }) = self.chunk else { return Ok(()) };
        if wanted - start > LARGEST_CHUNK {
            return Err(io::Error::other("one instant of the recording is larger than a chunk may be"));
        }
        self.reserve(pages(wanted - self.end), time)?;
        self.patch(8, self.end - start)?;
        self.store.write_at(tail, &tail_of(self.end - tail))
    }

    fn reserve(&mut self, pages: u64, time: Start) -> io::Result<()> {
        let page = reserve_page(time);
        for _ in 0..pages {
            if let Err(error) = self.store.write_at(self.end, &page) {
                let _ = self.store.truncate(self.end);
                return Err(error);
            }
            self.end += PAGE;
        }
        Ok(())
    }

    /// Overwrites one of the longs in the chunk's header.
    fn patch(&mut self, at: u64, value: u64) -> io::Result<()> {
        match &self.chunk {
            Some(chunk) => self.store.write_at(chunk.start + at, &value.to_be_bytes()),
            None => Ok(()),
        }
    }
}

/// Metadata without types, and the checkpoint that ends each chain.
fn nothing() -> Vec<u8> {
    let mut bytes = metadata::none();
    bytes.extend(empty_checkpoint());
    bytes
}

fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE).next_multiple_of(RESERVE)
}

fn tail_of(length: u64) -> [u8; 8] {
    let [a, b, c, d] = integers::padded(length as u32);
    [a, b, c, d, 0, 0, 0, 0]
}

/// A chunk of one page without events, which can also be walked as events.
fn reserve_page(time: Start) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    let metadata = metadata::none();
    let mut put = |at: u64, bytes: &[u8]| page[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    // Format 2.1.
    put(4, &[0, MAJOR as u8, 0, 1]);
    for (at, value) in [
        (8, PAGE),
        (16, NOTHING + metadata.len() as u64),
        (24, NOTHING),
        (32, time.ns),
        (40, 0),
        (48, time.ticks),
        (56, TICKS_A_SECOND),
        (64, 1),
    ] {
        // State, padding and flags take four bytes.
        let bytes = value.to_be_bytes();
        if at == 64 { put(at, &bytes[4..]) } else { put(at, &bytes) }
    }
    // Read as a chunk, these are an event of 2 bytes and the tail. Read as events, the 2 bytes end the event that 'F'
    // began (a size of 70), and the tail extends to the page's end.
    put(HEADER, &[2, 0]);
    put(HEADER + 2, &tail_of(PAGE - HEADER - 2));
    put(NOTHING, &nothing());
    page
}
