/* The segment of a tracked process, as plimsoll writes it (docs/segment.md).
 * Made from crates/segment/src/layout.rs; edit that, then: BLESS=1 cargo test -p plimsoll-segment
 * Byte order is the writer's. Read with pread: the file may be truncated under a mapping. */
#ifndef PLIMSOLL_SEGMENT_H
#define PLIMSOLL_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

#define PLIMSOLL_SEGMENT_MAGIC "PLIMSEG1"
#define PLIMSOLL_SEGMENT_VERSION 1
#define PLIMSOLL_SEGMENT_HEADER_BYTES 4096
#define PLIMSOLL_SEGMENT_FILE_BYTES 47464448

#define PLIMSOLL_SECTION_SCHEMA 0
#define PLIMSOLL_SECTION_COMMAND 1
#define PLIMSOLL_SECTION_CATEGORIES 2
#define PLIMSOLL_SECTION_MODULES 3
#define PLIMSOLL_SECTION_THREADS 4
#define PLIMSOLL_SECTION_CALLERS 5
#define PLIMSOLL_SECTION_ROWS 6
#define PLIMSOLL_SECTION_VMAP 7

#define PLIMSOLL_COUNTER_UNKNOWN_FREES 0 /* count: Blocks given to free or realloc that carry no valid key: from before the start, or their last bytes were overwritten. */
#define PLIMSOLL_COUNTER_UNKNOWN_FREE_BYTES 1 /* bytes: Usable bytes of those blocks. */
#define PLIMSOLL_COUNTER_NESTED_ENTRIES 2 /* count: Blocks booked while the same thread was already inside the tracker (a signal handler that allocates). */
#define PLIMSOLL_COUNTER_UNBOOKED_BLOCKS 3 /* count: Blocks for which neither trailer nor table entry could be had; they are not in the books. */
#define PLIMSOLL_COUNTER_UNBOOKED_BYTES 4 /* bytes: Usable bytes of those blocks. */
#define PLIMSOLL_COUNTER_CALLERS_MERGED 5 /* count: New callers merged into their module's overflow caller because the caller section is full. */
#define PLIMSOLL_COUNTER_ROWS_SHARED 6 /* count: Operations booked in the shared rows because the row section is full. */
#define PLIMSOLL_COUNTER_THREADS_SHARED 7 /* count: Threads without a slot of their own: they book in the shared slot. */
#define PLIMSOLL_COUNTER_MODULES_LOST 8 /* count: Loaded objects that did not fit the module section. */
#define PLIMSOLL_COUNTER_CATEGORIES_LOST 9 /* count: Categories that did not fit; their blocks are in category 'other'. */
#define PLIMSOLL_COUNTER_GROW_FAILURES 10 /* count: Times the file could not grow (file system full): what then did not fit is counted above. */
#define PLIMSOLL_COUNTER_VMAP_LOST 11 /* count: Mapping operations that could not be booked in the virtual memory map. */
#define PLIMSOLL_COUNTER_VMAP_DEFERRED 12 /* count: Mapping operations made while the same thread was inside the map (a signal handler): booked afterwards. */
#define PLIMSOLL_COUNTER_VMAP_OPERATIONS 13 /* count: Mapping operations booked: mmap, munmap, mprotect, mremap, brk, shmat and their kin. */
#define PLIMSOLL_COUNTER_ADVISED_BYTES 14 /* bytes: Bytes given back to the kernel by madvise (DONTNEED, FREE): resident then, not mapped less. */
#define PLIMSOLL_COUNTER_STACK_WALKS 15 /* count: Stacks walked because no remembered one matched. */
#define PLIMSOLL_COUNTER_RULE_WALKS 16 /* count: Unwind rules worked out from .eh_frame because none was remembered. */
#define PLIMSOLL_COUNTER_STACK_TRUNCATED 17 /* count: Walks that ended early: no rule, or a word outside the stack. */
#define PLIMSOLL_COUNTER_DRIFT_FLUSHES 18 /* count: Flushes of a row's drift into the central figures. */
#define PLIMSOLL_COUNTER_DRIFT_BOUND 19 /* bytes: Upper bound of the drift that the central figures (peaks) may lag behind, for one row. */
#define PLIMSOLL_COUNTER_FORKS 20 /* count: fork() calls seen; each child has a segment of its own. */
#define PLIMSOLL_COUNTER_FORKS_UNTRACKED 21 /* count: Children of fork() that went on untracked: no segment could be made for them. */
#define PLIMSOLL_COUNTER_SUMMARIES 22 /* count: Summaries written on a signal. */
#define PLIMSOLL_COUNTER_FAULTS 23 /* count: Faults of the tracker itself that it went on after. */
#define PLIMSOLL_COUNTER_OWN_PRIVATE_BYTES 24 /* bytes: Own memory outside the segment: thread state, memos, the side table. */
#define PLIMSOLL_COUNTER_OWN_SEGMENT_BYTES 25 /* bytes: Own memory in the segment: populated pages. */
#define PLIMSOLL_COUNTER_OWN_RESERVED_BYTES 26 /* bytes: Address space reserved for the side table, directories and hash tables; resident only where touched. */
#define PLIMSOLL_COUNTER_TABLE_INSERTS 27 /* count: Blocks kept in the side table since the segment was made (inserted). */
#define PLIMSOLL_COUNTER_TABLE_REMOVES 28 /* count: Blocks removed from the side table. */
#define PLIMSOLL_COUNTER_THREADS_STARTED 29 /* count: Threads started since the tracker was. */
#define PLIMSOLL_COUNTER_CODE_GENERATIONS 30 /* count: Calls of dlopen, dlmopen and dlclose: each starts a new generation of the code map. */
#define PLIMSOLL_COUNTER_NATIVE_IMAGE_HEADERS 31 /* count: Blocks of a native image whose category came from the VM's own header. */
#define PLIMSOLL_COUNTER_MEMO_CHECKS 32 /* count: Remembered stacks that were walked too and compared (PLIMSOLL_CHECK=1). */
#define PLIMSOLL_COUNTER_MEMO_DISAGREEMENTS 33 /* count: Those of them where the walk came to another caller: a fault of the memo. */

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

/* One line of the header's section table (32 bytes). */
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
    uint64_t end_boottime_ns; /* CLOCK_BOOTTIME when the process ended in order, ns; 0 if it runs or was killed. */
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
    uint64_t reserved_bytes; /* Reserved address space booked in the map, and its peak, bytes. */
    uint64_t committed_bytes; /* Committed bytes booked in the map. */
    uint64_t peak_reserved_bytes; /* Highest reserved_bytes. */
    uint64_t peak_committed_bytes; /* Highest committed_bytes. */
    struct plimsoll_composition compositions[2]; /* Compositions of the peak. */
    struct plimsoll_section_entry sections[16]; /* Section table. */
    uint64_t values[96]; /* Counters, in the order of the schema page. */
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
_Static_assert(sizeof(struct plimsoll_header) == 1496, "size");

/* A category and its central figures. The exact live figures are Σ rows; these carry what a sum at report time can't know: the peaks. */
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

/* A thread's slot. The rows of a dead thread stay, and the thread that adopts the slot goes on in them. */
struct plimsoll_thread {
    uint32_t tid; /* Kernel thread id; 0 = slot never used. */
    uint32_t state; /* 0 free, 1 in use, 2 its thread has ended. */
    uint64_t stack_low; /* Low end of the stack (the guard is below). */
    uint64_t stack_high; /* High end of the stack. */
    uint64_t guard_bytes; /* Bytes of the guard as asked for. */
    uint64_t start_ns; /* CLOCK_BOOTTIME of the start, ns. */
    uint64_t end_ns; /* CLOCK_BOOTTIME of the end, ns. */
    uint64_t generation; /* Threads that had this slot. */
    uint64_t own_bytes; /* Own private memory of this slot: state, memo, index. */
    uint64_t creator; /* Caller that created the thread; 0 = unknown. */
    uint64_t stack_kind; /* 1 = the stack is the program's own memory (pthread_attr_setstack), 2 = the main thread's. */
    uint64_t reserved[6]; /* Reserved, zero. */
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
_Static_assert(offsetof(struct plimsoll_thread, reserved) == 80, "reserved");
_Static_assert(sizeof(struct plimsoll_thread) == 128, "size");

/* A caller: up to eight native return addresses, innermost first, and the category they were given. */
struct plimsoll_caller {
    uint16_t depth; /* Frames in frames. */
    uint16_t category; /* Category index. */
    uint32_t flags; /* Bit 0: the walk ended early; bit 1: ended at code of no module (JIT); bit 2: an overflow caller. */
    uint64_t hash; /* Hash of frames and category; 0 = entry not complete, 1 = complete, but other code lies there now. */
    int64_t live_bytes; /* Central live bytes; lags behind the rows by the drift. */
    int64_t live_count; /* Central live blocks. */
    uint64_t peak_bytes; /* Highest central live bytes. */
    uint64_t count_at_peak; /* Live blocks at that moment. */
    uint64_t first_ns; /* CLOCK_BOOTTIME when first seen, ns. */
    uint64_t reserved; /* Reserved, zero. */
    uint64_t frames[8]; /* Return addresses (Avma), innermost first. */
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
_Static_assert(offsetof(struct plimsoll_caller, reserved) == 56, "reserved");
_Static_assert(offsetof(struct plimsoll_caller, frames) == 64, "frames");
_Static_assert(sizeof(struct plimsoll_caller) == 128, "size");

/* The books of one thread for one caller. One writer; every counter monotone. One cache line. */
struct plimsoll_row {
    uint32_t caller; /* Caller index. */
    uint32_t slot; /* Thread slot index + 1; 0 = entry not complete. */
    int64_t room; /* Drift room: how many bytes this row may still grow before it tells the central figures. */
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

#endif
