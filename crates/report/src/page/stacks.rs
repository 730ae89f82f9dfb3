//! Packs call stacks for the script: a tree of calls, each function once, and for each site its innermost call.
//!
//! ```text
//! functions[f], kinds[f], modules[f]     name; n native, j Java, c generated code, o kernel, u unknown; file
//! parents[c], calls[c]                   call c is of function calls[c], made by call parents[c]; call 0 is the root
//! sites[s] = [call, category], values[column][s]
//! ```

use std::collections::HashMap;

use plimsoll_profiles::profile::{FrameOrigin, FunctionId};
use serde::Serialize;

use super::markup::plain;
use super::model::Stacks;

/// Sites with a stack of their own. The others are one site without a stack, so that sums stay whole.
const MOST_SITES: usize = 2000;
/// Maximum number of calls in the tree. Once the tree is full, a stack ends where it leaves the tree.
const MOST_CALLS: usize = 60_000;
/// Frames of one stack, from the outermost inwards.
const DEEPEST: usize = 250;
/// JavaScript's numbers are exact up to here.
const MOST: i64 = (1 << 53) - 1;

#[derive(Serialize)]
pub(crate) struct Packed {
    title: String,
    functions: Vec<String>,
    kinds: String,
    modules: Vec<String>,
    parents: Vec<usize>,
    calls: Vec<usize>,
    categories: Vec<String>,
    sites: Vec<(usize, usize)>,
    /// Names of the columns. For a recording, `moments` has their times.
    columns: Vec<String>,
    moments: Vec<i64>,
    values: Vec<Vec<i64>>,
}

pub(crate) fn packed(stacks: &Stacks) -> Packed {
    let profile = &stacks.profile;
    let mut out = Packed {
        title: stacks.title.clone(),
        functions: vec![],
        kinds: String::new(),
        modules: vec![],
        parents: vec![0],
        calls: vec![0],
        categories: vec![String::new()],
        sites: vec![],
        columns: stacks.columns.iter().map(|(_, name)| name.clone()).collect(),
        moments: stacks.moments_ms.clone(),
        values: vec![vec![]; stacks.columns.len()],
    };
    let mut entries: Vec<_> = profile.entries().collect();
    let amount = |values: &[plimsoll_profiles::profile::Value], column: &(usize, String)| {
        values.get(column.0).map_or(0, |value| value.amount)
    };
    entries
        .sort_by_key(|(_, values)| std::cmp::Reverse(stacks.columns.iter().map(|column| amount(values, column)).max()));
    let mut functions: HashMap<FunctionId, usize> = HashMap::new();
    let mut children: HashMap<(usize, usize), usize> = HashMap::new();
    let mut categories: HashMap<String, usize> = HashMap::from([(String::new(), 0)]);
    for (entry, values) in entries.iter().take(MOST_SITES) {
        let mut at = 0;
        let frames = profile.frames_of(entry.stack);
        for frame in frames.iter().rev().take(DEEPEST) {
            let id = profile.function_of(*frame);
            if out.parents.len() >= MOST_CALLS && !functions.contains_key(&id) {
                break;
            }
            let function = *functions.entry(id).or_insert_with(|| {
                let function = profile.function_at(id);
                out.functions.push(plain(&function.name));
                out.modules.push(plain(&function.module));
                out.kinds.push(kind(function.kind));
                out.functions.len() - 1
            });
            let is_full = out.parents.len() >= MOST_CALLS;
            let Some(call) = children.get(&(at, function)).copied().or_else(|| {
                (!is_full).then(|| {
                    out.parents.push(at);
                    out.calls.push(function);
                    children.insert((at, function), out.parents.len() - 1);
                    out.parents.len() - 1
                })
            }) else {
                break;
            };
            at = call;
        }
        let category = plain(entry.labels.category.map_or("", |name| profile.name_at(name)));
        let category = *categories.entry(category.clone()).or_insert_with(|| {
            out.categories.push(category);
            out.categories.len() - 1
        });
        out.sites.push((at, category));
        for (into, column) in out.values.iter_mut().zip(&stacks.columns) {
            into.push(amount(values, column).clamp(-MOST, MOST));
        }
    }
    let rest = &entries[entries.len().min(MOST_SITES)..];
    if !rest.is_empty() {
        out.functions.push(format!("[{} smaller sites]", rest.len()));
        out.modules.push(String::new());
        out.kinds.push('u');
        out.parents.push(0);
        out.calls.push(out.functions.len() - 1);
        out.sites.push((out.parents.len() - 1, 0));
        for (into, column) in out.values.iter_mut().zip(&stacks.columns) {
            let sum = rest.iter().fold(0i64, |sum, (_, values)| sum.saturating_add(amount(values, column)));
            into.push(sum.clamp(-MOST, MOST));
        }
    }
    out
}

const fn kind(kind: FrameOrigin) -> char {
    match kind {
        FrameOrigin::Native => 'n',
        FrameOrigin::Java => 'j',
        FrameOrigin::Jit => 'c',
        FrameOrigin::Kernel => 'o',
        FrameOrigin::Unknown => 'u',
    }
}
