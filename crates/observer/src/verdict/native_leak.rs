//! A JVM whose live native memory lies mostly outside the VM's books: a JNI library, zlib, a database client. One reading
//! can't prove a leak; it can prove where to look.

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use crate::units::{Bytes, counted};

/// With NMT the VM's own blocks have already left the line.
const FLOOR: Bytes = Bytes::mib(48);
const PERCENT: f64 = 20.0;
/// Without NMT the line holds the VM's own blocks too: tens of MiB in an ordinary server.
const FLOOR_UNTOLD: Bytes = Bytes::mib(192);
const PERCENT_UNTOLD: f64 = 40.0;

pub fn rule(case: Case<'_>) -> Option<Verdict> {
    let vm = case.vm()?;
    let live = case.resident(LineId::GlibcLive);
    let told = !vm.categories.is_empty();
    let (percent, floor) = if told { (PERCENT, FLOOR) } else { (PERCENT_UNTOLD, FLOOR_UNTOLD) };
    let alike = large_blocks_alike(case);
    let others = alike.as_ref().filter(|alike| alike.size >= Alike::NOT_THE_VM_S).map(|alike| alike.all);
    if !case.matters(live, percent, floor) && !others.is_some_and(|all| case.matters(all, PERCENT, FLOOR)) {
        return None;
    }
    let blocks: u64 = case.glibc()?.arenas.iter().map(|arena| arena.live_count).sum();
    let mut evidence = vec![match told {
        true => format!(
            "{live} of live malloc blocks are not in the VM's books (NMT); {} in the arenas in all",
            counted(blocks, "block")
        ),
        false => format!("{live} of live malloc blocks; NMT is off, so the VM's own are among them"),
    }];
    evidence.extend(alike.map(|alike| alike.evidence()));
    evidence.push(case.growth(LineId::GlibcLive));
    let pid = case.pid();
    Some(Verdict {
        id: VerdictId::NativeLeak,
        severity: Severity::Warning,
        bytes: live,
        summary: format!(
            "native code outside the VM holds {live}: {:.0} % of RSS; suspects are JNI libraries, zlib streams never ended, agents",
            live.percent_of(case.rss())
        ),
        evidence,
        remedies: vec![
            remedy(
                Effort::Now,
                "see whether objects that own it are waiting to be collected",
                format!("jcmd {pid} GC.run && plimsoll explain {pid}"),
                "a full collection pauses the program",
            ),
            remedy(
                Effort::Restart,
                "see which call sites hold it",
                "plimsoll run -- java …   # then: plimsoll report PID --by caller",
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

/// Large blocks of one size, where they are most of what is in large blocks.
struct Alike {
    size: Bytes,
    number: u64,
    all: Bytes,
}

fn large_blocks_alike(case: Case<'_>) -> Option<Alike> {
    const ALIKE_AT_LEAST: u64 = 4;
    let mut by_size = std::collections::BTreeMap::<Bytes, u64>::new();
    for chunk in &case.glibc()?.mmapped {
        *by_size.entry(chunk.range.length()).or_default() += 1;
    }
    let alike =
        by_size.into_iter().map(|(size, number)| Alike { size, number, all: Bytes(size.0.saturating_mul(number)) });
    let most = alike.max_by_key(|alike| alike.all)?;
    let live = case.resident(LineId::GlibcLive);
    // Blocks that java.nio counts have left the line.
    (most.number >= ALIKE_AT_LEAST && most.all <= live && most.all.percent_of(live) >= 20.0).then_some(most)
}

impl Alike {
    /// Larger than the queues that the VM keeps for each of its workers.
    const NOT_THE_VM_S: Bytes = Bytes::mib(2);

    /// The copies that java.nio keeps for each thread look like this, and from JDK 25 on java.nio leaves them out of its count.
    fn evidence(&self) -> String {
        let Alike { size, number, all } = self;
        format!(
            "{} of {size} are {all} of it: java.nio may be keeping one for each thread that reads or writes large \
             heap buffers (-Djdk.nio.maxCachedBufferSize=262144 stops that)",
            counted(*number, "block")
        )
    }
}
