//! Opens the target's memory, finds its libc among the mappings, and passes both to `survey`.

use super::survey::{LibcData, WalkOptions, survey};
use crate::source::known_files::KnownFiles;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Backing, Glibc, Sourced, Vma};
use plimsoll_facts::units::{AddressRange, Bytes};
use plimsoll_process::foreign::FileKind;
use plimsoll_process::proc::memory::{Live, PageStates};
use plimsoll_process::proc::{Target, file_remedy, why_refused};

/// libc's writable data is 20 KiB; a static program's own data contains it. A larger mapping isn't libc's.
const LARGEST_DATA: u64 = 64 << 20;
/// The version string lies in libc's read-only data, 2 MiB from its start, or in that of a static program.
const VERSION_WITHIN: u64 = 64 << 20;

/// Limit of files with libc's name. dlmopen makes a few usual; a hostile process can map 65,000, and each costs a
/// search in all mappings.
const MOST_FILES: usize = 16;

/// Walks malloc in a process with these mappings. None without a gap: the process doesn't use glibc's malloc.
pub fn read(target: &Target, vmas: &[Vma], wanted: WalkOptions<'_>) -> Sourced<Glibc> {
    // A static program contains the banner only if it queries the version. Otherwise its malloc is recognised by its
    // data.
    let files: Vec<(&str, Option<String>)> =
        libc_files(vmas).into_iter().map(|path| (path, version(target, path, vmas, wanted.files))).collect();
    let is_known = files.iter().any(|(_, version)| version.is_some());
    if files.is_empty() {
        return (None, Vec::new());
    }
    let memory = match Live::open(target) {
        Ok(memory) => memory,
        Err(error) => {
            let gap = Gap::new(
                Source::Glibc,
                format!("/proc/{pid}/mem can't be opened: {}", why_refused(target.pid(), &error), pid = target.pid()),
                "glibc's live and free blocks are not separated (line glibc-unknown), and its large blocks are in \
                 other-anonymous",
            );
            return (None, vec![gap.remedy(file_remedy(target.pid()))]);
        }
    };
    // A process may map many files of that name, so the limit applies to all of them together.
    let mut left = Bytes(LARGEST_DATA);
    let libcs: Vec<LibcData> = files
        .iter()
        .flat_map(|(path, _)| data_of(path, vmas))
        .filter(|range| {
            let fits = range.length() <= left;
            left -= if fits { range.length() } else { Bytes(0) };
            fits
        })
        .filter_map(|range| Some(LibcData { base: range.start, bytes: PageStates::new(&memory).read(range)? }))
        .collect();
    let (mut glibc, gaps) = survey(&memory, &libcs, vmas, wanted);
    if let Some(glibc) = &mut glibc {
        glibc.version = files.into_iter().find_map(|(_, version)| version).unwrap_or_default();
    } else if !is_known {
        return (None, Vec::new());
    }
    (glibc, gaps)
}

fn is_libc(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or("");
    file == "libc.so.6" || (file.starts_with("libc-2.") && file.ends_with(".so"))
}

/// Files that may contain malloc: libc.so.6 if mapped, else the program itself (static).
fn libc_files(vmas: &[Vma]) -> Vec<&str> {
    let mut files: Vec<&str> = vmas.iter().map(|vma| vma.name.as_str()).filter(|name| is_libc(name)).collect();
    if files.is_empty() {
        files = vmas
            .iter()
            .filter(|vma| vma.backing == Backing::File && vma.executable)
            .map(|vma| &*vma.name)
            .take(1)
            .collect();
    }
    files.sort_unstable();
    files.dedup();
    files.truncate(MOST_FILES);
    files
}

/// The writable private mappings of the file, each with the anonymous tail (.bss) after it.
fn data_of(path: &str, vmas: &[Vma]) -> Vec<AddressRange> {
    let mut ranges: Vec<AddressRange> = Vec::new();
    for vma in vmas.iter().filter(|vma| vma.readable && vma.writable && !vma.shared) {
        // .bss may be merged with an anonymous mapping of any length, but malloc's state lies in .data.
        let tail = vma.is_named_like_bss() && vma.range.length() <= Bytes::mib(1);
        match ranges.last_mut() {
            Some(last) if last.end == vma.range.start && (vma.name == path || tail) => last.end = vma.range.end,
            _ if vma.name == path => ranges.push(vma.range),
            _ => {}
        }
    }
    ranges
}

fn version(target: &Target, path: &str, vmas: &[Vma], files: Option<&KnownFiles>) -> Option<String> {
    let vma = vmas.iter().find(|vma| vma.name == path)?;
    let read = || Some(parse_version(&target.mapped(vma, FileKind::Object).ok()?.head(VERSION_WITHIN).ok()?));
    match files {
        Some(files) => files.version(vma, read),
        None => read().flatten(),
    }
}

/// The version, such as `2.36`, from libc's banner: `GNU C Library … stable release version 2.36.`
pub fn parse_version(bytes: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"GNU C Library";
    const BANNER: &[u8] = b"release version ";
    let name = memchr::memmem::find(bytes, NAME)?;
    let rest = &bytes[name..bytes.len().min(name + 256)];
    let at = memchr::memmem::find(rest, BANNER)? + BANNER.len();
    let text: String = rest[at..]
        .iter()
        .take(8)
        .map(|byte| char::from(*byte))
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    Some(text.trim_end_matches('.').to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_thousands_of_libcs_has_few() {
        let named = |name: String| Vma { name, ..Vma::default() };
        let twice = [named("/lib/libc.so.6".into()), named("/lib/libc.so.6".into()), named("/bin/cat".into())];
        assert_eq!(libc_files(&twice), ["/lib/libc.so.6"]);
        let many: Vec<Vma> = (0..1000).map(|number| named(format!("/tmp/{number}/libc.so.6"))).collect();
        assert_eq!(libc_files(&many).len(), MOST_FILES);
    }
}
