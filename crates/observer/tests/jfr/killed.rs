//! What a killed JVM leaves in its repository, and files cut off at any position.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_jfr::reader::EventFilter;
use plimsoll_profiles::jfr::{RecordingFiles, is_recording};

use crate::foreign::{record, scratch};
use crate::processes::{Jdk, Subject, jdks};

fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as i64
}

/// Whether the running JVM has written what the test needs. It flushes once a second if it gets CPU time.
fn has_flushed(folder: &Path, jdk: &Jdk) -> bool {
    let Ok(recording) = RecordingFiles::open(folder) else { return false };
    let counts = recording.for_each(&EventFilter::all(), |_| ()).counts;
    let seen = |name: &str| counts.get(name).copied().unwrap_or(0);
    seen("test.Everything") >= 200 && (!jdk.records_memory() || seen("jdk.NativeMemoryUsage") > 25)
}

#[test]
fn the_chunks_of_a_killed_jvm_are_read_to_the_end() {
    for jdk in jdks() {
        // Between two flushes, and after several.
        for (round, wait) in [300u64, 1650].into_iter().enumerate() {
            let folder = scratch(&format!("killed-{}-{round}", jdk.major));
            let repository = format!("-XX:FlightRecorderOptions=repository={}", folder.display());
            let flags = ["-Xmx256m", "-XX:NativeMemoryTracking=summary", "-Xlog:disable", &repository];
            let flags = [&flags[..], &["-XX:StartFlightRecording:settings=default"]].concat();
            let mut subject = Subject::start(&mut jdk.program("Recorded", &flags, &["60000"]));
            let began = Instant::now();
            while !has_flushed(&folder, &jdk) {
                assert!(began.elapsed() < Duration::from_secs(120), "JDK {}: a hang, not a speed", jdk.major);
                std::thread::sleep(Duration::from_millis(50));
            }
            std::thread::sleep(Duration::from_millis(wait));
            subject.child.kill().expect("it runs");
            let killed = now_ns();
            subject.child.wait().expect("it ended");

            assert!(is_recording(&folder));
            let recording = RecordingFiles::open(&folder).expect("a repository");
            let (mut last, mut frames, mut threads) = (i64::MIN, 0, 0);
            let summary = recording.for_each(&EventFilter::all(), |event| {
                last = last.max(event.time().unwrap_or(i64::MIN));
                frames += event.stack().map_or(0, |stack| stack.frames().filter(|f| f.method().is_some()).count());
                threads += usize::from(event.thread().is_some_and(|thread| thread.name().is_some()));
            });
            let seen = |name: &str| summary.counts.get(name).copied().unwrap_or(0);
            let chunks = &summary.chunks;
            eprintln!("JDK {}: {:?}, gaps {:?}", jdk.major, chunks, summary.flaws);
            assert!(!chunks.last().expect("a chunk").is_finished);
            assert!(seen("test.Everything") >= 200 && frames > 200 && threads > 200, "{:?}", summary.counts);
            assert!(!jdk.records_memory() || seen("jdk.NativeMemoryUsage") > 25, "{:?}", summary.counts);
            // The JVM flushes once a second; how long a flush takes depends on the machine.
            assert!(last < killed && killed - last < 120_000_000_000, "{} ms before", (killed - last) / 1_000_000);
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

fn events(path: &Path) -> (Vec<(u64, String)>, usize) {
    let mut events = vec![];
    let summary = RecordingFiles::open(path).expect("a file").for_each(&EventFilter::all(), |event| {
        events.push((event.offset, event.name().to_string()));
    });
    (events, summary.flaws.len())
}

#[test]
fn every_event_before_a_cut_is_read() {
    let folder = scratch("cut");
    for jdk in jdks() {
        let file = folder.join("whole.jfr");
        record(&jdk, &file, ",settings=default", &[], &["1500"]);
        let bytes = std::fs::read(&file).expect("recorded");
        let (whole, gaps) = events(&file);
        assert!(whole.len() > 300 && gaps == 0);
        // The metadata follows the first events. A cut before it makes the events unreadable.
        let metadata = u64::from_be_bytes(bytes[24..32].try_into().expect("8 bytes"));
        let cut_file = folder.join("cut.jfr");
        let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
        for step in 0..120u64 {
            let cut = (bytes.len() as u64 * step / 120).max(1) + step % 7;
            std::fs::write(&cut_file, &bytes[..cut as usize]).expect("scratch");
            let (read, gaps) = events(&cut_file);
            assert!(read[..] == whole[..read.len()], "cut at {cut}");
            // Only checkpoints and metadata follow the last event.
            let Some(next) = whole.get(read.len()) else { continue };
            if read.is_empty() {
                *kinds.entry("nothing").or_insert(0) += 1;
                assert!(gaps > 0 && cut < metadata + 300_000, "cut at {cut}, metadata at {metadata}: {gaps} gaps");
            } else {
                *kinds.entry("cut").or_insert(0) += 1;
                // The first event that was not read must cross the cut, apart from checkpoints and metadata before it.
                let after = whole.get(read.len() + 1).map_or(bytes.len() as u64, |event| event.0);
                assert!(after > cut || next.0 >= cut, "cut at {cut}, but {next:?} was whole");
            }
        }
        assert!(kinds.get("cut").is_some_and(|cut| *cut > 40) && kinds.contains_key("nothing"), "{kinds:?}");
    }
    let _ = std::fs::remove_dir_all(folder);
}
