//! Groups entries into lines. Each entry belongs to exactly one group, so Σ groups = total. A group that has all parts of
//! a counted whole has no error from them: figures of categories and callers are counted.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::{Entry, FrameOrigin, Function, Profile, StackId, Value};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    #[default]
    Site,
    /// The function that called the allocator: the innermost frame.
    Caller,
    Category,
    /// Package of the innermost Java method outside the Java platform and Native Image's runtime; else of the innermost
    /// Java method. A stack without Java counts under its module.
    Package,
    /// Module of the innermost frame that has one.
    Module,
    Thread,
    /// Class of the allocated object.
    Class,
}

impl GroupBy {
    pub const ALL: [GroupBy; 7] = [
        GroupBy::Site,
        GroupBy::Caller,
        GroupBy::Category,
        GroupBy::Package,
        GroupBy::Module,
        GroupBy::Thread,
        GroupBy::Class,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            GroupBy::Site => "site",
            GroupBy::Caller => "caller",
            GroupBy::Category => "category",
            GroupBy::Package => "package",
            GroupBy::Module => "module",
            GroupBy::Thread => "thread",
            GroupBy::Class => "class",
        }
    }
}

impl GroupBy {
    /// Whether this grouping keeps all sites of a caller in one group. Sites that no sample hit would be at another
    /// site, and perhaps in another package.
    const fn keeps_callers(self) -> bool {
        matches!(self, GroupBy::Caller | GroupBy::Category | GroupBy::Module)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// For a site, the name of its innermost function.
    pub name: String,
    /// For sites only: the biggest of the group's stacks. All have the same functions, perhaps at other lines.
    pub stack: Option<StackId>,
    /// For sites only: the group's other stacks, biggest first.
    pub other_stacks: Vec<StackId>,
    /// One value per column.
    pub values: Vec<Value>,
    pub entries: u64,
}

/// The parts of a whole in one group.
#[derive(Default)]
struct Divided {
    parts: u32,
    variances: Vec<f64>,
}

impl Divided {
    fn add(&mut self, parts: u32, values: &[Value]) {
        self.parts += parts;
        self.variances.resize(values.len(), 0.0);
        self.variances.iter_mut().zip(values).for_each(|(sum, value)| *sum += value.variance);
    }
}

/// Name of the group of entries that lack the grouping property.
const NONE: &str = "(none)";
/// Native images keep only the simple names of classes, unless they were built with debug information.
const NOT_IN_SYMBOLS: &str = "(package not in the symbols)";

impl Profile {
    /// Groups the entries: biggest first by `column`, then by name, so that the order is reproducible.
    pub fn group(&self, by: GroupBy, column: usize) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut group_of: HashMap<Key, usize> = HashMap::new();
        let mut stacks: Vec<HashMap<StackId, i64>> = Vec::new();
        let mut divided: HashMap<(usize, u32), Divided> = HashMap::new();
        let amount = |values: &[Value]| values.get(column).map_or(0, |v| v.amount);
        let packaged = if by == GroupBy::Package { self.modules_with_packages() } else { HashSet::new() };
        for ((entry, values), parts) in self.entries().zip(&self.parts) {
            let key = self.key(by, entry, &packaged);
            let at = *group_of.entry(key).or_insert_with_key(|key| {
                let values = vec![Value::default(); self.columns.len()];
                let name = self.group_name(by, key);
                groups.push(Group { name, stack: None, other_stacks: Vec::new(), values, entries: 0 });
                stacks.push(HashMap::new());
                groups.len() - 1
            });
            if by == GroupBy::Site {
                let sum = stacks[at].entry(entry.stack).or_default();
                *sum = sum.saturating_add(amount(values));
            }
            let group = &mut groups[at];
            group.entries += 1;
            let parts = parts.filter(|_| by.keeps_callers());
            for (sum, v) in group.values.iter_mut().zip(values) {
                *sum = sum.plus(if parts.is_some() { Value { variance: 0.0, ..*v } } else { *v });
            }
            if let Some(parts) = parts {
                divided.entry((at, parts.of.0)).or_default().add(parts.number, values);
            }
        }
        for ((at, whole), of) in divided {
            if of.parts < self.wholes[whole as usize] {
                groups[at].values.iter_mut().zip(of.variances).for_each(|(sum, variance)| sum.variance += variance);
            }
        }
        for (group, stacks) in groups.iter_mut().zip(stacks) {
            let mut by_size: Vec<(StackId, i64)> = stacks.into_iter().collect();
            by_size.sort_by_key(|(stack, amount)| (Reverse(*amount), *stack));
            let mut by_size = by_size.into_iter().map(|(stack, _)| stack);
            group.stack = by_size.next();
            group.other_stacks = by_size.collect();
        }
        let size = |g: &Group| amount(&g.values);
        groups.sort_by(|a, b| size(b).cmp(&size(a)).then_with(|| a.name.cmp(&b.name)));
        groups
    }

    /// The modules whose Java methods have packages in their names.
    fn modules_with_packages(&self) -> HashSet<&str> {
        let has_package = |f: &&Function| f.package().is_some_and(|package| !package.is_empty());
        self.functions.iter().filter(has_package).map(|f| f.module.as_str()).collect()
    }

    fn key(&self, by: GroupBy, entry: Entry, packaged: &HashSet<&str>) -> Key {
        let frames = self.frames_of(entry.stack);
        let function = |f| self.function_at(self.function_of(f));
        let label = |name: Option<super::NameId>| Key::Text(name.map_or(NONE, |n| self.name_at(n)).into());
        let module = || {
            let mut modules = frames.iter().map(|f| function(*f)).filter(|f| !f.module.is_empty());
            Key::Text(modules.next().map_or(NONE, |f| &f.module).into())
        };
        match by {
            GroupBy::Site => Key::Site(frames.iter().map(|f| self.function_of(*f).0).collect()),
            GroupBy::Caller => frames.first().map_or(Key::Text(NONE.into()), |f| Key::Function(self.function_of(*f).0)),
            GroupBy::Category => label(entry.labels.category),
            GroupBy::Thread => label(entry.labels.thread),
            GroupBy::Class => label(entry.labels.class),
            GroupBy::Module => module(),
            GroupBy::Package => {
                let java = || frames.iter().map(|f| function(*f)).filter(|f| f.kind == FrameOrigin::Java && f.named);
                let found = java().find(|f| !f.is_runtime()).or_else(|| java().next());
                match found.and_then(|f| Some((f, f.package()?))) {
                    Some((f, "")) if !f.module.is_empty() && !packaged.contains(&*f.module) => {
                        Key::Text(NOT_IN_SYMBOLS.into())
                    }
                    Some((_, "")) => Key::Text("(default package)".into()),
                    Some((_, package)) => Key::Text(package.into()),
                    None => module(),
                }
            }
        }
    }

    fn group_name(&self, by: GroupBy, key: &Key) -> String {
        match key {
            Key::Text(text) => text.to_string(),
            Key::Function(f) => self.functions.at(*f).name.clone(),
            Key::Site(functions) => match functions.first() {
                Some(f) => self.functions.at(*f).name.clone(),
                None => format!("({} without a stack)", by.name()),
            },
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Site(Box<[u32]>),
    Function(u32),
    Text(Box<str>),
}
