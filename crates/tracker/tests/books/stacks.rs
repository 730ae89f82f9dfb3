//! stack_bounds.rs: the main thread's stack in a process that runs already.

use crate::alone;
use plimsoll_tracker::stack_bounds;
use std::ops::Range;

const RAISED: u64 = 1 << 30;
/// How far below the stack the test maps a page, as the kernel would without address space randomisation.
const DISTANCE: usize = 192 << 20;

/// The process's mappings, and whether it is the main stack.
fn mappings() -> Vec<(Range<usize>, bool)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("own mappings");
    let parse = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some((address(start)?..address(end)?, line.ends_with("[stack]")))
    };
    maps.lines().filter_map(parse).collect()
}

/// A walk reads what lies between the stack pointer and the stack's high end. A coroutine's stack isn't part of it, nor
/// is what lies between two mappings.
#[test]
fn a_limit_that_the_program_has_raised_makes_no_other_mapping_part_of_the_main_stack() {
    alone(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads and writes the local.
        let is_raised = unsafe {
            libc::getrlimit(libc::RLIMIT_STACK, &mut limit);
            limit = libc::rlimit { rlim_cur: RAISED, rlim_max: limit.rlim_max.max(RAISED) };
            libc::setrlimit(libc::RLIMIT_STACK, &limit) == 0
        };
        if !is_raised {
            return println!("a_limit_that_the_program_has_raised: skipped, the hard limit is lower");
        }
        let stack = mappings().into_iter().find(|(_, is_stack)| *is_stack).expect("a stack").0;
        // SAFETY: maps a page where nothing is mapped, or nothing.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            libc::mmap((stack.start - DISTANCE) as *mut _, 4096, libc::PROT_READ, flags, -1, 0);
        }
        stack_bounds::init_late();
        let bounds = stack_bounds::main();
        let (stack, others): (Vec<_>, Vec<_>) = mappings().into_iter().partition(|(_, is_stack)| *is_stack);
        let stack = &stack[0].0;
        let below = |low: usize| others.iter().filter(|(m, _)| m.end > low && m.start < stack.start).count();
        println!("exercised: the limit reaches over {} mappings", below(stack.end - RAISED as usize));
        assert!(below(stack.end - RAISED as usize) > 0);
        assert!(bounds.low <= stack.start && stack.contains(&(bounds.high - 1)), "{stack:x?}");
        assert_eq!(below(bounds.low), 0, "{:x} to {:x}: {others:x?}", bounds.low, bounds.high);
    });
}
