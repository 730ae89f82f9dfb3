//! Reads a chunk that uses the whole format, compressed and uncompressed, and checks every value.

use std::ops::ControlFlow;

use plimsoll_jfr::reader::{EventFilter, Input, Limits, Reader, Unit, Value, read};

use crate::chunk::{EVENTS, chunk};

#[test]
fn every_kind_of_field_is_read_compressed_and_not() {
    for compressed in [true, false] {
        let recording = [chunk(compressed), chunk(compressed)].concat();
        let mut number = 0;
        let summary = read(&recording, Limits::default(), &EventFilter::named(&["test.Small"]), |event| {
            assert_eq!(event.time(), Some(1_795_000_000_000_000_000 + number % EVENTS as i64));
            assert_eq!(event.type_().annotation("jdk.jfr.Experimental"), Some(""));
            assert_eq!(event.thread().and_then(|thread| thread.name()).as_deref(), Some("main"));
            let stack = event.stack().expect("a stack");
            let frames: Vec<_> = stack
                .frames()
                .map(|frame| (frame.class().unwrap_or_default(), frame.method().unwrap_or_default(), frame.line()))
                .collect();
            assert!(stack.is_truncated());
            assert_eq!(frames, vec![("java.lang.Object".into(), "größer".into(), Some(42)); 2]);
            // A class that is its own loader: a view of any depth works.
            let class = stack.frames().next().map(|_| event.object("inline.method.type.loader.loader.loader"));
            assert_eq!(class.flatten().and_then(|class| class.string("name")).as_deref(), Some("java/lang/Object"));
            assert!(matches!(event.value("yes"), Value::Boolean(true)));
            let integers = ["small", "shorter", "letter", "number", "positive", "bytes"].map(|name| event.i64(name));
            let expected = [-128, -2, i64::from(b'x'), -70_000, 0xffff_ffff, i64::MAX].map(Some);
            assert_eq!(integers, expected);
            assert_eq!((event.f64("ratio"), event.f64("exact")), (Some(0.5), Some(-0.25)));
            let texts = ["utf8", "utf16", "latin1", "pooled", "null", "empty"].map(|name| event.string(name));
            let expected = [Some("✓ plain"), Some("🚢"), Some("aé"), Some("from the pool"), None, Some("")];
            assert_eq!(texts.each_ref().map(|text| text.as_deref()), expected);
            let array = |name| match event.value(name) {
                Value::Array(array) => array.iter().collect::<Vec<_>>(),
                _ => panic!("{name} is an array"),
            };
            assert_eq!(array("numbers").iter().map(Value::as_i64).collect::<Vec<_>>(), [1, -1, 300].map(Some));
            let strings =
                |name| array(name).into_iter().map(|text| text.into_string().expect("text")).collect::<Vec<_>>();
            assert_eq!(
                (strings("texts"), strings("symbols")),
                (vec!["one".into(), "two".into()], vec!["größer".into(), "java/lang/Object".into()])
            );
            assert!(matches!(event.value("lost"), Value::Missing(99)));
            let bytes = &event.type_().fields[event.type_().field("bytes").expect("it")];
            assert_eq!((bytes.unit, bytes.unsigned), (Unit::Bytes, false));
            assert_eq!(event.u64("inline.lineNumber"), Some(12));
            number += 1;
        });
        assert_eq!((summary.flaws, number), (vec![], 2 * EVENTS as i64));
        assert_eq!(summary.counts["test.Unwanted"], 2 * EVENTS as u64);
        assert_eq!(summary.chunks.len(), 2);
    }
}

#[test]
fn a_filter_bounds_the_times_and_a_break_ends_the_reading() {
    let recording = chunk(true);
    let start = 1_795_000_000_000_000_000;
    let within = |from, to| {
        let mut seen = 0;
        let wanted = EventFilter::named(&["test.Small"]).between(from, to);
        read(&recording, Limits::default(), &wanted, |_| seen += 1);
        seen
    };
    assert_eq!(within(None, None), 3);
    assert_eq!(within(Some(start + 1), None), 2);
    assert_eq!(within(Some(start + 1), Some(start + 1)), 1);
    assert_eq!(within(None, Some(start - 1)), 0);
    assert_eq!(within(Some(start + 6_000_000_000), None), 0);
    let mut seen = 0;
    let end = Reader::new(Limits::default()).read(Input::of(&recording.as_slice()), &EventFilter::all(), &mut |_| {
        seen += 1;
        ControlFlow::Break(())
    });
    assert!(end.is_break());
    assert_eq!(seen, 1);
}
