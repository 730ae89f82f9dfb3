//! Inflaters that nobody ended, too few for a warning: the steps that `unclear` proposes, all of them.

use crate::fixture::Fixture;
use crate::kit::{SMALL_HEAP, evidence, has, on, remedy, rss, saved, start, typed};
use crate::stage::Jdk;

fn inflaters(jdk: &Jdk, nmt: &str, end: &str) -> Fixture {
    let options = [&SMALL_HEAP[..], &["-Xint", nmt]].concat();
    start(jdk, &options, "Inflaters", &["1000", end], &[])
}

fn attach_names_the_line(jdk: &Jdk, nmt: &str) {
    let case = format!("1,000 Inflaters never ended, NMT {nmt}, JDK {}", jdk.major);
    let option = format!("-XX:NativeMemoryTracking={nmt}");
    let mut open = inflaters(jdk, &option, "open");
    let explained = open.explained();
    has(&case, &explained, &["unclear"]);
    let (grown, bytes) = (open.truth("grown"), explained.verdict("unclear")["bytes"].as_u64().unwrap());
    // The verdict can't judge these blocks; with NMT it also includes what else NMT doesn't count.
    assert!(bytes.abs_diff(grown) <= grown / 10 + (2 << 20), "{case}: {bytes}, {grown} grown");
    let evidence_text = evidence(&explained, "unclear");
    assert!(evidence_text.contains("an Inflater's window"), "{case}: {evidence_text}");
    let report = typed(&mut open, &remedy(&explained, "unclear", 0));
    assert!(report.contains("Inflaters.open"), "{case}: {report}");
    open.serves();
    // The program with the fix: the named line ends its inflaters.
    let mut ended = inflaters(jdk, &option, "closed");
    saved(&case, &remedy(&explained, "unclear", 0), explained.0["rss_bytes"].as_u64().unwrap(), rss(&ended));
    has(&case, &ended.explained(), &["healthy"]);
    ended.serves();
}

#[test]
fn attach_names_the_line_that_opens_inflaters() {
    on(25).iter().for_each(|jdk| attach_names_the_line(jdk, "off"));
}

#[test]
#[ignore = "full: the same with NMT"]
fn attach_names_the_line_that_opens_inflaters_beside_nmt() {
    on(17).iter().for_each(|jdk| attach_names_the_line(jdk, "summary"));
}
