//! Finds the segments that a run left: that of the last program under the PID that was started, and with `--follow`
//! those of its descendants.
//!
//! ```text
//! pid 7  sh start.sh        segment A   replaced by exec
//! pid 8    tool             segment B   parent 7
//! pid 7  java …             segment C   the report is of this one
//! ```

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use plimsoll_facts::ending::{Ending, How};
use plimsoll_facts::shell::{one_line, quoted};
use plimsoll_facts::units::Bytes;
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_report::words::{as_called, count, cut, printable};
use plimsoll_tracked::books::Books;
use plimsoll_tracked::segment::{self, Head, Life};

use crate::{Failure, sys, target};

pub struct Family {
    pid: u32,
    /// In the order in which their trackers started.
    segments: Vec<(PathBuf, Head)>,
    /// The option `--retain`, if the trackers of later processes may have deleted segments of this run.
    pruned_to: Option<usize>,
    /// Other processes that started in the meantime, whose parent is outside their PID namespace. They may be
    /// descendants: nothing shows who their parent is.
    orphans: usize,
    /// Directories of other users, and the number of processes there whose segments name a process of this run as
    /// parent. Nothing proves that: a user may write anything into its segments. So these processes are only counted.
    of_others: Vec<(PathBuf, usize)>,
}

impl Family {
    /// The segments of the process and its descendants that began at `since_ns` (CLOCK_BOOTTIME) or later. `user`: the
    /// process's last user, if that isn't ours. `dir`, `retain`: the options; how many segments of ended processes the
    /// trackers keep.
    pub fn find(
        (pid, user, since_ns): (u32, Option<u32>, u64),
        dir: Option<&Path>,
        retain: usize,
        deadline: Deadline,
    ) -> Family {
        let found = match user {
            None => segment::search_directories(None, deadline),
            Some(user) => segment::directories_of_user(user, deadline),
        };
        let directories = dir.map(Path::to_owned).into_iter().chain(found);
        let listed: Vec<_> = directories.map(|dir| segment::list_owned(&dir, user, deadline)).collect();
        // CLOCK_BOOTTIME begins anew at each boot: a start in the future is of an earlier boot.
        let span = since_ns..=sys::boottime_ns();
        let pruned_to = listed.iter().any(|list| may_lack(list, &span, retain, deadline)).then_some(retain);
        let mut all: Vec<(PathBuf, Head)> = listed.into_iter().flatten().collect();
        all.retain(|(_, head)| span.contains(&head.start_boottime_ns));
        all.sort_by_key(|(_, head)| head.start_boottime_ns);
        // `--dir` may name a directory that is searched anyway.
        all.dedup_by_key(|(_, head)| (head.pid, head.start_boottime_ns));
        let kin = kin_of(pid, all.iter().map(|(_, head)| (head.pid, head.ppid)));
        let orphans = all.iter().filter(|(_, head)| head.ppid == 0 && !kin.contains(&head.pid)).count();
        all.retain(|(_, head)| kin.contains(&head.pid));
        // Other users must not use up the time for the report.
        let soon = deadline.sooner(LOOK);
        let others = segment::directories_of_others(soon).into_iter().filter(|(other, _)| Some(*other) != user);
        let of_others = others.map(|(other, path)| {
            let mut heads = segment::list_owned(&path, Some(other), soon);
            heads.retain(|(_, head)| span.contains(&head.start_boottime_ns));
            let all = all.iter().chain(&heads).map(|(_, head)| (head.pid, head.ppid));
            let kin = kin_of(pid, all);
            let pids: HashSet<u32> = heads.iter().map(|(_, head)| head.pid).filter(|pid| kin.contains(pid)).collect();
            (path, pids.len())
        });
        let of_others = of_others.filter(|(_, count)| *count > 0).collect();
        Family { pid, segments: all, pruned_to, orphans, of_others }
    }

    /// The segment of the last program under the PID.
    pub fn last(&self) -> Option<&(PathBuf, Head)> {
        self.segments.iter().rev().find(|(_, head)| head.pid == self.pid)
    }

    /// Whether the process had a name at its end that isn't its program's, which the kernel keeps for the zombie. Then
    /// it had renamed itself, or an untracked program had replaced it by a direct system call: libc's functions note an
    /// exec in the segment.
    pub fn had_another_name(books: &Books, life: Life, name: &str) -> bool {
        let process = &books.process;
        let file = |path: &str| path.rsplit('/').next().unwrap_or_default().chars().take(15).collect::<String>();
        let mut known = std::iter::once(&process.executable).chain(&process.arguments).map(|path| file(path));
        life == Life::Killed && !name.is_empty() && !known.any(|known| known == name)
    }

    /// One line for each process, and their sum. A program that exec replaced has a line, but is not part of the sum.
    pub fn table(&self, out: &mut dyn Write, last: Ending, deadline: Deadline) -> io::Result<()> {
        if self.segments.len() < 2 && self.orphans == 0 && self.of_others.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{:>9} {:>10} {:>10}  processes of this run", "pid", "live", "peak")?;
        let (mut processes, mut unread, mut live, mut peak) = (0u64, 0u64, Bytes::ZERO, Bytes::ZERO);
        for (index, (path, head)) in self.segments.iter().enumerate() {
            let replaced = self.segments[index + 1..].iter().any(|(_, later)| later.pid == head.pid);
            let books = match target::books(path, segment::life_of(head, path, deadline), deadline) {
                Ok(books) => books,
                Err(Failure(why)) => {
                    unread += u64::from(!replaced);
                    writeln!(out, "{:>9} {:>10} {:>10}  {}", head.pid, "?", "?", printable(&why))?;
                    continue;
                }
            };
            let is_last = head.pid == self.pid && !replaced;
            let ending = match replaced {
                true => Ending::of(How::Exec),
                false if is_last => last,
                false => books.ending.unwrap_or(Ending::UNKNOWN),
            };
            if ending.how != How::Exec {
                processes += 1;
                live += books.total.live;
                peak += books.total.peak;
            }
            let process = &books.process;
            let command =
                if process.arguments.is_empty() { process.executable.clone() } else { one_line(&process.arguments) };
            let (now, most) = (books.total.live.to_string(), books.total.peak.to_string());
            write!(out, "{:>9} {now:>10} {most:>10}  {}   {}", head.pid, cut(&command, 70), ending.sentence())?;
            match (books.gaps.len(), path.to_str().and_then(quoted)) {
                (0, _) => writeln!(out)?,
                (gaps, None) => writeln!(out, "   {}", gap_count(gaps))?,
                (gaps, Some(path)) => {
                    writeln!(out, "   {}: {}", gap_count(gaps), as_called(&format!("plimsoll report {path}")))?
                }
            }
        }
        let (now, most) = (live.to_string(), peak.to_string());
        writeln!(
            out,
            "{:>9} {now:>10} {most:>10}  {} (their peaks were at different times){}{}",
            "sum",
            if processes == 1 { "1 process".to_owned() } else { format!("{} processes", count(processes)) },
            if unread == 0 { String::new() } else { format!("; {} more could not be read", count(unread)) },
            match self.pruned_to {
                Some(kept) =>
                    format!("; more may be missing: only {kept} segments of ended processes were kept (--retain)"),
                None => String::new(),
            }
        )?;
        for (path, count) in &self.of_others {
            let (are, their) =
                if *count == 1 { ("1 process", "Its") } else { (&*format!("{count} processes"), "Their") };
            let command = path.to_str().and_then(quoted).unwrap_or_default();
            let command = as_called(&format!("plimsoll report {command}   # the newest")).into_owned();
            writeln!(out, "Missing: {are} of another user. {their} books name this run as parent: {command}")?;
        }
        match self.orphans {
            0 => Ok(()),
            1 => writeln!(
                out,
                "Another tracked process was started from outside its PID namespace. If it belongs to this run, it is missing, as are its children."
            ),
            n => writeln!(
                out,
                "{n} other tracked processes were started from outside their PID namespaces. If they belong to this run, they are missing, as are their children."
            ),
        }
    }
}

/// The process and its descendants, of these (process, parent). Where an earlier segment of a process was deleted,
/// those of its children may come first.
fn kin_of(pid: u32, all: impl Iterator<Item = (u32, u32)>) -> HashSet<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (pid, parent) in all {
        children.entry(parent).or_default().push(pid);
    }
    let mut kin = HashSet::from([pid]);
    let mut unvisited = vec![pid];
    while let Some(parent) = unvisited.pop() {
        let found = children.remove(&parent).unwrap_or_default();
        unvisited.extend(found.into_iter().filter(|child| kin.insert(*child)));
    }
    kin
}

/// Whether segments of this run may have been deleted from a directory that now has these. The trackers delete the
/// oldest segments of ended processes first, so none is missing as long as an older one is there. `span`: the run's
/// starts (CLOCK_BOOTTIME).
fn may_lack(list: &[(PathBuf, Head)], span: &RangeInclusive<u64>, retain: usize, deadline: Deadline) -> bool {
    let mut ended = list.iter().filter(|(path, head)| segment::life_of(head, path, deadline) != Life::Live);
    let is_of_run = |(_, head): &(PathBuf, Head)| span.contains(&head.start_boottime_ns);
    list.len() >= retain && ended.clone().count() >= retain && ended.all(is_of_run)
}

fn gap_count(gaps: usize) -> String {
    if gaps == 1 { "1 gap".to_owned() } else { format!("{gaps} gaps") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_whose_parents_first_segment_is_gone_is_kin() {
        // 9 started before 8 was replaced by exec; 5 isn't a descendant of 7.
        let kin = kin_of(7, [(7, 1), (9, 8), (5, 4), (8, 7), (7, 9)].into_iter());
        assert_eq!(kin, HashSet::from([7, 8, 9]));
    }

    #[test]
    fn a_segment_that_cannot_be_read_is_missing_in_the_sum_and_named() {
        let segment = |pid: u32| {
            let head = Head { pid, ..Head::default() };
            (PathBuf::from(format!("/nonexistent/{pid}.seg")), head)
        };
        let family = Family {
            pid: 7,
            segments: vec![segment(7), segment(8)],
            pruned_to: None,
            orphans: 0,
            of_others: Vec::new(),
        };
        let mut out = Vec::new();
        family.table(&mut out, Ending::UNKNOWN, Deadline::after(LOOK)).expect("written to memory");
        let text = String::from_utf8(out).expect("UTF-8");
        let row = text.lines().find(|line| line.trim_start().starts_with("8 ")).expect("a row");
        assert!(row.contains(" ? ") && row.contains("/nonexistent/8.seg"), "{text}");
        assert!(
            text.trim_end().ends_with("0 processes (their peaks were at different times); 2 more could not be read")
        );
    }
}
