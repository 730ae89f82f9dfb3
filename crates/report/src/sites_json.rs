//! Writes the sites of a report as JSON and reads them back: a saved report can be shown and compared again.

use std::collections::HashMap;

use plimsoll_facts::units::{AddressRange, Avma};
use plimsoll_profiles::profile::{
    Entry, Frame, FrameId, FrameOrigin, Labels, Module, ModuleId, Profile, Value, WholeId,
};
use plimsoll_tracked::sites::{self, Detail, Sites};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::figures_json::{Line, figures, line};
use crate::frame_table::{FrameLine, FrameTable};

#[derive(Debug, Deserialize)]
pub(crate) struct SiteLine {
    /// Indices into the report's table of frames, innermost first.
    #[serde(default)]
    pub stack: Vec<u32>,
    /// In `plimsoll.report/1`: the frames, in place of `stack`.
    #[serde(default, rename = "frames")]
    pub inline: Vec<FrameLine>,
    pub category: String,
    pub truncated: bool,
    #[serde(flatten)]
    pub line: Line,
    /// Half widths of 95 % intervals; 0: counted, not estimated.
    pub error_bytes: u64,
    #[serde(default)]
    pub error_count: u64,
    #[serde(default)]
    pub cumulative_error_bytes: u64,
    #[serde(default)]
    pub cumulative_error_count: u64,
    /// As `error_bytes`, under the assumption that the samples missed no site of the caller. `diff` compares by it.
    #[serde(default)]
    pub division_error_bytes: u64,
    #[serde(default)]
    pub division_error_count: u64,
    /// In an estimated report, the number of the site's caller: the sites of one caller have no error together.
    #[serde(default)]
    pub of_caller: u32,
    /// The site stands for the blocks of a caller that no sample hit; it has the caller's short stack.
    #[serde(default)]
    pub unsampled: bool,
    /// Live blocks, and resident mappings without files. Where the resident part isn't known: live blocks.
    #[serde(default)]
    pub held_bytes: u64,
    #[serde(default)]
    pub temporary_bytes: u64,
    #[serde(default)]
    pub mapped_bytes: u64,
    #[serde(default)]
    pub mapped_count: u64,
    #[serde(default)]
    pub samples: u64,
    #[serde(default)]
    pub live_samples: u64,
    /// Blocks ever allocated, by requested bytes: below 16, 32, … 256 KiB, all larger. Empty without samples.
    #[serde(default)]
    pub sizes: Vec<u64>,
    #[serde(default)]
    pub oldest_ns: Option<u64>,
    #[serde(default)]
    pub median_age_ns: Option<u64>,
    #[serde(default)]
    pub threads: Vec<String>,
}

/// A site to be written: in `/1` with its frames, in `/2` with indices.
pub(crate) struct WrittenSite<'a> {
    pub line: SiteLine,
    /// The table's frames as JSON text.
    pub frames: Option<&'a [Box<RawValue>]>,
}

/// Omits a field that is 0, false, null or empty, except for the figures that every line of a report has. In a report
/// of 100,000 sites these fields would be half of the bytes.
impl Serialize for WrittenSite<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (site, mut map) = (&self.line, serializer.serialize_map(None)?);
        let l = &site.line;
        match self.frames {
            Some(texts) => map.serialize_entry("frames", &InSite { stack: &site.stack, texts })?,
            None => map.serialize_entry("stack", &site.stack)?,
        }
        map.serialize_entry("category", &site.category)?;
        map.serialize_entry("truncated", &site.truncated)?;
        map.serialize_entry("live_bytes", &l.live_bytes)?;
        map.serialize_entry("live_count", &l.live_count)?;
        map.serialize_entry("requested_bytes", &l.requested_bytes)?;
        map.serialize_entry("peak_bytes", &l.peak_bytes)?;
        map.serialize_entry("count_at_peak", &l.count_at_peak)?;
        map.serialize_entry("peak_time", &l.peak_time)?;
        map.serialize_entry("cumulative_bytes", &l.cumulative_bytes)?;
        map.serialize_entry("cumulative_count", &l.cumulative_count)?;
        map.serialize_entry("reserved_bytes", &l.reserved_bytes)?;
        map.serialize_entry("committed_bytes", &l.committed_bytes)?;
        map.serialize_entry("error_bytes", &site.error_bytes)?;
        for (key, n) in [
            ("error_count", site.error_count),
            ("cumulative_error_bytes", site.cumulative_error_bytes),
            ("cumulative_error_count", site.cumulative_error_count),
            ("division_error_bytes", site.division_error_bytes),
            ("division_error_count", site.division_error_count),
            ("of_caller", u64::from(site.of_caller)),
            ("held_bytes", site.held_bytes),
            ("temporary_bytes", site.temporary_bytes),
            ("mapped_bytes", site.mapped_bytes),
            ("mapped_count", site.mapped_count),
            ("mapped_file_bytes", l.mapped_file_bytes),
            ("resident_file_bytes", l.resident_file_bytes),
            ("resident_arena_bytes", l.resident_arena_bytes),
            ("peak_reserved_bytes", l.peak_reserved_bytes),
            ("peak_committed_bytes", l.peak_committed_bytes),
            ("at_total_peak_bytes", l.at_total_peak_bytes),
            ("at_total_peak_count", l.at_total_peak_count),
            ("samples", site.samples),
            ("live_samples", site.live_samples),
            ("oldest_ns", site.oldest_ns.unwrap_or(0)),
            ("median_age_ns", site.median_age_ns.unwrap_or(0)),
        ] {
            if n != 0 {
                map.serialize_entry(key, &n)?;
            }
        }
        // 0 is not unknown.
        if let Some(bytes) = l.resident_bytes.filter(|_| l.committed_bytes > 0) {
            map.serialize_entry("resident_bytes", &bytes)?;
        }
        if site.unsampled {
            map.serialize_entry("unsampled", &true)?;
        }
        if !site.sizes.is_empty() {
            map.serialize_entry("sizes", &site.sizes)?;
        }
        if !site.threads.is_empty() {
            map.serialize_entry("threads", &site.threads)?;
        }
        map.end()
    }
}

struct InSite<'a> {
    stack: &'a [u32],
    texts: &'a [Box<RawValue>],
}

impl Serialize for InSite<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.stack.iter().filter_map(|index| self.texts.get(*index as usize)))
    }
}

/// The lines of all sites, biggest first; `frames` must hold their frames.
pub(crate) fn lines<'a>(of: &'a Sites, frames: &'a FrameTable) -> impl Iterator<Item = SiteLine> + 'a {
    let profile = &of.profile;
    let mut entries: Vec<_> = profile.entries().collect();
    let size = |v: &[Value]| v[sites::HELD].amount;
    entries.sort_by_key(|(entry, v)| (std::cmp::Reverse((size(v), v[sites::CUMULATIVE].amount)), entry.stack));
    entries.into_iter().map(move |(entry, values)| site(of, frames, entry, values))
}

fn site(of: &Sites, table: &FrameTable, entry: Entry, values: &[Value]) -> SiteLine {
    let profile = &of.profile;
    let none = Detail::default();
    let (stack, truncated) = table.stack(profile, entry.stack);
    let detail = of.details.get(&entry).unwrap_or(&none);
    let width = |variance: f64| Value { amount: 0, variance }.error();
    let n = |column: usize| u64::try_from(values[column].amount).unwrap_or(0);
    let f = sites::figures(values);
    SiteLine {
        stack,
        inline: Vec::new(),
        category: entry.labels.category.map(|c| profile.name_at(c).to_string()).unwrap_or_default(),
        truncated,
        line: Line { resident_bytes: of.is_resident_known.then(|| n(sites::RESIDENT)), ..line(&f) },
        error_bytes: values[sites::LIVE].error(),
        error_count: values[sites::LIVE_COUNT].error(),
        cumulative_error_bytes: values[sites::CUMULATIVE].error(),
        cumulative_error_count: values[sites::CUMULATIVE_COUNT].error(),
        division_error_bytes: width(detail.division[0]),
        division_error_count: width(detail.division[1]),
        of_caller: profile.whole_of(entry).map_or(0, |whole| whole.number() + 1),
        unsampled: detail.unsampled,
        held_bytes: n(sites::HELD),
        temporary_bytes: n(sites::TEMPORARY),
        mapped_bytes: n(sites::MAPPED),
        mapped_count: n(sites::MAPPED_COUNT),
        samples: detail.samples,
        live_samples: detail.live_samples,
        sizes: if detail.samples > 0 { detail.sizes.to_vec() } else { Vec::new() },
        oldest_ns: detail.oldest_ns,
        median_age_ns: detail.median_age_ns(),
        threads: detail.thread_names().into_iter().map(Into::into).collect(),
    }
}

/// Reads the output of `lines`. Modules are matched with those of the report by path. The error is one sentence.
pub(crate) fn parse<'a>(
    lines: &[SiteLine],
    table: &'a [FrameLine],
    modules: &[plimsoll_tracked::books::Module],
) -> Result<Sites, String> {
    let is_known = |site: &SiteLine| {
        site.line.resident_bytes.is_some() || site.line.committed_bytes <= site.line.mapped_file_bytes
    };
    let is_resident_known = lines.iter().all(is_known);
    let mut of = Sites { profile: Profile::new(sites::columns()), is_resident_known, ..Sites::default() };
    let profile = &mut of.profile;
    let mut known: HashMap<&str, ModuleId> = HashMap::new();
    let frame = |f: &'a FrameLine| {
        let module = f.module.as_deref().map(|path| {
            *known.entry(path).or_insert_with(|| {
                let of = modules.iter().find(|m| m.path == path);
                let module = of.map(|m| Module {
                    path: m.path.clone(),
                    build_id: m.build_id.clone(),
                    range: AddressRange::new(m.range.0, m.range.1),
                    bias: m.bias,
                });
                profile.module(module.unwrap_or_else(|| Module { path: path.into(), ..Module::default() }))
            })
        });
        profile.frame(Frame {
            function: f.function.clone(),
            module,
            offset: f.offset,
            address: Avma(f.address),
            file: f.file.clone(),
            line: f.line,
            kind: FrameOrigin::ALL.into_iter().find(|k| k.name() == f.kind).unwrap_or_default(),
            inlined: f.inlined,
        })
    };
    let table: Vec<FrameId> = table.iter().map(frame).collect();
    let mut wholes: HashMap<u32, WholeId> = HashMap::new();
    for site in lines {
        let mut frames = Vec::with_capacity(site.stack.len() + 1);
        for index in &site.stack {
            frames.push(*table.get(*index as usize).ok_or_else(|| no_frame(*index))?);
        }
        if site.truncated {
            frames.push(profile.frame(Frame::truncated()));
        }
        let stack = profile.stack(&frames);
        let category = (!site.category.is_empty()).then(|| profile.name(&site.category));
        let f = figures(&site.line);
        let estimated = |amount, error: u64| Value::estimated(amount, (error as f64 / 1.96).powi(2));
        let mut values = vec![Value::default(); profile.columns.len()];
        values[sites::LIVE] = estimated(f.live.0, site.error_bytes);
        values[sites::LIVE_COUNT] = estimated(f.live_count, site.error_count);
        values[sites::CUMULATIVE] = estimated(f.cumulative.0, site.cumulative_error_bytes);
        values[sites::CUMULATIVE_COUNT] = estimated(f.cumulative_count, site.cumulative_error_count);
        values[sites::REQUESTED] = Value::exact(f.requested.0);
        values[sites::PEAK] = Value::exact(f.peak.0);
        values[sites::PEAK_COUNT] = Value::exact(f.count_at_peak);
        values[sites::TEMPORARY] = Value::exact(site.temporary_bytes);
        values[sites::RESERVED] = Value::exact(f.reserved.0);
        values[sites::COMMITTED] = Value::exact(f.committed.0);
        values[sites::MAPPED] = Value::exact(site.mapped_bytes);
        values[sites::MAPPED_COUNT] = Value::exact(site.mapped_count);
        // Older versions wrote live and committed bytes there, and no resident ones.
        let held = if is_resident_known { site.held_bytes } else { f.live.0 };
        values[sites::HELD] = estimated(held, site.error_bytes);
        values[sites::RESIDENT] = Value::exact(f.resident.unwrap_or_default().0);
        values[sites::FILES] = Value::exact(f.files.0);
        let labels = Labels { category, ..Labels::default() };
        match site.of_caller {
            0 => profile.add(stack, labels, &values),
            caller => {
                let whole = *wholes.entry(caller).or_insert_with(|| profile.whole());
                profile.add_part(whole, stack, labels, &values);
            }
        }
        let variance = |error: u64| (error as f64 / 1.96).powi(2);
        let mut sizes = [0; 16];
        sizes.iter_mut().zip(&site.sizes).for_each(|(to, from)| *to = *from);
        let detail = Detail {
            samples: site.samples,
            live_samples: site.live_samples,
            sizes,
            oldest_ns: site.oldest_ns,
            ages: site.median_age_ns.map(|age| (age, site.live_samples.max(1) as f64)).into_iter().collect(),
            // The report has their order, but not their bytes.
            threads: site.threads.iter().rev().zip(1..).map(|(name, rank)| (name.clone(), f64::from(rank))).collect(),
            division: [variance(site.division_error_bytes), variance(site.division_error_count)],
            unsampled: site.unsampled,
        };
        if detail != Detail::default() {
            of.details.insert(Entry { stack, labels }, detail);
        }
    }
    of.profile.sums_are_counted(|at, column| column.of_one_moment && at != sites::TEMPORARY);
    Ok(of)
}

pub(crate) fn no_frame(index: u32) -> String {
    format!("it is a damaged report: there is no frame {index}")
}
