//! Fields of /proc/PID/stat, by their numbers in proc_pid_stat(5).

/// A field from the third one (the state) on. The second, the name, is in parentheses and may contain any byte, so the
/// fields are counted from the last `)`.
pub fn field(stat: &[u8], number: usize) -> Option<&[u8]> {
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
    stat[behind..].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).nth(number.checked_sub(3)?)
}

/// A field that is a number, and not negative.
pub fn number(stat: &[u8], number: usize) -> Option<u64> {
    str::from_utf8(field(stat, number)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_any_name() {
        let stat = b"7 (a) R 1 (\xff b) S 12 -1 34\n";
        assert_eq!(field(stat, 3), Some(&b"S"[..]));
        assert_eq!([4, 5, 6, 7].map(|field| number(stat, field)), [Some(12), None, Some(34), None]);
        assert_eq!([0, 1, 2].map(|number| field(stat, number)), [None; 3]);
        assert_eq!([&b"7 (a"[..], b"7 (a)", b""].map(|stat| field(stat, 3)), [None; 3]);
    }
}
