//! What the rules ask of a snapshot and its ledger.

use crate::ledger::{Group, Ledger, LineId, Owner, Piece, thread_group};
use crate::snapshot::{Arena, ArenaKind, Glibc, HotSpot, Snapshot};
use crate::units::Bytes;

#[derive(Clone, Copy)]
pub struct Case<'c> {
    pub snapshot: &'c Snapshot,
    pub ledger: &'c Ledger,
}

impl<'c> Case<'c> {
    pub fn rss(self) -> Bytes {
        self.ledger.rss
    }

    pub fn resident(self, line: LineId) -> Bytes {
        self.ledger.resident(line)
    }

    /// Enough to matter to this process and to anybody.
    pub fn matters(self, bytes: Bytes, percent: f64, floor: Bytes) -> bool {
        bytes >= floor && bytes.percent_of(self.rss()) >= percent
    }

    pub fn vm(self) -> Option<&'c HotSpot> {
        self.snapshot.hotspot.as_ref()
    }

    pub fn glibc(self) -> Option<&'c Glibc> {
        self.snapshot.glibc.as_ref()
    }

    pub fn arenas(self, kind: ArenaKind) -> impl Iterator<Item = &'c Arena> {
        self.glibc().into_iter().flat_map(|glibc| &glibc.arenas).filter(move |arena| arena.kind == kind)
    }

    /// Free bytes on resident pages inside arenas of that kind.
    pub fn retained(self, kind: ArenaKind) -> Bytes {
        self.arenas(kind).map(|arena| arena.free_resident).sum()
    }

    pub fn pieces_of(self, line: LineId) -> impl Iterator<Item = &'c Piece> {
        self.ledger.pieces.iter().filter(move |piece| matches!(&piece.owner, Owner::Line(of, _) if *of == line))
    }

    /// Limit and what is counted against it: `--limit` against RSS, the cgroup's against its working set.
    pub fn limit(self) -> Option<(Bytes, Bytes)> {
        if let Some(asked) = self.snapshot.limit_asked {
            return Some((asked, self.rss()));
        }
        let cgroup = self.snapshot.cgroup.as_ref()?;
        Some((cgroup.limit?, cgroup.working_set()))
    }

    /// Threads by pool, largest first: `("lettuce-nioEventLoop", 48)`.
    pub fn thread_groups(self) -> Vec<(String, usize)> {
        let mut groups = std::collections::BTreeMap::<String, usize>::new();
        let java = self.vm().map(|vm| vm.threads_by_tid()).unwrap_or_default();
        for thread in &self.snapshot.threads {
            let named = java.get(&thread.namespaced_tid).map(|java| java.name.as_str());
            *groups.entry(thread_group(named.unwrap_or(&thread.name))).or_default() += 1;
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
        groups
    }

    pub fn flag(self, name: &str) -> Option<&'c str> {
        self.vm()?.flags.iter().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str())
    }

    /// Growth or use: what the baseline says of a line, or how to get one.
    pub fn growth(self, line: LineId) -> String {
        let Some(baseline) = &self.snapshot.baseline else {
            let pid = self.pid();
            return format!(
                "one reading can't tell growth from use: plimsoll explain {pid} --format json > before.json, and later \
                 plimsoll explain {pid} --baseline before.json"
            );
        };
        let minutes = (self.snapshot.time - baseline.time).max(0.0) / 60.0;
        let then = baseline.resident(line);
        match baseline.change(self.ledger, line) {
            change if Bytes(change.unsigned_abs()).percent_of(then) < 1.0 => {
                format!("it was {then} {minutes:.1} minutes ago: no growth since the baseline")
            }
            change if change < 0 => format!("it was {then} {minutes:.1} minutes ago: less since the baseline"),
            change => {
                format!(
                    "it was {then} {minutes:.1} minutes ago: {} more since the baseline",
                    Bytes(change.unsigned_abs())
                )
            }
        }
    }

    pub fn is_jvm(self) -> bool {
        self.vm().is_some()
    }

    /// Argument or agent variable that mentions `word`.
    pub fn started_with(self, word: &str) -> bool {
        let process = &self.snapshot.process;
        process.command.iter().chain(process.environment.iter().map(|(_, value)| value)).any(|text| text.contains(word))
    }

    pub fn pid(self) -> u32 {
        self.snapshot.process.pid
    }

    pub fn group(self, group: Group) -> Bytes {
        self.ledger.group(group)
    }

    pub fn address_space(self) -> Bytes {
        self.snapshot.vmas.iter().map(|vma| vma.range.length()).sum()
    }
}
