//! The code of the injected thread, which loads the tracker in the target or calls a function there, and the page
//! through which plimsoll talks to it.
//!
//! ```text
//! region: code │ stack for the borrowed thread's calls … │ page │ contents of files, if no directory can hold them
//! ```
//! The injected thread loads the library (or finds it loaded), calls its entry, writes the answer, and waits for the
//! acknowledgement. Where the program is to give memory back, a function of its allocator takes the entry's place. Then
//! the injected thread jumps to munmap for the whole region: the tracker's own, if it was called, so that the books
//! have the change. Without an acknowledgement within ten seconds, plimsoll has died or has lost the borrowed thread:
//! the region stays, because that thread may still be on the stack in it.
//!
//! The code also contains [`call`], through which the borrowed thread calls pthread_create.
//!
//! Contents become files in memory (memfd_create(2)), which the injected thread makes with the target's rights. The
//! loader's name for the library is the path of its descriptor, and unwinders open that path to read symbols. So the
//! descriptor stays open once the library is loaded: the path must never name another file. All others are closed.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::tracker;

pub const PAGE: u64 = 4096;
/// pthread_create needs a few KiB of stack, and malloc below it may need more for its first arena.
pub const REGION_BYTES: u64 = 256 << 10;
/// Where the page begins.
pub const TALK: u64 = REGION_BYTES - PAGE;

// Offsets in the page; the assembly below has the same.
/// Two files, each: address of the name, address and length of the contents, address of the last digit of the
/// descriptor's number in a text below, the descriptor.
const FILES: usize = 128;
/// Five words for the entry, in the order of the ABI.
const ARGUMENTS: usize = 208;
const PATH: Range<usize> = 256..1280;
const OPTIONS: Range<usize> = 1280..3072;
const ERROR: Range<usize> = 3072..3584;
/// Where the borrowed thread's errno lies, and its value (u32) before the call; 0: unknown.
const ERRNO: usize = 3584;
const ANSWER: usize = 88;
const STATE: usize = 92;
pub const ACKNOWLEDGED: u64 = 96;
/// What the borrowed thread's call returned (i32), then 1 once it has returned (u32).
pub const CALLED: u64 = 120;
/// How many instructions PAUSE the borrowed thread makes after the call (u32).
const SPINS: Range<usize> = 108..112;

/// The injected thread's own descriptors: a thread may have a table of its own, and the first thread may have ended.
const DESCRIPTORS: &str = "/proc/thread-self/fd";
/// A slash for each digit that a descriptor's number may have. The kernel takes several slashes for one.
const ROOM: &str = "//////////";
/// The tracker takes leading zeros.
const RULES: &str = ",rules=#0000000000";

/// Functions of the target's C library, as addresses in the target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Functions {
    pub itself: u64,
    pub detach: u64,
    pub dlopen: u64,
    pub dlerror: u64,
    pub munmap: u64,
}

/// The borrowed thread's errno as it was at the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno {
    pub at: u64,
    pub value: [u8; 4],
}

/// What the injected thread does.
pub struct Task<'t> {
    pub functions: Functions,
    /// Flags of dlopen(3).
    pub flags: u32,
    pub call: Call<'t>,
    /// How long the borrowed thread spins: see [`call`].
    pub spins: u32,
    /// The borrowed thread's own.
    pub errno: Option<Errno>,
}

/// Which function the injected thread calls.
#[derive(Clone, Copy)]
pub struct Call<'t> {
    /// Where its library is loaded; 0: load it.
    pub base: u64,
    /// Distances from `base`: of the function, and of the munmap that removes the region.
    pub entry: u64,
    pub munmap: u64,
    pub library: Library<'t>,
    pub arguments: Arguments,
    /// The text among them.
    pub text: &'t str,
}

/// What the function gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// (NULL, text, NULL), as an agent of a VM does.
    Agent,
    /// (text, NULL, NULL, NULL, 0), as mallctl(3) does.
    Name,
    /// Zeros.
    None,
}

/// What the injected thread loads.
#[derive(Clone, Copy)]
pub enum Library<'t> {
    /// A file of the target.
    Path(&'t str),
    /// The contents of the library and of its rules, with the name that the kernel shows for each.
    Memory([(&'t str, &'t [u8]); 2]),
}

impl Library<'_> {
    /// What lies behind the page: names, then contents.
    pub fn contents(&self) -> Vec<u8> {
        let Library::Memory(files) = self else { return Vec::new() };
        let names = files.iter().flat_map(|(name, _)| [name.as_bytes(), b"\0"]);
        names.chain(files.iter().map(|(_, contents)| *contents)).collect::<Vec<_>>().concat()
    }

    /// The length of the region, whole pages.
    pub fn region_bytes(&self) -> u64 {
        let Library::Memory(files) = self else { return REGION_BYTES };
        let contents: usize = files.iter().map(|(name, contents)| name.len() + 1 + contents.len()).sum();
        REGION_BYTES + (contents as u64).next_multiple_of(PAGE)
    }
}

/// The path of a descriptor, whose number takes the place of the last slashes. The text depends on the library's
/// SHA-256, because the loader compares it with the paths of loaded libraries before it opens the file. Another version
/// of the tracker may have been loaded from a descriptor with the same number.
fn library_path(sha256: &str) -> String {
    let digits = sha256.chars().take(8).filter_map(|digit| digit.to_digit(16));
    let bits = digits.flat_map(|digit| (0..4).map(move |bit| digit >> bit & 1 == 1));
    // Neither piece changes what the path resolves to.
    let pieces: String = bits.map(|bit| if bit { "/." } else { "//" }).collect();
    format!("{DESCRIPTORS}{pieces}/{ROOM}")
}

/// How far the injected thread is.
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
            self.call.base,
            self.call.entry,
            self.call.munmap,
            region,
            self.call.library.region_bytes(),
        ];
        let mut page: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        page.resize(PAGE as usize, 0);
        page[104..108].copy_from_slice(&self.flags.to_le_bytes());
        page[SPINS].copy_from_slice(&self.spins.max(1).to_le_bytes());
        if let Some(errno) = self.errno {
            page[ERRNO..ERRNO + 8].copy_from_slice(&errno.at.to_le_bytes());
            page[ERRNO + 8..ERRNO + 12].copy_from_slice(&errno.value);
        }
        let text = match self.call.arguments {
            Arguments::Agent => Some(1),
            Arguments::Name => Some(0),
            Arguments::None => None,
        };
        if let Some(at) = text.map(|nth| ARGUMENTS + 8 * nth) {
            page[at..at + 8].copy_from_slice(&(region + TALK + OPTIONS.start as u64).to_le_bytes());
        }
        let (path, options, files) = match self.call.library {
            Library::Path(path) => (path.to_owned(), self.call.text.to_owned(), [[0; 4]; 2]),
            Library::Memory(files) => {
                let options = format!("{}{RULES}", self.call.text);
                let last = |range: Range<usize>, text: &str| region + TALK + (range.start + text.len() - 1) as u64;
                let path = library_path(tracker::SHA256);
                let digits = [last(PATH, &path), last(OPTIONS, &options)];
                (path, options, placed(files, digits, region + REGION_BYTES))
            }
        };
        for (file, at) in files.iter().zip((FILES..).step_by(40)) {
            let words: Vec<u8> = file.iter().flat_map(|word| word.to_le_bytes()).collect();
            page[at..at + 32].copy_from_slice(&words);
            page[at + 32..at + 36].copy_from_slice(&(-1i32).to_le_bytes());
        }
        for (text, range) in [(path, PATH), (options, OPTIONS)] {
            let is_c_string = !text.as_bytes().contains(&0) && text.len() < range.len();
            page[range.start..].get_mut(..text.len()).filter(|_| is_c_string)?.copy_from_slice(text.as_bytes());
        }
        Some(page)
    }
}

/// The words of each file in the page. Names and contents lie at `at`, as [`Library::contents`] orders them.
fn placed(files: [(&str, &[u8]); 2], digits: [u64; 2], at: u64) -> [[u64; 4]; 2] {
    let [library, rules] = files;
    let lengths = [library.0.len() + 1, rules.0.len() + 1, library.1.len()];
    let [second_name, first, second] = [1, 2, 3].map(|n| at + lengths[..n].iter().sum::<usize>() as u64);
    let lengths = [library.1.len() as u64, rules.1.len() as u64];
    [[at, first, lengths[0], digits[0]], [second_name, second, lengths[1], digits[1]]]
}

/// Reads the page of an injected thread. The target may have written anything there.
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
        3 => {
            let why = std::io::Error::from_raw_os_error(word(ANSWER).wrapping_neg());
            State::NotLoaded(format!("can't be made (memfd_create, write): {why}"))
        }
        _ => State::Working,
    }
}

/// The code: position-independent, entered as a start routine of pthread_create with the address of the page.
pub fn code() -> &'static [u8] {
    // SAFETY: the assembly below defines both symbols, and the bytes between them are constant data of this program.
    unsafe {
        let (start, end) = (&raw const plimsoll_injected_start, &raw const plimsoll_injected_end);
        std::slice::from_raw_parts(start, end.offset_from_unsigned(start))
    }
}

/// Where in the code the borrowed thread is sent for a call. It finds the page's address in rbx, the function's in r12,
/// and arguments in the registers of the ABI. It writes the result, sets errno back, and then spins until plimsoll
/// stops it. If nobody stops it, it returns into rt_sigreturn.
///
/// plimsoll has blocked the thread's signals. The code unblocks SIGSETXID for the call, because a thread inherits its
/// creator's mask. A thread that calls setuid(2) waits, and holds libc's lock of stacks, until every other thread has
/// run that signal's handler. pthread_create takes that lock. The code blocks the signal again before it stores the
/// result, so plimsoll never stops the thread inside the handler.
///
/// The code waits in no system call: that would destroy what the kernel keeps to restart the thread's own wait. A call
/// that ends at once (sched_yield) would be one more that a seccomp filter must allow. rt_sigprocmask is not:
/// pthread_create calls it anyway.
pub fn call() -> u64 {
    // SAFETY: both symbols are in the assembly below, and only their addresses are used.
    unsafe { (&raw const plimsoll_injected_call).offset_from_unsigned(&raw const plimsoll_injected_start) as u64 }
}

/// Instructions PAUSE whose time is measured.
const SAMPLE: u32 = 1000;

/// How many instructions PAUSE take this long here. Processors differ by a factor of a hundred.
pub fn spins(duration: Duration) -> u32 {
    let sample = || {
        let began = Instant::now();
        (0..SAMPLE).for_each(|_| std::hint::spin_loop());
        began.elapsed()
    };
    // The shortest of three: others may have had the processor in between.
    let shortest = (0..3).map(|_| sample()).min().unwrap_or(duration);
    spins_by(duration, shortest)
}

/// `sample`: how long [`SAMPLE`] of them take.
fn spins_by(duration: Duration, sample: Duration) -> u32 {
    u32::try_from(duration.as_nanos() * u128::from(SAMPLE) / sample.as_nanos().max(1)).unwrap_or(u32::MAX)
}

/// The result of that call, by the word at [`CALLED`], if it has returned.
pub fn result(word: [u8; 8]) -> Option<i32> {
    let [a, b, c, d, state @ ..] = word;
    (state != [0; 4]).then(|| i32::from_le_bytes([a, b, c, d]))
}

unsafe extern "C" {
    static plimsoll_injected_start: u8;
    static plimsoll_injected_call: u8;
    static plimsoll_injected_end: u8;
}

std::arch::global_asm!(
    ".pushsection .rodata.plimsoll_injected,\"a\",@progbits",
    ".globl plimsoll_injected_start",
    ".hidden plimsoll_injected_start",
    "plimsoll_injected_start:",
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
    // For each file with contents: memfd_create(name, MFD_CLOEXEC).
    "lea r8, [rbx + 128]",
    "20:",
    "cmp qword ptr [r8 + 16], 0",
    "je 23f",
    "mov eax, 319",
    "mov rdi, [r8]",
    "mov esi, 1",
    "syscall",
    "test eax, eax",
    "js 24f",
    "mov [r8 + 32], eax",
    "mov r10, [r8 + 8]",
    "mov rdx, [r8 + 16]",
    "21:",
    // write(descriptor, the rest)
    "mov eax, 1",
    "mov edi, [r8 + 32]",
    "mov rsi, r10",
    "syscall",
    "test rax, rax",
    "jle 24f",
    "add r10, rax",
    "sub rdx, rax",
    "jnz 21b",
    // The descriptor's number in decimal, its last digit first.
    "mov rdi, [r8 + 24]",
    "mov eax, [r8 + 32]",
    "mov ecx, 10",
    "22:",
    "xor edx, edx",
    "div ecx",
    "add dl, 48",
    "mov [rdi], dl",
    "dec rdi",
    "test eax, eax",
    "jnz 22b",
    "23:",
    "add r8, 40",
    "lea rax, [rbx + 208]",
    "cmp r8, rax",
    "jne 20b",
    // dlopen(path, flags): the handle is the link map, whose first word is the difference between address and file.
    "lea rdi, [rbx + 256]",
    "mov esi, [rbx + 104]",
    "call [rbx + 16]",
    "test rax, rax",
    "jz 3f",
    "mov r12, [rax]",
    "2:",
    // The function of the call, with its arguments.
    "mov rax, [rbx + 48]",
    "add rax, r12",
    "mov rdi, [rbx + 208]",
    "mov rsi, [rbx + 216]",
    "mov rdx, [rbx + 224]",
    "mov rcx, [rbx + 232]",
    "mov r8, [rbx + 240]",
    "call rax",
    "mov [rbx + 88], eax",
    "add r12, [rbx + 56]",
    "mov ecx, 1",
    "jmp 6f",
    "24:",
    // The error of a file.
    "mov r12, [rbx + 32]",
    "mov [rbx + 88], eax",
    "mov ecx, 3",
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
    // close(descriptor) of the rules, which the tracker has mapped, and of a library that was not loaded.
    "mov r13d, ecx",
    "lea r8, [rbx + 128]",
    "lea rax, [rbx + 168]",
    "cmp ecx, 1",
    "cmove r8, rax",
    "25:",
    "mov edi, [r8 + 32]",
    "test edi, edi",
    "js 26f",
    "mov eax, 3",
    "syscall",
    "26:",
    "add r8, 40",
    "lea rax, [rbx + 208]",
    "cmp r8, rax",
    "jne 25b",
    // x86 keeps the order of stores: the state is seen after the answer.
    "mov [rbx + 92], r13d",
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
    ".globl plimsoll_injected_call",
    ".hidden plimsoll_injected_call",
    "plimsoll_injected_call:",
    // The set with SIGSETXID, 33. It also aligns the stack for the call.
    "push 1",
    "shl qword ptr [rsp], 32",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    // rt_sigprocmask(SIG_UNBLOCK, set)
    "mov edi, 1",
    "lea rsi, [rsp + 32]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "call r12",
    "mov [rbx + 120], eax",
    // errno, where its address is known.
    "mov rax, [rbx + 3584]",
    "test rax, rax",
    "jz 27f",
    "mov ecx, [rbx + 3592]",
    "mov [rax], ecx",
    "27:",
    // rt_sigprocmask(SIG_BLOCK, set)
    "xor edi, edi",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "add rsp, 8",
    "mov dword ptr [rbx + 124], 1",
    "mov ecx, [rbx + 108]",
    "9:",
    "pause",
    "dec ecx",
    "jnz 9b",
    "ret",
    ".globl plimsoll_injected_end",
    ".hidden plimsoll_injected_end",
    "plimsoll_injected_end:",
    ".popsection",
);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_code_fits_in_its_page_and_texts_in_theirs() {
        assert!((64..PAGE as usize).contains(&code().len()));
        fn task<'t>(path: &'t str, options: &'t str) -> Task<'t> {
            let functions = Functions { itself: 1, ..Functions::default() };
            let (library, arguments) = (Library::Path(path), Arguments::Agent);
            let call = Call { base: 0, entry: 3, munmap: 4, library, arguments, text: options };
            let errno = Some(Errno { at: 0x1122, value: [5, 0, 0, 0] });
            Task { functions, flags: 2, call, spins: 7, errno }
        }
        let page = task("/tmp/a", "attach").page(0x1000).expect("a page");
        assert_eq!((page[0], page[48], page[56], page[64..66].to_vec(), page[104]), (1, 3, 4, vec![0, 0x10], 2));
        assert_eq!((&page[256..263], &page[1280..1287]), (&b"/tmp/a\0"[..], &b"attach\0"[..]));
        assert_eq!(page[3584..3596], [0x22, 0x11, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        let arguments = |arguments| {
            let mut task = task("/tmp/a", "purge");
            task.call.arguments = arguments;
            let page = task.page(0x1000).expect("a page");
            [0, 8, 16, 24, 32].map(|at| u64::from_le_bytes(page[208 + at..][..8].try_into().expect("8 bytes")))
        };
        let text = 0x1000 + TALK + 1280;
        assert_eq!(arguments(Arguments::Agent), [0, text, 0, 0, 0]);
        assert_eq!(arguments(Arguments::Name), [text, 0, 0, 0, 0]);
        assert_eq!(arguments(Arguments::None), [0; 5]);
        assert!(task(&"x".repeat(1024), "").page(0).is_none() && task("a\0b", "").page(0).is_none());
        assert!(task(&"x".repeat(1023), &"y".repeat(1791)).page(0).is_some());
    }

    #[test]
    fn contents_lie_where_the_page_says() {
        let library = Library::Memory([("/a/one.so", b"\x7fELF one"), ("/a/two.rules", b"two")]);
        let functions = Functions::default();
        let call = Call { base: 0, entry: 3, munmap: 4, library, arguments: Arguments::Agent, text: "attach" };
        let task = Task { functions, flags: 2, call, spins: 7, errno: None };
        let region = 0x7000_0000_0000;
        let (page, contents) = (task.page(region).expect("a page"), library.contents());
        assert_eq!(library.region_bytes(), REGION_BYTES + PAGE);
        let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
        let behind = |at: u64, length: u64| &contents[(at - region - REGION_BYTES) as usize..][..length as usize];
        for (at, name, bytes) in [(128, &b"/a/one.so\0"[..], &b"\x7fELF one"[..]), (168, b"/a/two.rules\0", b"two")] {
            assert_eq!((behind(word(at), name.len() as u64), behind(word(at + 8), word(at + 16))), (name, bytes));
            assert_eq!(word(at + 32) as i32, -1, "no descriptor yet");
        }
        // The last digits of both numbers; behind each of them the text ends.
        let ends = |at: u64, text: &str| {
            let text = format!("{text}\0");
            page[..(at - region - TALK) as usize + 2].ends_with(text.as_bytes())
        };
        assert!(ends(word(152), &library_path(tracker::SHA256)));
        assert!(ends(word(192), "attach,rules=#0000000000"));
    }

    #[test]
    fn each_version_has_a_path_of_its_own_to_one_descriptor() {
        let program = std::env::current_exe().expect("a program");
        let file = File::open(&program).expect("it can be read");
        let paths = [tracker::SHA256, "0123456789abcdef", "fedcba9876543210"].map(|sha256| {
            let path = library_path(sha256);
            assert!(path.len() < PATH.len() && path.ends_with("///////////"), "{path}");
            let number = file.as_raw_fd().to_string();
            format!("{}{number}", &path[..path.len() - number.len()])
        });
        for path in &paths {
            assert_eq!(std::fs::canonicalize(path).expect(path), program.canonicalize().expect("its path"), "{path}");
        }
        assert!(paths[0] != paths[1] && paths[1] != paths[2] && paths[0] != paths[2], "{paths:?}");
    }

    #[test]
    fn a_spin_is_as_long_as_the_sample_says() {
        let duration = Duration::from_millis(100);
        let by = |nanoseconds| spins_by(duration, Duration::from_nanos(nanoseconds));
        assert_eq!([40_000, 1_000_000, 100_000_000].map(by), [2_500_000, 100_000, 1000]);
        assert_eq!((by(1), by(0), spins_by(Duration::ZERO, duration)), (u32::MAX, u32::MAX, 0));
        assert!(spins(duration) > 0);
    }

    #[test]
    fn a_call_has_a_result_once_it_has_returned() {
        assert!(call() < code().len() as u64);
        let word = |result: i32, state: u32| {
            let mut word = [0; 8];
            word[..4].copy_from_slice(&result.to_le_bytes());
            word[4..].copy_from_slice(&state.to_le_bytes());
            word
        };
        assert_eq!((result(word(0, 0)), result(word(11, 0))), (None, None));
        assert_eq!((result(word(0, 1)), result(word(11, 1))), (Some(0), Some(11)));
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
        page[88..96].copy_from_slice(&[(-24i32).to_le_bytes(), 3i32.to_le_bytes()].concat());
        assert!(matches!(state(&page), State::NotLoaded(why) if why.contains("Too many open files")));
        assert_eq!(state(&[]), State::Working);
    }
}
