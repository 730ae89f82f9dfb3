//! A segment file of any content, through every report. Any user of a shared directory can put one there.
//!
//! ```text
//! offset u32   length u16   bytes        repeated; the rest of the file is a hole
//! ```

use std::cell::Cell;
use std::path::Path;

use plimsoll_jfr::writer::Recording;
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_report::jfr::{ChunkContents, Cost, DescribedTarget, Instant, Site, TABLE};
use plimsoll_report::json::{self, Frames};
use plimsoll_report::text::{self, LinesBy};
use plimsoll_report::{diff as print, hotspot, native_image};
use plimsoll_segment::{HEADER_BYTES, Section};
use plimsoll_tracked::books::Books;
use plimsoll_tracked::diff::diff;
use plimsoll_tracked::segment::{Extent, Life, Segment, parse, read_parts};
use plimsoll_tracked::sites::{Sites, comparable};
use plimsoll_tracked::symbols::{SymbolOptions, Symbols};

use crate::views::{self, is_json, is_plain, written};

/// The file with its holes.
struct Sparse<'a> {
    pieces: Vec<(u64, &'a [u8])>,
    /// Bytes that `at` may still return. Holes are free for the input, but the reader reads up to 192 MiB of a real
    /// file.
    left: Cell<usize>,
}

/// Limit of the file of one input, holes included: enough for thousands of records in each section.
const FILE: usize = 2 << 20;

impl<'a> Sparse<'a> {
    fn parse(mut bytes: &'a [u8]) -> Sparse<'a> {
        let mut pieces = Vec::new();
        while let Some((&[a, b, c, d, low, high], rest)) = bytes.split_first_chunk() {
            let (piece, rest) = rest.split_at(usize::from(u16::from_le_bytes([low, high])).min(rest.len()));
            pieces.push((u64::from(u32::from_le_bytes([a, b, c, d])), piece));
            bytes = rest;
        }
        Sparse { pieces, left: Cell::new(FILE) }
    }

    /// The contents of the range, up to its last piece: to keep inputs cheap, a hole at the end counts as the end of
    /// the file.
    fn at(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = offset.saturating_add(length);
        let mut out = Vec::new();
        for (at, piece) in &self.pieces {
            let (from, to) = ((*at).max(offset), at.saturating_add(piece.len() as u64).min(end));
            let (start, stop) = (from.saturating_sub(offset) as usize, to.saturating_sub(offset) as usize);
            if from < to && stop.saturating_sub(out.len()) <= self.left.get() {
                self.left.set(self.left.get() - stop.saturating_sub(out.len()));
                out.resize(out.len().max(stop), 0);
                out[start..stop].copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
            }
        }
        if offset == 0 && !out.is_empty() {
            // A header that ends in zeros is complete: otherwise the seeds would stop at their first page.
            out.resize(out.len().max(HEADER_BYTES), 0);
        }
        if offset == Section::Vmap.offset() as u64 && out.len() > 8 {
            // An odd number means an update in progress, for which the reader waits; the target `vma_map` has both.
            let seq = plimsoll_segment::vmap::header::SEQ * 8;
            out.get_mut(seq).into_iter().for_each(|byte| *byte &= !1);
        }
        out
    }
}

/// Reads the file and runs every report on it.
pub fn read(bytes: &[u8]) -> Option<Segment> {
    let file = Sparse::parse(bytes);
    let raw = read_parts(Path::new("segment"), Extent::All, |offset, length| Ok(file.at(offset, length))).ok()?;
    parse::segment(&raw).ok()
}

pub fn run(bytes: &[u8]) {
    let Some(segment) = read(bytes) else { return };
    let now = segment.last_sign_ns().saturating_add(1_000_000_000);
    let books = Books::new(&segment, Life::Killed, now);
    of_books(&books);
    for by_thread in [false, true] {
        let mut symbols =
            Symbols::new(&SymbolOptions { without: true, ..SymbolOptions::default() }, &books, Deadline::after(LOOK));
        let sites = Sites::new(&segment, &books, &mut symbols, now, by_thread);
        views::all(&sites.profile);
        if !by_thread {
            of_sites(&books, &sites);
        }
    }
}

fn of_sites(books: &Books, sites: &Sites) {
    let _ = comparable(sites, sites);
    views::is_page(&plimsoll_report::page::of_books(books, sites.profile.clone()));
    for frames in [Frames::InSites, Frames::InTable] {
        let saved = written(|out| json::write(out, books, Some(sites), frames));
        is_json(&saved);
        if let Err(error) = json::parse(&saved) {
            panic!("what we wrote can't be read: {error}");
        }
    }
    let sites = Site::of(sites, |_, _| None);
    let instant =
        Instant { books: Some(books), sites: &sites, full: true, cost: Cost::default(), ..Instant::default() };
    let mut recording = Recording::new(Vec::new(), &TABLE);
    let mut written = ChunkContents::default();
    let target = DescribedTarget::default();
    recording
        .instant(books.time_ns, |batch| instant.write(batch, &mut written, &target))
        .expect("memory takes everything");
    let bytes = recording.finish().expect("memory takes everything");
    assert!(bytes.starts_with(b"FLR\0"));
}

/// Every table of the books.
pub fn of_books(books: &Books) {
    for by in [LinesBy::Category, LinesBy::Caller, LinesBy::Module, LinesBy::Thread] {
        is_plain(&written(|out| text::write(out, books, by, false)));
        let same = diff(books, books);
        is_plain(&written(|out| print::text(out, books, books, &same, by, true)));
    }
    let same = diff(books, books);
    is_json(&written(|out| print::json(out, books, books, &same)));
    is_plain(&written(|out| print::hotspot(out, books, books)));
    is_plain(&written(|out| text::callers_only(out, books, true)));
    is_plain(&written(|out| hotspot::summary(out, books)));
    is_plain(&written(|out| hotspot::detail(out, books)));
    is_plain(&written(|out| native_image::write(out, books)));
    is_plain(&written(|out| native_image::write_23(out, books)));
}
