//! Reads how much direct memory java.nio counts, from the VM's memory. No command reports it, and with NMT off it is
//! the only source. The path is the serviceability agent's: `gHotSpotVMStructs` (runtime/vmStructs.hpp), the table in
//! which every libjvm states the offsets of its fields:
//!
//! ```text
//! ClassLoaderDataGraph::_head ─ _next ─▶ … those without a class loader: the boot loader's
//!     _klasses ─ _next_link ─▶ … the Klass named java/nio/Bits ─ _java_mirror ─▶ its java.lang.Class
//!         static fields ─▶ three AtomicLongs: RESERVED_MEMORY ≥ TOTAL_CAPACITY ≥ COUNT
//! ```
//!
//! The table of JDK 8 has no list of a loader's classes. There every class is below java.lang.Object:
//!
//! ```text
//! Object's Klass ─ _subklass ─▶ a Klass ─ _next_sibling ─▶ …            each with its own subclasses
//!     _class_loader_data ─▶ _class_loader                                null: the boot loader's
//!     _java_mirror ─▶ its java.lang.Class                                itself, where later versions have a handle
//! ```
//!
//! Netty allocates with Unsafe if it may, and java.nio doesn't count that memory. Netty's own count has the same form:
//! `io.netty.util.internal.PlatformDependent` (also under a shaded name) has one static AtomicLong,
//! DIRECT_MEMORY_COUNTER. The field is null if Netty allocates through java.nio.
//!
//! The target keeps running; if the result is implausible, it is discarded.

use super::field_table::FieldTable;
use super::objects::{self, Encoding, words};
use plimsoll_facts::snapshot::DirectBuffers;
use plimsoll_facts::units::{Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, half_at, word_at};

const BITS: &str = "java/nio/Bits";
/// The end of the name of a class that any class loader may have.
const NETTY: &str = "io/netty/util/internal/PlatformDependent";
/// A program may have several copies of Netty, under shaded names.
const MOST_NETTYS: usize = 4;
/// A class with a longer name isn't Netty's.
const LONGEST_NAME: usize = 160;
const ATOMIC_LONG: &str = "java/util/concurrent/atomic/AtomicLong";
const MOST_LOADERS: usize = 200_000;
/// Limit of classes to search: one for the boot loader's classes, and one for all others. The boot loader's entry is
/// the last one, and has the classes of java.nio. Without lists by loader, it is one limit for all classes.
pub(super) const MOST_CLASSES: usize = 100_000;
/// A java.lang.Class with its static fields has a few hundred bytes.
const LONGEST_MIRROR: u64 = 4096;

/// Offsets of fields and addresses of static fields, from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferFields {
    pub classes: Classes,
    pub loader_object: u64,
    pub klass_name: u64,
    pub klass_mirror: u64,
    pub symbol_length: u64,
    pub symbol_body: u64,
    pub mirror_size: u64,
    pub objects: objects::ObjectFields,
}

/// How to reach all classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classes {
    /// Each loader's list.
    OfLoaders { head: u64, next_loader: u64, klasses: u64, next_klass: u64 },
    /// JDK 8: down from java.lang.Object, whose Klass is at a static address.
    Below { object: u64, first: u64, next: u64, loader: u64 },
}

impl Classes {
    fn of(fields: &FieldTable) -> Option<Classes> {
        let Some(klasses) = fields.offset("ClassLoaderData", "_klasses") else {
            let object = "_well_known_klasses[SystemDictionary::Object_klass_knum]";
            return Some(Classes::Below {
                object: fields.address("SystemDictionary", object)?,
                first: fields.offset("Klass", "_subklass")?,
                next: fields.offset("Klass", "_next_sibling")?,
                loader: fields.offset("InstanceKlass", "_class_loader_data")?,
            });
        };
        Some(Classes::OfLoaders {
            head: fields.address("ClassLoaderDataGraph", "_head")?,
            next_loader: fields.offset("ClassLoaderData", "_next")?,
            klasses,
            next_klass: fields.offset("Klass", "_next_link")?,
        })
    }

    /// Whether a class refers to its java.lang.Class through a handle.
    fn have_handles(self) -> bool {
        matches!(self, Classes::OfLoaders { .. })
    }
}

impl BufferFields {
    /// None if the table lacks one.
    pub fn of(fields: &FieldTable) -> Option<BufferFields> {
        Some(BufferFields {
            classes: Classes::of(fields)?,
            loader_object: fields.offset("ClassLoaderData", "_class_loader")?,
            klass_name: fields.offset("Klass", "_name")?,
            klass_mirror: fields.offset("Klass", "_java_mirror")?,
            symbol_length: fields.offset("Symbol", "_length")?,
            symbol_body: fields.offset("Symbol", "_body")?,
            mirror_size: fields.address("java_lang_Class", "_oop_size_offset")?,
            objects: objects::ObjectFields::of(fields)?,
        })
    }
}

/// The two classes. A class never moves; collections move the objects that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferClasses {
    bits: u64,
    atomic_long: u64,
    /// Netty's classes; 0 in unused entries.
    netty: [u64; MOST_NETTYS],
}

/// None if a class isn't loaded yet (no direct buffer was ever created), or if the path ends elsewhere.
pub fn find_classes(memory: &impl Memory, fields: &BufferFields) -> Option<BufferClasses> {
    search(memory, fields)?.classes()
}

/// None if the path ends elsewhere.
pub(super) fn search(memory: &impl Memory, fields: &BufferFields) -> Option<Found> {
    let at = |base: u64, offset: u64| base.checked_add(offset).and_then(|at| memory.word(Avma(at)));
    let mut found = Found::default();
    match fields.classes {
        Classes::OfLoaders { head, next_loader, klasses, next_klass } => {
            let mut loader = memory.word(Avma(head))?;
            let (mut of_boot, mut others) = (0, 0);
            for _ in 0..MOST_LOADERS {
                if loader == 0 {
                    break;
                }
                // Hidden classes of the boot loader have entries of their own without a class loader object, like the
                // boot loader's entry.
                let is_boot = at(loader, fields.loader_object)? == 0;
                let classes = if is_boot { &mut of_boot } else { &mut others };
                let mut klass = at(loader, klasses)?;
                while klass != 0 && *classes < MOST_CLASSES {
                    let [symbol, next] = words(memory, klass, [fields.klass_name, next_klass])?;
                    found.meet(klass, named(memory, fields, symbol), || is_boot);
                    klass = next;
                    *classes += 1;
                }
                found.is_cut |= klass != 0;
                loader = at(loader, next_loader)?;
            }
            found.is_cut |= loader != 0;
            found.has_boot = of_boot > 0;
        }
        Classes::Below { object, first, next, loader } => {
            let is_boot = |klass| at(at(klass, loader)?, fields.loader_object);
            let mut left = vec![memory.word(Avma(object))?];
            found.has_boot = left.first().and_then(|object| is_boot(*object)) == Some(0);
            for _ in 0..MOST_CLASSES {
                let Some(klass) = left.pop() else { break };
                let [symbol, below] = words(memory, klass, [fields.klass_name, first])?;
                found.meet(klass, named(memory, fields, symbol), || is_boot(klass) == Some(0));
                left.extend([below, at(klass, next)?].into_iter().filter(|klass| *klass != 0));
            }
            found.is_cut = !left.is_empty();
        }
    }
    Some(found)
}

/// The classes that the search found.
#[derive(Default)]
pub(super) struct Found {
    bits: Option<u64>,
    atomic_long: Option<u64>,
    netty: [u64; MOST_NETTYS],
    /// There were more classes than are searched.
    pub(super) is_cut: bool,
    /// Classes of the boot loader were among those searched.
    has_boot: bool,
}

impl Found {
    /// None if a class isn't loaded yet.
    pub(super) fn classes(&self) -> Option<BufferClasses> {
        Some(BufferClasses { bits: self.bits?, atomic_long: self.atomic_long?, netty: self.netty })
    }

    /// Whether all classes were searched, the boot loader's among them, and neither java.nio's nor Netty's is loaded.
    pub(super) fn counts_nothing(&self) -> bool {
        self.has_boot && !self.is_cut && self.bits.is_none() && self.netty == [0; MOST_NETTYS]
    }

    fn meet(&mut self, klass: u64, wanted: Option<BufferClass>, is_boot: impl Fn() -> bool) {
        match wanted {
            Some(BufferClass::Bits) if is_boot() => self.bits = Some(klass),
            Some(BufferClass::AtomicLong) if is_boot() => self.atomic_long = Some(klass),
            Some(BufferClass::Netty) => {
                if let Some(free) = self.netty.iter_mut().find(|other| **other == 0) {
                    *free = klass;
                }
            }
            _ => {}
        }
    }
}

/// The count of a VM that has not loaded the classes that count: no buffer was ever created.
pub(super) fn none() -> DirectBuffers {
    DirectBuffers { count: Some(0), ..DirectBuffers::default() }
}

pub fn read(memory: &impl Memory, fields: &BufferFields, classes: BufferClasses) -> Option<DirectBuffers> {
    let BufferClasses { bits, atomic_long, netty } = classes;
    let encoding = Encoding::read(memory, &fields.objects)?;
    let counts = |klass: u64| counts(memory, fields, &encoding, klass, atomic_long);
    let mut values = counts(bits)?;
    values.sort_unstable_by(|one, other| other.cmp(one));
    // A buffer counts at least one byte of capacity and reserves at least its capacity. So sorting shows which value is
    // which.
    let [reserved, _, count] = *values else { return None };
    let of_netty = netty.into_iter().filter(|klass| *klass != 0).filter_map(|klass| match *counts(klass)? {
        [count] => Some(Bytes(count)),
        _ => None,
    });
    let (capacity, by_netty) = (Bytes(reserved), of_netty.sum());
    Some(DirectBuffers { count: Some(count), capacity, at_walk: capacity, by_netty, ..DirectBuffers::default() })
}

/// Values of the AtomicLongs among the static fields of a class.
fn counts(
    memory: &impl Memory,
    fields: &BufferFields,
    encoding: &Encoding,
    klass: u64,
    atomic_long: u64,
) -> Option<Vec<u64>> {
    let mirror = klass.checked_add(fields.klass_mirror).and_then(|at| memory.word(Avma(at)))?;
    let mirror = if fields.classes.have_handles() { encoding.wide(memory.word(Avma(mirror))?) } else { mirror };
    let size_offset = u64::from(memory.half(Avma(fields.mirror_size))?);
    let size = u64::from(memory.half(Avma(mirror.checked_add(size_offset)?))?).checked_mul(8)?.min(LONGEST_MIRROR);
    let mut object = vec![0; size as usize];
    if !memory.read(Avma(mirror), &mut object) {
        return None;
    }
    let value = |object| value_of(memory, encoding, object, atomic_long);
    let narrow = (0..object.len() / 4).filter_map(|n| half_at(&object, n * 4)).map(|word| encoding.narrow(word));
    let wide = (0..object.len() / 8).filter_map(|n| word_at(&object, n * 8)).map(|word| encoding.wide(word));
    let values: Vec<u64> = narrow.filter_map(value).collect();
    Some(if values.is_empty() { wide.filter_map(value).collect() } else { values })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BufferClass {
    Bits,
    AtomicLong,
    Netty,
}

/// Which of the classes searched for has this symbol as its name.
fn named(memory: &impl Memory, fields: &BufferFields, symbol: u64) -> Option<BufferClass> {
    let mut bytes = [0; LONGEST_NAME];
    memory.read(Avma(symbol.checked_add(fields.symbol_length)?), &mut bytes[..2]).then_some(())?;
    let length = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let could_be = length == BITS.len() || length == ATOMIC_LONG.len() || length >= NETTY.len();
    let name = bytes.get_mut(..length).filter(|_| could_be)?;
    memory.read(Avma(symbol.checked_add(fields.symbol_body)?), name).then_some(())?;
    match &*name {
        name if name == BITS.as_bytes() => Some(BufferClass::Bits),
        name if name == ATOMIC_LONG.as_bytes() => Some(BufferClass::AtomicLong),
        name => {
            let before = name.strip_suffix(NETTY.as_bytes())?;
            (before.is_empty() || before.ends_with(b"/")).then_some(BufferClass::Netty)
        }
    }
}

/// The value of the AtomicLong at `object`, if the object is one.
fn value_of(memory: &impl Memory, encoding: &Encoding, object: u64, atomic_long: u64) -> Option<u64> {
    if object == 0 || !object.is_multiple_of(8) {
        return None;
    }
    let mut bytes = [0; 24];
    if !memory.read(Avma(object), &mut bytes) {
        return None;
    }
    let header = encoding.header(&bytes, atomic_long)?;
    word_at(&bytes, header.next_multiple_of(8)).filter(|value| *value < 1 << 50)
}
