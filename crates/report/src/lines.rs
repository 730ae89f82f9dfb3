//! JSON for people's tools and for people: what is outside arrays is laid out, an array's element takes one line.
//!
//! ```text
//! {
//!   "schema": "plimsoll.report/1",
//!   "sites": [
//!     {"frames":[{"function":"main"}],"live_bytes":4096},
//!     …
//! ```
//! So `grep` and `head` work on a site, nothing is spent on indentation, and a document with 100,000 sites is written as it is made.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;

/// Ends with a newline.
pub(crate) fn write(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    let layout = Layout::default();
    document.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, layout)).map_err(io::Error::from)?;
    writeln!(out)
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
    /// Objects and arrays around, as far as the outermost array.
    depth: usize,
    /// Objects and arrays around, from the outermost array's element on.
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
