//! Reads a recording for `make bench`. `skip` steps over every event, `memory` visits the events that `report` needs,
//! `fields` decodes every field, and `stacks` also decodes the names of every frame. Prints events and bytes per
//! second.

use std::path::Path;
use std::time::Instant;

use plimsoll_jfr::reader::{EventFilter, Value};
use plimsoll_profiles::jfr::RecordingFiles;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, file] = arguments.as_slice() else { panic!("jfr_read skip|memory|fields|stacks FILE") };
    let begin = Instant::now();
    let recording = RecordingFiles::open(Path::new(file)).expect("a recording");
    let wanted = match mode.as_str() {
        "skip" => EventFilter::named(&[]),
        "memory" => EventFilter::named(&["jdk.NativeMemoryUsage", "jdk.ResidentSetSize", "jdk.GCHeapSummary"]),
        _ => EventFilter::all(),
    };
    let (mut fields, mut letters) = (0u64, 0usize);
    let summary = recording.for_each(&wanted, |event| {
        for (_, value) in event.fields() {
            fields += 1;
            if let Value::String(text) = value {
                letters += text.len();
            }
        }
        if mode == "stacks" {
            for frame in event.stack().into_iter().flat_map(|stack| stack.frames()) {
                fields += 1;
                letters += frame.class().map_or(0, |name| name.len()) + frame.method().map_or(0, |name| name.len());
            }
        }
    });
    let (bytes, seconds) = (summary.chunks.iter().map(|c| c.bytes).sum::<u64>(), begin.elapsed().as_secs_f64());
    let events: u64 = summary.counts.values().sum();
    let rate = bytes as f64 / seconds / 1048576.0;
    println!(
        "{events} events, {fields} values, {letters} letters, {} gaps, {seconds:.2} s, {rate:.0} MiB/s",
        summary.flaws.len()
    );
}
