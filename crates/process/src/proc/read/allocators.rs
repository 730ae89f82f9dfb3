//! The allocators of a process, in its libraries and in its program.

use super::access::file_remedy;
use crate::foreign::{Regular, Target, Why};
use crate::proc::allocators::{Program, exports_malloc, recognise_allocators};
use crate::proc::status::parse_environment;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{LoadedAllocator, Vma};

impl Program for Regular {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Option<()> {
        self.at(offset, into).ok().filter(|count| *count == into.len()).map(drop)
    }
}

/// The allocators, and whether the program file exports a malloc.
pub fn read_allocators(target: &Target, vmas: &[Vma], gaps: &mut Vec<Gap>) -> (Vec<LoadedAllocator>, bool) {
    // A process that may not be traced doesn't show the path of its program. For a file that was deleted or
    // replaced, the kernel adds ` (deleted)`, which the names of mappings here are without.
    let path = target.link("exe").map_or_else(
        |_| format!("/proc/{}/exe", target.pid()),
        |path| String::from_utf8_lossy(path.strip_suffix(b" (deleted)").unwrap_or(&path)).into_owned(),
    );
    let program = target.program();
    let gap = |why: &dyn std::fmt::Display| {
        let effect = "it is unknown whether the program contains an allocator; the heap of such an allocator is in other-anonymous";
        Gap::new(Source::Allocator, format!("{path} {why}"), effect)
    };
    // Without mappings nothing can be recognised, and their own gap gives the reason.
    if let Err(why) = &program
        && !vmas.is_empty()
    {
        gaps.push(gap(why).remedy(file_remedy(target.pid())));
    }
    let program = program.ok();
    let environment = target.read("environ").map(|text| parse_environment(&text)).unwrap_or_default();
    let preload = environment.iter().find(|(name, _)| name == "LD_PRELOAD").map_or("", |(_, value)| value);
    let (found, unsearched) =
        recognise_allocators(program.as_ref().map(|program| (program, path.clone())), vmas, preload);
    gaps.extend(unsearched.map(|why| match target.deadline().has_passed() {
        true => gap(&Why::Late),
        false => gap(&why),
    }));
    (found, program.as_ref().is_some_and(exports_malloc))
}
