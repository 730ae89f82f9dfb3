//! Queries the NMT of a native image that was built to answer diagnostic commands: once before the mappings are read,
//! because the first query starts a thread in the image, and once afterwards.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

use super::parse::parse_image_nmt;
use super::read::{HEAP, executables, opened};
use crate::source::hotspot::{self, Mute, Patience, RefusedCommand, Vm};
use crate::source::known_files::KnownFiles;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{NmtCategory, Vma};
use plimsoll_process::foreign::Regular;
use plimsoll_process::proc::Target;

const EFFECT: &str = "its malloc is part of glibc-live";
const COMMAND: &str = "VM.native_memory";
/// The name of the attach socket. Only an image that was built to answer contains this name; SIGQUIT would make any
/// other print or end.
const SOCKET: &[u8] = b".java_pid";

/// The categories of the image's own NMT. Empty without a gap if there is no image, or if it isn't built to answer.
/// `files` knows files of an earlier reading. Not for a JVM that loaded an image as a library: its socket is the JVM's.
pub fn report(target: &Target, vmas: &[Vma], files: &KnownFiles) -> (Vec<NmtCategory>, Vec<Gap>) {
    if !answers(target, vmas, files) {
        return Default::default();
    }
    let gap = |reason: String| Gap::new(Source::NativeImage, format!("the image did not answer: {reason}"), EFFECT);
    let mut vm = match Vm::open(target, None, Patience::default()) {
        Ok(vm) => vm,
        // An image may contain the name in its libraries (the attach client) but have no listener. Then no fact is
        // missing.
        Err(Mute::SignalNotCaught) => return Default::default(),
        Err(mute) => return (Vec::new(), vec![gap(mute.to_string()).remedy(hotspot::remedy_of(&mute, target))]),
    };
    match vm.query(COMMAND) {
        Ok(text) => (parse_image_nmt(&text), Vec::new()),
        // Built without NMT, so this isn't a gap.
        Err(RefusedCommand::NoCommand(_)) => Default::default(),
        Err(RefusedCommand::Failed(reason)) => (Vec::new(), vec![gap(reason)]),
    }
}

/// Queries NMT a second time. Sets how much each category changed since the first report.
pub(crate) fn read_again(target: &Target, nmt: &mut [NmtCategory]) -> Result<(), String> {
    let mut vm = Vm::open(target, None, Patience::default()).map_err(|mute| mute.to_string())?;
    hotspot::compare(nmt, &parse_image_nmt(&vm.query(COMMAND)?));
    Ok(())
}

/// Whether the program, or else the first image that it loaded, was built to answer.
fn answers(target: &Target, vmas: &[Vma], files: &KnownFiles) -> bool {
    let image = |file: Regular, mapping: Option<&Vma>| {
        if mapping.is_some_and(|vma| files.is_no_image(vma)) {
            return None;
        }
        let heap = heap_of(&file);
        // After the deadline, an image may be missing because it could not be read.
        if let Some(vma) = mapping.filter(|_| heap.is_none() && !target.deadline().has_passed()) {
            files.add_no_image(vma);
        }
        heap.map(|heap| (file, heap))
    };
    let own = target.program().ok().and_then(|program| {
        let mapping = executables(vmas).find(|vma| vma.inode == program.meta().ino());
        image(program, mapping)
    });
    let mut seen = HashSet::new();
    let first = || {
        let mut unknown = executables(vmas).filter(|vma| seen.insert(vma.name.as_str()) && !files.is_no_image(vma));
        unknown.find_map(|vma| image(opened(target, vma)?, Some(vma)))
    };
    own.or_else(first).is_some_and(|(file, (offset, length))| contains(&file, offset, length, SOCKET))
}

/// Offset and length of an image's heap in its file.
fn heap_of(file: &Regular) -> Option<(u64, u64)> {
    let pieces = file.pieces();
    let elf = ElfFile64::<object::Endianness, _>::parse(&pieces).ok()?;
    elf.section_by_name(HEAP)?.file_range()
}

/// Whether the file contains `needle` from `offset` on. It is read in pieces, because an image's heap may have 200 MB.
/// Holes are skipped, because a header may claim a terabyte of them.
fn contains(file: &Regular, offset: u64, length: u64, needle: &[u8]) -> bool {
    let mut piece = vec![0; 256 << 10];
    let end = offset.saturating_add(length.min(file.cap()));
    let mut at = offset;
    while let Some(data) = file.data_from(at).filter(|data| *data < end) {
        at = data;
        let wanted = piece.len().min((end - at) as usize);
        let Ok(count) = file.at(at, &mut piece[..wanted]) else { return false };
        if memchr::memmem::find(&piece[..count], needle).is_some() {
            return true;
        }
        if count <= needle.len() {
            return false;
        }
        // The pieces overlap, so that no match is missed at a boundary.
        at += (count - needle.len()) as u64;
    }
    false
}
