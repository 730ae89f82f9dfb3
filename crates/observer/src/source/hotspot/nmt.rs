//! Parses `VM.native_memory summary|detail scale=1` as JDK 8 to 27 print it (src/hotspot/share/nmt/memReporter.cpp).
//! JDK 8 is queried with scale=KB.
//!
//! ```text
//! Total: reserved=8044513267, committed=501200883
//!        malloc: 24143859 #5704
//! -                    Thread (reserved=19974504, committed=948584)
//!                             (thread #19)                                      "threads" from 21 on
//!                             (stack: reserved=19922944, committed=897024)
//!                             (malloc=30728 #118) (peak=39112 #122)             25: (malloc=41016 tag=Thread #109)
//!                             (mmap: reserved=…, committed=…)
//!                             (arena=20832 #36) (peak=53560 #36)
//! Virtual memory map:                                                           detail only
//! [0x0000000687400000 - 0x0000000800000000] reserved 6320816128 for Java Heap from
//!     [0x00007fe2c391a27c] ReservedSpace::reserve(…)+0xac
//!         [0x0000000687400000 - 0x000000069f000000] committed 398458880 from
//! [0x00007fee10ccd000 - 0x00007fee10cce000] reserved and committed 4096 for Internal from
//! ```

use super::disjoint::Disjoint;
use plimsoll_facts::snapshot::{NmtCategory, NmtMode, VmRegion, VmTag};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NmtReport {
    pub mode: NmtMode,
    pub total: Option<NmtCategory>,
    pub categories: Vec<NmtCategory>,
    /// Sorted by start address.
    pub regions: Vec<VmRegion>,
    pub classes: Option<u64>,
}

/// JDK 25 has about 30.
const MOST_CATEGORIES: usize = 256;

#[derive(PartialEq, Eq)]
enum Section {
    Summary,
    Map,
    Rest,
}

/// Parses any text. The level follows from the text: a report with a map is of level detail.
pub fn parse_nmt(text: &str) -> NmtReport {
    let mut report = NmtReport::default();
    if text.contains("Native memory tracking is not enabled") {
        report.mode = NmtMode::Off;
        return report;
    }
    let mut section = Section::Summary;
    // The committed parts of the last region.
    let mut committed = Disjoint::default();
    for line in text.lines() {
        let trimmed = line.trim_start();
        if line.starts_with("Total: ") {
            report.mode = NmtMode::Summary;
            report.total = Some(category("Total", line));
        } else if let Some(rest) = line.strip_prefix('-')
            && let Some((name, figures)) = rest.split_once(" (reserved=")
        {
            let figures = format!("reserved={figures}");
            if report.categories.len() < MOST_CATEGORIES {
                report.categories.push(category(name.trim(), &figures));
            }
        } else if line.starts_with("Virtual memory map:") {
            section = Section::Map;
            report.mode = NmtMode::Detail;
        } else if line.starts_with("Memory file details") || line.starts_with("Details:") {
            // Ranges of memory files are offsets in a file, and sites have figures of their own.
            section = Section::Rest;
        } else if section == Section::Map && trimmed.starts_with("[0x") {
            map_line(&mut report.regions, &mut committed, line);
        } else if section == Section::Summary {
            // Before the first category, these lines belong to Total.
            let of = report.categories.last_mut().or(report.total.as_mut());
            let Some(of) = of else { continue };
            if let Some(figures) = trimmed.strip_prefix("(malloc=") {
                (of.malloc, of.malloc_count) = size_and_count(figures);
            } else if let Some(figures) = trimmed.strip_prefix("malloc: ") {
                (of.malloc, of.malloc_count) = size_and_count(figures);
            } else if let Some(figures) = trimmed.strip_prefix("(arena=") {
                of.arena = size_and_count(figures).0;
            } else if let Some(figures) = trimmed.strip_prefix("(tracking overhead=") {
                of.headers = size(figures).unwrap_or_default();
            } else if trimmed.starts_with("(mmap: ") || trimmed.starts_with("mmap: ") || trimmed.starts_with("(stack: ")
            {
                of.mmap_reserved += field(trimmed, "reserved=").unwrap_or_default();
                of.mmap_committed += field(trimmed, "committed=").unwrap_or_default();
            } else if let Some(figures) = trimmed.strip_prefix("(classes #") {
                report.classes = leading_number(figures);
            }
        }
    }
    report.regions.iter_mut().for_each(|region| region.committed.sort_unstable());
    report.regions.sort_by_key(|region| (region.range.start, region.range.end));
    report
}

fn category(name: &str, figures: &str) -> NmtCategory {
    NmtCategory {
        name: name.to_string(),
        reserved: field(figures, "reserved=").unwrap_or_default(),
        committed: field(figures, "committed=").unwrap_or_default(),
        ..NmtCategory::default()
    }
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The size after `key`, in bytes. With scale=1 there is no unit; KB, MB and GB occur in VM.info and hs_err files.
fn field(text: &str, key: &str) -> Option<Bytes> {
    let from = text.find(key)? + key.len();
    size(&text[from..])
}

fn size(text: &str) -> Option<Bytes> {
    let number = leading_number(text)?;
    let unit = &text[text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())..];
    let scale = match unit.as_bytes() {
        [b'K', b'B', ..] => 1 << 10,
        [b'M', b'B', ..] => 1 << 20,
        [b'G', b'B', ..] => 1 << 30,
        _ => 1,
    };
    Some(Bytes(number.saturating_mul(scale)))
}

fn size_and_count(figures: &str) -> (Bytes, u64) {
    let count = figures.split_once('#').and_then(|(_, count)| leading_number(count)).unwrap_or(0);
    (size(figures).unwrap_or_default(), count)
}

/// Maps NMT's name of a tag to the tags that the ledger distinguishes.
pub(crate) fn tag(name: &str) -> VmTag {
    match name {
        "Java Heap" => VmTag::JavaHeap,
        "Class" | "Metaspace" => VmTag::Class,
        "Shared class space" => VmTag::SharedClassSpace,
        "Code" => VmTag::Code,
        "GC" => VmTag::Gc,
        "Compiler" => VmTag::Compiler,
        "Symbol" => VmTag::Symbol,
        "Thread Stack" => VmTag::ThreadStack,
        other => VmTag::Other(other.to_string()),
    }
}

fn map_line(regions: &mut Vec<VmRegion>, known: &mut Disjoint, line: &str) {
    let Some((range, rest)) = bracketed_range(line.trim_start()) else { return };
    let rest = rest.trim_start();
    if rest.starts_with("reserved ") {
        let committed = if rest.starts_with("reserved and committed") { vec![range] } else { Vec::new() };
        *known = Disjoint::default();
        for range in &committed {
            known.add(*range);
        }
        let name = rest.split_once(" for ").map_or("", |(_, name)| name.strip_suffix(" from").unwrap_or(name).trim());
        regions.push(VmRegion { range, tag: tag(name), committed });
    } else if rest.starts_with("committed ")
        && let Some(region) = regions.last_mut()
        && region.range.covers(range)
        && known.add(range)
    {
        region.committed.push(range);
    }
}

/// `[0x… - 0x…]` or `[0x…, 0x…)`, and the text after it.
pub(crate) fn bracketed_range(text: &str) -> Option<(AddressRange, &str)> {
    let inner = text.strip_prefix('[')?;
    let end = inner.find([']', ')'])?;
    let (start, stop) = inner[..end].split_once(['-', ','])?;
    let range = AddressRange::new(hex(start)?, hex(stop)?);
    (!range.is_empty()).then_some((range, &inner[end + 1..]))
}

pub(crate) fn hex(text: &str) -> Option<Avma> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok().map(Avma)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;

    const DETAIL_8: &str = include_str!("../../../goldens/nmt-detail-8.txt");
    const DETAIL_17: &str = include_str!("../../../goldens/nmt-detail-17.txt");
    const DETAIL_25: &str = include_str!("../../../goldens/nmt-detail-25.txt");

    fn named<'r>(report: &'r NmtReport, name: &str) -> &'r NmtCategory {
        report.categories.iter().find(|category| category.name == name).expect(name)
    }

    #[test]
    fn detail_reports_of_jdk_17_and_25() {
        for (text, total, heap, stacks) in
            [(DETAIL_17, 501_200_883, 406_847_488, 897_024), (DETAIL_25, 492_304_832, 402_653_184, 876_544)]
        {
            let report = parse_nmt(text);
            assert_eq!(report.mode, NmtMode::Detail);
            assert_eq!(report.total.as_ref().map(|total| total.committed), Some(Bytes(total)));
            assert_eq!(named(&report, "Java Heap").mmap_committed, Bytes(heap));
            assert_eq!(named(&report, "Thread").mmap_committed, Bytes(stacks));
            assert_eq!((named(&report, "Other").malloc, named(&report, "Other").malloc_count), (Bytes(16_777_216), 64));
            let region = report.regions.iter().find(|region| region.tag == VmTag::JavaHeap).expect("a heap");
            assert_eq!(region.range, AddressRange::new(Avma(0x6_8740_0000), Avma(0x8_0000_0000)));
            assert_eq!(region.committed.iter().map(|range| range.length()).sum::<Bytes>(), Bytes(heap));
            assert_eq!(report.regions.iter().filter(|region| region.tag == VmTag::ThreadStack).count(), 3);
            assert!(report.classes.is_some_and(|classes| classes > 400));
        }
    }

    #[test]
    fn the_headers_of_all_blocks_are_in_nmts_own_category() {
        for (text, malloc, headers) in
            [(DETAIL_8, None, 66 << 10), (DETAIL_17, Some(159_432), 91_264), (DETAIL_25, Some(160_128), 125_550)]
        {
            let report = parse_nmt(text);
            let nmt = named(&report, "Native Memory Tracking");
            assert_eq!(nmt.headers, Bytes(headers));
            assert!(malloc.is_none_or(|malloc| nmt.malloc == Bytes(malloc)), "{nmt:?}");
            assert_eq!(nmt.reserved, nmt.malloc + nmt.headers);
            assert!(report.categories.iter().all(|of| of.name == nmt.name || of.headers == Bytes(0)));
        }
    }

    /// In KB; the committed parts of the heap are listed from the top.
    #[test]
    fn a_detail_report_of_jdk_8() {
        let report = parse_nmt(DETAIL_8);
        assert_eq!((report.mode, report.classes), (NmtMode::Detail, Some(435)));
        assert_eq!(report.total.as_ref().map(|total| total.committed), Some(Bytes::kib(171_717)));
        let internal = named(&report, "Internal");
        assert_eq!((internal.malloc, internal.malloc_count), (Bytes::kib(44_324), 1684));
        assert_eq!(named(&report, "Class").mmap_committed, Bytes::kib(4864));
        let sum = |tag: VmTag| {
            let of_tag = report.regions.iter().filter(move |region| region.tag == tag);
            let committed = of_tag.flat_map(|region| &region.committed).map(|range| range.length());
            committed.sum::<Bytes>()
        };
        assert_eq!(sum(VmTag::JavaHeap), Bytes::mib(64));
        assert_eq!((sum(VmTag::Class), sum(VmTag::Code)), (Bytes::kib(4864), Bytes::kib(2536)));
    }

    /// A process may answer with half a million lines. Comparing each line with every other would take a minute already
    /// here.
    #[test]
    fn a_hundred_thousand_lines_are_read_at_once() {
        use std::fmt::Write;
        // Processor time: a busy machine lends it slowly.
        let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
        let before = spent();
        let mut text = "Virtual memory map:\n[0x1000 - 0x7fffffffffff] reserved 1 for Java Heap from\n".to_owned();
        for at in (0x1000_0000u64..).step_by(0x2000).take(1 << 16) {
            writeln!(text, "\t[{at:#x} - {:#x}] committed 4096 from", at + 0x1000).expect("a string");
        }
        let many = "- Other (reserved=1, committed=1)\n".repeat(1 << 16);
        let report = parse_nmt(&(many + &text));
        assert_eq!((report.regions[0].committed.len(), report.categories.len()), (1 << 16, MOST_CATEGORIES));
        assert!(spent() - before < 30, "{} s", spent() - before);
    }

    #[test]
    fn the_sites_of_detail_change_no_category() {
        let (before, _) = DETAIL_17.split_once("Details:").expect("sites");
        assert_eq!(parse_nmt(before).categories, parse_nmt(DETAIL_17).categories);
    }

    #[test]
    fn nmt_off_and_unknown_text() {
        assert_eq!(parse_nmt("Native memory tracking is not enabled\n").mode, NmtMode::Off);
        assert_eq!(parse_nmt("Detail tracking is not enabled"), NmtReport::default());
        assert_eq!(
            parse_nmt("Total: reserved=1720909KB, committed=347165KB").total.map(|total| total.committed),
            Some(Bytes::kib(347_165))
        );
    }

    #[test]
    fn mutated_reports_neither_panic_nor_leave_a_region() {
        let mut committed = 0;
        for text in [DETAIL_8, DETAIL_17, DETAIL_25] {
            for bytes in mutated(text.as_bytes(), 2000) {
                let report = parse_nmt(&String::from_utf8_lossy(&bytes));
                for region in &report.regions {
                    assert!(!region.range.is_empty());
                    assert!(region.committed.iter().all(|range| region.range.covers(*range)));
                    assert!(region.committed.windows(2).all(|pair| pair[0].end <= pair[1].start));
                    committed += region.committed.len();
                }
            }
        }
        assert!(committed > 10_000, "{committed}");
    }
}
