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
/// Percentages of the heap that a collection may keep free.
const MAX_FREE: u64 = 30;
const MIN_FREE: u64 = 10;
/// Defaults of MaxHeapFreeRatio and MinHeapFreeRatio.
const DEFAULT_MAX_FREE: u64 = 70;
const DEFAULT_MIN_FREE: u64 = 40;
/// Defaults of ZUncommitDelay, in seconds, and of ShenandoahUncommitDelay, in milliseconds.
pub(crate) const Z_DELAY: u64 = 300;
const SHENANDOAH_DELAY: u64 = 300_000;
/// Default of ShenandoahGuaranteedGCInterval, in milliseconds.
const SHENANDOAH_INTERVAL: u64 = 300_000;
const MINUTE_MS: u64 = 60_000;

/// A heap that is larger than what it holds, in a VM that may be gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LargeHeap<'h> {
    /// `G1`, `Serial`, `Parallel`, `Z` or `Shenandoah`.
    pub collector: Option<&'h str>,
    /// The JDK's feature version; 0 if it is unknown.
    pub jdk: u32,
    /// Upper bound of the live bytes.
    pub needed: Bytes,
    /// MinHeapSize, or its upper bound: no collector goes below it.
    pub min: Bytes,
    /// InitialHeapSize: Serial doesn't go below it.
    pub initial: Option<Bytes>,
    pub max: Option<Bytes>,
    /// Flags that were set, or chosen by the VM. A flag that isn't here has its default.
    pub flags: &'h [(String, String)],
}

impl LargeHeap<'_> {
    fn flag(&self, name: &str) -> Option<&str> {
        self.flags.iter().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.flag(name)?.parse().ok()
    }

    /// Whether -XX:-ZUncommit or -XX:-ShenandoahUncommit forbids to give memory back.
    pub(crate) fn is_kept(&self) -> bool {
        ["ZUncommit", "ShenandoahUncommit"].iter().any(|flag| self.flag(flag) == Some("false"))
    }

    /// Whether the flag is an interval of a minute or less. 0 switches such intervals off.
    fn is_within_a_minute(&self, name: &str, default: u64) -> bool {
        (1..=MINUTE_MS).contains(&self.number(name).unwrap_or(default))
    }

    /// Percentage of the heap that is free at most after a full collection with [`LargeHeap::smaller_ratios`].
    pub(crate) fn left_free(&self) -> u64 {
        self.number("MaxHeapFreeRatio").unwrap_or(DEFAULT_MAX_FREE).min(MAX_FREE)
    }

    /// The flags, with their values, that let a collection keep less of the heap free than now. The VM refuses a maximum
    /// below the minimum, so the minimum is the first.
    pub(crate) fn smaller_ratios(&self) -> impl DoubleEndedIterator<Item = (&'static str, u64)> {
        let all = [("MinHeapFreeRatio", MIN_FREE, DEFAULT_MIN_FREE), ("MaxHeapFreeRatio", MAX_FREE, DEFAULT_MAX_FREE)];
        let now = all.map(|(name, _, default)| self.number(name).unwrap_or(default));
        let smaller = all.into_iter().zip(now).filter(|((_, wanted, _), now)| wanted < now);
        smaller.map(|((name, wanted, _), _)| (name, wanted))
    }

    fn ratio_options(&self) -> impl Iterator<Item = String> {
        self.smaller_ratios().rev().map(|(name, value)| format!("-XX:{name}={value}"))
    }

    /// The size for SoftMaxHeapSize, in MiB, if none as small is in force.
    pub(crate) fn soft_target(&self) -> Option<u64> {
        let now = self.number("SoftMaxHeapSize").map(Bytes);
        self.target().filter(|target| now.is_none_or(|now| Bytes::mib(*target) < now))
    }

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
        let with_start = |options: Vec<String>| start.iter().cloned().chain(options).collect::<Vec<_>>();
        let restart = |what: &str, options: Vec<String>, cost: &str| {
            let how = options.join(" ");
            (!how.is_empty()).then(|| remedy(Effort::Restart, what, how, cost).may_save_nothing())
        };
        match self.collector {
            Some(collector @ ("Z" | "Shenandoah")) if self.jdk >= AIMS => restart(
                "let the collector give memory back sooner",
                with_start(self.uncommit(collector)),
                "the heap grows again with the next peak, which then takes page faults; -Xmx stays the limit",
            ),
            Some("G1") if self.jdk >= IDLE_CYCLES => restart(
                "let G1 give memory back when idle",
                with_start(self.g1_options()),
                "a concurrent cycle each minute of idleness",
            ),
            Some("Serial") if self.jdk >= STEPS => restart(
                "let each full collection shrink the heap at once (otherwise Serial shrinks it over four full collections, and never below the initial size)",
                self.serial_options(),
                "the heap grows again with the next peak, which then takes more collections",
            ),
            // Parallel keeps its committed heap after any collection. From JDK 9 on it is never the default, so an option
            // of the program chose it, and a VM refuses to start with two collectors.
            Some("Parallel") if self.jdk >= IDLE_CYCLES => restart(
                "take a collector that gives memory back: this one keeps what it has committed",
                with_start(
                    ["-XX:-UseParallelGC", "-XX:+UseG1GC"]
                        .map(str::to_owned)
                        .into_iter()
                        .chain(self.g1_options())
                        .collect(),
                ),
                "G1 has shorter pauses and less throughput; measure with your load. Put it after -XX:+UseParallelGC, or in \
                 its place: with both collectors the VM doesn't start",
            ),
            // For other collectors and versions, only this is known: none goes below -Xms.
            _ => restart(
                "let the heap start smaller: it is never made smaller than its initial size (-Xms)",
                vec![start?],
                "the heap grows with the load, which takes collections",
            ),
        }
    }

    /// The delays of ZGC are in seconds, those of Shenandoah in milliseconds.
    fn uncommit(&self, collector: &str) -> Vec<String> {
        let mut options = Vec::new();
        // It takes the place of the option that forbids to give memory back.
        options.extend(self.is_kept().then(|| format!("-XX:+{collector}Uncommit")));
        let is_sooner = |name: &str, wanted: u64, default: u64| wanted < self.number(name).unwrap_or(default);
        if collector == "Z" {
            options.extend(is_sooner("ZUncommitDelay", 60, Z_DELAY).then(|| "-XX:ZUncommitDelay=60".to_owned()));
        } else {
            let delay = is_sooner("ShenandoahUncommitDelay", MINUTE_MS, SHENANDOAH_DELAY)
                .then_some("-XX:ShenandoahUncommitDelay=60000");
            let interval = (!self.is_within_a_minute("ShenandoahGuaranteedGCInterval", SHENANDOAH_INTERVAL))
                .then_some("-XX:ShenandoahGuaranteedGCInterval=60000");
            let unlocked = delay.or(interval).map(|_| "-XX:+UnlockExperimentalVMOptions");
            options.extend([unlocked, delay, interval].into_iter().flatten().map(str::to_owned));
        }
        options.extend(self.soft_target().map(|target| format!("-XX:SoftMaxHeapSize={target}m")));
        options
    }

    fn g1_options(&self) -> Vec<String> {
        let is_idle_cycle = self.is_within_a_minute("G1PeriodicGCInterval", 0);
        let cycle = (!is_idle_cycle).then(|| format!("-XX:G1PeriodicGCInterval={MINUTE_MS}"));
        cycle.into_iter().chain(self.ratio_options()).collect()
    }

    /// Without -Xms, the initial heap is a 64th of the machine's memory (InitialRAMPercentage), and Serial never goes
    /// below it.
    fn serial_options(&self) -> Vec<String> {
        let is_smaller = |target: &u64| self.initial.is_some_and(|initial| initial <= Bytes::mib(*target));
        let start = self.target().filter(|target| !is_smaller(target)).map(|target| format!("-Xms{target}m"));
        let in_steps = self.flag("ShrinkHeapInSteps") != Some("false");
        let at_once = in_steps.then(|| "-XX:-ShrinkHeapInSteps".to_owned());
        start.into_iter().chain(at_once).chain(self.ratio_options()).collect()
    }
}
