//! `plimsoll why VERDICT`: the page on a verdict, from the program itself.

use std::io::{self, Write};
use std::process::ExitCode;

use plimsoll_report::words::printable;

use crate::Failure;
use crate::output::require_stdout;

#[derive(clap::Args)]
pub struct Args {
    /// The verdict as 'plimsoll explain' names it; without it, print their names
    verdict: Option<String>,
}

macro_rules! pages {
    ($($id:literal)*) => {
        const PAGES: &[(&str, &str)] = &[$(($id, include_str!(concat!("../../../docs/verdicts/", $id, ".md")))),*];
    };
}

pages! {
    "allocator-retention" "arena-retention" "class-growth" "code-cache-growth" "compiler-arena" "direct-buffer-growth" "growth" "healthy"
    "heap-committed-unused" "huge-pages" "limit-near" "map-count" "mapped-file-growth" "native-leak" "thread-stacks" "unclear"
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    require_stdout()?;
    let names = || PAGES.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    let text = match &args.verdict {
        None => names().join("\n") + "\n",
        Some(asked) => match PAGES.iter().find(|(id, _)| id == asked) {
            Some((_, page)) => plain(page),
            None => {
                let (asked, names) = (printable(asked), names().join(", "));
                return Err(format!("unknown verdict '{asked}'. The verdicts are: {names}").into());
            }
        },
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write the page: {error}").into())
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// A page as a terminal reads it: a link is its text, since the file that it leads to isn't there.
fn plain(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let mut rest = page;
    while let Some(at) = rest.find("](") {
        let (Some(open), Some(close)) = (rest[..at].rfind('['), rest[at..].find(')')) else { break };
        out += &rest[..open];
        out += &rest[open + 1..at];
        rest = &rest[at + close + 1..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use plimsoll_observer::verdict::VerdictId;

    use super::*;

    #[test]
    fn each_verdict_has_a_page_that_begins_with_its_name() {
        assert!(VerdictId::ALL.iter().all(|id| PAGES.iter().any(|(name, _)| *name == id.id())));
        assert_eq!(PAGES.len(), VerdictId::ALL.len());
        for (id, page) in PAGES {
            assert!(page.starts_with(&format!("# {id}\n")), "{id}");
        }
    }

    #[test]
    fn links_become_their_text() {
        assert_eq!(plain("a [b](c.md), [d](e) f\n"), "a b, d f\n");
        assert_eq!(plain("no [link and](nothing"), "no [link and](nothing");
        assert!(PAGES.iter().all(|(_, page)| !plain(page).contains("](")));
    }
}
