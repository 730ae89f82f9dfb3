//! The code of the helper thread, which loads the tracker in the target, and the page through which plimsoll talks to
//! it.
//!
//! ```text
//! region: code │ stack for the borrowed thread's calls … │ page
//! ```
//! The helper loads the library (or finds it loaded), calls its entry, writes the answer, and waits for the
//! acknowledgement. Then it jumps to munmap for the whole region: the tracker's own, if it is loaded, so that the books
//! have the change. Without an acknowledgement within ten seconds, plimsoll has died: the region stays, because a
//! borrowed thread may still be on the stack in it.

use std::ops::Range;

pub const PAGE: u64 = 4096;
/// pthread_create needs a few KiB of stack, and malloc below it may need more for its first arena.
pub const REGION_BYTES: u64 = 256 << 10;
/// Where the page begins.
pub const TALK: u64 = REGION_BYTES - PAGE;

// Offsets in the page; the assembly below has the same.
const PATH: Range<usize> = 256..1280;
const OPTIONS: Range<usize> = 1280..3072;
const ERROR: Range<usize> = 3072..3584;
const ANSWER: usize = 88;
const STATE: usize = 92;
pub const ACKNOWLEDGED: u64 = 96;

/// Functions of the target's C library, as addresses in the target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Functions {
    pub itself: u64,
    pub detach: u64,
    pub dlopen: u64,
    pub dlerror: u64,
    pub munmap: u64,
}

/// What the helper does.
pub struct Task<'t> {
    pub functions: Functions,
    /// Flags of dlopen(3).
    pub flags: u32,
    /// Where the tracker is loaded; 0: load it.
    pub base: u64,
    /// Offsets of its entry and of its munmap.
    pub entry: u64,
    pub tracker_munmap: u64,
    pub path: &'t str,
    pub options: &'t str,
}

/// How far the helper is.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    Working,
    /// The tracker's answer.
    Answered(i32),
    /// The loader's error.
    NotLoaded(String),
}

impl Task<'_> {
    /// The page, for a region at this address. `None`: a text is too long.
    pub fn page(&self, region: u64) -> Option<Vec<u8>> {
        let f = self.functions;
        let words = [
            f.itself,
            f.detach,
            f.dlopen,
            f.dlerror,
            f.munmap,
            self.base,
            self.entry,
            self.tracker_munmap,
            region,
            REGION_BYTES,
        ];
        let mut page: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        page.resize(PAGE as usize, 0);
        page[104..108].copy_from_slice(&self.flags.to_le_bytes());
        for (text, range) in [(self.path, PATH), (self.options, OPTIONS)] {
            let is_c_string = !text.as_bytes().contains(&0) && text.len() < range.len();
            page[range.start..].get_mut(..text.len()).filter(|_| is_c_string)?.copy_from_slice(text.as_bytes());
        }
        Some(page)
    }
}

/// Reads the page of a helper. The target may have written anything there.
pub fn state(page: &[u8]) -> State {
    let word = |at: usize| page.get(at..).and_then(|p| p.first_chunk().copied()).map_or(0, i32::from_le_bytes);
    let text = || {
        let text = page.get(ERROR).unwrap_or_default();
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    };
    match word(STATE) {
        1 => State::Answered(word(ANSWER)),
        2 => State::NotLoaded(text()),
        _ => State::Working,
    }
}

/// The code: position-independent, entered as a start routine of pthread_create with the address of the page.
pub fn code() -> &'static [u8] {
    // SAFETY: the assembly below defines both symbols, and the bytes between them are constant data of this program.
    unsafe {
        let (start, end) = (&raw const plimsoll_helper_start, &raw const plimsoll_helper_end);
        std::slice::from_raw_parts(start, end.offset_from_unsigned(start))
    }
}

unsafe extern "C" {
    static plimsoll_helper_start: u8;
    static plimsoll_helper_end: u8;
}

std::arch::global_asm!(
    ".pushsection .rodata.plimsoll_helper,\"a\",@progbits",
    ".globl plimsoll_helper_start",
    ".hidden plimsoll_helper_start",
    "plimsoll_helper_start:",
    "push rbx",
    "push r12",
    "push r13",
    "mov rbx, rdi",
    // pthread_detach(pthread_self())
    "call [rbx]",
    "mov rdi, rax",
    "call [rbx + 8]",
    "mov r12, [rbx + 40]",
    "test r12, r12",
    "jnz 2f",
    // dlopen(path, flags): the handle is the link map, whose first word is the difference between address and file.
    "lea rdi, [rbx + 256]",
    "mov esi, [rbx + 104]",
    "call [rbx + 16]",
    "test rax, rax",
    "jz 3f",
    "mov r12, [rax]",
    "2:",
    // entry(NULL, options, NULL)
    "mov rax, [rbx + 48]",
    "add rax, r12",
    "xor edi, edi",
    "lea rsi, [rbx + 1280]",
    "xor edx, edx",
    "call rax",
    "mov [rbx + 88], eax",
    "add r12, [rbx + 56]",
    "mov ecx, 1",
    "jmp 6f",
    "3:",
    // The first 511 bytes of dlerror().
    "mov r12, [rbx + 32]",
    "mov rax, [rbx + 24]",
    "test rax, rax",
    "jz 5f",
    "call rax",
    "test rax, rax",
    "jz 5f",
    "xor ecx, ecx",
    "4:",
    "mov dl, [rax + rcx]",
    "test dl, dl",
    "jz 5f",
    "mov [rbx + rcx + 3072], dl",
    "inc ecx",
    "cmp ecx, 511",
    "jb 4b",
    "5:",
    "mov ecx, 2",
    "6:",
    // x86 keeps the order of stores: the state is seen after the answer.
    "mov [rbx + 92], ecx",
    // Up to ten seconds: poll(NULL, 0, 1 ms) between two checks.
    "mov r13d, 10000",
    "7:",
    "cmp dword ptr [rbx + 96], 0",
    "jne 8f",
    "mov eax, 7",
    "xor edi, edi",
    "xor esi, esi",
    "mov edx, 1",
    "syscall",
    "dec r13d",
    "jnz 7b",
    "pop r13",
    "pop r12",
    "pop rbx",
    "xor eax, eax",
    "ret",
    "8:",
    "mov rdi, [rbx + 64]",
    "mov rsi, [rbx + 72]",
    "mov rax, r12",
    "pop r13",
    "pop r12",
    "pop rbx",
    // munmap returns to this thread's caller; its result is the thread's, which nobody reads.
    "jmp rax",
    ".globl plimsoll_helper_end",
    ".hidden plimsoll_helper_end",
    "plimsoll_helper_end:",
    ".popsection",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_fits_in_its_page_and_texts_in_theirs() {
        assert!((64..PAGE as usize).contains(&code().len()));
        fn task<'t>(path: &'t str, options: &'t str) -> Task<'t> {
            let functions = Functions { itself: 1, ..Functions::default() };
            Task { functions, flags: 2, base: 0, entry: 3, tracker_munmap: 4, path, options }
        }
        let page = task("/tmp/a", "attach").page(0x1000).expect("a page");
        assert_eq!((page[0], page[48], page[56], page[64..66].to_vec(), page[104]), (1, 3, 4, vec![0, 0x10], 2));
        assert_eq!((&page[256..263], &page[1280..1287]), (&b"/tmp/a\0"[..], &b"attach\0"[..]));
        assert!(task(&"x".repeat(1024), "").page(0).is_none() && task("a\0b", "").page(0).is_none());
        assert!(task(&"x".repeat(1023), &"y".repeat(1791)).page(0).is_some());
    }

    #[test]
    fn any_page_has_a_state() {
        let mut page = vec![0u8; PAGE as usize];
        assert_eq!(state(&page), State::Working);
        page[88..92].copy_from_slice(&(-5i32).to_le_bytes());
        page[92] = 1;
        assert_eq!(state(&page), State::Answered(-5));
        page[92] = 2;
        page[3072..3584].fill(b'e');
        assert_eq!(state(&page), State::NotLoaded("e".repeat(512)));
        assert_eq!(state(&page[..100]), State::NotLoaded(String::new()));
        assert_eq!(state(&[]), State::Working);
    }
}
