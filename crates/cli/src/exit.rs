//! Exit statuses. docs/cli.md has this table.

use std::process::ExitCode;

macro_rules! exits {
    ($($name:ident $code:literal $meaning:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Exit { $(#[doc = $meaning] $name = $code),* }

        impl Exit {
            #[cfg(test)]
            pub const ALL: &'static [(u8, &'static str)] = &[$(($code, $meaning)),*];
        }
    };
}

exits! {
    Done 0 "The command succeeded."
    OverBudget 1 "`compare`: a line grew beyond its budget."
    Failed 2 "The command failed, or did only part of its work; standard error says why. `try`, `compare`: no run succeeded."
    CannotStart 126 "`run`, `record`: the command can't be started."
    NotFound 127 "`run`, `record`: there is no such command."
    Interrupted 130 "`try`, `compare`: interrupted; the table so far was printed."
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, fs};

    const BEGIN: &str = "| exit status | |\n| --- | --- |\n";

    /// `BLESS=1` writes the table.
    #[test]
    fn the_table_in_the_documentation_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let page = fs::read_to_string(path).expect("docs/cli.md");
        let (before, rest) = page.split_once(BEGIN).expect("a table of exit statuses");
        let after = rest.find("\n\n").map_or("", |at| &rest[at..]);
        let rows: Vec<String> = Exit::ALL.iter().map(|(code, meaning)| format!("| {code} | {meaning} |")).collect();
        let made = format!("{before}{BEGIN}{}{after}", rows.join("\n"));
        if env::var_os("BLESS").is_some() {
            fs::write(path, &made).expect("docs/cli.md is writable");
        }
        assert!(made == page || env::var_os("BLESS").is_some(), "docs/cli.md: BLESS=1 writes the table");
    }
}
