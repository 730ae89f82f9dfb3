//! `plimsoll record` at 1 s of a JVM with 2,000 mappings: the recorder's cost, the application's pauses, the size of a
//! file.

use super::attach::Busy;
use super::measure::{Waiting, columns, ended};
use super::results::{Results, verdict};
use super::run_order::of_turns;
use super::setup::Setup;
use super::stats::{Ratio, median};
use super::time_limit::{ONE_RUN, within};
use super::{Bench, java, words};
use crate::stage::{Result, folder, jdk, plimsoll};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A recorder that is ended when dropped.
struct Recorder(Child);

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn record(pid: &str, file: &str) -> Result<Command> {
    let mut command = Command::new(plimsoll()?);
    command.args(["record", pid, "--interval", "1s", "-o", file]).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Number of recordings of the bar's length: one alone would not show how much they differ.
const RECORDINGS: usize = 3;

pub fn cost(bench: &Bench, results: &mut Results) -> Result<()> {
    let seconds = 60.0;
    results.group(
        "Recording at 1 s",
        &format!(
            "fixtures/java/explain/Crowd.java, 200 threads and 2,000 mappings, for {seconds} s, {RECORDINGS} times; all JVMs live at the \
             same time, each with its recorder. The recorder's user and system time, its start and end included, of one core: median, and \
             the least and most, which the bar judges; the file's bytes, and an hour of four chunks, each with one minute like the first \
             and 14 like the later ones."
        ),
    );
    results.head(&[
        "what",
        "recorder, % of a core",
        "least to most",
        "bar",
        "",
        "a minute, KiB",
        "five, KiB",
        "an hour, MiB",
        "bar",
        "",
    ]);
    let classes = bench.classes_of(&["fixtures/java/explain/Crowd.java", "fixtures/java/explain/Truth.java"])?;
    let mut crowds: Vec<(String, Waiting)> = Vec::new();
    for major in if bench.quick { vec![25] } else { vec![25, 17] } {
        let Some(home) = jdk(major) else {
            results.missing(&[&format!("JDK {major}")], "it is not installed");
            continue;
        };
        let arguments = words(&["-Xmx128m", "-cp", &classes.display().to_string(), "Crowd", "200", "2000"]);
        for (name, setup) in
            [("without the tracker", Setup::Plain("plain")), ("sites sampled", Setup::Tracked("sampled"))]
        {
            let crowd = setup.watched(|| Waiting::start(setup.command(&java(&home), &arguments)?))?;
            crowds.push((format!("JDK {major}, {name}"), crowd));
        }
    }
    std::thread::sleep(Duration::from_secs(2));
    let short = (0..RECORDINGS).map(|_| recorded(&crowds, seconds)).collect::<Result<Vec<_>>>()?;
    // Names and metadata are written once in each chunk: the first minute has them, later ones do not.
    let minutes = if bench.quick { 2.0 } else { 5.0 };
    let long = recorded(&crowds, minutes * seconds)?;
    for (number, (name, _)) in crowds.iter().enumerate() {
        let of = |figure: usize| -> Vec<f64> { short.iter().map(|all| all[number][figure]).collect() };
        let (shares, bytes, longer) = (of(0), median(&of(1)), long[number][1]);
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        let most = shares.iter().copied().fold(0.0, f64::max);
        let later = (longer - bytes).max(0.0) / (minutes - 1.0);
        let hour = (4.0 * bytes + 56.0 * later) / 1048576.0;
        results.row(&[
            name.clone(),
            format!("{:.2}", median(&shares)),
            format!("{least:.2} to {most:.2}"),
            "≤ 1".into(),
            Ratio { value: median(&shares), low: least, high: most }.verdict(1.0).into(),
            format!("{:.0}", bytes / 1024.0),
            format!("{:.0}", longer / 1024.0),
            format!("{hour:.1}"),
            "≤ 8".into(),
            verdict(hour, 8.0),
        ]);
    }
    Ok(())
}

/// Records all at the same time, for that long. By recorder: % of a core, and the bytes of its file. Each takes a
/// hundredth of a core, so they don't slow one another down.
fn recorded(crowds: &[(String, Waiting)], seconds: f64) -> Result<Vec<[f64; 2]>> {
    let out = folder("bench/out")?;
    let files: Vec<PathBuf> = (0..crowds.len()).map(|number| out.join(format!("crowd-{number}.jfr"))).collect();
    let mut recorders = Vec::new();
    for ((_, crowd), file) in crowds.iter().zip(&files) {
        let mut command = record(&crowd.pid().to_string(), &file.display().to_string())?;
        recorders.push(command.args(["--duration", &format!("{seconds}s")]).spawn()?);
    }
    let spent = recorders.into_iter().map(ended).collect::<Result<Vec<_>>>()?;
    let mut figures = Vec::new();
    for ([processor, _], file) in spent.into_iter().zip(files) {
        figures.push([processor / seconds * 100.0, fs::metadata(&file)?.len() as f64]);
        fs::remove_file(file)?;
    }
    Ok(figures)
}

/// Length of a window of the application, in ms.
const WINDOW: u32 = 5000;
/// Length of a recording: its start, and what it writes at its end, are in the window, too.
const RECORDING: &str = "4s";

pub fn slowdown(bench: &Bench, results: &mut Results) -> Result<()> {
    let rounds = bench.rounds.max(6);
    results.group(
        "An application that is recorded",
        &format!(
            "Unsafe pairs of 512 B in one JVM with 2,000 mappings (bench/busy/Busy.java), tracked with sites sampled: windows of {} s in \
             turn, {rounds} rounds, the third of three with a whole recording of {RECORDING} at 1 s, its start and end included. The bar is what plain \
             against plain makes.",
            WINDOW / 1000
        ),
    );
    results.head(&["what", "way", "ns for a pair", "ratio", "95 % bound", "bar", ""]);
    let major = if jdk(25).is_some() { 25 } else { 17 };
    let setups = ["not recorded", "not recorded again", "recorded"].map(Setup::Plain);
    let mut busy = Busy::start(bench, &Setup::Tracked("sampled"), major, ["0", "2000", "0"])?;
    let file = folder("bench/out")?.join("busy.jfr").display().to_string();
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); setups.len()];
    // Rounds that don't count, because the recording ended after its window.
    let mut late = 0;
    // The round before the first warms up.
    for round in 0..=rounds {
        let mut figures = [0.0; 3];
        let mut is_whole = true;
        for setup in of_turns(setups.len(), round) {
            let recorder = match setup {
                2 => Some(Recorder(record(&busy.pid(), &file)?.args(["--duration", RECORDING]).spawn()?)),
                _ => None,
            };
            figures[setup] = busy.pairs(WINDOW)?;
            if let Some(mut recorder) = recorder {
                is_whole = recorder.0.try_wait()?.is_some();
                let status = within(ONE_RUN, recorder.0.id(), "plimsoll record", || Ok(recorder.0.wait()?))?;
                if !status.success() {
                    return Err(format!("the recorder: {status}").into());
                }
            }
        }
        if round > 0 && is_whole {
            values.iter_mut().zip(figures).for_each(|(values, figure)| values.push(figure));
        }
        late += usize::from(!is_whole);
    }
    if 3 * late > rounds {
        return Err(format!("{late} of {rounds} recordings ended after their window of {WINDOW} ms").into());
    }
    let columns = columns(&setups, &values);
    let bound = columns[1].ratio.high.max(1.0);
    results.setups(&format!("JDK {major}"), &columns, &[("recorded", bound)]);
    if late > 0 {
        results.add(&format!("\n{late} rounds are left out: the recording ended after its window.\n"));
    }
    fs::remove_file(file)?;
    Ok(())
}
