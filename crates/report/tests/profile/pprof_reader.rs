//! A reader of pprof files that shares nothing with the writer. Any message becomes a list of (field, value), and the
//! fields are looked up by the numbers of profile.proto.

use std::io::Read;

#[derive(Clone, Debug)]
pub enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug, Default)]
pub struct Message(pub Vec<(u64, Field)>);

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f).checked_shl(shift).expect("ten bytes at most");
        if byte < 0x80 {
            return value;
        }
    }
    panic!("a varint without an end");
}

impl Message {
    fn parse(bytes: &[u8]) -> Message {
        let (mut fields, mut at) = (vec![], 0);
        while at < bytes.len() {
            let tag = varint(bytes, &mut at);
            let value = match tag & 7 {
                0 => Field::Number(varint(bytes, &mut at)),
                2 => {
                    let length = varint(bytes, &mut at) as usize;
                    at += length;
                    Field::Bytes(bytes[at - length..at].to_vec())
                }
                other => panic!("wire type {other} isn't in profile.proto"),
            };
            fields.push((tag >> 3, value));
        }
        Message(fields)
    }

    pub fn number(&self, field: u64) -> u64 {
        let found = self.0.iter().rev().find(|(f, _)| *f == field);
        found.map_or(0, |(_, value)| match value {
            Field::Number(n) => *n,
            Field::Bytes(_) => panic!("field {field} is not a number"),
        })
    }

    /// A packed field's numbers.
    pub fn numbers(&self, field: u64) -> Vec<u64> {
        let mut numbers = vec![];
        for (_, value) in self.0.iter().filter(|(f, _)| *f == field) {
            match value {
                Field::Number(n) => numbers.push(*n),
                Field::Bytes(bytes) => {
                    let mut at = 0;
                    while at < bytes.len() {
                        numbers.push(varint(bytes, &mut at));
                    }
                }
            }
        }
        numbers
    }

    pub fn all(&self, field: u64) -> Vec<Message> {
        self.bytes(field).iter().map(|b| Message::parse(b)).collect()
    }

    pub fn bytes(&self, field: u64) -> Vec<Vec<u8>> {
        let found = self.0.iter().filter(|(f, _)| *f == field);
        found
            .map(|(_, value)| match value {
                Field::Bytes(bytes) => bytes.clone(),
                Field::Number(_) => panic!("field {field} is not a message"),
            })
            .collect()
    }
}

/// One sample: functions innermost first with their lines, values, labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    pub frames: Vec<(String, i64)>,
    pub values: Vec<i64>,
    pub labels: Vec<(String, String)>,
}

#[derive(Debug)]
pub struct Pprof {
    pub types: Vec<(String, String)>,
    pub default_type: String,
    pub samples: Vec<Sample>,
    /// Path, build id, start, limit, has functions.
    pub mappings: Vec<(String, String, u64, u64, bool)>,
    pub locations: Vec<Message>,
    pub time_ns: u64,
}

pub fn read(gzipped: &[u8]) -> Pprof {
    let mut raw = vec![];
    flate2::read::GzDecoder::new(gzipped).read_to_end(&mut raw).expect("gzip");
    let message = Message::parse(&raw);
    let strings: Vec<String> = message.bytes(6).into_iter().map(|b| String::from_utf8(b).expect("UTF-8")).collect();
    assert_eq!(strings[0], "", "entry 0 of the string table");
    let text = |at: u64| strings[at as usize].clone();
    let functions = message.all(5);
    let function = |id: u64| text(functions.iter().find(|f| f.number(1) == id).expect("a function").number(2));
    let locations = message.all(4);
    let mappings = message.all(3);
    for (of, all) in [("function", &functions), ("location", &locations), ("mapping", &mappings)] {
        let mut ids: Vec<u64> = all.iter().map(|m| m.number(1)).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|w| w[0] < w[1]) && ids.first() != Some(&0), "{of} ids are unique and not 0");
    }
    let frames = |id: u64| -> Vec<(String, i64)> {
        let location = locations.iter().find(|l| l.number(1) == id).expect("a location");
        let mapping = location.number(2);
        assert!(mapping == 0 || mappings.iter().any(|m| m.number(1) == mapping), "mapping {mapping}");
        let lines = location.all(4);
        if lines.is_empty() {
            vec![(format!("{:#x}", location.number(3)), 0)]
        } else {
            lines.iter().map(|l| (function(l.number(1)), l.number(2) as i64)).collect()
        }
    };
    let samples = message.all(2).into_iter().map(|s| Sample {
        frames: s.numbers(1).into_iter().flat_map(frames).collect(),
        values: s.numbers(2).into_iter().map(|v| v as i64).collect(),
        labels: s.all(3).iter().map(|l| (text(l.number(1)), text(l.number(2)))).collect(),
    });
    Pprof {
        types: message.all(1).iter().map(|t| (text(t.number(1)), text(t.number(2)))).collect(),
        default_type: text(message.number(14)),
        samples: samples.collect(),
        mappings: mappings
            .iter()
            .map(|m| (text(m.number(5)), text(m.number(6)), m.number(2), m.number(3), m.number(7) != 0))
            .collect(),
        locations: locations.clone(),
        time_ns: message.number(9),
    }
}
