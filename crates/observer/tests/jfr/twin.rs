//! The naive twin: compares the output of `jfr print --json` with the reader's, field by field.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use plimsoll_jfr::reader::{ChunkSummary, Event, EventFilter, Field, Summary, Unit, Value};
use plimsoll_profiles::jfr::RecordingFiles;
use serde_json::Value as Json;

use crate::processes::Jdk;

/// While the metadata stays the same, the JDK's reader converts a chunk's ticks with the header of an earlier chunk.
/// Our reader uses each chunk's own header, as JMC does. This returns the possible difference for each chunk. The wall
/// clock is adjusted while the ticks run on, and a busy machine may pause between a chunk's two clock readings.
fn skews(path: &Path, recording: &RecordingFiles) -> Vec<i128> {
    let bytes = std::fs::read(path).expect("a recording");
    let header = |offset: u64, field: usize| {
        let at = offset as usize + field;
        i128::from(u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes")))
    };
    let [wall_ns, ticks, ticks_a_second] = [32, 48, 56];
    let mut origins: Vec<i128> = vec![];
    let chunks = recording.chunks();
    let skew = |chunk: &ChunkSummary| {
        let since_ns = header(chunk.offset, ticks) * 1_000_000_000 / header(chunk.offset, ticks_a_second);
        origins.push(header(chunk.offset, wall_ns) - since_ns);
        // Each conversion rounds separately.
        let skews = origins.iter().map(|origin| (origin - origins[origins.len() - 1]).abs() + ROUNDING_NS);
        if origins.len() == 1 { 0 } else { skews.max().unwrap_or(0) }
    };
    chunks.iter().map(skew).collect()
}

const ROUNDING_NS: i128 = 1000;

/// Numbers of what was compared, so that a test can require a minimum.
#[derive(Debug, Default)]
pub struct Compared {
    pub events: BTreeMap<String, u64>,
    pub fields: u64,
    pub frames: u64,
    pub strings: u64,
    pub objects: u64,
    pub arrays: u64,
    pub times: u64,
    /// Constants that no checkpoint of the event's chunk defines; the JDK prints null for most of them.
    pub missing: u64,
    /// Possible difference of times in ticks in the current chunk.
    skew_ns: i128,
}

/// Events by type, in the JDK's order: chunk after chunk, each sorted by the events' ends.
fn printed(jdk: &Jdk, recording: &Path) -> BTreeMap<String, Vec<Json>> {
    let mut command = jdk.tool("jfr");
    command.args(["print", "--json", "--stack-depth", "64"]).arg(recording).env("TZ", "UTC");
    let output = command.output().expect("jfr");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Json = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut events: BTreeMap<String, Vec<Json>> = BTreeMap::new();
    for event in json["recording"]["events"].as_array().expect("events") {
        let name = event["type"].as_str().expect("a type").to_string();
        events.entry(name).or_default().push(event["values"].clone());
    }
    events
}

/// Compares all fields of all events of all types; the counts on both sides must be equal.
pub fn compare(jdk: &Jdk, path: &Path) -> (Compared, Summary) {
    let mut theirs = printed(jdk, path);
    let mut compared = Compared::default();
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    let recording = RecordingFiles::open(path).expect("a recording");
    let (positions, skews) = (positions(&recording, &mut theirs), skews(path, &recording));
    let summary = recording.read(&EventFilter::all(), &mut |event| {
        let position = next.entry(event.name().to_string()).or_insert(0);
        let printed_at = positions.get(event.name()).and_then(|positions| positions.get(*position));
        let their = printed_at.and_then(|at| theirs.get(event.name())?.get(*at));
        let their = their.unwrap_or_else(|| panic!("{} number {position} is ours alone", event.name()));
        *position += 1;
        compared.skew_ns = skews[event.chunk_number as usize];
        compare_event(event, their, &mut compared);
        ControlFlow::Continue(())
    });
    let counts: BTreeMap<String, usize> = theirs.iter().map(|(name, events)| (name.clone(), events.len())).collect();
    assert_eq!(counts, next);
    assert_eq!(compared.events, summary.counts);
    (compared, summary)
}

/// An event's chunk, start and length in ticks, and index of its type.
type EventPosition = (u32, Option<i64>, i64, usize);

/// The positions of a type's events when those of each chunk are sorted by start and length. The JDK's events are put
/// in the same order. Both sides have this order, because one header converts all ticks of a chunk.
fn positions(recording: &RecordingFiles, theirs: &mut BTreeMap<String, Vec<Json>>) -> BTreeMap<String, Vec<usize>> {
    let mut ends: BTreeMap<String, Vec<EventPosition>> = BTreeMap::new();
    recording.for_each(&EventFilter::all(), |event| {
        let ends = ends.entry(event.name().to_string()).or_default();
        let duration = event.i64("duration").unwrap_or(0);
        ends.push((event.chunk_number, event.i64("startTime"), duration, ends.len()));
    });
    for (name, theirs) in theirs {
        let mut rest = &mut theirs[..];
        for of_chunk in ends.get(name).map_or(&[][..], |ends| ends).chunk_by(|one, next| one.0 == next.0) {
            let (theirs, after) = rest.split_at_mut(of_chunk.len().min(rest.len()));
            theirs.sort_by_cached_key(|event| {
                (event["startTime"].as_str().and_then(moment), event["duration"].as_str().and_then(span).unwrap_or(0))
            });
            rest = after;
        }
    }
    let sorted = |mut ends: Vec<EventPosition>| {
        ends.sort();
        let mut positions = vec![0; ends.len()];
        ends.iter().enumerate().for_each(|(position, (.., number))| positions[*number] = position);
        positions
    };
    ends.into_iter().map(|(name, ends)| (name, sorted(ends))).collect()
}

fn compare_event(event: &Event<'_>, their: &Json, compared: &mut Compared) {
    *compared.events.entry(event.name().to_string()).or_insert(0) += 1;
    let their = their.as_object().expect("values");
    let mut seen = 0;
    for (field, value) in event.fields() {
        let context = || format!("{} at {}, field {}", event.name(), event.offset, field.name);
        let Some(expected) = their.get(&field.name) else { panic!("{}: ours alone", context()) };
        seen += 1;
        compared.fields += 1;
        same(event, field, &value, expected, compared, &context);
    }
    assert_eq!(seen, their.len(), "{} at {}: fields of theirs are missing: {their:?}", event.name(), event.offset);
}

fn same(
    event: &Event<'_>,
    field: &Field,
    ours: &Value<'_>,
    their: &Json,
    c: &mut Compared,
    context: &dyn Fn() -> String,
) {
    let wrong = |ours: &dyn std::fmt::Debug| panic!("{}: {ours:?} is {their}", context());
    match ours {
        Value::Null => {
            if !their.is_null() {
                wrong(&"null");
            }
        }
        Value::Missing(key) => {
            c.missing += 1;
            // An event that began before its chunk may refer to a stack that only the previous chunk has. The JDK's
            // reader still has that stack if the last event of this type referred to it too.
            if !their.is_null() && event.chunk_number == 0 {
                wrong(&format!("missing {key}"));
            }
        }
        Value::Boolean(value) => assert_eq!(Some(*value), their.as_bool(), "{}", context()),
        Value::Integer(value) => match field.unit {
            Unit::None | Unit::Bytes | Unit::Bits | Unit::Address | Unit::BytesPerSecond | Unit::BitsPerSecond => {
                integer(*value, field, their, context);
            }
            Unit::Hertz | Unit::Percentage => integer(*value, field, their, context),
            unit => {
                c.times += 1;
                let is_moment = matches!(unit, Unit::TicksSinceStart | Unit::EpochMillis | Unit::EpochNanos);
                let ns = event.in_nanoseconds(field, *value).expect("a time");
                let expected = their.as_str().and_then(|text| if is_moment { moment(text) } else { span(text) });
                // The JDK prints nothing for extreme values (Long.MIN_VALUE: no timeout).
                if expected.is_none() && (*value == i64::MIN || *value == i64::MAX || their.is_null()) {
                    return;
                }
                let expected = expected.unwrap_or_else(|| panic!("{}: {their} for {value}", context()));
                let is_in_range = i64::try_from(expected).is_ok();
                let slack = if unit == Unit::TicksSinceStart { c.skew_ns } else { 0 };
                let difference = (i128::from(ns) - expected).abs();
                assert!(!is_in_range || difference <= slack, "{}: {ns} is {their}", context());
            }
        },
        Value::Float(value) => match their.as_f64() {
            Some(their) => assert_eq!(*value, their as f32, "{}", context()),
            None => assert!(!value.is_finite(), "{}: {value} is {their}", context()),
        },
        Value::Double(value) => match their.as_f64() {
            Some(their) => assert_eq!(*value, their, "{}", context()),
            None => assert!(!value.is_finite(), "{}: {value} is {their}", context()),
        },
        Value::String(text) => {
            c.strings += 1;
            assert_eq!(Some(&**text), their.as_str(), "{}", context());
        }
        Value::Object(object) => {
            c.objects += 1;
            let Some(expected) = their.as_object() else { return wrong(&object.type_().name) };
            let mut seen = 0;
            for (inner, value) in object.fields() {
                let context = || format!("{}.{}", context(), inner.name);
                let Some(their) = expected.get(&inner.name) else { panic!("{}: ours alone: {expected:?}", context()) };
                seen += 1;
                same(event, inner, &value, their, c, &context);
            }
            assert_eq!(seen, expected.len(), "{}", context());
        }
        Value::Array(array) => {
            c.arrays += 1;
            let Some(expected) = their.as_array() else { return wrong(&"an array") };
            let mut seen = 0;
            for (index, value) in array.iter().enumerate() {
                let mut element = field.clone();
                element.array = false;
                same(event, &element, &value, &expected[index], c, &|| format!("{}[{index}]", context()));
                seen += 1;
            }
            assert_eq!((seen, array.length), (expected.len(), expected.len()), "{}", context());
            c.frames += u64::from(field.name == "frames") * seen as u64;
        }
    }
}

/// JSON represents a char as a string, and an unsigned value sometimes as negative.
fn integer(value: i64, field: &Field, their: &Json, context: &dyn Fn() -> String) {
    if let Some(text) = their.as_str() {
        let mut letters = text.chars();
        let letter = letters.next().map(|letter| i64::from(u32::from(letter)));
        // Not a number: the JDK prints values out of its annotation's range as words.
        assert!(letters.next().is_some() || letter == Some(value), "{}: {value} is {their}", context());
        return;
    }
    let number = their.as_i64().or_else(|| their.as_u64().map(|number| number as i64));
    let number = number.unwrap_or_else(|| panic!("{}: {their} for {value}", context()));
    let is_same = number == value || (field.unsigned && number as i32 == value as i32 && value >> 32 == 0);
    assert!(is_same, "{}: {value} is {their}", context());
}

/// Converts `2026-11-21T00:29:40.595708802Z` to nanoseconds since 1970 UTC.
pub fn moment(text: &str) -> Option<i128> {
    let (date, time) = text.split_once('T')?;
    // Years after 9999 have a sign.
    let date = date.strip_prefix('+').unwrap_or(date);
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i128>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    // Days from the civil date (eras of 400 years, March first).
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let of_era = shifted.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let time = time.trim_end_matches('Z').trim_end_matches("+00:00");
    let mut parts = time.split(':');
    let (hour, minute) = (parts.next()?.parse::<i128>().ok()?, parts.next()?.parse::<i128>().ok()?);
    let seconds = decimal(parts.next().unwrap_or("0"))?;
    Some((days * 86_400 + hour * 3600 + minute * 60) * 1_000_000_000 + seconds)
}

/// Converts `PT1H2M3.5S` to nanoseconds.
fn span(text: &str) -> Option<i128> {
    let mut rest = text.strip_prefix("PT")?;
    let mut total = 0;
    for (unit, seconds) in [('H', 3600), ('M', 60), ('S', 1)] {
        if let Some((number, after)) = rest.split_once(unit) {
            total += decimal(number)? * seconds;
            rest = after;
        }
    }
    Some(total)
}

fn decimal(text: &str) -> Option<i128> {
    let (digits, sign) = text.strip_prefix('-').map_or((text, 1), |digits| (digits, -1));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let nanos: i128 = format!("{fraction:0<9}").parse().ok()?;
    Some(sign * (whole.parse::<i128>().ok()? * 1_000_000_000 + nanos))
}
