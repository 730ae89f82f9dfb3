//! Tasks of the project that are not part of the product: `cargo run -p xtask -- VERB`.

mod bench;
mod demo;
mod dist;
mod images;
#[path = "../../fixtures/random.rs"]
mod random;
mod stage;
mod test;

use std::process::ExitCode;

const USAGE: &str = "usage: xtask bench [--quick] [--only GROUP,…] | bench-published [--table N] [--rounds N] | demo [RELEASE.tar.gz] | dist [CPU…] | native-images | ";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("bench") => bench::run(&arguments[1..]),
        Some("bench-published") => bench::published::run(&arguments[1..]),
        Some("demo") => demo::run(&arguments[1..]),
        Some("dist") => dist::run(&arguments[1..]),
        Some("native-images") => images::build(),
        Some("test") => match test::run(&arguments[1..]) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        _ => Err(format!("{USAGE}{}", test::USAGE).into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
