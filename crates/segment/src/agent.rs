//! Messages between `plimsoll attach` and the agent in the target, through HotSpot's `load` command.
//!
//! ```text
//! load PATH true OPTIONS      OPTIONS = attach,sites=sampled,sample=524288,rules=PATH │ detach
//! reply                       return code: N
//! ```
//! `rules` comes last, because a path may contain commas. `rules=#FD` is a file that is open as descriptor FD. N is 0
//! only for the first attach. The VM keeps an agent in its list only if N is 0, so the list doesn't grow with repeated
//! attach and detach.

/// First word: attach, attach again, or change the sites.
pub const ATTACH: &str = "attach";
/// First word: restore the import tables.
pub const DETACH: &str = "detach";
/// Maximum length of the options: HotSpot's protocol takes 1,024 bytes.
pub const OPTIONS_BYTES: usize = 1024;

macro_rules! answers {
    ($($(#[doc = $doc:literal])* $name:ident = $n:literal,)*) => {
        /// The agent's answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Answer { $($(#[doc = $doc])* $name = $n,)* }

        impl Answer {
            /// The answer with this number.
            pub const fn of(n: i32) -> Option<Answer> {
                match n { $($n => Some(Answer::$name),)* _ => None }
            }
        }
    };
}

answers! {
    /// Attached for the first time in this process.
    Attached = 0,
    /// Attached again: the same file, with new books.
    AttachedAgain = 100,
    /// Was attached already: now uses the new sites mode.
    Switched = 101,
    /// Detached.
    Detached = 102,
    /// There was nothing to detach.
    NotAttached = 103,
    /// The tracker was loaded at start. It stays, with sites off.
    FromTheStart = 104,
    /// The segment could not be made.
    NoSegment = 110,
    /// The agent doesn't know these options.
    BadOptions = 111,
    /// libc lacks what is needed (not glibc, or no dl_iterate_phdr).
    NoLoader = 112,
    /// Another attach or detach is in progress.
    Busy = 113,
    /// A fork child of a process that was attached: the tracker's memory there is the parent's.
    ForkChild = 114,
    /// Another thread searches new objects and does not finish. Nothing was changed.
    LoaderBusy = 115,
}
