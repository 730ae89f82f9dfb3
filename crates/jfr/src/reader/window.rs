//! The part of a file that is in memory.

use std::io;

/// A source of bytes by offset: a file, a buffer, a server's reply.
pub trait ReadAt {
    /// Fills `buffer` with the bytes from `offset` on and returns their number. It is smaller than `buffer` only at the
    /// end of the source.
    ///
    /// # Errors
    /// Any error of the source. The reader records a [`super::Flaw`] and continues where it can.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for &[u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Bytes per read: fits a core's own cache.
const PIECE: usize = 256 << 10;

/// The part of a source that is in memory; it moves as needed.
pub(super) struct Window<'f> {
    store: &'f dyn ReadAt,
    /// Length when the source was opened; the reader ignores what a live recorder appends.
    pub length: u64,
    buffer: Vec<u8>,
    start: u64,
}

impl<'f> Window<'f> {
    pub(super) fn new(store: &'f dyn ReadAt, length: u64) -> Window<'f> {
        Window { store, length, buffer: vec![], start: 0 }
    }

    /// Returns the bytes from `at` on: at least `need` unless the file ends earlier, and any further ones in the
    /// buffer.
    pub(super) fn view(&mut self, at: u64, need: usize) -> io::Result<&[u8]> {
        let need = need.min(usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX));
        let inside = at.checked_sub(self.start).and_then(|skip| usize::try_from(skip).ok());
        match inside.filter(|skip| *skip <= self.buffer.len()) {
            Some(skip) if self.buffer.len() - skip >= need => return Ok(&self.buffer[skip..]),
            Some(skip) => drop(self.buffer.drain(..skip)),
            None => self.buffer.clear(),
        }
        self.start = at;
        let have = self.buffer.len();
        let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
        let size = need.max(PIECE).min(left).max(have);
        if self.buffer.capacity() > size.max(16 * PIECE) {
            self.buffer.shrink_to(size);
        }
        self.buffer.resize(size, 0);
        let count = self.store.read_at(&mut self.buffer[have..], at + have as u64);
        self.buffer.truncate(have + *count.as_ref().unwrap_or(&0));
        if count? + have < need {
            // The file was truncated after it was opened.
            self.length = self.length.min(at + self.buffer.len() as u64);
        }
        Ok(&self.buffer)
    }

    /// Returns the bytes from `at` on, as many as `into` has unless the file ends earlier. The window stays where it
    /// is: for steps backwards, each of which would move it.
    pub(super) fn peek<'b>(&self, at: u64, into: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
        let size = into.len().min(left);
        let count = self.store.read_at(&mut into[..size], at)?;
        Ok(&into[..count])
    }
}
