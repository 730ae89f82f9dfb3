//! JSON for tools and for people: indented outside arrays, one line for each array element.
//!
//! ```text
//! {
//!   "schema": "plimsoll.report/1",
//!   "sites": [
//!     {"frames":[{"function":"main"}],"live_bytes":4096},
//!     …
//! ```
//! So `grep` and `head` work on sites, and indentation costs nothing. A document with 100,000 sites is written while it
//! is made.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;

use crate::words;

/// Writes the document and a newline.
pub(crate) fn write(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    let layout = Layout::default();
    document
        .serialize(&mut serde_json::Serializer::with_formatter(Escaping(&mut *out), layout))
        .map_err(io::Error::from)?;
    writeln!(out)
}

/// As `write`, with everything indented.
pub(crate) fn write_indented(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(Escaping(&mut *out), document)?;
    writeln!(out)
}

/// Escapes the control characters that JSON leaves alone but a terminal obeys (U+009B is ESC [). JSON has them only
/// inside strings, so any occurrence can be escaped. Each write ends with a whole character.
struct Escaping<'a>(&'a mut dyn Write);

impl Write for Escaping<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if is_below_0x7f(bytes) {
            return self.0.write_all(bytes);
        }
        let text = std::str::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let mut plain = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| *c >= '\u{7f}' && (c.is_control() || words::turns_text(*c)))
        {
            self.0.write_all(&bytes[plain..at])?;
            write!(self.0, "\\u{:04x}", u32::from(c))?;
            plain = at + c.len_utf8();
        }
        self.0.write_all(&bytes[plain..])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether all bytes are below 0x7f. From 0x7f on, either the byte or its successor has the highest bit set. Eight
/// bytes at a time: a carry leaves only a byte that has that bit itself.
fn is_below_0x7f(bytes: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    let (words, rest) = bytes.as_chunks::<8>();
    let of_words = words.iter().map(|word| u64::from_ne_bytes(*word));
    let highest = of_words.fold(0, |any, word| any | word | word.wrapping_add(ONES)) & (ONES << 7);
    highest == 0 && rest.iter().all(|byte| *byte < 0x7f)
}

/// An array whose elements are made while they are written.
pub(crate) struct Each<F>(pub F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

#[derive(Default)]
struct Layout {
    /// Depth of nesting, down to the outermost array.
    depth: usize,
    /// Depth of nesting inside an element of the outermost array.
    within: usize,
    in_array: bool,
    empty: bool,
}

impl Layout {
    fn is_laid_out(&self) -> bool {
        self.within == 0
    }

    fn open<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8], array: bool) -> io::Result<()> {
        if self.in_array {
            self.within += 1;
        } else {
            self.depth += 1;
            self.in_array = array;
            self.empty = true;
        }
        out.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        if self.within > 0 {
            self.within -= 1;
            return out.write_all(bracket);
        }
        self.depth -= 1;
        self.in_array = false;
        if !std::mem::take(&mut self.empty) {
            self.new_line(out)?;
        }
        out.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(b",")?;
        }
        if self.is_laid_out() {
            self.empty = false;
            self.new_line(out)?;
        }
        Ok(())
    }

    fn new_line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(b"  "))
    }
}

impl Formatter for Layout {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[", true)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{", false)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(if self.is_laid_out() { b": " } else { b":" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_that_a_terminal_obeys_stands_in_the_text() {
        let value = serde_json::json!({"na\u{7f}me": ["a\x1b[1m\u{9b}2Jé", "\u{85}\u{202e}한\u{2066}", "\u{fffd}"]});
        let (mut lines, mut indented) = (Vec::new(), Vec::new());
        write(&mut lines, &value).unwrap();
        write_indented(&mut indented, &value).unwrap();
        for text in [lines, indented].map(|out| String::from_utf8(out).unwrap()) {
            assert!(!text.chars().any(|c| c != '\n' && c.is_control() || words::turns_text(c)), "{text:?}");
            assert!(text.contains("\\u009b2Jé"), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }

    #[test]
    fn eight_bytes_at_a_time_are_tested_as_one_by_one() {
        for length in 0..40 {
            for at in 0..length {
                for value in 0..=255 {
                    for others in [0, 0x7e, 0x40] {
                        let mut bytes = vec![others; length];
                        bytes[at] = value;
                        assert_eq!(is_below_0x7f(&bytes), value < 0x7f, "{value:#x} at {at} of {length}");
                    }
                }
            }
        }
        assert!(is_below_0x7f(&[]) && !is_below_0x7f(&[0xff; 24]));
    }

    #[test]
    fn an_element_takes_a_line_and_the_value_stays() {
        let value = serde_json::json!({
            "a": {"b": 1, "empty": {}, "none": []}, "c": [[1, [2]], {"d": {"e": [3, 4]}}, "x"], "f": {"g": [5]}, "h": null
        });
        let mut out = Vec::new();
        write(&mut out, &value).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        let expected = "{\n  \"a\": {\n    \"b\": 1,\n    \"empty\": {},\n    \"none\": []\n  },\n  \"c\": [\n    [1,[2]],\n    \
                        {\"d\":{\"e\":[3,4]}},\n    \"x\"\n  ],\n  \"f\": {\n    \"g\": [\n      5\n    ]\n  },\n  \"h\": null\n}\n";
        assert_eq!(text, expected);
        let mut out = Vec::new();
        write(&mut out, &Each(|| (0..2).map(|n| (n, n)))).unwrap();
        assert_eq!(out, b"[\n  [0,0],\n  [1,1]\n]\n");
    }
}
