//! `plimsoll attach` to a program with one thread, which the attach borrows: how long does that thread stand still?

use super::results::{Results, barred};
use super::stats::{bounded, median};
use super::time_limit::{ONE_RUN, within};
use super::{Bench, attach::run_verb, words};
use crate::stage::Result;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Milliseconds that a window lasts. The attach must end within it.
const WINDOW: u64 = 500;

/// ms: bars of the median and of the worst gap.
const BARS: [f64; 2] = [1.0, 20.0];

/// bench/gaps.c, killed with its user.
struct Gaps(Child, BufReader<std::process::ChildStdout>);

impl Gaps {
    fn start(bench: &Bench, way: &str) -> Result<Gaps> {
        let mut command = Command::new(bench.program("gaps")?);
        let mut child = command.arg(way).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("a pipe was requested")?;
        Ok(Gaps(child, BufReader::new(output)))
    }

    /// The longest gap of a window, and the sum of those above 0.2 ms, in ms.
    fn window(&mut self, meanwhile: impl FnOnce() -> Result<()>) -> Result<[f64; 2]> {
        writeln!(self.0.stdin.as_mut().ok_or("a pipe was requested")?, "{WINDOW}")?;
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(WINDOW / 10));
        let done = meanwhile();
        let took = began.elapsed();
        let mut line = String::new();
        within(ONE_RUN, self.0.id(), "bench/gaps.c", || Ok(self.1.read_line(&mut line)?))?;
        done?;
        if took > Duration::from_millis(WINDOW) {
            return Err(format!("a window of {WINDOW} ms ended before the attach did: {took:?}").into());
        }
        let figures: Vec<f64> = line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
        let [longest, all] = figures[..] else { return Err(format!("gaps: {line:?}").into()) };
        Ok([longest / 1000.0, all / 1000.0])
    }
}

impl Drop for Gaps {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a new program for each attach, so that each attach enters a program for the first time.
pub fn pause(bench: &Bench, results: &mut Results) -> Result<()> {
    let programs = bench.rounds * 3;
    results.group(
        "Attach to a native program",
        &format!(
            "bench/gaps.c: one thread, so the borrowed one, measures how long it was kept from running; {programs} programs of each kind, \
             each entered once. Windows of {WINDOW} ms in which nothing happens stand beside (A/A). A thread that waits sees only what \
             exceeds its wait of 1 ms, so its gaps read up to 1 ms low. Milliseconds. The bar of the median judges its bound of 95 %."
        ),
    );
    results.head(&[
        "its thread",
        "window",
        "longest gap, median",
        "bar",
        "",
        "worst",
        "bar",
        "",
        "gaps over 0.2 ms in all, median",
        "worst",
    ]);
    for way in ["computes", "allocates", "waits"] {
        let mut windows: [Vec<[f64; 2]>; 2] = Default::default();
        for _ in 0..programs {
            let mut gaps = Gaps::start(bench, way)?;
            let pid = gaps.0.id().to_string();
            gaps.window(|| Ok(()))?;
            windows[0].push(gaps.window(|| Ok(()))?);
            windows[1].push(gaps.window(|| run_verb("attach", &pid))?);
        }
        for (name, windows) in ["A/A", "attach"].into_iter().zip(&windows) {
            let of = |number: usize| -> Vec<f64> { windows.iter().map(|figures| figures[number]).collect() };
            let worst = |figures: &[f64]| figures.iter().copied().fold(0.0, f64::max);
            let (longest, all) = (of(0), of(1));
            let [median_judged, worst_judged]: [[String; 2]; 2] = match name {
                "A/A" => Default::default(),
                _ => [
                    [format!("≤ {}", BARS[0]), bounded(&longest).verdict(BARS[0]).into()],
                    barred(worst(&longest), BARS[1]),
                ],
            };
            let cell = |figure: f64| [format!("{figure:.2}")];
            results.row(
                &[
                    words(&[way, name]).as_slice(),
                    &cell(median(&longest)),
                    &median_judged,
                    &cell(worst(&longest)),
                    &worst_judged,
                    &cell(median(&all)),
                    &cell(worst(&all)),
                ]
                .concat(),
            );
        }
    }
    Ok(())
}
