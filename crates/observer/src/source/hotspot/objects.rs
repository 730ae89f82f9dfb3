//! References to Java objects and their headers, in the heap of a live VM.
//!
//! ```text
//! narrow reference   base + (n << shift)                                          compressed oops
//! wide reference     the address; of ZGC from 21 on  address │ one of four bits │ 12 others    (zAddress.inline.hpp, load_shift_lookup)
//!
//! header    8   mark, its upper 22 bits the narrow class                          compact headers, 24 on
//!          12   mark │ narrow class
//!          16   mark │ class
//! ```
//!
//! The VM's kind of header isn't queried: an object's class is tried in each form. The collector may move an object
//! meanwhile, so what was read counts only if its class is the expected one.

use super::field_table::FieldTable;
use plimsoll_facts::units::Avma;
use plimsoll_process::proc::memory::{Memory, half_at, word_at};

/// Lowest of the four bits that mark how far a ZGC reference is remapped. The address begins above the bit that is set.
const REMAPPED: u32 = 12;
const COMPACT_CLASS: u32 = 42;

/// Addresses of the static fields, from the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectFields {
    pub oop_base: u64,
    pub oop_shift: u64,
    pub klass_base: u64,
    pub klass_shift: u64,
    /// 0 if there is no such collector.
    pub z_globals: u64,
    /// Offset within the struct that `z_globals` points to.
    pub z_load_shift: u64,
}

impl ObjectFields {
    /// None if the table lacks one.
    pub fn of(fields: &FieldTable) -> Option<ObjectFields> {
        // The names after JDK 21, from 13 to 21, and up to 12.
        let compressed = |of: &str, before: &str, name: &str| {
            let long = format!("{before}.{name}");
            let of_its_class = fields.address(of, name).or_else(|| fields.address(of, &long));
            of_its_class.or_else(|| fields.address("Universe", &long))
        };
        let z = "ZGlobalsForVMStructs";
        let coloured = fields.address(z, "_instance_p").zip(fields.offset(z, "_ZPointerLoadShift"));
        let (z_globals, z_load_shift) = coloured.unwrap_or_default();
        Some(ObjectFields {
            oop_base: compressed("CompressedOops", "_narrow_oop", "_base")?,
            oop_shift: compressed("CompressedOops", "_narrow_oop", "_shift")?,
            klass_base: compressed("CompressedKlassPointers", "_narrow_klass", "_base")?,
            klass_shift: compressed("CompressedKlassPointers", "_narrow_klass", "_shift")?,
            z_globals,
            z_load_shift,
        })
    }
}

/// How this VM encodes references and classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    oop_base: u64,
    oop_shift: u32,
    klass_base: u64,
    klass_shift: u32,
    coloured: bool,
}

impl Encoding {
    pub fn read(memory: &impl Memory, fields: &ObjectFields) -> Option<Encoding> {
        let load_shift = || {
            let globals = memory.word(Avma(fields.z_globals)).filter(|globals| *globals != 0)?;
            memory.word(Avma(memory.word(Avma(globals.checked_add(fields.z_load_shift)?))?))
        };
        Some(Encoding {
            oop_base: memory.word(Avma(fields.oop_base))?,
            oop_shift: memory.half(Avma(fields.oop_shift))? & 31,
            klass_base: memory.word(Avma(fields.klass_base))?,
            klass_shift: memory.half(Avma(fields.klass_shift))? & 31,
            coloured: fields.z_globals != 0 && load_shift().is_some_and(|shift| shift > u64::from(REMAPPED)),
        })
    }

    pub fn narrow(&self, reference: u32) -> u64 {
        match reference {
            0 => 0,
            reference => self.oop_base.wrapping_add(u64::from(reference) << self.oop_shift),
        }
    }

    pub fn wide(&self, reference: u64) -> u64 {
        match (reference >> REMAPPED) & 0xf {
            _ if !self.coloured => reference,
            0 => 0,
            remapped => reference >> (REMAPPED + 1 + remapped.trailing_zeros()),
        }
    }

    /// Class and header length of the object that begins with these bytes, in each possible form.
    pub fn classes(&self, object: &[u8]) -> impl Iterator<Item = (u64, usize)> {
        let of = |narrow: u64| self.klass_base.wrapping_add(narrow << self.klass_shift);
        let compact = word_at(object, 0).map(|mark| (of(mark >> COMPACT_CLASS), 8));
        let narrow = half_at(object, 8).map(|narrow| (of(u64::from(narrow)), 12));
        let whole = word_at(object, 8).map(|class| (class, 16));
        [narrow, whole, compact].into_iter().flatten()
    }

    /// The length of the object's header, if it has this class.
    pub fn header(&self, object: &[u8], class: u64) -> Option<usize> {
        self.classes(object).find(|(of, _)| *of == class).map(|(_, header)| header)
    }
}

/// Two fields of one struct; one read if they lie near each other.
pub fn words(memory: &impl Memory, base: u64, offsets: [u64; 2]) -> Option<[u64; 2]> {
    let (first, last) = (offsets[0].min(offsets[1]), offsets[0].max(offsets[1]));
    let mut bytes = [0; 512];
    let length = usize::try_from(last - first).ok()?.checked_add(8)?;
    let Some(near) = bytes.get_mut(..length) else {
        let word = |offset: u64| memory.word(Avma(base.checked_add(offset)?));
        return Some([word(offsets[0])?, word(offsets[1])?]);
    };
    memory.read(Avma(base.checked_add(first)?), near).then_some(())?;
    Some([word_at(near, (offsets[0] - first) as usize)?, word_at(near, (offsets[1] - first) as usize)?])
}

/// A VM's memory for tests.
#[cfg(test)]
pub mod image {
    use super::*;

    pub const BASE: u64 = 0x10_0000;

    /// Bytes from `BASE` on; every page is present.
    pub struct Image(pub Vec<u8>);

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            let from = at.0.checked_sub(BASE).and_then(|from| usize::try_from(from).ok());
            let bytes = from.and_then(|from| self.0.get(from..from.checked_add(into.len())?));
            bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(1 << 63);
            true
        }
    }
}
