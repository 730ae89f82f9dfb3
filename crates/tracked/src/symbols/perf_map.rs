//! Parses maps of code made at run time, which JITs write for perf: lines `START SIZE NAME`, hex without 0x (Linux,
//! tools/perf/Documentation/jit-interface.txt). Pure.
//!
//! JITs free code and reuse its addresses, and the map has no times. If an address had several names, it is unknown
//! which one applies. So the frame gets all of them instead of a wrong one.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Limit of names: node writes some 10⁵ for a large program.
const MOST: usize = 4 << 20;
/// Limit of a name's length.
const LONGEST: usize = 1024;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// By start address; no overlaps.
    ranges: BTreeMap<u64, (u64, Vec<u32>)>,
    names: Vec<Rc<str>>,
    numbers: HashMap<Rc<str>, u32>,
    steps: usize,
    is_cut: bool,
}

/// Limit of older ranges that newer ones overlap: a hostile map could overlap a million with a million. A program that
/// replaces each of 10⁵ functions ten times has 10⁶.
const STEPS: usize = if cfg!(test) { 1 << 12 } else { 1 << 22 };

impl Map {
    pub fn parse(bytes: &[u8]) -> Map {
        let mut map = Map::default();
        for line in bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
            map.line(line);
            if map.is_cut {
                break;
            }
        }
        map
    }

    fn line(&mut self, line: &[u8]) -> Option<()> {
        let mut words = line.splitn(3, |&b| b == b' ');
        let mut hex = || {
            let word = std::str::from_utf8(words.next()?).ok()?;
            u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
        };
        let (start, size) = (hex()?, hex()?);
        let name = String::from_utf8_lossy(words.next()?);
        let end = start.checked_add(size)?;
        self.add(start, end, name.chars().take(LONGEST).collect());
        Some(())
    }

    /// Later entries are placed over earlier ones; where they overlap, both names are kept.
    pub fn add(&mut self, start: u64, end: u64, name: String) {
        if start >= end || name.is_empty() {
            return;
        }
        if self.steps > STEPS || self.names.len() >= MOST {
            self.is_cut = true;
            return;
        }
        let number = self.number(name);
        // Ranges under the new one are split at its ends.
        self.cut(start);
        self.cut(end);
        let mut at = start;
        let inside: Vec<(u64, u64)> = self.ranges.range(start..end).map(|(s, (e, _))| (*s, *e)).collect();
        self.steps += inside.len();
        for (s, e) in inside {
            if at < s {
                self.ranges.insert(at, (s, vec![number]));
            }
            if let Some((_, names)) = self.ranges.get_mut(&s)
                && !names.contains(&number)
            {
                // Newest first; more than a few names don't help.
                names.insert(0, number);
                names.truncate(4);
            }
            at = e;
        }
        if at < end {
            self.ranges.insert(at, (end, vec![number]));
        }
    }

    fn number(&mut self, name: String) -> u32 {
        if let Some(known) = self.numbers.get(name.as_str()) {
            return *known;
        }
        let (name, number): (Rc<str>, u32) = (name.into(), self.names.len() as u32);
        self.names.push(Rc::clone(&name));
        self.numbers.insert(name, number);
        number
    }

    /// Whether entries are missing because there are too many. Then an address may have another name than the map
    /// gives it: newer entries replace older ones.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn cut(&mut self, at: u64) {
        let Some((&start, (end, names))) = self.ranges.range(..at).next_back() else { return };
        if *end > at {
            let (end, names) = (*end, names.clone());
            if let Some(first) = self.ranges.get_mut(&start) {
                first.0 = at;
            }
            self.ranges.insert(at, (end, names));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The name of the code at an address.
    pub fn at(&self, address: u64) -> Option<String> {
        let (_, (end, names)) = self.ranges.range(..=address).next_back()?;
        if address >= *end {
            return None;
        }
        let name = |n: &u32| self.names.get(*n as usize).map_or("", |name| &**name);
        match names.as_slice() {
            [one] => Some(name(one).to_string()),
            several => Some(format!("one of: {}", several.iter().map(name).collect::<Vec<_>>().join(" | "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn addresses_have_the_names_of_their_ranges() {
        let map = Map::parse(
            b"1000 20 LazyCompile:*f a.js:1\n0x1020 10 Builtin:g\nnonsense\n2000 zz h\nffffffffffffffff 10 i\n",
        );
        assert_eq!(map.at(0x101f).as_deref(), Some("LazyCompile:*f a.js:1"));
        assert_eq!(map.at(0x1020).as_deref(), Some("Builtin:g"));
        assert_eq!((map.at(0xfff), map.at(0x1030), map.at(0x2000)), (None, None, None));
    }

    #[test]
    fn code_at_a_reused_address_has_several_names() {
        let map = Map::parse(b"1000 100 old\n1080 40 new\n1000 100 old\n");
        assert_eq!(map.at(0x1000).as_deref(), Some("old"));
        assert_eq!(map.at(0x1090).as_deref(), Some("one of: new | old"));
        assert_eq!(map.at(0x10c0).as_deref(), Some("old"));
    }

    /// Each of the last ranges lies over all before it.
    #[test]
    fn a_map_whose_ranges_overlap_without_end_is_cut() {
        let lines = |over: u64| {
            let few = (0..100).map(|n| format!("{:x} 10 old{n}\n", 0x1000 + 0x10 * n));
            few.chain((0..over).map(|n| format!("1000 640 new{n}\n"))).collect::<String>()
        };
        let map = Map::parse(lines(30).as_bytes());
        assert!(!map.is_cut() && map.steps == 30 * 100);
        let map = Map::parse(lines(1_000_000).as_bytes());
        assert!(map.is_cut() && map.steps <= STEPS + 100, "{}", map.steps);
    }

    /// Compared with a list that is searched for every address.
    #[test]
    fn random_maps_equal_a_naive_search() {
        let (mut random, mut named, mut shared) = (Random(7), 0, 0);
        for _ in 0..200 {
            let (mut map, mut list) = (Map::default(), Vec::new());
            for i in 0..12 {
                let (start, size) = (random.below(60), random.below(30));
                map.add(start, start + size, format!("n{i}"));
                list.push((start, start + size, format!("n{i}")));
            }
            for at in 0..100 {
                let mut names: Vec<&str> =
                    list.iter().filter(|(s, e, _)| *s <= at && at < *e).map(|(_, _, n)| n.as_str()).collect();
                names.reverse();
                names.truncate(4);
                let twin = match names.as_slice() {
                    [] => None,
                    [one] => Some(one.to_string()),
                    many => Some(format!("one of: {}", many.join(" | "))),
                };
                named += usize::from(twin.is_some());
                shared += usize::from(names.len() > 1);
                assert_eq!(map.at(at), twin, "{list:?} at {at}");
            }
        }
        assert!(named > 10_000 && shared > 5_000, "{named} {shared}");
    }
}
