//! A chunk of two kilobytes that uses the whole format, compressed or not, and the values that a reader must find.

pub struct Out {
    pub bytes: Vec<u8>,
    pub compressed: bool,
}

impl Out {
    pub fn integer(&mut self, value: i64, width: usize) {
        if !self.compressed {
            return self.bytes.extend_from_slice(&value.to_be_bytes()[8 - width..]);
        }
        let mut rest = if width == 8 { value as u64 } else { value as u64 & ((1 << (8 * width)) - 1) };
        for _ in 0..8 {
            if rest < 0x80 {
                return self.bytes.push(rest as u8);
            }
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
    }

    pub fn int(&mut self, value: i64) {
        self.integer(value, 4);
    }

    pub fn long(&mut self, value: i64) {
        self.integer(value, 8);
    }

    pub fn utf8(&mut self, text: &str) {
        self.bytes.push(3);
        self.int(text.len() as i64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn utf16(&mut self, text: &str) {
        self.bytes.push(4);
        let units: Vec<u16> = text.encode_utf16().collect();
        self.int(units.len() as i64);
        units.iter().for_each(|unit| self.integer(i64::from(*unit), 2));
    }

    /// Writes an event and returns its offset. Its size comes first: a compressed int that is padded to 4 bytes, as
    /// HotSpot writes it, or 4 bytes big-endian.
    pub fn event(&mut self, id: i64, fill: impl FnOnce(&mut Out)) -> u64 {
        let mut body = Out { bytes: vec![], compressed: self.compressed };
        body.long(id);
        fill(&mut body);
        let begin = self.bytes.len() as u64;
        let size = body.bytes.len() as u64 + 4;
        if self.compressed {
            let digit = |shift: u32| (size >> shift) as u8 & 0x7f;
            self.bytes.extend([digit(0) | 0x80, digit(7) | 0x80, digit(14) | 0x80, digit(21)]);
        } else {
            self.bytes.extend_from_slice(&(size as u32).to_be_bytes());
        }
        self.bytes.extend(body.bytes);
        begin
    }
}

/// An element `name(key=value,…)[children]`.
struct Element(&'static str, Vec<(&'static str, String)>, Vec<Element>);

fn class(id: u32, name: &str, more: &[(&'static str, &str)], fields: Vec<Element>) -> Element {
    let mut attributes = vec![("id", id.to_string()), ("name", name.to_string())];
    attributes.extend(more.iter().map(|(key, value)| (*key, value.to_string())));
    Element("class", attributes, fields)
}

fn field(name: &str, class: u32, more: &[(&'static str, &str)], annotations: Vec<Element>) -> Element {
    let mut attributes = vec![("name", name.to_string()), ("class", class.to_string())];
    attributes.extend(more.iter().map(|(key, value)| (*key, value.to_string())));
    Element("field", attributes, annotations)
}

fn annotation(class: u32, value: &str) -> Element {
    Element("annotation", vec![("class", class.to_string()), ("value", value.to_string())], vec![])
}

const NAMES: [(u32, &str); 9] = [
    (4, "boolean"),
    (5, "byte"),
    (6, "short"),
    (7, "char"),
    (8, "int"),
    (9, "long"),
    (10, "float"),
    (11, "double"),
    (12, "java.lang.String"),
];

fn types() -> Vec<Element> {
    let constant = [("constantPool", "true")];
    let array = [("dimension", "1")];
    let mut types: Vec<Element> = NAMES.iter().map(|(id, name)| class(*id, name, &[], vec![])).collect();
    types.extend([
        class(20, "jdk.jfr.Timestamp", &[("superType", "java.lang.annotation.Annotation")], vec![]),
        class(21, "jdk.jfr.DataAmount", &[("superType", "java.lang.annotation.Annotation")], vec![]),
        class(22, "jdk.jfr.Unsigned", &[("superType", "java.lang.annotation.Annotation")], vec![]),
        class(23, "jdk.jfr.Experimental", &[("superType", "java.lang.annotation.Annotation")], vec![]),
        class(30, "jdk.types.Symbol", &[("simpleType", "true")], vec![field("string", 12, &[], vec![])]),
        class(
            31,
            "jdk.types.StackFrame",
            &[],
            vec![field("method", 33, &constant, vec![]), field("lineNumber", 8, &[], vec![])],
        ),
        class(
            32,
            "jdk.types.StackTrace",
            &[],
            vec![field("truncated", 4, &[], vec![]), field("frames", 31, &array, vec![])],
        ),
        class(
            33,
            "jdk.types.Method",
            &[],
            vec![field("type", 34, &constant, vec![]), field("name", 30, &constant, vec![])],
        ),
        // The class's loader is the class itself.
        class(
            34,
            "java.lang.Class",
            &[],
            vec![field("loader", 34, &constant, vec![]), field("name", 30, &constant, vec![])],
        ),
        class(
            35,
            "java.lang.Thread",
            &[],
            vec![field("osName", 12, &[], vec![]), field("javaThreadId", 9, &[], vec![])],
        ),
        class(
            40,
            "test.Small",
            &[("superType", "jdk.jfr.Event")],
            vec![
                field("startTime", 9, &[], vec![annotation(20, "TICKS")]),
                field("eventThread", 35, &constant, vec![]),
                field("stackTrace", 32, &constant, vec![]),
                field("yes", 4, &[], vec![]),
                field("small", 5, &[], vec![]),
                field("shorter", 6, &[], vec![]),
                field("letter", 7, &[], vec![]),
                field("number", 8, &[], vec![]),
                field("positive", 8, &[], vec![annotation(22, "")]),
                field("bytes", 9, &[], vec![annotation(21, "BYTES")]),
                field("ratio", 10, &[], vec![]),
                field("exact", 11, &[], vec![]),
                field("utf8", 12, &[], vec![]),
                field("utf16", 12, &[], vec![]),
                field("latin1", 12, &[], vec![]),
                field("pooled", 12, &[], vec![]),
                field("null", 12, &[], vec![]),
                field("empty", 12, &[], vec![]),
                field("numbers", 8, &array, vec![]),
                field("texts", 12, &array, vec![]),
                field("symbols", 30, &[("dimension", "1"), ("constantPool", "true")], vec![]),
                field("inline", 31, &[], vec![]),
                field("lost", 34, &constant, vec![]),
                annotation(23, ""),
            ],
        ),
        class(41, "test.Unwanted", &[("superType", "jdk.jfr.Event")], vec![field("startTime", 9, &[], vec![])]),
    ]);
    types
}

fn write_element(out: &mut Out, element: &Element, strings: &mut Vec<String>) {
    let mut index = |out: &mut Out, text: &str| {
        let at = strings.iter().position(|one| one == text).unwrap_or_else(|| {
            strings.push(text.to_string());
            strings.len() - 1
        });
        out.int(at as i64);
    };
    index(out, element.0);
    out.int(element.1.len() as i64);
    for (key, value) in &element.1 {
        index(out, key);
        index(out, value);
    }
    out.int(element.2.len() as i64);
    element.2.iter().for_each(|child| write_element(out, child, strings));
}

pub const EVENTS: usize = 3;

pub fn chunk(compressed: bool) -> Vec<u8> {
    let mut out = Out { bytes: vec![0; 68], compressed };
    let metadata = write_metadata(&mut out, types());
    let first = write_checkpoint(&mut out, 0, 3, texts_and_threads);
    for number in 0..EVENTS as i64 {
        out.event(41, |out| out.long(number));
        out.event(40, |out| small_event(out, number));
    }
    let here = out.bytes.len() as i64;
    let second = write_checkpoint(&mut out, first as i64 - here, 3, stacks_and_methods);
    let mut header = Vec::with_capacity(68);
    header.extend(b"FLR\0\0\x02\0\x01");
    let start = 1_795_000_000_000_000_000u64;
    for value in [out.bytes.len() as u64, second, metadata, start, 5_000_000_000, 1000, 1_000_000_000] {
        header.extend(value.to_be_bytes());
    }
    header.extend([0, 0, 0, if compressed { 3 } else { 2 }]);
    out.bytes[..68].copy_from_slice(&header);
    out.bytes
}

/// Returns the offset of the metadata event.
fn write_metadata(out: &mut Out, types: Vec<Element>) -> u64 {
    out.event(0, |out| {
        (0..3).for_each(|value| out.long(value));
        let root = Element("root", vec![], vec![Element("metadata", vec![], types)]);
        let (mut strings, mut elements) = (vec![], Out { bytes: vec![], compressed: out.compressed });
        write_element(&mut elements, &root, &mut strings);
        out.int(strings.len() as i64);
        strings.iter().for_each(|text| out.utf8(text));
        out.bytes.extend(elements.bytes);
    })
}

/// Returns the offset of the checkpoint. `delta` leads to the one before it.
fn write_checkpoint(out: &mut Out, delta: i64, pools: i64, fill: fn(&mut Out)) -> u64 {
    out.event(1, |out| {
        [0, 0, delta].iter().for_each(|value| out.long(*value));
        out.bytes.push(1);
        out.int(pools);
        fill(out);
    })
}

fn pool(out: &mut Out, id: i64, count: i64) {
    out.long(id);
    out.int(count);
}

fn texts_and_threads(out: &mut Out) {
    pool(out, 30, 2);
    out.long(1);
    out.utf8("java/lang/Object");
    out.long(2);
    out.utf16("größer");
    pool(out, 12, 1);
    out.long(7);
    out.utf8("from the pool");
    pool(out, 35, 1);
    out.long(11);
    out.utf8("main");
    out.long(1);
}

fn stacks_and_methods(out: &mut Out) {
    pool(out, 32, 1);
    out.long(5);
    out.bytes.push(1);
    out.int(2);
    [6, 6].iter().for_each(|method| {
        out.long(*method);
        out.int(42);
    });
    pool(out, 33, 1);
    out.long(6);
    out.long(8);
    out.long(2);
    pool(out, 34, 1);
    out.long(8);
    out.long(8);
    out.long(1);
}

/// An event with a value of every kind.
fn small_event(out: &mut Out, number: i64) {
    out.long(1000 + number);
    out.long(11);
    out.long(5);
    out.bytes.extend([1, 0x80]);
    out.integer(-2, 2);
    out.integer(i64::from(b'x'), 2);
    out.int(-70_000);
    out.int(-1);
    out.long(i64::MAX);
    out.bytes.extend(0.5f32.to_be_bytes());
    out.bytes.extend((-0.25f64).to_be_bytes());
    out.utf8("✓ plain");
    out.utf16("🚢");
    out.bytes.push(5);
    out.int(2);
    out.bytes.extend([b'a', 0xe9]);
    out.bytes.push(2);
    out.long(7);
    out.bytes.extend([0, 1]);
    out.int(3);
    [1, -1, 300].iter().for_each(|value| out.int(*value));
    out.int(2);
    out.utf8("one");
    out.utf8("two");
    out.int(2);
    out.long(2);
    out.long(1);
    out.long(6);
    out.int(12);
    out.long(99);
}

/// A chunk with one event type per entry of `types` (ids from 50 on: name, then fields of type long or, with a leading
/// `$`, String). `fill` writes the events.
pub fn chunk_of(types: &[(&str, &[&str])], start_ns: u64, end_ns: u64, fill: impl FnOnce(&mut Out)) -> Vec<u8> {
    let mut classes: Vec<Element> = NAMES.iter().map(|(id, name)| class(*id, name, &[], vec![])).collect();
    classes.push(class(20, "jdk.jfr.Timestamp", &[], vec![]));
    for (number, (name, fields)) in types.iter().enumerate() {
        let mut all = vec![field("startTime", 9, &[], vec![annotation(20, "TICKS")])];
        all.extend(fields.iter().map(|name| match name.strip_prefix('$') {
            Some(name) => field(name, 12, &[], vec![]),
            None => field(name, 9, &[], vec![]),
        }));
        classes.push(class(50 + number as u32, name, &[("superType", "jdk.jfr.Event")], all));
    }
    let mut out = Out { bytes: vec![0; 68], compressed: true };
    let metadata = write_metadata(&mut out, classes);
    fill(&mut out);
    let checkpoint = out.event(1, |out| {
        [0, 0, 0].iter().for_each(|value| out.long(*value));
        out.bytes.push(0);
        out.int(0);
    });
    let mut header = b"FLR\0\0\x02\0\x01".to_vec();
    for value in [out.bytes.len() as u64, checkpoint, metadata, start_ns, end_ns - start_ns, 0, 1_000_000_000] {
        header.extend(value.to_be_bytes());
    }
    header.extend([0, 0, 0, 3]);
    out.bytes[..68].copy_from_slice(&header);
    out.bytes
}
