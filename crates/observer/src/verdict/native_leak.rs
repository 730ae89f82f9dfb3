//! A JVM whose live native memory lies mostly outside the VM's books: a JNI library, zlib, a database client. One reading
//! can't prove a leak; it can prove where to look.

use std::collections::{BTreeMap, HashMap};

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::{LineId, is_tracker};
use crate::snapshot::Glibc;
use crate::units::{Avma, Bytes, counted};

const FLOOR: Bytes = Bytes::mib(48);
const PERCENT: f64 = 20.0;
/// Libraries that the evidence names.
const NAMED: usize = 5;

pub fn rule(case: Case<'_>) -> Option<Verdict> {
    case.vm()?;
    let (line, live) = case.live_blocks();
    let told = case.has_vm_books();
    // With NMT the VM's own blocks have left the line. Without it they are among it, up to a bound.
    let own = if told { Bytes(0) } else { case.vm_malloc_at_most() };
    let alike = large_blocks_alike(case);
    let large = alike.as_ref().filter(|alike| alike.size >= Alike::NOT_THE_VM_S).map(|alike| alike.resident);
    let others = (live - own).max(large.unwrap_or_default());
    if !case.matters(others, PERCENT, FLOOR) {
        return None;
    }
    let in_arenas = |glibc: &Glibc| {
        let blocks: u64 = glibc.arenas.iter().map(|arena| arena.live_count).sum();
        format!("; {} in the arenas in all", counted(blocks, "block"))
    };
    let mut evidence = vec![match told {
        true => format!(
            "{live} of live malloc blocks are not in the VM's books (NMT){}",
            case.glibc().map(in_arenas).unwrap_or_default()
        ),
        false => format!("{live} of live malloc blocks; NMT is off, and of a VM like this at most {own} are its own"),
    }];
    evidence.extend(alike.map(|alike| alike.evidence()));
    evidence.extend(suspects(case));
    evidence.push(case.growth(line));
    let pid = case.pid();
    Some(Verdict {
        id: VerdictId::NativeLeak,
        severity: Severity::Warning,
        bytes: others,
        summary: format!(
            "{}{others} of live malloc blocks are not the VM's own: {:.0} % of RSS",
            if told { "" } else { "at least " },
            others.percent_of(case.rss())
        ),
        evidence,
        remedies: vec![
            case.name_the_callers(),
            remedy(
                Effort::Now,
                "see whether objects that own it are waiting to be collected",
                format!("jcmd {pid} GC.run && plimsoll explain {pid}"),
                "a full collection pauses the program",
            ),
            remedy(
                Effort::Restart,
                "see the calls from the start of the program on",
                "plimsoll run -- java …   # then: plimsoll report PID --by site",
                "",
            ),
            remedy(
                Effort::Code,
                "end what wraps native memory",
                "try (var in = new GZIPInputStream(stream)) { … }   // and Inflater.end(), Deflater.end(), close() of every native client",
                "",
            ),
        ],
    })
}

/// Libraries that the program has loaded besides the JDK's and the C library's: one of them may hold the blocks. Netty's buffers
/// come from Unsafe, which without NMT nothing tells from other malloc'ed memory.
fn suspects(case: Case<'_>) -> Vec<String> {
    let objects = case.snapshot.vmas.iter().filter(|vma| vma.executable && vma.inode != 0);
    let jdk = objects.clone().find_map(|vma| vma.name.strip_suffix("/lib/server/libjvm.so"));
    let is_foreign = |name: &str| {
        let file = name.rsplit('/').next().unwrap_or_default();
        file.contains(".so")
            && !jdk.is_some_and(|home| name.starts_with(home))
            && !is_tracker(name)
            && !C_LIBRARY.iter().any(|known| file.starts_with(known))
    };
    let mut names: Vec<&str> = objects.map(|vma| vma.name.as_str()).filter(|name| is_foreign(name)).collect();
    names.sort_unstable();
    names.dedup();
    let mut lines = Vec::new();
    if !names.is_empty() {
        let more = names.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        names.truncate(NAMED);
        lines.push(format!("libraries besides the JDK's that may hold them: {}{more}", names.join(", ")));
    } else {
        lines.push("no library is loaded besides the JDK's: java.util.zip (Inflater, Deflater), Unsafe, java.nio or the JDK's own agents".to_owned());
    }
    if case.has_netty() && !case.has_vm_books() {
        lines.push(
            "Netty is in the program: its buffers come from Unsafe, and without NMT they are among these blocks"
                .to_owned(),
        );
    }
    lines
}

/// What the C library, the C++ runtime and the loader bring, by the beginning of the file's name.
const C_LIBRARY: [&str; 12] = [
    "ld-linux",
    "ld-musl",
    "libc.so",
    "libc-",
    "libm.so",
    "libm-",
    "libdl",
    "libpthread",
    "librt",
    "libgcc_s",
    "libstdc++",
    "libnss_",
];

/// Large blocks of one size, where they are most of what is in large blocks.
struct Alike {
    size: Bytes,
    number: u64,
    /// Of all of them.
    resident: Bytes,
}

fn large_blocks_alike(case: Case<'_>) -> Option<Alike> {
    const ALIKE_AT_LEAST: u64 = 4;
    let mut by_size = BTreeMap::<Bytes, Alike>::new();
    let chunks: HashMap<Avma, Bytes> =
        case.glibc()?.mmapped.iter().map(|chunk| (chunk.range.start, chunk.range.length())).collect();
    for size in chunks.values() {
        let alike = by_size.entry(*size).or_insert(Alike { size: *size, number: 0, resident: Bytes(0) });
        alike.number += 1;
    }
    // A chunk that the kernel keeps in several mappings has several pieces; only the first one starts where it does.
    let mut chunk = None;
    for piece in case.pieces_of(LineId::GlibcLive) {
        if let Some(size) = chunks.get(&piece.range.start) {
            chunk = Some((piece.range.start.offset(*size), *size));
        }
        if let Some((end, size)) = chunk
            && piece.range.end <= end
            && let Some(alike) = by_size.get_mut(&size)
        {
            alike.resident += piece.resident;
        }
    }
    let most = by_size.into_values().max_by_key(|alike| alike.resident)?;
    let live = case.resident(LineId::GlibcLive);
    // Blocks that java.nio counts have left the line.
    (most.number >= ALIKE_AT_LEAST && most.resident <= live && most.resident.percent_of(live) >= 20.0).then_some(most)
}

impl Alike {
    /// Larger than the queues that the VM keeps for each of its workers.
    const NOT_THE_VM_S: Bytes = Bytes::mib(2);

    /// The copies that java.nio keeps for each thread look like this, and from JDK 25 on java.nio leaves them out of its count.
    fn evidence(&self) -> String {
        let Alike { size, number, resident } = self;
        format!(
            "{} of {size} have {resident} of it: java.nio may be keeping one for each thread that reads or writes large \
             heap buffers (-Djdk.nio.maxCachedBufferSize=262144 stops that)",
            counted(*number, "block")
        )
    }
}
