//! An index of Lucene in mapped files, in a cgroup whose limit the page cache fills: nothing leaks, and nothing is
//! killed.

use crate::cgroup::Cgroup;
use crate::fixture::{Fixture, skip};
use crate::kit::{MIB, command, has, near, on, remedy, start_command, typed};
use crate::stage::{Jdk, Scratch};

fn index(jdk: &Jdk, group: &Cgroup, folder: &Scratch) -> Fixture {
    let folder = folder.path().join("index").display().to_string();
    let options = ["-Xms48m", "-Xmx48m", "-XX:+AlwaysPreTouch", "-XX:+UseSerialGC"];
    start_command(&mut group.wrap(&command(jdk, &options, "Lucene", &[&folder, "1200", "50000"])))
}

fn mapped_index(jdk: &Jdk) {
    let group = match Cgroup::make("lucene") {
        Ok(group) => group,
        Err(reason) => return skip("Lucene in a cgroup", &reason),
    };
    group.limit(200 * MIB);
    // On a disk: the kernel can't reclaim the pages of a tmpfs, and /tmp may be one.
    let folder = Scratch::new("lucene");
    let case = format!("Lucene, an index of 57 MiB in mapped files, JDK {}", jdk.major);
    let mut searched = index(jdk, &group, &folder);
    let explained = searched.explained();
    near(&case, "the index", explained.child("mapped-files", ".fdt"), searched.truth("stored"));
    let verdicts = explained.0["verdicts"].as_array().unwrap();
    assert!(verdicts.iter().all(|verdict| verdict["severity"] == "note"), "{case}: {verdicts:#?}");
    has(&case, &explained, &["healthy", "mapped-file-growth"]);
    assert!(!explained.verdicts().contains(&"limit-near"), "{case}: {verdicts:#?}");
    // The first remedy shows which memory counts: without the files there is no growth.
    let printed = typed(&mut searched, &remedy(&explained, "mapped-file-growth", 0));
    let kib = |name: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(name)).expect("its line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("KiB") << 10
    };
    assert!(kib("RssFile:") >= searched.truth("stored") && kib("RssAnon:") < 120 * MIB, "{case}: {printed}");
    // A limit below the charge: the kernel reclaims cache instead of killing, and the program goes on.
    let cache = || group.stat()["file"];
    let (before, charged) = (cache(), explained.0["cgroup"]["charged_bytes"].as_u64().expect("a cgroup"));
    group.limit(charged - 30 * MIB);
    let left = cache();
    assert!(left + 20 * MIB < before, "{case}: {left} of {before}");
    searched.serves();
    assert_eq!(group.oom_kills(), 0, "{case}");
}

#[test]
fn an_index_in_mapped_files_in_a_cgroup() {
    on(25).iter().for_each(mapped_index);
}
