//! The threads of a process: names, stack pointers, and numbers in their PID namespace.

use std::io;

use super::access::{file_remedy, why_refused};
use super::process::has_ended;
use crate::foreign::Target;
use crate::proc::status::{parse_stack_pointer, parse_status};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::Thread;

/// Threads with their names and stack pointers. A thread that is running on a CPU has no readable stack pointer.
pub fn read_threads(target: &Target, namespaced: bool, gaps: &mut Vec<Gap>) -> Vec<Thread> {
    let tids = target.numbers("task").unwrap_or_else(|error| {
        gaps.extend((!has_ended(&error) && error.kind() != io::ErrorKind::NotFound).then(|| {
            let reason = format!("the list of threads can't be read: {error}");
            Gap::new(Source::Proc, reason, ONLY_SHAPES)
        }));
        Vec::new()
    });
    read_these_threads(target, tids.into_iter(), namespaced, gaps)
}

/// Without names and stack pointers.
const ONLY_SHAPES: &str = "their stacks have no names and are recognised only by the shape of their mappings";

pub fn read_these_threads(
    target: &Target,
    tids: impl Iterator<Item = u32>,
    namespaced: bool,
    gaps: &mut Vec<Gap>,
) -> Vec<Thread> {
    let mut refused = None;
    let mut late = 0;
    let threads = tids
        .filter(|_| {
            // A process may have more threads than can be read within a command's time.
            let is_late = target.deadline().has_passed();
            late += usize::from(is_late);
            !is_late
        })
        .map(|tid| {
            let name = target.read(&format!("task/{tid}/comm")).unwrap_or_default();
            let stack_pointer = match target.read(&format!("task/{tid}/syscall")) {
                Ok(text) => parse_stack_pointer(&text),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused = Some(error);
                    None
                }
                Err(_) => None,
            };
            let namespaced_tid = if namespaced {
                let status = target.read(&format!("task/{tid}/status")).map(|text| parse_status(&text));
                status.ok().and_then(|status| status.namespaced_pids.last().copied()).unwrap_or(tid)
            } else {
                tid
            };
            let name = String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned();
            Thread { tid, namespaced_tid, name, stack_pointer, ..Thread::default() }
        })
        .collect();
    if late > 0 {
        gaps.push(Gap::new(Source::Proc, format!("{late} threads were not read in time"), ONLY_SHAPES));
    }
    if let Some(error) = refused {
        gaps.push(
            Gap::new(
                Source::Proc,
                format!("the threads' stack pointers can't be read: {}", why_refused(target.pid(), &error)),
                "thread stacks are recognised only by the shape of their mappings",
            )
            .remedy(file_remedy(target.pid())),
        );
    }
    threads
}
