//! Names resolved for one object, cached from run to run. Pure; `read.rs` does the I/O.
//!
//! ```text
//! plimsoll-symbols 5
//! FINGERPRINT                 of the files that the names came from: if one is new or changed, the cache is invalid
//! REASON                      why lines or inlined functions may be missing; empty if none are
//! COUNT                       of texts, one per line: functions and source files
//! …
//! OFFSET INTO F:S:L:J;…       hex: the return address as linked, bytes into the function; function, source file + 1
//!                             (0 = none), line (0 = none), 1 = a native image's Java method; innermost first;
//!                             nothing after INTO: it has no name
//! ```

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::{SourceLocation, Symbolized};

const TITLE: &str = "plimsoll-symbols 5";

/// Size limit of a cache file: about 10⁶ addresses.
pub const LARGEST: u64 = 96 << 20;

/// Names by return address as linked; `None`: it was looked up and has no name.
pub(crate) type CachedNames = HashMap<u64, Option<Symbolized>>;

#[derive(Default)]
struct Texts<'a> {
    list: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Texts<'a> {
    fn number(&mut self, text: &'a str) -> usize {
        *self.numbers.entry(text).or_insert_with(|| {
            self.list.push(text);
            self.list.len() - 1
        })
    }
}

pub fn write(fingerprint: &str, reason: Option<&str>, known: &CachedNames) -> String {
    let mut texts = Texts::default();
    let mut lines = String::new();
    let mut sorted: Vec<_> = known.iter().collect();
    sorted.sort_unstable_by_key(|(offset, _)| **offset);
    for (offset, location) in sorted {
        let _ = write!(lines, "{offset:x} {:x} ", location.as_ref().map_or(0, |l| l.into));
        for (i, location) in location.iter().flat_map(|l| l.functions.iter()).enumerate() {
            let function = texts.number(&location.function);
            let file = location.file.as_deref().map_or(0, |file| texts.number(file) + 1);
            let separator = if i == 0 { "" } else { ";" };
            let _ = write!(
                lines,
                "{separator}{function:x}:{file:x}:{:x}:{:x}",
                location.line.unwrap_or(0),
                u8::from(location.java)
            );
        }
        lines.push('\n');
    }
    let reason = one_line(reason.unwrap_or_default());
    let mut out = format!("{TITLE}\n{}\n{reason}\n{}\n", one_line(fingerprint), texts.list.len());
    for text in texts.list {
        out.push_str(&one_line(text));
        out.push('\n');
    }
    out + &lines
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// The fingerprint, the reason and the cached names; `None` if the file isn't a cache. Damaged lines are left out.
pub fn parse(text: &str) -> Option<(&str, Option<&str>, CachedNames)> {
    let mut lines = text.split('\n');
    if lines.next()? != TITLE {
        return None;
    }
    let fingerprint = lines.next()?;
    let reason = Some(lines.next()?).filter(|reason| !reason.is_empty());
    let count: usize = lines.next()?.parse().ok()?;
    let mut texts: Vec<Arc<str>> = Vec::new();
    for _ in 0..count {
        texts.push(lines.next()?.into());
    }
    let mut known = CachedNames::new();
    known.reserve(lines.size_hint().1.unwrap_or(0).min(text.len() / 8));
    for line in lines {
        if let Some((offset, location)) = entry(line, &texts) {
            known.insert(offset, location);
        }
    }
    Some((fingerprint, reason, known))
}

fn entry(line: &str, texts: &[Arc<str>]) -> Option<(u64, Option<Symbolized>)> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut words = line.splitn(3, ' ');
    let (offset, into, rest) = (hex(words.next()?)?, hex(words.next()?)?, words.next()?);
    if rest.is_empty() {
        return Some((offset, None));
    }
    let mut locations = Vec::with_capacity(1);
    for location in rest.split(';') {
        let mut parts = location.splitn(4, ':');
        let mut next = || hex(parts.next()?);
        let (function, file, line, java) = (next()?, next()?, next()?, next()?);
        let text = |n: u64| texts.get(usize::try_from(n).ok()?).cloned();
        locations.push(SourceLocation {
            function: text(function)?,
            file: if file == 0 { None } else { Some(text(file - 1)?) },
            line: u32::try_from(line).ok().filter(|line| *line != 0),
            java: java == 1,
        });
    }
    Some((offset, Some(Symbolized { functions: locations, into })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> CachedNames {
        let location = |f: &str, file: Option<&str>, line| SourceLocation {
            function: f.into(),
            file: file.map(Into::into),
            line,
            java: line == Some(7),
        };
        let mut known = CachedNames::new();
        known.insert(
            0x1234,
            Some(Symbolized { functions: vec![location("f(int)", Some("/a b/c.cc"), Some(7))], into: 9 }),
        );
        let two = vec![location("inlined", Some("/a b/c.cc"), None), location("f(int)", None, Some(1))];
        known.insert(0x99, Some(Symbolized { functions: two, into: 0 }));
        known.insert(0, None);
        known
    }

    #[test]
    fn written_caches_are_read_back() {
        for reason in [None, Some("its debug information is too large")] {
            let text = write("a:1", reason, &some());
            assert_eq!(parse(&text), Some(("a:1", reason, some())));
        }
        assert_eq!(parse("x\n"), None);
    }

    /// Changes each byte of a file in several ways. The parser must not panic, and must not return an offset that the
    /// file doesn't have.
    #[test]
    fn a_damaged_file_is_read_without_harm() {
        let good = write("a:1", Some("why"), &some());
        let mut whole = 0;
        for at in 0..good.len() {
            for byte in [b'\n', b'f', b' ', b':', b';', 0xff] {
                let mut bytes = good.clone().into_bytes();
                bytes[at] = byte;
                whole +=
                    parse(&String::from_utf8_lossy(&bytes)).map_or(0, |(_, _, known)| usize::from(known.len() == 3));
                let _ = parse(&String::from_utf8_lossy(&bytes[..at]));
            }
        }
        assert!(whole > 100, "{whole} of them were still read");
    }
}
