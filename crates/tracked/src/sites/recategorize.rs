//! Categories by deep frames. The tracker decides with a caller's few native frames and the symbols available at that
//! time. A report knows the whole stack, Java methods, and names from symbol files that came later.
//!
//! 1. A rule for the object `java` matches methods (`java: org.acme.cache.* -> Order cache`). The innermost Java frame
//!    that matches such a rule decides, whatever native code it calls.
//! 2. If the tracker had no rule (the category is the module's name), the rules are applied again with all frames.
//!
//! A site's figures move from one category to another, so Σ categories remains the total. Peaks don't move: their
//! moments are in the past and can't be recomputed.

use std::collections::HashMap;

use plimsoll_segment::rules::{Decision, RuleTarget};

use super::{RESIDENT, Sites, figures, note};
use crate::books::{Books, Category, Figures, Origin};
use crate::rules::RuleSet;
use plimsoll_facts::units::Bytes;
use plimsoll_profiles::profile::{Entry, FrameId, FrameOrigin, Labels, Profile, Value};

/// The object that represents Java frames in rules.
pub(crate) const JAVA: &str = "java";

impl Sites {
    /// Applies the rules again, and moves the matching figures in these sites and in the books.
    pub fn recategorize(&mut self, rules: &RuleSet, books: &mut Books) {
        let profile = &self.profile;
        let mut known: HashMap<FrameId, Option<u16>> = HashMap::new();
        let mut moved: Vec<(Entry, u16)> = Vec::new();
        for (entry, _) in profile.entries() {
            let frames = profile.frames_of(entry.stack);
            let java = frames.iter().find_map(|f| *known.entry(*f).or_insert_with(|| by_method(rules, profile, *f)));
            let decided =
                java.or_else(|| is_unruled(profile, entry, books).then(|| by_frames(rules, profile, frames))?);
            let same = |c: u16| entry.labels.category.is_some_and(|of| profile.name_at(of) == rules.name(c));
            moved.extend(decided.filter(|c| !same(*c)).map(|c| (entry, c)));
        }
        if moved.is_empty() {
            return;
        }
        let to: HashMap<Entry, u16> = moved.into_iter().collect();
        let mut recategorized = self.profile.emptied();
        let mut details = HashMap::new();
        for (entry, values) in self.profile.entries() {
            let labels = match to.get(&entry) {
                Some(category) => {
                    let name = rules.name(*category);
                    let from = entry.labels.category.map(|c| self.profile.name_at(c).to_string());
                    shift(books, from.as_deref(), name, values);
                    Labels { category: Some(recategorized.name(name)), ..entry.labels }
                }
                None => entry.labels,
            };
            recategorized.add_copy(&self.profile, entry, (entry.stack, labels), values);
            if let Some(detail) = self.details.remove(&entry) {
                note(&mut details, Entry { labels, ..entry }, detail);
            }
        }
        // Stacks keep their numbers, because the recategorized profile began as a copy of all names and stacks.
        self.profile = recategorized;
        self.details = details;
    }
}

fn by_method(rules: &RuleSet, profile: &Profile, frame: FrameId) -> Option<u16> {
    let frame = profile.frame_at(frame);
    let name = frame.function.as_deref().filter(|_| frame.kind == FrameOrigin::Java)?;
    category(rules.rules[rules.symbol_rule(JAVA, name)?].target)
}

fn category(target: RuleTarget) -> Option<u16> {
    match target {
        RuleTarget::Category(category) => Some(category),
        _ => None,
    }
}

/// Whether the tracker used the module's name because no rule matched.
fn is_unruled(profile: &Profile, entry: Entry, books: &Books) -> bool {
    let Some(name) = entry.labels.category.map(|c| profile.name_at(c)) else { return false };
    books.categories.iter().any(|c| c.name == name && c.kind == Origin::Module)
}

fn by_frames(rules: &RuleSet, profile: &Profile, frames: &[FrameId]) -> Option<u16> {
    let named: Vec<(String, Option<String>)> = frames
        .iter()
        .map(|f| profile.frame_at(*f))
        .take_while(|f| f.module.is_some())
        .map(|f| {
            let path = f.module.map(|m| profile.module_at(m).path.clone()).unwrap_or_default();
            let function = f.function.as_deref().map(|name| match name.rsplit_once('.') {
                // Local symbols of a native image have the class's simple name; rules write them as Class_method.
                Some((class, method)) if f.kind == FrameOrigin::Java && !class.contains('.') => {
                    format!("{class}_{method}")
                }
                _ => name.to_string(),
            });
            (path, function)
        })
        .collect();
    let named: Vec<(&str, Option<&str>)> = named.iter().map(|(p, f)| (p.as_str(), f.as_deref())).collect();
    match rules.classify(&named) {
        Decision::Category(category) => Some(category),
        _ => None,
    }
}

fn shift(books: &mut Books, from: Option<&str>, to: &str, values: &[Value]) {
    let f = figures(values);
    let Some(from) = books.categories.iter().position(|c| Some(c.name.as_str()) == from) else { return };
    // A site maps either files or other memory.
    let pages = Bytes(u64::try_from(values[RESIDENT].amount).unwrap_or(0));
    let resident = books.categories[from].figures.resident.map(|_| pages);
    let f = Figures { resident, resident_files: resident.unwrap_or_default().min(f.files), ..f };
    let to = books.categories.iter().position(|c| c.name == to).unwrap_or_else(|| {
        books.categories.push(Category { name: to.into(), kind: Origin::Rule, ..Category::default() });
        books.categories.len() - 1
    });
    let of = &mut books.categories[from].figures;
    of.live -= f.live;
    of.live_count = of.live_count.saturating_sub(f.live_count);
    of.requested -= f.requested;
    of.cumulative -= f.cumulative;
    of.cumulative_count = of.cumulative_count.saturating_sub(f.cumulative_count);
    of.reserved -= f.reserved;
    of.committed -= f.committed;
    of.files -= f.files;
    of.resident = of.resident.map(|bytes| bytes - f.resident.unwrap_or_default());
    of.resident_files -= f.resident_files;
    let of = &mut books.categories[to].figures;
    of.add(&f);
    if of.peak < of.live {
        (of.peak, of.count_at_peak, of.peak_time_ns) = (of.live, of.live_count, None);
    }
}
