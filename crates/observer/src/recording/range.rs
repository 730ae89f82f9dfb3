//! The part of a recording to show: `--from` and `--to`.

use std::str::FromStr;

/// A time as users write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Nanoseconds since 1970 UTC: `2026-11-20T21:40:03Z`.
    At(i64),
    /// Relative to the beginning: `+10m`.
    AfterBegin(i64),
    /// Relative to the end: `-5m`.
    BeforeEnd(i64),
    /// Time on the day when the recording begins, UTC: `21:40` or `21:40:03`.
    Clock(i64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    pub from: Option<Bound>,
    pub to: Option<Bound>,
}

const DAY_NS: i64 = 86_400_000_000_000;

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Bound, String> {
        let wrong = || {
            let wanted = "expected a moment such as 2026-11-20T21:40:03Z, 21:40 (UTC), +10m (from the beginning) or -5m (from the end)";
            wanted.to_owned()
        };
        if let Some(span) = text.strip_prefix('+') {
            return span_ns(span).map(Bound::AfterBegin).ok_or_else(wrong);
        }
        if let Some(span) = text.strip_prefix('-') {
            return span_ns(span).map(Bound::BeforeEnd).ok_or_else(wrong);
        }
        match text.split_once(['T', ' ']) {
            None => clock_ns(text).map(Bound::Clock).ok_or_else(wrong),
            Some((date, time)) => {
                let day = day(date).ok_or_else(wrong)?;
                let time = clock_ns(time.trim_end_matches('Z')).ok_or_else(wrong)?;
                day.checked_mul(DAY_NS).and_then(|day| day.checked_add(time)).map(Bound::At).ok_or_else(wrong)
            }
        }
    }
}

/// Parses `90`, `90s`, `1h30m`, `2d`, `250ms`.
fn span_ns(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut total = 0i64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let ns = match unit {
            "ms" => 1e6,
            "" | "s" => 1e9,
            "m" | "min" => 6e10,
            "h" => 3.6e12,
            "d" => 8.64e13,
            _ => return None,
        };
        let part = number.parse::<f64>().ok()? * ns;
        total = total.checked_add(if part < 9e18 { part as i64 } else { return None })?;
        rest = after;
    }
    if text.is_empty() { None } else { Some(total) }
}

/// Parses `21:40`, `21:40:03`, `21:40:03.25`.
fn clock_ns(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, ':');
    let hour: i64 = parts.next()?.parse().ok().filter(|hour| (0..24).contains(hour))?;
    let minute: i64 = parts.next()?.parse().ok().filter(|minute| (0..60).contains(minute))?;
    let second: f64 = parts.next().map_or(Some(0.0), |second| second.parse().ok())?;
    if !(0.0..61.0).contains(&second) {
        return None;
    }
    Some((hour * 3600 + minute * 60) * 1_000_000_000 + (second * 1e9) as i64)
}

/// Converts `2026-11-20` to days since 1970. Counts in years that begin on 1 March.
fn day(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1970..2262).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (y, shifted) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    Some(y * 365 + y / 4 - y / 100 + y / 400 + (shifted * 153 + 2) / 5 + day - 1 - 719_468)
}

impl Range {
    pub fn is_whole(&self) -> bool {
        self.to.is_none()
    }

    /// Both as nanoseconds since 1970 UTC.
    pub fn resolve(&self, begin: i64, end: i64) -> Result<(i64, i64), String> {
        let moment = |bound: Bound| match bound {
            Bound::At(ns) => ns,
            Bound::AfterBegin(ns) => begin.saturating_add(ns),
            Bound::BeforeEnd(ns) => end.saturating_sub(ns),
            Bound::Clock(ns) => (begin.div_euclid(DAY_NS) * DAY_NS).saturating_add(ns),
        };
        let (from, to) = (self.from.map_or(begin, moment), self.to.map_or(end, moment));
        match (from > to, from > end, to < begin) {
            (_, true, _) => Err("--from is later than the end of the recording".into()),
            (true, ..) => Err("--from is later than --to".into()),
            (.., true) => Err("--to is earlier than the beginning of the recording".into()),
            _ => Ok((from, to)),
        }
    }

    /// A missing bound cuts nothing: events of an unfinished chunk may be later than its header says.
    pub(super) fn open_ended(&self, from: i64, to: i64) -> (i64, i64) {
        (self.from.map_or(i64::MIN, |_| from), self.to.map_or(i64::MAX, |_| to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_as_users_write_them() {
        let s = 1_000_000_000;
        let read = |text: &str| text.parse::<Bound>();
        assert_eq!(read("+10m"), Ok(Bound::AfterBegin(600 * s)));
        assert_eq!(read("-1h30m"), Ok(Bound::BeforeEnd(5400 * s)));
        assert_eq!(read("+90"), Ok(Bound::AfterBegin(90 * s)));
        assert_eq!(read("-1.5s"), Ok(Bound::BeforeEnd(3 * s / 2)));
        assert_eq!(read("21:40"), Ok(Bound::Clock(78_000 * s)));
        assert_eq!(read("2026-11-20T21:47:14.5Z"), Ok(Bound::At(1_795_211_234 * s + s / 2)));
        assert_eq!(read("2000-02-29 00:00"), Ok(Bound::At(951_782_400 * s)));
        for wrong in
            ["", "yesterday", "+", "-", "+10y", "25:00", "2026-13-01T00:00", "9999-01-01T00:00", "+99999999999d"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let range = |from: &str, to: &str| {
            Range { from: read(from).ok(), to: read(to).ok() }.resolve(951_782_400 * s, 951_782_500 * s)
        };
        assert_eq!(range("+10s", "-10s"), Ok((951_782_410 * s, 951_782_490 * s)));
        assert_eq!(range("00:01", "x"), Ok((951_782_460 * s, 951_782_500 * s)));
        assert!(
            range("-10s", "+10s").is_err() && range("+200s", "").is_err() && range("", "1970-01-01T00:00").is_err()
        );
    }
}
