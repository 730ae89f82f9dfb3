//! The parts of an object file that a parser reads: each is read once, and kept while the file is in use.
//!
//! A header may claim anything. So the total of bytes read is bounded, and so are holes; claiming a terabyte costs us
//! nothing. Strings are read in larger blocks, because a symbol table has 10⁵ of them.

use std::cell::{Cell, OnceCell};
use std::hash::BuildHasher;
use std::ops::Range;

use foldhash::fast::RandomState;
use object::ReadRef;

use super::file_kind::HOLES;
use super::regular::{Regular, Why};

const BUCKETS: usize = 1 << 10;
/// Size of a block for strings; a string may extend this far into the next block.
const BLOCK: u64 = 64 << 10;
const LONGEST_STRING: u64 = 16 << 10;

pub struct Pieces<'f> {
    file: &'f Regular,
    length: u64,
    /// Bytes that may still be read, and how many of them may lie in holes.
    left: Cell<u64>,
    holes: Cell<u64>,
    /// It only grows, so references into it stay valid.
    buckets: Vec<Link>,
    hasher: RandomState,
    refused: Cell<Option<&'static str>>,
}

type Link = OnceCell<Box<Piece>>;

struct Piece {
    at: (u64, u64),
    bytes: Box<[u8]>,
    next: Link,
}

impl Regular {
    /// For the parser of an object file: keeps what was read.
    pub fn pieces(&self) -> Pieces<'_> {
        Pieces::new(self)
    }
}

impl<'f> Pieces<'f> {
    pub(super) fn new(file: &'f Regular) -> Pieces<'f> {
        Pieces {
            file,
            length: file.meta().len(),
            left: Cell::new(file.cap()),
            holes: Cell::new(HOLES),
            buckets: (0..BUCKETS).map(|_| Link::new()).collect(),
            hasher: RandomState::default(),
            refused: Cell::new(None),
        }
    }

    /// Why a part of the file was not read; `None` if nothing was refused.
    pub fn refused(&self) -> Option<&'static str> {
        self.refused.get()
    }

    /// `None` if the file ends before, or if the limits don't allow the read.
    pub fn bytes(&self, offset: u64, size: u64) -> Option<&[u8]> {
        if size == 0 { Some(&[]) } else { self.piece(offset, size) }
    }

    fn piece(&self, offset: u64, size: u64) -> Option<&[u8]> {
        let mut link = &self.buckets[self.hasher.hash_one((offset, size)) as usize % BUCKETS];
        while let Some(piece) = link.get() {
            if piece.at == (offset, size) {
                return Some(&piece.bytes);
            }
            link = &piece.next;
        }
        let bytes = self.read(offset, size)?;
        Some(&link.get_or_init(|| Box::new(Piece { at: (offset, size), bytes, next: Link::new() })).bytes)
    }

    fn read(&self, offset: u64, size: u64) -> Option<Box<[u8]>> {
        self.is_allowed(offset, size)?;
        let mut bytes = vec![0; usize::try_from(size).ok()?].into_boxed_slice();
        self.fill_allowed(offset, &mut bytes).map(|()| bytes)
    }

    /// Reads into the caller's memory and keeps nothing. `None` as in [`Pieces::bytes`].
    pub fn fill(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        self.is_allowed(offset, bytes.len() as u64)?;
        self.fill_allowed(offset, bytes)
    }

    /// Counts a read, unless the limits don't allow it.
    fn is_allowed(&self, offset: u64, size: u64) -> Option<()> {
        let end = offset.checked_add(size).filter(|end| *end <= self.length)?;
        let refuse = |why| self.refuse(why);
        let Some(left) = self.left.get().checked_sub(size) else {
            return refuse("needs more reads than such a file may have");
        };
        match self.file.few_holes(offset, end, self.holes.get()) {
            Ok(holes) => self.holes.set(self.holes.get() - holes),
            Err(Why::Late) => return refuse("was not read in time"),
            Err(_) => return refuse("has large holes"),
        }
        self.left.set(left);
        Some(())
    }

    fn fill_allowed(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        match self.file.at(offset, bytes) {
            Ok(count) if count == bytes.len() => Some(()),
            Err(Why::Late) => self.refuse("was not read in time"),
            _ => None,
        }
    }

    fn refuse(&self, why: &'static str) -> Option<()> {
        self.refused.set(Some(why));
        None
    }
}

impl<'a> ReadRef<'a> for &'a Pieces<'_> {
    fn len(self) -> Result<u64, ()> {
        Ok(self.length)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.bytes(offset, size).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        if range.start >= range.end || range.end > self.length {
            return Err(());
        }
        let start = range.start - range.start % BLOCK;
        let block = self.piece(start, (BLOCK + LONGEST_STRING).min(self.length - start)).ok_or(())?;
        let end = range.end.min(range.start + LONGEST_STRING);
        let text = block.get((range.start - start) as usize..(end - start) as usize).ok_or(())?;
        memchr::memchr(delimiter, text).map(|length| &text[..length]).ok_or(())
    }
}

impl Drop for Pieces<'_> {
    /// Frees the links one by one: a chain may be too long for recursion.
    fn drop(&mut self) {
        for bucket in &mut self.buckets {
            let mut next = bucket.take();
            while let Some(mut piece) = next {
                next = piece.next.take();
            }
        }
    }
}
