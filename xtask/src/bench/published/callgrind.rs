//! Reads callgrind's output file: what calls of a function cost, with all that they call.
//!
//! ```text
//! fn=(12) caller        a name stands behind its number once; later the number is enough
//! cfn=(34) callee
//! calls=200 0           the number of calls from here; the next line has their cost, after a position
//! 0 386784
//! ```
//! (Valgrind's manual, "Callgrind Format Specification".)

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::bench::time_limit::must_within_limit;
use crate::stage::{Result, folder};

/// Calls of one function by another, and their instructions.
#[derive(Debug, Default, PartialEq)]
pub struct Calls(Vec<(String, String, u64, u64)>);

impl Calls {
    /// Runs a program under callgrind; returns what it printed, too.
    pub fn of(program: &Path, arguments: &[String]) -> Result<(Calls, String)> {
        let file = folder("bench/out")?.join("callgrind.published");
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--smc-check=all-non-file", "--quiet"]);
        command.arg(format!("--callgrind-out-file={}", file.display())).arg(program).args(arguments);
        let printed = must_within_limit(&mut command)?;
        Ok((Calls::parse(&fs::read_to_string(file)?), printed))
    }

    fn parse(text: &str) -> Calls {
        let mut names: HashMap<&str, &str> = HashMap::new();
        let mut calls = Vec::new();
        let (mut caller, mut callee, mut number) = ("", "", None);
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("fn=") {
                caller = resolved(rest, &mut names);
            } else if let Some(rest) = line.strip_prefix("cfn=") {
                callee = resolved(rest, &mut names);
            } else if let Some(rest) = line.strip_prefix("calls=") {
                number = rest.split(' ').next().and_then(|number| number.parse().ok());
            } else if let Some(count) = number.take() {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok()).unwrap_or(0);
                calls.push((caller.to_owned(), callee.to_owned(), count, cost));
            }
        }
        Calls(calls)
    }

    /// Instructions of one call of a function whose name contains `callee`, from those whose name contains `caller`.
    pub fn each(&self, caller: &str, callee: &str) -> Option<f64> {
        let found = self.0.iter().filter(|(from, to, ..)| from.contains(caller) && to.contains(callee));
        let (calls, cost) = found.fold((0, 0), |(calls, sum), (_, _, count, cost)| (calls + count, sum + cost));
        (calls > 0).then(|| cost as f64 / calls as f64)
    }
}

/// `(12) name`, or `(12)` for a name that was given before.
fn resolved<'t>(text: &'t str, names: &mut HashMap<&'t str, &'t str>) -> &'t str {
    match text.split_once(' ') {
        Some((number, name)) => {
            names.insert(number, name);
            name
        }
        None => names.get(text).copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_their_caller() {
        let text = "events: Ir\nfn=(1) main\n0 5\ncfn=(2) Books::reserve(char*)\ncalls=100 0\n0 39964\n\
            fn=(3) rounds_of\ncfn=(2)\ncalls=20 12\n+3 20000\n0 7\nfn=(1)\ncfn=(3)\ncalls=1 0\n0 20007\n";
        let calls = Calls::parse(text);
        assert_eq!(calls.each("rounds_of", "reserve"), Some(1000.0));
        assert_eq!(calls.each("main", "reserve"), Some(399.64));
        assert_eq!((calls.each("", "rounds_of"), calls.each("main", "commit")), (Some(20007.0), None));
    }
}
