//! Entries divided by the thread that allocated.

use std::collections::HashMap;

use super::builder::SitesBuilder;
use super::columns::{CUMULATIVE, CUMULATIVE_COUNT, NOTHING, SiteLine, TEMPORARY};
use plimsoll_profiles::profile::Value;

impl SitesBuilder<'_> {
    /// Divides an entry by thread: live memory by its live samples, cumulative figures by the rows.
    pub(super) fn threads(&self, raw: usize, values: &SiteLine) -> Vec<(Option<String>, SiteLine)> {
        let allocated: Vec<(String, f64)> = match self.by_slot.get(&(raw as u32)) {
            Some(rows) => rows.iter().map(|(slot, bytes)| (self.thread_name(*slot, None), *bytes)).collect(),
            None => Vec::new(),
        };
        let mut live: Vec<(String, f64)> = match self.sampled.get(&(raw as u32)) {
            Some(s) => s.threads.iter().map(|((slot, g), w)| (self.thread_name(*slot, Some(*g)), *w)).collect(),
            None => Vec::new(),
        };
        if live.is_empty() {
            live.clone_from(&allocated);
        }
        let mut by: HashMap<Option<String>, SiteLine> = HashMap::new();
        for (column, value) in values.iter().enumerate() {
            let shares = if matches!(column, CUMULATIVE | CUMULATIVE_COUNT | TEMPORARY) { &allocated } else { &live };
            let sum: f64 = shares.iter().map(|s| s.1).sum();
            if shares.is_empty() || sum <= 0.0 {
                let of = &mut by.entry(None).or_insert(NOTHING)[column];
                *of = of.plus(*value);
                continue;
            }
            let (mut run, mut given) = (0.0, 0i64);
            for (i, (name, weight)) in shares.iter().enumerate() {
                run += weight;
                let until = if i + 1 == shares.len() { value.amount } else { (value.amount as f64 * run / sum) as i64 };
                let part = Value { amount: until - given, variance: value.variance * weight / sum };
                given = until;
                let of = &mut by.entry(Some(name.clone())).or_insert(NOTHING)[column];
                *of = of.plus(part);
            }
        }
        by.into_iter().collect()
    }

    pub(super) fn thread_name(&self, slot: u32, generation: Option<u64>) -> String {
        match self.books.threads.get(slot as usize) {
            Some(t) if generation.is_some_and(|g| g != t.generation) => "an earlier thread".into(),
            Some(t) if t.tid == 0 => "threads without a slot".into(),
            Some(t) => match &t.name {
                Some(name) => format!("{name} ({})", t.tid),
                None => t.tid.to_string(),
            },
            None => "unknown".into(),
        }
    }
}
