//! Options of a new start that make a Java heap smaller. They depend on the collector and on the version: a VM doesn't
//! start with an option that it doesn't know. No collector goes below -Xms (docs/decisions/verdicts.md).

use super::remedy::remedy;
use super::{Effort, Remedy};
use plimsoll_facts::units::Bytes;

/// From this JDK on SoftMaxHeapSize (JDK-8222181) and ZUncommitDelay (JEP 351) exist.
pub(crate) const AIMS: u32 = 13;
/// From this JDK on G1 gives memory back when idle: G1PeriodicGCInterval (JEP 346).
const IDLE_CYCLES: u32 = 12;
/// From this JDK on ShrinkHeapInSteps exists.
const STEPS: u32 = 9;
/// Percentage of the heap that G1 may keep free.
pub(crate) const G1_FREE: u64 = 30;

/// A heap that is larger than what it holds, in a VM that may be gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LargeHeap<'h> {
    /// `G1`, `Serial`, `Parallel`, `Z` or `Shenandoah`.
    pub collector: Option<&'h str>,
    /// The JDK's feature version; 0 if it is unknown.
    pub jdk: u32,
    /// At most this was live.
    pub needed: Bytes,
    /// MinHeapSize, or its upper bound: no collector goes below it.
    pub min: Bytes,
    /// InitialHeapSize: Serial doesn't go below it.
    pub initial: Option<Bytes>,
    pub max: Option<Bytes>,
    /// Whether -XX:-ZUncommit or -XX:-ShenandoahUncommit forbids to give memory back.
    pub is_kept: bool,
}

impl LargeHeap<'_> {
    /// A heap size to aim at, in MiB: 1.5 times what is needed. None if -Xmx isn't higher: the VM refuses a
    /// SoftMaxHeapSize above -Xmx.
    pub(crate) fn target(&self) -> Option<u64> {
        let target = Bytes(self.needed.0 / 2 * 3).max(Bytes::mib(64)).0.div_ceil(1 << 20);
        self.max.is_none_or(|max| Bytes::mib(target) < max).then_some(target)
    }

    /// The smaller -Xms that must come first, if the one in force is larger than the heap needs.
    pub(crate) fn smaller_start(&self) -> Option<String> {
        self.target().filter(|target| self.min > Bytes::mib(*target)).map(|target| format!("-Xms{target}m"))
    }

    /// None if no option is known to help.
    pub(crate) fn by_restart(&self) -> Option<Remedy> {
        let start = self.smaller_start();
        let with_start = |flags: &str| start.iter().map(String::as_str).chain([flags]).collect::<Vec<_>>().join(" ");
        let restart =
            |what: &str, how: String, cost: &str| Some(remedy(Effort::Restart, what, how, cost).may_save_nothing());
        match self.collector {
            Some(collector @ ("Z" | "Shenandoah")) if self.jdk >= AIMS => restart(
                "let the collector give memory back sooner",
                with_start(&format!("{}{}", self.uncommit(collector), uncommit_flags(collector, self.target()))),
                "the heap grows again with the next peak, which then takes page faults; -Xmx stays the limit",
            ),
            Some("G1") if self.jdk >= IDLE_CYCLES => restart(
                "let G1 give memory back when idle",
                with_start(&g1_flags()),
                "a concurrent cycle each minute of idleness",
            ),
            Some("Serial") if self.jdk >= STEPS => restart(
                "let each full collection shrink the heap at once (otherwise Serial shrinks it over four full collections, and never below the initial size)",
                format!(
                    "{}-XX:-ShrinkHeapInSteps -XX:MaxHeapFreeRatio=30 -XX:MinHeapFreeRatio=10",
                    self.serial_start()
                ),
                "the heap grows again with the next peak, which then takes more collections",
            ),
            // Parallel keeps its committed heap after any collection. From JDK 9 on it is never the default, so an option
            // of the program chose it, and a VM refuses to start with two collectors.
            Some("Parallel") if self.jdk >= IDLE_CYCLES => restart(
                "take a collector that gives memory back: this one keeps what it has committed",
                with_start(&format!("-XX:-UseParallelGC -XX:+UseG1GC {}", g1_flags())),
                "G1 has shorter pauses and less throughput; measure with your load. Put it after -XX:+UseParallelGC, or in \
                 its place: with both collectors the VM doesn't start",
            ),
            // Of other collectors and versions only this is known: none goes below -Xms.
            _ => restart(
                "let the heap start smaller: it is never made smaller than its initial size (-Xms)",
                start?,
                "the heap grows with the load, which takes collections",
            ),
        }
    }

    /// What takes the place of the option that forbids to give memory back.
    fn uncommit(&self, collector: &str) -> String {
        if self.is_kept { format!("-XX:+{collector}Uncommit ") } else { String::new() }
    }

    /// Without -Xms, the initial heap is a 64th of the machine's memory (InitialRAMPercentage), and Serial never goes
    /// below it.
    fn serial_start(&self) -> String {
        let is_smaller = |target: &u64| self.initial.is_some_and(|initial| initial <= Bytes::mib(*target));
        self.target().filter(|target| !is_smaller(target)).map(|target| format!("-Xms{target}m ")).unwrap_or_default()
    }
}

fn g1_flags() -> String {
    format!("-XX:G1PeriodicGCInterval=60000 -XX:MaxHeapFreeRatio={G1_FREE} -XX:MinHeapFreeRatio=10")
}

/// ZUncommitDelay is in seconds, ShenandoahUncommitDelay in milliseconds (300 s and 5 min by default).
fn uncommit_flags(collector: &str, target: Option<u64>) -> String {
    let delay = match collector {
        "Z" => "-XX:ZUncommitDelay=60",
        _ => {
            "-XX:+UnlockExperimentalVMOptions -XX:ShenandoahUncommitDelay=60000 -XX:ShenandoahGuaranteedGCInterval=60000"
        }
    };
    target.map_or_else(|| delay.to_owned(), |target| format!("{delay} -XX:SoftMaxHeapSize={target}m"))
}
