//! Writes the state of a process at one moment as the events of one instant.
//!
//! ```text
//! Σ LedgerLine.resident (with the remainder) = Ledger.rss                     whenever smaps was read
//! Σ NativeMemoryUsage = NativeMemoryUsageTotal                                each interval
//! Σ last Category of each name = Total                                        each interval; only changed ones are written
//! Σ Site = Total, of blocks (all but the biggest share one event without a stack)      in full instants
//! ```

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use plimsoll_facts::ending::{GROUP_KILL, Oom, UNSEEN};
use plimsoll_facts::gap::Gap;
use plimsoll_facts::snapshot::{ArenaKind, Cgroup, NmtCategory, Pressure, Snapshot, Vma};
use plimsoll_facts::units::Bytes;
use plimsoll_jfr::writer::{Batch, Stack};
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::verdict::{Severity, Verdict, VerdictId};
use plimsoll_tracked::books::{Books, Category, Figures};
use plimsoll_tracked::segment::Life;

use super::events as e;

/// Sites with an event of their own: those with the most live bytes. The others share one event.
pub const MOST_SITES: usize = 200;

/// What is known of a process at one moment. A part that is `None` or empty has no events.
#[derive(Clone, Copy, Default)]
pub struct Instant<'a> {
    /// Resident bytes now and at their peak; from /proc/PID/status if this instant has no ledger.
    pub rss: Option<(Bytes, Bytes)>,
    pub cgroup: Option<&'a Cgroup>,
    pub ledger: Option<(&'a Snapshot, &'a Ledger)>,
    pub verdicts: &'a [Verdict],
    pub books: Option<&'a Books>,
    /// Sites of the same moment as the books; empty if they were read at another moment.
    pub sites: &'a [Site],
    pub pressure: Option<Pressure>,
    /// Whether to write what full instants alone have: sites, peaks, arenas.
    pub full: bool,
    pub end: Option<&'a TargetEnd>,
    pub cost: Cost,
    pub provenance_age: Duration,
}

/// A call stack that allocates, and what it holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    pub stack: Stack,
    pub category: String,
    pub figures: Figures,
    /// Bound of the error of `live`.
    pub error: Bytes,
}

/// What the recorder itself spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub cpu: Duration,
    pub reading: Duration,
    pub mmap_lock: Duration,
    pub missed: u64,
}

/// How the target ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetEndKind {
    /// Only the parent of a process knows its status.
    Code(i32),
    Signal(i32),
    /// The segment says that the process ran its exit handlers.
    Exited,
    /// The process did not run its exit handlers.
    Killed,
    /// The process was neither tracked nor our child.
    Unknown,
}

/// The end of the target, as far as the recorder knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetEnd {
    pub how: TargetEndKind,
    /// Without a status, `InGroup` is about the last seconds.
    pub oom: Oom,
    /// ns since 1970.
    pub last_sign_ns: Option<u64>,
}

/// What the chunk already holds, so that it is written again only after a change.
#[derive(Default)]
pub struct ChunkContents {
    target: DescribedTarget,
    verdicts: Vec<(VerdictId, Severity, Bytes)>,
    gaps: Vec<Gap>,
    /// Hash of the mapped objects.
    libraries: Option<u64>,
    /// Figures and origin. Default figures mean: write the category again.
    categories: HashMap<String, (Figures, &'static str)>,
    highest: Highest,
}

/// The highest reserved and committed mappings that this recording has read. The tracker keeps no peaks of thread stacks,
/// libraries and its own cost, and so none of the total.
#[derive(Default)]
struct Highest {
    /// The start of the books. Later books have their own peaks.
    since_ns: u64,
    total: (Bytes, Bytes),
    categories: HashMap<String, (Bytes, Bytes)>,
}

impl Highest {
    fn note(&mut self, books: &Books) {
        if self.since_ns != books.process.since_ns {
            *self = Highest { since_ns: books.process.since_ns, ..Highest::default() };
        }
        let higher = |of: (Bytes, Bytes), f: &Figures| (of.0.max(f.peak_reserved), of.1.max(f.peak_committed));
        self.total = higher(self.total, &books.total);
        for category in &books.categories {
            // Few readings have a new name.
            if !self.categories.contains_key(&category.name) {
                self.categories.insert(category.name.clone(), Default::default());
            }
            if let Some(highest) = self.categories.get_mut(&category.name) {
                *highest = higher(*highest, &category.figures);
            }
        }
    }
}

/// The facts of the target that are written at the beginning of each chunk, and after a change.
#[derive(Clone, Debug, Default)]
pub struct DescribedTarget {
    pub pid: u32,
    pub command: String,
    pub executable: String,
    pub runtime: &'static str,
    pub runtime_version: String,
    pub mode: &'static str,
    pub interval: Duration,
    /// The command that names the callers of what it allocates.
    pub callers: String,
}

impl Instant<'_> {
    /// Writes the events of this instant. `written` is what the chunk has already. `target` is written at the beginning
    /// of each chunk, and after a change.
    pub fn write(&self, batch: &mut Batch<'_>, written: &mut ChunkContents, target: &DescribedTarget) {
        if batch.opens_chunk {
            let categories = std::mem::take(&mut written.categories);
            let highest = std::mem::take(&mut written.highest);
            *written = ChunkContents { categories, highest, ..ChunkContents::default() };
        }
        // Write it again after an exec, or after a launcher has loaded a VM.
        let is = |of: &DescribedTarget| {
            (of.executable.clone(), of.runtime, of.runtime_version.clone(), of.mode, of.callers.clone())
        };
        if batch.opens_chunk || is(&written.target) != is(target) {
            written.target = target.clone();
            written.categories.values_mut().for_each(|last| last.0 = Figures::default());
            written.libraries = None;
            self.target(batch, target);
        }
        if let Some((snapshot, ledger)) = self.ledger {
            self.lines(batch, snapshot, ledger);
            libraries(batch, snapshot, written);
            if self.full {
                arenas(batch, snapshot);
            }
        }
        if let Some((size, peak)) = self.rss {
            e::ResidentSetSize { size, peak: peak.max(size) }.write(batch);
        }
        if let Some(cgroup) = self.cgroup {
            limit(batch, cgroup);
        }
        if let Some(pressure) = self.pressure {
            e::Pressure {
                scope: if pressure.of_cgroup { "cgroup" } else { "system" },
                some: pressure.some,
                full: pressure.full,
                some_total: ns(pressure.some_total),
                full_total: ns(pressure.full_total),
            }
            .write(batch);
        }
        match self.books {
            Some(books) => self.books(batch, books, written),
            None => self.vm(batch),
        }
        self.judgement(batch, written);
        if let Some(end) = self.end {
            end.write(batch);
        }
        e::Recorder {
            cpu: ns(self.cost.cpu),
            reading: ns(self.cost.reading),
            mmap_lock: ns(self.cost.mmap_lock),
            missed: self.cost.missed,
        }
        .write(batch);
    }

    fn target(&self, batch: &mut Batch<'_>, target: &DescribedTarget) {
        e::Target {
            pid: u64::from(target.pid),
            command: &target.command,
            executable: &target.executable,
            runtime: target.runtime,
            runtime_version: &target.runtime_version,
            mode: target.mode,
            interval: ns(target.interval),
            callers: &target.callers,
            plimsoll: env!("CARGO_PKG_VERSION"),
        }
        .write(batch);
    }

    fn lines(&self, batch: &mut Batch<'_>, snapshot: &Snapshot, ledger: &Ledger) {
        e::Ledger {
            rss: ledger.rss,
            remainder: ledger.remainder,
            swap: snapshot.process.swap,
            mappings: snapshot.vmas.len() as u64,
            threads: snapshot.process.thread_count,
            provenance_age: ns(self.provenance_age),
        }
        .write(batch);
        for line in &ledger.lines {
            e::LedgerLine {
                line: line.id.id(),
                resident: line.resident,
                reserved: line.reserved,
                committed: line.committed,
                error: line.error,
                grade: line.grade.name(),
            }
            .write(batch);
        }
        let zero = Bytes::ZERO;
        e::LedgerLine {
            line: "remainder",
            resident: ledger.remainder,
            reserved: zero,
            committed: zero,
            error: zero,
            grade: "exact",
        }
        .write(batch);
    }

    /// Writes the tracker's books. In HotSpot's events a block is reserved and committed with its usable bytes.
    fn books(&self, batch: &mut Batch<'_>, books: &Books, written: &mut ChunkContents) {
        let t = &books.total;
        written.highest.note(books);
        e::Total {
            live: t.live,
            live_count: t.live_count,
            requested: t.requested,
            peak: t.peak,
            count_at_peak: t.count_at_peak,
            peak_time: t.peak_time_ns.map(|ns| ns / 1_000_000),
            peak_error: books.peak_error,
            cumulative: t.cumulative,
            cumulative_count: t.cumulative_count,
            reserved: t.reserved,
            committed: t.committed,
            own: books.own.bytes(),
        }
        .write(batch);
        e::NativeMemoryUsageTotal { reserved: t.live + t.reserved, committed: t.live + t.committed }.write(batch);
        for category in books.categories.iter().filter(|category| !category.figures.is_empty()) {
            let f = &category.figures;
            let name = &category.name;
            // An event takes 25 bytes, and few of a JVM's 30 categories change from one second to the next.
            let now = (*f, category.kind.name());
            if self.full || written.categories.get(name) != Some(&now) {
                written.categories.insert(name.clone(), now);
                category_event(batch, name, now);
            }
            e::NativeMemoryUsage { category: name, reserved: f.live + f.reserved, committed: f.live + f.committed }
                .write(batch);
            if self.full {
                let (peak_reserved, peak_committed) = written.highest.categories.get(name).copied().unwrap_or_default();
                e::NativeMemoryUsagePeak {
                    duration: 0,
                    event_thread: (),
                    stack_trace: None,
                    category: name,
                    peak_reserved: f.peak + peak_reserved,
                    peak_committed: f.peak + peak_committed,
                    count_at_peak: f.count_at_peak,
                }
                .write(batch);
            }
        }
        // The category is gone (after an exec, or with new books): write zeros once, or readers would keep its last
        // figures.
        written.categories.retain(|name, (_, origin)| {
            let has = |category: &Category| category.name == *name && !category.figures.is_empty();
            let stays = books.categories.iter().any(has);
            if !stays {
                let zero = Bytes::ZERO;
                category_event(batch, name, (Figures::default(), origin));
                e::NativeMemoryUsage { category: name, reserved: zero, committed: zero }.write(batch);
            }
            stays
        });
        if self.full {
            let (peak_reserved, peak_committed) = written.highest.total;
            e::NativeMemoryUsageTotalPeak {
                duration: 0,
                event_thread: (),
                stack_trace: None,
                peak_reserved: t.peak + peak_reserved,
                peak_committed: t.peak + peak_committed,
                count_at_peak: t.count_at_peak,
            }
            .write(batch);
            sites(batch, self.sites);
        }
    }

    /// Without the tracker: writes what the VM's own NMT reports.
    fn vm(&self, batch: &mut Batch<'_>) {
        let categories = self.ledger.map_or(&[][..], |(snapshot, _)| snapshot.vm_categories());
        // Written only in the instant in which the VM was queried.
        if categories.is_empty() || !self.provenance_age.is_zero() {
            return;
        }
        let sum = |of: fn(&NmtCategory) -> Bytes| categories.iter().map(of).sum();
        e::NativeMemoryUsageTotal { reserved: sum(|c| c.reserved), committed: sum(|c| c.committed) }.write(batch);
        for category in categories {
            let NmtCategory { name, reserved, committed, .. } = category;
            e::NativeMemoryUsage { category: name, reserved: *reserved, committed: *committed }.write(batch);
        }
    }

    fn judgement(&self, batch: &mut Batch<'_>, written: &mut ChunkContents) {
        if self.ledger.is_none() && self.books.is_none() {
            return;
        }
        let verdicts: Vec<_> =
            self.verdicts.iter().map(|verdict| (verdict.id, verdict.severity, verdict.bytes)).collect();
        let is_other = || {
            let name = |(id, severity, _): &(VerdictId, Severity, Bytes)| (*id, *severity);
            !verdicts.iter().map(name).eq(written.verdicts.iter().map(name))
        };
        // In a full instant, verdicts are written again if bytes moved by more than a sixteenth. Smaller steps would
        // fill a recording of a year.
        let moved = || {
            let both = verdicts.iter().zip(&written.verdicts);
            self.full && both.into_iter().any(|(now, last)| now.2.abs_diff(last.2) > Bytes(last.2.0 / 16))
        };
        if self.ledger.is_some() && (is_other() || moved()) {
            written.verdicts = verdicts;
            for verdict in self.verdicts {
                let (least, most) = verdict.saving().unwrap_or_default();
                e::Verdict {
                    verdict: verdict.id.id(),
                    severity: verdict.severity.name(),
                    bytes: verdict.bytes,
                    summary: &verdict.summary,
                    // A sentence that ends with a colon is followed by its command.
                    evidence: &verdict.evidence.join("; ").replace(":; ", ": "),
                    saving_least: least,
                    saving_most: most,
                    remedy: verdict.remedies.first().map_or("", |remedy| &remedy.how),
                }
                .write(batch);
            }
        }
        let of_snapshot = self.ledger.map(|(snapshot, _)| snapshot.gaps.as_slice()).unwrap_or_default();
        let of_books = self.books.map(|books| books.gaps.as_slice()).unwrap_or_default();
        for gap in of_snapshot.iter().chain(of_books) {
            // Compared by source and effect only: a reason may contain a number that changes.
            if written.gaps.iter().any(|one| one.source == gap.source && one.effect == gap.effect) {
                continue;
            }
            written.gaps.push(gap.clone());
            let Gap { source, reason, effect, remedy } = gap;
            e::Gap { source: source.name(), reason, effect, remedy }.write(batch);
        }
    }
}

impl TargetEnd {
    fn write(&self, batch: &mut Batch<'_>) {
        let killed = |by: i32| match by {
            9 if self.oom == Oom::Yes => "killed by the kernel: the cgroup's memory limit was reached".to_owned(),
            signal => format!("killed by signal {signal}"),
        };
        let (state, how, exit_code, signal) = match self.how {
            TargetEndKind::Code(code) => ("exited", format!("exited with status {code}"), code, 0),
            TargetEndKind::Signal(signal) => ("killed", killed(signal), -1, signal),
            TargetEndKind::Exited => {
                ("exited", "ran its exit handlers; only its parent knows its exit status".to_owned(), -1, 0)
            }
            TargetEndKind::Killed | TargetEndKind::Unknown if self.oom == Oom::Yes => ("killed", killed(9), -1, 9),
            TargetEndKind::Killed => {
                ("killed", "ended without running its exit handlers: by _exit, a signal or exec".to_owned(), -1, -1)
            }
            TargetEndKind::Unknown => (UNSEEN, "ended; only its parent knows how".to_owned(), -1, -1),
        };
        let how = match self.oom {
            Oom::InGroup => format!("{how}; {GROUP_KILL}"),
            _ => how,
        };
        e::TargetEnd {
            state,
            how: &how,
            exit_code,
            signal,
            oom_killed: matches!(self.oom, Oom::Yes | Oom::InGroup),
            last_sign: self.last_sign_ns.map(|ns| ns / 1_000_000),
        }
        .write(batch);
    }
}

impl TargetEnd {
    /// How a process ended, from the segment that it left.
    pub fn of(life: Life) -> TargetEndKind {
        match life {
            Life::Exited => TargetEndKind::Exited,
            // Nothing tracked the process after the detach.
            Life::Detached => TargetEndKind::Unknown,
            Life::Killed | Life::Live => TargetEndKind::Killed,
        }
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn category_event(batch: &mut Batch<'_>, name: &str, (f, origin): (Figures, &'static str)) {
    e::Category {
        category: name,
        origin,
        live: f.live,
        live_count: f.live_count,
        requested: f.requested,
        peak: f.peak,
        count_at_peak: f.count_at_peak,
        cumulative: f.cumulative,
        cumulative_count: f.cumulative_count,
        reserved: f.reserved,
        committed: f.committed,
    }
    .write(batch);
}

fn limit(batch: &mut Batch<'_>, cgroup: &Cgroup) {
    e::Cgroup {
        path: &cgroup.limit_path,
        limited: cgroup.limit.is_some(),
        limit: cgroup.limit.unwrap_or_default(),
        charged: cgroup.charged,
        working_set: cgroup.working_set(),
        peak: cgroup.peak.unwrap_or_default().max(cgroup.charged),
        anonymous: cgroup.stat.anon,
        file: cgroup.stat.file,
        kernel: cgroup.stat.kernel,
        sock: cgroup.stat.sock,
        limit_hits: cgroup.oom.max,
        oom_kills: cgroup.oom.oom_kill,
    }
    .write(batch);
}

fn arenas(batch: &mut Batch<'_>, snapshot: &Snapshot) {
    for arena in snapshot.glibc.iter().flat_map(|glibc| &glibc.arenas) {
        e::Arena {
            address: arena.address,
            kind: if arena.kind == ArenaKind::Main { "main" } else { "thread" },
            reserved: arena.reserved,
            live: arena.live,
            live_count: arena.live_count,
            retained: arena.free(),
            live_resident: arena.live_resident,
            retained_resident: arena.free_resident,
            trimmable: arena.trimmable,
            threads: arena.attached_threads,
        }
        .write(batch);
    }
}

/// Writes the mapped objects with code, each from its first mapping to its last: in each chunk, and again when they have
/// changed.
fn libraries(batch: &mut Batch<'_>, snapshot: &Snapshot, written: &mut ChunkContents) {
    let code = |vma: &&Vma| vma.executable && vma.inode != 0;
    let mut hash = DefaultHasher::new();
    for vma in snapshot.vmas.iter().filter(code) {
        (&vma.name, vma.inode, vma.range.start).hash(&mut hash);
    }
    let now = Some(hash.finish());
    if now == written.libraries {
        return;
    }
    written.libraries = now;
    let mut extents: HashMap<(&str, u64), (_, _)> = HashMap::new();
    for vma in snapshot.vmas.iter().filter(|vma| vma.inode != 0) {
        let extent = extents.entry((&vma.name, vma.inode)).or_insert((vma.range.start, vma.range.end));
        extent.1 = vma.range.end;
    }
    for vma in snapshot.vmas.iter().filter(code) {
        if let Some((base, top)) = extents.remove(&(vma.name.as_str(), vma.inode)) {
            e::NativeLibrary { name: &vma.name, base, top }.write(batch);
        }
    }
}

fn sites(batch: &mut Batch<'_>, sites: &[Site]) {
    // An event has figures of blocks only: of a site that maps memory, all are 0.
    let mut order: Vec<&Site> = sites.iter().filter(|site| has_blocks(&site.figures)).collect();
    order.sort_by_key(|site| std::cmp::Reverse(site.figures.live));
    let rest = order.split_off(order.len().min(MOST_SITES));
    for one in order {
        // Thread stacks, libraries and Plimsoll's own memory have no call stack.
        let stack = Some(&one.stack).filter(|stack| !stack.frames.is_empty());
        site(batch, stack, &one.category, &one.figures, one.error);
    }
    others(batch, rest.iter().map(|site| (&site.figures, site.error)));
}

fn has_blocks(f: &Figures) -> bool {
    let bytes = [f.live, f.requested, f.peak, f.cumulative];
    bytes.iter().any(|bytes| *bytes > Bytes::ZERO) || f.live_count > 0 || f.count_at_peak > 0 || f.cumulative_count > 0
}

/// Writes the rest as one event, so that the sites sum to the total.
fn others<'a>(batch: &mut Batch<'_>, rest: impl Iterator<Item = (&'a Figures, Bytes)>) {
    let mut sum = Figures::default();
    let mut error = Bytes::ZERO;
    let mut count = 0;
    for (figures, bound) in rest {
        sum.live += figures.live;
        sum.live_count = sum.live_count.saturating_add(figures.live_count);
        sum.requested += figures.requested;
        sum.cumulative += figures.cumulative;
        sum.cumulative_count = sum.cumulative_count.saturating_add(figures.cumulative_count);
        error += bound;
        count += 1;
    }
    if count > 0 {
        site(batch, None, "", &sum, error);
    }
}

fn site(batch: &mut Batch<'_>, stack: Option<&Stack>, category: &str, f: &Figures, error: Bytes) {
    e::Site {
        stack_trace: stack,
        category,
        live: f.live,
        live_count: f.live_count,
        requested: f.requested,
        peak: f.peak,
        count_at_peak: f.count_at_peak,
        cumulative: f.cumulative,
        cumulative_count: f.cumulative_count,
        error,
    }
    .write(batch);
}
