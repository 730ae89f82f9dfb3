//! Measures each mapping call alone, and how its cost grows with the number of mappings.

use super::measure::{instructions, together};
use super::results::{Results, verdict};
use super::setup::Setup;
use super::{Bench, words};
use crate::stage::Result;

const COUNTS: [u32; 4] = [20, 200, 2_000, 20_000];
/// A cost of order log n, divided by log n, doesn't rise, except for a step where a tree gets one more level.
const STEP: f64 = 1.1;

/// A name, the verb of bench/mapping.c, the number of its calls in a round, and the most instructions that a call may
/// gain.
const CALLS: [(&str, &str, f64, f64); 3] =
    [("mmap", "keep", 1.0, 200.0), ("munmap", "unmap", 1.0, 200.0), ("mprotect", "protect", 2.0, 300.0)];

pub fn alone(bench: &Bench, results: &mut Results) -> Result<()> {
    let program = bench.program("mapping")?;
    results.group(
        "One mapping call alone",
        "bench/mapping.c by callgrind: user-mode instructions of one call, two lengths subtracted. mmap begins with so many mappings and \
         makes up to 300 more; munmap removes up to 300 that there are besides. Like log n: what a call gains, divided by the logarithm \
         of the mappings to the base 2, rises by no more than a tenth from one row to the next.",
    );
    results.head(&["call", "mappings", "plain", "default", "gained", "bar", "", "gained / log n", "bar", ""]);
    for (name, verb, calls, most) in CALLS {
        let mut gains: Vec<f64> = Vec::new();
        for count in COUNTS {
            let cost = |setup: &Setup| -> Result<f64> {
                let run = |rounds: u32| {
                    let arguments = [count.to_string(), rounds.to_string(), verb.to_owned()];
                    instructions(setup, &program, &arguments).map(|count| count as f64)
                };
                let [few, many] = rounds(verb, count);
                Ok((run(many)? - run(few)?) / (calls * f64::from(many - few)))
            };
            let (plain, tracked) = together(|| cost(&Setup::Plain("plain")), || cost(&Setup::Tracked("sampled")))?;
            let gained = tracked - plain;
            gains.push(gained);
            let figures = [plain, tracked, gained].map(|figure| format!("{figure:.0}"));
            results.row(
                &[
                    words(&[name, &count.to_string()]).as_slice(),
                    figures.as_slice(),
                    &[format!("≤ {most:.0}"), verdict(gained, most)],
                    growth(&gains).as_slice(),
                ]
                .concat(),
            );
        }
    }
    Ok(())
}

/// The numbers of rounds of two runs. Their difference contains the calls alone. The first mprotect of a mapping costs
/// more than the next, so the shorter run has met each mapping. For munmap, bench/mapping.c has 300 spare mappings.
fn rounds(verb: &str, mappings: u32) -> [u32; 2] {
    match verb {
        "protect" => [1, 2].map(|times| times * mappings.max(100)),
        _ => [100, 300],
    }
}

/// The last of these gains, one for each of `COUNTS`, divided by log n: the figure, its bar, and the verdict. The first
/// has no bar.
fn growth(gains: &[f64]) -> [String; 3] {
    let levels: Vec<f64> = gains.iter().zip(COUNTS).map(|(gain, count)| gain / f64::from(count).log2()).collect();
    match levels.as_slice() {
        [.., before, last] => {
            let most = before * STEP;
            [format!("{last:.1}"), format!("≤ {most:.1}"), verdict(*last, most)]
        }
        [first] => [format!("{first:.1}"), String::new(), String::new()],
        [] => Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(gain: impl Fn(f64) -> f64) -> Vec<String> {
        let gains = COUNTS.map(|count| gain(f64::from(count)));
        (1..=gains.len()).map(|known| growth(&gains[..known])[2].clone()).collect()
    }

    #[test]
    fn only_what_grows_like_log_n_holds() {
        let holds = ["", "holds", "holds", "holds"];
        assert_eq!(verdicts(f64::log2), holds);
        assert_eq!(verdicts(|_| 300.0), holds);
        assert_eq!(verdicts(|n| 250.0 + 25.0 * n.log2()), holds);
        for (name, rises) in [
            ("a list", verdicts(|n| 300.0 + n / 10.0)),
            ("a root", verdicts(|n| 300.0 + 10.0 * n.sqrt())),
            ("log² n", verdicts(|n| n.log2() * n.log2())),
        ] {
            assert!(rises.contains(&"fails".to_owned()), "{name}: {rises:?}");
        }
    }

    #[test]
    fn one_more_level_of_a_tree_holds() {
        // Figures of the tracker's map, 2026-11-27; that for 200 lies between.
        let figures = [347.0, 415.0, 483.0, 627.0];
        let of = |n: f64| COUNTS.iter().position(|count| f64::from(*count) == n).map(|at| figures[at]);
        assert_eq!(verdicts(|n| of(n).expect("one of the counts")), ["", "holds", "holds", "holds"]);
    }
}
