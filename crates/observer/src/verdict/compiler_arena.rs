//! The JIT's arenas: they grow while one method is compiled and are free afterwards. A spike, not a leak.

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::units::Bytes;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let resident = case.resident(LineId::Compiler);
    if !case.is_jvm() || !case.matters(resident, 10.0, Bytes::mib(96)) {
        return None;
    }
    Some(Verdict {
        id: VerdictId::CompilerArena,
        severity: Severity::Warning,
        bytes: resident,
        summary: format!(
            "the JIT compilers hold {resident} at this moment: one method's compilation, over when it is done"
        ),
        evidence: vec![
            "compiler arenas are freed at the end of each compilation; what they were stays with the allocator"
                .to_owned(),
        ],
        remedies: vec![
            remedy(
                Effort::Now,
                "see which method (JDK 22 or later)",
                format!("jcmd {} Compiler.memory", case.pid()),
                "",
            ),
            remedy(
                Effort::Restart,
                "bound the memory of one compilation (JDK 23 or later)",
                "-XX:CompileCommand=MemLimit,*.*,256M~stop",
                "a method that needs more stays in the lower tier",
            ),
        ],
    })
}
