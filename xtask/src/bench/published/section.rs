//! Writes a table into its place: bench/RESULTS.md keeps the other tables and what `make bench` wrote, README.md one
//! line for each.

use std::fs;
use std::process::Command;

use super::Table;
use crate::stage::{Result, must, repository};

/// The section begins here; `make bench` leaves the rest of the file alone.
pub const SECTION: &str = "# Published tables, made again";
const INTRODUCTION: &str =
    "`make bench-published TABLE=N`; each table has the day, the machine and its load. Medians of alternating rounds.";

/// In README.md, the rows stand between this line and the next blank one.
const ROWS: &str = "| published table | made again |\n| --- | --- |\n";

/// `is_short`: fewer rounds than the table needs, so the figures are not published.
pub fn write(number: usize, title: &str, table: &Table, is_short: bool) -> Result<()> {
    let block = format!("## Published {number}: {title}\n\n{}\n{}", machine()?, table.text.trim_end());
    println!("{block}\n");
    if is_short {
        let file = crate::stage::folder("bench/published")?.join(format!("table-{number}.md"));
        fs::write(&file, format!("{block}\n"))?;
        eprintln!("written: {} (few rounds: not for bench/RESULTS.md)", file.display());
        return Ok(());
    }
    let results = repository().join("bench/RESULTS.md");
    fs::write(&results, with_block(&fs::read_to_string(&results)?, number, &block))?;
    let readme = repository().join("README.md");
    let row = format!("| [{number}. {title}](bench/RESULTS.md#{}) | {} |", anchor(number, title), table.summary);
    fs::write(&readme, with_row(&fs::read_to_string(&readme)?, number, &row))?;
    eprintln!("written: bench/RESULTS.md, README.md");
    Ok(())
}

/// The day, the commit, the machine and its load.
fn machine() -> Result<String> {
    let first = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
    let output_of = |program: &str, arguments: &[&str]| {
        must(Command::new(program).args(arguments)).map(first).unwrap_or_else(|_| "unknown".into())
    };
    let processor = fs::read_to_string("/proc/cpuinfo")?;
    let model = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Ok(format!(
        "{}, commit {}; {} × {}, Linux {}; load average {}.\n",
        output_of("date", &["-u", "+%F %H:%M UTC"]),
        output_of("git", &["-C", &repository().display().to_string(), "rev-parse", "--short", "HEAD"]),
        std::thread::available_parallelism()?.get(),
        model.map_or("unknown", |(_, name)| name),
        output_of("uname", &["-r"]),
        fs::read_to_string("/proc/loadavg")?.split(' ').take(3).collect::<Vec<_>>().join(" ")
    ))
}

/// GitHub's anchor of the heading.
fn anchor(number: usize, title: &str) -> String {
    let words = format!("published {number} {title}").to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-');
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The file with the block of this number added or replaced, the blocks in order.
fn with_block(text: &str, number: usize, block: &str) -> String {
    let (before, section) = text.split_once(SECTION).unwrap_or((text, ""));
    let mut blocks: Vec<(usize, String)> = Vec::new();
    for part in section.split("\n## Published ").skip(1) {
        let number = part.split(':').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        blocks.push((number, format!("## Published {}", part.trim_end())));
    }
    blocks.retain(|(one, _)| *one != number);
    blocks.push((number, block.to_owned()));
    blocks.sort_by_key(|(number, _)| *number);
    let blocks: Vec<String> = blocks.into_iter().map(|(_, block)| block).collect();
    format!("{}\n\n{SECTION}\n\n{INTRODUCTION}\n\n{}\n", before.trim_end(), blocks.join("\n\n"))
}

/// The README with this row; unchanged if it has no table.
fn with_row(text: &str, number: usize, row: &str) -> String {
    let Some((before, rest)) = text.split_once(ROWS) else { return text.to_owned() };
    let (rows, after) = match rest.strip_prefix('\n') {
        Some(after) => ("", after),
        None => rest.split_once("\n\n").unwrap_or((rest, "")),
    };
    let mut rows: Vec<&str> = rows.lines().filter(|line| !line.starts_with(&format!("| [{number}. "))).collect();
    rows.push(row);
    rows.sort_unstable();
    format!("{before}{ROWS}{}\n\n{after}", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_replaces_its_older_version() {
        let first = with_block("# Results\n\nall\n", 4, "## Published 4: Books\n\nold");
        let both = with_block(&first, 2, "## Published 2: Arenas\n\nx");
        let again = with_block(&both, 4, "## Published 4: Books\n\nnew");
        let expected = format!(
            "# Results\n\nall\n\n{SECTION}\n\n{INTRODUCTION}\n\n## Published 2: Arenas\n\nx\n\n## Published 4: Books\n\nnew\n"
        );
        assert_eq!(again, expected);
    }

    #[test]
    fn the_readme_has_one_row_for_each_table() {
        let readme = format!("# P\n\n{ROWS}| [4. Books](x) | old |\n\nmore\n");
        let found = with_row(&with_row(&readme, 4, "| [4. Books](x) | new |"), 1, "| [1. A](y) | z |");
        assert_eq!(found, format!("# P\n\n{ROWS}| [1. A](y) | z |\n| [4. Books](x) | new |\n\nmore\n"));
        let empty = with_row(&format!("{ROWS}\n## Next\n\nmore\n"), 1, "| [1. A](y) | z |");
        assert_eq!(empty, format!("{ROWS}| [1. A](y) | z |\n\n## Next\n\nmore\n"));
        assert_eq!(with_row("none", 1, "| [1. A](y) | z |"), "none");
        assert_eq!(anchor(2, "Arena caps, one"), "published-2-arena-caps-one");
    }
}
