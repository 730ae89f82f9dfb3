//! `plimsoll attach` to a JVM with 200 busy threads: does the application stop? And how fast is it after `detach`?

use super::measure::columns;
use super::results::{Results, verdict};
use super::run_order::of_turns;
use super::setup::Setup;
use super::stats::median;
use super::time_limit::{ONE_RUN, must_within_limit, within};
use super::{Bench, java, words};
use crate::stage::{Result, jdk, plimsoll};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// bench/busy/Busy.java, which answers each line with a line.
pub struct Busy {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What the threads do, and the milliseconds that each rests after a round of work. Without rest, 200 threads on few
/// processors block one another: each stop of the VM then waits until all of them had their turn, attach or not.
const LOADS: &[(&str, &str)] = &[("1 ms of work, 300 ms of rest", "300"), ("no rest", "0")];

/// Rounds without rest. One takes half a minute: the second attach waits until each of the 200 threads has run. Its
/// windows are long, so few show as much as many short ones.
const ROUNDS_WITHOUT_REST: usize = 5;

/// A window as the application measured it.
struct Window {
    milliseconds: f64,
    /// ms: the longest pause of all threads, and the sum of all pauses over 5 ms.
    largest: f64,
    gaps: f64,
}

impl Busy {
    pub fn start(bench: &Bench, setup: &Setup, major: u32, crowd: [&str; 3]) -> Result<Busy> {
        setup.watched(|| Busy::ready(bench, setup, major, crowd))
    }

    fn ready(bench: &Bench, setup: &Setup, major: u32, crowd: [&str; 3]) -> Result<Busy> {
        let home = jdk(major).ok_or_else(|| format!("JDK {major} is needed"))?;
        let classes = bench.classes_of(&["bench/busy/Busy.java"])?.display().to_string();
        let mut arguments = words(&["-XX:+UseSerialGC", "-Xmx64m", "-XX:+EnableDynamicAgentLoading"]);
        arguments.extend(words(&["-cp", &classes, "Busy"]));
        arguments.extend(words(&crowd));
        let mut command = setup.command(&java(&home), &arguments)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = pipes else { return Err("pipes were requested".into()) };
        let mut busy = Busy { child, input, output: BufReader::new(output) };
        match busy.line()?.as_str() {
            "ready" => Ok(busy),
            other => Err(format!("Busy: {other}").into()),
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        within(ONE_RUN, self.child.id(), "bench/busy/Busy.java", || Ok(self.output.read_line(&mut line)?))?;
        if line.is_empty() { Err("Busy ended".into()) } else { Ok(line.trim().to_string()) }
    }

    fn query(&mut self, command: &str) -> Result<String> {
        writeln!(self.input, "{command}")?;
        self.line()
    }

    /// Nanoseconds of one malloc+free pair, measured for `milliseconds`.
    pub fn pairs(&mut self, milliseconds: u32) -> Result<f64> {
        Ok(self.query(&format!("pairs {milliseconds}"))?.parse()?)
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn window(&mut self, meanwhile: impl FnOnce() -> Result<()>) -> Result<Window> {
        self.query("begin")?;
        let done = meanwhile();
        let answer = self.query("end")?;
        done?;
        let figures: Vec<f64> = answer.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?;
        let [milliseconds, largest, gaps] = figures[..] else { return Err(format!("Busy: {answer}").into()) };
        Ok(Window { milliseconds, largest, gaps })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn run_verb(verb: &str, pid: &str) -> Result<()> {
    let mut command = Command::new(plimsoll()?);
    command.args([verb, pid]);
    if verb == "attach" {
        command.arg("--yes");
    }
    must_within_limit(&mut command).map(drop)
}

/// A fresh JVM each round: the first attach loads the library, the second finds it.
pub fn pause(bench: &Bench, results: &mut Results) -> Result<()> {
    let rounds = |rest: &str| if rest == "0" { bench.rounds.min(ROUNDS_WITHOUT_REST) } else { bench.rounds };
    results.group(
        "Attach to a busy JVM",
        &format!(
            "bench/busy/Busy.java: 200 threads that compute and allocate, 2,000 mappings. A gap is a stretch in which none \
             of the 200 threads got on, as they themselves saw it; all gaps over 5 ms are added. Windows of the same length in which \
             nothing happens follow (A/A). Medians of {} new JVMs, without rest of {}; in brackets the worst.",
            rounds("300"),
            rounds("0")
        ),
    );
    results.head(&["JVM, its threads", "window", "length, ms", "largest gap, ms", "gaps in all, ms", "bar, ms", ""]);
    let loads = if bench.quick { &LOADS[..1] } else { LOADS };
    for major in [25, 17] {
        if jdk(major).is_none() {
            results.missing(&[&format!("JDK {major}")], "it is not installed");
            continue;
        }
        for (load, rest) in loads {
            let names = ["attach", "A/A", "detach", "A/A again", "attach again", "A/A, attached"];
            let mut windows: [Vec<Window>; 6] = Default::default();
            let mut refused = 0;
            for _ in 0..rounds(rest) {
                let mut busy = Busy::start(bench, &Setup::Plain("plain"), major, ["200", "2000", rest])?;
                let pid = busy.pid();
                // The compilers finish before the first window.
                std::thread::sleep(Duration::from_secs(3));
                for (number, verb) in ["attach", "detach", "attach"].into_iter().enumerate() {
                    let mut begin = Instant::now();
                    let mut window = busy.window(|| run_verb(verb, &pid));
                    // Until each thread has run since the detach, attach only reports that, and does nothing. On 2
                    // processors that takes a while.
                    for _ in 0..20 {
                        if number < 2 || window.is_ok() {
                            break;
                        }
                        refused += 1;
                        std::thread::sleep(Duration::from_secs(1));
                        begin = Instant::now();
                        window = busy.window(|| run_verb(verb, &pid));
                    }
                    let took = begin.elapsed();
                    windows[2 * number].push(window?);
                    windows[2 * number + 1].push(busy.window(|| {
                        std::thread::sleep(took);
                        Ok(())
                    })?);
                }
            }
            let of =
                |windows: &[Window], figure: fn(&Window) -> f64| -> Vec<f64> { windows.iter().map(figure).collect() };
            for (name, own) in names.into_iter().zip(&windows) {
                let worst = |figures: &[f64]| figures.iter().copied().fold(0.0, f64::max);
                let cell = |figure: fn(&Window) -> f64| -> String {
                    let figures = of(own, figure);
                    format!("{:.1} ({:.1})", median(&figures), worst(&figures))
                };
                let is_attach = name.starts_with("attach");
                results.row(&[
                    format!("JDK {major}, {load}"),
                    name.into(),
                    cell(|window| window.milliseconds),
                    cell(|window| window.largest),
                    cell(|window| window.gaps),
                    if is_attach { "< 50".into() } else { String::new() },
                    if is_attach { verdict(worst(&of(own, |window| window.gaps)), 50.0) } else { String::new() },
                ]);
            }
            if refused > 0 {
                results.add(&format!("\nJDK {major}, {load}: {refused} attaches were refused before the second ones: threads hadn't run since the detach.\n\n"));
            }
        }
    }
    Ok(())
}

/// JVMs that run in turn, side by side: never attached, attached and detached, still attached.
pub fn afterwards(bench: &Bench, results: &mut Results) -> Result<()> {
    let rounds = 2 * bench.rounds.max(6);
    results.group(
        "Speed after detach",
        &format!(
            "Unsafe pairs of 512 B (bench/busy/Busy.java, no other threads) in JVMs that live side by side, blocks of 300 ms in turn, \
             {rounds} rounds. The bar is what plain against plain makes."
        ),
    );
    results.head(&["what", "way", "ns for a pair", "ratio", "95 % bound", "bar", ""]);
    for major in [25, 17] {
        if jdk(major).is_none() {
            results.missing(&[&format!("JDK {major}")], "it is not installed");
            continue;
        }
        let setups = ["plain", "plain again", "detached", "attached, sites sampled"].map(Setup::Plain);
        let start = |setup: &Setup| Busy::start(bench, setup, major, ["0"; 3]);
        let mut busy = setups.iter().map(start).collect::<Result<Vec<Busy>>>()?;
        run_verb("attach", &busy[2].pid())?;
        busy[2].pairs(300)?;
        run_verb("detach", &busy[2].pid())?;
        run_verb("attach", &busy[3].pid())?;
        let mut values = vec![Vec::new(); setups.len()];
        for round in 0..=rounds {
            for setup in of_turns(setups.len(), round) {
                let figure = busy[setup].pairs(300)?;
                if round > 0 {
                    values[setup].push(figure);
                }
            }
        }
        let columns = columns(&setups, &values);
        let bound = columns[1].ratio.high.max(1.0);
        results.setups(&format!("JDK {major}"), &columns, &[("detached", bound)]);
    }
    Ok(())
}
