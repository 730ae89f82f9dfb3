//! Reads and writes the parts of bench/RESULTS.md. Each group of `make bench` writes its part as soon as it is done, so
//! an interrupted run keeps its parts, and `make bench GROUP=NAME,…` measures the others:
//!
//! ```text
//! # Results of `make bench`              the head: days, commits, machines, made from the parts
//!
//! ## malloc+free pair                    a part
//!
//! `make bench GROUP=pairs`: 2026-11-28 00:41 to 00:49 UTC, commit 961cb834; 2 × AMD EPYC, Linux 6.18; load average …
//!
//! ## All bars                            counted from the parts
//!
//! # Published tables, made again         of `make bench-published`; kept
//! ```
//!
//! A part without such a line has no group: no command makes it. It is kept, behind the others.

use super::published::SECTION;
use std::cmp::Reverse;

const COMMAND: &str = "`make bench GROUP=";
const FAILED: &str = "**Not measured again: ";
const BARS: &str = "All bars";
const SOFTWARE: &str = "- installed on ";
const VERDICTS: [&str; 3] = ["holds", "fails", "open"];

/// A heading and the text below it.
struct Part {
    group: Option<String>,
    title: String,
    /// `DAY FROM to UNTIL UTC, commit COMMIT; MACHINE; LOAD`
    made: String,
    body: String,
}

/// The file.
pub struct Document {
    parts: Vec<Part>,
    /// The days on which this software was installed.
    software: Vec<(String, String)>,
    published: String,
}

impl Part {
    fn parse(section: &str) -> Part {
        let (title, rest) = section.split_once('\n').unwrap_or((section, ""));
        let (title, rest) = (title.trim().to_owned(), rest.trim());
        let (first, below) = rest.split_once('\n').unwrap_or((rest, ""));
        match first.strip_prefix(COMMAND).and_then(|line| line.split_once("`: ")) {
            Some((group, made)) => {
                let (made, body) = (made.trim_end_matches('.').to_owned(), below.trim().to_owned());
                Part { group: Some(group.to_owned()), title, made, body }
            }
            None => Part { group: None, title, made: String::new(), body: rest.to_owned() },
        }
    }

    fn text(&self) -> String {
        let made = self.group.as_ref().map_or(String::new(), |group| format!("{COMMAND}{group}`: {}.\n\n", self.made));
        format!("## {}\n\n{made}{}\n\n", self.title, self.body)
    }

    fn day(&self) -> &str {
        self.made.split(' ').next().unwrap_or_default()
    }

    fn commit(&self) -> &str {
        let first = self.made.split("; ").next().and_then(|first| first.split_once(", commit "));
        first.map_or("unknown", |(_, commit)| commit)
    }

    fn machine(&self) -> &str {
        self.made.split("; ").nth(1).unwrap_or("unknown")
    }
}

impl Document {
    pub fn parse(text: &str) -> Document {
        let (ours, published) = text.find(SECTION).map_or((text, ""), |at| text.split_at(at));
        let mut sections = ours.split("\n## ");
        let head = sections.next().unwrap_or_default();
        let software = head.lines().filter_map(|line| line.strip_prefix(SOFTWARE)?.split_once(": "));
        Document {
            software: software.map(|(days, text)| (days.to_owned(), text.to_owned())).collect(),
            parts: sections.map(Part::parse).filter(|part| part.title != BARS).collect(),
            published: published.to_owned(),
        }
    }

    /// Adds the part of a group, or replaces its older version. The order is that of `groups`.
    pub fn put(&mut self, group: &str, title: &str, made: &str, body: &str, groups: &[&str]) {
        self.parts.retain(|part| part.group.as_deref() != Some(group));
        self.parts.push(Part {
            group: Some(group.to_owned()),
            title: title.to_owned(),
            made: made.to_owned(),
            body: body.trim().to_owned(),
        });
        let place = |part: &Part| groups.iter().position(|group| part.group.as_deref() == Some(*group));
        self.parts.sort_by_key(|part| place(part).unwrap_or(usize::MAX));
    }

    /// A group failed: its older part stays, with a sentence about that.
    pub fn fail(&mut self, group: &str, made: &str, error: &str, groups: &[&str]) {
        let failure = format!("{FAILED}{made}: {error}**");
        match self.parts.iter_mut().find(|part| part.group.as_deref() == Some(group)) {
            Some(old) => {
                let kept = match old.body.strip_prefix(FAILED) {
                    Some(text) => text.split_once("\n\n").map_or("", |(_, kept)| kept),
                    None => old.body.as_str(),
                };
                old.body = format!("{failure}\n\n{kept}").trim().to_owned();
            }
            None => self.put(group, group, made, &failure, groups),
        }
    }

    /// Notes what is installed on this day.
    pub fn installed(&mut self, day: &str, software: &str) {
        match self.software.iter_mut().find(|(_, text)| text == software) {
            Some((days, _)) if days.split(", ").any(|one| one == day) => (),
            Some((days, _)) => *days = format!("{days}, {day}"),
            None => self.software.push((day.to_owned(), software.to_owned())),
        }
    }

    /// `words`: sentences that hold for all parts.
    pub fn text(&self, words: &str, groups: &[&str]) -> String {
        let mut text = format!("# Results of `make bench`\n\n{}\n{}\n", self.head(groups), words.trim());
        text += "\n";
        self.parts.iter().for_each(|part| text += &part.text());
        text += &self.bars();
        text.truncate(text.trim_end().len());
        text.push('\n');
        if !self.published.is_empty() {
            text.push('\n');
            text += &self.published;
        }
        text
    }

    /// Days, commits and machines of all parts, and where they differ; and the groups that have no part.
    fn head(&self, groups: &[&str]) -> String {
        let made: Vec<&Part> = self.parts.iter().filter(|part| part.group.is_some()).collect();
        let days = made.iter().map(|part| part.day());
        let days = match (days.clone().min(), days.max()) {
            (Some(first), Some(last)) if first != last => format!("{first} to {last}: {}", differing(&made, Part::day)),
            (Some(first), _) => first.to_owned(),
            _ => "none".to_owned(),
        };
        let mut head = format!("- days: {days}\n- commits: {}\n", differing(&made, Part::commit));
        head += &format!("- machines: {}\n", differing(&made, Part::machine));
        for (days, software) in &self.software {
            let days: Vec<&str> = days.split(", ").filter(|day| made.iter().any(|part| part.day() == *day)).collect();
            if !days.is_empty() {
                head += &format!("{SOFTWARE}{}: {software}\n", days.join(", "));
            }
        }
        let by_hand: Vec<String> =
            self.parts.iter().filter(|part| part.group.is_none()).map(|part| format!("*{}*", part.title)).collect();
        if !by_hand.is_empty() {
            head += &format!("- no command makes: {}\n", by_hand.join(", "));
        }
        let has_part = |group: &str| made.iter().any(|part| part.group.as_deref() == Some(group));
        let missing: Vec<&str> = groups.iter().copied().filter(|group| !has_part(group)).collect();
        if !missing.is_empty() {
            head += &format!("- groups without a part: {}\n", missing.join(", "));
        }
        head
    }

    fn bars(&self) -> String {
        let mut text = format!("## {BARS}\n\n| part | hold | fail | open |\n| --- | --- | --- | --- |\n");
        let mut sum = [0; 3];
        for part in &self.parts {
            let mut own = [0; 3];
            for (_, verdict) in bars(&part.body) {
                if let Some(kind) = verdict.and_then(|verdict| VERDICTS.iter().position(|one| *one == verdict)) {
                    own[kind] += 1;
                    sum[kind] += 1;
                }
            }
            if own != [0; 3] {
                text += &format!("| {} | {} | {} | {} |\n", part.title, own[0], own[1], own[2]);
            }
        }
        text + &format!("| all | {} | {} | {} |\n", sum[0], sum[1], sum[2])
    }
}

/// `961cb834; 267fedf9 for *Forks*, *Start*`: the value of most parts, and the parts that have another.
fn differing<'p>(parts: &[&'p Part], of: fn(&'p Part) -> &'p str) -> String {
    let mut values: Vec<(&str, Vec<String>)> = Vec::new();
    for &part in parts {
        let title = format!("*{}*", part.title);
        match values.iter_mut().find(|(value, _)| *value == of(part)) {
            Some((_, titles)) => titles.push(title),
            None => values.push((of(part), vec![title])),
        }
    }
    values.sort_by_key(|(_, titles)| Reverse(titles.len()));
    let list = values.iter().enumerate().map(|(at, (value, titles))| match at {
        0 => (*value).to_owned(),
        _ => format!("{value} for {}", titles.join(", ")),
    });
    list.collect::<Vec<_>>().join("; ")
}

/// The bars in the rows of tables: each row with its verdict, which stands in the bar's cell or in the next.
fn bars(text: &str) -> Vec<(&str, Option<&'static str>)> {
    let mut found = Vec::new();
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        for (at, bar) in cells.iter().enumerate().filter(|(_, cell)| cell.starts_with(['≤', '<', '≥'])) {
            let next = cells.get(at + 1).copied().unwrap_or_default();
            let judged = VERDICTS.into_iter().find(|verdict| bar.ends_with(*verdict) || next.starts_with(*verdict));
            found.push((row, judged));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [&str; 3] = ["pairs", "forks", "start"];

    fn made(day: &str, commit: &str) -> String {
        format!("{day} 00:41 to 00:49 UTC, commit {commit}; 2 × CPU, Linux 6; load average 0 0 0 before, 1 1 1 after")
    }

    #[test]
    fn a_group_replaces_its_own_part_only() {
        let mut document = Document::parse("");
        document.put("start", "Start", &made("2026-11-27", "aaaa"), "old start", &GROUPS);
        document.put("pairs", "malloc+free pair", &made("2026-11-27", "aaaa"), "pairs", &GROUPS);
        let by_hand = "\n## By hand\n\n2026-11-23, twenty runs\n\n# Published tables, made again\n\nkept\n";
        let first = document.text("Words.", &GROUPS).trim_end().to_owned() + "\n" + by_hand;
        let mut again = Document::parse(&first);
        again.put("start", "Start", &made("2026-11-28", "bbbb"), "new start", &GROUPS);
        again.put("forks", "Forks", &made("2026-11-28", "bbbb"), "forks", &GROUPS);
        let text = again.text("Words.", &GROUPS);
        let expected = format!(
            "# Results of `make bench`\n\n\
             - days: 2026-11-27 to 2026-11-28: 2026-11-28; 2026-11-27 for *malloc+free pair*\n\
             - commits: bbbb; aaaa for *malloc+free pair*\n- machines: 2 × CPU, Linux 6\n- no command makes: *By hand*\n\n\
             Words.\n\n\
             ## malloc+free pair\n\n`make bench GROUP=pairs`: {}.\n\npairs\n\n\
             ## Forks\n\n`make bench GROUP=forks`: {}.\n\nforks\n\n\
             ## Start\n\n`make bench GROUP=start`: {}.\n\nnew start\n\n\
             ## By hand\n\n2026-11-23, twenty runs\n\n\
             ## All bars\n\n| part | hold | fail | open |\n| --- | --- | --- | --- |\n| all | 0 | 0 | 0 |\n\n\
             # Published tables, made again\n\nkept\n",
            made("2026-11-27", "aaaa"),
            made("2026-11-28", "bbbb"),
            made("2026-11-28", "bbbb")
        );
        assert_eq!(text, expected);
        assert_eq!(Document::parse(&text).text("Words.", &GROUPS), expected, "a file that is read stays the same");
    }

    #[test]
    fn a_group_that_fails_leaves_the_older_part() {
        let mut document = Document::parse("");
        document.put("forks", "Forks", &made("2026-11-27", "aaaa"), "old forks", &GROUPS);
        for day in ["2026-11-28", "2026-11-29"] {
            document.fail("forks", &made(day, "bbbb"), "no disk", &GROUPS);
            document.fail("start", &made(day, "bbbb"), "no JDK", &GROUPS);
        }
        let text = document.text("", &GROUPS);
        let old = format!(
            "## Forks\n\n`make bench GROUP=forks`: {}.\n\n**Not measured again: {}: no disk**\n\nold forks\n\n",
            made("2026-11-27", "aaaa"),
            made("2026-11-29", "bbbb")
        );
        assert!(text.contains(&old), "{text}");
        assert!(text.contains("## start\n\n") && text.contains("- groups without a part: pairs\n"), "{text}");
        assert_eq!(text.matches("no JDK").count(), 1, "{text}");
        let mut mended = Document::parse(&text);
        mended.put("forks", "Forks", &made("2026-11-30", "cccc"), "new forks", &GROUPS);
        assert!(!mended.text("", &GROUPS).contains("no disk"));
    }

    #[test]
    fn software_is_named_for_its_days() {
        let mut document = Document::parse("");
        document.put("forks", "Forks", &made("2026-11-27", "aaaa"), "forks", &GROUPS);
        document.put("start", "Start", &made("2026-11-28", "aaaa"), "start", &GROUPS);
        for (day, software) in
            [("2026-11-26", "gcc 11"), ("2026-11-27", "gcc 12"), ("2026-11-28", "gcc 12"), ("2026-11-28", "gcc 12")]
        {
            document.installed(day, software);
        }
        let lines = document.text("", &GROUPS[1..]);
        let lines: Vec<&str> = lines.lines().filter(|line| line.starts_with(SOFTWARE)).collect();
        assert_eq!(lines, ["- installed on 2026-11-27, 2026-11-28: gcc 12"]);
    }

    #[test]
    fn bars_are_counted() {
        let mut document = Document::parse("");
        let rows =
            "| a | 1.0 | ≤ 1.20 | holds |\n| b | ≤ 2: fails | 3 | ≤ 1.3: holds |\n| c | < 50 | open: A/A |\n| d |  |\n";
        document.put("forks", "Forks", &made("2026-11-27", "aaaa"), rows, &GROUPS);
        assert!(document.text("", &GROUPS).contains("| Forks | 2 | 1 | 1 |\n| all | 2 | 1 | 1 |\n"));
        assert_eq!(bars("| a | 88.7 | ≤ 75 |"), [("| a | 88.7 | ≤ 75 |", None)]);
    }

    #[test]
    fn each_bar_in_the_results_has_a_verdict() {
        let text = std::fs::read_to_string(crate::stage::repository().join("bench/RESULTS.md")).expect("the results");
        let document = Document::parse(&text);
        let all: Vec<_> = document.parts.iter().flat_map(|part| bars(&part.body)).collect();
        assert!(all.len() > 100, "only {} bars", all.len());
        let without: Vec<&str> = all.iter().filter(|(_, verdict)| verdict.is_none()).map(|(row, _)| *row).collect();
        assert!(without.is_empty(), "rows with a bar and no verdict:\n{}", without.join("\n"));
    }
}
