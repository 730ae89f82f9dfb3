//! Values of the program's arguments that have a grammar of their own: moments, ranges, regular expressions.

use plimsoll_observer::recording::{Bound, Range};
use plimsoll_profiles::profile::Focus;
use plimsoll_report::words::{columns, cut, parse_moment, printable};

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let bound = text.parse::<Bound>().ok();
    let _ = parse_moment(&text);
    let (first, second) = text.split_once('\n').unwrap_or((&text, ""));
    let range = Range { from: first.parse().ok().or(bound), to: second.parse().ok() };
    for (begin, end) in
        [(0, 0), (0, i64::MAX), (i64::MAX, i64::MAX), (1_790_000_000_000_000_000, 1_790_000_900_000_000_000)]
    {
        if let Ok((from, to)) = range.resolve(begin, end) {
            assert!(from <= to, "a range that ends before it begins");
        }
    }
    if let Ok(focus) = Focus::new(first) {
        focus.matches(second);
    }
    assert!(!printable(&text).chars().any(char::is_control));
    assert!(columns(&cut(&text, 20)) <= 20);
}
