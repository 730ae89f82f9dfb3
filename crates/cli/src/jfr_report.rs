//! `report --format jfr`: the books of one moment as a recording of one instant.
//!
//! It doesn't query the process, as no report does: resident bytes and limit come from the kernel. Only `record` writes
//! a ledger.

use std::borrow::Cow;
use std::io;

use plimsoll_facts::ending;
use plimsoll_facts::shell::one_line;
use plimsoll_jfr::writer::Recording;
use plimsoll_process::cgroup;
use plimsoll_process::proc;
use plimsoll_report::jfr::{ChunkContents, Cost, DescribedTarget, Instant, Site, TABLE, TargetEnd, TargetEndKind};
use plimsoll_tracked::books::Books;
use plimsoll_tracked::segment::Life;
use plimsoll_tracked::sites::Sites;

use crate::target::TrackedTarget;

/// Describes the target from its books, also after its end.
pub fn described(books: &Books, pid: u32) -> DescribedTarget {
    DescribedTarget {
        pid,
        command: one_line(&books.process.arguments),
        executable: books.process.executable.clone(),
        runtime: books.process.runtime.name(),
        runtime_version: books.process.runtime_version.clone().unwrap_or_default(),
        mode: books.mode.name(),
        ..DescribedTarget::default()
    }
}

pub fn recording(of: &TrackedTarget, sites: &Sites) -> io::Result<Vec<u8>> {
    let mut books = Cow::Borrowed(&of.books);
    let process = of.live_pid.and_then(|pid| proc::Target::open(pid, of.deadline).ok());
    let status = process.as_ref().and_then(|process| proc::read_process(process).ok());
    let memory = proc::read_host().memory;
    let (group, gaps) = process.as_ref().map(|process| cgroup::read_limit(process, memory)).unwrap_or_default();
    if !gaps.is_empty() {
        books.to_mut().gaps.extend(gaps);
    }
    let books = books.as_ref();
    let end = matches!(books.life, Life::Exited | Life::Killed).then(|| TargetEnd {
        how: match books.ending.map(|ending| ending.how) {
            Some(ending::How::Code(code)) => TargetEndKind::Code(i32::from(code)),
            Some(ending::How::Signal(signal)) => TargetEndKind::Signal(i32::from(signal)),
            _ => TargetEnd::of(books.life),
        },
        oom: books.ending.map(|ending| ending.oom).unwrap_or_default(),
        last_sign_ns: Some(books.time_ns),
    });
    let described = described(books, of.live_pid.unwrap_or(books.process.pid));
    let sites = Site::of(sites, |_, _| None);
    let instant = Instant {
        rss: status.as_ref().map(|(process, rss)| (rss.total(), process.peak_rss.unwrap_or_default())),
        cgroup: group.as_ref().map(|(group, _)| group),
        books: Some(books),
        sites: &sites,
        full: true,
        end: end.as_ref(),
        cost: Cost::default(),
        ..Instant::default()
    };
    let mut recording = Recording::new(Vec::new(), &TABLE);
    recording.instant(books.time_ns, |batch| instant.write(batch, &mut ChunkContents::default(), &described))?;
    recording.finish()
}
