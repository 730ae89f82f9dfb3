//! Damages recordings, and reads everything in them.

#[path = "../../../../fixtures/random.rs"]
mod random;

use plimsoll_jfr::reader::{Array, Event, EventFilter, Limits, Object, Value, chunks, read};
pub use random::Random;

/// Visits all values except circular ones, which are endless views.
fn look(value: &Value<'_>, depth: u32, seen: &mut u64) {
    *seen += 1;
    if depth == 0 || *seen > 400 {
        return;
    }
    match value {
        Value::Object(object) => look_object(object, depth, seen),
        Value::Array(array) => look_array(array, depth, seen),
        _ => {}
    }
}

fn look_object(object: &Object<'_>, depth: u32, seen: &mut u64) {
    object.fields().for_each(|(_, value)| look(&value, depth - 1, seen));
}

fn look_array(array: &Array<'_>, depth: u32, seen: &mut u64) {
    array.iter().take(1000).for_each(|value| look(&value, depth - 1, seen));
}

fn look_event(event: &Event<'_>, seen: &mut u64) {
    let mut of_event = 0;
    event.fields().for_each(|(_, value)| look(&value, 6, &mut of_event));
    let _ = (event.time(), event.duration(), event.thread().and_then(|thread| thread.name()));
    for frame in event.stack().into_iter().flat_map(|stack| stack.frames()).take(100) {
        let _ = (frame.class(), frame.method(), frame.line(), frame.kind());
    }
    *seen += of_event;
}

#[derive(Debug, Default)]
pub struct Outcomes {
    pub files: u64,
    pub events: u64,
    pub values: u64,
    pub with_flaws: u64,
    pub without_events: u64,
    pub unfinished: u64,
}

pub fn look_at(bytes: &[u8], outcomes: &mut Outcomes) {
    let length = bytes.len() as u64;
    let mut events = 0;
    let summary = read(bytes, Limits::default(), &EventFilter::all(), |event| {
        look_event(event, &mut outcomes.values);
        events += 1;
    });
    assert!(events <= length && summary.flaws.len() <= Limits::default().flaws);
    assert_eq!(events, summary.counts.values().sum::<u64>());
    let found =
        if outcomes.files.is_multiple_of(16) { chunks(bytes, Limits::default()) } else { summary.chunks.clone() };
    assert_eq!(found.len(), summary.chunks.len());
    outcomes.files += 1;
    outcomes.events += events;
    outcomes.with_flaws += u64::from(!summary.flaws.is_empty());
    outcomes.without_events += u64::from(events == 0);
    outcomes.unfinished += u64::from(found.iter().any(|chunk| !chunk.is_finished));
}

impl Random {
    /// Damages bytes within `range`: flips bits, overwrites bytes and integers, makes holes, repeats and cuts.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>, range: std::ops::Range<usize>) {
        for _ in 0..1 + self.index(5) {
            let end = range.end.min(bytes.len());
            if end <= range.start {
                return;
            }
            let at = range.start + self.index(end - range.start);
            match self.index(9) {
                0 => bytes[at] ^= 1 << self.index(8),
                1 => bytes[at] = self.index(256) as u8,
                2 => bytes[at..end].iter_mut().take(1 + self.index(10)).for_each(|byte| *byte = 0xff),
                3 => bytes[at..end].iter_mut().take(8).for_each(|byte| *byte = 0),
                4 => bytes[at] = bytes[at].wrapping_add(1),
                5 => bytes[at] = bytes[at].wrapping_sub(1),
                6 => drop(bytes.drain(at..(at + self.index(20)).min(end))),
                7 => {
                    let piece = bytes[at..(at + self.index(60)).min(end)].to_vec();
                    let to = range.start + self.index(end - range.start);
                    bytes.splice(to..to, piece);
                }
                _ if self.index(4) == 0 => bytes.truncate(at),
                _ => {
                    let from = range.start + self.index(end - range.start);
                    bytes[at] = bytes[from];
                }
            }
        }
    }
}
