//! Records one process: writes its samples as the instants of a recording.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use plimsoll_facts::shell::one_line;
use plimsoll_facts::units::Bytes;
use plimsoll_observer::verdict::Case;
use plimsoll_report::jfr::{ChunkContents, DescribedTarget, Instant as Moment};
use plimsoll_report::words;
use plimsoll_tracked::books::Books;

use super::file::{Output, Written};
use crate::sampler::{Read, Sample, Sampler, SamplerEnd};
use crate::{Failure, jfr_report, sys};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RecorderLife {
    Live,
    Ended,
}

pub struct Recorder {
    sampler: Sampler,
    writer: Writer,
}

impl Recorder {
    pub fn new(sampler: Sampler, writer: Writer) -> Recorder {
        Recorder { sampler, writer }
    }

    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.sampler.pidfd()
    }

    pub fn has_ended(&self) -> bool {
        self.sampler.has_ended()
    }

    /// Writes one instant. `last`: no instant follows, so it is a full one, and may take that long.
    pub fn instant(&mut self, missed: u64, last: Option<Duration>) -> Result<RecorderLife, Failure> {
        if self.writer.begins_file() {
            self.sampler.make_full();
        }
        match self.sampler.read(missed, last) {
            Read::Sample(sample) => self.writer.instant(&sample).map(|()| RecorderLife::Live),
            Read::Nothing => Ok(RecorderLife::Live),
            Read::Ended => self.end(None),
        }
    }

    /// Writes the end of the target: its last books, from the segment, and how it ended.
    pub fn end(&mut self, status: Option<sys::ChildEnd>) -> Result<RecorderLife, Failure> {
        self.writer.end(&self.sampler.end(status)).map(|()| RecorderLife::Ended)
    }

    pub fn rotate(&mut self) -> Result<(), Failure> {
        self.writer.rotate()
    }

    /// The text for the terminal.
    pub fn progress(&self) -> String {
        self.writer.progress()
    }

    /// One sentence for the end of the recording.
    pub fn finish(self) -> Result<String, Failure> {
        self.writer.finish()
    }
}

/// Writes the samples of one process to a file.
pub struct Writer {
    pid: u32,
    written: ChunkContents,
    described: DescribedTarget,
    output: Output,
    instants: u64,
    first_rss: Option<Bytes>,
    rss: Bytes,
}

impl Writer {
    pub fn new(pid: u32, interval: Duration, output: Output) -> Writer {
        Writer {
            pid,
            written: ChunkContents::default(),
            described: DescribedTarget { pid, interval, ..DescribedTarget::default() },
            output,
            instants: 0,
            first_rss: None,
            rss: Bytes(0),
        }
    }

    /// The file that is being written.
    pub fn path(&self) -> Option<&Path> {
        self.output.path()
    }

    /// Whether the next instant is the first of a file: then it should be a full one, because the file may be read
    /// without the others.
    pub fn begins_file(&self) -> bool {
        self.output.begins_file()
    }

    /// Finishes the file; the next instant begins another.
    pub fn rotate(&mut self) -> Result<(), Failure> {
        self.output.rotate()
    }

    pub fn instant(&mut self, sample: &Sample<'_>) -> Result<(), Failure> {
        self.first_rss.get_or_insert(sample.rss);
        self.rss = sample.rss;
        self.describe(sample);
        let moment = Moment {
            rss: Some((sample.rss, sample.process.peak_rss.unwrap_or_default())),
            cgroup: sample.cgroup.as_ref(),
            ledger: sample.snapshot.zip(sample.ledger.as_ref()),
            verdicts: &sample.verdicts,
            books: sample.books.as_ref(),
            sites: &sample.sites,
            pressure: sample.pressure,
            full: sample.full,
            cost: sample.cost,
            provenance_age: sample.provenance_age,
            ..Moment::default()
        };
        self.write(sample.time_ns, &moment)
    }

    pub fn end(&mut self, of: &SamplerEnd) -> Result<(), Failure> {
        let (books, sites, end) = (of.books.as_ref(), of.sites.as_slice(), Some(&of.end));
        if let Some(books) = books {
            self.describe_ended(books);
        }
        let moment = Moment { books, sites, full: true, end, cost: of.cost, ..Moment::default() };
        self.write(of.time_ns, &moment)
    }

    fn write(&mut self, time_ns: u64, moment: &Moment<'_>) -> Result<(), Failure> {
        let (written, described) = (&mut self.written, &self.described);
        self.output.instant(time_ns, |batch| moment.write(batch, written, described))?;
        self.instants += 1;
        Ok(())
    }

    fn describe(&mut self, sample: &Sample<'_>) {
        let (snapshot, books, process) = (sample.snapshot, sample.books.as_ref(), &sample.process);
        let vm = snapshot.and_then(|snapshot| snapshot.hotspot.as_ref());
        let image = snapshot.and_then(|snapshot| snapshot.native_image.as_ref());
        let (runtime, version) = match (vm, image, books) {
            (Some(vm), _, _) => ("hotspot", vm.version.clone()),
            (_, Some(image), _) => ("native-image", image.version.clone()),
            (_, _, Some(books)) => {
                (books.process.runtime.name(), books.process.runtime_version.clone().unwrap_or_default())
            }
            _ => ("native", String::new()),
        };
        let case = snapshot.zip(sample.ledger.as_ref()).filter(|_| sample.full);
        let callers = case.map(|(snapshot, ledger)| Case { snapshot, ledger }.name_the_callers().how);
        self.described = DescribedTarget {
            pid: self.pid,
            command: one_line(&process.command),
            executable: process.executable.clone().unwrap_or_default(),
            runtime,
            runtime_version: version,
            mode: books.map_or("untracked", |books| books.mode.name()),
            interval: self.described.interval,
            callers: callers.unwrap_or_else(|| std::mem::take(&mut self.described.callers)),
        };
    }

    /// Describes a target that has ended by its last books. It may have ended before its first reading, or loaded the
    /// tracker or called exec after it.
    fn describe_ended(&mut self, books: &Books) {
        let (of_books, known) = (jfr_report::described(books, self.pid), &mut self.described);
        if known.executable == of_books.executable {
            known.mode = of_books.mode;
        } else {
            *known = DescribedTarget { interval: known.interval, ..of_books };
        }
    }

    fn progress(&self) -> String {
        let rss = self.rss;
        let first = self.first_rss.unwrap_or_default();
        let sign = if rss < first { '-' } else { '+' };
        format!("{}  RSS {rss} ({sign}{})  {} written", self.pid, rss.abs_diff(first), self.output.written())
    }

    /// One sentence for the end of the recording.
    pub fn finish(self) -> Result<String, Failure> {
        let Writer { pid, output, instants, .. } = self;
        Ok(match output.finish()? {
            Some(Written { name, files: 1, bytes, .. }) => {
                format!("{} of process {pid} in {name} ({bytes})", words::counted(instants, "instant"))
            }
            Some(Written { name, files, kept, bytes }) => {
                let instants = words::counted(instants, "instant");
                let kept = match kept {
                    _ if kept == files => String::new(),
                    1 => ", of which 1 is kept".to_owned(),
                    _ => format!(", of which {kept} are kept"),
                };
                format!("{instants} of process {pid} in {files} files{kept}, the last {name} ({bytes} together)")
            }
            None => format!("process {pid} ended before its first reading: there is no recording"),
        })
    }
}
