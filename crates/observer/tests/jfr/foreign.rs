//! Recordings made by JDKs and native images during the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::processes::{Jdk, jdk, jdks, native_image};
use crate::twin::{Compared, compare};

pub fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("jfr-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("scratch");
    path
}

pub fn record(jdk: &Jdk, file: &Path, options: &str, flags: &[&str], arguments: &[&str]) {
    let start = format!("-XX:StartFlightRecording=filename={}{options}", file.display());
    let all = [&["-Xmx256m", "-XX:NativeMemoryTracking=summary", "-Xlog:disable", &start], flags].concat();
    let output = jdk.program("Recorded", &all, arguments).output().expect("java");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn printed(name: &str, chunks: usize, compared: &Compared) {
    let (types, events) = (compared.events.len(), compared.events.values().sum::<u64>());
    let Compared { fields, frames, .. } = compared;
    eprintln!(
        "{name}: {chunks} chunks, {types} types, {events} events, {fields} fields, {frames} frames as jfr prints them"
    );
}

fn is_as_its_own_jfr_prints_it(jdk: &Jdk) {
    let folder = scratch(&format!("foreign-{}", jdk.major));
    let file = folder.join("recording.jfr");
    let options = ",settings=profile,+jdk.ObjectAllocationInNewTLAB#enabled=true";
    record(jdk, &file, options, &["-XX:TLABSize=64k"], &["1500", "200", "1"]);
    let (compared, summary) = compare(jdk, &file);
    let seen = |name: &str| compared.events.get(name).copied().unwrap_or(0);
    printed(&format!("JDK {}", jdk.major), summary.chunks.len(), &compared);
    assert_eq!((summary.flaws, summary.chunks.len()), (vec![], 5));
    assert!(seen("test.Everything") > 200 && compared.frames > 5000, "{compared:?}");
    assert!(seen("jdk.ObjectAllocationInNewTLAB") > 100 && seen("jdk.ObjectAllocationSample") > 50, "{compared:?}");
    assert!(compared.strings > 5000 && compared.times > 1000 && compared.objects > 1000, "{compared:?}");
    assert!(!jdk.records_memory() || (seen("jdk.NativeMemoryUsage") > 25 && seen("jdk.ResidentSetSize") > 0));
    assert!(compared.missing * 1000 < compared.fields, "{compared:?}");
    let _ = std::fs::remove_dir_all(folder);
}

// One test for each version, so that they run side by side.

#[test]
fn every_event_of_jdk_17_is_as_its_own_jfr_prints_it() {
    is_as_its_own_jfr_prints_it(&jdk(17).expect("a JDK 17 (run .ci/setup)"));
}

#[test]
fn every_event_of_jdk_25_is_as_its_own_jfr_prints_it() {
    is_as_its_own_jfr_prints_it(&jdk(25).expect("a JDK 25 (run .ci/setup)"));
}

#[test]
#[ignore = "full: the other JDKs"]
fn every_event_of_any_other_jdk_is_as_its_own_jfr_prints_it() {
    jdks().iter().filter(|jdk| ![17, 25].contains(&jdk.major)).for_each(is_as_its_own_jfr_prints_it);
}

#[test]
fn every_event_of_a_native_image_is_as_jfr_prints_it() {
    let folder = scratch("image");
    let app = native_image("app");
    let file = folder.join("image.jfr");
    let start = format!("-XX:StartFlightRecording=filename={}", file.display());
    let output = Command::new(app).args([&start, "16", "8", "4", "4", "2"]).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut jdks, mut compared_by) = (jdks(), 0);
    jdks.sort_by_key(|jdk| jdk.major);
    for jdk in jdks {
        let (compared, summary) = compare(&jdk, &file);
        printed(&format!("native image by JDK {}", jdk.major), summary.chunks.len(), &compared);
        assert_eq!(summary.flaws, []);
        let seen = |name: &str| compared.events.get(name).copied().unwrap_or(0);
        assert!(seen("jdk.NativeMemoryUsage") > 10 && seen("jdk.NativeMemoryUsagePeak") > 10, "{compared:?}");
        assert!(compared.frames > 10, "{compared:?}");
        compared_by += 1;
    }
    assert!(compared_by > 0);
    let _ = std::fs::remove_dir_all(folder);
}
