//! Parses `System.map` of JDK 25: the kernel's mappings with the VM's tags beside them, also at NMT level summary.
//!
//! ```text
//! from               to                        vsize prot          rss      hugetlb pgsz notes     info             file
//! 0x0000000687400000-0x000000069f000000    398458880 rw-p       118784            0 4K   com       JAVAHEAP         -
//! 0x00007f3a85244000-0x00007f3a85340000      1032192 rw-p        90112            0 4K   com,nothp STACK-5755-main  -
//! ```
//!
//! A mapping with several of the VM's regions lists their tags with commas. It isn't one region, so it is skipped; the
//! summary's figures cover it.

use super::nmt::hex;
use plimsoll_facts::snapshot::{VmRegion, VmTag};
use plimsoll_facts::units::AddressRange;

pub fn parse_system_map(text: &str) -> Vec<VmRegion> {
    let mut regions: Vec<VmRegion> = text.lines().filter_map(region).collect();
    regions.sort_by_key(|region| region.range.start);
    regions
}

fn region(line: &str) -> Option<VmRegion> {
    let mut columns = line.strip_suffix('\r').unwrap_or(line).split_whitespace();
    let (start, end) = columns.next()?.split_once('-')?;
    let range = AddressRange::new(hex(start)?, hex(end)?);
    let protection = columns.nth(1)?;
    let info = columns.nth(4)?;
    let committed = if protection.starts_with("---") { Vec::new() } else { vec![range] };
    let tag = tag(info)?;
    (!range.is_empty()).then_some(VmRegion { range, tag, committed })
}

/// src/hotspot/share/nmt/memMapPrinter.cpp has the table of tags. None for `-` and for several tags.
fn tag(info: &str) -> Option<VmTag> {
    if info.starts_with("STACK-") {
        return Some(VmTag::ThreadStack);
    }
    Some(match info {
        "JAVAHEAP" => VmTag::JavaHeap,
        "CLASS" | "META" => VmTag::Class,
        "CDS" => VmTag::SharedClassSpace,
        "CODE" => VmTag::Code,
        "GC" | "CARDTBL" => VmTag::Gc,
        "INTERN" => VmTag::Other("Internal".into()),
        "POLL" => VmTag::Other("Safepoint".into()),
        "JDK" => VmTag::Other("Other".into()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;
    use plimsoll_facts::units::Bytes;

    const MAP: &str = include_str!("../../../goldens/system-map-25.txt");

    #[test]
    fn every_tag_of_a_real_map() {
        let regions = parse_system_map(MAP);
        let reserved = |tag: VmTag| -> Bytes {
            regions.iter().filter(|region| region.tag == tag).map(|region| region.range.length()).sum()
        };
        assert_eq!(reserved(VmTag::JavaHeap), Bytes::mib(6028));
        assert!(reserved(VmTag::Class) >= Bytes::mib(1024));
        assert!(reserved(VmTag::ThreadStack) >= Bytes::mib(1));
        assert!(reserved(VmTag::Gc) > Bytes::mib(1) && reserved(VmTag::Code) > Bytes::mib(1));
    }

    #[test]
    fn mutated_maps_never_panic() {
        let regions = mutated(MAP.as_bytes(), 2000).map(|text| parse_system_map(&String::from_utf8_lossy(&text)).len());
        assert!(regions.sum::<usize>() > 10_000);
    }
}
