//! Threads: the memory of their stacks, and the pool that multiplies. A stack's reservation costs nothing; its touched
//! pages do.

use super::case::{Case, ThreadPool};
use super::remedies::{fewer_threads, has_repeated_pools, remedy, without_threads};
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::shell::turns_text;
use plimsoll_facts::units::{Bytes, count, counted};

const PERCENT: f64 = 10.0;
/// The stacks of the threads, with the kernel's own stacks for them, are worth a line from this size on.
const FLOOR: Bytes = Bytes::mib(8);
/// From this size on, they may be worth a warning.
const WARNS: Bytes = Bytes::mib(16);
/// Threshold if a pool that is needed once has several instances: that is a mistake, even if it costs little now.
const PERCENT_OF_REPEATED: f64 = 3.0;
/// With fewer threads than this, there is no leak of threads.
const MANY: usize = 64;
/// Threads of the proposed pool.
const POOL: u64 = 8;
/// The kernel's own stack of each thread (THREAD_SIZE on x86-64), charged to the cgroup but not part of RSS.
const KERNEL_STACK: Bytes = Bytes::kib(16);

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let stacks = case.ledger.line(LineId::ThreadStacks)?;
    let threads = case.snapshot.threads.len();
    let pool = case.thread_pools().into_iter().next()?;
    let is_repeated = has_repeated_pools(case);
    let (percent, floor) = if is_repeated { (PERCENT_OF_REPEATED, Bytes::mib(1)) } else { (PERCENT, Bytes(0)) };
    let of_kernel = KERNEL_STACK.scaled(threads as u64, 1);
    let cost = stacks.resident + of_kernel;
    if threads < MANY || !case.matters(stacks.resident, percent, floor) || (cost < FLOOR && !is_repeated) {
        return None;
    }
    let each = Bytes(stacks.resident.0 / threads as u64);
    let share = stacks.resident.percent_of(case.rss());
    let is_much = stacks.resident >= Bytes::mib(32) || threads >= 1000 || (threads >= 128 && share >= 25.0);
    let heavy = is_much && cost >= WARNS;
    let mut evidence = vec![
        format!(
            "{}, {each} of stack resident in each; {} of address space is reserved for them and costs nothing",
            counted(threads as u64, "thread"),
            stacks.reserved
        ),
        largest_pool(&pool),
        format!("besides RSS, the kernel holds about {of_kernel} for them ({KERNEL_STACK} each)"),
    ];
    if each > Bytes::mib(1) {
        evidence.push("more than 1 MiB each: deep recursion, large locals, or huge pages".to_owned());
    }
    let mut remedies = Vec::new();
    if case.is_jvm() {
        let how = format!("jcmd {} Thread.print | grep -A 8 '{}' | head -n 60", case.pid(), grep_pattern(&pool.name));
        remedies.push(remedy(
            Effort::Now,
            "see what some of the threads do",
            how,
            "one safepoint while all stacks are printed",
        ));
    } else {
        let how = format!("ps -T -p {} -o comm= | sort | uniq -c | sort -rn | head", case.pid());
        remedies.push(remedy(Effort::Now, "list the threads by name", how, ""));
    }
    remedies.push(fewer_threads(case).unwrap_or_else(|| {
        let what = match pool.instances {
            0 | 1 => format!("bound the pool {}", pool.name),
            many => format!("share one pool in place of {} instances of {}", count(many as u64), pool.name),
        };
        let how = if case.is_jvm() {
            &format!(
                "ExecutorService shared = Executors.newFixedThreadPool({POOL});   // one for all, shut down at the end"
            )
        } else {
            "a fixed number of workers that wait for work, about one for each CPU, in place of a thread for each task"
        };
        let remedy = remedy(Effort::Code, what, how, "");
        // One executor per task: the proposed pool replaces them.
        let threads = pool.threads as u64;
        match threads.saturating_sub(POOL) {
            gone if case.is_jvm() && gone > 0 && pool.instances * 2 > pool.threads => {
                without_threads(remedy, gone, pool.stack.scaled(gone, threads))
            }
            _ => remedy,
        }
    }));
    Some(Verdict {
        id: VerdictId::ThreadStacks,
        severity: if heavy { Severity::Warning } else { Severity::Note },
        bytes: stacks.resident,
        summary: format!(
            "{} hold {} of stack: {:.0} % of RSS",
            counted(threads as u64, "thread"),
            stacks.resident,
            stacks.resident.percent_of(case.rss())
        ),
        evidence,
        remedies,
    })
}

fn largest_pool(pool: &ThreadPool) -> String {
    let threads = counted(pool.threads as u64, "thread");
    let instances = match pool.instances {
        0 | 1 => String::new(),
        many => format!(" in {} instances", count(many as u64)),
    };
    format!("the largest pool is {}: {threads}{instances}, {} of stack resident", pool.name, pool.stack)
}

/// A grep pattern for the pool's thread names. Any number matches `N`. Any character matches one that has a meaning in
/// a pattern, or that would end the line or the quotes.
fn grep_pattern(pool: &str) -> String {
    let is_special =
        |at: usize, c: char| c.is_control() || turns_text(c) || r"'\[]()*^$".contains(c) || (at == 0 && c == '-');
    let quoted: String = pool.char_indices().map(|(at, c)| if is_special(at, c) { '.' } else { c }).collect();
    // The thread's own number may be a part of its last word.
    let (quoted, own) = quoted.strip_suffix('N').map_or((quoted.as_str(), ""), |rest| (rest, "[0-9]*"));
    let words: Vec<&str> = quoted.split_inclusive(['-', '#', '_', '/', ':', '.', ' ']).collect();
    words
        .iter()
        .map(|word| match word.strip_prefix('N') {
            Some(rest) if rest.len() <= 1 => format!("[0-9]*{rest}"),
            _ => (*word).to_owned(),
        })
        .chain([own.to_owned()])
        .collect()
}
