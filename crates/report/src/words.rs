//! Formats figures and foreign text: counts with separators, moments, and names that cannot move the cursor.

use std::borrow::Cow;
use std::sync::OnceLock;

pub(crate) use plimsoll_facts::shell::turns_text;
use plimsoll_facts::units::Bytes;
pub use plimsoll_facts::units::{count, counted};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A difference with its sign: `+1.50 MiB`, `−4.00 KiB`.
pub fn signed(change: i64) -> String {
    format!("{}{}", if change < 0 { '−' } else { '+' }, Bytes(change.unsigned_abs()))
}

/// Text of a target (command, path, symbol, thread name) made safe for a terminal: control bytes, C1 codes and
/// bidirectional overrides are escaped. Everything else stays as it is.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if turns_text(c) => out.extend(c.escape_unicode()),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Columns that the text takes on a terminal: two for a wide character (Chinese, Japanese, Korean), none for a
/// combining mark.
pub fn columns(text: &str) -> usize {
    text.width()
}

/// Printable text, cut to `width` columns with an ellipsis.
pub fn cut(text: &str, width: usize) -> String {
    let text = printable(text);
    if columns(&text) <= width {
        return text;
    }
    let (first, _) = split(&text, width.saturating_sub(1));
    format!("{first}…")
}

/// Like `cut`, for the names of several rows. Names that differ never look equal. If their beginnings are the same,
/// they keep their ends. If these are the same too, they get their number.
pub(crate) fn cut_apart<'t>(names: impl IntoIterator<Item = &'t str>, width: usize) -> Vec<String> {
    let names: Vec<&str> = names.into_iter().collect();
    let beginnings: Vec<String> = names.iter().map(|name| cut(name, width)).collect();
    let ends = apart(&names, &beginnings, |at| end(names[at], width));
    apart(&names, &ends, |at| cut(&format!("{at}: {}", names[at]), width))
}

/// The rows as they are shown; `other` replaces one that looks like that of another name.
fn apart(names: &[&str], shown: &[String], other: impl Fn(usize) -> String) -> Vec<String> {
    let looks_equal = |at: usize| (0..names.len()).any(|of| names[of] != names[at] && shown[of] == shown[at]);
    (0..names.len()).map(|at| if looks_equal(at) { other(at) } else { shown[at].clone() }).collect()
}

/// The end of a text, after an ellipsis.
fn end(text: &str, width: usize) -> String {
    let text = printable(text);
    let mut used = 1;
    let fits = |(_, c): &(usize, char)| {
        used += c.width().unwrap_or(0);
        used <= width
    };
    let from = text.char_indices().rev().take_while(fits).last().map_or(text.len(), |(at, _)| at);
    format!("…{}", &text[from..])
}

/// Like `cut`, filled with spaces up to `width` columns.
pub fn padded(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let spaces = " ".repeat(width.saturating_sub(columns(&text)));
    text + &spaces
}

/// The part of the text that fits into `width` columns, and the rest. A combining mark stays with its character.
pub fn split(text: &str, width: usize) -> (&str, &str) {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > width
    });
    text.split_at(end.map_or(text.len(), |(at, _)| at))
}

/// How a shell finds this program, if not by its name alone.
static CALLED: OnceLock<String> = OnceLock::new();

/// From now on, commands in texts have `path` in place of `plimsoll`: the words that a shell reads as the program.
pub fn call_the_program(path: String) {
    let _ = CALLED.set(path);
}

/// A text with commands, as they find the program.
pub fn as_called(text: &str) -> Cow<'_, str> {
    CALLED.get().map_or(Cow::Borrowed(text), |path| called(text, path).into())
}

/// Replaces `plimsoll` only before one of its verbs, because in a sentence it is a name. Words after `--` are the
/// command of another program.
fn called(text: &str, path: &str) -> String {
    const VERBS: [&str; 13] = [
        "run", "attach", "detach", "explain", "record", "watch", "serve", "report", "diff", "try", "compare", "why",
        "doctor",
    ];
    let words: Vec<&str> = text.split(' ').collect();
    let mut is_own = true;
    let replaced = words.iter().enumerate().map(|(at, word)| {
        is_own = match *word {
            "--" => false,
            "#" | "&&" => true,
            _ => is_own,
        };
        let is_call = is_own && *word == "plimsoll" && words.get(at + 1).is_some_and(|verb| VERBS.contains(verb));
        if is_call { path } else { word }
    });
    replaced.collect::<Vec<_>>().join(" ")
}

/// A line to paste into a shell. One with more than `most` characters has its middle left out, and becomes a comment: a
/// command without some of its words must not run.
pub fn typed(line: &str, most: usize) -> String {
    let text = printable(&as_called(line));
    let length = text.chars().count();
    if length <= most {
        return text;
    }
    let (head, tail) = (most * 2 / 3, most / 4);
    let first: String = text.chars().take(head).collect();
    let last: String = text.chars().skip(length - tail).collect();
    let length = count(length as u64);
    format!("# shortened from {length} characters, all of which are in --format json: {first} … {last}")
}

/// First words of commands that follow a colon in a sentence.
const COMMANDS: [&str; 9] =
    ["plimsoll", "jcmd", "sudo", "setpriv", "systemctl", "docker", "redis-cli", "valkey-cli", "rm"];

/// Words in rows of at most `width` columns. A command after a colon, up to the end or a semicolon, is one word: broken
/// in two rows, it could not be copied.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let words: Vec<&str> = text.split(' ').collect();
    let mut at = 0;
    while at < words.len() {
        let is_command = at > 0 && words[at - 1].ends_with(':') && COMMANDS.contains(&words[at]);
        let rest = &words[at..];
        let length = if is_command {
            rest.iter().position(|word| word.ends_with(';')).map_or(rest.len(), |end| end + 1)
        } else {
            1
        };
        let word = rest[..length].join(" ");
        at += length;
        let full = rows.last().is_some_and(|row| !row.is_empty() && columns(row) + 1 + columns(&word) > width);
        if full {
            rows.push(String::new());
        }
        if let Some(row) = rows.last_mut() {
            if !row.is_empty() {
                row.push(' ');
            }
            row.push_str(&word);
        }
    }
    rows
}

/// `3 d 4 h`, `4 h 2 min`, `2 min 5 s`, `5.3 s`, `12 ms`: from one minute on, the two largest units.
pub fn duration(ns: u64) -> String {
    let s = ns / 1_000_000_000;
    match s {
        0 if ns < 100_000_000 => format!("{} ms", ns / 1_000_000),
        0..60 => format!("{}.{} s", s, ns / 100_000_000 % 10),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86400, s / 3600 % 24),
    }
}

/// ns since 1970 as RFC 3339 in UTC, with milliseconds: `2026-11-20T21:40:03.250Z`.
pub fn moment(ns: u64) -> String {
    let (s, ms) = (ns / 1_000_000_000, ns / 1_000_000 % 1000);
    let (year, month, day) = civil(s / 86400);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// Like `moment`, for people: `2026-11-20 21:40:03 UTC`.
pub fn moment_text(ns: u64) -> String {
    moment(ns)[..19].replace('T', " ") + " UTC"
}

/// 2⁶⁴ ns after 1970 is 2554-07-21T23:34:33.709.
const LAST_YEAR: u64 = 2554;

/// The inverse of `moment`; `None` if the text has another form.
pub fn parse_moment(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (h, m, s, ms) = (number(11, 13)?, number(14, 16)?, number(17, 19)?, number(20, 23)?);
    if !(1970..=LAST_YEAR).contains(&year)
        || h > 23
        || m > 59
        || s > 60
        || !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
    {
        return None;
    }
    // Counts years from 1 March, so that the leap day is the last day of a year.
    let (y, shifted) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (shifted * 153 + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    // The last year ends later than a 64-bit count of ns.
    (((days * 24 + h) * 60 + m) * 60_000 + s * 1000 + ms).checked_mul(1_000_000)
}

/// Days since 1970-01-01 → (year, month, day) in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_path_of_the_program() {
        let of = |text| called(text, "'/opt/my bin/plimsoll'");
        assert_eq!(
            of("plimsoll attach 7 && sleep 60 && plimsoll report 7 --by site"),
            "'/opt/my bin/plimsoll' attach 7 && sleep 60 && '/opt/my bin/plimsoll' report 7 --by site"
        );
        // A program under the tracker may be plimsoll, too; a comment after it is ours.
        assert_eq!(
            of("cd /srv && plimsoll run -- plimsoll serve   # then: plimsoll report shop"),
            "cd /srv && '/opt/my bin/plimsoll' run -- plimsoll serve   # then: '/opt/my bin/plimsoll' report shop"
        );
        assert_eq!(of("with plimsoll, or in plimsoll.conf"), "with plimsoll, or in plimsoll.conf");
    }

    #[test]
    fn a_line_without_its_middle_is_a_comment() {
        let line = |jars: usize| format!("java -cp {} shop.Main 8080", "/srv/a.jar:".repeat(jars));
        assert_eq!(typed(&line(8), 120), line(8));
        let shortened = typed(&line(2000), 120);
        let (head, tail) = ("java -cp /srv/a.jar:", "/srv/a.jar: shop.Main 8080");
        let expected = "# shortened from 22,024 characters, all of which are in --format json: ";
        assert!(shortened.starts_with(&format!("{expected}{head}")) && shortened.ends_with(tail), "{shortened}");
        assert_eq!(shortened.chars().count(), expected.len() + 80 + 3 + 30);
    }

    #[test]
    fn moments_round_trip_and_match_date() {
        // date -u -d @1795211234
        assert_eq!(moment(1_795_211_234_567_000_000), "2026-11-20T21:47:14.567Z");
        for day in (0..60_000).step_by(7) {
            let ns = day * 86_400_000_000_000 + 3_723_004_000_000;
            assert_eq!(parse_moment(&moment(ns)), Some(ns));
        }
        assert_eq!(moment(951_782_400_000_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(parse_moment("yesterday"), None);
        // `moment` and its inverse agree to the millisecond, up to the last moment that 64 bits hold.
        let last = u64::MAX / 1_000_000 * 1_000_000;
        assert_eq!((moment(last).as_str(), parse_moment(&moment(last))), ("2554-07-21T23:34:33.709Z", Some(last)));
        assert_eq!(parse_moment("2554-07-21T23:34:33.710Z"), None);
    }

    #[test]
    fn nothing_that_moves_the_cursor_is_printable() {
        assert_eq!(printable("a\x1b[2Jb\r\n\u{9b}c\u{202e}é"), "a\\u{1b}[2Jb\\r\\n\\u{9b}c\\u{202e}é");
    }

    #[test]
    fn text_is_cut_by_columns_not_by_characters() {
        assert_eq!([cut("abcdef", 6), cut("abcdefg", 6)], ["abcdef", "abcde…"]);
        // Two columns each.
        assert_eq!([cut("日本語", 6), cut("日本語", 5), cut("日本語", 4)], ["日本語", "日本…", "日…"]);
        // The accents take no column.
        let accents = "e\u{301}e\u{301}e\u{301}";
        assert_eq!([cut(accents, 3), cut(accents, 2)], [accents, "e\u{301}…"]);
        assert_eq!(
            [padded("日本", 6), padded("ab", 4), padded(accents, 4)],
            ["日本  ", "ab  ", &format!("{accents} ")]
        );
        assert_eq!([split("日本語", 3), split("", 3), split("abc", 0)], [("日", "本語"), ("", ""), ("", "abc")]);
        assert_eq!(split(accents, 1), ("e\u{301}", "e\u{301}e\u{301}"));
    }

    #[test]
    fn names_that_differ_never_look_equal() {
        let of = |names: [&str; 3]| cut_apart(names, 10);
        assert_eq!(of(["plain", "-XX:Unlock A=1", "trim"]), ["plain", "-XX:Unloc…", "trim"]);
        assert_eq!(of(["plain", "-XX:Unlock A=1", "-XX:Unlock B=2"]), ["plain", "…nlock A=1", "…nlock B=2"]);
        // Only the middles differ.
        let middles = of(["plain", "-XX:Unlock A=1 -XX:Unlock", "-XX:Unlock B=2 -XX:Unlock"]);
        assert_eq!(middles, ["plain", "1: -XX:Un…", "2: -XX:Un…"]);
        assert_eq!(of(["a row twice", "a row twice", "b"]), ["a row twi…", "a row twi…", "b"]);
        assert_eq!(cut_apart(["日本語一", "日本語二"], 7), ["…本語一", "…本語二"]);
    }

    #[test]
    fn counts_and_durations_are_printed_in_readable_units() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let s = 1_000_000_000;
        assert_eq!(
            [12_900_000, 5_300_000_000, 125 * s, 7300 * s, 273_700 * s].map(duration),
            ["12 ms", "5.3 s", "2 min 5 s", "2 h 1 min", "3 d 4 h"]
        );
    }

    #[test]
    fn a_command_is_never_broken() {
        let rows = wrapped("type it now: plimsoll explain 4711 --format json; later: jcmd 1 GC.run", 20);
        assert_eq!(rows, ["type it now:", "plimsoll explain 4711 --format json;", "later: jcmd 1 GC.run"]);
        // The name of the program in a sentence is a word.
        assert_eq!(wrapped("start it with plimsoll run", 16), ["start it with", "plimsoll run"]);
    }

    /// A row of wide characters is as wide as the screen, not twice as wide.
    #[test]
    fn rows_are_filled_by_columns() {
        assert_eq!(wrapped("日本 語語 ab", 5), ["日本", "語語", "ab"]);
        assert_eq!(wrapped("ab cd ef", 5), ["ab cd", "ef"]);
        assert_eq!(wrapped("e\u{301}e\u{301} o\u{308}o\u{308}", 5), ["e\u{301}e\u{301} o\u{308}o\u{308}"]);
    }
}
