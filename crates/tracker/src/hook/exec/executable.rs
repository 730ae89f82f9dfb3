//! What an executable file would load: the tracker, if it asks for glibc's or musl's loader. A static program would hand
//! the tracker's variables on to programs that it starts. A program with a sanitizer's runtime ends if another library
//! comes before that runtime.

use crate::fixed_string::FixedString;
use crate::sys::filter::AUDIT_ARCH;
use crate::sys::os::{self, Program};
use core::ffi::CStr;
use plimsoll_segment::rules::{file_name, is_sanitizer};

/// How a program treats LD_PRELOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loads {
    /// Nobody reads it, or the file can't be read.
    Nothing,
    Tracker,
    /// The loader would load the tracker before the runtime of a sanitizer.
    Sanitizer,
}

/// Scripts may name scripts: execve(2) allows five levels.
const LEVELS: usize = 5;
/// What the kernel reads of a script's first line, or of a program's header (BINPRM_BUF_SIZE).
const START: usize = 256;

/// Whether a loader that knows LD_PRELOAD runs this program, or the one that its first line names; and what it loads.
///
/// Not a part of the frame in which the exec runs: a signal handler may call it on a stack of 8 KiB.
#[inline(never)]
pub(super) fn loads(mut program: Program) -> Loads {
    for _ in 0..LEVELS {
        if program.changes_user() {
            return Loads::Nothing;
        }
        let mut start = [0u8; START];
        let start = program.read_at(0, &mut start);
        let Some(name) = interpreter(start) else {
            let elf = Elf { start, read_at: |at, buffer: &mut [u8]| program.read_at(at, buffer).len() };
            return match elf.names_a_loader() {
                false => Loads::Nothing,
                true if elf.needs_a_sanitizer() => Loads::Sanitizer,
                true => Loads::Tracker,
            };
        };
        let mut path = FixedString::<START>::new();
        path.push(name);
        match Program::open(os::WORKING_DIRECTORY, path.as_c()) {
            Some(next) => program = next,
            None => return Loads::Nothing,
        }
    }
    Loads::Nothing
}

/// The executable file of this name in a directory of PATH; an empty directory is the working directory.
pub(super) fn in_directory(directory: &[u8], name: &[u8]) -> Option<Program> {
    // libc takes as much of the stack as PATH is long.
    match directory.len() + 1 + name.len() {
        0..256 => opened_in::<256>(directory, name),
        256..1024 => opened_in::<1024>(directory, name),
        _ => opened_in::<4096>(directory, name),
    }
}

#[inline(never)]
fn opened_in<const BYTES: usize>(directory: &[u8], name: &[u8]) -> Option<Program> {
    let mut path = FixedString::<BYTES>::new();
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

/// A file that may be a 64-bit ELF file for this CPU.
///
/// ```text
/// header   0 magic, 4 class 2, 5 little endian 1, 18 machine u16, 32 offset of the program headers u64, 54 size of one u16, 56 number u16
/// each     0 type u32, 8 offset u64, 16 address u64, 32 bytes u64
/// dynamic  0 tag u64, 8 value u64; the names of DT_NEEDED are offsets in the strings at the address of DT_STRTAB
/// ```
struct Elf<'a, F> {
    /// The first bytes.
    start: &'a [u8],
    /// Fills the buffer from this offset of the file, and returns the number of bytes.
    read_at: F,
}

const HEADER: usize = 56;
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// Limit of entries in a dynamic section: each library, and some dozens.
const ENTRIES: usize = 2048;

struct ProgramHeader {
    kind: u64,
    offset: u64,
    address: u64,
    bytes: u64,
}

impl<F: Fn(usize, &mut [u8]) -> usize> Elf<'_, F> {
    fn headers(&self) -> impl Iterator<Item = ProgramHeader> {
        /// The low half of the number that seccomp filters see (linux/audit.h).
        const MACHINE: u64 = AUDIT_ARCH as u64 & 0xffff;
        let head = |at, n| number(self.start, at, n).unwrap_or(0);
        let is_ours = self.start.starts_with(b"\x7fELF\x02\x01") && head(18, 2) == MACHINE;
        let count = if is_ours && head(54, 2) == HEADER as u64 { head(56, 2) } else { 0 };
        let first = head(32, 8);
        (0..count).filter_map(move |i| {
            let mut header = [0u8; HEADER];
            let at = first.saturating_add(i * HEADER as u64) as usize;
            if (self.read_at)(at, &mut header) < HEADER {
                return None;
            }
            let field = |at, n| number(&header, at, n);
            Some(ProgramHeader {
                kind: field(0, 4)?,
                offset: field(8, 8)?,
                address: field(16, 8)?,
                bytes: field(32, 8)?,
            })
        })
    }

    /// Whether a PT_INTERP names a loader of glibc's (`ld-linux…`) or musl's (`ld-musl…`).
    fn names_a_loader(&self) -> bool {
        self.headers().filter(|header| header.kind == PT_INTERP).any(|header| {
            let mut name = [0u8; 128];
            let n = (header.bytes as usize).min(name.len());
            let file = file_name(self.string(header.offset, &mut name[..n]));
            file.starts_with(b"ld-linux") || file.starts_with(b"ld-musl")
        })
    }

    /// Whether the program itself needs the runtime of a sanitizer. A runtime that only a library of the program needs
    /// isn't found.
    fn needs_a_sanitizer(&self) -> bool {
        let Some(dynamic) = self.headers().find(|header| header.kind == PT_DYNAMIC) else { return false };
        let strings = self.entries(&dynamic).find(|(tag, _)| *tag == DT_STRTAB).and_then(|(_, address)| {
            let holds = |header: &ProgramHeader| {
                header.kind == PT_LOAD && address.checked_sub(header.address).is_some_and(|at| at < header.bytes)
            };
            self.headers().find(holds).map(|header| header.offset.saturating_add(address - header.address))
        });
        let Some(strings) = strings else { return false };
        self.entries(&dynamic)
            .filter(|(tag, _)| *tag == DT_NEEDED)
            .any(|(_, name)| is_sanitizer(self.string(strings.saturating_add(name), &mut [0u8; 256])))
    }

    /// The tags and values of a dynamic section.
    fn entries(&self, dynamic: &ProgramHeader) -> impl Iterator<Item = (u64, u64)> {
        const BLOCK: usize = 16;
        let (offset, count) = (dynamic.offset, (dynamic.bytes / 16).min(ENTRIES as u64) as usize);
        let (mut block, mut read) = ([0u8; BLOCK * 16], 0);
        let entries = (0..count).map_while(move |i| {
            if i % BLOCK == 0 {
                read = (self.read_at)(offset.saturating_add(i as u64 * 16) as usize, &mut block);
            }
            let at = i % BLOCK * 16;
            let entry = block.get(at..at + 16).filter(|_| at + 16 <= read)?;
            Some((number(entry, 0, 8)?, number(entry, 8, 8)?))
        });
        entries.take_while(|(tag, _)| *tag != DT_NULL)
    }

    /// The string at this offset of the file, as far as the buffer reaches.
    fn string<'b>(&self, offset: u64, buffer: &'b mut [u8]) -> &'b [u8] {
        let n = (self.read_at)(offset as usize, buffer).min(buffer.len());
        let read = &buffer[..n];
        CStr::from_bytes_until_nul(read).map_or(read, CStr::to_bytes)
    }
}

/// A number of n bytes, little endian.
fn number(bytes: &[u8], at: usize, n: usize) -> Option<u64> {
    Some(bytes.get(at..at + n)?.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte)))
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

    fn of(file: &[u8]) -> Elf<'_, impl Fn(usize, &mut [u8]) -> usize> {
        let read_at = |at: usize, buffer: &mut [u8]| {
            let from = file.get(at..).unwrap_or_default();
            let n = from.len().min(buffer.len());
            buffer[..n].copy_from_slice(&from[..n]);
            n
        };
        Elf { start: &file[..file.len().min(START)], read_at }
    }

    /// Reads this test's own file, in which the name of a needed library is replaced by others of the same length. The
    /// search ends, whatever damage the dynamic section and the headers have.
    #[test]
    fn the_runtime_of_a_sanitizer_is_found_among_the_needed_libraries() {
        let file = std::fs::read("/proc/self/exe").expect("own file");
        assert!(of(&file).names_a_loader() && !of(&file).needs_a_sanitizer());
        let libc = b"\0libc.so.6\0";
        let at = file.windows(libc.len()).position(|bytes| bytes == libc).expect("it needs libc") + 1;
        for (name, is_one) in [
            (&b"libasan.so"[..], true),
            (b"libtsan.so", true),
            (b"liblsan.so", true),
            (b"x/lsan.so\0", false),
            (b"libmsan.so", false),
            (b"libasan-so", false),
            (b"lib\0san.so", false),
        ] {
            let mut other = file.clone();
            other[at..at + name.len()].copy_from_slice(name);
            assert_eq!(of(&other).needs_a_sanitizer(), is_one, "{}", String::from_utf8_lossy(name));
        }
        let mut sanitized = file.clone();
        sanitized[at..at + 10].copy_from_slice(b"libtsan.so");
        let dynamic = of(&file).headers().find(|header| header.kind == PT_DYNAMIC).expect("a dynamic section");
        let (from, n) = (dynamic.offset as usize, dynamic.bytes as usize);
        let damaged = (0..64 + 16 * HEADER).chain(from..from + n).filter(|&i| {
            sanitized[i] ^= 0xff;
            let found = of(&sanitized).needs_a_sanitizer();
            sanitized[i] ^= 0xff;
            !found
        });
        assert!(damaged.count() >= 12, "type, place and size of the section; its entries for the name and the strings");
        assert!((0..n).step_by(16).all(|i| of(&sanitized[..from + i]).names_a_loader()));
    }

    /// Reads this test's own file with each byte of its header damaged, and cut to each length.
    #[test]
    fn a_program_is_known_by_its_headers() {
        let file = std::fs::read("/proc/self/exe").expect("own file");
        let asks = |file: &[u8]| of(file).names_a_loader();
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
