//! The remedy that raises a memory limit, or `memory.high`. Whoever set the value must raise it, and the path of the
//! cgroup shows who that is:
//!
//! ```text
//!   a pod below kubepods                                   the pod's manifest
//!   …/docker/ID, …/docker-ID.scope                         docker update
//!   the unit that starts the process, or a slice above     systemctl set-property
//!   any other group that can be seen                       the group's own file
//!   a limit outside of the cgroup namespace, or --limit    settings of both, for whoever keeps it
//! ```

use super::case::Case;
use super::remedy::remedy;
use super::{Effort, Remedy, Verdict, VerdictId, growth};
use plimsoll_facts::shell::quoted;
use plimsoll_facts::snapshot::{Cgroup, CgroupVersion, Start, Throttle};
use plimsoll_facts::units::Bytes;

use std::path::Path;

/// From this share on, in percent, a limit is near.
pub(crate) const NEAR: f64 = 90.0;

/// What a limit that is higher by `more` gains: time, if memory grows.
pub(crate) fn gain(case: Case<'_>, cause: Option<&Verdict>, more: Bytes) -> String {
    match (cause, growth::rate(case)) {
        (_, Some(rate)) => format!(
            "it only gains time: at {} an hour the {more} more last {}",
            growth::between(rate.0, rate.1),
            growth::lasts(more, rate)
        ),
        (Some(cause), None) if cause.id == VerdictId::Unclear => {
            format!("it only gains time if what {} names grows", cause.id.id())
        }
        (Some(cause), None) => format!("it only gains time if what {} names goes on growing", cause.id.id()),
        (None, None) if case.snapshot.baseline.is_none() => {
            "enough only if memory doesn't grow, which one reading can't show".to_owned()
        }
        (None, None) => String::new(),
    }
}

/// `mib`: the new limit. `gain`: what it gains. `cgroup`: the level with the limit; none for a limit on the command line.
pub(crate) fn raise(case: Case<'_>, cgroup: Option<&Cgroup>, what: &str, mib: u64, gain: &str) -> Remedy {
    let limit = cgroup.and_then(|cgroup| {
        let (limit, path, directory) = (cgroup.limit?, cgroup.limit_path.as_str(), cgroup.limit_directory.as_path());
        let kind = Kind::Max { version: cgroup.version, swap_limit: cgroup.swap_limit };
        Some(Limit { path, directory, limit, mib, kind })
    });
    let (how, note) =
        limit.and_then(|limit| limit.keeper(&case.snapshot.process.start)).unwrap_or_else(|| unknown(mib));
    of(what, how, gain, &note)
}

/// The same for the limit of memory and swap together, which only version 1 has. No manifest and no unit has a setting for
/// it.
pub(crate) fn raise_with_swap(cgroup: &Cgroup, what: &str, mib: u64, gain: &str) -> Remedy {
    let (path, directory) = (cgroup.limit_path.as_str(), cgroup.limit_directory.as_path());
    let limit = Limit { path, directory, limit: cgroup.swap_limit.unwrap_or_default(), mib, kind: Kind::WithSwap };
    let unknown = || (format!("--memory-swap {mib}m"), "for docker run".to_owned());
    let (how, note) = limit.docker().or_else(|| limit.file()).unwrap_or_else(unknown);
    of(what, how, gain, &note)
}

/// The same for `memory.high`. None if the path doesn't show who set it, or if they have no setting for it. A pod's
/// manifest has none: the kubelet computes `memory.high` from requests and limits, and a manifest that is to raise it
/// could lower the limit.
pub(crate) fn raise_high(case: Case<'_>, throttle: &Throttle, what: &str, mib: u64, gain: &str) -> Option<Remedy> {
    let Throttle { path, directory, high, .. } = throttle;
    let limit = Limit { path, directory, limit: *high, mib, kind: Kind::High };
    let (how, note) = limit.keeper(&case.snapshot.process.start)?;
    Some(of(what, how, gain, &note))
}

fn of(what: &str, how: String, gain: &str, note: &str) -> Remedy {
    let trade_off: Vec<&str> = [gain, note].into_iter().filter(|text| !text.is_empty()).collect();
    remedy(Effort::Deploy, what, how, trade_off.join("; "))
}

fn manifest(mib: u64) -> String {
    format!("resources: {{requests: {{memory: {mib}Mi}}, limits: {{memory: {mib}Mi}}}}")
}

fn unknown(mib: u64) -> (String, String) {
    let note = "the first line for Kubernetes, the second for docker run";
    (format!("{}\n--memory {mib}m", manifest(mib)), note.to_owned())
}

/// The setting, and what else the kernel compares with it.
enum Kind {
    Max {
        version: CgroupVersion,
        swap_limit: Option<Bytes>,
    },
    /// Memory and swap together, in version 1.
    WithSwap,
    High,
}

/// A limit of a cgroup, and the new one.
struct Limit<'c> {
    path: &'c str,
    directory: &'c Path,
    limit: Bytes,
    mib: u64,
    kind: Kind,
}

impl Limit<'_> {
    /// The command or setting that raises the limit, and what to know about it. None if the path doesn't show it.
    fn keeper(&self, start: &Start) -> Option<(String, String)> {
        let parts = || self.path.split('/');
        // kind puts `kubelet-` in front of the group's name.
        if parts().any(|part| part.starts_with("kubepods") || part.contains("-kubepods")) {
            // Above the pods it is the node's limit: nobody raises that for one program.
            let is_of_pod = parts().any(|part| part.starts_with("pod") || part.contains("-pod"));
            let has_setting = is_of_pod && matches!(self.kind, Kind::Max { .. });
            return has_setting.then(|| (manifest(self.mib), String::new()));
        }
        self.docker().or_else(|| self.systemd(start)).or_else(|| self.file())
    }

    /// The new limit of memory and swap together, with as much swap as now. None: swap has no limit.
    fn with_swap(&self) -> Option<u64> {
        let swap = match self.kind {
            // memory.memsw.limit_in_bytes includes the memory.
            Kind::Max { version: CgroupVersion::V1, swap_limit } => swap_limit? - self.limit,
            Kind::Max { version: CgroupVersion::V2, swap_limit } => swap_limit?,
            Kind::WithSwap | Kind::High => return None,
        };
        Some(self.mib.saturating_add(swap.0.div_ceil(1 << 20)))
    }

    /// docker update refuses a limit above that of memory and swap, which is twice the limit by default. So both are
    /// set.
    fn docker(&self) -> Option<(String, String)> {
        // Docker has no option for memory.high.
        if let Kind::High = self.kind {
            return None;
        }
        let (above, group) = self.path.rsplit_once('/')?;
        let of_systemd = group.strip_prefix("docker-").and_then(|group| group.strip_suffix(".scope"));
        let id = of_systemd.or_else(|| above.ends_with("/docker").then_some(group))?;
        // As docker ps shows it.
        let short = id.get(..12).filter(|_| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        let swap = self.with_swap().map_or_else(|| "-1".to_owned(), |mib| format!("{mib}m"));
        let how = match self.kind {
            Kind::WithSwap => format!("docker update --memory-swap {}m {short}", self.mib),
            _ => format!("docker update --memory {}m --memory-swap {swap} {short}", self.mib),
        };
        Some((how, "on the host; a new container needs it in its docker run".to_owned()))
    }

    /// A process that a unit of systemd starts is in groups that systemd names after units. If the kernel could take a
    /// name for one of its files, systemd puts `_` in front (cg_escape in src/basic/cgroup-util.c).
    fn systemd(&self, start: &Start) -> Option<(String, String)> {
        let Start::Unit { name, .. } = start else { return None };
        let (above, group) = self.path.rsplit_once('/')?;
        let unit = group.strip_prefix('_').unwrap_or(group);
        let is_a_unit = unit == name || unit.ends_with(".slice");
        let unit = quoted(unit).filter(|_| is_a_unit)?;
        let systemctl = Start::systemctl(above.split('/').any(|part| part.starts_with("user@")));
        let property = match self.kind {
            Kind::Max { .. } => "MemoryMax",
            Kind::High => "MemoryHigh",
            Kind::WithSwap => return None,
        };
        let set = |value: String| format!("{systemctl} set-property {unit} {property}={value}");
        let undo = set(self.limit.0.to_string());
        Some((set(format!("{}M", self.mib)), format!("takes effect at once, and for later starts; undo: {undo}")))
    }

    fn file(&self) -> Option<(String, String)> {
        let path = self.path;
        // The root has no limit: what looks like it is a group outside of this namespace.
        let folder = self.directory.to_str().filter(|folder| folder.starts_with("/sys/"))?;
        if path.len() < 2 || path.contains("/..") {
            return None;
        }
        let write =
            |mib: u64, file: &str| Some(format!("echo {mib}M | sudo tee {}", quoted(&format!("{folder}/{file}"))?));
        let how = match (&self.kind, self.with_swap()) {
            (Kind::High, _) => write(self.mib, "memory.high")?,
            (Kind::WithSwap, _) => write(self.mib, "memory.memsw.limit_in_bytes")?,
            (Kind::Max { version: CgroupVersion::V2, .. }, _) => write(self.mib, "memory.max")?,
            (Kind::Max { .. }, None) => write(self.mib, "memory.limit_in_bytes")?,
            // The kernel refuses a limit of memory above that of memory and swap.
            (Kind::Max { .. }, Some(both)) => {
                let both = write(both, "memory.memsw.limit_in_bytes")?;
                format!("{both} && {}", write(self.mib, "memory.limit_in_bytes")?)
            }
        };
        Some((how, "takes effect at once; is lost when the group is created again".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use plimsoll_facts::snapshot::Snapshot;

    const ID: &str = "4f1e0c8a9b7d4f1e0c8a9b7d4f1e0c8a9b7d4f1e0c8a9b7d4f1e0c8a9b7d4f1e";

    fn cgroup(path: &str) -> Cgroup {
        let limit_directory = format!("/sys/fs/cgroup{path}").into();
        let swap_limit = Some(Bytes::mib(100));
        Cgroup {
            limit: Some(Bytes::mib(300)),
            limit_path: path.into(),
            limit_directory,
            swap_limit,
            ..Cgroup::default()
        }
    }

    fn of(cgroup: Cgroup, start: Start) -> Remedy {
        let mut snapshot = Snapshot { cgroup: Some(cgroup), ..Snapshot::default() };
        snapshot.process.start = start;
        let ledger = Ledger::of(&snapshot);
        raise(Case { snapshot: &snapshot, ledger: &ledger }, snapshot.cgroup.as_ref(), "", 545, "")
    }

    fn how(path: &str, start: Start) -> String {
        of(cgroup(path), start).how
    }

    #[test]
    fn a_container_of_docker_gets_its_command_with_the_same_swap() {
        let command = "docker update --memory 545m --memory-swap 645m 4f1e0c8a9b7d";
        for path in [format!("/docker/{ID}"), format!("/system.slice/docker-{ID}.scope")] {
            assert_eq!(how(&path, Start::Contained), command);
            let unlimited = Cgroup { swap_limit: None, ..cgroup(&path) };
            let command = "docker update --memory 545m --memory-swap -1 4f1e0c8a9b7d";
            assert_eq!(of(unlimited, Start::Contained).how, command);
            // The limit of memory and swap together.
            let both = Some(Bytes::mib(400));
            let v1 = Cgroup { swap_limit: both, version: CgroupVersion::V1, ..cgroup(&path) };
            assert_eq!(of(v1, Start::Contained).how, "docker update --memory 545m --memory-swap 645m 4f1e0c8a9b7d");
        }
        // A folder that only looks like one of Docker's.
        assert!(how("/docker/shop", Start::Contained).starts_with("echo 545M | sudo tee /sys/fs/cgroup/docker/shop/"));
    }

    #[test]
    fn a_pod_has_its_limit_in_the_manifest() {
        let manifest = "resources: {requests: {memory: 545Mi}, limits: {memory: 545Mi}}";
        for path in [
            format!("/kubepods/burstable/pod7f/{ID}"),
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7f.slice/docker-{ID}.scope"),
            format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod7f.slice/cri-containerd-{ID}.scope"),
        ] {
            assert_eq!(how(&path, Start::Contained), manifest);
        }
        assert_eq!(how("/kubepods.slice", Start::Contained), format!("{manifest}\n--memory 545m"));
    }

    #[test]
    fn a_service_gets_the_command_of_its_manager() {
        let unit = |name: &str, of_user| Start::Unit { name: name.into(), of_user };
        let shop = unit(r"shop\x2d1.service", false);
        let remedy = of(cgroup(r"/system.slice/shop\x2d1.service"), shop.clone());
        assert_eq!(remedy.how, r"sudo systemctl set-property 'shop\x2d1.service' MemoryMax=545M");
        assert!(remedy.trade_off.ends_with("MemoryMax=314572800") && remedy.verb().0 == "run ", "{remedy:?}");
        // The limit of the slice above, and a name that the kernel has a file of.
        assert_eq!(how("/system.slice", shop.clone()), "sudo systemctl set-property system.slice MemoryMax=545M");
        let memory = how("/system.slice/_memory.service", unit("memory.service", false));
        assert_eq!(memory, "sudo systemctl set-property memory.service MemoryMax=545M");
        let users = "/user.slice/user-1000.slice/user@1000.service/app.slice/shop.service";
        let of_user = how(users, unit("shop.service", true));
        assert_eq!(of_user, "systemctl --user set-property shop.service MemoryMax=545M");
        // A group that the service itself has made isn't a unit.
        assert!(how(r"/system.slice/shop\x2d1.service/payload", shop).starts_with("echo 545M | sudo tee "));
        assert!(how("/system.slice/shop.service", Start::Title).starts_with("echo 545M | sudo tee "));
    }

    #[test]
    fn other_groups_have_a_file() {
        assert_eq!(how("/a b", Start::Title), "echo 545M | sudo tee '/sys/fs/cgroup/a b/memory.max'");
        let v1 = |swap_limit| {
            let cgroup = Cgroup { swap_limit, version: CgroupVersion::V1, ..cgroup("/a") };
            of(cgroup, Start::Title).how
        };
        assert_eq!(v1(None), "echo 545M | sudo tee /sys/fs/cgroup/a/memory.limit_in_bytes");
        assert_eq!(
            v1(Some(Bytes::mib(300))),
            "echo 545M | sudo tee /sys/fs/cgroup/a/memory.memsw.limit_in_bytes && \
             echo 545M | sudo tee /sys/fs/cgroup/a/memory.limit_in_bytes"
        );
    }

    #[test]
    fn the_level_that_throttles_has_its_own_setting() {
        let how = |path: &str, start: Start| {
            let mut snapshot = Snapshot::default();
            snapshot.process.start = start;
            let directory = format!("/sys/fs/cgroup{path}").into();
            let throttle = Throttle { path: path.into(), directory, high: Bytes::mib(300), ..Throttle::default() };
            let ledger = Ledger::of(&snapshot);
            let case = Case { snapshot: &snapshot, ledger: &ledger };
            raise_high(case, &throttle, "", 545, "").map(|remedy| remedy.how)
        };
        let shop = Start::Unit { name: "shop.service".into(), of_user: false };
        let by_systemd = how("/system.slice/shop.service", shop);
        assert_eq!(by_systemd.as_deref(), Some("sudo systemctl set-property shop.service MemoryHigh=545M"));
        let by_file = how("/a", Start::Title);
        assert_eq!(by_file.as_deref(), Some("echo 545M | sudo tee /sys/fs/cgroup/a/memory.high"));
        for path in ["/", "/kubepods", "/kubepods/pod7/x"] {
            assert_eq!(how(path, Start::Contained), None, "{path}");
        }
    }

    #[test]
    fn a_limit_that_nobody_here_keeps_has_settings_without_gaps_to_fill() {
        let settings = "resources: {requests: {memory: 545Mi}, limits: {memory: 545Mi}}\n--memory 545m";
        assert_eq!(how("/", Start::Contained), settings);
        assert_eq!(how("/../x", Start::Contained), settings);
        let through_its_root = Cgroup { limit_directory: "/proc/7/root/sys/fs/cgroup/a".into(), ..cgroup("/a") };
        assert_eq!(of(through_its_root, Start::Contained).how, settings);
        let mut snapshot = Snapshot { limit_requested: Some(Bytes::mib(300)), ..Snapshot::default() };
        snapshot.cgroup = Some(cgroup(&format!("/docker/{ID}")));
        let ledger = Ledger::of(&snapshot);
        let remedy = raise(Case { snapshot: &snapshot, ledger: &ledger }, None, "", 545, "it gains 2 h");
        assert_eq!((remedy.how.as_str(), remedy.verb().1), (settings, "in the manifest"));
        assert_eq!(remedy.trade_off, "it gains 2 h; the first line for Kubernetes, the second for docker run");
        let labels: Vec<&str> = remedy.how.lines().map(|line| remedy.label(line)).collect();
        assert_eq!(labels, ["Kubernetes:", "docker run:"]);
    }
}
