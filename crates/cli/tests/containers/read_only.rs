//! A container whose root file system is read-only: what plimsoll writes goes to a volume.

use crate::kit::{Container, READ_ONLY};

/// As the container's root would run it. /root and /var/cache, root's other caches, are read-only, too.
const RUN: &str = "plimsoll run --sites off --report none";

#[test]
fn the_cache_and_the_segments_lie_on_the_volume() {
    let Some(container) = Container::new("read-only root").map(Container::with_target) else { return };
    let script = format!(
        "{READ_ONLY}
         ! touch here 2>volume/refused && grep -q Read-only volume/refused || exit 9
         export XDG_CACHE_HOME=$PWD/volume/cache
         {RUN} --dir volume/books -- sh -c 'exec ./healthy 8 >volume/truth' &
         until grep -q ready volume/truth; do sleep 0.01; done
         plimsoll report volume/books --format json && ls volume/cache/plimsoll >&2"
    );
    let printed = container.run(&script);
    assert_eq!(printed.code, Some(0), "{}", printed.text);
    let json = printed.text.lines().collect::<Vec<_>>().join("\n");
    let end = json.rfind('}').expect("JSON");
    let report: serde_json::Value = serde_json::from_str(&json[..=end]).expect("JSON");
    // 8 MiB in blocks of 1000 bytes.
    assert!(report["total"]["live_bytes"].as_u64().is_some_and(|live| live >= 8 << 20), "{}", report["total"]);
    assert!(json[end..].contains("libplimsoll-") && json[end..].contains(".rules"), "{}", &json[end..]);
}

/// The volume of an emptyDir is open to everybody, so nothing in it is safe from others; with the sticky bit it is.
#[test]
fn a_volume_that_others_may_write_to_needs_the_sticky_bit() {
    let Some(container) = Container::new("volume of mode 0777").map(Container::with_target) else { return };
    let user = "setpriv --reuid=4242 --regid=4242 --clear-groups env XDG_CACHE_HOME=$PWD/volume";
    let run = format!("{user} {RUN} --dir $PWD/volume/books -- echo ran");
    let refused = container.run(&format!("{READ_ONLY} chmod 0777 volume; {run}"));
    refused.is_one_line(&["cannot unpack the tracker anywhere", "can be written to by others (mode 777)", "chmod +t"]);
    let done = container.run(&format!("{READ_ONLY} chmod 1777 volume; {run}"));
    assert!(done.code == Some(0) && done.text == "ran\n", "{}", done.text);
}
