//! DWARF → for each call, the inlined functions around it and their lines. Pure; the bytes may be hostile.
//!
//! All calls of an object are resolved together. So each unit's entries and line program are walked once, and only
//! entries that contain a call are kept:
//! ```text
//! .debug_aranges ─► units with calls ─► entries in preorder: function, inlined, inlined … around each call
//!                                   └─► line program: file and line of each call
//! position of the innermost = its line; of each outer one = call_file, call_line of the one inside it
//! ```
//! Nothing recurses, and every step and byte is counted ([`Budget`]). So entries that refer to each other in circles,
//! or ranges that contain the same call a million times, end in a gap. Split DWARF (.dwo) is not supported.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use gimli::{AttributeValue, EndianSlice, LittleEndian, UnitOffset, UnitRef};

use super::budget::Budget;
use super::units::{Bytes, Dwarf, Unit, Units};

/// One function around a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Name for the linker, and name in the source.
    pub linkage: Option<Vec<u8>>,
    pub name: Option<Vec<u8>>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

impl Level {
    /// Bytes.
    fn memory(&self) -> usize {
        let names = [&self.linkage, &self.name].into_iter().flatten().map(Vec::len).sum::<usize>();
        size_of::<Level>() + names + self.file.as_ref().map_or(0, String::len)
    }
}

/// Limit of references from an entry to the entry that has its name.
const HOPS: usize = 16;
/// Limit of functions inlined into each other.
const DEEPEST: usize = 256;
/// Maximum length of a name, bytes; longer names are cut.
const LONGEST: usize = 16 << 10;
/// Bytes that are passed over in one step: of names, and of instructions of a line program.
const AT_ONCE: usize = 64;
/// Attributes of an entry that are read in one step.
const ATTRIBUTES: usize = 8;

/// The reader of a section's bytes.
pub(crate) fn reader<'a>(bytes: &'a Cow<'a, [u8]>) -> Bytes<'a> {
    EndianSlice::new(bytes, LittleEndian)
}

/// `calls` are addresses as linked, ascending. Returns one list for each, innermost first; empty if nothing is known.
/// The returned sentence gives the reason why lists may be missing. The walk ends when `in_time` says no.
pub(crate) fn levels(
    dwarf: &Dwarf<'_>,
    calls: &[u64],
    in_time: &dyn Fn() -> bool,
) -> (Vec<Vec<Level>>, Option<String>) {
    let (units, budget) = (Units::new(dwarf), Budget::new(in_time));
    let mut walk = Walk { dwarf, calls, units, units_of_sup: None, budget, out: vec![Vec::new(); calls.len()] };
    let reason = walk.all().err();
    (walk.out, reason)
}

struct Walk<'d, 'a> {
    dwarf: &'d Dwarf<'a>,
    calls: &'d [u64],
    units: Units<'a>,
    /// The units of the file that is shared with other objects.
    units_of_sup: Option<Units<'a>>,
    budget: Budget<'d>,
    out: Vec<Vec<Level>>,
}

/// A function or inlined function that contains a call.
#[derive(Clone)]
struct Scope<'a> {
    linkage: Option<Bytes<'a>>,
    name: Option<Bytes<'a>>,
    call_file: Option<u64>,
    call_line: Option<u32>,
}

impl<'a> Walk<'_, 'a> {
    fn all(&mut self) -> Result<(), String> {
        let mut todo: BTreeSet<usize> = (0..self.calls.len()).collect();
        let (named, covered_units) = self.by_aranges();
        for (unit, calls) in named {
            for call in &calls {
                todo.remove(call);
            }
            self.unit(unit, &calls)?;
        }
        if todo.is_empty() {
            return Ok(());
        }
        // Units that are missing in the index (Clang and Rust write none) have their own ranges.
        for index in 0..self.units.headers.len() {
            if covered_units.contains(&index) {
                continue;
            }
            let Some(unit) = self.units.get(self.dwarf, index, &mut self.budget)? else { continue };
            let calls = self.calls_of_root(&unit, &todo)?;
            if !calls.is_empty() {
                self.unit(index, &calls)?;
                for call in calls {
                    if !self.out[call].is_empty() {
                        todo.remove(&call);
                    }
                }
                if todo.is_empty() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Indexes of the calls in [begin, end).
    fn covered(&mut self, begin: u64, end: u64) -> Result<std::ops::Range<usize>, String> {
        let from = self.calls.partition_point(|&c| c < begin);
        let to = from + self.calls[from..].partition_point(|&c| c < end);
        self.budget.step(1 + (to - from) as u64)?;
        Ok(from..to)
    }

    /// Calls by unit, and all units in the index.
    fn by_aranges(&mut self) -> (BTreeMap<usize, BTreeSet<usize>>, BTreeSet<usize>) {
        let (mut named, mut covered_units) = (BTreeMap::<usize, BTreeSet<usize>>::new(), BTreeSet::new());
        let mut headers = self.dwarf.debug_aranges.headers();
        while let Ok(Some(header)) = headers.next() {
            let Some(unit) = self.units.at(header.debug_info_offset().0) else { continue };
            let mut entries = header.entries();
            let mut any = false;
            while let Ok(Some(entry)) = entries.next() {
                any = true;
                let Some(end) = entry.address().checked_add(entry.length()) else { continue };
                let Ok(calls) = self.covered(entry.address(), end) else { return (named, covered_units) };
                if !calls.is_empty() {
                    named.entry(unit).or_default().extend(calls);
                }
            }
            if any {
                covered_units.insert(unit);
            }
        }
        (named, covered_units)
    }

    /// Which of `among` lie in the unit, as its root entry states.
    fn calls_of_root(&mut self, unit: &Unit<'a>, among: &BTreeSet<usize>) -> Result<BTreeSet<usize>, String> {
        let unit = unit.unit_ref(self.dwarf);
        let Ok(mut entries) = unit.entries_raw(None) else { return Ok(BTreeSet::new()) };
        let Ok(Some(abbreviation)) = entries.read_abbreviation() else { return Ok(BTreeSet::new()) };
        self.budget.step(of_attributes(abbreviation))?;
        let mut extent = Extent::default();
        for spec in abbreviation.attributes() {
            let Ok(attribute) = entries.read_attribute(*spec) else { return Ok(BTreeSet::new()) };
            extent.take(unit, &attribute);
        }
        self.calls_of(unit, &extent, among)
    }

    /// Which of `among` lie in an entry.
    fn calls_of(
        &mut self,
        unit: UnitRef<'_, Bytes<'a>>,
        extent: &Extent<'a>,
        among: &BTreeSet<usize>,
    ) -> Result<BTreeSet<usize>, String> {
        let mut calls = BTreeSet::new();
        if let Some(offset) = extent.list.as_ref().and_then(|list| unit.attr_ranges_offset(*list).ok().flatten()) {
            // The iterator of ranges passes over any number of entries without one.
            let Ok(mut raw) = unit.raw_ranges(offset) else { return Ok(calls) };
            while let Ok(Some(_)) = raw.next() {
                self.budget.step(1)?;
            }
            let Ok(mut list) = unit.ranges(offset) else { return Ok(calls) };
            while let Ok(Some(range)) = list.next() {
                calls.extend(self.covered(range.begin, range.end)?.filter(|call| among.contains(call)));
            }
        } else if let Some(low) = extent.low
            && let Some(end) = extent.size.and_then(|size| low.checked_add(size)).or(extent.high)
        {
            calls.extend(self.covered(low, end)?.filter(|call| among.contains(call)));
        }
        Ok(calls)
    }

    fn unit(&mut self, index: usize, wanted: &BTreeSet<usize>) -> Result<(), String> {
        let Some(unit) = self.units.get(self.dwarf, index, &mut self.budget)? else { return Ok(()) };
        let scopes = self.scopes(&unit, wanted)?;
        let rows = self.rows(&unit, wanted)?;
        let unit = unit.unit_ref(self.dwarf);
        let mut files: HashMap<u64, Option<String>> = HashMap::new();
        let budget = &mut self.budget;
        let mut file = |index: u64, budget: &mut Budget<'_>| -> Result<Option<String>, String> {
            if let Some(path) = files.get(&index) {
                return Ok(path.clone());
            }
            let path = path(unit, index, budget)?;
            files.insert(index, path.clone());
            Ok(path)
        };
        for &call in wanted {
            let row = rows.get(&call).copied();
            let chain = scopes.get(&call).map(Vec::as_slice).unwrap_or_default();
            let mut at = match row {
                Some((index, line)) => Some((file(index, budget)?, line)),
                None => None,
            };
            let mut levels: Vec<Level> = Vec::with_capacity(chain.len());
            for scope in chain.iter().rev() {
                let (file_of, line) = at.take().unwrap_or_default();
                let level = Level {
                    linkage: scope.linkage.map(|name| cut(name).to_vec()),
                    name: scope.name.map(|name| cut(name).to_vec()),
                    file: file_of,
                    line,
                };
                budget.keep(level.memory())?;
                levels.push(level);
                let outer = scope.call_file.map(|index| file(index, budget)).transpose()?;
                at = Some((outer.flatten(), scope.call_line));
            }
            if chain.is_empty()
                && let Some((file, line)) = at
            {
                // A line without a function: assembly.
                levels.push(Level { file, line, ..Level::default() });
            }
            if !levels.is_empty() {
                self.out[call] = levels;
            }
        }
        Ok(())
    }

    /// For each wanted call, the scopes around it, outermost first.
    fn scopes(&mut self, unit: &Unit<'a>, wanted: &BTreeSet<usize>) -> Result<HashMap<usize, Vec<Scope<'a>>>, String> {
        let mut out: HashMap<usize, Vec<Scope<'a>>> = HashMap::new();
        let unit = unit.unit_ref(self.dwarf);
        let Ok(mut entries) = unit.entries_raw(None) else { return Ok(out) };
        while !entries.is_empty() {
            let here = entries.next_offset();
            let abbreviation = match entries.read_abbreviation() {
                Ok(Some(abbreviation)) => abbreviation,
                Ok(None) => {
                    self.budget.step(1)?;
                    continue;
                }
                Err(_) => break,
            };
            self.budget.step(of_attributes(abbreviation))?;
            let is_function = abbreviation.tag() == gimli::DW_TAG_subprogram;
            if !is_function && abbreviation.tag() != gimli::DW_TAG_inlined_subroutine {
                if entries.skip_attributes(abbreviation.attributes()).is_err() {
                    break;
                }
                continue;
            }
            let mut extent = Extent::default();
            let (mut call_file, mut call_line, mut sibling, mut broken) = (None, None, None, false);
            for spec in abbreviation.attributes() {
                let Ok(attribute) = entries.read_attribute(*spec) else {
                    broken = true;
                    break;
                };
                extent.take(unit, &attribute);
                match (attribute.name(), attribute.value()) {
                    (gimli::DW_AT_call_file, AttributeValue::FileIndex(file)) => call_file = Some(file),
                    (gimli::DW_AT_call_line, value) => {
                        call_line = value.udata_value().and_then(|line| u32::try_from(line).ok());
                    }
                    (gimli::DW_AT_sibling, AttributeValue::UnitRef(offset)) => sibling = Some(offset),
                    _ => {}
                }
            }
            if broken {
                break;
            }
            let covered = self.calls_of(unit, &extent, wanted)?;
            if covered.is_empty() {
                // Skip the contents of a function without wanted calls. Only a later offset is accepted, so that the
                // walk ends.
                if let Some(next) = sibling.filter(|s| *s > entries.next_offset())
                    && let Ok(after) = unit.entries_raw(Some(next))
                {
                    entries = after;
                }
                continue;
            }
            let (linkage, name) = self.name(unit, here)?;
            for call in covered {
                let chain = out.entry(call).or_default();
                if is_function {
                    chain.clear();
                }
                // An inlined function outside any function with the call would be a contradiction.
                if chain.len() < DEEPEST && (is_function || !chain.is_empty()) {
                    self.budget.keep(size_of::<Scope<'_>>())?;
                    chain.push(Scope { linkage, name, call_file, call_line });
                }
            }
        }
        Ok(out)
    }

    /// Linkage name and source name of an entry: its own, or those of the entry that it is an instance of.
    #[allow(clippy::type_complexity, reason = "a private type used once")]
    fn name(
        &mut self,
        unit: UnitRef<'_, Bytes<'a>>,
        offset: UnitOffset,
    ) -> Result<(Option<Bytes<'a>>, Option<Bytes<'a>>), String> {
        let dwarf = self.dwarf;
        let mut name = None;
        let mut next = self.one_name(unit, offset, &mut name)?;
        let mut at: Option<(std::rc::Rc<Unit<'a>>, bool)> = None;
        for _ in 0..HOPS {
            let Some(step) = next else { break };
            let (unit, offset, in_sup) = match step {
                Step::Linkage(linkage) => return Ok((Some(linkage), name)),
                Step::Entry(AttributeValue::UnitRef(offset)) => match &at {
                    Some((unit, in_sup)) => (unit.clone(), offset, *in_sup),
                    None => {
                        next = self.one_name(unit, offset, &mut name)?;
                        continue;
                    }
                },
                Step::Entry(AttributeValue::DebugInfoRef(offset)) => {
                    let in_sup = at.as_ref().is_some_and(|a| a.1);
                    let Some((unit, offset)) = self.containing(in_sup, offset.0)? else { break };
                    (unit, offset, in_sup)
                }
                Step::Entry(AttributeValue::DebugInfoRefSup(offset)) => {
                    let Some((unit, offset)) = self.containing(true, offset.0)? else { break };
                    (unit, offset, true)
                }
                Step::Entry(_) => break,
            };
            let of = if in_sup { dwarf.sup().unwrap_or(dwarf) } else { dwarf };
            next = self.one_name(unit.unit_ref(of), offset, &mut name)?;
            at = Some((unit, in_sup));
        }
        Ok((None, name))
    }

    #[allow(clippy::type_complexity, reason = "a private type used once")]
    fn containing(
        &mut self,
        in_sup: bool,
        offset: usize,
    ) -> Result<Option<(std::rc::Rc<Unit<'a>>, UnitOffset)>, String> {
        if !in_sup {
            return self.units.containing(self.dwarf, offset, &mut self.budget);
        }
        let Some(sup) = self.dwarf.sup() else { return Ok(None) };
        self.units_of_sup.get_or_insert_with(|| Units::new(sup)).containing(sup, offset, &mut self.budget)
    }

    /// Reads one entry: its linkage name, or the entry to continue with.
    fn one_name(
        &mut self,
        unit: UnitRef<'_, Bytes<'a>>,
        offset: UnitOffset,
        name: &mut Option<Bytes<'a>>,
    ) -> Result<Option<Step<'a>>, String> {
        self.budget.step(1)?;
        let Ok(mut entries) = unit.entries_raw(Some(offset)) else { return Ok(None) };
        let Ok(Some(abbreviation)) = entries.read_abbreviation() else { return Ok(None) };
        self.budget.step(of_attributes(abbreviation))?;
        let mut next = None;
        for spec in abbreviation.attributes() {
            let before = entries.next_offset().0;
            let Ok(attribute) = entries.read_attribute(*spec) else { return Ok(None) };
            self.budget.step(((entries.next_offset().0 - before) / AT_ONCE) as u64)?;
            match attribute.name() {
                gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                    if let Ok(linkage) = unit.attr_string(attribute.value()) {
                        self.budget.step((linkage.len() / AT_ONCE) as u64)?;
                        return Ok(Some(Step::Linkage(linkage)));
                    }
                }
                gimli::DW_AT_name if name.is_none() => {
                    *name = unit.attr_string(attribute.value()).ok();
                    self.budget.step((name.map_or(0, |name| name.len()) / AT_ONCE) as u64)?;
                }
                gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                    next = Some(Step::Entry(attribute.value()))
                }
                _ => {}
            }
        }
        Ok(next)
    }

    /// File index and line of each wanted call.
    #[allow(clippy::type_complexity, reason = "a private type used once")]
    fn rows(
        &mut self,
        unit: &Unit<'a>,
        wanted: &BTreeSet<usize>,
    ) -> Result<HashMap<usize, (u64, Option<u32>)>, String> {
        let mut out = HashMap::new();
        let Some(program) = unit.line_program.clone() else { return Ok(out) };
        // Any number of instructions may lie between two rows.
        self.budget.step((program.header().raw_program_buf().len() / AT_ONCE) as u64)?;
        let mut rows = program.rows();
        let mut last: Option<(u64, u64, Option<u32>)> = None;
        while let Ok(Some((_, row))) = rows.next_row() {
            self.budget.step(1)?;
            let address = row.address();
            if let Some((begin, file, line)) = last
                && begin < address
            {
                for call in self.covered(begin, address)?.filter(|call| wanted.contains(call)) {
                    out.insert(call, (file, line));
                }
            }
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
            last = (!row.end_sequence()).then(|| (address, row.file_index(), line));
        }
        Ok(out)
    }
}

enum Step<'a> {
    Linkage(Bytes<'a>),
    Entry(AttributeValue<Bytes<'a>>),
}

/// The address range of an entry, from its attributes.
#[derive(Default)]
struct Extent<'a> {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    list: Option<AttributeValue<Bytes<'a>>>,
}

impl<'a> Extent<'a> {
    fn take(&mut self, unit: UnitRef<'_, Bytes<'a>>, attribute: &gimli::Attribute<Bytes<'a>>) {
        match attribute.name() {
            gimli::DW_AT_low_pc => self.low = unit.attr_address(attribute.value()).ok().flatten(),
            gimli::DW_AT_high_pc => match attribute.value() {
                AttributeValue::Udata(size) => self.size = Some(size),
                value => self.high = unit.attr_address(value).ok().flatten(),
            },
            gimli::DW_AT_ranges => self.list = Some(attribute.value()),
            _ => {}
        }
    }
}

/// Steps for an entry.
fn of_attributes(abbreviation: &gimli::Abbreviation) -> u64 {
    1 + (abbreviation.attributes().len() / ATTRIBUTES) as u64
}

fn cut<'a>(name: Bytes<'a>) -> &'a [u8] {
    let name = name.slice();
    name.get(..LONGEST).unwrap_or(name)
}

/// The path of a unit's file, as the compiler saw it.
fn path(unit: UnitRef<'_, Bytes<'_>>, index: u64, budget: &mut Budget<'_>) -> Result<Option<String>, String> {
    let Some(header) = unit.line_program.as_ref().map(|program| program.header()) else { return Ok(None) };
    let Some(file) = header.file(index) else { return Ok(None) };
    // Up to version 4, directory 0 is the unit's own.
    let directory = (header.version() >= 5 || file.directory_index() != 0).then(|| file.directory(header)).flatten();
    let Ok(name) = unit.attr_string(file.path_name()) else { return Ok(None) };
    let mut path = String::new();
    for part in
        [unit.comp_dir, directory.and_then(|part| unit.attr_string(part).ok()), Some(name)].into_iter().flatten()
    {
        budget.step((part.len() / AT_ONCE) as u64)?;
        let part = String::from_utf8_lossy(cut(part));
        if part.starts_with('/') {
            path.clear();
        } else if !path.is_empty() && !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(&part);
    }
    Ok(Some(path))
}
