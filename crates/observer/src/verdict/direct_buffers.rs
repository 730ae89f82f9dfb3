//! Direct byte buffers: memory of the process that the garbage collector frees only when it finds the buffer's owner dead.

use super::case::Case;
use super::remedies::{fewer_threads, remedy};
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use crate::units::{Bytes, counted};

const FLOOR: Bytes = Bytes::mib(32);
const PERCENT: f64 = 20.0;

pub fn rule(case: Case<'_>) -> Option<Verdict> {
    let vm = case.vm()?;
    let resident = case.resident(LineId::DirectBuffers);
    let direct = vm.direct_buffers.as_ref();
    let near_max = direct
        .is_some_and(|direct| direct.max.is_some_and(|max| max > Bytes(0) && direct.capacity.percent_of(max) >= 80.0));
    if !case.matters(resident, PERCENT, FLOOR) && !near_max {
        return None;
    }
    let mut evidence = vec![format!("{resident} resident in direct buffers and other Unsafe memory")];
    if let Some(direct) = direct {
        let buffers = direct.count.map(|number| format!("{} of ", counted(number, "buffer"))).unwrap_or_default();
        evidence.push(format!("java.nio counts {buffers}{} in all", direct.capacity));
        if let Some(max) = direct.max {
            evidence.push(format!("-XX:MaxDirectMemorySize in force: {max}"));
        }
    }
    evidence.push(case.growth(LineId::DirectBuffers));
    let mut remedies = vec![
        remedy(
            Effort::Now,
            "see whether a collection frees them: then their owners die late, and nothing leaks",
            format!("jcmd {} GC.run", case.pid()),
            "a full collection pauses the program",
        ),
        remedy(
            Effort::Restart,
            "limit them, so that the limit fails with an OutOfMemoryError that names the call, not with a kill",
            format!("-XX:MaxDirectMemorySize={}m", (resident.0 >> 20).next_power_of_two()),
            "allocations above it collect first, and then fail",
        ),
        remedy(
            Effort::Restart,
            "stop NIO from keeping a direct copy of every large heap buffer for each thread",
            "-Djdk.nio.maxCachedBufferSize=262144",
            "larger reads and writes of heap buffers allocate anew each time",
        ),
    ];
    remedies.extend(fewer_threads(case));
    Some(Verdict {
        id: VerdictId::DirectBufferGrowth,
        severity: if near_max { Severity::Warning } else { Severity::Note }
            .max(if resident.percent_of(case.rss()) >= 30.0 { Severity::Warning } else { Severity::Note }),
        bytes: resident.max(direct.map(|direct| direct.capacity).unwrap_or_default()),
        summary: format!("direct buffers hold {resident}: {:.0} % of RSS", resident.percent_of(case.rss())),
        evidence,
        saving: None,
        remedies,
    })
}
