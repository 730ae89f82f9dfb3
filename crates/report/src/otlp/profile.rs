//! Call stacks as OTLP has them. The protocol calls its profiles experimental ("v1development"): they may change.
//!
//! ```text
//! profile   one for each measure: live and allocated, in bytes and in blocks
//! sample ─▶ stack ─▶ locations, innermost first ─▶ lines, inlined functions first ─▶ function ─▶ strings
//!    └────▶ attributes: category, thread           └▶ mapping ─▶ its file, and its build id as an attribute
//! ```
//! All of these refer to entries of one dictionary by index; entry 0 of each table means none.

use std::collections::HashMap;
use std::hash::Hash;

use plimsoll_profiles::profile::{FrameId, Labels, ModuleId, Profile};
use prost::Message;
use sha2::{Digest, Sha256};

use super::messages::{
    Any, AnyValue, Dictionary, ExportProfiles, FunctionName, KeyValueAndUnit, Line, Link, Location, Mapping,
    OneProfile, ResourceProfiles, ScopeProfiles, StackOf, StackSample, ValueType,
};
use super::{resource, scope};
use crate::metrics::Samples;
use crate::profile::{locations, pprof};
use crate::words::printable;

/// The measures that are sent; `report --format pprof` has the others.
const MEASURES: [&str; 2] = ["live", "cumulative"];

/// The request for the call stacks of one target, which `samples` identify.
pub fn profiles(profile: &Profile, samples: &Samples, host: &str, version: &str) -> Vec<u8> {
    let mut tables = Tables::new(profile);
    let columns = profile.columns.iter().enumerate().filter(|(_, column)| MEASURES.contains(&column.measure));
    let profiles = columns.map(|(at, column)| {
        let (name, unit) = pprof::sample_type(column);
        let sample_type = ValueType { type_strindex: tables.text(&name), unit_strindex: tables.text(unit) };
        let entries = profile.entries().filter(|(_, values)| values[at].amount > 0);
        let samples = entries.map(|(entry, values)| StackSample {
            stack_index: tables.stack(profile.frames_of(entry.stack)),
            attribute_indices: tables.labels(entry.labels),
            values: vec![values[at].amount],
        });
        let samples = samples.collect();
        OneProfile {
            sample_type: Some(sample_type),
            samples,
            time_unix_nano: profile.time_ns,
            profile_id: id(&samples_of(profile), &name),
        }
    });
    let profiles = profiles.collect();
    let scope_profiles = vec![ScopeProfiles { scope: Some(scope(version)), profiles }];
    let resource = Some(resource(samples, host));
    let resource_profiles = vec![ResourceProfiles { resource, scope_profiles }];
    ExportProfiles { resource_profiles, dictionary: Some(tables.dictionary()) }.encode_to_vec()
}

fn samples_of(profile: &Profile) -> String {
    format!("{} {}", profile.time_ns, profile.title)
}

/// 16 bytes that no other profile has.
fn id(profile: &str, measure: &str) -> Vec<u8> {
    Sha256::digest(format!("{profile} {measure}"))[..16].to_vec()
}

/// A table whose entry 0 means none.
struct Table<T> {
    all: Vec<T>,
    index: HashMap<T, i32>,
}

impl<T: Default + Clone + Eq + Hash> Table<T> {
    fn new() -> Table<T> {
        Table { all: vec![T::default()], index: HashMap::from([(T::default(), 0)]) }
    }

    fn of(&mut self, entry: T) -> i32 {
        let next = i32::try_from(self.all.len()).unwrap_or(0);
        *self.index.entry(entry).or_insert_with_key(|entry| {
            self.all.push(entry.clone());
            next
        })
    }
}

struct Tables<'p> {
    profile: &'p Profile,
    strings: Table<String>,
    functions: Table<FunctionName>,
    mappings: Table<Mapping>,
    locations: Table<Location>,
    stacks: Table<StackOf>,
    /// Key and value, as text.
    attributes: Table<(&'static str, String)>,
}

impl<'p> Tables<'p> {
    fn new(profile: &'p Profile) -> Tables<'p> {
        Tables {
            profile,
            strings: Table::new(),
            functions: Table::new(),
            mappings: Table::new(),
            locations: Table::new(),
            stacks: Table::new(),
            attributes: Table::new(),
        }
    }

    fn text(&mut self, text: &str) -> i32 {
        self.strings.of(text.to_owned())
    }

    fn labels(&mut self, labels: Labels) -> Vec<i32> {
        let named = [("plimsoll.category", labels.category), ("thread.name", labels.thread)];
        let known = named.into_iter().filter_map(|(key, name)| Some((key, printable(self.profile.name_at(name?)))));
        known.collect::<Vec<_>>().into_iter().map(|known| self.attributes.of(known)).collect()
    }

    fn stack(&mut self, frames: &[FrameId]) -> i32 {
        let location_indices = locations(self.profile, frames).map(|frames| self.location(frames)).collect();
        self.stacks.of(StackOf { location_indices })
    }

    /// All of `frames` but the last are inlined into the last.
    fn location(&mut self, frames: &[FrameId]) -> i32 {
        let outer = frames.last().map(|frame| self.profile.frame_at(*frame));
        let mapping_index = outer.and_then(|outer| outer.module).map_or(0, |module| self.mapping(module));
        // A frame has the return address; one byte before it lies in the call.
        let address = outer.map_or(0, |outer| outer.address.0.saturating_sub(1));
        let lines = frames.iter().filter_map(|frame| self.line(*frame)).collect();
        self.locations.of(Location { mapping_index, address, lines })
    }

    /// None: readers show a location without lines by its address and file.
    fn line(&mut self, frame: FrameId) -> Option<Line> {
        let (of, called) = (self.profile.frame_at(frame), self.profile.function_at(self.profile.function_of(frame)));
        if !called.named && of.module.is_some() {
            return None;
        }
        let name_strindex = self.text(&printable(&called.name));
        let filename_strindex = self.text(&printable(of.file.as_deref().unwrap_or_default()));
        let function = FunctionName { name_strindex, system_name_strindex: name_strindex, filename_strindex };
        Some(Line { function_index: self.functions.of(function), line: i64::from(of.line.unwrap_or(0)) })
    }

    fn mapping(&mut self, module: ModuleId) -> i32 {
        let module = self.profile.module_at(module);
        let build_id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let known = (!build_id.is_empty()).then(|| self.attributes.of(("process.executable.build_id.gnu", build_id)));
        let mapping = Mapping {
            memory_start: module.range.start.0,
            memory_limit: module.range.end.0,
            filename_strindex: self.text(&printable(&module.path)),
            attribute_indices: known.into_iter().collect(),
        };
        self.mappings.of(mapping)
    }

    fn dictionary(mut self) -> Dictionary {
        let attributes = std::mem::take(&mut self.attributes.all);
        let attribute = |(key, value): (&'static str, String)| KeyValueAndUnit {
            key_strindex: self.strings.of(key.to_owned()),
            value: (!key.is_empty()).then_some(AnyValue { value: Some(Any::StringValue(value)) }),
        };
        let attribute_table = attributes.into_iter().map(attribute).collect();
        Dictionary {
            mapping_table: self.mappings.all,
            location_table: self.locations.all,
            function_table: self.functions.all,
            link_table: vec![Link {}],
            string_table: self.strings.all,
            attribute_table,
            stack_table: self.stacks.all,
        }
    }
}
