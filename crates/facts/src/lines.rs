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
        "Direct byte buffers and other Unsafe memory (NMT's category Other, in a native image Unsafe)."
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
        "Heaps that aren't glibc's: of jemalloc, tcmalloc, mimalloc, musl's malloc, Go, V8 and CPython, each divided into live, free \
         and other parts ([its children](#children-of-other-allocator)). Besides, all unnamed anonymous mappings that no other line \
         has; these may be the program's own, so the line is estimated."
    ThreadStacks "thread-stacks" "thread stacks" Stacks
        "Stacks of threads with their guards, the thread library's record and thread-local storage at their top. Children are \
         pools: threads whose names differ only in numbers (`pool-N-thread-N`: several instances of a pool; `pool-1-thread-N`: one). \
         `kept for threads to come` are stacks of ended threads that the thread library caches."
    Libraries "libraries" "libraries and program" Files
        "Code and data of the program and its shared libraries, with the data that they have written to and their static \
         variables (.bss, up to where the program headers end it). A program that was unpacked into memory (UPX) is the child \
         `… (unpacked in memory)`."
    MappedFiles "mapped-files" "mapped files" Files
        "Files that the program mapped. Clean pages are page cache: the kernel takes them back when it needs them. Rings of \
         sockets and of io_uring are here too; the kernel keeps their pages. `(deleted)` files keep their disk space until they \
         are unmapped."
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
