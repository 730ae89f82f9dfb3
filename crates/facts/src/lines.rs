//! The lines that a ledger may have, in one table. Text, JSON and docs/report-lines.md use its names.

/// Subtotals of lines: which part of RSS belongs to the Java runtime, which to allocators, stacks and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// HotSpot, or the runtime inside a native image.
    Vm,
    /// malloc, and the heaps of Go, V8 and CPython.
    Allocator,
    Stacks,
    Files,
    Other,
}

impl Group {
    pub const ALL: [Group; 5] = [Group::Vm, Group::Allocator, Group::Stacks, Group::Files, Group::Other];

    pub const fn id(self) -> &'static str {
        match self {
            Group::Vm => "vm",
            Group::Allocator => "allocator",
            Group::Stacks => "stacks",
            Group::Files => "files",
            Group::Other => "other",
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Group::Vm => "Java runtime",
            Group::Allocator => "allocators",
            Group::Stacks => "stacks",
            Group::Files => "files and shared memory",
            Group::Other => "other",
        }
    }
}

impl LineId {
    /// Other lines can only grow up to a bound: -Xmx, ReservedCodeCacheSize, a file's length, or pages that the kernel
    /// can take back.
    pub const fn may_grow_without_bound(self) -> bool {
        !matches!(
            self,
            LineId::JavaHeap | LineId::CodeCache | LineId::MappedFiles | LineId::Libraries | LineId::Tracker
        )
    }
}

impl LineId {
    /// The line with the memory of one of HotSpot's categories, if the category has a line of its own. `name` is NMT's
    /// name, which the tracker uses too.
    pub fn of_vm_category(name: &str) -> Option<LineId> {
        Some(match name {
            "Java Heap" => LineId::JavaHeap,
            "Thread Stack" => LineId::ThreadStacks,
            "Class" | "Metaspace" | "Shared class space" | "Module" => LineId::Class,
            "Code" => LineId::CodeCache,
            "GC" | "GCCardSet" => LineId::Gc,
            "Compiler" | "JVMCI" => LineId::Compiler,
            "Symbol" | "String Deduplication" => LineId::Symbols,
            "Other" => LineId::DirectBuffers,
            _ => return None,
        })
    }
}

macro_rules! lines {
    ($($variant:ident $id:literal $name:literal $group:ident $meaning:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum LineId { $($variant),* }

        impl LineId {
            pub const ALL: &'static [LineId] = &[$(LineId::$variant),*];

            /// The id in JSON. Scripts depend on it.
            pub const fn id(self) -> &'static str {
                match self { $(LineId::$variant => $id),* }
            }
            pub const fn name(self) -> &'static str {
                match self { $(LineId::$variant => $name),* }
            }
            pub const fn group(self) -> Group {
                match self { $(LineId::$variant => Group::$group),* }
            }
            /// What the line contains, for docs/report-lines.md (Markdown).
            pub const fn meaning(self) -> &'static str {
                match self { $(LineId::$variant => $meaning),* }
            }
        }
    };
}

lines! {
    JavaHeap "java-heap" "Java heap" Vm
        "Resident pages of the Java heap's reservation: objects, garbage, and committed space that was touched once."
    Class "class" "class metadata" Vm
        "Metaspace, compressed class space, the CDS archive, and the VM's malloc'ed structures of classes."
    CodeCache "code-cache" "code cache" Vm
        "Compiled methods, stubs, the interpreter, and the VM's malloc'ed structures of code."
    Gc "gc" "garbage collector" Vm
        "Card tables, mark bitmaps, remembered sets, task queues: mapped and malloc'ed."
    Compiler "compiler" "JIT compilers" Vm
        "Arenas of the JIT compilers: they grow during a compilation and are free after it."
    Symbols "symbols" "symbols and strings" Vm
        "Symbol table and string table."
    VmInternal "vm-internal" "VM internal" Vm
        "Everything else that the VM counts: threads' structures, internal, tracing, logging, NMT itself."
    DirectBuffers "direct-buffers" "direct buffers" Vm
        "Direct byte buffers and other Unsafe memory (NMT's category Other)."
    ImageHeap "image-heap" "image and isolate heap" Vm
        "A native image's image heap and the chunks of its isolates' Java heaps, also of an image that a JVM or another program \
         has loaded as a library."
    GlibcLive "glibc-live" "glibc, live" Allocator
        "Blocks that the program has allocated and not freed, with malloc's headers, without the blocks that the VM counts as its \
         own. After `plimsoll attach` the children are `from before the attach` (the walk's blocks minus those in the tracker's \
         books) and `since the attach`."
    GlibcRetained "glibc-retained" "glibc, free but kept" Allocator
        "Free chunks on resident pages: bins, thread caches, the top of each heap. `malloc_trim` gives back the whole pages \
         among them, except the ends of thread arenas; the line's note has that figure."
    GlibcUnknown "glibc-unknown" "glibc, unclassified" Allocator
        "Resident pages of glibc's heaps that could not be walked (no permission, or a damaged chain of chunks). In a recording \
         also the growth of the heaps since the last walk; the next walk, seconds later, classifies it."
    OtherAllocator "other-allocator" "other allocator" Allocator
        "Memory of jemalloc, tcmalloc, mimalloc or musl's malloc, and heaps of languages that don't use malloc. jemalloc's heap \
         (5.x) has the children `jemalloc: live` (blocks by their size class, thread caches included), `free beside live blocks` \
         (which no purge gives back), `free pages (dirty)` and `(muzzy)` (which a purge gives back), `free pages (released)`, and \
         `its own records`. tcmalloc's heap (gperftools) has the same children and `free in caches`: free blocks in thread caches \
         and transfer caches. mimalloc's heap (2.x) has the same children; blocks that another thread has freed and their owner has not \
         taken back are `free beside live blocks`, and `free pages (released)` includes what was never touched. Go's heap (Go 1.21 and later) has them too: `Go's heap: live` (objects, dead ones included until they are \
         swept), `free pages (dirty)` (which `debug.FreeOSMemory` gives back), `(muzzy)` (given back and still resident), `free in caches` \
         (free pages that processors hold), `stacks of goroutines` (and of Go's own threads); one that can't be walked is one child, \
         `Go's heap`: its arenas of 64 MiB. Heaps of other languages: CPython's pools of small objects (each recognised by its header, with its live \
         bytes), V8's heap, \
         of all isolates (workers have one each): `V8: young objects`, `old objects` (with garbage that no collection has found yet), \
         `large objects`, `code` and `read-only objects`; `free for young objects` (the rest of the young generation's pages: the next \
         objects go there), or both together as `young objects, and free for them` during a collection and right after it; \
         `free in old pages`, `its own records` (page headers), and `pages on their way back`. Array buffers and \
         `Buffer`s are malloc's; the note of its live blocks has their size, from V8's own lists. Memory that Go or an allocator returned by MADV_FREE stays resident until the kernel needs it; the note \
         has its size. musl's heap (musl 1.2.1 and later) has `musl: live` (blocks by their slots), \
         `free beside live blocks` and `its own records`. Except for these allocators and heaps, the line has all unnamed anonymous mappings that no other line has. It may include the program's own \
         mappings, so it is estimated."
    ThreadStacks "thread-stacks" "thread stacks" Stacks
        "Stacks of threads with their guards, the thread library's record and thread-local storage at their top. Children are \
         pools: threads whose names differ only in numbers (`pool-N-thread`: several instances of a pool; `pool-1-thread`: one). \
         `kept for threads to come` are stacks of ended threads that the thread library caches."
    Libraries "libraries" "libraries and program" Files
        "Code and data of the program and its shared libraries, with the data that they have written to. A program that was \
         unpacked into memory (UPX) is the child `… (unpacked in memory)`."
    MappedFiles "mapped-files" "mapped files" Files
        "Files that the program mapped. Clean pages are page cache: the kernel takes them back when it needs them. `(deleted)` \
         files keep their disk space until they are unmapped."
    SharedMemory "shared-memory" "shared memory" Files
        "tmpfs, memfd, SysV and POSIX shared memory. It has no file on a disk, and counts in the RSS of every process that maps it."
    Tracker "tracker" "Plimsoll itself" Other
        "Mappings of Plimsoll's tracker in the target: its segment, rules and library, and its private memory, which the segment \
         lists. The target can write that list, so the observer checks it against the kernel's map and bounds it \
         ([decisions/own-cost.md](decisions/own-cost.md))."
    OtherAnonymous "other-anonymous" "other anonymous" Other
        "Anonymous mappings that no source claims: the program's own `mmap`."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ids_equal_the_design() {
        let ids: Vec<_> = LineId::ALL.iter().map(|line| line.id()).collect();
        let design = "java-heap class code-cache gc compiler symbols vm-internal direct-buffers thread-stacks glibc-live \
            glibc-retained glibc-unknown other-allocator image-heap mapped-files libraries shared-memory tracker other-anonymous";
        for id in design.split_ascii_whitespace() {
            assert!(ids.contains(&id), "{id}");
        }
        assert_eq!(ids.len(), design.split_ascii_whitespace().count());
    }
}
