//! The I/O on /proc/PID. Whatever can be refused (another user's process, yama, hidepid) becomes a gap.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::access::{Access, AccessTexts, Closed, by_root, parse_closed};
use super::allocators::{Program, recognise_allocators};
use super::residency::{ENTRY, Found};
use super::scan::{self, Limits, MOST_RUNS};
use super::smaps::{carried, parse_maps, parse_rollup, parse_smaps};
use super::start::read_start;
use super::started_as::read_started_as;
use super::status::{
    cpu_count, parse_command, parse_environment, parse_exiting, parse_limits, parse_stack_pointer, parse_start_ticks,
    parse_status, parse_tmpfs_devices,
};
use crate::foreign::{Deadline, Regular, Stopwatch, Target, Why};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{
    Backing, Host, LoadedAllocator, Process, ProcessState, Residency, Rollup, Root, Rss, Start, Thp, Thread, Vma,
};
use plimsoll_facts::units::{AddressRange, Avma, Bytes, merged};
use rustix::thread::CapabilitySet;

/// Why the kernel refuses access to a process; `refused` is the command that was refused.
pub fn why_closed(pid: u32, refused: &str, access: Access) -> Closed {
    // A status has the process's name, any 15 bytes.
    let text =
        |path: &str| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let texts = AccessTexts {
        own_status: &text("/proc/self/status"),
        its_status: &text(&format!("/proc/{pid}/status")),
        own_user_map: &text("/proc/self/uid_map"),
        yama: &match access {
            Access::Read => String::new(),
            Access::Attach => text("/proc/sys/kernel/yama/ptrace_scope"),
        },
        has_sudo: has_sudo(),
    };
    parse_closed(texts, refused)
}

/// What starts the process again.
pub fn start_of(target: &Target) -> Start {
    read_process(target).map(|(process, _)| read_start(target, &process)).unwrap_or_default()
}

fn explain(pid: u32) -> String {
    format!("plimsoll explain {pid}")
}

pub fn permission_remedy(pid: u32) -> String {
    why_closed(pid, &explain(pid), Access::Read).remedy
}

/// Whether a file's mode refuses access: /proc/PID/mem belongs to the process's user, and so may other files.
fn is_refused_by_mode() -> bool {
    let effective = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    effective.contains(CapabilitySet::SYS_PTRACE) && !effective.contains(CapabilitySet::DAC_READ_SEARCH)
}

/// The remedy for a file that needs the right to attach.
pub fn file_remedy(pid: u32) -> String {
    match is_refused_by_mode() {
        true => by_root(has_sudo(), &explain(pid), "with CAP_DAC_READ_SEARCH"),
        false => why_closed(pid, &explain(pid), Access::Attach).remedy,
    }
}

/// Why such a file can't be opened.
pub fn why_refused(pid: u32, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied if !is_refused_by_mode() => {
            format!("process {pid} {}", why_closed(pid, &explain(pid), Access::Attach).reason)
        }
        _ => error.to_string(),
    }
}

/// Identity and state of the process, without what starts it. Every user may read it, unless /proc is mounted with
/// hidepid.
pub fn read_process(target: &Target) -> io::Result<(Process, Rss)> {
    let status = parse_status(&target.read("status")?);
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    let started = target.read("stat").ok().and_then(|stat| parse_start_ticks(&stat));
    let boot = fs::read_to_string("/proc/uptime").ok().and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let link = |name: &str| target.link(name).ok().map(|path| String::from_utf8_lossy(&path).into_owned());
    let own = |name: &str| fs::read_link(format!("/proc/self/{name}")).ok().map(|p| p.to_string_lossy().into_owned());
    let elsewhere = |name: &str| matches!((link(name), own(name)), (Some(its), Some(mine)) if its != mine);
    let mut process = Process {
        pid: target.pid(),
        namespaced_pid: status.namespaced_pids.last().copied().filter(|pid| *pid != target.pid()),
        name: status.name,
        command: target.read("cmdline").map(|text| parse_command(&text)).unwrap_or_default(),
        start: Start::Unread,
        executable: link("exe"),
        started_as: None,
        state: status.state,
        uid: status.uid,
        thread_count: status.threads,
        cpus_allowed: status.cpus_allowed.filter(|cpus| *cpus > 0),
        uptime: started.zip(boot).map(|(ticks_then, now)| (now - ticks_then as f64 / ticks).max(0.0)),
        limits: target.read("limits").map(|text| parse_limits(&text)).unwrap_or_default(),
        environment: target.read("environ").map(|text| parse_environment(&text)).unwrap_or_default(),
        peak_rss: status.peak_rss,
        page_tables: status.page_tables,
        swap: status.swap,
        contained: elsewhere("ns/mnt") || elsewhere("ns/pid"),
    };
    process.started_as = read_started_as(target, &process);
    Ok((process, status.rss))
}

/// Whether the process is between its fatal signal and the zombie state: then its files are inconsistent.
pub fn is_exiting(target: &Target) -> bool {
    target.read("stat").is_ok_and(|stat| parse_exiting(&stat))
}

/// The mappings with their figures from smaps. If smaps is refused, the mappings have no figures (usually there are no
/// mappings either, because maps needs the same permission), and a gap says so.
pub fn read_mappings(target: &Target, gaps: &mut Vec<Gap>) -> Mappings {
    let rollup = target.read("smaps_rollup").ok().and_then(|text| parse_rollup(&text));
    Mappings { rollup, ..read_smaps(target, gaps) }
}

/// Does the same without smaps_rollup: reading the kernel's own sum doubles the time.
pub fn read_smaps(target: &Target, gaps: &mut Vec<Gap>) -> Mappings {
    let tmpfs = tmpfs_devices(target.read("mountinfo"), gaps);
    let mut refused = false;
    let began = Stopwatch::start();
    let text = target.read("smaps");
    let took = began.elapsed();
    let smaps = match text {
        Ok(text) => parse_smaps(&text, &tmpfs),
        // The process has ended meanwhile; nothing was refused.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => parse_smaps(&[], &tmpfs),
        Err(error) => {
            let pid = target.pid();
            let (why, remedy) = unread(pid, &error);
            let reason = format!("/proc/{pid}/smaps can't be read: {why}");
            gaps.push(Gap::new(Source::Proc, reason, ONLY_TOTALS).remedy(remedy));
            refused = true;
            target.read("maps").map(|text| parse_maps(&text, &tmpfs)).unwrap_or_default()
        }
    };
    if smaps.bad_lines > 0 {
        gaps.push(Gap::new(
            Source::Proc,
            format!("{} lines of smaps were not understood", smaps.bad_lines),
            MISSING_PAGES,
        ));
    }
    Mappings { vmas: smaps.vmas, rollup: None, refused, took }
}

/// The devices of tmpfs mounts. A process that has ended has none.
fn tmpfs_devices(mountinfo: io::Result<Vec<u8>>, gaps: &mut Vec<Gap>) -> Vec<(u32, u32)> {
    match mountinfo {
        Ok(text) => parse_tmpfs_devices(&text),
        Err(error) if has_ended(&error) => Vec::new(),
        Err(error) => {
            let reason = format!("the process's mountinfo can't be read: {error}");
            gaps.push(Gap::new(Source::Proc, reason, UNKNOWN_TMPFS));
            Vec::new()
        }
    }
}

/// Whether a file below /proc/PID can't be read because the process has ended.
fn has_ended(error: &io::Error) -> bool {
    let gone = [rustix::io::Errno::SRCH, rustix::io::Errno::INVAL].map(|errno| errno.raw_os_error());
    error.raw_os_error().is_some_and(|errno| gone.contains(&errno))
}

/// Whether a gap is about the reading of the mappings, which the next reading repeats.
pub fn is_of_mappings(gap: &Gap) -> bool {
    gap.source == Source::Proc && [ONLY_TOTALS, MISSING_PAGES, UNKNOWN_TMPFS].contains(&gap.effect.as_str())
}

/// The reason why smaps wasn't read, and a command that shows more if there is one: never the command that has just
/// failed, which would fail again.
fn unread(pid: u32, error: &io::Error) -> (String, String) {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let Closed { reason, remedy } = why_closed(pid, &explain(pid), Access::Read);
            (format!("process {pid} {reason}"), remedy)
        }
        // maps is shorter: what most of the mappings are. A name may have spaces, but not its first word.
        io::ErrorKind::FileTooLarge => {
            (error.to_string(), format!("awk '{{print $2, $6}}' /proc/{pid}/maps | sort | uniq -c | sort -rn | head"))
        }
        _ => (error.to_string(), String::new()),
    }
}

#[derive(Default)]
pub struct Mappings {
    pub vmas: Vec<Vma>,
    pub rollup: Option<Rollup>,
    pub refused: bool,
    /// Time for reading smaps, without the time given to other threads: an upper bound of the time under the target's
    /// mmap lock.
    pub took: Duration,
}

/// One scan of the page tables, for mappings that are updated by it: the Rss that smaps would report, and which pages
/// these are. If a mapping is unchanged, its other fields are those of the last smaps.
pub struct ScannedPages {
    /// The earlier mappings, if they were read again.
    pub before: Option<Vec<Vma>>,
    pub residency: Residency,
    /// Without the time given to other threads.
    pub took: Duration,
}

/// State that a series of such readings keeps about the mappings.
#[derive(Default)]
pub struct KnownMappings {
    /// The lines of status that count address space by kind. Any mmap, munmap, mprotect or brk that changes the amount
    /// of a kind changes these lines. Empty: it is unknown whether the mappings are those of maps.
    accounts: Vec<u8>,
}

/// An error if the kernel has no such scan, refuses maps, or if a limit was reached ([`is_too_much`]). maps is read again
/// if the accounts have changed, or if a page is resident outside the known mappings: printing maps takes the kernel half
/// of the time of a reading.
pub fn read_pages(target: &Target, known: &mut KnownMappings, vmas: &mut Vec<Vma>) -> io::Result<ScannedPages> {
    let began = Stopwatch::start();
    let limits = limits(target.deadline());
    let pagemap = target.file("pagemap")?;
    let accounts = accounts(&target.read("status")?);
    let stays = !accounts.is_empty() && known.accounts == accounts;
    known.accounts = Vec::new();
    if stays && let (residency, true) = scanned(&pagemap, vmas, limits)? {
        known.accounts = accounts;
        return Ok(ScannedPages { before: None, residency, took: began.elapsed() });
    }
    let text = target.read("maps")?;
    // smaps, which is read in place of this, has a gap for it.
    let tmpfs = parse_tmpfs_devices(&target.read("mountinfo")?);
    let parsed = parse_maps(&text, &tmpfs);
    if parsed.bad_lines > 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut now = carried(parsed.vmas, vmas);
    let (mut residency, has_all) = scanned(&pagemap, &mut now, limits)?;
    if !has_all {
        // Memory was mapped between the two readings; the next one will have it. If this happens twice, the process
        // maps continuously.
        residency = scanned(&pagemap, &mut now, limits)?.0;
    }
    known.accounts = accounts;
    Ok(ScannedPages { before: Some(std::mem::replace(vmas, now)), residency, took: began.elapsed() })
}

/// Whether a reading of pages ended at one of its limits.
pub fn is_too_much(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::Other)
}

/// The mappings without figures, for a process whose pages are too many to read. smaps would read all of them.
pub fn read_maps(target: &Target, why: &io::Error, gaps: &mut Vec<Gap>) -> Mappings {
    let began = Stopwatch::start();
    let tmpfs = target.read("mountinfo").map(|text| parse_tmpfs_devices(&text)).unwrap_or_default();
    let vmas = target.read("maps").map(|text| parse_maps(&text, &tmpfs).vmas).unwrap_or_default();
    let reason = format!("/proc/{}/pagemap can't be read: {why}", target.pid());
    gaps.push(Gap::new(Source::Proc, reason, ONLY_TOTALS));
    Mappings { vmas, rollup: None, refused: true, took: began.elapsed() }
}

const ONLY_TOTALS: &str = "only the kernel's totals by kind are known, and no lines";
const MISSING_PAGES: &str = "their pages are missing from the lines and from the sum";
const UNKNOWN_TMPFS: &str = "mapped files on tmpfs are in mapped-files in place of shared-memory";

/// The user half of the address space: the vsyscall page isn't the process's.
const WHOLE: AddressRange = AddressRange { start: Avma(0), end: Avma(1 << 63) };

/// Sets the Rss of each mapping. False: pages outside these mappings are resident.
fn scanned(pagemap: &File, vmas: &mut [Vma], limits: Limits) -> io::Result<(Residency, bool)> {
    if vmas.iter().any(|vma| vma.range.end.0 > scan::END && vma.range.end <= WHOLE.end) {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    let runs = scan::resident(pagemap, vmas.iter().map(|vma| vma.range.end), limits)?;
    let residency = Residency::new(vec![WHOLE], runs, Bytes(0));
    let mut inside = Bytes(0);
    for vma in vmas {
        let resident = residency.resident(vma.range);
        inside += resident;
        // Pages of hugetlbfs don't count in Rss (fs/proc/task_mmu.c, `smaps_hugetlb_range`).
        vma.rss = if vma.backing == Backing::Hugetlbfs { Bytes(0) } else { resident };
    }
    let has_all = inside == residency.resident(WHOLE);
    Ok((residency, has_all))
}

fn accounts(status: &[u8]) -> Vec<u8> {
    const KEYS: [&[u8]; 7] = [b"VmSize:", b"VmLck:", b"VmData:", b"VmStk:", b"VmExe:", b"VmLib:", b"Threads:"];
    let lines = status.split(|byte| *byte == b'\n').filter(|line| KEYS.iter().any(|key| line.starts_with(key)));
    lines.collect::<Vec<_>>().join(&b'\n')
}

/// Limits of descriptors of a JVM that are searched for jars, and of jars that are kept.
const DESCRIPTORS: usize = 4096;
const JARS: usize = 1000;

/// Jars that the process has open, by the names of its descriptors. Empty if they can't be read.
pub fn open_jars(target: &Target) -> Vec<String> {
    let descriptors = target.numbers("fd").unwrap_or_default();
    let names = descriptors.into_iter().take(DESCRIPTORS).filter_map(|fd| target.link(&format!("fd/{fd}")).ok());
    let jars = names.filter(|name| name.ends_with(b".jar")).map(|name| String::from_utf8_lossy(&name).into_owned());
    let mut jars: Vec<String> = jars.take(JARS).collect();
    jars.sort_unstable();
    jars.dedup();
    jars
}

/// Entries per pread: 512 KiB of them describe 256 MiB.
const BATCH: usize = 64 << 10;

/// Reads the page map of `ranges` (page-aligned) until the deadline. A range that can't be read, such as the vsyscall
/// page, isn't part of what was seen.
pub fn read_residency(
    pagemap: &File,
    ranges: &[AddressRange],
    page: Bytes,
    deadline: Deadline,
) -> io::Result<Residency> {
    let entries = |into: &mut [u8], offset: u64| pagemap.read_at(into, offset);
    // The shared zero page is present in pagemap, but doesn't count in Rss. Only PAGEMAP_SCAN (Linux 6.7) tells such
    // pages apart.
    let zero = |within: AddressRange| scan::zero_pages(pagemap, within, deadline).unwrap_or_default();
    residency_of(ranges, page, deadline, entries, zero)
}

/// Does the same, without swap, by a scan that costs time for what is resident only, however large the ranges are. The
/// kernel has it from Linux 6.7 on ([`can_scan`]).
pub fn scan_residency(pagemap: &File, ranges: &[AddressRange], deadline: Deadline) -> io::Result<Residency> {
    let ranges = merged(ranges.to_vec());
    let runs = scan::resident_within(pagemap, &ranges, limits(deadline))?;
    Ok(Residency::new(ranges, runs, Bytes(0)))
}

/// Whether the kernel can scan the page map. True after the deadline: then the scan itself fails with the reason.
pub fn can_scan(pagemap: &File, deadline: Deadline) -> bool {
    let first = AddressRange::new(Avma(0), Avma(4096));
    scan::zero_pages(pagemap, first, deadline).map_or_else(|error| is_too_much(&error), |_| true)
}

/// Does the same by functions that read entries of the page map, and that find its zero pages.
fn residency_of(
    ranges: &[AddressRange],
    page: Bytes,
    deadline: Deadline,
    mut entries: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    mut zero: impl FnMut(AddressRange) -> Vec<AddressRange>,
) -> io::Result<Residency> {
    let page = page.0.max(1);
    let mut looked_at = Vec::new();
    let mut runs = Vec::new();
    let mut swapped_pages = 0u64;
    let mut buffer = vec![0u8; BATCH * ENTRY];
    for range in merged(ranges.to_vec()) {
        let mut at = range.start.0 / page;
        let end = range.end.0.div_ceil(page);
        while at < end {
            if deadline.has_passed() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long"));
            }
            let want = usize::try_from(end - at).unwrap_or(BATCH).min(BATCH) * ENTRY;
            let got = match entries(&mut buffer[..want], at.saturating_mul(ENTRY as u64)) {
                Ok(got) => got / ENTRY,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error()) => 0,
                Err(error) => return Err(error),
            };
            if got == 0 {
                break;
            }
            let mut found = Found::default();
            found.entries(at, page, &buffer[..got * ENTRY]);
            let first = at;
            at += got as u64;
            let seen = AddressRange::new(Avma(first.saturating_mul(page)), Avma(at.saturating_mul(page)));
            if !found.runs.is_empty() {
                found.leave_out(zero(seen));
            }
            looked_at.push(seen);
            swapped_pages += found.swapped_pages;
            runs.append(&mut found.runs);
            if runs.len() > MOST_RUNS {
                return Err(io::Error::other(format!("its pages are in more than {MOST_RUNS} pieces")));
            }
        }
    }
    Ok(Residency::new(looked_at, runs, Bytes(swapped_pages.saturating_mul(page))))
}

/// Threads with their names and stack pointers. A thread that is running on a CPU has no readable stack pointer.
pub fn read_threads(target: &Target, namespaced: bool, gaps: &mut Vec<Gap>) -> Vec<Thread> {
    let tids = target.numbers("task").unwrap_or_else(|error| {
        gaps.extend((!has_ended(&error) && error.kind() != io::ErrorKind::NotFound).then(|| {
            let reason = format!("the list of threads can't be read: {error}");
            Gap::new(Source::Proc, reason, ONLY_SHAPES)
        }));
        Vec::new()
    });
    read_these_threads(target, tids.into_iter(), namespaced, gaps)
}

/// Without names and stack pointers.
const ONLY_SHAPES: &str = "their stacks have no names and are recognised only by the shape of their mappings";

pub fn read_these_threads(
    target: &Target,
    tids: impl Iterator<Item = u32>,
    namespaced: bool,
    gaps: &mut Vec<Gap>,
) -> Vec<Thread> {
    let mut refused = None;
    let mut late = 0;
    let threads = tids
        .filter(|_| {
            // A process may have more threads than can be read within a command's time.
            let is_late = target.deadline().has_passed();
            late += usize::from(is_late);
            !is_late
        })
        .map(|tid| {
            let name = target.read(&format!("task/{tid}/comm")).unwrap_or_default();
            let stack_pointer = match target.read(&format!("task/{tid}/syscall")) {
                Ok(text) => parse_stack_pointer(&text),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused = Some(error);
                    None
                }
                Err(_) => None,
            };
            let namespaced_tid = if namespaced {
                let status = target.read(&format!("task/{tid}/status")).map(|text| parse_status(&text));
                status.ok().and_then(|status| status.namespaced_pids.last().copied()).unwrap_or(tid)
            } else {
                tid
            };
            let name = String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned();
            Thread { tid, namespaced_tid, name, stack_pointer, ..Thread::default() }
        })
        .collect();
    if late > 0 {
        gaps.push(Gap::new(Source::Proc, format!("{late} threads were not read in time"), ONLY_SHAPES));
    }
    if let Some(error) = refused {
        gaps.push(
            Gap::new(
                Source::Proc,
                format!("the threads' stack pointers can't be read: {}", why_refused(target.pid(), &error)),
                "thread stacks are recognised only by the shape of their mappings",
            )
            .remedy(file_remedy(target.pid())),
        );
    }
    threads
}

impl Program for Regular {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Option<()> {
        self.at(offset, into).ok().filter(|count| *count == into.len()).map(drop)
    }
}

pub fn read_allocators(target: &Target, vmas: &[Vma], gaps: &mut Vec<Gap>) -> Vec<LoadedAllocator> {
    let path = target.link("exe").map(|path| String::from_utf8_lossy(&path).into_owned()).unwrap_or_default();
    let program = target.program();
    let gap = |why: &dyn std::fmt::Display| {
        let effect = "it is unknown whether the program contains an allocator; the heap of such an allocator is in other-anonymous";
        Gap::new(Source::Allocator, format!("{path} {why}"), effect)
    };
    // Without mappings nothing can be recognised, and their own gap gives the reason.
    if let Err(why) = &program
        && !vmas.is_empty()
    {
        gaps.push(gap(why).remedy(file_remedy(target.pid())));
    }
    let program = program.ok();
    let (found, unsearched) = recognise_allocators(program.as_ref().map(|program| (program, path.clone())), vmas);
    gaps.extend(unsearched.map(|why| match target.deadline().has_passed() {
        true => gap(&Why::Late),
        false => gap(&why),
    }));
    found
}

pub fn read_host() -> Host {
    let number = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let thp = match fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") {
        Ok(text) if text.contains("[always]") => Thp::Always,
        Ok(text) if text.contains("[madvise]") => Thp::Madvise,
        Ok(text) if text.contains("[never]") => Thp::Never,
        _ => Thp::Unknown,
    };
    Host {
        page: Bytes(rustix::param::page_size() as u64),
        cpus_online: fs::read_to_string("/sys/devices/system/cpu/online").map(|text| cpu_count(&text)).unwrap_or(0),
        memory: total_memory(),
        max_map_count: number("/proc/sys/vm/max_map_count"),
        thp,
        thp_size: number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").map(Bytes),
        can_enter: cfg!(target_arch = "x86_64"),
        root: match rustix::process::geteuid().is_root() {
            true => Root::Already,
            false if has_sudo() => Root::Sudo,
            false => Root::Elsewhere,
        },
    }
}

/// Zero if the kernel doesn't report it.
fn total_memory() -> Bytes {
    let text = fs::read("/proc/meminfo").unwrap_or_default();
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"MemTotal:"));
    line.and_then(super::smaps::kilobytes).unwrap_or_default()
}

/// Limits of a scan of this machine's processes.
fn limits(deadline: Deadline) -> Limits {
    static MEMORY: OnceLock<Bytes> = OnceLock::new();
    Limits::until(deadline, *MEMORY.get_or_init(total_memory))
}

fn has_sudo() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join("sudo").is_file())
}

/// A command that needs root, as it can be typed here: containers seldom have sudo.
pub fn as_root(command: &str) -> String {
    if has_sudo() { format!("sudo {command}") } else { format!("as root: {command}") }
}

/// A command that another user must type.
pub fn as_user(uid: u32, command: &str) -> String {
    if has_sudo() { format!("sudo -u '#{uid}' {command}") } else { format!("as user {uid}: {command}") }
}

pub fn seconds_since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs_f64()).unwrap_or_default()
}

/// Runs `read`, and records when it began and how long it took.
pub fn timed<T>(
    since: Instant,
    source: Source,
    readings: &mut Vec<plimsoll_facts::snapshot::Reading>,
    read: impl FnOnce() -> T,
) -> T {
    let began = since.elapsed();
    let value = read();
    readings.push(plimsoll_facts::snapshot::Reading { source, began, took: since.elapsed() - began });
    value
}

/// The message if there is nothing to explain.
pub fn refusal(state: ProcessState, pid: u32) -> Option<String> {
    match state {
        ProcessState::Zombie => {
            Some(format!("process {pid} is a zombie: its memory is gone, only its exit status is left"))
        }
        ProcessState::Kernel => Some(format!("process {pid} is a kernel thread: it has no memory of its own")),
        ProcessState::Alive | ProcessState::Stopped => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::foreign::LOOK;
    use crate::random::Random;

    /// A sleeping child process: nothing in it changes.
    struct Still(std::process::Child);
    impl Drop for Still {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_command_that_failed_is_not_proposed_again() {
        for kind in [io::ErrorKind::FileTooLarge, io::ErrorKind::OutOfMemory, io::ErrorKind::Other] {
            let (why, remedy) = unread(7, &io::Error::new(kind, "it is longer than 256 MiB"));
            assert_eq!(why, "it is longer than 256 MiB");
            assert!(!remedy.contains("explain"), "{remedy}");
            assert_eq!(remedy.contains("/proc/7/maps"), kind == io::ErrorKind::FileTooLarge, "{remedy}");
        }
        let own = std::process::id();
        let (_, remedy) = unread(own, &io::Error::new(io::ErrorKind::FileTooLarge, ""));
        let output = std::process::Command::new("sh").args(["-c", &remedy]).output().expect("sh");
        assert!(String::from_utf8_lossy(&output.stdout).contains("rw-p"), "{output:?}");
    }

    #[test]
    fn mounts_that_cannot_be_read_are_a_gap_unless_the_process_has_ended() {
        let mut gaps = Vec::new();
        let ended = io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error());
        assert!(tmpfs_devices(Err(ended), &mut gaps).is_empty() && gaps.is_empty());
        assert_eq!(tmpfs_devices(Ok(b"36 35 0:21 / /run rw - tmpfs tmpfs rw\n".to_vec()), &mut gaps), [(0, 21)]);
        assert!(gaps.is_empty());
        assert!(tmpfs_devices(Err(io::Error::from(io::ErrorKind::PermissionDenied)), &mut gaps).is_empty());
        assert!(gaps.len() == 1 && is_of_mappings(&gaps[0]), "{gaps:?}");
    }

    #[test]
    fn a_scan_has_each_mappings_rss_as_smaps_has_it() {
        let mut command = std::process::Command::new("sleep");
        let child = Still(command.arg("600").spawn().expect("a child"));
        let target = Target::open(child.0.id(), Deadline::after(LOOK)).expect("it runs");
        let mut gaps = Vec::new();
        // Wait until it sleeps and nothing in it changes any more.
        let mut smaps = read_smaps(&target, &mut gaps).vmas;
        let (mut known, mut scanned) = (KnownMappings::default(), None);
        for _ in 0..600 {
            std::thread::sleep(Duration::from_millis(50));
            let mut vmas = smaps.clone();
            if read_pages(&target, &mut known, &mut vmas).is_err() {
                break;
            }
            let again = read_smaps(&target, &mut gaps).vmas;
            let is_asleep = target.read("wchan").is_ok_and(|at| at.windows(5).any(|word| word == b"sleep"));
            let is_still = smaps == again && is_asleep;
            smaps = again;
            scanned = Some(vmas);
            if is_still {
                break;
            }
        }
        let Some(scanned) = scanned else {
            let refused = read_pages(&target, &mut known, &mut smaps).err().expect("then it works");
            // ENOTTY: a kernel before 6.7.
            assert_eq!(refused.raw_os_error(), Some(25), "{refused}");
            return;
        };
        assert!(smaps.len() > 5 && smaps.iter().any(|vma| vma.rss > Bytes(0)));
        assert_eq!(scanned, smaps, "all of each mapping, Rss by the scan");
    }

    #[test]
    fn own_pages_are_resident_once_touched() {
        let page = Bytes(4096);
        let block = vec![1u8; 1 << 20];
        let start = block.as_ptr() as u64;
        let inside = AddressRange::new(
            Avma(start.next_multiple_of(page.0)),
            Avma((start + block.len() as u64) / page.0 * page.0),
        );
        let pagemap = File::open("/proc/self/pagemap").expect("own pagemap");
        let residency = read_residency(&pagemap, &[inside], page, Deadline::after(LOOK)).expect("own pagemap");
        assert!(residency.covers(inside));
        assert_eq!(residency.resident(inside), inside.length());
    }

    /// However few entries a read returns.
    #[test]
    fn residency_in_pieces_is_that_of_each_page() {
        const ABSENT: u64 = 0;
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const GUARD: u64 = SWAPPED | 1 << 58;
        /// A present page that the kernel finds to be the zero page.
        const ZERO: u64 = PRESENT | 1;
        let pages = |first: u64, number: u64| AddressRange::sized(Avma(first * 4096), Bytes(number * 4096));
        let mut random = Random(47);
        let (mut resident, mut unseen) = (0, 0);
        for _ in 0..200 {
            let states: Vec<u64> = (0..200).map(|_| [ABSENT, PRESENT, SWAPPED, GUARD, ZERO][random.index(5)]).collect();
            let ranges: Vec<AddressRange> = (0..5).map(|_| pages(random.below(180), random.below(20))).collect();
            let entries = |into: &mut [u8], offset: u64| -> io::Result<usize> {
                let length = into.len().min(ENTRY * (1 + random.index(7)));
                let words = states[offset as usize / ENTRY..].iter().flat_map(|state| state.to_ne_bytes());
                into[..length].iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
                Ok(length)
            };
            let zero = |within: AddressRange| {
                let is_zero = |page: &u64| states[*page as usize] == ZERO && within.covers(pages(*page, 1));
                (0..200).filter(is_zero).map(|page| pages(page, 1)).collect()
            };
            let found =
                residency_of(&ranges, Bytes(4096), Deadline::after(LOOK), entries, zero).expect("it can be read");
            let mut swapped = 0;
            for (page, state) in (0..).map(|page| pages(page, 1)).zip(states.iter().copied()) {
                let is_seen = ranges.iter().any(|range| range.covers(page));
                let is_resident = is_seen && state == PRESENT;
                assert_eq!(found.covers(page), is_seen);
                assert_eq!(found.resident(page), Bytes(if is_resident { 4096 } else { 0 }));
                swapped += u64::from(is_seen && state == SWAPPED);
                (resident, unseen) = (resident + u64::from(is_resident), unseen + u64::from(!is_seen));
            }
            assert_eq!(found.swapped(), Bytes(4096 * swapped));
        }
        assert!(resident > 500 && unseen > 500, "{resident} {unseen}");
    }

    #[test]
    fn a_reading_ends_at_its_deadline_and_at_too_many_runs() {
        let reads = Cell::new(0);
        let read = |deadline| {
            let every_other = |into: &mut [u8], _: u64| -> io::Result<usize> {
                reads.set(reads.get() + 1);
                for (index, entry) in into.chunks_exact_mut(ENTRY).enumerate() {
                    entry.copy_from_slice(&(index as u64 % 2 * (1 << 63)).to_ne_bytes());
                }
                Ok(into.len())
            };
            let all = [AddressRange::new(Avma(0), Avma(1 << 47))];
            let error = residency_of(&all, Bytes(4096), deadline, every_other, |_| Vec::new()).expect_err("no end");
            (reads.take(), error.kind())
        };
        assert_eq!(read(Deadline::after(Duration::ZERO)), (0, io::ErrorKind::TimedOut));
        // A batch has half as many runs as entries.
        assert_eq!(read(Deadline::after(Duration::from_secs(3600))), (2 * MOST_RUNS / BATCH + 1, io::ErrorKind::Other));
    }
}
