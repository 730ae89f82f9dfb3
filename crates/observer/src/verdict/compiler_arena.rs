//! The JIT's arenas: they grow while one method is compiled and are free afterwards. A spike, not a leak.

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::units::Bytes;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let resident = case.resident(LineId::Compiler);
    let vm = case.vm().filter(|_| case.matters(resident, 10.0, Bytes::mib(96)))?;
    // A VM that doesn't know MemLimit still starts, but prints a warning.
    let is_since = |jdk: u32| vm.jdk().is_none_or(|of_vm| of_vm >= jdk);
    let by_method =
        remedy(Effort::Now, "see which method (JDK 22 or later)", format!("jcmd {} Compiler.memory", case.pid()), "");
    let limit = remedy(
        Effort::Restart,
        "bound the memory of one compilation (JDK 23 or later)",
        "-XX:CompileCommand=MemLimit,*.*,256M~stop",
        "a method that needs more stays in the lower tier",
    );
    Some(Verdict {
        id: VerdictId::CompilerArena,
        severity: Severity::Warning,
        bytes: resident,
        summary: format!(
            "the JIT compilers hold {resident} at this moment for compilations that run: each frees its part at its end"
        ),
        evidence: vec!["one large method suffices for that; freed pages may stay with the allocator".to_owned()],
        remedies: [(by_method, 22), (limit, 23)]
            .into_iter()
            .filter(|(_, jdk)| is_since(*jdk))
            .map(|(it, _)| it)
            .collect(),
    })
}
