//! Recordings whose moments lie at the ends of what an i64 holds: every view ends, and no difference overflows.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plimsoll_facts::ending::{How, Oom};
use plimsoll_facts::units::Bytes;
use plimsoll_jfr::reader::EventFilter;
use plimsoll_jfr::writer::{Frame, Recording, Stack};
use plimsoll_observer::recording::{History, Measure, Range, RecordedSites, Series, sites as sites_of};
use plimsoll_profiles::jfr::RecordingFiles as Recorded;
use plimsoll_report::jfr::{ChunkContents, DescribedTarget, Instant, Site, TABLE, TargetEnd, TargetEndKind};
use plimsoll_report::recording_chart::{Chart, write};
use plimsoll_report::{recording_diff, recording_json, recording_text};
use plimsoll_tracked::books::{Books, Figures};

const SECOND: i64 = 1_000_000_000;
/// Far above what any view needs, on any machine: only an endless loop takes that long.
const ENDLESS: Duration = Duration::from_secs(120);

fn history(from: i64, to: i64) -> History {
    let mut rss = Series::default();
    (0..40).for_each(|n| rss.push(from.saturating_add(to.saturating_sub(from) / 40 * n), u64::MAX >> n));
    let mut history = History::default();
    (history.begin_ns, history.from_ns, history.end_ns, history.to_ns) = (from, from, to, to);
    for measure in [Measure::Rss, Measure::HeapCommitted, Measure::Committed, Measure::Line] {
        let name = if matches!(measure, Measure::Committed | Measure::Line) { "Other" } else { "" };
        history.series.insert((measure, name.into()), rss.clone());
    }
    history
}

#[test]
fn every_view_ends_at_the_ends_of_time() {
    let (done, waited) = mpsc::channel();
    thread::spawn(move || {
        let ends = [0, 1, SECOND, i64::MAX / 2, i64::MAX - 100 * SECOND, i64::MAX - 1, i64::MAX];
        let mut views = 0;
        for from in ends {
            for to in ends {
                let history = history(from, to);
                for chart in Chart::ALL {
                    let mut svg = Vec::new();
                    if write(&mut svg, &history, *chart).expect("memory").is_ok() {
                        assert!(svg.ends_with(b"</svg>\n"));
                        views += 1;
                    }
                }
                recording_text::write(&mut Vec::new(), &history, true, "x.jfr").expect("memory");
                recording_json::write(&mut Vec::new(), &history).expect("memory");
                recording_diff::text(&mut Vec::new(), ["before", "after"], &history, &history).expect("memory");
            }
        }
        done.send(views).expect("the test waits");
    });
    let views = waited.recv_timeout(ENDLESS).expect("a view that doesn't end, or a panic");
    assert!(views >= 3 * 49, "only {views} charts were drawn");
}

/// The recorder's file was copied in part: the sites may have been behind the cut.
#[test]
fn a_recording_that_was_cut_before_its_sites_says_so() {
    let mut recording = Recording::new(Vec::new(), &TABLE);
    let books = Books::default();
    let stack = Stack { frames: vec![Frame { function: "f".into(), ..Frame::default() }], truncated: false };
    let figures = Figures { live: Bytes(70), ..Figures::default() };
    let sites = [Site { stack, category: "zlib".into(), figures, error: Bytes(0) }];
    let (mut written, target) = (ChunkContents::default(), DescribedTarget { mode: "exact", ..Default::default() });
    for full in [false, true] {
        let instant = Instant { books: Some(&books), sites: &sites, full, ..Instant::default() };
        let time = 1_700_000_000_250_000_000 + u64::from(full);
        recording.instant(time, |batch| instant.write(batch, &mut written, &target)).expect("memory");
    }
    let bytes = recording.finish().expect("memory");
    assert!(matches!(sites_of(&Recorded::of_bytes(bytes.clone()), None), RecordedSites::Of(_)));
    let mut at = 0;
    let is_site = EventFilter::named(&["plimsoll.Site"]);
    Recorded::of_bytes(bytes.clone()).for_each(&is_site, |event| at = event.offset as usize);
    let cut = Recorded::of_bytes(bytes[..at + 3].to_vec());
    let RecordedSites::None { mode, gaps, .. } = sites_of(&cut, None) else { panic!("it has sites") };
    assert_eq!((mode.as_str(), gaps.len()), ("exact", 1), "{gaps:?}");
    assert!(gaps[0].reason.contains("the last event is cut off"), "{gaps:?}");
}

/// A process without a segment leaves no last sign of life, so its end has the time of the instant that reports it.
#[test]
fn the_end_of_an_untracked_process_has_the_time_of_its_instant() {
    let mut recording = Recording::new(Vec::new(), &TABLE);
    let end = TargetEnd { how: TargetEndKind::Unknown, oom: Oom::Yes, last_sign_ns: None };
    let instant = Instant { end: Some(&end), ..Instant::default() };
    let missed = 1_700_000_000_250_000_000;
    let (mut written, target) = (ChunkContents::default(), DescribedTarget::default());
    recording.instant(missed, |batch| instant.write(batch, &mut written, &target)).expect("memory");
    let bytes = recording.finish().expect("memory");
    let history = History::read(&Recorded::of_bytes(bytes), Range::default()).expect("a recording");
    let (ending, time) = history.ending.expect("an end");
    assert!(ending.is_oom_kill());
    assert_eq!(time.map(|at| at / 1_000_000), Some(missed / 1_000_000));
}

/// `serve --history` puts the recordings of a program that was restarted into one directory, and `cat` makes one file.
#[test]
fn the_process_after_one_that_ended_lives() {
    let of = |pid: u32, times: &[u64], ends: bool| {
        let mut recording = Recording::new(Vec::new(), &TABLE);
        let end = TargetEnd { how: TargetEndKind::Unknown, oom: Oom::Unknown, last_sign_ns: None };
        let target = DescribedTarget { pid, ..DescribedTarget::default() };
        let mut written = ChunkContents::default();
        for (at, time) in times.iter().enumerate() {
            let is_last = at + 1 == times.len();
            let instant = Instant { end: Some(&end).filter(|_| ends && is_last), ..Instant::default() };
            recording.instant(*time, |batch| instant.write(batch, &mut written, &target)).expect("memory");
        }
        recording.finish().expect("memory")
    };
    let at = |second: u64| 1_700_000_000_250_000_000 + second * 1_000_000_000;
    let read = |bytes: Vec<u8>| History::read(&Recorded::of_bytes(bytes), Range::default()).expect("a recording");
    // In a container, the process has the same PID after each start.
    for next in [1, 8] {
        let bytes = [of(1, &[at(0), at(1)], true), of(next, &[at(5), at(6)], false)].concat();
        let history = read(bytes);
        assert_eq!((history.process.pid, history.ending), (Some(u64::from(next)), None));
    }
    // One instant describes the process and its end.
    let both = [of(1, &[at(0)], false), of(8, &[at(5)], true)].concat();
    assert!(read(both).ending.is_some());
}

/// A kill in the cgroup says nothing of a process that ended by itself, and makes no signal of an unknown end.
#[test]
fn a_kill_in_the_cgroup_is_the_processs_own_only_with_sigkill() {
    for (how, oom, read) in [
        (TargetEndKind::Code(0), Oom::InGroup, (How::Code(0), Oom::Unknown)),
        (TargetEndKind::Signal(15), Oom::InGroup, (How::Signal(15), Oom::Unknown)),
        (TargetEndKind::Signal(9), Oom::Yes, (How::Signal(9), Oom::Yes)),
        (TargetEndKind::Unknown, Oom::Yes, (How::Signal(9), Oom::Yes)),
        (TargetEndKind::Unknown, Oom::InGroup, (How::Unseen, Oom::InGroup)),
        (TargetEndKind::Killed, Oom::InGroup, (How::Unknown, Oom::InGroup)),
    ] {
        let end = TargetEnd { how, oom, last_sign_ns: None };
        let instant = Instant { end: Some(&end), ..Instant::default() };
        let mut recording = Recording::new(Vec::new(), &TABLE);
        let (mut written, target) = (ChunkContents::default(), DescribedTarget::default());
        recording.instant(1, |batch| instant.write(batch, &mut written, &target)).expect("memory");
        let bytes = recording.finish().expect("memory");
        let history = History::read(&Recorded::of_bytes(bytes), Range::default()).expect("a recording");
        let (ending, _) = history.ending.expect("an end");
        assert_eq!((ending.how, ending.oom), read, "{end:?}");
    }
}
