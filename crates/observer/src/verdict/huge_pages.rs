//! Transparent huge pages: one touched byte costs 2 MiB. In thread stacks this is always waste (JDK-8303215,
//! JDK-8312182). Elsewhere it may make the program fast, and is only a note.

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Remedy, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::snapshot::Thp;
use plimsoll_facts::units::Bytes;

/// From this JDK on the VM keeps huge pages out of its stacks (JDK-8303215).
const MITIGATES: u32 = 21;
/// In stacks they are worth a line from here on, and a warning from this percentage of RSS on.
const IN_STACKS: Bytes = Bytes::mib(8);
const PERCENT_OF_STACKS: f64 = 3.0;
/// Default of ThreadStackSize. On aarch64 it depends on the build: 2048, or 2040 since JDK-8303215.
const DEFAULT_KIB: Option<u64> = if cfg!(target_arch = "x86_64") { Some(1024) } else { None };

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let in_stacks = in_stacks(case);
    let in_all: Bytes = case.snapshot.vmas.iter().map(|vma| vma.anon_huge).sum();
    let heap_option = case.flag("UseTransparentHugePages") == Some("true");
    let stacks = in_stacks >= IN_STACKS;
    if !stacks && (heap_option || !case.matters(in_all, 25.0, Bytes::mib(64))) {
        return None;
    }
    let mode = match case.snapshot.host.thp {
        Thp::Always => "always: any program gets them",
        Thp::Madvise => "madvise: only mappings for which a program requests them get new ones",
        Thp::Never => "never: a new start of the program gets none, and these stay until their memory is freed",
        Thp::Unknown => "unknown",
    };
    let advised: Bytes = case.snapshot.vmas.iter().filter(|vma| vma.flags.huge_advised).map(|vma| vma.anon_huge).sum();
    let mut evidence = vec![format!("the host's transparent huge pages: {mode}")];
    if advised > Bytes(0) {
        evidence.push(format!(
            "{advised} of the huge pages are in mappings for which the program requested them (MADV_HUGEPAGE)"
        ));
    } else if case.snapshot.host.thp == Thp::Madvise {
        let others = "no mapping has requested them: they were made before this setting, or by MADV_COLLAPSE";
        evidence.push(others.to_owned());
    }
    let (severity, bytes, summary) = match stacks {
        true => (
            if case.matters(in_stacks, PERCENT_OF_STACKS, IN_STACKS) { Severity::Warning } else { Severity::Note },
            in_stacks,
            format!("{in_stacks} of thread stacks is in huge pages: a stack that needs 20 KiB takes 2 MiB"),
        ),
        false => (
            Severity::Note,
            in_all,
            format!(
                "{in_all} of RSS ({:.0} %) is in huge pages: fast, but a single touched byte takes 2 MiB",
                in_all.percent_of(case.rss())
            ),
        ),
    };
    let mut remedies = Vec::new();
    if case.snapshot.host.thp == Thp::Always {
        remedies.push(remedy(
            Effort::Now,
            "let programs ask for huge pages instead of giving them to all (on the host; for new pages)",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            "until the next boot. Programs that gained by them and don't ask lose some speed",
        ));
    }
    // Later VMs do that by themselves (THPStackMitigation).
    if stacks && case.vm().is_some_and(|vm| vm.jdk().is_none_or(|jdk| jdk < MITIGATES)) {
        remedies.extend(smaller_stacks(case.flag("ThreadStackSize"), DEFAULT_KIB));
    }
    if case.snapshot.host.thp != Thp::Never {
        remedies.push(without(case, case.snapshot.host.thp == Thp::Madvise && advised > Bytes(0)));
    }
    Some(Verdict { id: VerdictId::HugePages, severity, bytes, summary, evidence, remedies })
}

/// The least number of huge pages that lie in stacks. smaps has the huge pages of a mapping, not their place in it. So
/// only those count that don't fit into the rest of the mapping.
fn in_stacks(case: Case<'_>) -> Bytes {
    // Several stacks may be in one mapping. Its pieces follow one another.
    let mut mappings: Vec<(usize, Bytes)> = Vec::new();
    for piece in case.pieces_of(LineId::ThreadStacks) {
        match mappings.last_mut() {
            Some((vma, stacks)) if *vma == piece.vma => *stacks += piece.resident,
            _ => mappings.push((piece.vma, piece.resident)),
        }
    }
    let at_least = |(index, stacks): &(usize, Bytes)| {
        let vma = &case.snapshot.vmas[*index];
        vma.anon_huge - (vma.rss - *stacks)
    };
    mappings.iter().map(at_least).sum()
}

/// `flag`: a ThreadStackSize that was set. Sizes in KiB. The new size is never much smaller than the present one: deep
/// recursion needs what -Xss gives it. None: the size in force is unknown.
fn smaller_stacks(flag: Option<&str>, default: Option<u64>) -> Option<Remedy> {
    let set = flag.and_then(|kib| kib.parse::<u64>().ok()).filter(|kib| *kib > 4);
    let smaller = remedy(
        Effort::Restart,
        "choose a stack size that isn't a multiple of 2 MiB",
        format!("-XX:ThreadStackSize={}", set.or(default)? - 4),
        "4 KiB less than now, in place of -Xss",
    );
    Some(smaller.may_save_nothing())
}

/// How much of the memory is waste, and what the speed costs, differs from program to program.
fn without(case: Case<'_>, is_requested: bool) -> Remedy {
    const WHAT: &str = "measure how much smaller, and how much slower, the program is without huge pages";
    const RUNS: &str = "runs the program several times, with and without them; --load or --url gives it a load";
    let trade_off = match is_requested {
        true => format!(
            "{RUNS}. The program requests them in its code, or by an option of its runtime or its allocator: only \
             there can they be switched off"
        ),
        false => RUNS.to_owned(),
    };
    case.start_below("plimsoll try --with thp=never --", WHAT, "", &trade_off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_of_an_unknown_size_stay_as_they_are() {
        let how = |flag, default| smaller_stacks(flag, default).map(|remedy| remedy.how);
        assert_eq!(how(None, None), None);
        assert_eq!(how(Some("0"), None), None);
        assert_eq!(how(Some("4096"), None).as_deref(), Some("-XX:ThreadStackSize=4092"));
        assert_eq!(how(None, Some(1024)).as_deref(), Some("-XX:ThreadStackSize=1020"));
    }
}
