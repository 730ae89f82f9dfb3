//! Table 4, its second question: a VM with 10,000 threads, whose stacks and guard pages are 20,000 entries in the
//! books. The start is measured by `plimsoll try`; then one report of each is timed on a running process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::{Session, Table, figure, measured, ran};
use crate::bench::stats::median;
use crate::bench::time_limit::{ONE_RUN, must_within_limit, within};
use crate::bench::{java, words};
use crate::stage::{Result, any_jdk, folder, must, plimsoll, repository};

const ROUNDS: u32 = 5;
const THREADS: &str = "10000";
const COLUMNS: [(&str, &str); 3] =
    [("ready_seconds", "all threads wait after, s"), ("cpu_seconds", "CPU, s"), ("steady_bytes", "RSS, MiB")];

pub fn rows(session: &Session, table: &mut Table) -> Result<()> {
    let home = any_jdk()?;
    let classes = folder("bench/published/threads")?;
    let source = repository().join("bench/published/threads/Threads.java");
    must(Command::new(home.join("bin/javac")).arg("-d").arg(&classes).arg(source))?;
    let program = |flags: &[&str]| {
        let rest = words(&["-Xmx64m", "-XX:+UseSerialGC", "-cp", &classes.display().to_string(), "Threads", THREADS]);
        [vec![java(&home).display().to_string()], words(flags), rest].concat()
    };
    let tracked = |sites: &str| {
        let run = words(&[&plimsoll()?.display().to_string(), "run", "--report", "none", "--sites", sites, "--"]);
        Ok::<_, Box<dyn std::error::Error>>([run, program(&[])].concat())
    };
    let (summary, detail) =
        (program(&["-XX:NativeMemoryTracking=summary"]), program(&["-XX:NativeMemoryTracking=detail"]));
    let all = [
        ("plain again", program(&[])),
        ("HotSpot NMT summary", summary.clone()),
        ("HotSpot NMT detail", detail),
        ("Plimsoll, sites off", tracked("off")?),
        ("Plimsoll, sites sampled", tracked("sampled")?),
        ("Plimsoll, sites exact", tracked("exact")?),
    ];
    let rounds = session.rounds(ROUNDS).min(ROUNDS).to_string();
    let mut arguments = words(&["try", "--rounds", &rounds, "--ready", "log:all wait", "--ready-within", "180"]);
    arguments.extend(words(&["--for", "1", "--idle", "0.1"]));
    for (_, command) in &all {
        arguments.extend(["--with".to_owned(), format!("cmd:{}", command.join(" "))]);
    }
    arguments.push("--".into());
    arguments.extend(program(&[]));
    let (document, typed) = measured(&arguments)?;
    table.line(&format!(
        "\nA VM with 10,000 threads (bench/published/threads/Threads.java), so 10,000 stacks and their guard pages: {rounds} alternating rounds by `plimsoll try`, medians. \
         Report: the time of a command that prints the summary, median of five on one process; jcmd's has the start of its own VM, which the command without a report shows."
    ));
    let heads: Vec<&str> = std::iter::once("way").chain(COLUMNS.iter().map(|(_, head)| *head)).chain(["ran"]).collect();
    table.head(&heads);
    let named = all.iter().map(|(name, command)| (*name, command.join(" ")));
    for (name, row) in std::iter::once(("plain", "plain".to_owned())).chain(named) {
        let cells = COLUMNS.map(|(id, _)| {
            let median = figure(&document, &row, id).and_then(|figure| figure["median"].as_f64());
            median.map_or("-".to_owned(), |median| match id {
                "steady_bytes" => format!("{:.1}", median / f64::from(1 << 20)),
                _ => format!("{median:.2}"),
            })
        });
        table.row(&[&[name.to_owned()], cells.as_slice(), &[ran(&document, &row)]].concat());
    }
    table.command(&typed);
    let jcmd = home.join("bin/jcmd").display().to_string();
    table.head(&["report", "ms"]);
    let timed = [
        ("`jcmd PID VM.version` (no report)", &summary, words(&[&jcmd, "PID", "VM.version"])),
        ("`jcmd PID VM.native_memory summary`", &summary, words(&[&jcmd, "PID", "VM.native_memory", "summary"])),
        ("`plimsoll report PID`", &tracked("sampled")?, words(&[&plimsoll()?.display().to_string(), "report", "PID"])),
    ];
    for (name, program, command) in timed {
        table.row(&[name.to_owned(), format!("{:.0}", reports(program, &command)?)]);
    }
    Ok(())
}

/// Ends with the row.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The median of five runs of `command` on that program, in milliseconds; `PID` in it is the program's.
fn reports(program: &[String], command: &[String]) -> Result<f64> {
    let mut start = Command::new(&program[0]);
    let mut target = Running(start.args(&program[1..]).stdout(Stdio::piped()).spawn()?);
    let mut lines = BufReader::new(target.0.stdout.take().ok_or("a pipe")?).lines();
    let first = within(ONE_RUN, target.0.id(), program, || Ok(lines.next().transpose()?))?;
    if first.as_deref() != Some("all wait") {
        return Err(format!("{program:?} ended early").into());
    }
    let own = target.0.id().to_string();
    let mut taken = Vec::new();
    for _ in 0..5 {
        let begin = Instant::now();
        must_within_limit(Command::new(&command[0]).args(command[1..].iter().map(|word| word.replace("PID", &own))))?;
        taken.push(begin.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(median(&taken))
}
