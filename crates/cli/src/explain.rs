//! `plimsoll explain PID|NAME`: where every resident byte of a live process went.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Snapshot, lacking};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::collect::{Regions, take_snapshot};
use plimsoll_observer::ledger::{Baseline, Ledger};
use plimsoll_observer::verdict::judge;
use plimsoll_process::foreign::{Deadline, FileKind, LOOK, NAMES, read_argument};
use plimsoll_process::processes::{self, KnownKinds, Lacking, Listing, ProcView};
use plimsoll_report::ledger_json::{self, Earlier, SameProcess};
use plimsoll_report::ledger_text::{Explanation, Style};
use plimsoll_report::words::cut;
use plimsoll_report::{ledger_tables, ledger_text, metrics, prometheus};

use crate::output::{Color, print_message, require_stdout, shown, to_output};
use crate::{Failure, page, process_argument, progress, target};

#[derive(clap::Args)]
pub struct Args {
    /// PID or name of the process; without one, list what could be explained
    #[arg(value_name = "PID|NAME", conflicts_with = "process")]
    which: Option<OsString>,
    /// Choose a process whose name looks like an option, or by the id of its container
    #[arg(short = 'p', long = "process", value_name = "PID|NAME|CONTAINER", allow_hyphen_values = true)]
    process: Option<OsString>,
    /// List every mapping with its owner
    #[arg(long)]
    maps: bool,
    /// List every arena of glibc's malloc
    #[arg(long)]
    arenas: bool,
    /// Print text for people, JSON for programs, one HTML page for a ticket, or metrics for Prometheus
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Use colours
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    color: Color,
    /// Name the process like this in the metrics of --format prometheus [default: its name in /proc]
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Use this memory limit instead of the cgroup's: bytes, or 512m, 2g as in -Xmx
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    limit: Option<Bytes>,
    /// Show the change since this file, an earlier `explain --format json` of the same process
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
    Html,
    Prometheus,
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.target.is_some() && !matches!(args.format, Format::Prometheus) {
        return Err("--target names the process in metrics: it needs --format prometheus".into());
    }
    // Prometheus treats an empty label as one that isn't there.
    if args.target.as_deref().is_some_and(str::is_empty) {
        return Err("--target names the process in metrics: give a name that isn't empty".into());
    }
    if args.arenas && !matches!(args.format, Format::Text) {
        return Err("--arenas prints a table: leave --format out".into());
    }
    // Before the reading: a report that nobody can see must not cost the target anything.
    if args.output.is_none() {
        require_stdout()?;
    }
    let Some(target) = args.which.as_deref().or(args.process.as_deref()) else {
        refuse_without_target(&args)?;
        return list();
    };
    let pid = process_argument::pid_of(target, "explain")?;
    // --maps shows the owner of every mapping, so it always queries the VM; the ledger does so only where other sources
    // do not suffice.
    let announce = |command: &str| {
        print_message(format_args!(
            "--maps sends {command} to the JVM, process {pid}. The first time, that makes the JVM 4 to 5 MiB larger until it ends"
        ));
    };
    let regions = if args.maps { Regions::All(&announce) } else { Regions::AsNeeded };
    progress::begin(format_args!("reading process {pid}"));
    // Read the baseline first: reading a pipe may take long, and must not use up the time for the target.
    let earlier = args.baseline.as_deref().map(|file| Ok::<_, Failure>((file, read_baseline(file)?))).transpose()?;
    let mut snapshot = take_snapshot(pid, regions, Deadline::after(LOOK)).map_err(|refusal| Failure(refusal.0))?;
    snapshot.limit_requested = args.limit;
    if let Some((file, earlier)) = earlier {
        let (baseline, gap) = baseline(file, earlier, &snapshot)?;
        snapshot.baseline = Some(baseline);
        snapshot.gaps.extend(gap);
    }
    let ledger = Ledger::of(&snapshot);
    if let Some(file) = &args.baseline
        && let Some(baseline) = ledger.take_incomparable(&mut snapshot)
    {
        let gap = not_compared(file, &baseline, &snapshot);
        snapshot.gaps.push(gap);
    }
    let verdicts = judge(&snapshot, &ledger);
    let explanation = Explanation { snapshot, ledger, verdicts };
    let file = args.output.as_deref();
    let colour = args.color.is_on(file.is_none() && io::stdout().is_terminal());
    let style = Style { colour, width: width() };
    match args.format {
        Format::Html => return page::of_explanation(&explanation, file, Deadline::after(NAMES)),
        Format::Prometheus => metrics(&explanation, args.target.as_deref(), file)?,
        Format::Json => to_output(file, |mut out| ledger_json::write(&mut out, &explanation))?,
        Format::Text if args.maps || args.arenas => {
            to_output(file, |mut out| tables(&mut out, &explanation, &args, style.width))?;
        }
        Format::Text => to_output(file, |mut out| ledger_text::write(&mut out, &explanation, style))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the ledger's figures and, for a tracked process, those of its books.
fn metrics(explanation: &Explanation, target: Option<&str>, file: Option<&Path>) -> Result<(), Failure> {
    let process = &explanation.snapshot.process;
    let tracked = target::open(Path::new(&process.pid.to_string()), Deadline::after(NAMES)).ok();
    let ledger = ledger_json::document(explanation);
    let books = tracked.as_ref().map(|target| &target.books);
    let samples = metrics::Samples::of(target.unwrap_or(&process.name), &ledger, books);
    to_output(file, |out| prometheus::write(out, &[&samples], prometheus::Style::Prometheus))
}

/// A script whose PID is empty must not get the list of processes in place of a report.
fn refuse_without_target(args: &Args) -> Result<(), Failure> {
    let given = [
        (args.maps, "--maps"),
        (args.arenas, "--arenas"),
        (args.baseline.is_some(), "--baseline"),
        (args.limit.is_some(), "--limit"),
        (!matches!(args.format, Format::Text), "--format"),
        (args.output.is_some(), "-o"),
    ];
    match given.iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => {
            Err(format!("{option} needs a process: plimsoll explain PID. To list the processes, leave it out").into())
        }
        None => Ok(()),
    }
}

/// Without a target: what there is to explain, biggest first.
fn list() -> Result<ExitCode, Failure> {
    progress::begin("reading the list of processes");
    let Listing { mut all, is_whole } = processes::list(&mut KnownKinds::default(), Deadline::after(LOOK));
    all.retain(|of| of.identity.pid != std::process::id());
    let columns = width();
    let lacking = ProcView::now().lacking();
    to_output(None, |out| {
        writeln!(out, "{:>8}  {:>9}  process", "PID", "RSS")?;
        for of in &all {
            writeln!(out, "{}", process_argument::row(of, columns))?;
        }
        if !is_whole {
            writeln!(out, "\nProcesses are missing: not all could be read")?;
        }
        if let Some(Lacking { what, remedy, .. }) = &lacking {
            writeln!(out, "\n{what}: {remedy}")?;
        }
        writeln!(out, "\nplimsoll explain PID │ NAME")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn read_baseline(file: &Path) -> Result<Earlier, Failure> {
    let failed = |why: String| Failure(format!("'{}' {why}", shown(file)));
    let bytes = read_argument(file, FileKind::Saved, Deadline::after(NAMES)).map_err(|why| failed(why.to_string()))?;
    ledger_json::parse_baseline(&bytes).map_err(failed)
}

/// The baseline must describe this very process. A gap if it is unknown whether the same program ran.
fn baseline(file: &Path, earlier: Earlier, snapshot: &Snapshot) -> Result<(Baseline, Option<Gap>), Failure> {
    let pid = snapshot.process.pid;
    let was = cut(&earlier.command, 80);
    let next = format!("Give a report of this one: plimsoll explain {pid} --format json");
    let file = shown(file);
    let gap = match earlier.is_of(snapshot) {
        SameProcess::Yes => None,
        SameProcess::OtherArguments => {
            let reason = format!("the command line was another one at the baseline '{file}': {was}");
            let effect = "if the process executed a program since, the change compares two programs";
            Some(Gap::new(Source::Baseline, reason, effect))
        }
        SameProcess::OtherProgram => {
            return Err(Failure(format!(
                "'{file}' describes process {pid} while it ran another program ({was}). {next}"
            )));
        }
        SameProcess::OtherStart => {
            return Err(Failure(format!(
                "'{file}' describes another process, or the machine's clock was set since: by its time and uptime, process \
                 {pid} started at another moment. {next}"
            )));
        }
        SameProcess::No => {
            let of = earlier.pid;
            return Err(Failure(format!("'{file}' describes another process ({of}). {next}")));
        }
    };
    Ok((earlier.baseline, gap))
}

/// The two readings lack different sources.
fn not_compared(file: &Path, baseline: &Baseline, snapshot: &Snapshot) -> Gap {
    let now = lacking(&snapshot.gaps);
    let only_then = baseline.lacking.difference(&now).map(|source| (source, "then"));
    let only_one = only_then.chain(now.difference(&baseline.lacking).map(|source| (source, "now")));
    let lacking: Vec<String> =
        only_one.map(|(source, when)| format!("{} was not read in full {when}", source.name())).collect();
    let (file, pid) = (shown(file), snapshot.process.pid);
    let reason = format!("the baseline '{file}' can't be compared: {}", lacking.join(", "));
    let effect = "memory that moved to another line would look like growth, so no change is shown";
    let remedy = "# with the same rights as the later reading";
    Gap::new(Source::Baseline, reason, effect)
        .remedy(format!("plimsoll explain {pid} --format json > baseline.json   {remedy}"))
}

/// The tables alone: they are long, and other programs read them.
fn tables(out: &mut impl Write, explanation: &Explanation, args: &Args, width: usize) -> io::Result<()> {
    if args.maps {
        ledger_tables::maps(out, explanation, width)?;
    }
    if args.arenas {
        ledger_tables::arenas(out, explanation)?;
    }
    Ok(())
}

/// A number of bytes in the notation of -Xmx and `docker --memory`: the units k, m, g, t are powers of 1024.
pub fn bytes(text: &str) -> Result<Bytes, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return Err("expected a number of bytes, such as 536870912, 512m or 2g".into()),
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
        Some(0) => Err("a limit must be above 0".into()),
        Some(bytes) => Ok(Bytes(bytes)),
        None => Err("expected a number of bytes, such as 536870912, 512m or 2g".into()),
    }
}

/// Columns of the terminal, at least 40; without a terminal enough for the longest line.
fn width() -> usize {
    let from_environment = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let window = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    from_environment.or_else(window).filter(|columns| *columns > 0).map_or(132, |columns| columns.max(40))
}
