//! The path by which a process was started, where that is another name of its file: Debian's redis-server is a link to
//! redis-check-rdb, and the kernel names the file in its mappings. The tracker does the same (`sys/program.rs`).

use plimsoll_facts::snapshot::Process;
use plimsoll_facts::units::Avma;
use plimsoll_segment::rules::{file_name, is_other_name, other_path};

use super::Target;
use super::memory::{Live, Memory, PAGE, PageState, PageStates};

pub(crate) fn read_started_as(target: &Target, process: &Process) -> Option<String> {
    let file = process.executable.as_deref()?;
    // The kernel's name of a process is that of the path of its exec, unless the program changed it.
    if !is_other_name(process.name.as_bytes(), file_name(file.as_bytes())) {
        return None;
    }
    let at = parse_path_address(&target.read("auxv").ok()?)?;
    let started = read_path(&Live::open(target).ok()?, at)?;
    let path = String::from_utf8(other_path(file.as_bytes(), started.as_bytes())?.concat()).ok()?;
    target.runs(&path).then_some(path)
}

/// The address of the path of the exec (AT_EXECFN, getauxval(3)).
fn parse_path_address(auxv: &[u8]) -> Option<u64> {
    const AT_EXECFN: u64 = 31;
    let (words, _) = auxv.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().map(|pair| pair.map(u64::from_ne_bytes)).find(|pair| pair[0] == AT_EXECFN).map(|pair| pair[1])
}

/// Reads the text at `at` up to its NUL: from this page and the next one, which is enough for PATH_MAX bytes. The
/// target may choose the address (PR_SET_MM_MAP), and a page that isn't present may never arrive (userfaultfd, FUSE).
/// So only present pages are read.
fn read_path(memory: &impl Memory, at: u64) -> Option<String> {
    let mut pages = PageStates::new(memory);
    let (mut text, mut at) = (Vec::new(), at);
    for _ in 0..2 {
        // If the page map can't be read, every page counts as present.
        if pages.of(at / PAGE) != PageState::Present || !pages.readable {
            return None;
        }
        let from = text.len();
        text.resize(from + (PAGE - at % PAGE) as usize, 0);
        if !memory.read(Avma(at), &mut text[from..]) {
            return None;
        }
        if let Some(end) = text.iter().position(|byte| *byte == 0) {
            text.truncate(end);
            return String::from_utf8(text).ok();
        }
        at = at.checked_add(PAGE - at % PAGE)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::Deadline;
    use std::time::Duration;

    #[test]
    fn the_address_is_that_of_the_entry() {
        let auxv: Vec<u8> = [6, 4096, 31, 0x7ffd, 0, 0].into_iter().flat_map(u64::to_ne_bytes).collect();
        assert_eq!(parse_path_address(&auxv), Some(0x7ffd));
        assert_eq!((parse_path_address(&auxv[..30]), parse_path_address(b"")), (None, None));
    }

    /// Pages 16 to 19, of which the map says that 18 isn't present. Reading that one fails the test.
    struct Pages(Vec<u8>, bool);

    impl Memory for Pages {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            let from = (at.0 - 16 * PAGE) as usize;
            let missing = 2 * PAGE as usize..3 * PAGE as usize;
            assert!(from + into.len() <= missing.start || from >= missing.end, "{} bytes at {from:#x}", into.len());
            into.copy_from_slice(&self.0[from..from + into.len()]);
            true
        }

        fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
            (first..).zip(into).for_each(|(page, word)| *word = u64::from([16, 17, 19].contains(&page)) << 63);
            self.1
        }
    }

    #[test]
    fn only_present_pages_are_read() {
        let mut pages = Pages(vec![b'x'; 4 * PAGE as usize], true);
        let of = |pages: &Pages, at: usize| read_path(pages, 16 * PAGE + at as u64);
        pages.0[4090..4102].copy_from_slice(b"/bin/a-name\0");
        pages.0[100..104].copy_from_slice(b"/b\xff\0");
        // Within one page, over its end, and not UTF-8.
        assert_eq!(of(&pages, 4094).as_deref(), Some("/a-name"));
        assert_eq!((of(&pages, 4100).as_deref(), of(&pages, 100)), (Some("e"), None));
        // The NUL would lie in the page that isn't present, or in the third page.
        assert_eq!((of(&pages, 8000), of(&pages, 8192), of(&pages, 4102)), (None, None, None));
        assert_eq!((read_path(&pages, u64::MAX - 3), read_path(&pages, 0)), (None, None));
        pages.1 = false;
        assert_eq!(of(&pages, 4094), None);
    }

    #[test]
    fn the_path_of_this_process_is_read() {
        let target = Target::open(std::process::id(), Deadline::after(Duration::from_secs(10))).expect("this process");
        let at = parse_path_address(&target.read("auxv").expect("own auxv")).expect("AT_EXECFN");
        let path = read_path(&Live::open(&target).expect("own memory"), at).expect("a path");
        assert_eq!(std::fs::canonicalize(path).expect("its file"), std::env::current_exe().expect("this program"));
    }
}
