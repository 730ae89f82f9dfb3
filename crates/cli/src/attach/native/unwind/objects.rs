//! The unwind tables of all objects of a process, by address.

use std::ops::Range;

use object::ReadRef;
use plimsoll_facts::snapshot::Vma;

use super::table::{self, Table};

/// Limit of all tables together, in bytes.
const MOST_BYTES: usize = 256 << 20;

#[derive(Default)]
pub struct Tables {
    tables: Vec<Table>,
    parts: Vec<Part>,
    bytes: usize,
}

/// A mapping with code.
struct Part {
    range: Range<u64>,
    inode: u64,
    table: usize,
    /// Address in the process − address in the file.
    bias: u64,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} unwind tables", self.tables.len())
    }
}

impl Tables {
    /// Adds the table of an object, if it has one. `parts`: its mappings with code.
    pub fn add<'d, R: ReadRef<'d>>(&mut self, data: R, parts: &[&Vma]) {
        let Some(table) = Some(()).filter(|()| self.bytes < MOST_BYTES).and_then(|()| Table::read(data)) else {
            return;
        };
        for vma in parts {
            let Some(bias) = table::bias(data, vma) else { continue };
            let range = vma.range.start.0..vma.range.end.0;
            self.parts.push(Part { range, inode: vma.inode, table: self.tables.len(), bias });
        }
        self.bytes += table.bytes();
        self.tables.push(table);
    }

    /// The tables of what is still mapped.
    pub fn current<'t>(&'t self, vmas: &[Vma]) -> Current<'t> {
        // The kernel lists mappings by address.
        let is_mapped = |part: &&Part| {
            let at = vmas.partition_point(|vma| vma.range.start.0 < part.range.start);
            let is = |vma: &Vma| (vma.range.start.0..vma.range.end.0, vma.inode) == (part.range.clone(), part.inode);
            vmas.get(at).is_some_and(is)
        };
        let mut parts: Vec<&Part> = self.parts.iter().filter(is_mapped).collect();
        parts.sort_unstable_by_key(|part| part.range.start);
        Current { tables: &self.tables, parts }
    }
}

pub struct Current<'t> {
    tables: &'t [Table],
    parts: Vec<&'t Part>,
}

impl<'t> Current<'t> {
    /// The table for an address in the process, and the address in the file.
    pub fn at(&self, address: u64) -> Option<(&'t Table, u64)> {
        let next = self.parts.partition_point(|part| part.range.start <= address);
        let part = self.parts.get(next.checked_sub(1)?).filter(|part| address < part.range.end)?;
        Some((self.tables.get(part.table)?, address.wrapping_sub(part.bias)))
    }
}
