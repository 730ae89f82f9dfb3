//! Parses addresses and sizes printed by GC.heap_info, VM.metaspace, Compiler.codecache, VM.info, VM.flags and
//! VM.version. VM.info repeats the lines of the others, so one parser reads all of them.
//!
//! ```text
//!  garbage-first heap   total 397312K, used 4675K [0x0000000687400000, 0x0000000800000000)              17, G1
//!  garbage-first heap   total 262144K, used 11264K [0x…, 0x…, 0x…)      up to 10, G1: start, no committed end, end
//! garbage-first heap   total reserved 6172672K, committed 393216K, used 2477K [0x…, 0x…)                25, G1
//!  ZHeap           used 2M, capacity 64M, max capacity 64M
//!  128M max, 128M soft max, 65536K committed, 1536K used               Shenandoah, then: Reserved region:\n - [0x…, 0x…)
//!  def new generation   total 9792K, used 1047K [0x…, 0x…, 0x…)            Serial and Parallel: start, committed end, end
//!  Metaspace       used 84K, committed 320K, reserved 1114112K
//!   class space    used 4K, committed 128K, reserved 1048576K
//! - node #0: base 0x00007ff594000000: reserved=65536.00 KB, committed=192.00 KB ( <1%), …              VM.metaspace vslist
//!    [0x00007fc7b8400000, 0x…, 0x00007fc7b8840000, 0x00007fc7b8c00000)     11: a node's start, top, committed end, end
//! CodeHeap 'profiled nmethods': size=120032Kb used=5Kb max_used=5Kb free=120026Kb
//!  bounds [0x00007f353d400000, 0x00007f353d670000, 0x00007f3544938000]                        start, committed end, end
//!  compilation: disabled (not enough contiguous free space left)      17; 25: Compilation: …, stopped_count=1, …
//! CDS archive(s) mapped at: [0x…-0x…-0x…), size 12349440, …
//! Compressed class space mapped at: 0x…-0x…, reserved size: 1073741824
//! Card table byte_map: [0x…,0x…] _byte_map_base: …
//!  Prev Bits: [0x…, 0x…)      Bits: [0x…, 0x…)      Begin Bits: [0x…, 0x…)         G1 of 17, of 25, Parallel
//! ```

use super::disjoint::Disjoint;
use super::nmt::{bracketed_range, hex};
use plimsoll_facts::snapshot::{CodeCacheSegment, JavaHeap, Metaspace, VmRegion, VmTag};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    pub heap: Option<JavaHeap>,
    pub metaspace: Option<Metaspace>,
    pub code_cache: Vec<CodeCacheSegment>,
    pub has_stopped_compiling: bool,
    /// Sorted by start, disjoint.
    pub regions: Vec<VmRegion>,
    pub collector: Option<String>,
    of_regions: Disjoint,
    of_code_cache: Disjoint,
}

/// Serial and Parallel print the heap by generation: its range, its committed and its occupied bytes.
#[derive(Default)]
struct Generations {
    all: Vec<(AddressRange, Bytes, Bytes)>,
    ranges: Disjoint,
}

/// After its first letter: CodeCache::print_summary (code/codeCache.cpp). `disabled (interpreter mode)` is -Xint.
const STOPPED: &str = "ompilation: disabled (not enough";

/// Mark bitmaps: one of G1 (two of them up to 19), two of Parallel.
const MARK_BITS: [&str; 5] = ["Prev Bits: ", "Next Bits: ", "Bits: ", "Begin Bits: ", "End Bits: "];

pub fn parse_printed(text: &str) -> Printed {
    let mut printed = Printed::default();
    let mut code_heap: Option<CodeCacheSegment> = None;
    let mut generations = Generations::default();
    // The history repeats the heap before and after past collections. The first occurrence is the current heap.
    let mut heap_is_known = false;
    let mut after_gc = AfterGc::default();
    for line in text.lines() {
        let line = line.trim_start();
        after_gc.line(line);
        if line.starts_with("Event: ") || line.starts_with("{Heap before") || line.starts_with("GC Heap ") {
            heap_is_known = printed.heap.is_some() || !generations.all.is_empty();
        } else if heap_is_known && (collector(line).is_some() || occupied_in(line).is_some() || is_metaspace(line)) {
            continue;
        } else if let Some(bounds) = line.strip_prefix("bounds ") {
            if let (Some(segment), Some((start, committed, end))) = (code_heap.take(), three(bounds)) {
                push_code(&mut printed, segment, start, committed, end);
            }
        } else if let Some(rest) = line.strip_prefix("CodeHeap '").or_else(|| line.strip_prefix("CodeCache: ")) {
            code_heap = (!line.starts_with("CodeCache: ") || printed.code_cache.is_empty()).then(|| CodeCacheSegment {
                name: rest.split_once('\'').map_or("CodeCache", |(name, _)| name).to_string(),
                range: AddressRange::default(),
                committed: Bytes(0),
                occupied: figure(line, "used=").unwrap_or_default(),
                reserved: figure(line, "size=").unwrap_or_default(),
            });
        } else if line.strip_prefix(['c', 'C']).is_some_and(|rest| rest.starts_with(STOPPED)) {
            printed.has_stopped_compiling = true;
        } else if line.starts_with("Metaspace ") && line.contains("used ") {
            let metaspace = printed.metaspace.get_or_insert_default();
            metaspace.occupied = figure(line, "used ").unwrap_or_default();
            metaspace.committed = figure(line, "committed ").unwrap_or_default();
            metaspace.reserved = figure(line, "reserved ").unwrap_or_default();
        } else if line.starts_with("class space ") {
            let metaspace = printed.metaspace.get_or_insert_default();
            metaspace.class_space_committed = figure(line, "committed ").unwrap_or_default();
        } else if line.starts_with("- node #") {
            if let Some((base, figures)) = line.split_once("base ").and_then(|(_, rest)| rest.split_once(": "))
                && let (Some(base), Some(reserved)) = (hex(base), figure(figures, "reserved="))
            {
                push(&mut printed, VmTag::Class, AddressRange::sized(base, reserved), None);
            }
        } else if let Some([start, _, committed, end]) =
            addresses(line).filter(|[_, _, committed, end]| committed <= end)
        {
            let committed = AddressRange::new(start, committed);
            push(&mut printed, VmTag::Class, AddressRange::new(start, end), Some(committed));
        } else if let Some(rest) = line.strip_prefix("Compressed class space mapped at: ") {
            if let Some(range) = dashed(rest.split(',').next().unwrap_or("")) {
                push(&mut printed, VmTag::Class, range, None);
            }
        } else if let Some(rest) = line.strip_prefix("CDS archive(s) mapped at: [") {
            let addresses: Vec<Avma> = rest.split(')').next().unwrap_or("").split('-').filter_map(hex).collect();
            if let (Some(first), Some(last)) = (addresses.first(), addresses.last()) {
                push(&mut printed, VmTag::SharedClassSpace, AddressRange::new(*first, *last), None);
            }
        } else if let Some(range) = line.strip_prefix("Card table byte_map: ").and_then(bracketed_range) {
            push(&mut printed, VmTag::Gc, range.0, None);
        } else if MARK_BITS.iter().any(|start| line.starts_with(start)) {
            if let Some((range, _)) = line.split_once(": ").and_then(|(_, range)| bracketed_range(range.trim_start())) {
                push(&mut printed, VmTag::Gc, range, None);
            }
        } else if shenandoah_figure(line, " used").is_some() {
            shenandoah_line(&mut printed, line);
        } else if let Some(range) = line.strip_prefix("- ").and_then(bracketed_range) {
            // Shenandoah prints "Reserved region:" before this line.
            if printed.collector.as_deref() == Some("Shenandoah") {
                printed.heap.get_or_insert_default().reserved = range.0.length();
                push(&mut printed, VmTag::JavaHeap, range.0, None);
            }
        } else if let Some(name) = collector(line) {
            printed.collector.get_or_insert_with(|| name.to_string());
            heap_line(&mut printed, &mut generations, line);
        } else if line.starts_with("Heap address: ") {
            whole_heap(&mut printed, line);
        }
    }
    join_generations(&mut printed, &generations.all);
    if let Some(heap) = &mut printed.heap {
        heap.live_after_gc = after_gc.last;
    }
    printed.regions.sort_by_key(|region| region.range.start);
    printed
}

/// What past collections left, from the history in VM.events and VM.info; the last one counts. It includes garbage that
/// a young collection doesn't reach.
///
/// ```text
/// {Heap after GC invocations=1 (full 1):                       up to 24
/// Event: 0.324 {heap After GC invocations=1 (full 0):          25
///  garbage-first heap   total 10240K, used 1655K [0x…
/// }
/// ```
#[derive(Default)]
struct AfterGc {
    last: Option<Bytes>,
    inside: bool,
}

impl AfterGc {
    fn line(&mut self, line: &str) {
        if line.contains("{Heap after GC ") || line.contains("{heap After GC ") {
            (self.last, self.inside) = (None, true);
        } else if line.starts_with('}') || line.starts_with("Event: ") {
            self.inside = false;
        } else if self.inside
            && let Some(occupied) = occupied_in(line)
        {
            self.last = Some(self.last.unwrap_or_default() + occupied);
        }
    }
}

/// The occupied bytes in a line of a heap or a generation.
fn occupied_in(line: &str) -> Option<Bytes> {
    if collector(line).is_some() { figure(line, "used ") } else { shenandoah_figure(line, " used") }
}

fn is_metaspace(line: &str) -> bool {
    line.starts_with("Metaspace ") || line.starts_with("class space ")
}

/// The collector, by the first words of its heap's line.
fn collector(line: &str) -> Option<&'static str> {
    const NAMES: [(&str, &str); 11] = [
        ("garbage-first heap", "G1"),
        ("PSYoungGen", "Parallel"),
        ("ParOldGen", "Parallel"),
        ("def new generation", "Serial"),
        ("DefNew", "Serial"),
        ("tenured generation", "Serial"),
        ("Tenured", "Serial"),
        ("par new generation", "CMS"),
        ("concurrent mark-sweep generation", "CMS"),
        ("ZHeap", "Z"),
        ("Shenandoah Heap", "Shenandoah"),
    ];
    NAMES.iter().find(|(start, _)| line.starts_with(start)).map(|(_, name)| *name)
}

fn heap_line(printed: &mut Printed, generations: &mut Generations, line: &str) {
    let occupied = figure(line, "used ");
    // Without "committed", "total 397312K" is the committed size (JDK 17); ZGC prints "capacity".
    let committed = figure(line, "committed ").or_else(|| figure(line, "capacity ")).or_else(|| figure(line, "total "));
    let bracket = line.find('[').map(|at| &line[at..]);
    let three = bracket.and_then(three);
    // The second address of G1 up to JDK 10 is derived from the size and number of regions, and is no committed end
    // (G1CollectedHeap::print_on, gc/g1/g1CollectedHeap.cpp).
    let is_g1 = collector(line) == Some("G1");
    if let Some((start, committed_end, end)) = three.filter(|_| !is_g1) {
        let sized = Bytes(committed_end.0.saturating_sub(start.0));
        let range = AddressRange::new(start, end);
        if let Some(occupied) = occupied
            && generations.ranges.add(range)
        {
            generations.all.push((range, sized, occupied));
        }
        return;
    }
    let whole = three.map(|(start, _, end)| AddressRange::new(start, end));
    let range = whole.or_else(|| bracket.and_then(bracketed_range).map(|(range, _)| range));
    range.into_iter().for_each(|range| push(printed, VmTag::JavaHeap, range, None));
    // Unknown isn't 0: a verdict would take all of the heap for unused. Shenandoah's figures are on the next line.
    let (Some(occupied), Some(committed)) = (occupied, committed) else { return };
    let heap = printed.heap.get_or_insert_default();
    heap.occupied = occupied;
    heap.committed = committed;
    if let Some(max) = figure(line, "max capacity ") {
        heap.max = Some(max);
    }
    if let Some(range) = range {
        heap.reserved = range.length();
    }
}

/// `65536K max, 65536K soft max, 65536K committed, 1536K used`
fn shenandoah_figure(line: &str, key: &str) -> Option<Bytes> {
    let is_its = line.ends_with(" used") && line.contains(" soft max, ");
    let figures = is_its.then(|| line.split(", "))?.find_map(|part| part.strip_suffix(key));
    figures.and_then(|part| figure(part, ""))
}

fn shenandoah_line(printed: &mut Printed, line: &str) {
    let before = |key: &str| shenandoah_figure(line, key);
    let (Some(committed), Some(occupied)) = (before(" committed"), before(" used")) else { return };
    let heap = printed.heap.get_or_insert_default();
    heap.committed = committed;
    heap.occupied = occupied;
    heap.max = before(" max");
}

/// `Heap address: 0x0000000687400000, size: 6028 MB, …` in VM.info: the only address that ZGC and Epsilon print.
fn whole_heap(printed: &mut Printed, line: &str) {
    let start = line.split_once(": ").and_then(|(_, rest)| hex(rest.split(',').next().unwrap_or("")));
    if let (Some(start), Some(size)) = (start, figure(line, "size: ")) {
        push(printed, VmTag::JavaHeap, AddressRange::sized(start, size), None);
        printed.heap.get_or_insert_default().reserved = size;
    }
}

fn join_generations(printed: &mut Printed, generations: &[(AddressRange, Bytes, Bytes)]) {
    if generations.is_empty() {
        return;
    }
    let heap = printed.heap.get_or_insert_default();
    heap.committed = generations.iter().map(|(_, committed, _)| *committed).sum();
    heap.occupied = generations.iter().map(|(.., occupied)| *occupied).sum();
    heap.reserved = generations.iter().map(|(range, ..)| range.length()).sum();
    for (range, committed, _) in generations {
        push(printed, VmTag::JavaHeap, *range, Some(AddressRange::sized(range.start, *committed)));
    }
}

fn push_code(printed: &mut Printed, mut segment: CodeCacheSegment, start: Avma, committed: Avma, end: Avma) {
    segment.range = AddressRange::new(start, end);
    if !printed.of_code_cache.add(segment.range) {
        return;
    }
    let committed = AddressRange::new(start, committed.min(end));
    segment.committed = committed.length();
    push(printed, VmTag::Code, segment.range, Some(committed));
    printed.code_cache.push(segment);
}

/// Adds a region unless it overlaps a known one: what is printed first is the most exact.
fn push(printed: &mut Printed, tag: VmTag, range: AddressRange, committed: Option<AddressRange>) {
    if printed.of_regions.add(range) {
        printed.regions.push(VmRegion { range, tag, committed: committed.into_iter().collect() });
    }
}

/// `[a, b, c]` or `[a, b, c)`
fn three(text: &str) -> Option<(Avma, Avma, Avma)> {
    addresses(text).map(|[start, committed, end]| (start, committed, end))
}

/// `N` addresses in brackets; all but the last are in order.
fn addresses<const N: usize>(text: &str) -> Option<[Avma; N]> {
    let inner = text.strip_prefix('[')?;
    let listed: Option<Vec<Avma>> = inner[..inner.find([']', ')'])?].split(',').map(hex).collect();
    let listed: [Avma; N] = listed?.try_into().ok()?;
    listed[..N - 1].is_sorted().then_some(listed)
}

fn dashed(text: &str) -> Option<AddressRange> {
    let (start, end) = text.split_once('-')?;
    Some(AddressRange::new(hex(start)?, hex(end)?))
}

/// The size after `key`: `4675K`, `120036Kb`, `65536.00 KB`, `6028 MB`, `1.06 GB`, or bytes. java sets the locale
/// (`setlocale`, java_props_md.c), so the decimal point is a comma in many languages. The VM doesn't group thousands,
/// and a comma that separates fields has a blank behind it.
pub fn figure(text: &str, key: &str) -> Option<Bytes> {
    let rest = &text[text.find(key)? + key.len()..];
    let (whole, rest) = digits(rest);
    let point = rest.strip_prefix(['.', ',']).map(digits).filter(|(decimals, _)| !decimals.is_empty());
    let (decimals, unit) = point.unwrap_or(("", rest));
    let scale: u64 = match unit.trim_start().as_bytes().first() {
        Some(b'K' | b'k') => 1 << 10,
        Some(b'M' | b'm') => 1 << 20,
        Some(b'G' | b'g') => 1 << 30,
        _ => 1,
    };
    if let (Ok(number), true) = (whole.parse::<u64>(), decimals.is_empty()) {
        return Some(Bytes(number.saturating_mul(scale)));
    }
    let number = format!("{whole}.{decimals}").parse::<f64>().ok().filter(|n| n.is_finite());
    number.map(|n| Bytes((n * scale as f64) as u64))
}

/// The digits at the beginning, and the rest.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// The version `25.0.3+9-LTS` from VM.version's `OpenJDK 64-Bit Server VM version 25.0.3+9-LTS`.
pub fn parse_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains(" version "))?;
    line.split_once(" version ").map(|(_, version)| version.trim().to_string())
}

/// Loaders and classes from VM.metaspace's `Total Usage - 12 loaders, 523 classes (…):`. The VM also counts loaders
/// that it makes for one hidden class (a lambda, up to JDK 14), or for one method that reflection calls. by-spacetype
/// lists these separately; they aren't the program's loaders.
///
/// ```text
/// Standard - 9 loaders, 401 classes (104 shared)
/// ClassMirrorHolder - 31 loaders, 31 classes                  Anonymous up to JDK 14
/// Reflection - 2 loaders, 2 classes
/// ```
pub fn parse_loaders(text: &str) -> Option<(u64, u64)> {
    let of = |kind: &str| {
        let rest = text.lines().find_map(|line| line.trim_start().strip_prefix(kind)?.strip_prefix(" - "))?;
        let (loaders, rest) = rest.split_once(" loader")?;
        Some((loaders.parse::<u64>().ok()?, rest))
    };
    let (loaders, rest) = of("Total Usage")?;
    let classes = rest.split_once(", ")?.1.split_whitespace().next()?.parse().ok()?;
    let own = ["Anonymous", "ClassMirrorHolder", "Reflection"].iter().filter_map(|kind| Some(of(kind)?.0));
    Some((own.fold(loaders, u64::saturating_sub), classes))
}

/// The flags in `wanted` from VM.flags' `-XX:MaxHeapSize=6320816128 -XX:+UseG1GC …` (set, or chosen by ergonomics).
pub fn parse_flags(text: &str, wanted: &[&str]) -> Vec<(String, String)> {
    let flags = text.split_whitespace().filter_map(|word| {
        let flag = word.strip_prefix("-XX:")?;
        Some(match (flag.split_once('='), flag.strip_prefix('+'), flag.strip_prefix('-')) {
            (Some((name, value)), ..) => (name, value),
            (None, Some(name), _) => (name, "true"),
            (None, None, Some(name)) => (name, "false"),
            _ => return None,
        })
    });
    flags.filter(|(name, _)| wanted.contains(name)).map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// The flags that a running VM can change, from VM.flags -all:
///
/// ```text
///     uintx MaxHeapFreeRatio                         = 70                                     {manageable} {default}
/// ```
/// JDK 8 prints `:=` for a flag that was set, and `{manageable}` too. A text may be empty, or contain blanks.
pub fn parse_manageable(text: &str) -> Vec<(String, String)> {
    let flags = text.lines().filter_map(|line| {
        let (flag, kind) = line.split_once('{')?;
        let (left, value) = flag.split_once('=')?;
        let name = left.trim_end_matches(':').split_whitespace().nth(1)?;
        kind.starts_with("manageable").then(|| (name.to_owned(), value.trim().to_owned()))
    });
    flags.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;

    #[test]
    fn a_flag_is_manageable_if_the_vm_says_so() {
        let printed = "[Global flags]\n\
            \x20     int ActiveProcessorCount                     = -1                                        {product} {default}\n\
            \x20  double G1PeriodicGCSystemLoadThreshold          = 0.000000                               {manageable} {default}\n\
            \x20   ccstr HeapDumpPath                             =                                        {manageable} {default}\n\
            \x20   uintx MaxHeapFreeRatio                         = 70                                     {manageable} {management}\n\
            \x20   uintx MinHeapFreeRatio                        := 10                                  {manageable}\n";
        let expected = [
            ("G1PeriodicGCSystemLoadThreshold", "0.000000"),
            ("HeapDumpPath", ""),
            ("MaxHeapFreeRatio", "70"),
            ("MinHeapFreeRatio", "10"),
        ];
        assert_eq!(parse_manageable(printed), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        for bytes in mutated(printed.as_bytes(), 200) {
            parse_manageable(&String::from_utf8_lossy(&bytes));
        }
    }

    const INFO_17: &str = include_str!("../../../goldens/vm-info-17.txt");
    const INFO_25: &str = include_str!("../../../goldens/vm-info-25.txt");

    fn reserved(printed: &Printed, tag: VmTag) -> Bytes {
        printed.regions.iter().filter(|region| region.tag == tag).map(|region| region.range.length()).sum()
    }

    #[test]
    fn vm_info_of_jdk_17_and_25_gives_every_region() {
        for info in [INFO_17, INFO_25] {
            let printed = parse_printed(info);
            assert_eq!(printed.collector.as_deref(), Some("G1"));
            assert_eq!(reserved(&printed, VmTag::JavaHeap), Bytes::mib(6028));
            assert_eq!(reserved(&printed, VmTag::Class), Bytes::mib(1024));
            assert_eq!(
                reserved(&printed, VmTag::Code),
                printed.code_cache.iter().map(|code| code.range.length()).sum()
            );
            assert!(reserved(&printed, VmTag::Code) >= Bytes::kib(245_760));
            assert_eq!(printed.code_cache.len(), 3);
            assert!(printed.metaspace.is_some());
        }
        assert_eq!(reserved(&parse_printed(INFO_17), VmTag::SharedClassSpace), Bytes(0xbc_7000));
    }

    #[test]
    fn heaps_of_every_collector() {
        let heap = |text: &str| {
            let printed = parse_printed(text);
            let heap = printed.heap.clone().expect("a heap");
            (
                printed.collector.clone().expect("a collector"),
                heap.committed,
                heap.occupied,
                reserved(&printed, VmTag::JavaHeap),
            )
        };
        let serial = " def new generation   total 19648K, used 1755K [0x00000000fc000000, 0x00000000fd550000, 0x00000000fd550000)\n\
             \x20 eden space 17472K,  10% used [0x00000000fc000000, 0x00000000fc1b6ef0, 0x00000000fd110000)\n\
             \x20tenured generation   total 43712K, used 0K [0x00000000fd550000, 0x0000000100000000, 0x0000000100000000)\n";
        assert_eq!(heap(serial), ("Serial".into(), Bytes::mib(64), Bytes::kib(1755), Bytes::mib(64)));
        let parallel = "PSYoungGen      total 18944K, used 1310K [0x00000000feb00000, 0x0000000100000000, 0x0000000100000000)\n\
             ParOldGen       total 44032K, used 1166K [0x00000000fc000000, 0x00000000feb00000, 0x00000000feb00000)\n";
        assert_eq!(heap(parallel), ("Parallel".into(), Bytes::mib(64), Bytes::kib(2476), Bytes::mib(64)));
        let g1_of_8 = " garbage-first heap   total 262144K, used 11264K [0x00000006c1e00000, 0x00000006c1f00800, 0x00000007c0000000)\n\
             \x20 region size 1024K, 12 young (12288K), 0 survivors (0K)\n";
        let expected = ("G1".into(), Bytes::mib(256), Bytes::kib(11_264), Bytes(0x7_c000_0000 - 0x6_c1e0_0000));
        assert_eq!(heap(g1_of_8), expected);
        assert_eq!(parse_printed(g1_of_8).heap.map(|heap| heap.reserved), Some(expected.3));
        let cms = " par new generation   total 19648K, used 1755K [0x00000000fc000000, 0x00000000fd550000, 0x00000000fd550000)\n\
             \x20concurrent mark-sweep generation total 43712K, used 3K [0x00000000fd550000, 0x0000000100000000, 0x0000000100000000)\n";
        assert_eq!(heap(cms), ("CMS".into(), Bytes::mib(64), Bytes::kib(1758), Bytes::mib(64)));
        let z = "Heap address: 0x0000040000000000, size: 1024 MB\nZHeap            used 2M, capacity 64M, max capacity 64M\n";
        assert_eq!(heap(z), ("Z".into(), Bytes::mib(64), Bytes::mib(2), Bytes::mib(1024)));
        let shenandoah = "Shenandoah Heap\n 128M max, 128M soft max, 64M committed, 1536K used\nReserved region:\n\
             \x20- [0x00000000fc000000, 0x0000000100000000) \n";
        assert_eq!(heap(shenandoah), ("Shenandoah".into(), Bytes::mib(64), Bytes::kib(1536), Bytes::mib(64)));
    }

    /// A later JDK may print other words.
    #[test]
    fn a_heap_without_a_figure_is_unknown_and_not_empty() {
        let g1 = "garbage-first heap   total 262144K, used 16553K [0x00000000f0000000, 0x0000000100000000)\n";
        assert!(parse_printed(g1).heap.is_some());
        let printed = parse_printed(&g1.replace("used", "in use:"));
        assert_eq!((printed.heap, printed.regions.len()), (None, 1));
        assert_eq!(parse_printed("Shenandoah Heap\n 128M max, 128M soft max, 64M taken, 1536K used\n").heap, None);
        assert_eq!(parse_printed("ZHeap            used 2M, size 64M\n").heap, None);
    }

    #[test]
    fn thousands_of_regions_are_all_kept() {
        const LINES: u64 = 1 << 12;
        let lines = |line: &dyn Fn(u64) -> String| (0..LINES).map(|n| line(0x7000_0000_0000 + (n << 16))).collect();
        let generations: String =
            lines(&|at| format!("PSYoungGen total 1K, used 1K [{at:#x}, {at:#x}, {:#x})\n", at + 1));
        assert_eq!(parse_printed(&generations).regions.len() as u64, LINES);
        let nodes: String = lines(&|at| format!("- node #0: base {at:#x}: reserved=64.00 KB, committed=0\n"));
        assert_eq!(parse_printed(&nodes).regions.len() as u64, LINES);
        let code = |at: u64| format!("CodeHeap 'x': size=1Kb\n bounds [{at:#x}, {at:#x}, {:#x}]\n", at + 1);
        let code: String = lines(&code);
        assert_eq!(parse_printed(&code).code_cache.len() as u64, LINES);
    }

    #[test]
    fn past_collections_in_vm_info_change_nothing() {
        let now = " PSYoungGen      total 18944K, used 10K [0x00000000feb00000, 0x0000000100000000, 0x0000000100000000)\n\
             \x20Metaspace       used 84K, committed 320K, reserved 1114112K\n";
        let past = now.replace("used 10K", "used 999K").replace("committed 320K", "committed 9K");
        let both = format!("{now}GC Heap Usage History (2 events):\nEvent: 0.1 {{type Before\n{past}}}\n");
        assert_eq!(parse_printed(&both), parse_printed(now));
        assert_eq!(parse_printed(now).heap.map(|heap| heap.occupied), Some(Bytes::kib(10)));
    }

    #[test]
    fn live_bytes_after_the_last_collection_are_read_from_the_history() {
        let now = "garbage-first heap   total reserved 262144K, committed 262144K, used 16553K [0x00000000f0000000, 0x0000000100000000)\n";
        let of = |history: &str| {
            parse_printed(&format!("{now}{history}")).heap.map(|heap| (heap.occupied, heap.live_after_gc))
        };
        let occupied = Bytes::kib(16553);
        assert_eq!(of("GC Heap History (0 events):\nNo events\n"), Some((occupied, None)));
        let newest = "GC Heap Usage History (2 events):\nEvent: 0.298 {heap Before GC invocations=0 (full 0):\n\
             \x20garbage-first heap   total reserved 262144K, committed 262144K, used 15502K [0x00000000f0000000, 0x0000000100000000)\n\
             }\nEvent: 0.324 {heap After GC invocations=1 (full 0):\n\
             \x20garbage-first heap   total reserved 262144K, committed 262144K, used 1326K [0x00000000f0000000, 0x0000000100000000)\n}\n\
             Metaspace Usage History (2 events):\nEvent: 0.324 {metaspace After GC invocations=1 (full 0):\n\
             \x20Metaspace       used 172K, committed 384K, reserved 1114112K\n}\n";
        assert_eq!(of(newest), Some((occupied, Some(Bytes::kib(1326)))));
        let after = |young: u32, old: u32| {
            format!(
                "Event: 9.9 GC heap after\n{{Heap after GC invocations=1 (full 1):\n\
                 \x20PSYoungGen      total 18944K, used {young}K [0x00000000feb00000, 0x0000000100000000, 0x0000000100000000)\n\
                 \x20 eden space 17472K, 10% used [0x00000000fc000000, 0x00000000fc1b6ef0, 0x00000000fd110000)\n\
                 \x20ParOldGen       total 44032K, used {old}K [0x00000000fc000000, 0x00000000feb00000, 0x00000000feb00000)\n}}\n"
            )
        };
        let two = format!("GC Heap History (4 events):\n{}{}", after(700, 11), after(17, 1013));
        assert_eq!(of(&two), Some((occupied, Some(Bytes::kib(1030)))));
        let shenandoah = "Shenandoah Heap\n 65536K max, 65536K soft max, 65536K committed, 1536K used\n";
        let history = "GC Heap History (1 events):\nEvent: 1.0 GC heap after\n{Heap after GC invocations=1 (full 0):\nShenandoah Heap\n \
             65536K max, 65536K soft max, 65536K committed, 1024K used\n}\n";
        let heap = parse_printed(&format!("{shenandoah}{history}")).heap.expect("a heap");
        assert_eq!((heap.occupied, heap.live_after_gc), (Bytes::kib(1536), Some(Bytes::kib(1024))));
    }

    #[test]
    fn metaspace_nodes_and_flags_are_read() {
        let text = "- node #0: base 0x00007ff594000000: reserved=65536.00 KB, committed=192.00 KB ( <1%), used=1.00 KB";
        assert_eq!(reserved(&parse_printed(text), VmTag::Class), Bytes::mib(64));
        let german = text.replace("65536.00", "65536,00").replace("192.00", "192,00").replace("1.00", "1,00");
        assert_eq!(parse_printed(&german), parse_printed(text));
        let node_of_11 = "node @0x00007fc7b4078c30: reserved=8.00 MB, committed=4.25 MB ( 53%), used=4.01 MB ( 50%)\n   \
             [0x00007fc7b8400000, 0x00007fc7b8802000, 0x00007fc7b8840000, 0x00007fc7b8c00000)";
        let [node] = &parse_printed(node_of_11).regions[..] else { panic!("one region") };
        assert_eq!((node.range.length(), node.committed[0].length()), (Bytes::mib(8), Bytes(0x44_0000)));
        let flags = parse_flags(
            "1234:\n-XX:MaxHeapSize=100 -XX:+UseG1GC -XX:-AlwaysPreTouch -XX:Secret=x\n",
            &["MaxHeapSize", "UseG1GC", "AlwaysPreTouch"],
        );
        let words: Vec<String> = flags.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(words, ["MaxHeapSize=100", "UseG1GC=true", "AlwaysPreTouch=false"]);
    }

    #[test]
    fn a_figure_may_have_a_decimal_comma() {
        for (text, bytes) in [
            ("4675K", 4675 << 10),
            ("120036Kb used", 120_036 << 10),
            ("1.5 GB", 3 << 29),
            ("1,5 GB, committed", 3 << 29),
            ("1024,00 KB, ", 1 << 20),
            ("12349440, 4096", 12_349_440),
            ("6028 MB, Compressed", 6028 << 20),
            ("7,", 7),
            ("0", 0),
        ] {
            assert_eq!(figure(&format!("size: {text}"), "size: "), Some(Bytes(bytes)), "{text}");
        }
        for text in ["", ".", ",", "x1", "- 1"] {
            assert_eq!(figure(&format!("size: {text}"), "size: "), None, "{text}");
        }
    }

    /// A server of JDK 11 with 3,000 lambdas has few class loaders.
    #[test]
    fn what_the_vm_makes_for_one_class_is_no_class_loader() {
        let total = "Total Usage - 3120 loaders, 15632 classes (1423 shared):\n  Non-Class: 9 chunks\n";
        assert_eq!(parse_loaders(total), Some((3120, 15_632)));
        let kinds = "Usage per space type:\n\nStandard - 19 loaders, 9000 classes (2 shared)\n  Class: 1 chunk\n\
                     Boot - 1 loader, 3000 classes\n\nAnonymous - 3000 loaders, 3000 classes\nReflection - 100 loaders\n";
        assert_eq!(parse_loaders(&format!("{kinds}{total}")), Some((20, 15_632)));
        let later = kinds.replace("Anonymous", "ClassMirrorHolder");
        assert_eq!(parse_loaders(&format!("{later}{total}")), Some((20, 15_632)));
        assert_eq!(parse_loaders("Reflection - 9 loaders, 9 classes\nTotal Usage - 1 loader, 9 classes"), Some((0, 9)));
        assert_eq!(parse_loaders(kinds), None);
    }

    #[test]
    fn mutated_text_neither_panics_nor_overlaps() {
        let mut regions = 0;
        for text in [INFO_17, INFO_25] {
            for bytes in mutated(text.as_bytes(), 3000) {
                let printed = parse_printed(&String::from_utf8_lossy(&bytes));
                regions += printed.regions.len();
                for pair in printed.regions.windows(2) {
                    assert!(pair[0].range.end <= pair[1].range.start);
                }
            }
        }
        assert!(regions > 10_000, "most mutations leave most regions readable: {regions}");
    }
}
