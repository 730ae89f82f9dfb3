//! A process's memory as fuzz input: mappings and pieces of bytes at any address, as a hostile process can arrange
//! them.
//!
//! ```text
//! 0  start u64  pages u16  flags u8  name u8      a mapping: flags 1 readable, 2 writable, 4 executable, 8 shared
//! 1  at u64     length u16  bytes                 bytes at an address
//! ```
//! The first byte of a record, modulo 2, is its kind. Integers are little-endian. A truncated record is ignored.

use std::cell::Cell;
use std::collections::BTreeMap;

use plimsoll_facts::snapshot::{Backing, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE};

const NAMES: [&str; 11] = [
    "",
    "[heap]",
    "[stack]",
    "/usr/lib/libc.so.6",
    "/usr/bin/python3.11",
    "/usr/bin/node",
    "/app/image",
    "[anon: glibc: malloc]",
    "/usr/lib/libjemalloc.so.2",
    "/usr/lib/libtcmalloc.so.4",
    "/usr/lib/libmimalloc.so.2",
];
/// 64 MiB in total: a real process has more, but an input must be cheap.
const MOST_PAGES: u64 = 1 << 14;

#[derive(Default)]
pub struct Image {
    pub vmas: Vec<Vma>,
    /// Page number → bytes. Other pages of a mapping read as zeros and are absent.
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
    /// The cost of the reads so far: 1 for each call, and 1 for each page of bytes.
    pub reads: Cell<u64>,
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

impl Image {
    pub fn parse(bytes: &[u8]) -> Image {
        let mut image = Image::default();
        let mut cursor = Cursor(bytes);
        let mut left = MOST_PAGES;
        while image.record(&mut cursor, &mut left).is_some() {}
        image.vmas.sort_by_key(|vma| vma.range.start);
        let mut end = Avma(0);
        image.vmas.retain(|vma| {
            let is_separate = vma.range.start >= end;
            end = if is_separate { vma.range.end } else { end };
            is_separate
        });
        for vma in &mut image.vmas {
            let pages = image.pages.range(vma.range.start.0 / PAGE..vma.range.end.0 / PAGE).count() as u64;
            vma.rss = Bytes(pages * PAGE);
            (vma.private_dirty, vma.pss) = (vma.rss, vma.rss);
            vma.anonymous = if vma.backing == Backing::File { Bytes(0) } else { vma.rss };
        }
        image
    }

    fn record(&mut self, cursor: &mut Cursor<'_>, left: &mut u64) -> Option<()> {
        if cursor.number(1)?.is_multiple_of(2) {
            // Linux gives user space 47 bits.
            let start = cursor.number(8)? % (1 << 47) / PAGE * PAGE;
            let pages = cursor.number(2)?.clamp(1, (*left).max(1));
            let (flags, name) = (cursor.number(1)?, NAMES[cursor.number(1)? as usize % NAMES.len()]);
            *left = left.saturating_sub(pages);
            let backing = match name {
                "[heap]" => Backing::Brk,
                "[stack]" => Backing::MainStack,
                name if name.starts_with('/') => Backing::File,
                _ => Backing::Anonymous,
            };
            if *left > 0 {
                self.vmas.push(Vma {
                    range: AddressRange::sized(Avma(start), Bytes(pages * PAGE)),
                    readable: flags & 1 != 0,
                    writable: flags & 2 != 0,
                    executable: flags & 4 != 0,
                    shared: flags & 8 != 0,
                    inode: u64::from(backing == Backing::File),
                    name: name.into(),
                    backing,
                    ..Vma::default()
                });
            }
        } else {
            let at = cursor.number(8)? % (1 << 47);
            let length = cursor.number(2)? as usize;
            for (offset, byte) in cursor.take(length)?.iter().enumerate() {
                let at = at + offset as u64;
                let page = self.pages.entry(at / PAGE).or_insert_with(|| Box::new([0; PAGE as usize]));
                page[(at % PAGE) as usize] = *byte;
            }
        }
        Some(())
    }

    fn is_mapped(&self, page: u64) -> bool {
        let after = self.vmas.partition_point(|vma| vma.range.start.0 / PAGE <= page);
        self.vmas[..after].last().is_some_and(|vma| page < vma.range.end.0 / PAGE)
    }

    /// The bytes of a mapping.
    pub fn bytes(&self, range: AddressRange) -> Vec<u8> {
        let mut bytes = vec![0; range.length().0 as usize];
        self.read(range.start, &mut bytes);
        bytes
    }
}

impl Memory for Image {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1 + into.len() as u64 / PAGE);
        let Some(end) = at.0.checked_add(into.len() as u64) else { return false };
        let mut from = at.0;
        while from < end {
            let (page, upto) = (from / PAGE, (from / PAGE * PAGE).saturating_add(PAGE).min(end));
            if !self.is_mapped(page) {
                return false;
            }
            let piece = &mut into[(from - at.0) as usize..(upto - at.0) as usize];
            match self.pages.get(&page) {
                Some(bytes) => piece.copy_from_slice(&bytes[(from % PAGE) as usize..][..piece.len()]),
                None => piece.fill(0),
            }
            from = upto;
        }
        true
    }

    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
        self.reads.set(self.reads.get() + 1);
        into.fill(0);
        for (page, _) in self.pages.range(first..first.saturating_add(into.len() as u64)) {
            into[(page - first) as usize] = u64::from(self.is_mapped(*page)) << 63;
        }
        true
    }
}
