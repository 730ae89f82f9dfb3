//! Reads the constants of a chunk from its checkpoint events, and finds one by its key.
//!
//! ```text
//! checkpoint   size | type 1 | start | duration | delta | kind u8 | count, pools …
//! pool         type id | count, entries …
//! entry        key | value as its type's fields
//! ```
//! `delta` is the distance to the previous checkpoint, 0 at the first. The values stay encoded in one buffer. If
//! several checkpoints define a key, the earliest one wins, as in the JDK's reader.

use std::cell::Cell;

use super::cursor::{Broken, Cursor, Parsed};
use super::schema::Schema;
use super::types::FieldType;
use super::{Limits, shape, text};
use crate::format::CHECKPOINT;

#[derive(Default)]
pub(super) struct Pools {
    bytes: Vec<u8>,
    pools: Vec<Pool>,
    count: usize,
    /// Number and bytes of the constants beyond the limits.
    pub left_out: (u64, u64),
    pub string: Option<u32>,
    /// What decoding may still cost (`Limits::decoding`). At 0, no further constant is found.
    left: Cell<u64>,
    /// Fields that events may still have beyond one for each of their bytes. They don't share the budget of the texts:
    /// when that is used up, the numbers of later events are still read.
    fields_left: Cell<u64>,
}

/// Cost of a look-up, in bytes of text.
pub(super) const LOOK_UP: u64 = 8;
/// What each byte of a chunk allows. A frame of a JVM's stack has 6 bytes and is decoded once. It costs nine look-ups
/// (72) and the lengths of the names of its class, method and kind. Together that is about 170, and 250 to 350 if the
/// class is a lambda's or CGLIB's. So a chunk of only such frames costs an estimated 42 to 58 for each byte.
const FOR_EACH_BYTE: u64 = 64;
/// Cost of a field beyond an event's bytes, in bytes of text.
const FIELD: u64 = 4;

#[derive(Default)]
struct Pool {
    is_wanted: bool,
    index: Vec<(i64, u32)>,
}

pub(super) struct Checkpoint {
    pub delta: i64,
    pub pools: usize,
}

/// Reads a checkpoint's header, up to its first pool.
pub(super) fn checkpoint(cursor: &mut Cursor<'_>) -> Parsed<Checkpoint> {
    cursor.i32()?;
    if cursor.i64()? != CHECKPOINT {
        return Err(Broken::Malformed("no checkpoint where one should be"));
    }
    cursor.i64()?;
    cursor.i64()?;
    let delta = cursor.i64()?;
    cursor.u8()?;
    Ok(Checkpoint { delta, pools: cursor.count()? })
}

impl Pools {
    pub(super) fn new(decoding: u64) -> Pools {
        Pools { left: Cell::new(decoding), fields_left: Cell::new(decoding / FIELD), ..Pools::default() }
    }

    /// Clears the pools for the next chunk and marks those that events of these types can refer to. Reuses the buffers.
    pub(super) fn begin(&mut self, schema: &Schema, events: impl Iterator<Item = u32>) {
        self.bytes.clear();
        self.left_out = (0, 0);
        self.count = 0;
        self.pools.iter_mut().for_each(|pool| {
            pool.is_wanted = false;
            pool.index.clear();
        });
        self.pools.resize_with(schema.types.len(), Pool::default);
        self.string = schema.index_by_name("java.lang.String");
        let mut seen = vec![false; schema.types.len()];
        let mut to_do: Vec<u32> = events.collect();
        while let Some(index) = to_do.pop() {
            if std::mem::replace(&mut seen[index as usize], true) {
                continue;
            }
            for field in &schema.types[index as usize].fields {
                if let (FieldType::String, false, Some(string)) = (field.kind, field.constant, self.string) {
                    self.pools[string as usize].is_wanted = true;
                }
                if let Some(next) = field.type_index {
                    self.pools[next as usize].is_wanted |= field.constant;
                    to_do.push(next);
                }
            }
        }
    }

    /// Allows decoding for `bytes` more bytes of the recording.
    pub(super) fn allow(&self, bytes: u64) {
        let more = bytes.saturating_mul(FOR_EACH_BYTE);
        self.left.set(self.left.get().saturating_add(more));
        self.fields_left.set(self.fields_left.get().saturating_add(more / FIELD));
    }

    /// Pays for a step of decoding. False: nothing is left.
    #[inline]
    pub(super) fn pay(&self, cost: u64) -> bool {
        let left = self.left.get().saturating_sub(cost);
        self.left.set(left);
        left > 0
    }

    /// Pays for fields beyond an event's bytes. False: fewer are left than this event needs. Later events may need
    /// fewer.
    #[inline]
    pub(super) fn pay_fields(&self, count: u64) -> bool {
        let left = self.fields_left.get().checked_sub(count);
        self.fields_left.set(left.unwrap_or(self.fields_left.get()));
        left.is_some()
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.left.get() == 0
    }

    pub(super) fn wants_any(&self) -> bool {
        self.pools.iter().any(|pool| pool.is_wanted)
    }

    /// Keeps those of `count` entries that are complete in `bytes`. Returns how many were complete, the bytes that they
    /// took, and why the next one could not be read.
    pub(super) fn entries(
        &mut self,
        (schema, limits): (&Schema, &Limits),
        type_index: u32,
        count: usize,
        bytes: &[u8],
        compressed: bool,
    ) -> (usize, usize, Parsed<()>) {
        let mut cursor = Cursor::new(bytes, compressed);
        let is_string = Some(type_index) == self.string;
        for done in 0..count {
            let begin = cursor.at;
            let mut entry = || {
                let key = cursor.i64()?;
                let body = cursor.at;
                if is_string {
                    text::skip(&mut cursor)?
                } else {
                    shape::skip(&schema.types, type_index, &mut cursor)?
                }
                Ok((key, body))
            };
            match entry() {
                Ok((key, body)) => self.keep(limits, type_index, key, &bytes[body..cursor.at]),
                Err(broken) => return (done, begin, Err(broken)),
            }
        }
        (count, cursor.at, Ok(()))
    }

    fn keep(&mut self, limits: &Limits, type_index: u32, key: i64, value: &[u8]) {
        let Some(pool) = self.pools.get_mut(type_index as usize).filter(|pool| pool.is_wanted) else { return };
        if self.bytes.len() + value.len() > limits.constants || self.count >= limits.constant_count {
            self.left_out = (self.left_out.0 + 1, self.left_out.1 + value.len() as u64);
            return;
        }
        pool.index.push((key, self.bytes.len() as u32));
        self.bytes.extend_from_slice(value);
        self.count += 1;
    }

    /// Sorts the index after the last checkpoint. Entries came in the order of the file; the first of each key stays.
    pub(super) fn finish(&mut self) {
        for pool in self.pools.iter_mut().filter(|pool| pool.is_wanted) {
            pool.index.sort_by_key(|(key, _)| *key);
            pool.index.dedup_by_key(|(key, _)| *key);
        }
    }

    /// The bytes from the value's first byte on.
    pub(super) fn get(&self, type_index: u32, key: i64) -> Option<&[u8]> {
        let pool = self.pools.get(type_index as usize)?;
        let found = pool.index.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.bytes.get(pool.index[found].1 as usize..)
    }
}
