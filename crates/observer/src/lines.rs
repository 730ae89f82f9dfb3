//! The lines a ledger may have: one table, from which the text, the JSON and docs/report-lines.md take their words.

/// The subtotals that answer "the VM says 1.5 GB, RSS is 2.5 GB" in one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    Vm,
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
            Group::Vm => "what the VM knows",
            Group::Allocator => "what the allocator holds",
            Group::Stacks => "stacks",
            Group::Files => "files and shared memory",
            Group::Other => "other",
        }
    }
}

impl LineId {
    /// Growth of the others ends by itself: at -Xmx, at ReservedCodeCacheSize, at a file's end, or in pages that the kernel takes back.
    pub const fn may_grow_without_bound(self) -> bool {
        !matches!(
            self,
            LineId::JavaHeap | LineId::CodeCache | LineId::MappedFiles | LineId::Libraries | LineId::Tracker
        )
    }
}

macro_rules! lines {
    ($($variant:ident $id:literal $name:literal $group:ident $meaning:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum LineId { $($variant),* }

        impl LineId {
            pub const ALL: &'static [LineId] = &[$(LineId::$variant),*];

            /// What scripts rely on.
            pub const fn id(self) -> &'static str {
                match self { $(LineId::$variant => $id),* }
            }
            pub const fn name(self) -> &'static str {
                match self { $(LineId::$variant => $name),* }
            }
            pub const fn group(self) -> Group {
                match self { $(LineId::$variant => Group::$group),* }
            }
            /// One sentence for docs/report-lines.md.
            pub const fn meaning(self) -> &'static str {
                match self { $(LineId::$variant => $meaning),* }
            }
        }
    };
}

lines! {
    JavaHeap "java-heap" "Java heap" Vm
        "Resident pages of the Java heap's reservation: objects, garbage and committed space that was touched once."
    Class "class" "class metadata" Vm
        "Metaspace, compressed class space, the CDS archive, and the VM's malloc'ed structures of classes."
    CodeCache "code-cache" "code cache" Vm
        "Compiled methods, stubs, the interpreter, and the VM's malloc'ed structures of code."
    Gc "gc" "garbage collector" Vm
        "Card tables, mark bitmaps, remembered sets, task queues: mapped and malloc'ed."
    Compiler "compiler" "JIT compilers" Vm
        "Compiler arenas: grow during a compilation, shrink after it."
    Symbols "symbols" "symbols and strings" Vm
        "Symbol table and string table."
    VmInternal "vm-internal" "VM internal" Vm
        "Everything else that the VM counts: threads' structures, internal, tracing, logging, NMT itself."
    DirectBuffers "direct-buffers" "direct buffers" Vm
        "Direct byte buffers and other Unsafe memory."
    ImageHeap "image-heap" "image and isolate heap" Vm
        "A native image's image heap and the chunks of its isolates' Java heaps."
    GlibcLive "glibc-live" "glibc, live" Allocator
        "Blocks that the program has allocated and not freed, with malloc's own records, less what the VM counts as its own."
    GlibcRetained "glibc-retained" "glibc, free but kept" Allocator
        "Free chunks on resident pages. The whole pages among them are what malloc_trim would give back."
    GlibcUnknown "glibc-unknown" "glibc, not told apart" Allocator
        "Resident pages of glibc's heaps that could not be walked."
    OtherAllocator "other-allocator" "other allocator" Allocator
        "Memory of jemalloc, split into live and free, and of tcmalloc, mimalloc or musl's malloc, where it is not."
    ThreadStacks "thread-stacks" "thread stacks" Stacks
        "Stacks of threads, with the thread library's records and thread-local storage at their top."
    Libraries "libraries" "libraries and program" Files
        "Code and data of the program and its shared libraries, the data they have written to included."
    MappedFiles "mapped-files" "mapped files" Files
        "Files mapped by the program; clean pages are page cache that the kernel takes back when it needs them."
    SharedMemory "shared-memory" "shared memory" Files
        "tmpfs, memfd, SysV and POSIX shared memory: no disk behind it, counted by every process that maps it."
    Tracker "tracker" "Plimsoll itself" Other
        "What Plimsoll's tracker maps in the target."
    OtherAnonymous "other-anonymous" "other anonymous" Other
        "Anonymous mappings that no source claims: the program's own mmap."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_design() {
        let ids: Vec<_> = LineId::ALL.iter().map(|line| line.id()).collect();
        let design = "java-heap class code-cache gc compiler symbols vm-internal direct-buffers thread-stacks glibc-live \
            glibc-retained glibc-unknown other-allocator image-heap mapped-files libraries shared-memory tracker other-anonymous";
        for id in design.split_ascii_whitespace() {
            assert!(ids.contains(&id), "{id}");
        }
        assert_eq!(ids.len(), design.split_ascii_whitespace().count());
    }
}
