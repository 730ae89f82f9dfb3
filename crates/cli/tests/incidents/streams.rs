//! Streams of zstd-jni, java.util.zip, Snappy and LZ4 that nobody closes. The first two hold native memory, the others
//! arrays of the Java heap.

use crate::fixture::{Explained, Fixture};
use crate::kit::{MIB, SMALL_HEAP, WITH_NMT, evidence, has, how, last, near, on, remedy, rss, saved, start, typed};
use crate::stage::Jdk;

/// Enough heap for the streams' byte arrays, touched from the start, so that all growth is native.
const HEAP: [&str; 3] = ["-Xms96m", "-Xmx96m", "-XX:+AlwaysPreTouch"];

/// The class path has all four libraries: a library that is only present must not be suspected. Interpreted: memory of
/// the compilers would count as growth.
fn streams(jdk: &Jdk, library: &str, count: u32, options: &[&str], end: &str) -> Fixture {
    let heap = if library == "zstd" { SMALL_HEAP } else { HEAP };
    let options = [&heap[..], &["-Xint"], options].concat();
    start(jdk, &options, "Streams", &[library, &count.to_string(), end], &[])
}

/// `attach`, the first remedy, names the line that makes the streams. Closing them, the last, gives the memory back.
fn remedies(
    case: &str,
    jdk: &Jdk,
    library: &str,
    count: u32,
    options: &[&str],
    leaks: &mut Fixture,
    explained: &Explained,
) {
    let report = typed(leaks, &remedy(explained, "native-leak", 0));
    assert!(report.contains("Streams.pass"), "{case}: {report}");
    leaks.serves();
    let before = explained.0["rss_bytes"].as_u64().unwrap();
    let mut closes = streams(jdk, library, count, options, "closed");
    let after = rss(&closes);
    saved(case, last(explained, "native-leak"), before, after);
    let grown = leaks.truth("grown");
    assert!((before - after).abs_diff(grown) * 100 <= grown * 5, "{case}: {before} {after} {grown}");
    closes.serves();
}

fn zstd(jdk: &Jdk) {
    let case = format!("zstd-jni, 100 pairs of streams never closed, JDK {}", jdk.major);
    let mut leaks = streams(jdk, "zstd", 100, &[WITH_NMT], "open");
    let explained = leaks.explained();
    has(&case, &explained, &["native-leak"]);
    near(&case, "live blocks", explained.line("glibc-live"), leaks.truth("grown"));
    let evidence_text = evidence(&explained, "native-leak");
    assert!(
        evidence_text.contains("libzstd-jni") && evidence_text.contains("zstd-jni-1.5.6-3.jar"),
        "{case}: {evidence_text}"
    );
    assert!(!evidence_text.contains("snappy") && !evidence_text.contains("lz4"), "{case}: {evidence_text}");
    let end = how(last(&explained, "native-leak"));
    assert!(
        end.starts_with("close every ZstdInputStream, ZstdOutputStream ") && !end.contains("GZIP"),
        "{case}: {end}"
    );
    remedies(&case, jdk, "zstd", 100, &[WITH_NMT], &mut leaks, &explained);
}

/// The jars of zstd-jni and Snappy are open, and neither has loaded its library.
fn gzip(jdk: &Jdk) {
    let case = format!("java.util.zip, 500 pairs of streams never closed, JDK {}", jdk.major);
    let mut leaks = streams(jdk, "gzip", 500, &[WITH_NMT], "open");
    let explained = leaks.explained();
    has(&case, &explained, &["native-leak"]);
    near(&case, "live blocks", explained.line("glibc-live"), leaks.truth("grown"));
    let evidence_text = evidence(&explained, "native-leak");
    for known in ["the size of an Inflater's window", "the size of a Deflater's window"] {
        assert!(evidence_text.contains(known), "{case}: {known}: {evidence_text}");
    }
    assert!(!evidence_text.contains("jars") && !evidence_text.contains("libz.so"), "{case}: {evidence_text}");
    let end = last(&explained, "native-leak");
    assert_eq!(end["what"], "close the objects that hold native memory: java.util.zip", "{case}");
    remedies(&case, jdk, "gzip", 500, &[WITH_NMT], &mut leaks, &explained);
}

/// Too little for a warning where NMT is off: `unclear` names the suspect.
fn zstd_without_nmt(jdk: &Jdk) {
    let case = format!("zstd-jni, 60 pairs of streams never closed, NMT off, JDK {}", jdk.major);
    let mut leaks = streams(jdk, "zstd", 60, &[], "open");
    let explained = leaks.explained();
    has(&case, &explained, &["unclear"]);
    let evidence_text = evidence(&explained, "unclear");
    assert!(evidence_text.contains("libzstd-jni") && !evidence_text.contains("snappy"), "{case}: {evidence_text}");
    let report = typed(&mut leaks, &remedy(&explained, "unclear", 0));
    assert!(report.contains("Streams.pass"), "{case}: {report}");
    leaks.serves();
}

/// All that these streams hold is in the Java heap.
fn held_by_the_heap(jdk: &Jdk, library: &str, mark: &str) {
    let case = format!("{library}, 150 pairs of streams never closed, JDK {}", jdk.major);
    let mut open = streams(jdk, library, 150, &[WITH_NMT], "open");
    let explained = open.explained();
    assert!(open.truth("grown") < 2 * MIB, "{case}: {}", open.truth("grown"));
    near(&case, "Java heap", explained.line("java-heap"), 96 * MIB);
    assert!(explained.line("glibc-live") < 8 * MIB, "{case}: {:#}", explained.0["lines"]);
    let warned = explained.0["verdicts"].as_array().unwrap().iter().any(|verdict| verdict["severity"] != "note");
    assert!(!warned && explained.verdicts().contains(&"healthy"), "{case}: {:#}", explained.0["verdicts"]);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", open.pid())).expect("it runs");
    assert!(maps.contains(mark), "{case}: its library is loaded");
    open.serves();
}

#[test]
fn zstd_streams_that_were_never_closed() {
    on(25).iter().for_each(zstd);
}

#[test]
#[ignore = "full: a third library's streams"]
fn gzip_streams_that_were_never_closed() {
    on(17).iter().for_each(gzip);
}

#[test]
#[ignore = "full: a second case of zstd-jni"]
fn zstd_streams_of_a_vm_without_nmt_are_named_by_unclear() {
    on(17).iter().for_each(zstd_without_nmt);
}

#[test]
#[ignore = "full: no native memory"]
fn snappy_streams_hold_java_heap_only() {
    on(17).iter().for_each(|jdk| held_by_the_heap(jdk, "snappy", "libsnappyjava"));
}

#[test]
fn lz4_streams_hold_java_heap_only() {
    on(17).iter().for_each(|jdk| held_by_the_heap(jdk, "lz4", "liblz4-java"));
}
