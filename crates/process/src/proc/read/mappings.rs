//! The mappings of a process with their figures from smaps, or without figures from maps.

use std::io;
use std::time::Duration;

use super::access::{explain, why_closed};
use super::process::has_ended;
use crate::foreign::{Stopwatch, Target};
use crate::proc::access::{Access, Closed};
use crate::proc::smaps::{parse_maps, parse_rollup, parse_smaps};
use crate::proc::status::parse_tmpfs_devices;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Rollup, Vma};

const ONLY_TOTALS: &str = "only the kernel's totals by kind are known, and no lines";
const MISSING_PAGES: &str = "their pages are missing from the lines and from the sum";
const UNKNOWN_TMPFS: &str = "mapped files on tmpfs are in mapped-files in place of shared-memory";

#[derive(Default)]
pub struct Mappings {
    pub vmas: Vec<Vma>,
    pub rollup: Option<Rollup>,
    pub refused: bool,
    /// Time for reading smaps, without the time given to other threads: an upper bound of the time under the target's
    /// mmap lock.
    pub took: Duration,
}

/// The mappings with their figures from smaps. If smaps is refused, the mappings have no figures (usually there are no
/// mappings either, because maps needs the same permission), and a gap reports it.
pub fn read_mappings(target: &Target, gaps: &mut Vec<Gap>) -> Mappings {
    let rollup = target.read("smaps_rollup").ok().and_then(|text| parse_rollup(&text));
    Mappings { rollup, ..read_smaps(target, gaps) }
}

/// Like `read_mappings`, but without smaps_rollup: reading the kernel's own sum doubles the time.
pub fn read_smaps(target: &Target, gaps: &mut Vec<Gap>) -> Mappings {
    let tmpfs = tmpfs_devices(target.read("mountinfo"), gaps);
    let mut refused = false;
    let began = Stopwatch::start();
    let text = target.read("smaps");
    let took = began.elapsed();
    let smaps = match text {
        Ok(text) => parse_smaps(&text, &tmpfs),
        // The process has ended meanwhile; nothing was refused.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => parse_smaps(&[], &tmpfs),
        Err(error) => {
            let pid = target.pid();
            let (why, remedy) = unread(pid, &error);
            let reason = format!("/proc/{pid}/smaps can't be read: {why}");
            gaps.push(Gap::new(Source::Proc, reason, ONLY_TOTALS).remedy(remedy));
            refused = true;
            target.read("maps").map(|text| parse_maps(&text, &tmpfs)).unwrap_or_default()
        }
    };
    if smaps.bad_lines > 0 {
        gaps.push(Gap::new(
            Source::Proc,
            format!("{} lines of smaps were not understood", smaps.bad_lines),
            MISSING_PAGES,
        ));
    }
    Mappings { vmas: smaps.vmas, rollup: None, refused, took }
}

/// The devices of tmpfs mounts. A process that has ended has none.
fn tmpfs_devices(mountinfo: io::Result<Vec<u8>>, gaps: &mut Vec<Gap>) -> Vec<(u32, u32)> {
    match mountinfo {
        Ok(text) => parse_tmpfs_devices(&text),
        Err(error) if has_ended(&error) => Vec::new(),
        Err(error) => {
            let reason = format!("the process's mountinfo can't be read: {error}");
            gaps.push(Gap::new(Source::Proc, reason, UNKNOWN_TMPFS));
            Vec::new()
        }
    }
}

/// The mappings without figures, for a process whose pages are too many to read. smaps would read all of them.
pub fn read_maps(target: &Target, why: &io::Error, gaps: &mut Vec<Gap>) -> Mappings {
    let began = Stopwatch::start();
    let vmas = read_ranges(target);
    let reason = format!("/proc/{}/pagemap can't be read: {why}", target.pid());
    gaps.push(Gap::new(Source::Proc, reason, ONLY_TOTALS));
    Mappings { vmas, rollup: None, refused: true, took: began.elapsed() }
}

/// The mappings alone; none if they can't be read.
pub fn read_ranges(target: &Target) -> Vec<Vma> {
    let tmpfs = target.read("mountinfo").map(|text| parse_tmpfs_devices(&text)).unwrap_or_default();
    target.read("maps").map(|text| parse_maps(&text, &tmpfs).vmas).unwrap_or_default()
}

/// Whether a gap is about the reading of the mappings, which the next reading repeats.
pub fn is_of_mappings(gap: &Gap) -> bool {
    gap.source == Source::Proc && [ONLY_TOTALS, MISSING_PAGES, UNKNOWN_TMPFS].contains(&gap.effect.as_str())
}

/// The reason why smaps wasn't read, and a command that shows more if there is one. It is never the command that has
/// just failed: that one would fail again.
fn unread(pid: u32, error: &io::Error) -> (String, String) {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let Closed { reason, remedy } = why_closed(pid, &explain(pid), Access::Read);
            (format!("process {pid} {reason}"), remedy)
        }
        // maps is shorter, and shows what most of the mappings are. A name may have spaces, but not its first word.
        io::ErrorKind::FileTooLarge => {
            (error.to_string(), format!("awk '{{print $2, $6}}' /proc/{pid}/maps | sort | uniq -c | sort -rn | head"))
        }
        _ => (error.to_string(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_failed_is_not_proposed_again() {
        for kind in [io::ErrorKind::FileTooLarge, io::ErrorKind::OutOfMemory, io::ErrorKind::Other] {
            let (why, remedy) = unread(7, &io::Error::new(kind, "it is longer than 256 MiB"));
            assert_eq!(why, "it is longer than 256 MiB");
            assert!(!remedy.contains("explain"), "{remedy}");
            assert_eq!(remedy.contains("/proc/7/maps"), kind == io::ErrorKind::FileTooLarge, "{remedy}");
        }
        let own = std::process::id();
        let (_, remedy) = unread(own, &io::Error::new(io::ErrorKind::FileTooLarge, ""));
        let output = std::process::Command::new("sh").args(["-c", &remedy]).output().expect("sh");
        assert!(String::from_utf8_lossy(&output.stdout).contains("rw-p"), "{output:?}");
    }

    #[test]
    fn mounts_that_cannot_be_read_are_a_gap_unless_the_process_has_ended() {
        let mut gaps = Vec::new();
        let ended = io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error());
        assert!(tmpfs_devices(Err(ended), &mut gaps).is_empty() && gaps.is_empty());
        assert_eq!(tmpfs_devices(Ok(b"36 35 0:21 / /run rw - tmpfs tmpfs rw\n".to_vec()), &mut gaps), [(0, 21)]);
        assert!(gaps.is_empty());
        assert!(tmpfs_devices(Err(io::Error::from(io::ErrorKind::PermissionDenied)), &mut gaps).is_empty());
        assert!(gaps.len() == 1 && is_of_mappings(&gaps[0]), "{gaps:?}");
    }
}
