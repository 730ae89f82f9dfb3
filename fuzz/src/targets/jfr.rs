//! Flight recordings: every view of `report` and `diff`.

use plimsoll_jfr::reader::EventFilter;
use plimsoll_observer::recording::{History, Range, RecordedSites, sites, sites_over_time};
use plimsoll_profiles::allocation::{self, Choice};
use plimsoll_profiles::jfr::RecordingFiles;
use plimsoll_report::recording_chart::{Chart, write as chart};
use plimsoll_report::{allocation as allocations, page, recording_diff, recording_json, recording_text};

use crate::views::{self, is_json, is_page, is_plain, is_xml, written};

pub fn run(bytes: &[u8]) {
    let file = RecordingFiles::of_bytes(bytes.to_vec());
    if let Ok(history) = History::read(&file, Range::default()) {
        of_history(&history);
        let mut page = page::of_recording(&history);
        if let Some(sites) = sites_over_time(&file, (history.from_ns, history.to_ns), 5) {
            assert!(sites.times_ns.is_sorted() && sites.times_ns.len() <= 5);
            page::add_sites(&mut page, sites);
        }
        is_page(&page);
    }
    let of = allocation::read(&file, Choice::default());
    if let Ok(view) = plimsoll_report::profile::View::new(&of.profile, None, plimsoll_profiles::profile::Weight::Bytes)
    {
        is_plain(&written(|out| allocations::write(out, &of, &view, plimsoll_profiles::profile::GroupBy::Site, false)));
        is_json(&written(|out| allocations::write_json(out, &of, &view)));
    }
    views::all(&of.profile);
    if let RecordedSites::Of(profile) = sites(&file, None) {
        views::all(&profile);
    }
    let mut fields = 0u64;
    file.for_each(&EventFilter::all(), |event| {
        event.time();
        event.duration();
        fields += event.fields().count() as u64;
        fields += event.stack().map_or(0, |stack| stack.frames().count() as u64);
    });
}

fn of_history(history: &History) {
    assert!(0 <= history.from_ns && 0 <= history.begin_ns);
    for series in history.series.values() {
        let points = series.points();
        assert!(points.is_sorted_by_key(|point| point.begin_ns), "a time axis that isn't sorted");
        assert!(points.iter().all(|point| point.begin_ns <= point.end_ns && point.min <= point.max && point.count > 0));
    }
    for all in [false, true] {
        is_plain(&written(|out| recording_text::write(out, history, all, "x.jfr")));
    }
    is_json(&written(|out| recording_json::write(out, history)));
    is_plain(&written(|out| recording_diff::text(out, ["before", "after"], history, history)));
    is_json(&written(|out| recording_json::write_diff(out, history, history, None)));
    for kind in Chart::ALL {
        let mut svg = Vec::new();
        if chart(&mut svg, history, *kind).expect("memory").is_ok() {
            is_xml(&svg);
            let text = String::from_utf8_lossy(&svg);
            assert!(!text.contains("NaN") && !text.contains("inf"), "a coordinate that isn't a number");
        }
    }
}
