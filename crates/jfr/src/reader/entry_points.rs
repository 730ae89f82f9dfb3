//! The entry points of the reader: inputs go in, events come out. The summary reports what was found and what could not
//! be read.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use super::Limits;
use super::event::Event;
use super::walk::{ChunkSummary, EventFilter, Summary, Walker};
use super::window::{ReadAt, Window};

/// One file of a recording, or bytes in memory.
#[derive(Clone, Copy)]
pub struct Input<'i> {
    /// Used only in [`Summary`] and flaws; the reader doesn't open it.
    pub name: Option<&'i Path>,
    /// Where the bytes come from.
    pub bytes: &'i dyn ReadAt,
    /// Length in bytes. The reader ignores what a live recorder appends after it.
    pub length: u64,
}

/// Reads the inputs of one recording, one after the other.
pub struct Reader {
    walker: Walker,
}

impl Reader {
    /// A reader of one recording. It keeps at most what `limits` allows.
    pub fn new(limits: Limits) -> Reader {
        Reader { walker: Walker::new(limits) }
    }

    /// Calls `visit` for each event that the filter selects, in the order of the file (not by time). Stops when `visit`
    /// breaks, and returns that break. Keeps the constants of one chunk in memory.
    pub fn read(
        &mut self,
        input: Input<'_>,
        wanted: &EventFilter,
        visit: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.walker.begin_file(input.name);
        self.walker.file(&mut Window::new(input.bytes, input.length), wanted, visit)
    }

    /// Reads only the chunks' headers: when the recording begins and ends. In unfinished chunks, it also steps through
    /// the events.
    pub fn outline(&mut self, input: Input<'_>) {
        self.walker.begin_file(input.name);
        self.walker.outline(&mut Window::new(input.bytes, input.length));
    }

    /// Records a flaw: the caller could not open this file of the recording.
    pub fn unreadable(&mut self, file: &Path, error: &io::Error) {
        self.walker.begin_file(Some(file));
        self.walker.flaw(0, &format!("can't be read: {error}"));
    }

    /// Returns the summary of all inputs so far.
    pub fn into_summary(self) -> Summary {
        self.walker.summary
    }
}

/// Reads all events of a recording in memory that `wanted` selects.
pub fn read(bytes: &[u8], limits: Limits, wanted: &EventFilter, mut visit: impl FnMut(&Event<'_>)) -> Summary {
    let mut reader = Reader::new(limits);
    let _ = reader.read(Input::of(&bytes), wanted, &mut |event| {
        visit(event);
        ControlFlow::Continue(())
    });
    reader.into_summary()
}

/// Returns the chunks of a recording in memory, in the order of the file.
pub fn chunks(bytes: &[u8], limits: Limits) -> Vec<ChunkSummary> {
    let mut reader = Reader::new(limits);
    reader.outline(Input::of(&bytes));
    reader.into_summary().chunks
}

impl<'i> Input<'i> {
    /// Makes an input of bytes in memory, without a name.
    pub fn of(bytes: &'i &[u8]) -> Input<'i> {
        Input { name: None, bytes, length: bytes.len() as u64 }
    }
}
