//! `plimsoll why VERDICT`: prints the page on a verdict, which is part of the program.

use std::process::ExitCode;

use plimsoll_observer::verdict::VerdictId;
use plimsoll_report::words::printable;

use crate::Failure;
use crate::output::to_output;
use crate::suggestion::nearest_name;

#[derive(clap::Args)]
pub struct Args {
    /// Verdict, as 'plimsoll explain' names it; without it, list all verdicts
    verdict: Option<String>,
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let names = || {
        let mut names: Vec<&str> = VerdictId::ALL.iter().map(|verdict| verdict.id()).collect();
        names.sort_unstable();
        names
    };
    let text = match &args.verdict {
        None => names().join("\n") + "\n",
        Some(name) => match VerdictId::ALL.iter().find(|verdict| verdict.id() == name) {
            Some(verdict) => plain(verdict.page()),
            None => {
                let hint = match nearest_name(name, names()) {
                    Some(near) => format!("Did you mean '{near}'?"),
                    None => format!("The verdicts are: {}", names().join(", ")),
                };
                return Err(format!("unknown verdict '{}'. {hint}", printable(name)).into());
            }
        },
    };
    to_output(None, |out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

/// A page for a terminal: a link becomes its text, because the user may not have the file that it points to. A link in
/// brackets to a page outside of verdicts/ is removed.
fn plain(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let mut rest = page;
    while let Some(at) = rest.find("](") {
        let (Some(open), Some(close)) = (rest[..at].rfind('['), rest[at..].find(')')) else { break };
        let (text, target) = (&rest[open + 1..at], &rest[at + 2..at + close]);
        let (before, after) = (&rest[..open], &rest[at + close + 1..]);
        (out, rest) = match (before.strip_suffix(" ("), after.strip_prefix(')')) {
            (Some(before), Some(after)) if target.starts_with("../") => (out + before, after),
            _ => (out + before + text, after),
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verdict_has_a_page_that_begins_with_its_name() {
        for verdict in VerdictId::ALL {
            assert!(verdict.page().starts_with(&format!("# {}\n", verdict.id())), "{verdict:?}");
        }
    }

    /// A verdict is a claim: its page says what would show that it is wrong.
    #[test]
    fn each_page_says_what_would_contradict_it() {
        for verdict in VerdictId::ALL {
            assert_eq!(verdict.page().matches("\n**Contradicted by** ").count(), 1, "{verdict:?}");
        }
    }

    #[test]
    fn links_become_their_text() {
        assert_eq!(plain("a [b](c.md), [d](e) f\n"), "a b, d f\n");
        assert_eq!(plain("no [link and](nothing"), "no [link and](nothing");
        assert_eq!(plain("first ([x](../y.md)). [z](../y.md)\n"), "first. z\n");
        let pages = VerdictId::ALL.iter().map(|verdict| plain(verdict.page()));
        // Users of the program may not have its sources.
        let of_sources = ["docs/", "decisions/", "crates/", "fixtures/", ".md"];
        assert!(pages.clone().all(|page| of_sources.iter().all(|part| !page.contains(part))));
        assert!(plain(VerdictId::NativeLeak.page()).contains("`jcmd PID GC.run`"));
        assert!(VerdictId::ALL.iter().all(|verdict| !plain(verdict.page()).contains("](")));
    }
}
