//! Whether an executable file would load the tracker: only a program that asks for glibc's or musl's loader does. A
//! static program would hand the tracker's variables on to programs that it starts.

use crate::fixed_string::FixedString;
use crate::sys::filter::AUDIT_ARCH;
use crate::sys::os::{self, Program};
use core::ffi::CStr;

/// Scripts may name scripts: execve(2) allows five levels.
const LEVELS: usize = 5;
/// What the kernel reads of a script's first line (BINPRM_BUF_SIZE), and of a program's header.
const START: usize = 1024;
const LINE: usize = 256;

/// Whether a loader that knows LD_PRELOAD runs this program, or the one that its first line names.
pub(super) fn is_dynamic(mut program: Program) -> bool {
    for _ in 0..LEVELS {
        if program.changes_user() {
            return false;
        }
        let mut start = [0u8; START];
        let start = program.read_at(0, &mut start);
        let Some(name) = interpreter(&start[..start.len().min(LINE)]) else {
            return names_a_loader(start, |at, buffer| program.read_at(at, buffer).len());
        };
        let mut path = FixedString::<LINE>::new();
        path.push(name);
        match Program::open(os::WORKING_DIRECTORY, path.as_c()) {
            Some(next) => program = next,
            None => return false,
        }
    }
    false
}

/// The executable file of this name in a directory of PATH; an empty directory is the working directory.
pub(super) fn in_directory(directory: &[u8], name: &[u8]) -> Option<Program> {
    let mut path = FixedString::<4096>::new();
    if !directory.is_empty() {
        path.push(directory).push(b"/");
    }
    path.push(name);
    Program::open(os::WORKING_DIRECTORY, path.as_c()).filter(Program::is_executable)
}

/// The file behind a descriptor of the program's.
pub(super) fn of_descriptor(fd: i32) -> Option<Program> {
    let mut path = FixedString::<32>::new();
    path.push(b"/proc/self/fd/").push_number(u64::try_from(fd).ok()?);
    Program::open(os::WORKING_DIRECTORY, path.as_c())
}

/// The program that a script's first line names.
fn interpreter(line: &[u8]) -> Option<&[u8]> {
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
    let line = line.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    line.split(is_blank).find(|word| !word.is_empty())
}

/// A 64-bit ELF file for this CPU, with a PT_INTERP that names a loader of glibc's (`ld-linux…`) or musl's (`ld-musl…`).
///
/// ```text
/// header   0 magic, 4 class 2, 5 little endian 1, 18 machine u16, 32 offset of the program headers u64, 54 size of one u16, 56 number u16
/// each     0 type u32, 8 offset u64, 32 bytes u64
/// ```
fn names_a_loader(start: &[u8], read_at: impl Fn(usize, &mut [u8]) -> usize) -> bool {
    const PT_INTERP: u64 = 3;
    /// The low half of the number that seccomp filters see (linux/audit.h).
    const MACHINE: u64 = AUDIT_ARCH as u64 & 0xffff;
    const HEADER: usize = 56;
    let number = |bytes: &[u8], at: usize, n: usize| {
        bytes.get(at..at + n).map(|b| b.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte)))
    };
    let head = |at, n| number(start, at, n).unwrap_or(0);
    if !start.starts_with(b"\x7fELF\x02\x01") || head(18, 2) != MACHINE || head(54, 2) != HEADER as u64 {
        return false;
    }
    (0..head(56, 2)).any(|i| {
        let mut header = [0u8; HEADER];
        let at = head(32, 8).saturating_add(i * HEADER as u64) as usize;
        if read_at(at, &mut header) < HEADER || number(&header, 0, 4) != Some(PT_INTERP) {
            return false;
        }
        let mut name = [0u8; 128];
        let n = (number(&header, 32, 8).unwrap_or(0) as usize).min(name.len());
        let n = read_at(number(&header, 8, 8).unwrap_or(0) as usize, &mut name[..n]);
        let name = CStr::from_bytes_until_nul(&name[..n]).map_or(&name[..n], CStr::to_bytes);
        let file = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
        file.starts_with(b"ld-linux") || file.starts_with(b"ld-musl")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_script_names_a_program() {
        assert_eq!(interpreter(b"#! /bin/sh -e\nexit"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter(b"#!\t/usr/bin/env python3"), Some(&b"/usr/bin/env"[..]));
        assert_eq!(interpreter(b"#!\n/bin/sh"), None);
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    /// This test's own file, each byte of its header damaged, and each length.
    #[test]
    fn a_program_is_known_by_its_headers() {
        let file = std::fs::read("/proc/self/exe").expect("own file");
        let asks = |file: &[u8]| {
            let read = |at: usize, buffer: &mut [u8]| {
                let from = file.get(at..).unwrap_or_default();
                let n = from.len().min(buffer.len());
                buffer[..n].copy_from_slice(&from[..n]);
                n
            };
            names_a_loader(&file[..file.len().min(START)], read)
        };
        assert!(asks(&file));
        let headers = (0..64 + 56 * 16).filter(|&i| {
            let mut damaged = file[..8192].to_vec();
            damaged[i] ^= 0xff;
            !asks(&damaged)
        });
        assert!(headers.count() >= 12, "magic, class, order, machine, place, size");
        assert!((0..1024).all(|n| !asks(&file[..n.min(64)])));
        assert!(!asks(b"") && !asks(b"#!/bin/sh\n"));
    }
}
