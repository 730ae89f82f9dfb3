//! hsperfdata: the counters that a VM keeps in a file mapped at /tmp/hsperfdata_USER/PID
//! (src/hotspot/share/runtime/perfMemory.hpp, perfData.hpp). Reading it costs the target nothing, and works while the
//! target hangs.
//!
//! ```text
//! prologue   0 magic CAFEC0C0   4 byte order (1 little)   5 major 2   6 minor   7 accessible
//!            8 used   12 overflow   16 modification time (8)   24 offset of first entry   28 entries
//! entry      0 length   4 offset of name   8 vector length (0: scalar)   12 type (J long, B byte)   13 flags
//!            14 unit   15 variability   16 offset of data
//! ```

use std::collections::BTreeMap;

use plimsoll_facts::units::Bytes;
use plimsoll_process::proc::memory::{half_at, word_at};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    Number(i64),
    Text(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfData {
    counters: BTreeMap<String, Counter>,
}

/// How many classes the VM has loaded and unloaded, each followed by the number for classes of its archive. The numbers
/// only grow, so if all are as before, no class came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClassCounts(pub(super) [u64; 4]);

const MAGIC: [u8; 4] = [0xca, 0xfe, 0xc0, 0xc0];
/// A VM has about 200 entries.
const MOST_ENTRIES: u32 = 100_000;

impl PerfData {
    /// None if it isn't such a file, or has the other byte order. Invalid entries are left out.
    pub fn parse(bytes: &[u8]) -> Option<PerfData> {
        if bytes.get(..4)? != MAGIC || *bytes.get(4)? != 1 || *bytes.get(5)? != 2 {
            return None;
        }
        let mut at = half_at(bytes, 24)? as usize;
        let entries = half_at(bytes, 28)?.min(MOST_ENTRIES);
        let mut counters = BTreeMap::new();
        for _ in 0..entries {
            let Some(length) = half_at(bytes, at).map(|length| length as usize).filter(|length| *length >= 20) else {
                break;
            };
            let Some(entry) = at.checked_add(length).and_then(|end| bytes.get(at..end)) else { break };
            if let Some((name, counter)) = parse_entry(entry) {
                counters.insert(name, counter);
            }
            at += length;
        }
        Some(PerfData { counters })
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        match self.counters.get(name) {
            Some(Counter::Number(number)) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.counters.get(name) {
            Some(Counter::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub fn bytes(&self, name: &str) -> Option<Bytes> {
        self.number(name).map(Bytes)
    }

    /// None if the VM doesn't count both kinds.
    pub(crate) fn class_counts(&self) -> Option<ClassCounts> {
        let count = |name: &str| self.number(&format!("java.cls.{name}"));
        Some(ClassCounts([
            count("loadedClasses")?,
            count("sharedLoadedClasses")?,
            count("unloadedClasses")?,
            count("sharedUnloadedClasses")?,
        ]))
    }

    /// Whether the VM answers attach requests: the first character of `sun.rt.jvmCapabilities`
    /// (src/hotspot/share/runtime/statSampler.cpp) is '0' under -XX:+DisableAttachMechanism.
    pub fn attachable(&self) -> Option<bool> {
        self.text("sun.rt.jvmCapabilities").and_then(|flags| flags.bytes().next()).map(|flag| flag == b'1')
    }

    /// Σ of `figure` over the spaces of all generations. `used` is as of the last collection; `capacity` is what is
    /// committed.
    pub fn heap_sum(&self, figure: &str) -> Option<Bytes> {
        let mut sum = None;
        for generation in 0..self.number("sun.gc.policy.generations").unwrap_or(2).clamp(1, 4) {
            for space in 0..self.number(&format!("sun.gc.generation.{generation}.spaces")).unwrap_or(0).min(16) {
                if let Some(bytes) = self.bytes(&format!("sun.gc.generation.{generation}.space.{space}.{figure}")) {
                    *sum.get_or_insert(Bytes(0)) += bytes;
                }
            }
        }
        sum
    }

    /// The Java heap's maximum. Serial, Parallel and CMS divide the heap between two generations; their policies are
    /// named after a collector for each, as in `Copy:MSC`. With other collectors, a generation may grow to the whole
    /// heap, and states that.
    pub(crate) fn heap_max(&self) -> Option<Bytes> {
        let is_divided = self.text("sun.gc.policy.name").is_some_and(|name| name.contains(':'));
        let all = (0..2).filter_map(|n| self.bytes(&format!("sun.gc.generation.{n}.maxCapacity")));
        all.reduce(|one, other| if is_divided { one + other } else { one.max(other) })
    }
}

fn parse_entry(entry: &[u8]) -> Option<(String, Counter)> {
    let name_at = half_at(entry, 4)? as usize;
    let vector = half_at(entry, 8)? as usize;
    let data_at = half_at(entry, 16)? as usize;
    let name = until_zero(entry.get(name_at..)?);
    let counter = match (entry.get(12)?, vector) {
        (b'J', 0) => Counter::Number(word_at(entry, data_at)? as i64),
        (b'B', 1..) => Counter::Text(until_zero(entry.get(data_at..data_at.checked_add(vector)?)?)),
        _ => return None,
    };
    Some((name, counter))
}

fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;

    const FILE: &[u8] = include_bytes!("../../../goldens/hsperfdata-17.bin");

    #[test]
    fn counters_of_a_real_file() {
        let perfdata = PerfData::parse(FILE).expect("a file of a VM");
        assert_eq!(perfdata.text("java.property.java.vm.version"), Some("17.0.15+6-Debian-1deb12u1"));
        assert_eq!(perfdata.attachable(), Some(true));
        assert_eq!(perfdata.bytes("sun.gc.compressedclassspace.maxCapacity"), Some(Bytes::mib(1024)));
        assert_eq!(perfdata.heap_sum("capacity").map(|sum| sum.0 / (1 << 20)), Some(380));
        let ClassCounts([loaded, of_archive, unloaded, _]) = perfdata.class_counts().expect("it counts them");
        assert!(loaded + of_archive > 400 && unloaded == 0, "{loaded} {of_archive} {unloaded}");
    }

    /// Counters of VMs of JDK 17 with -Xmx900m, and of JDK 8 with CMS.
    #[test]
    fn the_maximum_of_the_heap_is_that_of_all_generations() {
        let heap_max = |policy: Option<&str>, generations: &[(u32, i64)]| {
            let text = policy.map(|name| ("sun.gc.policy.name".to_owned(), Counter::Text(name.to_owned())));
            let max = |(n, max): &(u32, i64)| (format!("sun.gc.generation.{n}.maxCapacity"), Counter::Number(*max));
            PerfData { counters: generations.iter().map(max).chain(text).collect() }.heap_max()
        };
        let whole = Some(Bytes::mib(900));
        let divided = [(0, 314_572_800), (1, 629_145_600)];
        for policy in ["Copy:MSC", "ParScav:MSC", "ParNew:CMS"] {
            assert_eq!(heap_max(Some(policy), &divided), whole, "{policy}");
        }
        assert_eq!(heap_max(Some("GarbageFirst"), &[(0, 943_718_400), (1, 943_718_400)]), whole);
        // ZGC with one generation and with two; Shenandoah.
        assert_eq!(heap_max(None, &[(1, 943_718_400)]), whole);
        assert_eq!(heap_max(None, &[(0, 943_718_400), (1, 943_718_400)]), whole);
        assert_eq!(heap_max(None, &[(0, 0), (1, 943_718_400)]), whole);
        assert_eq!(heap_max(None, &[]), None);
    }

    #[test]
    fn mutated_files_never_panic() {
        let read = mutated(FILE, 3000).filter_map(|bytes| PerfData::parse(&bytes)).map(|data| data.counters.len());
        assert!(read.sum::<usize>() > 100_000);
    }
}
