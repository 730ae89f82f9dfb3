//! The manifests in contrib/: this test parses their rights out of the files and runs with exactly these, so a missing
//! right fails here.

use std::path::Path;

use crate::kit::{Container, Explained, READ_ONLY};

fn contrib(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The text between `before` and `after` in the only line that has both.
#[track_caller]
fn only<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let found: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split_once(before)?.1.split(after).next())
        .collect();
    assert_eq!(found.len(), 1, "{before}: {found:?}");
    found[0]
}

/// The options of setpriv(1) that leave root with these capabilities.
fn bounded<'c>(capabilities: impl Iterator<Item = &'c str>) -> String {
    let added: String = capabilities.map(|name| format!(",+{}", name.to_lowercase())).collect();
    assert!(added.len() > 2, "no capability was found in the file");
    format!("setpriv --bounding-set=-all{added} --inh-caps=-all --no-new-privs")
}

fn of_daemonset() -> String {
    bounded(only(&contrib("kubernetes/daemonset.yaml"), "add: [", "]").split(", "))
}

/// Starts the container's command with `rights`, over a read-only root, beside a target that is big enough for `--all`.
/// Returns the target's live bytes, what the server printed at its start, and `/metrics`.
#[track_caller]
fn serves(container: &Container, manifest: &str, target: &str, rights: &str) -> (u64, String, String) {
    let command: Vec<&str> = only(manifest, "command: [\"/plimsoll\", ", "]").split(", ").collect();
    let mut command = command.join(" ").replace('"', "");
    for (given, here) in [("0.0.0.0:9464", "127.0.0.1:0"), ("/token/token", "volume/token")] {
        assert!(command.contains(given), "{command}");
        command = command.replace(given, here);
    }
    let script = format!(
        "{READ_ONLY}
         {target} ./healthy 80 >volume/truth &
         until grep -q ready volume/truth; do sleep 0.01; done
         echo 0123456789abcdef0123456789abcdef >volume/token
         {rights} ./plimsoll {command} 2>volume/log &
         until grep -q 'http://' volume/log || ! kill -0 $!; do sleep 0.01; done
         port=$(sed -n 's|.*http://127.0.0.1:\\([0-9]*\\)/.*|\\1|p' volume/log)
         cat volume/truth volume/log; echo METRICS
         # On a busy machine, an answer may come before the first round has read the target.
         for attempt in $(seq 120); do
             exec 3<>/dev/tcp/127.0.0.1/$port
             printf 'GET /metrics HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\nAuthorization: Bearer %s\\r\\n\\r\\n' $(cat volume/token) >&3
             cat <&3 >volume/metrics
             grep -q 'target=\"healthy\".*line=\"glibc-live\"' volume/metrics && break
             sleep 0.5
         done
         cat volume/metrics"
    );
    let printed = container.run(&script);
    let (start, metrics) = printed.text.split_once("METRICS").unwrap_or_else(|| panic!("{}", printed.text));
    let live = start.lines().find_map(|line| line.strip_prefix("live ")).and_then(|live| live.parse().ok());
    (live.expect("a line of what lives"), start.to_owned(), metrics.to_owned())
}

/// The metrics have the target's blocks, within 3 %.
#[track_caller]
fn has_the_blocks(live: u64, metrics: &str) {
    let line = metrics.lines().find(|line| {
        ["plimsoll_resident_bytes{", "target=\"healthy\"", "line=\"glibc-live\""].iter().all(|part| line.contains(part))
    });
    let bytes = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0) as u64;
    assert!(bytes >= live && bytes <= live + live * 3 / 100, "{bytes} of {live}: {metrics}");
}

const OWNER: &str = "setpriv --reuid=4242 --regid=4242 --clear-groups";

#[test]
fn the_unit_and_the_daemonset_have_the_same_capabilities() {
    let unit = contrib("systemd/plimsoll-serve.service");
    let of_unit = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("a bounding set");
    assert_eq!(
        bounded(of_unit.split(' ').map(|name| name.strip_prefix("CAP_").expect("a capability"))),
        of_daemonset()
    );
}

#[test]
fn the_daemonsets_rights_suffice_for_any_users_process() {
    let Some(container) = Container::new("DaemonSet").map(Container::with_target) else { return };
    let manifest = contrib("kubernetes/daemonset.yaml");
    assert!(manifest.contains("readOnlyRootFilesystem: true") && manifest.contains("hostPID: true"));
    assert_eq!(only(&manifest, "runAsUser: ", " "), "0");
    let (live, start, metrics) = serves(&container, &manifest, OWNER, &of_daemonset());
    assert!(start.contains("user nobody"), "the listening process gives up root: {start}");
    has_the_blocks(live, &metrics);
    // Without the capability that opens processes, there are only totals: so the test can fail.
    let without = of_daemonset().replace(",+sys_ptrace", "");
    assert_eq!(container.explain(OWNER, &without).1.resident("glibc-live"), None);
    let (live, explained): (u64, Explained) = container.explain(OWNER, &of_daemonset());
    assert!(explained.resident("glibc-live").is_some_and(|bytes| bytes >= live), "{:?}", explained.gaps());
}

/// The volume is as kubelet makes it: root's, mode 0755. An emptyDir has mode 0777.
#[test]
fn the_daemonset_keeps_names_on_its_volume() {
    let Some(container) = Container::new("cache of the DaemonSet").map(Container::with_target) else { return };
    let manifest = contrib("kubernetes/daemonset.yaml");
    let place = only(&manifest, "{name: cache, mountPath: ", "}");
    assert!(manifest.contains(&format!("hostPath: {{path: {place}, type: DirectoryOrCreate}}")), "{place}");
    // This test mounts over no other directory of the machine.
    assert!(place.starts_with("/var/cache/"), "{place}");
    let of_line = |line: &str| line.trim().strip_prefix("- {name: ")?.strip_suffix('}').map(str::to_owned);
    let variables = manifest.lines().filter_map(of_line).filter_map(|line| {
        let (name, value) = line.split_once(", value: ")?;
        Some(format!("{name}={value} "))
    });
    let variables: String = variables.collect();
    let rights = of_daemonset();
    let kept = |mode: &str| {
        // The image has no cache in /root.
        let printed = container.run(&format!(
            "{READ_ONLY}
             [ ! -d /root/.cache ] || mount -t tmpfs -o ro none /root/.cache || exit 9
             mount -t tmpfs -o mode=0755 none /var/cache && mkdir {place} && chmod {mode} {place} || exit 9
             XDG_CACHE_HOME=$PWD/volume/cache plimsoll run --report none --dir volume/books -- \
                 sh -c 'exec ./healthy 8 >volume/truth' &
             until grep -q ready volume/truth 2>/dev/null; do sleep 0.01; done
             env -u XDG_CACHE_HOME {variables} {rights} plimsoll report volume/books --by site >volume/report 2>&1 || exit 8
             find {place} -name '*.symbols' | grep -c ."
        ));
        let files = printed.text.lines().last().and_then(|line| line.parse::<u32>().ok());
        files.unwrap_or_else(|| panic!("{:?} {}", printed.code, printed.text))
    };
    assert!(kept("0755") > 0, "no file of names");
    assert_eq!(kept("0777"), 0, "so the test can fail");
}

#[test]
fn the_sidecar_reads_its_neighbour_without_any_capability() {
    let Some(container) = Container::new("sidecar").map(Container::with_target) else { return };
    let manifest = contrib("kubernetes/sidecar.yaml");
    assert!(manifest.contains("shareProcessNamespace: true") && !manifest.contains("add: ["));
    let containers = manifest.matches("image: ").count();
    for each in ["capabilities: {drop: [ALL]}", "readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false"] {
        assert_eq!(manifest.matches(each).count(), containers, "{each}");
    }
    let (user, group) = (only(&manifest, "runAsUser: ", " "), only(&manifest, "runAsGroup: ", " "));
    let rights = format!(
        "setpriv --reuid={user} --regid={group} --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs"
    );
    let (live, start, metrics) = serves(&container, &manifest, &rights, &rights);
    assert!(start.contains("Landlock") || start.contains("seccomp"), "{start}");
    has_the_blocks(live, &metrics);
}
