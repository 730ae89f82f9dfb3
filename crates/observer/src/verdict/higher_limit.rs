//! The remedy that raises a memory limit, by who keeps the limit. The path of the cgroup that has it tells:
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
use super::{Effort, Remedy};
use plimsoll_facts::shell::quoted;
use plimsoll_facts::snapshot::{Cgroup, CgroupVersion, Start};
use plimsoll_facts::units::Bytes;

/// `mib`: the new limit. `gain`: what it gains.
pub(crate) fn raise(case: Case<'_>, what: &str, mib: u64, gain: &str) -> Remedy {
    let (how, note) = keeper(case, mib);
    let trade_off: Vec<&str> = [gain, &note].into_iter().filter(|text| !text.is_empty()).collect();
    remedy(Effort::Deploy, what, how, trade_off.join("; "))
}

/// What to type, and what to know about it.
fn keeper(case: Case<'_>, mib: u64) -> (String, String) {
    let manifest = format!("resources: {{requests: {{memory: {mib}Mi}}, limits: {{memory: {mib}Mi}}}}");
    let unknown = || {
        (format!("{manifest}\n--memory {mib}m"), "the first line for Kubernetes, the second for docker run".to_owned())
    };
    let cgroup = case.snapshot.cgroup.as_ref().filter(|_| case.snapshot.limit_requested.is_none());
    let Some((cgroup, limit)) = cgroup.and_then(|cgroup| Some((cgroup, cgroup.limit?))) else { return unknown() };
    let parts = || cgroup.limit_path.split('/');
    if parts().any(|part| part.starts_with("kubepods")) {
        // Above the pods it is the node's limit: nobody raises that for one program.
        let is_of_pod = parts().any(|part| part.starts_with("pod") || part.contains("-pod"));
        return if is_of_pod { (manifest, String::new()) } else { unknown() };
    }
    let limit = Limit { cgroup, limit, mib };
    limit
        .docker()
        .or_else(|| limit.systemd(&case.snapshot.process.start))
        .or_else(|| limit.file())
        .unwrap_or_else(unknown)
}

/// A cgroup's limit, and the new one.
struct Limit<'c> {
    cgroup: &'c Cgroup,
    limit: Bytes,
    mib: u64,
}

impl Limit<'_> {
    /// The new limit of memory and swap together, with as much swap as now. None: swap has no limit.
    fn with_swap(&self) -> Option<u64> {
        let swap = match self.cgroup.version {
            // memory.memsw.limit_in_bytes includes the memory.
            CgroupVersion::V1 => self.cgroup.swap_limit? - self.limit,
            CgroupVersion::V2 => self.cgroup.swap_limit?,
        };
        Some(self.mib.saturating_add(swap.0.div_ceil(1 << 20)))
    }

    /// docker update refuses a limit above that of memory and swap, which is twice the limit by default. So both are
    /// set.
    fn docker(&self) -> Option<(String, String)> {
        let (above, group) = self.cgroup.limit_path.rsplit_once('/')?;
        let of_systemd = group.strip_prefix("docker-").and_then(|group| group.strip_suffix(".scope"));
        let id = of_systemd.or_else(|| above.ends_with("/docker").then_some(group))?;
        // As docker ps shows it.
        let short = id.get(..12).filter(|_| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        let swap = self.with_swap().map_or_else(|| "-1".to_owned(), |mib| format!("{mib}m"));
        let how = format!("docker update --memory {}m --memory-swap {swap} {short}", self.mib);
        Some((how, "on the host; a new container needs it in its docker run".to_owned()))
    }

    /// A process that a unit of systemd starts is in groups that systemd names after units. In front of a name that the
    /// kernel could take for one of its files it puts `_` (cg_escape in src/basic/cgroup-util.c).
    fn systemd(&self, start: &Start) -> Option<(String, String)> {
        let Start::Unit { name, .. } = start else { return None };
        let (above, group) = self.cgroup.limit_path.rsplit_once('/')?;
        let unit = group.strip_prefix('_').unwrap_or(group);
        let is_a_unit = unit == name || unit.ends_with(".slice");
        let unit = quoted(unit).filter(|_| is_a_unit)?;
        let systemctl = Start::systemctl(above.split('/').any(|part| part.starts_with("user@")));
        let set = |value: String| format!("{systemctl} set-property {unit} MemoryMax={value}");
        let undo = set(self.limit.0.to_string());
        Some((set(format!("{}M", self.mib)), format!("takes effect at once, and for later starts; undo: {undo}")))
    }

    fn file(&self) -> Option<(String, String)> {
        let path = self.cgroup.limit_path.as_str();
        // The root has no limit: what looks like it is a group outside of this namespace.
        let folder = self.cgroup.limit_directory.to_str().filter(|folder| folder.starts_with("/sys/"))?;
        if path.len() < 2 || path.contains("/..") {
            return None;
        }
        let write =
            |mib: u64, file: &str| Some(format!("echo {mib}M | sudo tee {}", quoted(&format!("{folder}/{file}"))?));
        let how = match (self.cgroup.version, self.with_swap()) {
            (CgroupVersion::V2, _) => write(self.mib, "memory.max")?,
            (CgroupVersion::V1, None) => write(self.mib, "memory.limit_in_bytes")?,
            // The kernel refuses a limit of memory above that of memory and swap.
            (CgroupVersion::V1, Some(both)) => {
                let both = write(both, "memory.memsw.limit_in_bytes")?;
                format!("{both} && {}", write(self.mib, "memory.limit_in_bytes")?)
            }
        };
        Some((how, "takes effect at once, until whoever made this group makes it again".to_owned()))
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
        raise(Case { snapshot: &snapshot, ledger: &ledger }, "", 545, "")
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
            // Of memory and swap together.
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
    fn a_limit_that_nobody_here_keeps_has_settings_without_gaps_to_fill() {
        let settings = "resources: {requests: {memory: 545Mi}, limits: {memory: 545Mi}}\n--memory 545m";
        assert_eq!(how("/", Start::Contained), settings);
        assert_eq!(how("/../x", Start::Contained), settings);
        let through_its_root = Cgroup { limit_directory: "/proc/7/root/sys/fs/cgroup/a".into(), ..cgroup("/a") };
        assert_eq!(of(through_its_root, Start::Contained).how, settings);
        let mut snapshot = Snapshot { limit_requested: Some(Bytes::mib(300)), ..Snapshot::default() };
        snapshot.cgroup = Some(cgroup(&format!("/docker/{ID}")));
        let ledger = Ledger::of(&snapshot);
        let remedy = raise(Case { snapshot: &snapshot, ledger: &ledger }, "", 545, "it gains 2 h");
        assert_eq!((remedy.how.as_str(), remedy.verb().1), (settings, "in the manifest"));
        assert_eq!(remedy.trade_off, "it gains 2 h; the first line for Kubernetes, the second for docker run");
        let labels: Vec<&str> = remedy.how.lines().map(|line| remedy.label(line)).collect();
        assert_eq!(labels, ["Kubernetes:", "docker run:"]);
    }
}
