//! Writes pprof: a gzipped protocol buffer that `go tool pprof`, Pyroscope and Parca read.
//!
//! ```text
//! Profile   1 sample_type*  2 sample*  3 mapping*  4 location*  5 function*  6 string_table*  9 time_nanos
//!           13 comment*  14 default_sample_type            (numbers index the string table, whose entry 0 is "")
//! ValueType 1 type  2 unit
//! Sample    1 location_id*, innermost first  2 value*, one for each sample type  3 label*
//! Label     1 key  2 str
//! Mapping   1 id  2 start  3 limit  5 filename  6 build_id  7 has_functions  8 has_filenames  9 has_line_numbers
//!           10 has_inline_frames
//! Location  1 id  2 mapping_id  3 address  4 line*, inlined functions first
//! Line      1 function_id  2 line
//! Function  1 id  2 name  3 system_name  4 filename
//! ```
//! A field is its number and wire type in one varint (0: varint, 2: length and bytes); fields that are 0 are left out.
//! Ids begin at 1. Inlined frames share one location with the function they were compiled into.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use plimsoll_profiles::profile::{Column, Entry, Frame, FrameId, Labels, Module, Profile, Unit, Value};

use super::{Exporter, View, changes};
use crate::words::printable;

pub const EXPORTER: Exporter = Exporter {
    view: |out, view, _| write(out, view),
    diff: |out, diff, _| write(out, &View { profile: &changes(diff), column: 2, focus: None }),
    is_binary: true,
    keeps_wrappers: true,
    is_of_stacks: true,
    has_closing_lines: false,
};

/// Writes all columns; a reader shows the view's column first.
pub fn write(out: &mut dyn Write, view: &View) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&message(view))?;
    gzip.finish()?.flush()
}

/// `live_space` in bytes, `live_objects` by count, as other heap profilers name them. Their name for cumulative is
/// `alloc`.
pub(crate) fn sample_type(column: &Column) -> (String, &'static str) {
    let measure = if column.measure == "cumulative" { "alloc" } else { column.measure };
    match column.unit {
        Unit::Bytes => (format!("{measure}_space"), "bytes"),
        Unit::Count if matches!(column.noun, "" | "block") => (format!("{measure}_objects"), "count"),
        Unit::Count => (format!("{measure}_{}s", column.noun), "count"),
    }
}

fn message(view: &View) -> Vec<u8> {
    let profile = view.profile;
    let mut writer = Writer::new(profile);
    for column in &profile.columns {
        let (name, unit) = sample_type(column);
        let (name, unit) = (writer.text(&name), writer.text(unit));
        writer.out.nested(1, |m| m.number(1, name).number(2, unit));
    }
    for (Entry { stack, labels }, values) in profile.entries() {
        writer.sample(profile.frames_of(stack), labels, values);
    }
    let modules: Vec<Module> = profile.modules().cloned().collect();
    for (at, module) in modules.iter().enumerate() {
        writer.mapping(at, module);
    }
    let (comment, default) = (writer.text(&printable(&profile.title)), writer.text(&sample_type(view.of()).0));
    let mut out = writer.out;
    for (_, location) in writer.locations {
        out.bytes(4, &location);
    }
    for function in writer.functions {
        out.bytes(5, &function);
    }
    for text in &writer.strings {
        out.bytes(6, text.as_bytes());
    }
    out.number(9, profile.time_ns).number(13, comment).number(14, default);
    out.0
}

struct Writer<'a> {
    profile: &'a Profile,
    out: Message,
    strings: Vec<String>,
    string_of: HashMap<String, u64>,
    functions: Vec<Vec<u8>>,
    function_of: HashMap<(String, String), u64>,
    /// Each encoded location with its frames.
    locations: Vec<(Box<[FrameId]>, Vec<u8>)>,
    location_of: HashMap<Box<[FrameId]>, u64>,
    /// Whether the frames of each module have names, lines and so on, by the module's number, in the order of the flags
    /// of `Mapping`.
    known: Vec<Option<[bool; 4]>>,
}

impl<'a> Writer<'a> {
    fn new(profile: &'a Profile) -> Writer<'a> {
        Writer {
            profile,
            out: Message::default(),
            strings: vec![String::new()],
            string_of: HashMap::from([(String::new(), 0)]),
            functions: vec![],
            function_of: HashMap::new(),
            locations: vec![],
            location_of: HashMap::new(),
            known: vec![None; profile.modules().count()],
        }
    }

    fn text(&mut self, text: &str) -> u64 {
        if let Some(at) = self.string_of.get(text) {
            return *at;
        }
        self.strings.push(text.into());
        let at = (self.strings.len() - 1) as u64;
        self.string_of.insert(text.into(), at);
        at
    }

    fn sample(&mut self, frames: &[FrameId], labels: Labels, values: &[Value]) {
        let mut locations = Message::default();
        super::locations(self.profile, frames).for_each(|frames| locations.varint(self.location(frames)));
        let mut amounts = Message::default();
        values.iter().for_each(|v| amounts.varint(v.amount as u64));
        let named = [("category", labels.category), ("thread", labels.thread), ("class", labels.class)];
        let labels: Vec<(u64, u64)> = named
            .into_iter()
            .filter_map(|(key, name)| Some((self.text(key), self.text(&printable(self.profile.name_at(name?))))))
            .collect();
        self.out.nested(2, |m| {
            m.bytes(1, &locations.0).bytes(2, &amounts.0);
            labels.iter().fold(m, |m, (key, name)| m.nested(3, |m| m.number(1, *key).number(2, *name)))
        });
    }

    /// The id of a location: all of `frames` but the last are inlined into the last.
    fn location(&mut self, frames: &[FrameId]) -> u64 {
        if let Some(id) = self.location_of.get(frames) {
            return *id;
        }
        let id = self.locations.len() as u64 + 1;
        let mut message = Message::default();
        message.number(1, id);
        if let Some(outer) = frames.last().map(|f| self.profile.frame_at(*f)) {
            // A frame has the return address; one byte before it lies in the call.
            let address = outer.address.0.saturating_sub(1);
            message.number(2, outer.module.map_or(0, |m| m.number() as u64 + 1)).number(3, address);
        }
        for frame in frames {
            let (of, called) =
                (self.profile.frame_at(*frame), self.profile.function_at(self.profile.function_of(*frame)));
            let (named, name) = (called.named, printable(&called.name));
            if let Some(known) = of.module.and_then(|module| self.known.get_mut(module.number())) {
                let known = known.get_or_insert([true, false, false, false]);
                known[0] &= named;
                known[1] |= of.file.is_some();
                known[2] |= of.line.is_some();
                known[3] |= of.inlined;
            }
            // Readers show a location without lines by its address and module.
            if named || of.module.is_none() {
                let function = self.function(name, of);
                message.nested(4, |m| m.number(1, function).number(2, u64::from(of.line.unwrap_or(0))));
            }
        }
        self.locations.push((frames.into(), message.0));
        self.location_of.insert(frames.into(), id);
        id
    }

    fn function(&mut self, name: String, frame: &Frame) -> u64 {
        let file = printable(frame.file.as_deref().unwrap_or_default());
        let key = (name, file);
        if let Some(id) = self.function_of.get(&key) {
            return *id;
        }
        let id = self.functions.len() as u64 + 1;
        let (name, file) = (self.text(&key.0), self.text(&key.1));
        let mut message = Message::default();
        message.number(1, id).number(2, name).number(3, name).number(4, file);
        self.functions.push(message.0);
        self.function_of.insert(key, id);
        id
    }

    fn mapping(&mut self, at: usize, module: &Module) {
        let file = self.text(&printable(&module.path));
        let build_id: String = module.build_id.iter().map(|b| format!("{b:02x}")).collect();
        let build_id = self.text(&build_id);
        let known = self.known.get(at).copied().flatten().unwrap_or_default();
        let (start, limit) = (module.range.start.0, module.range.end.0);
        self.out.nested(3, |m| {
            m.number(1, at as u64 + 1).number(2, start).number(3, limit).number(5, file).number(6, build_id);
            known.iter().zip(7..).fold(m, |m, (known, field)| m.number(field, u64::from(*known)))
        });
    }
}

/// The bytes of one message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) -> &mut Message {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
        self
    }

    /// Empty bytes are written too: the first entry of the string table is empty.
    fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Message {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn nested(&mut self, field: u64, fill: impl FnOnce(&mut Message) -> &mut Message) -> &mut Message {
        let mut inner = Message::default();
        fill(&mut inner);
        self.bytes(field, &inner.0)
    }
}
