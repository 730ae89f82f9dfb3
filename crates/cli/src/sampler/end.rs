//! The last state of a target that has ended: its books, and how it ended.

use plimsoll_facts::ending::{Ending, How, Oom};
use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_process::kernel_log::OnKill;
use plimsoll_process::proc;
use plimsoll_report::jfr::{Cost, Site, TargetEnd, TargetEndKind};
use plimsoll_tracked::books::Books;
use plimsoll_tracked::segment::{self, Life};

use super::Sampler;
use super::cost::processor_time;
use crate::{sys, target};

/// The last state of a target that has ended, from its segment.
pub struct SamplerEnd {
    pub end: TargetEnd,
    pub books: Option<Books>,
    pub sites: Vec<Site>,
    pub time_ns: u64,
    pub cost: Cost,
}

impl Sampler {
    /// The end of the target: its last books, from the segment, and how it ended.
    pub fn end(&mut self, status: Option<sys::ChildEnd>) -> SamplerEnd {
        // Finding the missing names may take as long as for a report.
        let (seen_ns, deadline) = (sys::boottime_ns(), Deadline::after(NAMES));
        let kills = self.kills(deadline);
        let moved = matches!((self.oom_kills.front(), kills), (Some((_, before)), Some(now)) if now > *before);
        let oom = if moved { self.of_kill(status) } else { Oom::Unknown };
        let known = self.segment.clone().and_then(|path| Some((segment::head_of(&path, deadline).ok()?, path)));
        let left = segment::find_ended_in(self.pid, self.directory.as_deref(), deadline);
        let left = left.map(|(path, head, _)| (head, path));
        // A start in the future is of an earlier boot.
        let left = left.filter(|(head, _)| (self.started_ns..=sys::boottime_ns()).contains(&head.start_boottime_ns));
        // Since the last sample the program may have been replaced by exec.
        let read = known.into_iter().chain(left).max_by_key(|(head, _)| head.start_boottime_ns);
        if let (Some(status), Some((head, path))) = (status, &read)
            && head.ended == 0
        {
            let how = match status {
                sys::ChildEnd::Code(code) => How::Code(code),
                sys::ChildEnd::Signal(signal) => How::Signal(u8::try_from(signal).unwrap_or(0)),
            };
            // For later reports on the segment. They can do without it, so a failure is ignored.
            let _ = segment::set_ended(path, Ending::with(how, oom), seen_ns, deadline);
        }
        let (last, sites) = read
            .and_then(|(head, path)| {
                let life = segment::life_as(self.pid, &head, &path, deadline);
                let read = target::of_segment(&path, life, None, deadline).ok()?;
                let sites = self.sites(&read, true);
                Some((read.books, sites))
            })
            .unzip();
        let sites = sites.unwrap_or_default();
        let how = match (status, &last) {
            (Some(sys::ChildEnd::Code(code)), _) => TargetEndKind::Code(i32::from(code)),
            (Some(sys::ChildEnd::Signal(signal)), _) => TargetEndKind::Signal(signal),
            (None, Some(books)) if books.life != Life::Live => TargetEnd::of(books.life),
            _ => TargetEndKind::Unknown,
        };
        // It ended by itself, so the kernel killed another one.
        let oom = if how == TargetEndKind::Exited { Oom::Unknown } else { oom };
        let end = TargetEnd { how, oom, last_sign_ns: last.as_ref().map(|books| books.time_ns) };
        SamplerEnd {
            end,
            books: last,
            sites,
            time_ns: proc::now_ns(),
            cost: Cost { cpu: processor_time(), ..Cost::default() },
        }
    }

    /// In the last seconds the kernel killed a process of the cgroup: whether it was this one. The kill of a child of
    /// this process moves the counter, too.
    fn of_kill(&self, status: Option<sys::ChildEnd>) -> Oom {
        let log = match self.started_ns {
            // If the start isn't known, the kill may be that of an earlier process with this PID.
            0 => OnKill::Nothing,
            began => segment::kernel_says_killed(self.pid, began),
        };
        match (status, log) {
            (Some(sys::ChildEnd::Signal(9)) | None, OnKill::Killed) => Oom::Yes,
            // SIGKILL, and a kill in the same two seconds.
            (Some(sys::ChildEnd::Signal(9)), OnKill::Nothing) => Oom::Yes,
            (None, OnKill::Nothing) => Oom::InGroup,
            (Some(_), _) | (None, OnKill::OthersOnly) => Oom::Unknown,
        }
    }
}
