//! One reading as the screen shows it. It is a copy of a sample, so that the sampler can go on.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use plimsoll_facts::gap::Source;
use plimsoll_facts::shell::one_line;
use plimsoll_facts::snapshot::{ArenaKind, CgroupVersion, ProcessState, Snapshot, lacking};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::{Baseline, Ledger, Line, LineId, ThreadPools, thread_names};
use plimsoll_observer::verdict::{Case, Verdict};
use plimsoll_report::jfr::Site;
use plimsoll_report::process_title;
use plimsoll_tracked::books::Mode;
use plimsoll_tracked::rules::{RuleSet, names};

use crate::sampler::Sample;

/// Limit of sites of one reading: more than any screen shows.
pub const MOST_SITES: usize = 150;
/// Limit of arenas, and of pools.
const MOST: usize = 200;
/// Innermost frames that name a site.
const FRAMES: usize = 6;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// ns since 1970.
    pub time_ns: u64,
    pub title: String,
    pub pid: u32,
    /// Runtime and version; empty if nothing is known.
    pub runtime: String,
    /// Seconds since the process started.
    pub uptime: Option<f64>,
    pub threads: u64,
    pub is_stopped: bool,
    pub is_tracked: bool,
    pub rss: Bytes,
    pub limit: Option<Limit>,
    /// None: the mappings were not read this time.
    pub ledger: Option<Lines>,
    /// None: sites were not read this time, or the process isn't tracked.
    pub sites: Option<Vec<SiteRow>>,
    pub arenas: Vec<ArenaRow>,
    pub pools: Vec<PoolRow>,
    /// Seconds since the allocators and the VM were queried.
    pub age: f64,
    /// The first gap: what could not be read, and what to type.
    pub gap: Option<String>,
    /// The sources with gaps that decide on the lines.
    pub lacking: BTreeSet<Source>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub bytes: Bytes,
    /// What counts against it.
    pub counted: Bytes,
    /// False: the mappings were not read this time, so `counted` is RSS, which counts a page as often as it is mapped.
    pub is_of_now: bool,
    pub source: &'static str,
}

/// The ledger of one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// Resident bytes and their error, biggest first.
    pub lines: Vec<(LineId, Bytes, Bytes)>,
    /// The allocators of the line `other-allocator`, if it is there.
    pub allocators: Option<String>,
    pub remainder: Bytes,
    pub verdicts: Vec<Verdict>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteRow {
    pub category: String,
    /// The innermost functions that are not the allocator's, innermost first.
    pub frames: Vec<String>,
    pub live: Bytes,
    pub error: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArenaRow {
    pub name: String,
    pub live: Bytes,
    /// Free and resident.
    pub kept: Bytes,
    /// The part that malloc_trim gives back.
    pub trim: Bytes,
    pub threads: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolRow {
    pub name: String,
    pub threads: u64,
    /// Resident part of their stacks; None if the stacks are not known.
    pub stacks: Option<Bytes>,
}

impl Facts {
    /// `limit`: from the command line; it replaces the cgroup's.
    pub fn of(sample: &Sample<'_>, limit: Option<Bytes>, rules: Option<&RuleSet>) -> Facts {
        let snapshot = sample.snapshot;
        let process = &sample.process;
        let title = snapshot.map(process_title::title).unwrap_or_else(|| match process.command.is_empty() {
            true => format!("({})", process.name),
            false => one_line(&process.command),
        });
        let of_now = snapshot.zip(sample.ledger.as_ref());
        let sites = || rules.map(|rules| site_rows(&sample.sites, rules));
        let has_sites = sample.full && sample.books.as_ref().is_some_and(|books| books.mode != Mode::Off);
        Facts {
            time_ns: sample.time_ns,
            title,
            pid: process.pid,
            runtime: snapshot.and_then(process_title::runtime).unwrap_or_default(),
            uptime: process.uptime,
            threads: process.thread_count,
            is_stopped: process.state == ProcessState::Stopped,
            is_tracked: sample.books.is_some(),
            rss: sample.rss,
            limit: the_limit(sample, limit, of_now),
            ledger: of_now.map(|(_, ledger)| lines(ledger, &sample.verdicts)),
            sites: has_sites.then(sites).flatten().filter(|sites: &Vec<SiteRow>| !sites.is_empty()),
            arenas: snapshot.map(arenas).unwrap_or_default(),
            pools: of_now.map(|(snapshot, ledger)| pools(snapshot, ledger)).unwrap_or_default(),
            age: sample.provenance_age.as_secs_f64(),
            lacking: snapshot.map(|snapshot| lacking(&snapshot.gaps)).unwrap_or_default(),
            gap: snapshot.and_then(|snapshot| snapshot.gaps.first()).map(|gap| match gap.remedy.is_empty() {
                true => format!("{}: {}", gap.source.name(), gap.reason),
                false => format!("{}: {} (type: {})", gap.source.name(), gap.reason, gap.remedy),
            }),
        }
    }

    /// What the verdicts of later readings are compared with, if this reading becomes the baseline.
    pub fn baseline(&self) -> Option<Baseline> {
        let of = self.ledger.as_ref()?;
        Some(Baseline {
            time: self.time_ns as f64 / 1e9,
            uptime: self.uptime,
            rss: self.rss,
            lines: of.lines.iter().map(|(id, bytes, _)| (*id, *bytes)).collect(),
            errors: of.lines.iter().map(|(id, _, error)| (*id, *error)).collect(),
            lacking: self.lacking.clone(),
        })
    }
}

fn the_limit(sample: &Sample<'_>, requested: Option<Bytes>, of_now: Option<(&Snapshot, &Ledger)>) -> Option<Limit> {
    if let Some(bytes) = requested {
        let counted = of_now.map(|(snapshot, ledger)| Case { snapshot, ledger }.distinct_rss());
        let is_of_now = counted.is_some();
        return Some(Limit { bytes, counted: counted.unwrap_or(sample.rss), is_of_now, source: "--limit" });
    }
    let cgroup = sample.cgroup.as_ref()?;
    let source = match cgroup.version {
        CgroupVersion::V1 => "memory.limit_in_bytes",
        CgroupVersion::V2 => "memory.max",
    };
    Some(Limit { bytes: cgroup.limit?, counted: cgroup.working_set(), is_of_now: true, source })
}

fn lines(ledger: &Ledger, verdicts: &[Verdict]) -> Lines {
    let lines = ledger.lines.iter().filter(|line| line.resident > Bytes(0));
    Lines {
        lines: lines.map(|line| (line.id, line.resident, line.error)).collect(),
        allocators: ledger.line(LineId::OtherAllocator).map(Line::label),
        remainder: ledger.remainder,
        verdicts: verdicts.to_vec(),
    }
}

/// Biggest first. Sites that have the same innermost functions are one row.
fn site_rows(sites: &[Site], rules: &RuleSet) -> Vec<SiteRow> {
    let mut rows: Vec<SiteRow> = Vec::new();
    let mut at: HashMap<(String, Vec<String>), usize> = HashMap::new();
    // Sites beyond the limit of a reading have no stack.
    for site in sites.iter().filter(|site| !site.stack.frames.is_empty()) {
        let row = site_row(site, rules);
        match at.entry((row.category.clone(), row.frames.clone())) {
            Entry::Occupied(known) => {
                let known = &mut rows[*known.get()];
                known.live += row.live;
                known.error += row.error;
            }
            Entry::Vacant(new) => {
                new.insert(rows.len());
                rows.push(row);
            }
        }
    }
    rows.sort_by(|one, other| other.live.cmp(&one.live).then(one.frames.cmp(&other.frames)));
    rows.truncate(MOST_SITES);
    rows
}

fn site_row(site: &Site, rules: &RuleSet) -> SiteRow {
    let name = |class: &str, function: &str| match class.is_empty() || is_object(class) {
        // A function of a library keeps its own name; an unnamed one is the library and an offset.
        true if function.starts_with("0x") => format!("{class}+{function}"),
        true => function.to_owned(),
        false => format!("{}.{function}", class.rsplit('.').next().unwrap_or(class)),
    };
    let is_wrapper = |class: &str, function: &str| rules.is_through(class, Some(&names::qualified(function)));
    let frames = &site.stack.frames;
    let own = frames.iter().skip_while(|frame| is_wrapper(&frame.class, &frame.function)).take(FRAMES);
    let own: Vec<String> = own.map(|frame| name(&frame.class, &frame.function)).collect();
    SiteRow { category: site.category.clone(), frames: own, live: site.figures.live, error: site.error }
}

/// Whether a frame's class is the file of a native function: `libc.so.6`, `redis-server`. Java classes have packages.
fn is_object(class: &str) -> bool {
    class.contains(".so") || !class.contains('.')
}

fn arenas(snapshot: &Snapshot) -> Vec<ArenaRow> {
    let glibc = snapshot.glibc.as_ref();
    let mut rows: Vec<ArenaRow> = glibc
        .into_iter()
        .flat_map(|glibc| &glibc.arenas)
        .map(|arena| ArenaRow {
            name: match arena.kind {
                ArenaKind::Main => "main".to_owned(),
                ArenaKind::Thread => format!("{:#x}", arena.address),
            },
            live: arena.live_resident,
            kept: arena.free_resident,
            trim: arena.trimmable,
            threads: arena.attached_threads,
        })
        .collect();
    rows.sort_by(|one, other| (other.kept, other.live).cmp(&(one.kept, one.live)).then(one.name.cmp(&other.name)));
    rows.truncate(MOST);
    rows
}

fn pools(snapshot: &Snapshot, ledger: &Ledger) -> Vec<PoolRow> {
    let names = thread_names(snapshot);
    let pools = ThreadPools::of(names.iter().copied());
    let mut threads: BTreeMap<String, u64> = BTreeMap::new();
    for name in names {
        *threads.entry(pools.pool(name)).or_default() += 1;
    }
    let stacks = ledger.line(LineId::ThreadStacks).map(|line| line.children.as_slice()).unwrap_or_default();
    let resident = |name: &str| stacks.iter().find(|child| child.name == name).map(|child| child.resident);
    let rows = threads.into_iter().map(|(name, threads)| PoolRow { stacks: resident(&name), name, threads });
    let mut rows: Vec<PoolRow> = rows.collect();
    rows.sort_by(|one, other| other.threads.cmp(&one.threads).then(one.name.cmp(&other.name)));
    rows.truncate(MOST);
    rows
}
