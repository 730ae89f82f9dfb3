//! What `plimsoll attach` and the agent in the target say to each other, through HotSpot's `load` command.
//!
//! ```text
//! load PATH true OPTIONS      OPTIONS = attach,sites=sampled,sample=524288,rules=PATH │ detach
//! reply                       return code: N
//! ```
//! `rules` comes last, since a path may hold commas. N is 0 for the first attach: only then does the VM keep the agent in its
//! list, so that rounds of attach and detach make nothing grow there.

/// First word: attach, or attach again, or take other sites.
pub const ATTACH: &str = "attach";
/// First word: give the import tables back.
pub const DETACH: &str = "detach";
/// Longest options: HotSpot's protocol takes 1,024 bytes.
pub const OPTIONS_BYTES: usize = 1024;

macro_rules! answers {
    ($($(#[doc = $doc:literal])* $name:ident = $n:literal,)*) => {
        /// What the agent answers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Answer { $($(#[doc = $doc])* $name = $n,)* }

        impl Answer {
            /// By its number.
            pub const fn of(n: i32) -> Option<Answer> {
                match n { $($n => Some(Answer::$name),)* _ => None }
            }
        }
    };
}

answers! {
    /// Attached for the first time in this process.
    Attached = 0,
    /// Attached again: new books in the same file.
    AttachedAgain = 100,
    /// Was attached already: other sites from now on.
    Switched = 101,
    /// Detached.
    Detached = 102,
    /// There was nothing to detach.
    NotAttached = 103,
    /// The tracker was there from the start: it stays, with sites off.
    FromTheStart = 104,
    /// No segment could be made.
    NoSegment = 110,
    /// Options that this agent doesn't know.
    BadOptions = 111,
    /// libc hides what is needed (not glibc, or no dl_iterate_phdr).
    NoLoader = 112,
    /// Another attach or detach is under way.
    Busy = 113,
}
