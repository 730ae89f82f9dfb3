//! Writes a table into its place: bench/RESULTS.md keeps the other tables and what `make bench` wrote, README.md some
//! sentences on each.

use std::fs;

use super::Table;
use crate::stage::{Result, repository};

/// The section begins here; `make bench` leaves the rest of the file alone.
pub const SECTION: &str = "# Published tables, made again";
const INTRODUCTION: &str =
    "`make bench-published TABLE=N`; each table has the day, the machine and its load. Medians of alternating rounds.";

/// In README.md, the entries stand at the end of the section with this heading.
const HEADING: &str = "## Published tables, made again\n";
/// Columns of the README's lines.
const WIDTH: usize = 120;

/// `made`: the day, the commit, the machine and its load. `is_short`: fewer rounds than the table needs, so the figures
/// are not published.
pub fn write(number: usize, title: &str, table: &Table, made: &str, is_short: bool) -> Result<()> {
    let block = format!("## Published {number}: {title}\n\n{made}.\n\n{}", table.text.trim_end());
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
    let entry = entry(number, title, &table.summary);
    fs::write(&readme, with_entry(&fs::read_to_string(&readme)?, number, &entry))?;
    eprintln!("written: bench/RESULTS.md, README.md");
    Ok(())
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

/// The link to the table, and below it the summary.
fn entry(number: usize, title: &str, summary: &str) -> String {
    let mut entry = format!("[{number}. {title}](bench/RESULTS.md#{}):", anchor(number, title));
    let mut used = WIDTH;
    for word in summary.split(' ') {
        let wide = 1 + word.chars().count();
        if used + wide > WIDTH {
            entry.push_str("\n  ");
            used = 1 + wide;
        } else {
            entry.push(' ');
            used += wide;
        }
        entry.push_str(word);
    }
    entry
}

/// The README with this entry; unchanged if it lacks the section.
fn with_entry(text: &str, number: usize, entry: &str) -> String {
    let Some((before, rest)) = text.split_once(HEADING) else { return text.to_owned() };
    let (section, after) = rest.find("\n## ").map_or((rest, ""), |end| rest.split_at(end));
    let (introduction, list) = section.split_once("\n- ").unwrap_or((section, ""));
    let of_others = |other: &&str| !other.is_empty() && !other.starts_with(&format!("[{number}. "));
    let mut entries: Vec<&str> = list.split("\n- ").map(str::trim_end).filter(of_others).collect();
    entries.push(entry);
    entries.sort_unstable();
    format!("{before}{HEADING}{}\n\n- {}\n{after}", introduction.trim_end(), entries.join("\n- "))
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
    fn the_readme_has_one_entry_for_each_table() {
        let of =
            |entries: &str| format!("# P\n\n{HEADING}\nIntroduction.\n\n{entries}\n\n## Next\n\n- [1. other](z)\n");
        let readme = of("- [4. Books](x)\n  old\n  figures");
        let found = with_entry(&with_entry(&readme, 4, "[4. Books](x)\n  new"), 1, "[1. A](y)\n  z");
        assert_eq!(found, of("- [1. A](y)\n  z\n- [4. Books](x)\n  new"));
        assert_eq!(with_entry(&found, 1, "[1. A](y)\n  z"), found);
        let at_the_end = with_entry(&format!("{HEADING}\nI.\n"), 1, "[1. A](y)\n  z");
        assert_eq!(at_the_end, format!("{HEADING}\nI.\n\n- [1. A](y)\n  z\n"));
        assert_eq!(with_entry("none", 1, "[1. A](y)"), "none");
        assert_eq!(anchor(2, "Arena caps, one"), "published-2-arena-caps-one");
    }

    #[test]
    fn the_lines_of_an_entry_fit() {
        let summary = "ten chars ".repeat(30);
        let entry = entry(2, "Arenas", summary.trim_end());
        let lines: Vec<&str> = entry.lines().collect();
        assert_eq!(lines[0], "[2. Arenas](bench/RESULTS.md#published-2-arenas):");
        assert!(lines[1..].iter().all(|line| line.starts_with("  ten") || line.starts_with("  chars")), "{entry}");
        assert_eq!(lines[1..].join(" ").split_whitespace().collect::<Vec<_>>().join(" "), summary.trim_end());
        let widths: Vec<usize> = lines[1..].iter().map(|line| line.chars().count()).collect();
        assert_eq!(widths, [115, 117, 71]);
    }
}
