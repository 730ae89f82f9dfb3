//! One event: its bytes, and the offset of each field in them.

use std::borrow::Cow;

use super::cursor::Parsed;
use super::shape;
use super::stack::{Stack, Thread};
use super::types::Type;
use super::value::{Chunk, Object, Value};

/// One event, a view of its bytes. Fields are decoded on request.
#[derive(Clone, Copy)]
pub struct Event<'c> {
    pub(super) chunk: Chunk<'c>,
    pub(super) type_index: u32,
    pub(super) bytes: &'c [u8],
    /// Offset of each field in `bytes`, up to the first one that can't be read.
    pub(super) starts: &'c [u32],
    /// Offset of the event's first byte in its file.
    pub offset: u64,
    /// Number of the event's chunk, counted over the whole recording. A constant's key is valid only within its chunk.
    pub chunk_number: u32,
}

/// Pays for the fields of an event that are more than its bytes. False: the limit is reached, so the event is skipped.
pub(super) fn pay(chunk: Chunk<'_>, type_index: u32, bytes: &[u8]) -> bool {
    // A type may have a hundred thousand fields without a size, and its event a few bytes.
    let fields = chunk.schema.types[type_index as usize].fields.len();
    chunk.pools.pay_fields(fields.saturating_sub(bytes.len()) as u64)
}

/// Collects the offset of each field. After an error, `starts` has the offsets of the fields before the broken one.
pub(super) fn starts(chunk: Chunk<'_>, type_index: u32, bytes: &[u8], starts: &mut Vec<u32>) -> Parsed<()> {
    starts.clear();
    let mut cursor = super::cursor::Cursor::new(bytes, chunk.header.compressed);
    cursor.i32()?;
    cursor.i64()?;
    let fields = &chunk.schema.types[type_index as usize].fields;
    for field in fields {
        let start = cursor.at as u32;
        shape::skip_field(&chunk.schema.types, field, &mut cursor)?;
        starts.push(start);
    }
    Ok(())
}

impl<'c> Event<'c> {
    /// Name of the event's type, such as `jdk.ResidentSetSize`.
    pub fn name(&self) -> &'c str {
        &self.type_().name
    }

    /// The event's type, with its fields.
    pub fn type_(&self) -> &'c Type {
        &self.chunk.schema.types[self.type_index as usize]
    }

    /// Start time of the event, ns since 1970 UTC.
    pub fn time(&self) -> Option<i64> {
        self.nanoseconds("startTime")
    }

    /// Duration in nanoseconds; None for an event without a duration.
    pub fn duration(&self) -> Option<i64> {
        self.nanoseconds("duration")
    }

    /// Value of a time field (ns since 1970 UTC) or a duration field (ns), by the field's annotation.
    pub fn nanoseconds(&self, name: &str) -> Option<i64> {
        let index = self.type_().field(name)?;
        let value = self.at(index)?.as_i64()?;
        self.chunk.nanoseconds(self.type_().fields[index].unit, value)
    }

    fn at(&self, index: usize) -> Option<Value<'c>> {
        let start = *self.starts.get(index)? as usize;
        let mut cursor = self.chunk.cursor(self.bytes);
        cursor.at = start;
        self.chunk.field(&self.type_().fields[index], &mut cursor).ok()
    }

    /// The value of a field, by its name or by a path `field.of.its.object`. A missing or broken field is null.
    pub fn value(&self, path: &str) -> Value<'c> {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        let value = self.type_().field(name).and_then(|index| self.at(index)).unwrap_or(Value::Null);
        match (rest, value) {
            (None, value) => value,
            (Some(rest), Value::Object(object)) => object.get(rest),
            _ => Value::Null,
        }
    }

    /// The field's integer; see [`Value::as_u64`].
    pub fn u64(&self, path: &str) -> Option<u64> {
        self.value(path).as_u64()
    }

    /// The field's integer; see [`Value::as_i64`].
    pub fn i64(&self, path: &str) -> Option<i64> {
        self.value(path).as_i64()
    }

    /// The field's number; see [`Value::as_f64`].
    pub fn f64(&self, path: &str) -> Option<f64> {
        self.value(path).as_f64()
    }

    /// The field's text.
    pub fn string(&self, path: &str) -> Option<Cow<'c, str>> {
        self.value(path).into_string()
    }

    /// The field's object.
    pub fn object(&self, path: &str) -> Option<Object<'c>> {
        match self.value(path) {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The key by which a field refers to its constant. Within one chunk, equal keys mean equal values, so a caller can
    /// cache what it made of a stack or class by (`chunk_number`, key).
    pub fn key(&self, name: &str) -> Option<i64> {
        let index = self.type_().field(name)?;
        let field = &self.type_().fields[index];
        if !field.constant || field.array {
            return None;
        }
        let mut cursor = self.chunk.cursor(self.bytes);
        cursor.at = *self.starts.get(index)? as usize;
        cursor.i64().ok()
    }

    /// The class that a field of type java.lang.Class refers to, with dots: `java.lang.String`, `[B`.
    pub fn class(&self, name: &str) -> Option<Cow<'c, str>> {
        self.object(name).and_then(super::stack::class_name)
    }

    /// The stack of the thread that wrote the event, if the event has one.
    pub fn stack(&self) -> Option<Stack<'c>> {
        self.object("stackTrace").map(Stack)
    }

    /// The thread that wrote the event, if the event has one.
    pub fn thread(&self) -> Option<Thread<'c>> {
        self.object("eventThread").map(Thread)
    }

    /// All readable fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&'c super::Field, Value<'c>)> + '_ {
        self.type_().fields.iter().enumerate().map_while(|(index, field)| Some((field, self.at(index)?)))
    }

    /// Converts a field's integer to nanoseconds if the field is a time or a duration.
    pub fn in_nanoseconds(&self, field: &super::Field, value: i64) -> Option<i64> {
        self.chunk.nanoseconds(field.unit, value)
    }
}
