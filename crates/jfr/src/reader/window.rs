//! The part of a file that is in memory, in pieces by offset.

use std::io;

/// Bytes by offset: a file, a buffer, a reply of a server.
pub trait ReadAt {
    /// Fills `buffer` with the bytes from `offset` on, and returns how many there were. Fewer than `buffer` holds only at the end.
    ///
    /// # Errors
    /// Whatever the source reports. The reader then records a [`super::Flaw`] and goes on where it can.
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

/// Read at once: fits a core's own cache.
const PIECE: usize = 256 << 10;

/// The part of a source that is in memory, moved where it is needed.
pub(super) struct Window<'f> {
    store: &'f dyn ReadAt,
    /// When it was opened: what a live recorder appends afterwards isn't read.
    pub length: u64,
    buffer: Vec<u8>,
    start: u64,
}

impl<'f> Window<'f> {
    pub fn new(store: &'f dyn ReadAt, length: u64) -> Window<'f> {
        Window { store, length, buffer: vec![], start: 0 }
    }

    /// The bytes from `at` on: at least `need` unless the file ends before, and all that happen to be there.
    pub fn view(&mut self, at: u64, need: usize) -> io::Result<&[u8]> {
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
            // Truncated since it was opened.
            self.length = self.length.min(at + self.buffer.len() as u64);
        }
        Ok(&self.buffer)
    }
}
