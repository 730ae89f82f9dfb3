/* The segment of a tracked process, as plimsoll writes it (docs/segment.md).
 * Made from crates/segment/src/layout.rs; edit that, then: BLESS=1 cargo test -p plimsoll-segment
 * Byte order is the writer's. Read with pread: the file may be truncated under a mapping. */
#ifndef PLIMSOLL_SEGMENT_H
#define PLIMSOLL_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

#define PLIMSOLL_SEGMENT_MAGIC "PLIMSEG1"
#define PLIMSOLL_SEGMENT_VERSION 2
#define PLIMSOLL_SEGMENT_HEADER_BYTES 4096
#define PLIMSOLL_SEGMENT_FILE_BYTES 181813248

#define PLIMSOLL_SECTION_SCHEMA 0
#define PLIMSOLL_SECTION_COMMAND 1
#define PLIMSOLL_SECTION_CATEGORIES 2
#define PLIMSOLL_SECTION_MODULES 3
#define PLIMSOLL_SECTION_THREADS 4
#define PLIMSOLL_SECTION_CALLERS 5
#define PLIMSOLL_SECTION_ROWS 6
#define PLIMSOLL_SECTION_VMAP 7
#define PLIMSOLL_SECTION_FRAMES 8
#define PLIMSOLL_SECTION_METHODS 9
#define PLIMSOLL_SECTION_NAMES 10
#define PLIMSOLL_SECTION_SAMPLES 11
#define PLIMSOLL_SECTION_SITE_SAMPLES 12
#define PLIMSOLL_SECTION_OWN 13

#define PLIMSOLL_COUNTER_UNKNOWN_FREES 0 /* count: Blocks passed to free or realloc without a valid key: allocated before the start, or with their last bytes overwritten. */
#define PLIMSOLL_COUNTER_UNKNOWN_FREE_BYTES 1 /* bytes: Usable bytes of those blocks. */
#define PLIMSOLL_COUNTER_NESTED_ENTRIES 2 /* count: Blocks booked while the same thread was already inside the tracker (a signal handler that allocates). */
#define PLIMSOLL_COUNTER_UNBOOKED_BLOCKS 3 /* count: Blocks without space for a trailer or a table entry, and blocks that libc gave because the allocator lacks the function (jemalloc has no pvalloc); they are not in the books. */
#define PLIMSOLL_COUNTER_UNBOOKED_BYTES 4 /* bytes: Usable bytes of those blocks; of libc's blocks beside an allocator, the requested bytes. */
#define PLIMSOLL_COUNTER_CALLERS_MERGED 5 /* count: Look-ups of callers that have no entry because the caller section is full: the overflow caller, in category 'other', stands for all of them. */
#define PLIMSOLL_COUNTER_ROWS_SHARED 6 /* count: Operations booked in the overflow caller's row because the row section is full. */
#define PLIMSOLL_COUNTER_THREADS_SHARED 7 /* count: Threads without a slot of their own: they book in the shared slot. */
#define PLIMSOLL_COUNTER_MODULES_LOST 8 /* count: Loaded objects that did not fit the module section. */
#define PLIMSOLL_COUNTER_CATEGORIES_LOST 9 /* count: Categories that did not fit; their blocks are in category 'other'. */
#define PLIMSOLL_COUNTER_GROW_FAILURES 10 /* count: Times the file could not grow (file system full, or a sandbox that the program is in): what did not fit is counted above. */
#define PLIMSOLL_COUNTER_VMAP_LOST 11 /* count: Mapping operations that could not be booked in the virtual memory map. */
#define PLIMSOLL_COUNTER_VMAP_DEFERRED 12 /* count: Mapping operations booked later, because another call was inside the map: of another thread, or one that a signal handler interrupted. */
#define PLIMSOLL_COUNTER_VMAP_OPERATIONS 13 /* count: Mapping operations booked: mmap, munmap, mprotect, mremap, brk, shmat and related calls. */
#define PLIMSOLL_COUNTER_ADVISED_BYTES 14 /* bytes: Bytes returned to the kernel by madvise (DONTNEED, FREE); they stay mapped. */
#define PLIMSOLL_COUNTER_STACK_WALKS 15 /* count: Stacks walked because no remembered one matched. */
#define PLIMSOLL_COUNTER_RULE_WALKS 16 /* count: Unwind rules computed from .eh_frame because none was remembered. */
#define PLIMSOLL_COUNTER_STACK_TRUNCATED 17 /* count: Walks that ended early: no rule, or a word outside the stack. */
#define PLIMSOLL_COUNTER_DRIFT_FLUSHES 18 /* count: Flushes of a row's drift into the central figures. */
#define PLIMSOLL_COUNTER_DRIFT_BOUND 19 /* bytes: Upper bound of the drift that the central figures (peaks) may lag behind, for one row. */
#define PLIMSOLL_COUNTER_FORKS 20 /* count: fork() calls seen; each child that allocates, frees or maps anything has a segment of its own from then on. */
#define PLIMSOLL_COUNTER_FORKS_UNTRACKED 21 /* count: Children of fork() that continued untracked: there was no memory for a copy of the books, or they couldn't make a segment (the program has changed its root or user, the file system is full). A child that can't reach this segment either isn't counted. */
#define PLIMSOLL_COUNTER_SUMMARIES 22 /* count: Summaries written on a signal. */
#define PLIMSOLL_COUNTER_FAULTS 23 /* count: Faults of the tracker itself that it survived. */
#define PLIMSOLL_COUNTER_OWN_PRIVATE_BYTES 24 /* bytes: Own memory outside the segment: thread state, memos, the side table, arrays of pages. */
#define PLIMSOLL_COUNTER_OWN_SEGMENT_BYTES 25 /* bytes: Own memory in the segment: populated pages. */
#define PLIMSOLL_COUNTER_OWN_RESERVED_BYTES 26 /* bytes: Address space reserved for the side table, arrays of pages, directories and hash tables; resident only where touched. */
#define PLIMSOLL_COUNTER_TABLE_INSERTS 27 /* count: Blocks put into the side table or an array of a page without a thread slot (after a thread's end, before the start); each slot counts its own. */
#define PLIMSOLL_COUNTER_TABLE_REMOVES 28 /* count: Blocks removed from there without a thread slot; each slot counts its own. */
#define PLIMSOLL_COUNTER_THREADS_STARTED 29 /* count: Threads started since the start of the tracker. */
#define PLIMSOLL_COUNTER_CODE_GENERATIONS 30 /* count: Calls of dlopen, dlmopen and dlclose: each starts a new generation of the code map. */
#define PLIMSOLL_COUNTER_NATIVE_IMAGE_HEADERS 31 /* count: Blocks of a native image whose category came from the VM's own header. */
#define PLIMSOLL_COUNTER_MEMO_CHECKS 32 /* count: Remembered stacks that were walked again and compared (PLIMSOLL_CHECK=1). */
#define PLIMSOLL_COUNTER_MEMO_DISAGREEMENTS 33 /* count: Checks where the walk gave another caller, and remembered Java methods that had changed: a fault. */
#define PLIMSOLL_COUNTER_SITES_MERGED 34 /* count: Calls whose site did not fit the section: their blocks are in their caller's rows. */
#define PLIMSOLL_COUNTER_FRAMES_CUT 35 /* count: Deep stacks that did not fit the section of frames: their blocks are in their caller's rows. */
#define PLIMSOLL_COUNTER_SAMPLES 36 /* count: Blocks sampled. */
#define PLIMSOLL_COUNTER_SAMPLES_DROPPED 37 /* count: Blocks to be sampled that did not fit the section of live samples; they are in no estimate. */
#define PLIMSOLL_COUNTER_SAMPLES_DROPPED_BYTES 38 /* bytes: Usable bytes of those blocks, each divided by its probability; the estimates are too low by this sum. */
#define PLIMSOLL_COUNTER_DEEP_WALKS 39 /* count: Deep stacks walked because the memo did not have them: for samples, and in exact mode for blocks. */
#define PLIMSOLL_COUNTER_DEEP_FRAMES 40 /* count: Frames of those walks. */
#define PLIMSOLL_COUNTER_METHODS_LOST 41 /* count: Look-ups of Java methods that did not fit the section: their frames are addresses. */
#define PLIMSOLL_COUNTER_ATTACHES 42 /* count: Times the tracker was attached to the running process, 0 if it was there from the start. The books began with the last attach. */
#define PLIMSOLL_COUNTER_ATTACHED_NS 43 /* ns: CLOCK_BOOTTIME of the last attach. */
#define PLIMSOLL_COUNTER_IMPORT_WORDS 44 /* count: Words of import tables that the last attach gave the hooks. */
#define PLIMSOLL_COUNTER_IMPORT_WORDS_LEFT 45 /* count: Words of import tables that could not be written: calls through them aren't seen. */
#define PLIMSOLL_COUNTER_SAMPLE_MEAN_HIGHEST 46 /* bytes: Largest mean of a sample, if the process allocated so fast that the default mean was doubled; else 0. */
#define PLIMSOLL_COUNTER_STACKS_UNWALKED 47 /* count: Calls booked with their innermost frame at most, because the thread's stack has too little space for a walk. */
#define PLIMSOLL_COUNTER_METHODS_COMPARED 48 /* count: Remembered interpreted frames of Java whose method was compared again, because the VM may have freed it since, or because the VM's counters of freed methods weren't found. */
#define PLIMSOLL_COUNTER_DRIFT_UNREPORTED 49 /* bytes: The most bytes that rows could not report to the central figures at a time, because another thread had them locked and the queue was full: peaks may read low by them too. */

/* The composition of the total at a peak: written into one half while the other is valid. */
struct plimsoll_composition {
    uint64_t total_bytes; /* Live bytes of all blocks at that moment (Σ of the categories' at_peak_bytes of this half). */
    uint64_t total_count; /* Live blocks at that moment. */
    uint64_t time_ns; /* CLOCK_BOOTTIME of that moment, ns. */
    uint64_t reserved; /* Reserved, zero. */
};
_Static_assert(offsetof(struct plimsoll_composition, total_bytes) == 0, "total_bytes");
_Static_assert(offsetof(struct plimsoll_composition, total_count) == 8, "total_count");
_Static_assert(offsetof(struct plimsoll_composition, time_ns) == 16, "time_ns");
_Static_assert(offsetof(struct plimsoll_composition, reserved) == 24, "reserved");
_Static_assert(sizeof(struct plimsoll_composition) == 32, "size");

/* One entry of the header's section table (32 bytes). */
struct plimsoll_section_entry {
    uint32_t kind; /* Section number. */
    uint32_t entry_bytes; /* Bytes of one entry. */
    uint64_t offset; /* Offset in the file. */
    uint64_t capacity; /* Entries at most. */
    uint64_t used; /* Entries in use; only grows. */
};
_Static_assert(offsetof(struct plimsoll_section_entry, kind) == 0, "kind");
_Static_assert(offsetof(struct plimsoll_section_entry, entry_bytes) == 4, "entry_bytes");
_Static_assert(offsetof(struct plimsoll_section_entry, offset) == 8, "offset");
_Static_assert(offsetof(struct plimsoll_section_entry, capacity) == 16, "capacity");
_Static_assert(offsetof(struct plimsoll_section_entry, used) == 24, "used");
_Static_assert(sizeof(struct plimsoll_section_entry) == 32, "size");

/* The first page of the file. */
struct plimsoll_header {
    uint64_t magic; /* MAGIC. */
    uint32_t version; /* VERSION. */
    uint32_t header_bytes; /* HEADER_BYTES. */
    uint64_t file_bytes; /* Size of the sparse file. */
    uint32_t pid; /* Process id in the target's own PID namespace. */
    uint32_t ppid; /* Its parent when the tracker started. */
    uint64_t start_boottime_ns; /* CLOCK_BOOTTIME when the tracker started, ns: comparable with the start time in /proc/PID/stat. */
    uint64_t start_realtime_ns; /* CLOCK_REALTIME when the tracker started, ns since 1970. */
    uint64_t end_boottime_ns; /* CLOCK_BOOTTIME when the process ended normally, ns; 0 if it runs or was killed. */
    uint32_t state; /* State. */
    uint32_t mode; /* 0 sites off, 1 sampled, 2 exact. */
    uint32_t allocator; /* Allocator. */
    uint32_t runtime; /* Runtime. */
    uint32_t counters; /* Number of counters in this file. */
    uint32_t composition; /* Which Composition is valid; 2 = none yet. */
    int64_t live_bytes; /* Central live bytes (usable): lags behind the rows by the drift. */
    int64_t live_count; /* Central live blocks. */
    uint64_t peak_bytes; /* Highest central live bytes seen. */
    uint64_t count_at_peak; /* Live blocks at that moment. */
    uint64_t peak_ns; /* CLOCK_BOOTTIME of that moment, ns. */
    uint64_t reserved_bytes; /* Reserved address space booked in the map, bytes. */
    uint64_t committed_bytes; /* Committed bytes booked in the map. */
    uint64_t peak_reserved_bytes; /* Highest reserved_bytes. */
    uint64_t peak_committed_bytes; /* Highest committed_bytes. */
    struct plimsoll_composition compositions[2]; /* Compositions of the peak. */
    struct plimsoll_section_entry sections[16]; /* Section table. */
    uint64_t values[96]; /* Counters, in the order of the schema page. */
    uint64_t control; /* The mode that an observer requests: mode | mean of the sampling in bytes << 8; see control. The observer writes it by one pwrite of eight bytes. Only the tracker writes the other fields, except ended. The tracker puts the mode into force at a thread's next sample (the countdown runs in every mode), at a full walk, and at a thread's start. */
    uint64_t in_force; /* The value of control that is in force; mode repeats its mode. */
    uint64_t in_force_ns; /* CLOCK_BOOTTIME when the mode came into force, ns; older blocks have the sites of the earlier mode. */
    uint64_t ended; /* How the process ended, written by its parent after the end: 1 exit status, 2 signal | its number << 8 | an OOM kill: 1 no, 2 yes, 3 of this or another process of its cgroup << 16 | ended_at; 0 not known. The tracker writes ENDED_BY_EXEC with the time before an exec, and 0 when the exec fails. */
};
_Static_assert(offsetof(struct plimsoll_header, magic) == 0, "magic");
_Static_assert(offsetof(struct plimsoll_header, version) == 8, "version");
_Static_assert(offsetof(struct plimsoll_header, header_bytes) == 12, "header_bytes");
_Static_assert(offsetof(struct plimsoll_header, file_bytes) == 16, "file_bytes");
_Static_assert(offsetof(struct plimsoll_header, pid) == 24, "pid");
_Static_assert(offsetof(struct plimsoll_header, ppid) == 28, "ppid");
_Static_assert(offsetof(struct plimsoll_header, start_boottime_ns) == 32, "start_boottime_ns");
_Static_assert(offsetof(struct plimsoll_header, start_realtime_ns) == 40, "start_realtime_ns");
_Static_assert(offsetof(struct plimsoll_header, end_boottime_ns) == 48, "end_boottime_ns");
_Static_assert(offsetof(struct plimsoll_header, state) == 56, "state");
_Static_assert(offsetof(struct plimsoll_header, mode) == 60, "mode");
_Static_assert(offsetof(struct plimsoll_header, allocator) == 64, "allocator");
_Static_assert(offsetof(struct plimsoll_header, runtime) == 68, "runtime");
_Static_assert(offsetof(struct plimsoll_header, counters) == 72, "counters");
_Static_assert(offsetof(struct plimsoll_header, composition) == 76, "composition");
_Static_assert(offsetof(struct plimsoll_header, live_bytes) == 80, "live_bytes");
_Static_assert(offsetof(struct plimsoll_header, live_count) == 88, "live_count");
_Static_assert(offsetof(struct plimsoll_header, peak_bytes) == 96, "peak_bytes");
_Static_assert(offsetof(struct plimsoll_header, count_at_peak) == 104, "count_at_peak");
_Static_assert(offsetof(struct plimsoll_header, peak_ns) == 112, "peak_ns");
_Static_assert(offsetof(struct plimsoll_header, reserved_bytes) == 120, "reserved_bytes");
_Static_assert(offsetof(struct plimsoll_header, committed_bytes) == 128, "committed_bytes");
_Static_assert(offsetof(struct plimsoll_header, peak_reserved_bytes) == 136, "peak_reserved_bytes");
_Static_assert(offsetof(struct plimsoll_header, peak_committed_bytes) == 144, "peak_committed_bytes");
_Static_assert(offsetof(struct plimsoll_header, compositions) == 152, "compositions");
_Static_assert(offsetof(struct plimsoll_header, sections) == 216, "sections");
_Static_assert(offsetof(struct plimsoll_header, values) == 728, "values");
_Static_assert(offsetof(struct plimsoll_header, control) == 1496, "control");
_Static_assert(offsetof(struct plimsoll_header, in_force) == 1504, "in_force");
_Static_assert(offsetof(struct plimsoll_header, in_force_ns) == 1512, "in_force_ns");
_Static_assert(offsetof(struct plimsoll_header, ended) == 1520, "ended");
_Static_assert(sizeof(struct plimsoll_header) == 1528, "size");

/* A category and its central figures. The exact live figures are Σ rows. The central figures exist for the peaks, which a sum at report time can't give. */
struct plimsoll_category {
    char name[48]; /* Name, NUL-padded. */
    uint32_t kind; /* CategoryKind. */
    uint32_t flags; /* Reserved, zero. */
    int64_t live_bytes; /* Central live bytes; lags behind the rows by the drift. */
    int64_t live_count; /* Central live blocks. */
    uint64_t peak_bytes; /* Highest central live bytes. */
    uint64_t count_at_peak; /* Live blocks at that moment. */
    uint64_t peak_ns; /* CLOCK_BOOTTIME of that moment, ns. */
    uint64_t reserved_bytes; /* Reserved address space by the map's books. */
    uint64_t committed_bytes; /* Committed bytes by the map's books. */
    uint64_t peak_reserved_bytes; /* Highest reserved. */
    uint64_t peak_committed_bytes; /* Highest committed. */
    uint64_t at_peak_bytes[2]; /* Live bytes when the total was at its kept peak: two halves, see Composition. */
    uint64_t at_peak_count[2]; /* Live blocks then. */
    uint64_t reserved[12]; /* Reserved, zero. */
};
_Static_assert(offsetof(struct plimsoll_category, name) == 0, "name");
_Static_assert(offsetof(struct plimsoll_category, kind) == 48, "kind");
_Static_assert(offsetof(struct plimsoll_category, flags) == 52, "flags");
_Static_assert(offsetof(struct plimsoll_category, live_bytes) == 56, "live_bytes");
_Static_assert(offsetof(struct plimsoll_category, live_count) == 64, "live_count");
_Static_assert(offsetof(struct plimsoll_category, peak_bytes) == 72, "peak_bytes");
_Static_assert(offsetof(struct plimsoll_category, count_at_peak) == 80, "count_at_peak");
_Static_assert(offsetof(struct plimsoll_category, peak_ns) == 88, "peak_ns");
_Static_assert(offsetof(struct plimsoll_category, reserved_bytes) == 96, "reserved_bytes");
_Static_assert(offsetof(struct plimsoll_category, committed_bytes) == 104, "committed_bytes");
_Static_assert(offsetof(struct plimsoll_category, peak_reserved_bytes) == 112, "peak_reserved_bytes");
_Static_assert(offsetof(struct plimsoll_category, peak_committed_bytes) == 120, "peak_committed_bytes");
_Static_assert(offsetof(struct plimsoll_category, at_peak_bytes) == 128, "at_peak_bytes");
_Static_assert(offsetof(struct plimsoll_category, at_peak_count) == 144, "at_peak_count");
_Static_assert(offsetof(struct plimsoll_category, reserved) == 160, "reserved");
_Static_assert(sizeof(struct plimsoll_category) == 256, "size");

/* A loaded object. Entries stay after dlclose, so that old callers keep their names. */
struct plimsoll_module {
    uint64_t start; /* First mapped address. */
    uint64_t end; /* One past the last. */
    uint64_t bias; /* Avma = Svma + bias. */
    uint64_t loaded_ns; /* CLOCK_BOOTTIME when first seen, ns. */
    uint64_t unloaded_ns; /* CLOCK_BOOTTIME when found unloaded or replaced, ns; 0 while loaded. */
    char build_id[20]; /* Build id, zero-padded. */
    uint16_t build_id_bytes; /* Bytes of the build id; 0 = none. */
    uint16_t category; /* Category of callers that no rule names. */
    char path[192]; /* Path as the loader has it, NUL-padded, cut at the front if too long. */
};
_Static_assert(offsetof(struct plimsoll_module, start) == 0, "start");
_Static_assert(offsetof(struct plimsoll_module, end) == 8, "end");
_Static_assert(offsetof(struct plimsoll_module, bias) == 16, "bias");
_Static_assert(offsetof(struct plimsoll_module, loaded_ns) == 24, "loaded_ns");
_Static_assert(offsetof(struct plimsoll_module, unloaded_ns) == 32, "unloaded_ns");
_Static_assert(offsetof(struct plimsoll_module, build_id) == 40, "build_id");
_Static_assert(offsetof(struct plimsoll_module, build_id_bytes) == 60, "build_id_bytes");
_Static_assert(offsetof(struct plimsoll_module, category) == 62, "category");
_Static_assert(offsetof(struct plimsoll_module, path) == 64, "path");
_Static_assert(sizeof(struct plimsoll_module) == 256, "size");

/* A thread's slot. The rows of a dead thread stay, and the thread that adopts the slot continues in them. */
struct plimsoll_thread {
    uint32_t tid; /* Kernel thread id; 0 = slot never used. */
    uint32_t state; /* 0 free, 1 in use, 2 its thread has ended. */
    uint64_t stack_low; /* Low end of the stack (the guard is below). */
    uint64_t stack_high; /* High end of the stack. */
    uint64_t guard_bytes; /* Bytes of the guard as requested. */
    uint64_t start_ns; /* CLOCK_BOOTTIME of the start, ns. */
    uint64_t end_ns; /* CLOCK_BOOTTIME of the end, ns. */
    uint64_t generation; /* Threads that had this slot. */
    uint64_t own_bytes; /* Own private memory of this slot: state, memo, index. */
    uint64_t creator; /* Caller that created the thread; 0 = unknown. */
    uint64_t stack_kind; /* 1 = the stack is the program's own memory (pthread_attr_setstack), 2 = the main thread's. */
    char name[16]; /* The thread's name when the tracker last read it, NUL-padded; empty if never. */
    uint64_t table_inserts; /* Blocks whose keys threads of this slot put into the side table or arrays of pages; the counter of that name has those of no slot. */
    uint64_t table_removes; /* Blocks whose keys threads of this slot removed from there, whichever thread had put them in. */
    uint64_t reserved[2]; /* Reserved, zero. */
};
_Static_assert(offsetof(struct plimsoll_thread, tid) == 0, "tid");
_Static_assert(offsetof(struct plimsoll_thread, state) == 4, "state");
_Static_assert(offsetof(struct plimsoll_thread, stack_low) == 8, "stack_low");
_Static_assert(offsetof(struct plimsoll_thread, stack_high) == 16, "stack_high");
_Static_assert(offsetof(struct plimsoll_thread, guard_bytes) == 24, "guard_bytes");
_Static_assert(offsetof(struct plimsoll_thread, start_ns) == 32, "start_ns");
_Static_assert(offsetof(struct plimsoll_thread, end_ns) == 40, "end_ns");
_Static_assert(offsetof(struct plimsoll_thread, generation) == 48, "generation");
_Static_assert(offsetof(struct plimsoll_thread, own_bytes) == 56, "own_bytes");
_Static_assert(offsetof(struct plimsoll_thread, creator) == 64, "creator");
_Static_assert(offsetof(struct plimsoll_thread, stack_kind) == 72, "stack_kind");
_Static_assert(offsetof(struct plimsoll_thread, name) == 80, "name");
_Static_assert(offsetof(struct plimsoll_thread, table_inserts) == 96, "table_inserts");
_Static_assert(offsetof(struct plimsoll_thread, table_removes) == 104, "table_removes");
_Static_assert(offsetof(struct plimsoll_thread, reserved) == 112, "reserved");
_Static_assert(sizeof(struct plimsoll_thread) == 128, "size");

/* A caller: up to eight native return addresses, innermost first, and their category. Or a site: a deep stack below a caller, with the caller's category. Blocks of the caller without a known site are in the caller's own rows. So a caller's sum is its own rows plus those of its sites. */
struct plimsoll_caller {
    uint16_t depth; /* Frames in frames; of a site, frames of its stack. */
    uint16_t category; /* Category index. */
    uint32_t flags; /* Bit 0: the walk ended early; bit 1: ended at code of no module (JIT); bit 2: an overflow caller; bit 3: a site; bit 4: its blocks were booked before in the entry with the same frames (a native image with NMT). */
    uint64_t hash; /* Hash of frames and category; 0 = entry not complete, 1 = complete, but other code lies there now. */
    int64_t live_bytes; /* Central live bytes; lags behind the rows by the drift. */
    int64_t live_count; /* Central live blocks. */
    uint64_t peak_bytes; /* Highest central live bytes. */
    uint64_t count_at_peak; /* Live blocks at that moment. */
    uint64_t first_ns; /* CLOCK_BOOTTIME when first seen, ns. */
    uint32_t parent; /* Of a site: index of its caller, which isn't a site and has a smaller index; 0 = this entry is a caller. */
    uint32_t stack; /* Of a site: FrameNode of its innermost frame. */
    uint64_t frames[8]; /* Return addresses (Avma), innermost first. Of a site: word 0 is its SiteSamples index, 0 = never sampled; word 1 counts its calls of mmap, word 2 their bytes. */
};
_Static_assert(offsetof(struct plimsoll_caller, depth) == 0, "depth");
_Static_assert(offsetof(struct plimsoll_caller, category) == 2, "category");
_Static_assert(offsetof(struct plimsoll_caller, flags) == 4, "flags");
_Static_assert(offsetof(struct plimsoll_caller, hash) == 8, "hash");
_Static_assert(offsetof(struct plimsoll_caller, live_bytes) == 16, "live_bytes");
_Static_assert(offsetof(struct plimsoll_caller, live_count) == 24, "live_count");
_Static_assert(offsetof(struct plimsoll_caller, peak_bytes) == 32, "peak_bytes");
_Static_assert(offsetof(struct plimsoll_caller, count_at_peak) == 40, "count_at_peak");
_Static_assert(offsetof(struct plimsoll_caller, first_ns) == 48, "first_ns");
_Static_assert(offsetof(struct plimsoll_caller, parent) == 56, "parent");
_Static_assert(offsetof(struct plimsoll_caller, stack) == 60, "stack");
_Static_assert(offsetof(struct plimsoll_caller, frames) == 64, "frames");
_Static_assert(sizeof(struct plimsoll_caller) == 128, "size");

/* The books of one thread for one caller. One writer; every counter monotone. One cache line. */
struct plimsoll_row {
    uint32_t caller; /* Caller index. */
    uint32_t slot; /* Thread slot index + 1; 0 = entry not complete. */
    int64_t room; /* Drift: bytes that this row may still grow before it updates the central figures. */
    uint64_t alloc_count; /* Blocks allocated. */
    uint64_t alloc_bytes; /* Usable bytes allocated. */
    uint64_t alloc_requested; /* Requested bytes allocated. */
    uint64_t free_count; /* Blocks freed. */
    uint64_t free_bytes; /* Usable bytes freed. */
    uint64_t free_requested; /* Requested bytes freed. */
};
_Static_assert(offsetof(struct plimsoll_row, caller) == 0, "caller");
_Static_assert(offsetof(struct plimsoll_row, slot) == 4, "slot");
_Static_assert(offsetof(struct plimsoll_row, room) == 8, "room");
_Static_assert(offsetof(struct plimsoll_row, alloc_count) == 16, "alloc_count");
_Static_assert(offsetof(struct plimsoll_row, alloc_bytes) == 24, "alloc_bytes");
_Static_assert(offsetof(struct plimsoll_row, alloc_requested) == 32, "alloc_requested");
_Static_assert(offsetof(struct plimsoll_row, free_count) == 40, "free_count");
_Static_assert(offsetof(struct plimsoll_row, free_bytes) == 48, "free_bytes");
_Static_assert(offsetof(struct plimsoll_row, free_requested) == 56, "free_requested");
_Static_assert(sizeof(struct plimsoll_row) == 64, "size");

/* A frame of sites' stacks, shared by all stacks that agree from here outwards: a stack is its innermost node, and parent leads outwards. */
struct plimsoll_frame_node {
    uint64_t value; /* What it means depends on kind. */
    uint32_t parent; /* FrameNode one further out, whose index is below this one's; 0 = this is the outermost. */
    uint8_t kind; /* FrameKind. */
    uint8_t flags; /* frame_flags. */
    uint16_t depth; /* Frames from here outwards, this one included. */
};
_Static_assert(offsetof(struct plimsoll_frame_node, value) == 0, "value");
_Static_assert(offsetof(struct plimsoll_frame_node, parent) == 8, "parent");
_Static_assert(offsetof(struct plimsoll_frame_node, kind) == 12, "kind");
_Static_assert(offsetof(struct plimsoll_frame_node, flags) == 13, "flags");
_Static_assert(offsetof(struct plimsoll_frame_node, depth) == 14, "depth");
_Static_assert(sizeof(struct plimsoll_frame_node) == 16, "size");

/* A Java method, or a stub of the VM. Never removed: the names outlive the class and the process. */
struct plimsoll_method {
    uint64_t identity; /* The mark by which the tracker recognises the method; meaningless to a reader. */
    uint64_t first_ns; /* CLOCK_BOOTTIME when first seen, ns; 0 = entry not complete. */
    uint32_t class_at; /* Offset in the names section: class, as in the class file (java/util/zip/Inflater). */
    uint32_t name_at; /* Method. */
    uint32_t signature_at; /* Signature. */
    uint32_t source_at; /* Source file; 0 bytes = unknown. */
    uint32_t lines_at; /* Line numbers: pairs of u16, first bytecode index and line, by bytecode index, in the writer's byte order. */
    uint32_t lines_bytes; /* Bytes of the line numbers. */
    uint16_t class_bytes; /* Bytes of the class's name. */
    uint16_t name_bytes; /* Bytes of the method's name. */
    uint16_t signature_bytes; /* Bytes of the signature. */
    uint16_t source_bytes; /* Bytes of the source file's name. */
    uint64_t flags; /* Bit 0: native; bit 1: hidden class or method; bit 2: a stub of the VM, which has no class. */
    uint64_t reserved; /* Reserved, zero. */
};
_Static_assert(offsetof(struct plimsoll_method, identity) == 0, "identity");
_Static_assert(offsetof(struct plimsoll_method, first_ns) == 8, "first_ns");
_Static_assert(offsetof(struct plimsoll_method, class_at) == 16, "class_at");
_Static_assert(offsetof(struct plimsoll_method, name_at) == 20, "name_at");
_Static_assert(offsetof(struct plimsoll_method, signature_at) == 24, "signature_at");
_Static_assert(offsetof(struct plimsoll_method, source_at) == 28, "source_at");
_Static_assert(offsetof(struct plimsoll_method, lines_at) == 32, "lines_at");
_Static_assert(offsetof(struct plimsoll_method, lines_bytes) == 36, "lines_bytes");
_Static_assert(offsetof(struct plimsoll_method, class_bytes) == 40, "class_bytes");
_Static_assert(offsetof(struct plimsoll_method, name_bytes) == 42, "name_bytes");
_Static_assert(offsetof(struct plimsoll_method, signature_bytes) == 44, "signature_bytes");
_Static_assert(offsetof(struct plimsoll_method, source_bytes) == 46, "source_bytes");
_Static_assert(offsetof(struct plimsoll_method, flags) == 48, "flags");
_Static_assert(offsetof(struct plimsoll_method, reserved) == 56, "reserved");
_Static_assert(sizeof(struct plimsoll_method) == 64, "size");

/* A live block that was sampled. A block of n requested bytes is sampled with probability p = 1 − exp(−(n + 8) / mean), independently of other blocks, so it represents 1/p blocks. Σ 1/p is an unbiased estimate of the number of blocks, and Σ (1 − p) / p² one of its variance (Horvitz and Thompson, 1952). */
struct plimsoll_sample {
    uint64_t address; /* The block; 0 = free entry, 1 = being written. */
    uint64_t usable; /* Usable bytes. */
    uint64_t requested; /* Requested bytes. */
    uint64_t weight; /* 1/p, an f64's bits. */
    uint64_t time_ns; /* CLOCK_BOOTTIME of the allocation, ns. */
    uint32_t site; /* Caller index of the site. */
    uint32_t slot; /* Thread slot that allocated it. */
    uint64_t generation; /* generation of that slot at the allocation: tells which of the slot's threads allocated the block. */
    uint64_t reserved; /* Reserved, zero. */
};
_Static_assert(offsetof(struct plimsoll_sample, address) == 0, "address");
_Static_assert(offsetof(struct plimsoll_sample, usable) == 8, "usable");
_Static_assert(offsetof(struct plimsoll_sample, requested) == 16, "requested");
_Static_assert(offsetof(struct plimsoll_sample, weight) == 24, "weight");
_Static_assert(offsetof(struct plimsoll_sample, time_ns) == 32, "time_ns");
_Static_assert(offsetof(struct plimsoll_sample, site) == 40, "site");
_Static_assert(offsetof(struct plimsoll_sample, slot) == 44, "slot");
_Static_assert(offsetof(struct plimsoll_sample, generation) == 48, "generation");
_Static_assert(offsetof(struct plimsoll_sample, reserved) == 56, "reserved");
_Static_assert(sizeof(struct plimsoll_sample) == 64, "size");

/* Estimates for a site from its samples; all fields are sums over samples and only grow. Live = alloc − free. */
struct plimsoll_site_samples {
    uint32_t site; /* Caller index of the site; 0 = entry not complete. */
    uint32_t flags; /* Reserved, zero. */
    uint64_t alloc_samples; /* Samples taken. */
    uint64_t free_samples; /* Samples whose block was freed. */
    uint64_t alloc_bytes; /* Σ usable / p, rounded for each sample. */
    uint64_t alloc_requested; /* Σ requested / p. */
    uint64_t alloc_count_256; /* Σ 256 / p. */
    uint64_t free_bytes; /* As alloc_bytes, of freed blocks. */
    uint64_t free_requested; /* As alloc_requested, of freed blocks. */
    uint64_t free_count_256; /* As alloc_count_256, of freed blocks. */
    uint64_t temporary_bytes; /* The part of free_bytes that was freed within TEMPORARY_NS. */
    uint64_t temporary_count_256; /* The part of free_count_256 that was freed within TEMPORARY_NS. */
    uint64_t alloc_bytes_variance; /* Variance of alloc_bytes, Σ usable² (1 − p) / p², an f64's bits. */
    uint64_t alloc_count_variance; /* Variance of the count, Σ (1 − p) / p², an f64's bits. */
    uint64_t free_bytes_variance; /* As alloc_bytes_variance, of freed blocks. */
    uint64_t free_count_variance; /* As alloc_count_variance, of freed blocks. */
    uint64_t sizes_256[16]; /* Σ 256 / p by requested bytes: below 16, below 32, … below 256 KiB, all larger. */
    uint64_t reserved; /* Reserved, zero. */
};
_Static_assert(offsetof(struct plimsoll_site_samples, site) == 0, "site");
_Static_assert(offsetof(struct plimsoll_site_samples, flags) == 4, "flags");
_Static_assert(offsetof(struct plimsoll_site_samples, alloc_samples) == 8, "alloc_samples");
_Static_assert(offsetof(struct plimsoll_site_samples, free_samples) == 16, "free_samples");
_Static_assert(offsetof(struct plimsoll_site_samples, alloc_bytes) == 24, "alloc_bytes");
_Static_assert(offsetof(struct plimsoll_site_samples, alloc_requested) == 32, "alloc_requested");
_Static_assert(offsetof(struct plimsoll_site_samples, alloc_count_256) == 40, "alloc_count_256");
_Static_assert(offsetof(struct plimsoll_site_samples, free_bytes) == 48, "free_bytes");
_Static_assert(offsetof(struct plimsoll_site_samples, free_requested) == 56, "free_requested");
_Static_assert(offsetof(struct plimsoll_site_samples, free_count_256) == 64, "free_count_256");
_Static_assert(offsetof(struct plimsoll_site_samples, temporary_bytes) == 72, "temporary_bytes");
_Static_assert(offsetof(struct plimsoll_site_samples, temporary_count_256) == 80, "temporary_count_256");
_Static_assert(offsetof(struct plimsoll_site_samples, alloc_bytes_variance) == 88, "alloc_bytes_variance");
_Static_assert(offsetof(struct plimsoll_site_samples, alloc_count_variance) == 96, "alloc_count_variance");
_Static_assert(offsetof(struct plimsoll_site_samples, free_bytes_variance) == 104, "free_bytes_variance");
_Static_assert(offsetof(struct plimsoll_site_samples, free_count_variance) == 112, "free_count_variance");
_Static_assert(offsetof(struct plimsoll_site_samples, sizes_256) == 120, "sizes_256");
_Static_assert(offsetof(struct plimsoll_site_samples, reserved) == 248, "reserved");
_Static_assert(sizeof(struct plimsoll_site_samples) == 256, "size");

/* A private mapping of the tracker: anonymous, readable and writable, without swap reservation, without huge pages. Entries are never removed, since the tracker unmaps at most the end of one. An observer checks each against the kernel's map. */
struct plimsoll_own_mapping {
    uint64_t start; /* First address. */
    uint64_t bytes; /* Bytes; 0 = entry not complete. */
    uint32_t purpose; /* Purpose. */
    uint32_t flags; /* Reserved, zero. */
    uint64_t reserved; /* Reserved, zero. */
};
_Static_assert(offsetof(struct plimsoll_own_mapping, start) == 0, "start");
_Static_assert(offsetof(struct plimsoll_own_mapping, bytes) == 8, "bytes");
_Static_assert(offsetof(struct plimsoll_own_mapping, purpose) == 16, "purpose");
_Static_assert(offsetof(struct plimsoll_own_mapping, flags) == 20, "flags");
_Static_assert(offsetof(struct plimsoll_own_mapping, reserved) == 24, "reserved");
_Static_assert(sizeof(struct plimsoll_own_mapping) == 32, "size");

#endif
