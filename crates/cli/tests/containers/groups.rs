//! Beside the target, in a container with a memory cgroup of its own: the limit is the target's, or a gap. The known
//! answer is the limit that the test writes.

use crate::cgroup::Cgroup;
use crate::kit::Container;
use crate::stage::log_line;

const MIB: u64 = 1 << 20;
/// The last word has each of the characters that the kernel writes in octal: systemd's names have backslashes.
const SHOP: &str = "shop-my\\x2dshop 1";

/// In front of a script: a container has only its own group at the mount, and mostly its own cgroup namespace.
const NAMESPACED: &str = "umount -l \"$AT\"; mount -t $KIND none \"$AT\";";
const BOUND: &str = "mount --bind \"$OWN\" \"$AT\";";

/// `limit` and the gaps of `explain` for a target with 300 MiB, as a sidecar with `own` MiB sees them.
fn beside(case: &str, own: Option<u64>, sidecar: &str) -> Option<(serde_json::Value, Vec<String>)> {
    let container = Container::new(case).map(Container::with_target)?;
    let groups = [Cgroup::make(&format!("{case}-{SHOP}")), Cgroup::make(&format!("{case}-sidecar"))];
    let [Ok(shop), Ok(observer)] = groups else {
        log_line(&format!("groups {case}: skipped, {}", groups.into_iter().find_map(Result::err).unwrap_or_default()));
        return None;
    };
    shop.limit(300 * MIB);
    own.into_iter().for_each(|mib| observer.limit(mib * MIB));
    let (at, kind) = shop.mounted();
    // A process sees its own group as the root of a namespace only if it was in the group before.
    let script = format!(
        "export KIND='{kind}' AT='{at}' OWN='{own}'
         rm -f truth
         sh -c 'echo 0 >\"$0/cgroup.procs\" && exec unshare -m --cgroup sh -c \"$1 exec ./healthy 8\"' \
             '{shop}' '{NAMESPACED}' >truth &
         until grep -q ready truth 2>/dev/null; do sleep 0.01; done
         sh -c 'echo 0 >\"$0/cgroup.procs\" && exec unshare -m {space} sh -c \"$1 plimsoll explain $2 --format json\"' \
             '{own}' '{sidecar}' $!",
        at = at.display(),
        own = observer.path().display(),
        shop = shop.path().display(),
        space = if sidecar.starts_with(NAMESPACED) { "--cgroup" } else { "" },
    );
    let explained = container.run(&script).json();
    Some((explained.0["limit"].clone(), explained.gaps()))
}

#[test]
fn a_sidecar_shows_the_targets_limit_and_never_its_own() {
    for own in [Some(128), None] {
        for (sidecar, reason) in [
            (NAMESPACED, "the target's cgroup lies outside this cgroup namespace"),
            (BOUND, "the target's cgroup lies outside of what is mounted here"),
        ] {
            let Some((limit, gaps)) = beside("beside", own, sidecar) else { return };
            assert_eq!(limit["bytes"], 300 * MIB, "{limit} {gaps:?}");
            // The target holds 8 MiB; this sidecar's group has less.
            assert!(limit["charged_bytes"].as_u64().is_some_and(|bytes| bytes >= 8 * MIB), "{limit}");
            assert!(gaps.iter().any(|gap| gap.starts_with(reason)), "{gaps:?}");
        }
    }
}

/// Where the target's mounts can't be read, the report has no limit, and not that of another group.
#[test]
fn a_group_that_cannot_be_seen_is_a_gap() {
    let hidden = format!("{NAMESPACED} setpriv --reuid=4242 --regid=4242 --clear-groups");
    let Some((limit, gaps)) = beside("closed", Some(128), &hidden) else { return };
    assert!(limit.is_null(), "{limit}");
    assert!(gaps.iter().any(|gap| gap.starts_with("no memory cgroup of the target is mounted")), "{gaps:?}");
}

/// As in a container without privileges: refused once, not in each row of each round.
#[test]
fn try_with_a_limit_refuses_where_no_group_can_be_made() {
    let Some(container) = Container::new("read-only groups") else { return };
    let script = "for at in $(awk '{ for (i = 7; i < NF; i++) if ($i == \"-\" && $(i + 1) ~ /^cgroup/) print $5 }' \
                  /proc/self/mountinfo); do mount -o remount,bind,ro $at; done
                  exec plimsoll try --limit 40m --rounds 3 --for 0.1 -- sleep 9";
    container.run(script).is_one_line(&["no memory cgroup with a limit can be made: ", "Run without --limit"]);
}
