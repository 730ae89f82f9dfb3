//! Netty's direct buffers: by java.nio with a cleaner, and by Unsafe without one, pooled and unpooled.

use plimsoll_facts::units::Bytes;

use crate::fixture::{Explained, Fixture};
use crate::kit::{SMALL_HEAP, WITH_NMT, evidence, has, how, near, on, remedy, rss, saved, start, typed};
use crate::stage::Jdk;

const BUFFERS: u64 = 200;
const BYTES: u64 = 500_000;

/// With these options Netty calls Unsafe directly, so java.nio counts none of its buffers.
const WITHOUT_CLEANER: [&str; 2] =
    ["-Dio.netty.tryReflectionSetAccessible=true", "--add-opens=java.base/java.nio=ALL-UNNAMED"];

fn netty(jdk: &Jdk, which: &str, options: &[&str], end: &str) -> Fixture {
    let options = [&SMALL_HEAP[..], &["-XX:MaxDirectMemorySize=1g"], options].concat();
    start(jdk, &options, "Netty", &[which, &BUFFERS.to_string(), &BYTES.to_string(), end], &[])
}

/// The same program, which releases its buffers. Large blocks go back to the kernel. What lay in an arena may stay
/// there: then that is the verdict, a note if it is little. What went back and what stays are together what the buffers
/// took.
fn released(case: &str, jdk: &Jdk, kept: &Explained, used: u64, in_arenas: bool, remedy: &serde_json::Value) {
    let mut fixed = netty(jdk, "unpooled", &WITHOUT_CLEANER, "released");
    let before = kept.0["rss_bytes"].as_u64().expect("a figure");
    let after = rss(&fixed);
    saved(case, remedy, before, after);
    let explained = fixed.explained();
    let stays = explained.line("glibc-retained").saturating_sub(kept.line("glibc-retained"));
    let mut expected = vec!["healthy"];
    // Whether glibc takes such blocks from an arena depends on what each process freed before.
    let keeps = explained.verdicts().contains(&"allocator-retention");
    if in_arenas || keeps {
        let both = before.saturating_sub(after) + stays;
        assert!(both.abs_diff(used) <= used / 20 + (4 << 20), "{case}: {before} to {after}, {stays} kept, {used} used");
        if keeps {
            let verdict = explained.verdict("allocator-retention");
            let bytes = verdict["bytes"].as_u64().expect("a figure");
            assert!(bytes <= explained.line("glibc-retained") && bytes <= used, "{case}: {bytes} of {used}");
            expected.retain(|_| verdict["severity"] == "note");
            expected.push("allocator-retention");
        }
    }
    has(case, &explained, &expected);
    fixed.serves();
}

fn counted_by_nio(jdk: &Jdk, which: &str) {
    let case = format!("Netty, {which} buffers with a cleaner, JDK {}", jdk.major);
    let mut kept = netty(jdk, which, &[], "kept");
    assert_eq!(kept.truth("cleaner"), 1, "{case}");
    let explained = kept.explained();
    has(&case, &explained, &["direct-buffer-growth"]);
    near(&case, "direct buffers", explained.line("direct-buffers"), kept.truth("used"));
    // Netty's buffers don't come from the cache that NIO keeps for each thread.
    let verdict = explained.verdict("direct-buffer-growth");
    assert!(!verdict["remedies"].to_string().contains("maxCachedBufferSize"), "{case}: {verdict:#}");
    // The verdict says that a collection frees nothing that is in use; this collection frees nothing.
    let collect = remedy(&explained, "direct-buffer-growth", 0);
    assert!(how(&collect).ends_with("GC.run"), "{case}: {collect:#}");
    typed(&mut kept, &collect);
    near(&case, "direct buffers after a collection", kept.explained().line("direct-buffers"), kept.truth("used"));
    // The proposed limit is above what the program uses: with it in force it works.
    let limit = remedy(&explained, "direct-buffer-growth", 1);
    assert!(how(&limit).starts_with("-XX:MaxDirectMemorySize="), "{case}: {limit:#}");
    let mut limited = netty(jdk, which, &[how(&limit)], "kept");
    saved(&case, &limit, explained.0["rss_bytes"].as_u64().unwrap(), rss(&limited));
    limited.serves();
    kept.serves();
}

fn unsafe_without_nmt(jdk: &Jdk) {
    let case = format!("Netty, unpooled buffers of Unsafe without cleaner, NMT off, JDK {}", jdk.major);
    let mut kept = netty(jdk, "unpooled", &WITHOUT_CLEANER, "kept");
    assert_eq!(kept.truth("cleaner"), 0, "{case}");
    let explained = kept.explained();
    has(&case, &explained, &["native-leak"]);
    // glibc takes blocks of this size from arenas once a larger one was freed (mallopt(3), M_MMAP_THRESHOLD). Then what
    // the VM has there counts, too.
    let places = ["large blocks", "thread arenas"].map(|part| explained.child("glibc-live", part));
    let (place, used) = (places[0].max(places[1]), kept.truth("used"));
    assert!((used..=used + used / 20).contains(&place), "{case}: {place} of {used}");
    let evidence_text = evidence(&explained, "native-leak");
    // Netty's own count, of which java.nio knows nothing.
    let counted = format!("it counts {} that it allocated with Unsafe", Bytes(kept.truth("counted")));
    assert!(
        kept.truth("counted") >= BUFFERS * BYTES && evidence_text.contains(&counted),
        "{case}: {counted}: {evidence_text}"
    );
    let end = crate::kit::last(&explained, "native-leak").clone();
    assert_eq!(end["what"], "close the objects that hold native memory: Netty", "{case}");
    let report = typed(&mut kept, &remedy(&explained, "native-leak", 0));
    assert!(report.contains("PlatformDependent"), "{case}: {report}");
    kept.serves();
    released(&case, jdk, &explained, used, places[1] > places[0], &end);
}

fn unsafe_with_nmt(jdk: &Jdk) {
    let case = format!("Netty, pooled buffers of Unsafe without cleaner, NMT on, JDK {}", jdk.major);
    let options = [&WITHOUT_CLEANER[..], &[WITH_NMT]].concat();
    let mut kept = netty(jdk, "pooled", &options, "kept");
    assert_eq!(kept.truth("cleaner"), 0, "{case}");
    let explained = kept.explained();
    has(&case, &explained, &["direct-buffer-growth"]);
    // Chunks that Unsafe allocates aren't zeroed: what was written is resident, not what the pool counts.
    near(&case, "direct buffers", explained.line("direct-buffers"), BUFFERS * BYTES);
    let counted = format!("Netty counts {} that it allocated with Unsafe", Bytes(kept.truth("counted")));
    let evidence_text = evidence(&explained, "direct-buffer-growth");
    assert!(evidence_text.contains(&counted), "{case}: {counted}: {evidence_text}");
    // java.nio counts none of it, so no limit of java.nio's is proposed.
    let verdict = explained.verdict("direct-buffer-growth");
    assert!(!verdict["remedies"].to_string().contains("MaxDirectMemorySize"), "{case}: {verdict:#}");
    typed(&mut kept, &remedy(&explained, "direct-buffer-growth", 0));
    kept.serves();
}

#[test]
fn unpooled_buffers_of_unsafe_without_nmt() {
    on(17).iter().for_each(unsafe_without_nmt);
}

#[test]
#[ignore = "full: a second case of Netty"]
fn pooled_buffers_of_unsafe_with_nmt() {
    on(25).iter().for_each(unsafe_with_nmt);
}

#[test]
#[ignore = "full: a third case of Netty"]
fn pooled_buffers_with_a_cleaner() {
    on(25).iter().for_each(|jdk| counted_by_nio(jdk, "pooled"));
}

#[test]
#[ignore = "full: a fourth case of Netty"]
fn unpooled_buffers_with_a_cleaner() {
    on(17).iter().for_each(|jdk| counted_by_nio(jdk, "unpooled"));
}
