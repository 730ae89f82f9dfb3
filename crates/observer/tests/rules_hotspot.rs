//! The rules against HotSpot's own word: NMT's detail report names the call stack *and* the VM's tag of each site. The
//! share of bytes and of sites where our category is the VM's tag must not fall below the figures in docs/categories.md.

use plimsoll_observer::rules::RuleSet;
use plimsoll_segment::rules::Decision;
use std::collections::BTreeMap;

/// A site as NMT prints it.
#[derive(Debug, Clone)]
struct Site {
    mmap: bool,
    tag: String,
    bytes: u64,
    count: u64,
    /// Object and symbol, innermost first; ends where a frame has no name.
    frames: Vec<(String, String)>,
}

/// Sites of the malloc part and reservations of the map.
fn sites(report: &str) -> Vec<Site> {
    let mut out = Vec::new();
    let mut frames: Vec<Option<(String, String)>> = Vec::new();
    let mut reservation: Option<(u64, String)> = None;
    for line in report.lines().chain([""]) {
        let text = line.trim();
        if let Some((_, rest)) = text.strip_prefix("[0x").and_then(|t| t.split_once(']'))
            && !text.contains(" - 0x")
        {
            frames.push(frame(rest.trim()));
            continue;
        }
        let named = |frames: &mut Vec<Option<(String, String)>>| -> Vec<(String, String)> {
            let named = frames.iter().map_while(|f| f.clone()).collect();
            frames.clear();
            named
        };
        if let Some((bytes, tag)) = reservation.take() {
            out.push(Site { mmap: true, tag, bytes, count: 1, frames: named(&mut frames) });
        }
        if let Some((bytes, rest)) =
            text.trim_start_matches('(').strip_prefix("malloc=").and_then(|t| t.split_once(' '))
            && let Some((tag, rest)) = rest.trim_start_matches("tag=").trim_start_matches("type=").split_once(" #")
            && !frames.is_empty()
        {
            let count: String = rest.chars().take_while(char::is_ascii_digit).collect();
            let (bytes, count) = (bytes.parse().unwrap(), count.parse().unwrap());
            out.push(Site { mmap: false, tag: tag.into(), bytes, count, frames: named(&mut frames) });
        } else if let Some((_, rest)) = text.split_once("] reserved ").filter(|_| text.contains(" - 0x"))
            && let Some((bytes, tag)) = rest.trim_start_matches("and committed ").split_once(" for ")
            && let Some(tag) = tag.strip_suffix(" from")
        {
            reservation = Some((bytes.parse().unwrap(), tag.into()));
        }
        frames.clear();
    }
    out
}

/// `Arena::grow(…)+0x5d in libjvm.so` → object and symbol; libjvm.so where no object is named.
fn frame(text: &str) -> Option<(String, String)> {
    let (symbol, rest) = text.rsplit_once("+0x")?;
    let object = rest.split_once(" in ").map_or("libjvm.so", |(_, object)| object);
    Some((object.to_string(), symbol.to_string())).filter(|(_, symbol)| !symbol.is_empty())
}

#[derive(Default, Debug, Clone, Copy)]
struct Share {
    agree_bytes: u64,
    bytes: u64,
    agree_sites: u64,
    sites: u64,
}

#[derive(Default)]
struct Agreement {
    malloc: Share,
    reserve: Share,
    differences: BTreeMap<(bool, String, String, String), (u64, u64)>,
    arenas: BTreeMap<String, u64>,
}

fn compare(rules: &RuleSet, sites: &[Site]) -> Agreement {
    let mut out = Agreement::default();
    for site in sites.iter().filter(|s| !s.frames.is_empty()) {
        let frames: Vec<(&str, Option<&str>)> =
            site.frames.iter().map(|(o, s)| (o.as_str(), Some(s.as_str()))).collect();
        let ours = match rules.classify(&frames) {
            Decision::Category(c) => rules.name(c).to_string(),
            Decision::Object(i) => frames[i].0.to_string(),
            Decision::Unknown => "unknown".into(),
        };
        if site.tag == "Arena Chunk" {
            *out.arenas.entry(ours).or_default() += site.bytes;
            continue;
        }
        // NMT books a thread's stack under who starts the thread: no mmap call, so nothing for the rules.
        if site.tag == "Thread Stack" {
            continue;
        }
        let share = if site.mmap { &mut out.reserve } else { &mut out.malloc };
        share.bytes += site.bytes;
        share.sites += 1;
        if ours == site.tag {
            share.agree_bytes += site.bytes;
            share.agree_sites += 1;
        } else {
            let stack = site.frames.iter().map(|f| f.1.split('(').next().unwrap_or("")).collect::<Vec<_>>().join(" < ");
            let d = out.differences.entry((site.mmap, site.tag.clone(), ours, stack)).or_default();
            d.0 += site.bytes;
            d.1 += site.count;
        }
    }
    out
}

/// For whoever works on the rules: `PLIMSOLL_NMT_REPORTS='a.nmt b.nmt' cargo test --test rules_hotspot -- --ignored --nocapture`.
#[test]
#[ignore = "a tool, not a test: compares saved NMT reports and prints what differs"]
fn compare_saved_reports() {
    let rules = RuleSet::parse_built_in().unwrap();
    for path in std::env::var("PLIMSOLL_NMT_REPORTS").unwrap_or_default().split_whitespace() {
        let report = std::fs::read_to_string(path).unwrap();
        let agreement = compare(&rules, &sites(&report));
        println!(
            "== {path}\n malloc {:?}\n reserve {:?}\n arenas {:?}",
            agreement.malloc, agreement.reserve, agreement.arenas
        );
        println!(
            " malloc bytes {:.2} % sites {:.2} %  reserve bytes {:.2} %",
            100.0 * agreement.malloc.agree_bytes as f64 / agreement.malloc.bytes as f64,
            100.0 * agreement.malloc.agree_sites as f64 / agreement.malloc.sites as f64,
            100.0 * agreement.reserve.agree_bytes as f64 / agreement.reserve.bytes as f64
        );
        let mut differences: Vec<_> = agreement.differences.iter().collect();
        differences.sort_by_key(|d| std::cmp::Reverse(d.1.0));
        for ((mmap, tag, ours, stack), (bytes, count)) in differences {
            println!("D {} {bytes:>9} #{count:<6} VM {tag} | ours {ours} | {stack}", if *mmap { "R" } else { "M" });
        }
    }
}
