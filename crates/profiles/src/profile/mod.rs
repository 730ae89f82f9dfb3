//! A profile: how much memory each stack holds or requested. It is the common form of all stack views, whatever the
//! source (a segment's sites, a recording's allocation events). It is pure: built once, then focused, grouped,
//! compared, drawn.
//!
//! ```text
//! entries:  stack ─► frames, innermost first ─► function (its readable name), module
//!           labels   category, thread, class
//!           values   one per column: live_bytes, live_count, peak_bytes, …
//! ```
//! Σ entries = total for each column, and each view preserves that: Σ groups = total, a tree's root = total, focus +
//! the rest = total. Estimated amounts carry their variance. Variances of different entries add, because blocks are
//! sampled independently. The parts of a counted whole are an exception. A caller's total is counted, and only its
//! division among sites is estimated. So all its parts together have no error. A figure above `i64::MAX` is replaced by
//! `i64::MAX`.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use plimsoll_facts::gap::Gap;
use plimsoll_facts::units::AddressRange;

mod diff;
mod focus;
mod frame;
mod group;
mod intern;
#[cfg(test)]
mod tests;
mod tree;
mod trim;

pub use diff::Copy;
pub use diff::{ChangeKind, ProfileDiff, SiteChange};
pub use focus::{Focus, Focused};
pub use frame::{Frame, FrameOrigin, Function};
pub use group::{Group, GroupBy};
use intern::Interned;
pub use tree::{Node, Tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(u32);
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(u32);
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(u32);
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(u32);
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(u32);
/// A counted sum that was divided among entries: a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WholeId(u32);

impl FrameId {
    /// The frame's number; frames of a profile are numbered from 0.
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

impl WholeId {
    /// The number; wholes of a profile are numbered from 0.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl ModuleId {
    /// The index in `Profile::modules`.
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// What a column counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unit {
    #[default]
    Bytes,
    /// Blocks, calls or events; `Column::noun` says which.
    Count,
}

/// The unit chosen by `--weight`, which determines the size of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    #[default]
    Bytes,
    Calls,
}

impl Weight {
    pub fn unit(self) -> Unit {
        match self {
            Weight::Bytes => Unit::Bytes,
            Weight::Calls => Unit::Count,
        }
    }
}

/// A measure in one unit: `live` in bytes is `live_bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// `live`, `peak`, `cumulative`, `requested`, `temporary`, `allocated`, `slow_paths`, …
    pub measure: &'static str,
    pub unit: Unit,
    /// For a count: `block`, `call`, `event`. Empty for bytes.
    pub noun: &'static str,
    /// False if the values belong to different moments, like the sites' peaks: then their sum is an upper bound of the
    /// peak, and views say so.
    pub of_one_moment: bool,
    /// The exact sum, if it is known although the entries are estimates (the books beside the samples).
    pub exact_total: Option<i64>,
    /// What it counts, for the legend of a table. Empty: it has none.
    pub meaning: &'static str,
    /// False if the source could not have it: then 0 isn't a figure, and tables leave the column out.
    pub is_recorded: bool,
}

impl Column {
    pub const fn bytes(measure: &'static str) -> Column {
        Column { noun: "", unit: Unit::Bytes, ..Column::count(measure, "") }
    }

    pub const fn count(measure: &'static str, noun: &'static str) -> Column {
        Column {
            measure,
            unit: Unit::Count,
            noun,
            of_one_moment: true,
            exact_total: None,
            meaning: "",
            is_recorded: true,
        }
    }

    pub const fn means(mut self, meaning: &'static str) -> Column {
        self.meaning = meaning;
        self
    }

    pub const fn of_many_moments(mut self) -> Column {
        self.of_one_moment = false;
        self
    }

    /// Name in JSON, folded stacks and pprof: `live_bytes`, `live_count`.
    pub fn name(&self) -> String {
        let unit = match self.unit {
            Unit::Bytes => "bytes",
            Unit::Count => "count",
        };
        format!("{}_{unit}", self.measure)
    }
}

/// An amount, and the variance of its estimate (0 if counted).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Value {
    pub amount: i64,
    pub variance: f64,
}

impl Value {
    pub fn exact(amount: u64) -> Value {
        Value { amount: i64::try_from(amount).unwrap_or(i64::MAX), variance: 0.0 }
    }

    pub fn estimated(amount: u64, variance: f64) -> Value {
        // A damaged source may have any bits.
        Value { variance: if variance.is_finite() { variance.max(0.0) } else { 0.0 }, ..Value::exact(amount) }
    }

    /// Half the width of the 95 % interval; 0 if the amount was counted.
    pub fn error(self) -> u64 {
        (1.96 * self.variance.sqrt()).ceil() as u64
    }

    pub fn plus(self, other: Value) -> Value {
        Value { amount: self.amount.saturating_add(other.amount), variance: self.variance + other.variance }
    }

    /// The difference of two independent values.
    pub fn minus(self, other: Value) -> Value {
        Value { amount: self.amount.saturating_sub(other.amount), variance: self.variance + other.variance }
    }
}

/// An object file (or another origin of code) that contains frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Module {
    pub path: String,
    pub build_id: Vec<u8>,
    pub range: AddressRange,
    /// Avma = Svma + bias.
    pub bias: u64,
}

impl Module {
    /// The last component of the path.
    pub fn name(&self) -> &str {
        match self.path.rsplit('/').next() {
            Some(name) if !name.is_empty() => name,
            _ => &self.path,
        }
    }
}

/// Further properties of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels {
    pub category: Option<NameId>,
    pub thread: Option<NameId>,
    /// Class of the allocated object.
    pub class: Option<NameId>,
}

/// A stack with labels. Its values are in the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub stack: StackId,
    pub labels: Labels,
}

#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// What the profile shows, in one line (`live native memory of java -jar shop.jar, pid 4711`).
    pub title: String,
    /// Time of the snapshot or of the recording's end, ns since 1970; 0 if unknown.
    pub time_ns: u64,
    pub columns: Vec<Column>,
    pub gaps: Vec<Gap>,
    modules: Interned<Module>,
    names: Interned<str>,
    functions: Interned<Function>,
    frames: Interned<Frame>,
    /// Bytes of the items in `frames`, with their texts.
    frame_bytes: usize,
    /// Function of each frame.
    function_of: Vec<FunctionId>,
    stacks: Interned<[FrameId]>,
    entries: Vec<Entry>,
    entry_of: HashMap<Entry, u32, RandomState>,
    /// Frames of all entries' stacks.
    depth: usize,
    /// `columns.len()` values per entry.
    values: Vec<Value>,
    /// The whole of each entry, and how many of its parts the entry has.
    parts: Vec<Option<Parts>>,
    /// Number of parts of each whole.
    wholes: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    of: WholeId,
    number: u32,
}

/// Limit of all frames with their texts, in bytes. Each line of a function is a frame with a copy of its name. An
/// untrusted file may have one name of megabytes in a million lines, or a short name in many millions of lines. Six
/// bytes of a recording make a frame.
const FRAME_BYTES: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// Limit of the frames of all entries together. A view visits the frames of each entry, also if several entries have
/// the same stack. A file from elsewhere may have one stack of millions of frames in 300,000 entries. A deep recording
/// of a JVM (stackdepth=1024) has 50,000 entries of 700 frames: 35 million.
const FRAMES: usize = if cfg!(test) { 1 << 12 } else { 64 << 20 };

/// Building. Equal items are stored once. Callers may cache ids by their own keys to save lookups.
impl Profile {
    pub fn new(columns: Vec<Column>) -> Profile {
        Profile { columns, ..Profile::default() }
    }

    pub fn module(&mut self, module: Module) -> ModuleId {
        ModuleId(self.modules.intern(Arc::new(module)))
    }

    /// A category's, thread's or class's name, for `Labels`.
    pub fn name(&mut self, name: &str) -> NameId {
        NameId(self.names.intern_ref(name))
    }

    pub fn frame(&mut self, frame: Frame) -> FrameId {
        if let Some(known) = self.frames.find(&frame) {
            return FrameId(known);
        }
        let bytes = self.frame_bytes.saturating_add(size_of::<Frame>()).saturating_add(frame.text());
        if bytes > FRAME_BYTES && frame != Frame::beyond() {
            return self.frame(Frame::beyond());
        }
        self.frame_bytes = bytes;
        let module = frame.module.and_then(|m| self.modules.get(m.0));
        let function = self.functions.intern(Arc::new(frame.called(module)));
        self.function_of.push(FunctionId(function));
        FrameId(self.frames.intern(Arc::new(frame)))
    }

    /// Adds a stack, innermost frame first. A truncated stack ends in `Frame::truncated`.
    pub fn stack(&mut self, frames: &[FrameId]) -> StackId {
        StackId(self.stacks.intern_ref(frames))
    }

    /// Adds one value per column; missing ones count as 0. Equal stacks with equal labels share an entry.
    pub fn add(&mut self, stack: StackId, labels: Labels, values: &[Value]) {
        self.add_parts(stack, labels, None, values);
    }

    /// A counted sum, to be divided by [`Profile::add_part`].
    pub fn whole(&mut self) -> WholeId {
        self.wholes.push(0);
        WholeId(self.wholes.len() as u32 - 1)
    }

    /// As [`Profile::add`]. All parts of `whole` together have no error.
    pub fn add_part(&mut self, whole: WholeId, stack: StackId, labels: Labels, values: &[Value]) {
        self.wholes[whole.0 as usize] += 1;
        self.add_parts(stack, labels, Some(Parts { of: whole, number: 1 }), values);
    }

    /// Adds the values of another profile's entry. This profile began as that one's `emptied` copy.
    pub fn add_copy(&mut self, of: &Profile, entry: Entry, (stack, labels): (StackId, Labels), values: &[Value]) {
        let parts = of.entry_of.get(&entry).and_then(|at| of.parts[*at as usize]);
        self.add_parts(stack, labels, parts, values);
    }

    fn add_parts(&mut self, stack: StackId, labels: Labels, parts: Option<Parts>, values: &[Value]) {
        let width = self.columns.len();
        let entry = Entry { stack, labels };
        let at = *self.entry_of.entry(entry).or_insert_with(|| {
            self.entries.push(entry);
            self.depth += self.stacks.get(stack.0).map_or(0, <[FrameId]>::len);
            self.values.extend(std::iter::repeat_n(Value::default(), width));
            self.parts.push(None);
            (self.entries.len() - 1) as u32
        }) as usize;
        let has_error = |values: &[Value]| values.iter().any(|value| value.variance > 0.0);
        self.parts[at] = match (self.parts[at], parts) {
            (Some(is), Some(more)) if is.of == more.of => Some(Parts { number: is.number + more.number, ..is }),
            (is, None) if !has_error(values) => is,
            (None, more) if !has_error(&self.values[at * width..(at + 1) * width]) => more,
            // Parts of several wholes: none of them is ever complete.
            _ => None,
        };
        for (sum, value) in self.values[at * width..].iter_mut().zip(values) {
            *sum = sum.plus(*value);
        }
    }
}

/// Building from a file from elsewhere.
impl Profile {
    /// Adds the values as [`Profile::add`] does, unless they need a new entry and the profile is full. It is full if it
    /// has `entries` of them already, or if their stacks are too deep. Then it returns false. Known entries always
    /// grow.
    #[must_use]
    pub fn add_within(&mut self, entries: usize, stack: StackId, labels: Labels, values: &[Value]) -> bool {
        let is_added = !self.is_full(entries) || self.entry_of.contains_key(&Entry { stack, labels });
        if is_added {
            self.add(stack, labels, values);
        }
        is_added
    }

    fn is_full(&self, entries: usize) -> bool {
        self.entries.len() >= entries || self.depth >= FRAMES
    }
}

/// Reading.
impl Profile {
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (Entry, &[Value])> {
        let width = self.columns.len();
        self.entries.iter().enumerate().map(move |(i, e)| (*e, &self.values[i * width..(i + 1) * width]))
    }

    /// Frames of all entries' stacks together: what a view visits.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The frames of a stack, innermost first; empty for a stack of another profile.
    pub fn frames_of(&self, stack: StackId) -> &[FrameId] {
        self.stacks.get(stack.0).unwrap_or(&[])
    }

    /// # Panics
    /// The id must belong to this profile.
    pub fn frame_at(&self, id: FrameId) -> &Frame {
        self.frames.at(id.0)
    }

    /// The counted sum that an entry is a part of.
    pub fn whole_of(&self, entry: Entry) -> Option<WholeId> {
        let at = *self.entry_of.get(&entry)?;
        self.parts[at as usize].map(|parts| parts.of)
    }

    pub fn function_at(&self, id: FunctionId) -> &Function {
        self.functions.at(id.0)
    }

    pub fn function_of(&self, id: FrameId) -> FunctionId {
        self.function_of[id.0 as usize]
    }

    pub fn module_at(&self, id: ModuleId) -> &Module {
        self.modules.at(id.0)
    }

    pub fn name_at(&self, id: NameId) -> &str {
        self.names.at(id.0)
    }

    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter()
    }

    /// A sum that was counted has no error.
    pub fn total(&self) -> Vec<Value> {
        let mut total = vec![Value::default(); self.columns.len()];
        for (_, values) in self.entries() {
            total.iter_mut().zip(values).for_each(|(sum, v)| *sum = sum.plus(*v));
        }
        for (sum, _) in total.iter_mut().zip(&self.columns).filter(|(sum, of)| of.exact_total == Some(sum.amount)) {
            sum.variance = 0.0;
        }
        total
    }

    /// Notes that the sums of some columns were counted, and are only divided among the entries.
    pub fn sums_are_counted(&mut self, is_counted: impl Fn(usize, &Column) -> bool) {
        let total = self.total();
        for (at, (column, sum)) in self.columns.iter_mut().zip(total).enumerate() {
            let is_divided = sum.variance > 0.0 && is_counted(at, column);
            column.exact_total = is_divided.then_some(sum.amount);
        }
    }

    /// The column of a measure (`live`) in a unit.
    pub fn column(&self, measure: &str, weight: Weight) -> Option<usize> {
        self.columns.iter().position(|c| c.measure == measure && c.unit == weight.unit())
    }

    /// The first column with this unit: the default of views.
    pub fn first_column(&self, weight: Weight) -> Option<usize> {
        self.columns.iter().position(|c| c.unit == weight.unit())
    }

    /// The column of the same measure in the other unit.
    pub fn companion(&self, column: usize) -> Option<usize> {
        let of = self.columns.get(column)?;
        self.columns.iter().position(|c| c.measure == of.measure && c.unit != of.unit)
    }

    /// The same names, frames and columns, without entries.
    pub fn emptied(&self) -> Profile {
        let (entries, values, parts) = (Vec::new(), Vec::new(), Vec::new());
        Profile { entries, entry_of: HashMap::default(), depth: 0, values, parts, ..self.clone() }
    }
}
