//! Alternating runs of one program in several setups, and counts from valgrind, strace and /proc.

use super::run_order::{of_round, of_turns, spacing_of_peers};
use super::setup::Setup;
use super::stats::{Ratio, median, paired};
use super::time_limit::{ONE_RUN, must_within_limit, within};
use crate::stage::{Result, folder};
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The measurements of one setup.
pub struct Column {
    pub name: String,
    pub median: f64,
    /// The ratio to the first setup, or to the setup that [`Setup::base`] names.
    pub ratio: Ratio,
}

/// What [`pairs`] has measured: for each setup its runs, and beside each the run of its base.
pub struct Pairs {
    pub own: Vec<Vec<f64>>,
    base: Vec<Vec<f64>>,
    /// By setup: why it has no figures.
    missing: Vec<Option<String>>,
}

impl Pairs {
    /// The setups that were measured.
    pub fn columns(&self, setups: &[Setup]) -> Vec<Column> {
        let column = |index: usize| Column {
            name: setups[index].name(),
            median: median(&self.own[index]),
            ratio: paired(&self.base[index], &self.own[index]),
        };
        (0..setups.len()).filter(|index| self.missing[*index].is_none()).map(column).collect()
    }

    /// The setups that were not measured, and why.
    pub fn missing(&self, setups: &[Setup]) -> Vec<(String, &str)> {
        let reasons = setups.iter().zip(&self.missing);
        reasons.filter_map(|(setup, reason)| Some((setup.name(), reason.as_deref()?))).collect()
    }

    /// A setup against its base, pair by pair.
    pub fn relative(&self, setup: usize) -> Vec<f64> {
        self.own[setup].iter().zip(&self.base[setup]).map(|(own, base)| own / base).collect()
    }
}

/// Runs each setup right beside its base, in half of the rounds right after it, in the others right before it. The
/// speed of a shared machine changes by half within seconds: two neighbouring runs share it, the medians of a session
/// don't. So many short pairs show more than a few long ones. Two setups share the base that stands between them, and
/// peers leave rounds out (`run_order`).
pub fn pairs(rounds: usize, setups: &[Setup], mut run: impl FnMut(&Setup) -> Result<f64>) -> Result<Pairs> {
    let [pairs] = pairs_of(rounds, setups, |setup| Ok([run(setup)?]))?;
    Ok(pairs)
}

/// [`pairs`] of runs that give several figures each.
pub fn pairs_of<const FIGURES: usize>(
    rounds: usize,
    setups: &[Setup],
    mut run: impl FnMut(&Setup) -> Result<[f64; FIGURES]>,
) -> Result<[Pairs; FIGURES]> {
    let empty = || vec![Vec::new(); setups.len()];
    let mut missing: Vec<Option<String>> = vec![None; setups.len()];
    let mut pairs: [Pairs; FIGURES] =
        std::array::from_fn(|_| Pairs { own: empty(), base: empty(), missing: missing.clone() });
    let mut measured = |index: usize, missing: &mut [Option<String>]| -> Result<Option<[f64; FIGURES]>> {
        let setup = &setups[index];
        if missing[index].is_some() {
            return Ok(None);
        }
        match setup.watched(|| run(setup)) {
            Ok(figures) => Ok(Some(figures)),
            Err(error) => leave_out(missing, index, setups, error).map(|()| None),
        }
    };
    for index in 0..setups.len() {
        // Warms the file cache and the unpacked tracker.
        measured(index, &mut missing)?;
    }
    for round in 0..rounds {
        let order = of_round(setups, round, spacing_of_peers(rounds));
        let figures = order.iter().map(|one| measured(one.setup, &mut missing)).collect::<Result<Vec<_>>>()?;
        for (one, own) in order.iter().zip(&figures) {
            let base = one.base.map_or(own, |base| &figures[base]);
            let (Some(own), Some(base)) = (own, base) else { continue };
            for (pairs, (own, base)) in pairs.iter_mut().zip(own.iter().zip(base)) {
                pairs.own[one.setup].push(*own);
                pairs.base[one.setup].push(*base);
            }
        }
    }
    pairs.iter_mut().for_each(|pairs| pairs.missing.clone_from(&missing));
    Ok(pairs)
}

/// Leaves out a peer that failed, with what is compared with it. A failure of ours, or of plain, is an error.
fn leave_out(missing: &mut [Option<String>], index: usize, setups: &[Setup], error: Box<dyn Error>) -> Result<()> {
    if !setups[index].is_peer() {
        return Err(error);
    }
    eprintln!("{}: {error}", setups[index].name());
    let reason = in_one_line(error.as_ref());
    for (other, setup) in setups.iter().enumerate() {
        if other == index || setup.base(setups) == index {
            missing[other] = Some(reason.clone());
        }
    }
    Ok(())
}

/// [`pairs`] of commands. The figure of a run is the last line of its output that is a number.
pub fn alternate(rounds: usize, setups: &[Setup], mut run: impl FnMut(&Setup) -> Result<Command>) -> Result<Pairs> {
    pairs(rounds, setups, |setup| number(&mut run(setup)?))
}

/// Runs A, B, C, …, B, C, …, A, …: the figures of each setup, round by round. Each round begins with another setup: the
/// first place alone makes a run slower by some percent.
pub fn turns(rounds: usize, setups: &[Setup], mut run: impl FnMut(&Setup) -> Result<f64>) -> Result<Vec<Vec<f64>>> {
    let mut values = vec![Vec::new(); setups.len()];
    // A round before the first warms the file cache and the unpacked tracker; its figures are not used.
    for round in 0..=rounds {
        for setup in of_turns(setups.len(), round) {
            let number = setups[setup].watched(|| run(&setups[setup]))?;
            if round > 0 {
                values[setup].push(number);
            }
        }
    }
    Ok(values)
}

/// Each against the first, round by round.
pub fn columns(setups: &[Setup], values: &[Vec<f64>]) -> Vec<Column> {
    let column = |(setup, own): (&Setup, &Vec<f64>)| Column {
        name: setup.name(),
        median: median(own),
        ratio: paired(&values[0], own),
    };
    setups.iter().zip(values).map(column).collect()
}

fn number(command: &mut Command) -> Result<f64> {
    let text = must_within_limit(command)?;
    let number = text.lines().rev().find_map(|line| line.trim().parse::<f64>().ok());
    number.ok_or_else(|| format!("{command:?}: no number in\n{text}").into())
}

/// User and system time of this process's ended children so far, in seconds.
pub fn children() -> Result<[f64; 2]> {
    // SAFETY: zeroes are a valid rusage, which the kernel fills.
    let (answer, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), usage)
    };
    if answer != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok([usage.ru_utime, usage.ru_stime].map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6))
}

/// Waits until a child has succeeded: its CPU seconds, with those of the children that it waited for, and the peak of
/// its RSS in MiB (wait4(2)).
pub fn ended(child: Child) -> Result<[f64; 2]> {
    let (pid, mut status) = (libc::pid_t::try_from(child.id())?, 0);
    // SAFETY: a rusage is numbers only, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals that outlive the call; the child is ours and nothing else waits for it.
    let wait = || Ok(unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) });
    let waited = within(ONE_RUN, child.id(), format_args!("process {pid}"), wait)?;
    if waited != pid || status != 0 {
        return Err(format!("process {pid} ended with {status:#x}").into());
    }
    let of = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok([of(usage.ru_utime) + of(usage.ru_stime), usage.ru_maxrss as f64 / 1024.0])
}

/// User and system time of a running process and of its ended children so far, in seconds. A tick is 10 ms.
pub fn with_children(pid: u32) -> Result<f64> {
    Ok(ticks(pid, [14, 15, 16, 17])? / 100.0)
}

/// The sum of these fields of proc_pid_stat(5).
fn ticks<const FIELDS: usize>(pid: u32, fields: [usize; FIELDS]) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let words: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let of = |field: usize| -> Result<f64> { Ok(words.get(field - 3).ok_or("stat is short")?.parse()?) };
    fields.into_iter().map(of).sum()
}

/// Processor time of the living threads of a process so far, in seconds. The first field of schedstat counts ns (the
/// kernel's Documentation/scheduler/sched-stats.rst).
pub fn of_threads(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        // The file of a thread that has ended is gone.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        sum += text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0);
    }
    Ok(sum / 1e9)
}

/// Processor time of a server with one thread, of its living children, and of its ended ones, in seconds. Only that of
/// the ended children comes in ticks of 10 ms.
pub fn of_family(pid: u32) -> Result<f64> {
    let mut sum = of_threads(pid)? + ticks(pid, [16, 17])? / 100.0;
    for child in children_of(pid)? {
        // A child may have ended since the list was read. Its time counts when the server has waited for it.
        sum += of_threads(child).unwrap_or(0.0);
    }
    Ok(sum)
}

/// The living children of a process with one thread.
pub fn children_of(pid: u32) -> Result<Vec<u32>> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = list.split_whitespace().map(str::parse).collect::<std::result::Result<Vec<u32>, _>>()?;
    Ok(children)
}

/// User-mode instructions of a whole run, by callgrind.
pub fn instructions(setup: &Setup, program: &Path, arguments: &[String]) -> Result<u64> {
    let mut command = callgrind(setup, program, arguments)?;
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let output = within(ONE_RUN, child.id(), &command, || Ok(child.wait_with_output()?))?;
    counted(&output).ok_or_else(|| {
        let log = String::from_utf8_lossy(&output.stderr);
        format!("{command:?}: {}, or no count in\n{log}", output.status).into()
    })
}

/// The count of a run under callgrind that succeeded: a run that ended early has a count, too.
fn counted(output: &Output) -> Option<u64> {
    if output.status.success() { collected(&String::from_utf8_lossy(&output.stderr)) } else { None }
}

/// Makes two counts at a time: other work on the machine doesn't change what is counted.
pub fn together<A: Send, B>(
    one: impl FnOnce() -> Result<A> + Send,
    other: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    std::thread::scope(|scope| {
        // An error can't be sent to another thread, but its text can.
        let one = scope.spawn(|| one().map_err(|error| error.to_string()));
        let other = other();
        let one = one.join().map_err(|_| "a count panicked")?;
        Ok((one?, other?))
    })
}

/// The command that counts, for programs that are driven from outside.
pub fn callgrind(setup: &Setup, program: &Path, arguments: &[String]) -> Result<Command> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--smc-check=all-non-file", "--callgrind-out-file=/dev/null"]);
    command.arg(program).args(arguments);
    command.envs(setup.environment()?);
    Ok(command)
}

/// `==123== Collected : 4567`
pub fn collected(log: &str) -> Option<u64> {
    let line = log.lines().rev().find_map(|line| line.split_once("Collected :"))?;
    line.1.split_whitespace().next()?.parse().ok()
}

/// System calls of a run, threads and children included.
pub fn system_calls(setup: &Setup, program: &Path, arguments: &[String]) -> Result<u64> {
    let file = folder("bench/out")?.join("strace");
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-U", "calls,name", "-o"]).arg(&file);
    // strace itself must not be tracked: it passes the environment to the program only.
    for (name, value) in setup.environment()? {
        command.arg("-E").arg(format!("{name}={value}"));
    }
    must_within_limit(command.arg(program).args(arguments))?;
    let text = fs::read_to_string(file)?;
    let calls = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (count, name) = (words.next()?.parse::<u64>().ok()?, words.next()?);
        (name != "total").then_some(count)
    });
    Ok(calls.sum())
}

/// A program that prints a line when it is ready and then waits; killed when dropped.
pub struct Waiting {
    child: Child,
    command: Command,
}

impl Waiting {
    pub fn start(mut command: Command) -> Result<Waiting> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut waiting = Waiting { child, command };
        match waiting.line()?.as_str() {
            "" => Err(format!("{:?}: ended before it was ready", waiting.command).into()),
            _ => Ok(waiting),
        }
    }

    /// The next line that the program prints; empty if the program ends instead. If several lines come together, only
    /// the first is kept.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let pid = self.pid();
        let output = self.child.stdout.as_mut().ok_or("a pipe was requested")?;
        within(ONE_RUN, pid, &self.command, || Ok(BufReader::new(output).read_line(&mut line)?))?;
        Ok(line)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn resident(&self) -> Result<u64> {
        resident_of(self.pid())
    }
}

/// Resident bytes: anonymous, file-backed and shared (proc_pid_status(5)).
pub fn resident_of(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    Ok((field("RssAnon:") + field("RssFile:") + field("RssShmem:")) << 10)
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An error as a sentence of a page: one line, not longer than some.
pub fn in_one_line(error: &dyn Error) -> String {
    const MOST: usize = 300;
    let text = error.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::path::PathBuf;
    use std::process::ExitStatus;

    #[test]
    fn the_count_of_callgrind_is_read() {
        let log = "==7== Events    : Ir\n==7== Collected : 165241\n==7== \n==7== I   refs:      165,241\n";
        assert_eq!(collected(log), Some(165_241));
        assert_eq!(collected("==7== killed\n"), None);
        let of = |status| Output {
            status: ExitStatus::from_raw(status),
            stdout: Vec::new(),
            stderr: log.as_bytes().to_vec(),
        };
        // The wait statuses of an exit with 0 and with 1, and of SIGKILL.
        assert_eq!([0, 0x100, 9].map(|status| counted(&of(status))), [Some(165_241), None, None]);
    }

    #[test]
    fn a_peer_that_fails_costs_its_own_rows_only() {
        let setups = [
            Setup::Plain("plain"),
            Setup::Plain("plain again"),
            Setup::Heaptrack,
            Setup::Allocator("jemalloc", PathBuf::new()),
            Setup::JemallocProfiler(PathBuf::new()),
        ];
        let mut runs = 0;
        let measured = pairs(4, &setups, |setup| match setup {
            Setup::Heaptrack => Err("no heaptrack\non this machine".into()),
            Setup::Allocator(..) => {
                runs += 1;
                // It fails in its third round.
                if runs > 3 { Err("killed".into()) } else { Ok(0.5) }
            }
            _ => Ok(1.0),
        })
        .expect("plain runs");
        let names: Vec<String> = measured.columns(&setups).into_iter().map(|column| column.name).collect();
        assert_eq!(names, ["plain", "plain again"]);
        assert_eq!(measured.own[1].len(), 4);
        let missing: Vec<&str> = measured.missing(&setups).into_iter().map(|(_, reason)| reason).collect();
        assert_eq!(missing, ["no heaptrack on this machine", "killed", "killed"]);
        let ours = pairs(4, &setups[..2], |setup| match setup {
            Setup::Plain("plain again") => Err("killed".into()),
            _ => Ok(1.0),
        });
        assert_eq!(ours.err().map(|error| error.to_string()).as_deref(), Some("killed"));
    }

    #[test]
    fn the_time_of_a_family_has_that_of_its_living_and_of_its_ended_children() {
        let spin = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("sh -c '{spin}'; sh -c '{spin}; echo spun; exec sleep 60' & wait")]);
        let family = Waiting::start(shell).expect("it spins");
        let pid = family.pid();
        let children = children_of(pid).expect("children");
        let [child] = children[..] else { panic!("{children:?}") };
        let parts = || {
            let ended = ticks(pid, [16, 17]).expect("ticks") / 100.0;
            let [own, living] = [pid, child].map(|pid| of_threads(pid).expect("schedstat"));
            assert!(ended > 0.0 && living > 0.0, "{ended} {living}");
            own + ended + living
        };
        let (before, all, after) = (parts(), of_family(pid).expect("a time"), parts());
        assert!(before <= all && all <= after, "{before} {all} {after}");
        must_within_limit(Command::new("kill").arg(child.to_string())).expect("it lives");
    }

    #[test]
    fn two_counts_are_made_at_a_time() {
        // Each of the two runs waits for the other.
        let barrier = std::sync::Barrier::new(2);
        let waits = |number: u32| {
            barrier.wait();
            Ok(number)
        };
        assert_eq!(together(|| waits(1), || waits(2)).expect("both"), (1, 2));
        let failed = together(|| Err::<(), _>("no count".into()), || Ok(1));
        assert_eq!(failed.expect_err("it failed").to_string(), "no count");
    }

    #[test]
    fn in_turns_no_setup_is_always_the_first() {
        let setups = ["a", "b", "c"].map(Setup::Plain);
        let mut places = Vec::new();
        let values = turns(3, &setups, |setup| {
            places.push(setup.name());
            Ok(places.len() as f64)
        });
        // Four rounds, of which the first warms up.
        assert_eq!(places.concat(), "abcbcacabcba");
        assert_eq!(values.expect("figures"), [[6.0, 8.0, 12.0], [4.0, 9.0, 11.0], [5.0, 7.0, 10.0]]);
    }

    #[test]
    fn a_pair_has_two_figures_of_neighbouring_runs() {
        let setups = ["plain", "again"].map(Setup::Plain);
        let mut runs = 0.0;
        let found = pairs_of(2, &setups, |_| {
            runs += 1.0;
            Ok([runs, 10.0 * runs])
        });
        // After two runs that warm up: again, plain; then plain, again.
        let [first, second] = found.expect("figures");
        assert_eq!(first.own, [[4.0, 5.0], [3.0, 6.0]]);
        assert_eq!(first.base, [[4.0, 5.0], [4.0, 5.0]]);
        assert_eq!(second.own[1], [30.0, 60.0]);
    }
}
