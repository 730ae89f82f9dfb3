//! Threads that exist once for each task or client where one pool would suffice.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::child::{Running, wait_for};
use crate::fixture::Fixture;
use crate::kit::{SMALL_HEAP, evidence, has, how, last, near, on, promised, remedy, rss, saved, start, typed};
use crate::stage::Jdk;

const EXECUTORS: usize = 600;

fn executors(jdk: &Jdk, which: &str) -> Fixture {
    // Interpreted: what C2 frees stays resident in its arena for seconds, and on a busy machine is a verdict of its
    // own.
    let options = [&SMALL_HEAP[..], &["-Xint"]].concat();
    start(jdk, &options, "Executors", &[&EXECUTORS.to_string(), "600", which], &[])
}

/// Resident bytes of the stacks of the threads whose names begin with `name`, from the kernel: of each, the mapping
/// that its stack pointer lies in.
fn stacks(pid: u32, name: &str) -> u64 {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let mut mappings = Vec::new();
    for line in read(format!("/proc/{pid}/smaps")).lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let range = range.and_then(|(a, b)| Some((u64::from_str_radix(a, 16).ok()?, u64::from_str_radix(b, 16).ok()?)));
        if let Some(range) = range {
            mappings.push((range, 0));
        } else if let (Some(kib), Some(last)) = (line.strip_prefix("Rss:"), mappings.last_mut()) {
            last.1 = kib.trim().trim_end_matches(" kB").parse::<u64>().expect("KiB") << 10;
        }
    }
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten().map(|entry| entry.path());
    let named = tasks.filter(|task| read(task.join("comm").display().to_string()).starts_with(name));
    let pointer = |task: std::path::PathBuf| {
        // `NUMBER ARGUMENTS… SP PC`, proc(5).
        // A thread that is about to run has the one word `running`.
        let text = wait_for("a thread that waits", || {
            Some(read(task.join("syscall").display().to_string())).filter(|text| !text.starts_with("running"))
        });
        let hex =
            text.split_whitespace().rev().nth(1).and_then(|word| word.strip_prefix("0x")).expect("a stack pointer");
        u64::from_str_radix(hex, 16).expect("a number")
    };
    let resident = |sp: u64| mappings.iter().find(|((start, end), _)| (*start..*end).contains(&sp)).expect("a stack").1;
    named.map(pointer).map(resident).sum()
}

fn one_executor_for_each_task(jdk: &Jdk) {
    let case = format!("600 single-thread executors, JDK {}", jdk.major);
    let mut many = executors(jdk, "single");
    let explained = many.explained();
    has(&case, &explained, &["thread-stacks"]);
    assert_eq!(many.truth("threads"), EXECUTORS as u64);
    near(&case, "the pool's stacks", explained.child("thread-stacks", "pool-N-thread-N"), stacks(many.pid(), "pool-"));
    let evidence_text = evidence(&explained, "thread-stacks");
    assert!(evidence_text.contains("pool-N-thread-N: 600 threads in 600 instances"), "{case}: {evidence_text}");
    assert_eq!(explained.0["overclaimed_bytes"], 0, "{case}: the zero page is not resident");
    // The first remedy shows what the threads wait for, the last makes one pool of them.
    let printed = typed(&mut many, &remedy(&explained, "thread-stacks", 0));
    assert!(printed.contains("\"pool-") && printed.contains("-thread-1\""), "{case}: {printed}");
    many.serves();
    let shares = last(&explained, "thread-stacks");
    assert!(how(shares).contains("newFixedThreadPool(8)"), "{case}: {shares:#}");
    let mut one = executors(jdk, "shared");
    assert_eq!(one.truth("threads"), 8);
    saved(&case, shares, explained.0["rss_bytes"].as_u64().unwrap(), rss(&one));
    one.serves();
    has(&case, &one.explained(), &["healthy"]);
}

/// 60 threads with deep stacks, interpreted: 700 KiB of stack each. Few threads, whose stacks are most of the memory
/// that grew.
fn deep_stacks_of_a_few_threads(jdk: &Jdk) {
    let case = format!("60 threads with deep stacks, JDK {}", jdk.major);
    let deep = |which: &str| {
        let options = [&SMALL_HEAP[..], &["-Xint", "-Xss4m"]].concat();
        start(jdk, &options, "Executors", &["60", "8000", which], &[])
    };
    let mut many = deep("single");
    let explained = many.explained();
    has(&case, &explained, &["thread-stacks"]);
    let truth = stacks(many.pid(), "pool-");
    assert!(truth > 40 << 20, "{case}: {truth}");
    near(&case, "the pool's stacks", explained.child("thread-stacks", "pool-N-thread-N"), truth);
    let printed = typed(&mut many, &remedy(&explained, "thread-stacks", 0));
    assert!(printed.contains("\"pool-") && printed.contains("-thread-1\""), "{case}: {printed}");
    many.serves();
    let shares = last(&explained, "thread-stacks");
    assert!(promised(shares).is_some(), "{case}: {shares:#}");
    let mut one = deep("shared");
    saved(&case, shares, explained.0["rss_bytes"].as_u64().unwrap(), rss(&one));
    one.serves();
    has(&case, &one.explained(), &["healthy"]);
}

struct Redis(Running, u16);

impl Redis {
    fn new() -> Redis {
        // A port that was free a moment ago; Redis ends at once if another has taken it meanwhile.
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
            let mut command = Command::new("redis-server");
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).stdout(Stdio::null());
            let mut redis = Redis(Running(command.spawn().expect("redis-server (run .ci/setup)")), port);
            while redis.0.try_wait().expect("a child").is_none() {
                if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return redis;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
        panic!("Redis finds no port");
    }
}

fn clients(jdk: &Jdk, redis: &Redis, resources: &str) -> Fixture {
    let options = [&SMALL_HEAP[..], &["-XX:TieredStopAtLevel=1"]].concat();
    start(jdk, &options, "Lettuce", &[&redis.1.to_string(), resources], &[])
}

fn a_client_resources_for_each_client(jdk: &Jdk) {
    let redis = Redis::new();
    let case = format!("Lettuce, 12 ClientResources, JDK {}", jdk.major);
    let mut twelve = clients(jdk, &redis, "12");
    let explained = twelve.explained();
    assert_eq!(twelve.truth("threads"), 96);
    has(&case, &explained, &["healthy", "thread-stacks"]);
    let loops = explained.child("thread-stacks", "lettuce-nioEventLoop-N-N");
    near(&case, "the loops' stacks", loops, stacks(twelve.pid(), "lettuce-nioEven"));
    let evidence_text = evidence(&explained, "thread-stacks");
    assert!(evidence_text.contains("96 threads in 12 instances"), "{case}: {evidence_text}");
    let printed = typed(&mut twelve, &remedy(&explained, "thread-stacks", 0));
    assert!(printed.contains("lettuce-nioEventLoop"), "{case}: {printed}");
    twelve.serves();
    let shares = last(&explained, "thread-stacks");
    assert!(how(shares).contains("DefaultClientResources.create()"), "{case}: {shares:#}");
    // How much of the direct buffers goes with the threads is unknown, so the interval is too wide for a figure.
    assert_eq!(promised(shares), None, "{case}: {shares:#}");
    let mut one = clients(jdk, &redis, "1");
    assert_eq!(one.truth("threads"), 8);
    saved(&case, shares, explained.0["rss_bytes"].as_u64().unwrap(), rss(&one));
    one.serves();
    // A single ClientResources: there is nothing to share.
    let explained = one.explained();
    has(&case, &explained, &["healthy"]);
    assert!(!explained.0["verdicts"].to_string().contains("ClientResources"), "{case}: {:#}", explained.0["verdicts"]);
}

#[test]
fn an_executor_for_each_task() {
    on(17).iter().for_each(one_executor_for_each_task);
}

#[test]
#[ignore = "full: a second case of executors"]
fn a_few_threads_with_deep_stacks() {
    on(25).iter().for_each(deep_stacks_of_a_few_threads);
}

#[test]
fn lettuce_with_a_client_resources_for_each_client_and_with_one() {
    on(25).iter().for_each(a_client_resources_for_each_client);
}
