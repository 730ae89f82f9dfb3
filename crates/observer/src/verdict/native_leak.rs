//! A JVM whose live native memory lies mostly outside the VM's books: a JNI library, zlib, a database client. One reading
//! can't prove a leak; it can prove where to look.

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use crate::units::Bytes;

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
    if !case.matters(live, percent, floor) {
        return None;
    }
    let blocks: u64 = case.glibc()?.arenas.iter().map(|arena| arena.live_count).sum();
    let mut evidence = vec![match told {
        true => format!(
            "{live} of live malloc blocks are not in the VM's books (NMT); {blocks} blocks in the arenas in all"
        ),
        false => format!("{live} of live malloc blocks; NMT is off, so the VM's own are among them"),
    }];
    evidence.push("one reading can't tell a leak from use: explain again later and compare".to_owned());
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
        saving: None,
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
