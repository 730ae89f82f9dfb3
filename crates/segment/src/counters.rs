//! Self-describing counters: one list makes the fields, the names, the units, the schema text in each segment, the JSON
//! keys, docs/segment.md and include/segment.h.

use core::sync::atomic::AtomicU64;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident $unit:literal,)*) => {
        /// Index of a header counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        #[allow(non_camel_case_types, reason = "the names are those of the JSON")]
        pub enum Counter { $($(#[doc = $doc])* $name,)* }

        /// The list itself.
        pub const COUNTERS: &[CounterRow] =
            &[$(CounterRow { name: stringify!($name), unit: $unit, doc: concat!($($doc,)*) },)*];

        /// Text that the tracker writes into the schema page: a line `name unit` for each counter, in order.
        pub const SCHEMA: &str = concat!("plimsoll.segment/2\n", $(stringify!($name), " ", $unit, "\n",)*);
    };
}

/// One row of the list.
#[derive(Clone, Copy, Debug)]
pub struct CounterRow {
    /// Name, also the JSON key.
    pub name: &'static str,
    /// `count`, `bytes` or `ns`.
    pub unit: &'static str,
    /// Meaning of the counter.
    pub doc: &'static str,
}

/// Space for counters in the header. A reader uses as many as the file's `counters` field states.
pub const COUNTER_CAPACITY: usize = 96;
const _: () = assert!(COUNTERS.len() <= COUNTER_CAPACITY);

/// The header's counter array.
pub type CounterArray = [AtomicU64; COUNTER_CAPACITY];

counters! {
    /// Blocks passed to free or realloc without a valid key: allocated before the start, or with their last bytes
    /// overwritten.
    unknown_frees "count",
    /// Usable bytes of those blocks.
    unknown_free_bytes "bytes",
    /// Blocks booked while the same thread was already inside the tracker (a signal handler that allocates).
    nested_entries "count",
    /// Blocks without space for a trailer or a table entry, and blocks that libc gave because the allocator lacks the
    /// function (jemalloc has no pvalloc); they are not in the books.
    unbooked_blocks "count",
    /// Usable bytes of those blocks; of libc's blocks beside an allocator, the requested bytes.
    unbooked_bytes "bytes",
    /// Look-ups of callers that have no entry because the caller section is full: the overflow caller, in category
    /// 'other', stands for all of them.
    callers_merged "count",
    /// Operations booked in the overflow caller's row because the row section is full.
    rows_shared "count",
    /// Threads without a slot of their own: they book in the shared slot.
    threads_shared "count",
    /// Loaded objects that did not fit the module section.
    modules_lost "count",
    /// Categories that did not fit; their blocks are in category 'other'.
    categories_lost "count",
    /// Times the file could not grow (file system full, or a sandbox that the program is in): what did not fit is
    /// counted above.
    grow_failures "count",
    /// Mapping operations that could not be booked in the virtual memory map.
    vmap_lost "count",
    /// Mapping operations booked later, because another call was inside the map: of another thread, or one that a
    /// signal handler interrupted.
    vmap_deferred "count",
    /// Mapping operations booked: mmap, munmap, mprotect, mremap, brk, shmat and related calls.
    vmap_operations "count",
    /// Bytes returned to the kernel by madvise (DONTNEED, FREE); they stay mapped.
    advised_bytes "bytes",
    /// Stacks walked because no remembered one matched.
    stack_walks "count",
    /// Unwind rules computed from .eh_frame because none was remembered.
    rule_walks "count",
    /// Walks that ended early: no rule, or a word outside the stack.
    stack_truncated "count",
    /// Flushes of a row's drift into the central figures.
    drift_flushes "count",
    /// Upper bound of the drift that the central figures (peaks) may lag behind, for one row.
    drift_bound "bytes",
    /// fork() calls seen; each child that allocates, frees or maps anything has a segment of its own from then on.
    forks "count",
    /// Children of fork() that continued untracked: there was no memory for a copy of the books, or they couldn't make
    /// a segment (the program has changed its root or user, the file system is full). A child that can't reach this
    /// segment either isn't counted.
    forks_untracked "count",
    /// Summaries written on a signal.
    summaries "count",
    /// Faults of the tracker itself that it survived.
    faults "count",
    /// Own memory outside the segment: thread state, memos, the side table, arrays of pages.
    own_private_bytes "bytes",
    /// Own memory in the segment: populated pages.
    own_segment_bytes "bytes",
    /// Address space reserved for the side table, arrays of pages, directories and hash tables; resident only where
    /// touched.
    own_reserved_bytes "bytes",
    /// Blocks put into the side table or an array of a page without a thread slot (after a thread's end, before the
    /// start); each slot counts its own.
    table_inserts "count",
    /// Blocks removed from there without a thread slot; each slot counts its own.
    table_removes "count",
    /// Threads started since the start of the tracker.
    threads_started "count",
    /// Calls of dlopen, dlmopen and dlclose: each starts a new generation of the code map.
    code_generations "count",
    /// Blocks of a native image whose category came from the VM's own header.
    native_image_headers "count",
    /// Remembered stacks that were walked again and compared (PLIMSOLL_CHECK=1).
    memo_checks "count",
    /// Checks where the walk gave another caller, and remembered Java methods that had changed: a fault.
    memo_disagreements "count",
    /// Calls whose site did not fit the section: their blocks are in their caller's rows.
    sites_merged "count",
    /// Deep stacks that did not fit the section of frames: their blocks are in their caller's rows.
    frames_cut "count",
    /// Blocks sampled.
    samples "count",
    /// Blocks to be sampled that did not fit the section of live samples; they are in no estimate.
    samples_dropped "count",
    /// Usable bytes of those blocks, each divided by its probability; the estimates are too low by this sum.
    samples_dropped_bytes "bytes",
    /// Deep stacks walked because the memo did not have them: for samples, and in exact mode for blocks.
    deep_walks "count",
    /// Frames of those walks.
    deep_frames "count",
    /// Look-ups of Java methods that did not fit the section: their frames are addresses.
    methods_lost "count",
    /// Times the tracker was attached to the running process, 0 if it was there from the start. The books began with
    /// the last attach.
    attaches "count",
    /// CLOCK_BOOTTIME of the last attach.
    attached_ns "ns",
    /// Words of import tables that the last attach gave the hooks.
    import_words "count",
    /// Words of import tables that could not be written: calls through them aren't seen.
    import_words_left "count",
    /// Largest mean of a sample, if the process allocated so fast that the default mean was doubled; else 0.
    sample_mean_highest "bytes",
    /// Calls booked with their innermost frame at most, because the thread's stack has too little space for a walk.
    stacks_unwalked "count",
    /// Remembered interpreted frames of Java whose method was compared again, because the VM may have freed it since, or
    /// because the VM's counters of freed methods weren't found.
    methods_compared "count",
    /// The most bytes that rows could not report to the central figures at a time, because another thread had them
    /// locked and the queue was full: peaks may read low by them too.
    drift_unreported "bytes",
}
