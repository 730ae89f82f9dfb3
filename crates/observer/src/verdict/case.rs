//! What the rules read from a snapshot and its ledger.

use std::collections::BTreeMap;

use super::remedy::remedy;
use super::{Effort, Remedy, Severity};
use crate::ledger::{
    Group, Ledger, LineId, Owner, Piece, ThreadPools, child_of_arenas, child_of_heap, rounding_unknown, thread_names,
};
use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::{
    AllocatorKind, Arena, ArenaKind, Backing, Baseline, BookedCategory, Glibc, HeapPart, HotSpot, Snapshot, Vma,
};
use plimsoll_facts::units::Bytes;
use plimsoll_process::proc::{is_sanitizer, is_trackers_library};
use plimsoll_process::processes::is_segment;
use plimsoll_tracked::books::before;

/// A baseline at least this many seconds old shows whether live blocks grow, and whether free ones stay free.
const SETTLES: f64 = 60.0;

/// Why a program that is started with `plimsoll run` stays untracked, or is tracked in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// No loader reads LD_PRELOAD.
    Static,
    /// The runtime of a sanitizer must be loaded first.
    Sanitizer,
    /// dlmopen or LD_AUDIT: the tracker counts the calls of one C library only.
    TwoLibcs,
    /// Its loader ignores LD_PRELOAD: set-user-ID, file capabilities, a security module.
    Secure,
}

impl Barrier {
    /// The program's property, to follow "it" in a sentence.
    pub fn property(self) -> &'static str {
        match self {
            Barrier::Static => "is static",
            Barrier::Sanitizer => "has a sanitizer in it",
            Barrier::TwoLibcs => "has two C libraries",
            Barrier::Secure => "was started in secure-execution mode (ld.so(8))",
        }
    }
}

#[derive(Clone, Copy)]
pub struct Case<'c> {
    pub snapshot: &'c Snapshot,
    pub ledger: &'c Ledger,
}

impl<'c> Case<'c> {
    pub fn rss(self) -> Bytes {
        self.ledger.rss
    }

    /// RSS without repetition: RSS counts a page once for each of its mappings, this counts it once.
    pub fn distinct_rss(self) -> Bytes {
        self.ledger.distinct
    }

    pub fn resident(self, line: LineId) -> Bytes {
        self.ledger.resident(line)
    }

    /// The line's resident bytes, with each page counted once.
    pub fn distinct(self, line: LineId) -> Bytes {
        self.ledger.distinct(line)
    }

    /// Whether the bytes are large enough, in proportion and absolutely.
    pub(crate) fn matters(self, bytes: Bytes, percent: f64, floor: Bytes) -> bool {
        bytes >= floor && bytes.percent_of(self.distinct_rss()) >= percent
    }

    pub fn vm(self) -> Option<&'c HotSpot> {
        self.snapshot.hotspot.as_ref()
    }

    pub fn glibc(self) -> Option<&'c Glibc> {
        self.snapshot.glibc.as_ref()
    }

    pub fn arenas(self, kind: ArenaKind) -> impl Iterator<Item = &'c Arena> {
        self.glibc().into_iter().flat_map(|glibc| &glibc.arenas).filter(move |arena| arena.kind == kind)
    }

    /// Free bytes on resident pages inside arenas of that kind: never more than in smaps, whatever the walk found.
    pub fn retained(self, kind: ArenaKind) -> Bytes {
        let children = self.ledger.line(LineId::GlibcRetained).into_iter().flat_map(|line| &line.children);
        children.filter(|child| child.name == child_of_arenas(kind)).map(|child| child.resident).sum()
    }

    pub(crate) fn pieces_of(self, line: LineId) -> impl Iterator<Item = &'c Piece> {
        self.ledger.pieces.iter().filter(move |piece| matches!(&piece.owner, Owner::Line(of, _) if *of == line))
    }

    /// The limit, and the figure that counts against it. For `--limit`: RSS with each page counted once. For the
    /// cgroup's limit: its working set.
    pub fn limit(self) -> Option<(Bytes, Bytes)> {
        if let Some(limit) = self.snapshot.limit_requested {
            return Some((limit, self.distinct_rss()));
        }
        let cgroup = self.snapshot.cgroup.as_ref()?;
        Some((cgroup.limit?, cgroup.working_set()))
    }

    /// The severity, by the bytes, by their share of RSS, and by their share of the limit.
    pub fn weight(self, bytes: Bytes) -> Severity {
        let share = bytes.percent_of(self.distinct_rss());
        let of_limit = self.limit().map_or(0.0, |(limit, _)| bytes.percent_of(limit));
        let large = share >= 30.0 || (share >= 15.0 && bytes >= Bytes::mib(64)) || of_limit >= 10.0;
        if large { Severity::Warning } else { Severity::Note }
    }

    /// Like `weight`, for free memory that malloc keeps. V8 frees its buffers in batches at each collection, so memory
    /// that is free right after one is in use again before the next. For V8, only memory that was also free at a
    /// baseline counts. The baseline must be old enough that a collection most likely lies between the two readings.
    pub(crate) fn weight_of_kept(self, bytes: Bytes) -> Severity {
        let baseline = self.settled_baseline();
        match self.frees_in_batches() {
            true => {
                self.weight(bytes.min(baseline.map(|then| then.resident(LineId::GlibcRetained)).unwrap_or_default()))
            }
            false => self.weight(bytes),
        }
    }

    /// The baseline, if it is old enough. The wall clock may have been set since.
    pub(crate) fn settled_baseline(self) -> Option<&'c Baseline> {
        let (time, uptime) = (self.snapshot.time, self.snapshot.process.uptime);
        self.snapshot.baseline.as_ref().filter(|then| then.seconds_until(time, uptime) >= SETTLES)
    }

    pub(crate) fn frees_in_batches(self) -> bool {
        self.snapshot.allocators.iter().any(|known| known.kind == AllocatorKind::V8)
    }

    /// Live malloc blocks outside the VM's books, by allocator: a library may bring one of its own, beside glibc's.
    pub(crate) fn live_blocks(self) -> LiveBlocks {
        let of_glibc =
            LivePart { line: LineId::GlibcLive, kind: AllocatorKind::Glibc, bytes: self.resident(LineId::GlibcLive) };
        let Some(heap) = &self.snapshot.malloc_heap else {
            return LiveBlocks { most: of_glibc, rest: None };
        };
        let name = child_of_heap(heap.kind, HeapPart::Live);
        let parts = self.ledger.line(LineId::OtherAllocator).into_iter().flat_map(|line| &line.children);
        let bytes = parts.filter(|part| part.name == name).map(|part| part.resident).sum();
        let other = LivePart { line: LineId::OtherAllocator, kind: heap.kind, bytes };
        match of_glibc.bytes > other.bytes {
            true => LiveBlocks { most: of_glibc, rest: Some(other) },
            false => LiveBlocks { most: other, rest: Some(of_glibc) },
        }
    }

    /// Upper bound of the VM's own bytes in the live blocks. With NMT, it is what NMT doesn't show: the rounding of
    /// blocks that the walk didn't find. Without NMT, it is what the tracker's books have. Without those, it is a
    /// measured value plus half, and the probable string table (`strings`); see docs/decisions/verdicts.md.
    pub(crate) fn vm_malloc_at_most(self, strings: Bytes) -> Bytes {
        if let Some(vm) = self.vm().filter(|vm| !vm.categories.is_empty()) {
            return rounding_unknown(&vm.categories);
        }
        let unseen = self.vm_malloc_unseen_at_most() + strings;
        let Some(booked) = self.vm_malloc_booked() else { return unseen };
        // The books of an attached tracker lack the blocks from before the attach.
        let (Some(glibc), Some([earlier, later])) = (self.glibc(), self.snapshot.attached) else { return booked };
        let before = before(glibc, earlier, later);
        booked + unseen.min(before.live + before.error)
    }

    /// The VM's own blocks in the tracker's books. None without them.
    fn vm_malloc_booked(self) -> Option<Bytes> {
        /// The VM's own categories that have no line. docs/categories.md has all names.
        const VM_S: [&str; 15] = [
            "Thread",
            "Internal",
            "Native Memory Tracking",
            "Arena Chunk",
            "Tracing",
            "Logging",
            "Statistics",
            "Arguments",
            "Safepoint",
            "Synchronization",
            "Serviceability",
            "Object Monitors",
            "Heap Dump",
            "Test",
            "jvmstat",
        ];
        let is_its = |name: &str| match LineId::of_vm_category(name) {
            Some(line) => line != LineId::DirectBuffers,
            None => VM_S.contains(&name),
        };
        let booked = self.booked_categories()?.iter();
        Some(booked.filter(|category| is_its(&category.name)).map(BookedCategory::chunks).sum())
    }

    /// None: the tracker doesn't count, or its books could not be read.
    fn booked_categories(self) -> Option<&'c [BookedCategory]> {
        Some(self.snapshot.booked_categories.as_slice()).filter(|all| self.is_tracked() && !all.is_empty())
    }

    /// Whether the tracker's books show which live blocks are the VM's own.
    pub(crate) fn has_tracker_books(self) -> bool {
        self.booked_categories().is_some()
    }

    /// Bytes of the live blocks of a category in the tracker's books, with their chunks.
    pub(crate) fn booked(self, name: &str) -> Option<Bytes> {
        let all = self.booked_categories()?.iter();
        Some(all.filter(|category| category.name == name).map(BookedCategory::chunks).sum())
    }

    /// The number of live blocks of a category, if the tracker saw each block of the process.
    pub(crate) fn booked_count(self, name: &str) -> Option<u64> {
        let all = self.booked_categories().filter(|_| self.snapshot.attached.is_none())?.iter();
        Some(all.filter(|category| category.name == name).fold(0, |sum, one| sum.saturating_add(one.live_count)))
    }

    /// Upper bound of the VM's own blocks by its size, as measured.
    fn vm_malloc_unseen_at_most(self) -> Bytes {
        let metadata = self.resident(LineId::Class) + self.resident(LineId::CodeCache);
        let threads = Bytes::kib(64).scaled(self.snapshot.threads.len() as u64, 1);
        Bytes::mib(16) + Bytes(metadata.0 / 2) + Bytes(self.resident(LineId::JavaHeap).0 / 64) + threads
    }

    /// Whether the VM's books (NMT) show which live blocks are its own.
    pub(crate) fn has_vm_books(self) -> bool {
        self.vm().is_some_and(|vm| !vm.categories.is_empty())
    }

    /// A variable of the process's environment.
    pub(crate) fn variable(self, name: &str) -> Option<&'c str> {
        let environment = &self.snapshot.process.environment;
        environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether the tracker counts in the process: then its books, in the segment, name the callers.
    pub fn is_tracked(self) -> bool {
        self.has_segment() && !self.snapshot.is_detached
    }

    /// Whether the tracker is in the process, but has made no books: a child of fork() makes them when it first
    /// allocates. An attach makes them at once, with the blocks from before the fork.
    pub(crate) fn lacks_books(self) -> bool {
        let has_library = self.snapshot.vmas.iter().any(|vma| is_trackers_library(&vma.name));
        has_library && !self.has_segment() && self.can_be_attached_to()
    }

    fn has_segment(self) -> bool {
        self.snapshot.vmas.iter().any(|vma| is_segment(&vma.name))
    }

    /// Why a restart under the tracker would track nothing, or only a part.
    pub fn barrier(self) -> Option<Barrier> {
        if self.loads_no_library() {
            return Some(Barrier::Static);
        }
        if self.snapshot.vmas.iter().any(|vma| is_sanitizer(&vma.name)) {
            return Some(Barrier::Sanitizer);
        }
        if self.has_two_libcs() {
            return Some(Barrier::TwoLibcs);
        }
        self.snapshot.process.is_secure.then_some(Barrier::Secure)
    }

    /// Whether another copy of the C library's code is mapped.
    fn has_two_libcs(self) -> bool {
        let allocators = &self.snapshot.allocators;
        let is_libc = |name: &str| {
            allocators.iter().any(|known| known.kind == AllocatorKind::Glibc && known.path == name)
                && self.snapshot.process.executable.as_deref() != Some(name)
        };
        let mut code = self.snapshot.vmas.iter().filter(|vma| vma.executable && vma.inode != 0 && is_libc(&vma.name));
        let Some(first) = code.next() else { return false };
        // mprotect divides the code of one copy, whose parts lie at different offsets.
        code.any(|vma| vma.name != first.name || vma.offset == first.offset)
    }

    /// Whether the program is static, so that no loader reads LD_PRELOAD: all code from files is in its own file. The
    /// kernel maps the loader of any other program.
    pub(crate) fn is_static(self) -> bool {
        let Some(program) = &self.snapshot.process.executable else { return false };
        let mut files = self.snapshot.vmas.iter().filter(|vma| vma.executable && vma.inode != 0).peekable();
        files.peek().is_some() && files.all(|vma| vma.name == *program)
    }

    /// Go's runtime and packages call the kernel past libc, and thus past the tracker's hooks.
    pub fn is_go(self) -> bool {
        self.snapshot.allocators.iter().any(|known| known.kind == AllocatorKind::Go)
    }

    /// Whether malloc's blocks may be among the program's own mappings: malloc's memory could not be read, and each
    /// large block is a mapping. Go doesn't allocate with malloc.
    pub fn may_hide_blocks(self) -> bool {
        let is_refused = || self.snapshot.gaps.iter().any(|gap| gap.source == Source::Glibc);
        self.glibc().is_none() && !self.is_go() && is_refused()
    }

    /// Whether its malloc is musl's: then the tracker can only be loaded at the start.
    pub(crate) fn is_musl(self) -> bool {
        let walked = self.snapshot.malloc_heap.iter().map(|heap| heap.kind);
        let known = self.snapshot.allocators.iter().map(|known| known.kind);
        walked.chain(known).any(|kind| kind == AllocatorKind::Musl)
    }

    /// Whether no restart would load the tracker into this program: it must be linked dynamically first.
    pub(crate) fn loads_no_library(self) -> bool {
        let has_library = || self.snapshot.allocators.iter().any(|known| known.kind == AllocatorKind::Musl);
        self.is_static() || (self.is_musl() && !has_library())
    }

    /// How to find the callers of memory outside the VM's lines: the existing books, an attach, or a restart.
    pub fn name_the_callers(self) -> Remedy {
        let pid = self.pid();
        if self.is_tracked() {
            let how = format!("plimsoll report {pid} --by site");
            return remedy(Effort::Now, "see the calls that hold it", how, "");
        }
        if self.lacks_books() {
            let how = format!("plimsoll attach {pid} && plimsoll report {pid} --by site");
            let what =
                "let the tracker, which is in the process already, make its books, and see the calls that hold it";
            return remedy(Effort::Now, what, how, "");
        }
        let closed = matches!(self.barrier(), Some(Barrier::Static | Barrier::Sanitizer));
        if closed || self.is_musl() {
            return self.start_tracked("start it with the tracker, and see the calls that hold it");
        }
        if (self.is_jvm() && !self.refuses_agents()) || self.can_be_attached_to() {
            let how = format!("plimsoll attach {pid} && sleep 60 && plimsoll report {pid} --by site");
            let lines = if self.is_jvm() { ", Java lines included," } else { "" };
            let what = format!("name the calls{lines} that allocate from now on");
            return remedy(Effort::Now, what, how, self.cost_of_attach());
        }
        self.start_tracked("start it with the tracker, and see the calls that hold it")
    }

    /// Who mapped memory that no source claims.
    pub(crate) fn name_the_mapper(self) -> Remedy {
        if !self.is_go() {
            return self.name_the_callers();
        }
        self.start_below(
            "strace -f -k --seccomp-bpf -e trace=mmap,mremap",
            "see the stack of each mapping call: Go makes them past libc, where the tracker can't see them",
            "then: look for the large lengths, the second argument of mmap",
            "strace prints on standard error; it stops the program at each of these calls, at each new thread and at each signal",
        )
    }

    /// Which calls a burst of allocations belongs to. Free blocks have no caller, so only a burst that the tracker saw
    /// has an answer. Empty if it can't be loaded.
    pub(crate) fn callers_of_a_burst(self) -> Vec<String> {
        let pid = self.pid();
        let report = format!("plimsoll report {pid} --by site --measure peak");
        if self.is_tracked() {
            return vec!["the calls that held most at their peak, since the tracker counts:".to_owned(), report];
        }
        let is_sanitized = self.barrier() == Some(Barrier::Sanitizer);
        let takes_tracker = (self.is_jvm() && !self.refuses_agents()) || self.can_be_attached_to();
        if self.is_musl() || is_sanitized || !takes_tracker {
            return Vec::new();
        }
        let why = "free memory has no caller. For the calls of the next burst, type the first line before it, the second after it:";
        vec![why.to_owned(), format!("plimsoll attach {pid}"), report]
    }

    /// How to find out whether a JVM's live blocks are a leak: who allocates them, whether they become more, and
    /// whether a collection frees them. After one step was taken (an attach), the others remain.
    pub(crate) fn settle_blocks(self) -> Vec<Remedy> {
        let first = match self.is_tracked() {
            true => [self.name_what_grows(), self.name_the_callers()],
            false => [self.name_the_callers(), self.compare_readings()],
        };
        first.into_iter().chain(self.collect()).collect()
    }

    /// Whether the VM takes jcmd's commands, as far as is known. With -Xrs the signal of an older jcmd ends it. If
    /// another VM's socket has the name, that VM would take them: jcmd doesn't check who listens.
    pub(crate) fn takes_commands(self) -> bool {
        const REFUSALS: [&str; 3] = [
            "-XX:+DisableAttachMechanism",
            "doesn't catch SIGQUIT",
            "another VM's file has the name of its attach socket",
        ];
        let refuses = |reason: &str| REFUSALS.iter().any(|refusal| reason.contains(refusal));
        !self.snapshot.gaps.iter().any(|gap| gap.source == Source::HotSpot && refuses(&gap.reason))
    }

    /// Whether `jcmd PID GC.run` collects. With -XX:+DisableExplicitGC it doesn't in JDK 8 (SystemGCDCmd::execute in
    /// diagnosticCommand.cpp), nor with Shenandoah (shenandoahControlThread.cpp).
    pub(crate) fn collects_on_demand(self) -> bool {
        let obeys = |vm: &HotSpot| vm.jdk().is_some_and(|jdk| jdk > 8) && vm.collector.as_deref() != Some("Shenandoah");
        self.flag("DisableExplicitGC") != Some("true") || self.vm().is_some_and(obeys)
    }

    /// A collection, and how to read its outcome. None: the VM ignores the command, and nothing would follow from it.
    /// After the collection, threads of the program still free what cleaners and finalizers release.
    pub(crate) fn collect(self) -> Option<Remedy> {
        if !self.collects_on_demand() {
            return None;
        }
        let (pid, LivePart { line, bytes: live, .. }) = (self.pid(), self.live_blocks().most);
        let (what, live) = match self.ledger.line(line) {
            Some(line) if line.id == LineId::OtherAllocator => (format!("what is live in '{}'", line.label()), live),
            Some(line) => (format!("the line '{}'", line.name), line.resident),
            None => ("the live blocks".to_owned(), live),
        };
        Some(remedy(
            Effort::Now,
            "see whether objects that own it are waiting to be collected",
            format!("jcmd {pid} GC.run && sleep 10 && plimsoll explain {pid}"),
            format!(
                "compare {what}, now {live}: if it falls, the blocks waited for a collection; if it stays, their \
                 owners are reachable, as in a leak. A smaller RSS alone may be the Java heap's. A full collection pauses the \
                 program"
            ),
        ))
    }

    /// How to find out whether live blocks are a leak, and who allocated them: by the calls whose blocks increase, or
    /// by two readings.
    pub(crate) fn name_what_grows(self) -> Remedy {
        let pid = self.pid();
        let compare = format!(
            "plimsoll report {pid} --by site --format json -o before.json && sleep 600 && plimsoll diff before.json {pid} --by site"
        );
        const WHAT: &str = "name the calls whose blocks become more in ten minutes under load";
        if self.is_tracked() {
            return remedy(Effort::Now, WHAT, compare, "");
        }
        if self.can_be_attached_to() {
            let how = format!("plimsoll attach {pid} && {compare}");
            return remedy(Effort::Now, WHAT, how, self.cost_of_attach());
        }
        self.compare_readings()
    }

    /// Two readings: a cache and data in use stop growing at their bound, a leak doesn't.
    pub(crate) fn compare_readings(self) -> Remedy {
        let pid = self.pid();
        remedy(
            Effort::Now,
            "compare two readings under load, an hour apart or more: memory in use stops growing at its bound, a leak doesn't",
            format!(
                "plimsoll explain {pid} --format json > baseline.json && sleep 3600 && plimsoll explain {pid} --baseline baseline.json"
            ),
            "",
        )
    }

    /// Pools of threads, ordered by the bytes of their stacks, largest first.
    pub(crate) fn thread_pools(self) -> Vec<ThreadPool> {
        let names = thread_names(self.snapshot);
        let known = ThreadPools::of(names.iter().copied());
        let mut pools = BTreeMap::<String, ThreadPool>::new();
        for name in names {
            let name = known.pool(name);
            let instances = known.instances(&name);
            let pool = pools.entry(name.clone()).or_insert(ThreadPool { name, threads: 0, instances, stack: Bytes(0) });
            pool.threads += 1;
        }
        for piece in self.pieces_of(LineId::ThreadStacks) {
            let Owner::Line(_, name) = &piece.owner else { continue };
            if let Some(pool) = pools.get_mut(name) {
                pool.stack += piece.resident;
            }
        }
        let mut pools: Vec<ThreadPool> = pools.into_values().collect();
        pools.sort_by(|one, other| (other.stack, other.threads, &one.name).cmp(&(one.stack, one.threads, &other.name)));
        pools
    }

    /// Number of CPUs that the process may use: the cgroup's quota, or the CPUs that it may run on.
    pub fn cpus(self) -> Option<u64> {
        let quota = self.snapshot.cgroup.as_ref().and_then(|cgroup| cgroup.cpu_quota).map(|cpus| cpus.ceil() as u64);
        let allowed = self.snapshot.process.cpus_allowed;
        let fewest = [quota, allowed].into_iter().flatten().min();
        fewest.or(Some(self.snapshot.host.cpus_online)).filter(|cpus| *cpus > 0)
    }

    /// Whether Netty is used: its buffers come from memory that `-XX:MaxDirectMemorySize` and NIO's own settings don't
    /// limit.
    pub(crate) fn has_netty(self) -> bool {
        let names = thread_names(self.snapshot);
        let has_jar = |jar: &String| {
            let file = jar.rsplit('/').next().unwrap_or_default();
            file.starts_with("netty-buffer") || file.starts_with("netty-all")
        };
        ["nioEventLoop", "epollEventLoop", "kqueueEventLoop", "reactor-http"]
            .iter()
            .any(|mark| names.iter().any(|name| name.contains(mark)))
            || self.snapshot.jars.iter().any(has_jar)
    }

    pub fn flag(self, name: &str) -> Option<&'c str> {
        self.vm()?.flags.iter().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str())
    }

    /// How a line changed since the baseline, or how to take one: a sentence, and each command by itself.
    pub(crate) fn growth(self, line: LineId) -> Vec<String> {
        let Some(baseline) = &self.snapshot.baseline else {
            return self.take_baseline("One reading can't tell growth from use");
        };
        let ago = ago(baseline.seconds_until(self.snapshot.time, self.snapshot.process.uptime));
        let then = baseline.resident(line);
        vec![match self.ledger.change_since(baseline, line) {
            0 => format!("Unchanged since the baseline, {ago} ago."),
            change if then > Bytes(0) && Bytes(change.unsigned_abs()).percent_of(then) < 1.0 => {
                format!("Changed by less than 1 % since the baseline, {ago} ago.")
            }
            change => {
                let (more, by) = (if change < 0 { "Shrank" } else { "Grew" }, Bytes(change.unsigned_abs()));
                format!("{more} by {by} since the baseline, {ago} ago (it was {then}).")
            }
        }]
    }

    fn take_baseline(self, why: &str) -> Vec<String> {
        let pid = self.pid();
        vec![
            format!("{why}. For two, type the first line now and the second one later:"),
            format!("plimsoll explain {pid} --format json > baseline.json"),
            format!("plimsoll explain {pid} --baseline baseline.json"),
        ]
    }

    /// What is known about growth of the whole process.
    pub(crate) fn over_time(self) -> Vec<String> {
        let pid = self.pid();
        let Some(baseline) = &self.snapshot.baseline else {
            let mut lines = self.take_baseline("one reading can't show growth");
            lines.push(format!("plimsoll record {pid} -o plimsoll-{pid}.jfr   # or this, once: until Ctrl-C"));
            return lines;
        };
        let ago = ago(baseline.seconds_until(self.snapshot.time, self.snapshot.process.uptime));
        vec![match self.ledger.rss_change_since(baseline) {
            0 => format!("RSS is unchanged since the baseline, {ago} ago"),
            change => {
                let (verb, by) = (if change < 0 { "shrank" } else { "grew" }, Bytes(change.unsigned_abs()));
                format!("RSS {verb} by {by} since the baseline, {ago} ago")
            }
        }]
    }

    pub fn is_jvm(self) -> bool {
        self.vm().is_some()
    }

    /// Whether an argument or an agent variable mentions `word`.
    pub(crate) fn started_with(self, word: &str) -> bool {
        let process = &self.snapshot.process;
        process.command.iter().chain(process.environment.iter().map(|(_, value)| value)).any(|text| text.contains(word))
    }

    pub fn pid(self) -> u32 {
        self.snapshot.process.pid
    }

    pub fn group(self, group: Group) -> Bytes {
        self.ledger.group(group)
    }

    /// Addresses of memory: those of devices and of the kernel's buffers never count in RSS, touched or not.
    pub fn address_space(self) -> Bytes {
        let is_memory = |vma: &&Vma| vma.backing != Backing::Device && !vma.is_kernels_buffer();
        self.snapshot.vmas.iter().filter(is_memory).map(|vma| vma.range.length()).sum()
    }
}

/// Live blocks of one allocator.
#[derive(Clone, Copy)]
pub(crate) struct LivePart {
    /// The line that contains them.
    pub line: LineId,
    pub kind: AllocatorKind,
    /// Their resident bytes.
    pub bytes: Bytes,
}

#[derive(Clone, Copy)]
pub(crate) struct LiveBlocks {
    /// The allocator that has most of them.
    pub most: LivePart,
    pub rest: Option<LivePart>,
}

impl LiveBlocks {
    pub(crate) fn parts(self) -> impl Iterator<Item = LivePart> {
        [self.most].into_iter().chain(self.rest)
    }

    pub(crate) fn bytes(self) -> Bytes {
        self.parts().map(|part| part.bytes).sum()
    }
}

/// Threads whose names differ only in numbers.
pub(crate) struct ThreadPool {
    pub name: String,
    pub threads: usize,
    /// Number of pools with that name; an earlier number in the threads' names distinguishes them.
    pub instances: usize,
    /// Resident bytes of their stacks.
    pub stack: Bytes,
}

/// A text like `40 s`, `12 min`, `3.2 h`.
pub fn ago(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 1.0 => "less than a second".to_owned(),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
