//! Decodes fields on request: values are views of the bytes, and constants are looked up on the way.

use std::borrow::Cow;

use super::chunk::Header;
use super::cursor::{Cursor, Parsed};
use super::pools::{LOOK_UP, Pools};
use super::schema::Schema;
use super::shape;
use super::text::{self, Text};
use super::types::{Field, FieldType, Type, Unit};

/// What is needed to decode the values of one chunk.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'c> {
    pub header: &'c Header,
    pub schema: &'c Schema,
    pub pools: &'c Pools,
}

/// The value of a field.
#[derive(Clone)]
pub enum Value<'c> {
    /// A null object, a null text, or a missing field.
    Null,
    /// The value of a boolean field.
    Boolean(bool),
    /// The value of an integer field of any width, sign-extended unless the field is unsigned. An unsigned long has the
    /// same 64 bits.
    Integer(i64),
    /// The value of a float field.
    Float(f32),
    /// The value of a double field.
    Double(f64),
    /// A text, from the event or from its pool.
    String(Cow<'c, str>),
    /// A struct, from the event or from its pool.
    Object(Object<'c>),
    /// The value of an array field.
    Array(Array<'c>),
    /// The key of a constant that no checkpoint defines, as in unfinished and broken chunks, or that was not looked up
    /// because `Limits::decoding` was reached.
    Missing(i64),
}

/// A value with fields.
#[derive(Clone, Copy)]
pub struct Object<'c> {
    pub(super) chunk: Chunk<'c>,
    pub(super) type_index: u32,
    pub(super) bytes: &'c [u8],
}

/// The values of an array field.
#[derive(Clone, Copy)]
pub struct Array<'c> {
    chunk: Chunk<'c>,
    field: &'c Field,
    /// The bytes from the first element on.
    bytes: &'c [u8],
    /// Length as the file says; `iter` returns fewer elements if the array is broken.
    pub length: usize,
}

/// Limit for wrappers around wrappers and strings that refer to strings.
const INDIRECTIONS: u32 = 8;

impl<'c> Chunk<'c> {
    pub(super) fn cursor(&self, bytes: &'c [u8]) -> Cursor<'c> {
        Cursor::new(bytes, self.header.compressed)
    }

    /// Decodes the field at the cursor. The cursor's position afterwards is unspecified.
    pub(super) fn field(&self, field: &'c Field, cursor: &mut Cursor<'c>) -> Parsed<Value<'c>> {
        if field.array {
            let length = cursor.count()?;
            let bytes = &cursor.bytes[cursor.at..];
            return Ok(Value::Array(Array { chunk: *self, field, bytes, length }));
        }
        self.one(field, cursor, 0)
    }

    fn one(&self, field: &'c Field, cursor: &mut Cursor<'c>, depth: u32) -> Parsed<Value<'c>> {
        if field.constant {
            let key = cursor.i64()?;
            return self.constant(field, key, depth);
        }
        Ok(match field.kind {
            FieldType::Boolean => Value::Boolean(cursor.u8()? != 0),
            FieldType::Byte if field.unsigned => Value::Integer(i64::from(cursor.u8()?)),
            FieldType::Byte => Value::Integer(i64::from(cursor.u8()? as i8)),
            FieldType::Short if field.unsigned => Value::Integer(i64::from(cursor.u16()?)),
            FieldType::Short => Value::Integer(i64::from(cursor.i16()?)),
            FieldType::Char => Value::Integer(i64::from(cursor.u16()?)),
            FieldType::Int if field.unsigned => Value::Integer(i64::from(cursor.i32()? as u32)),
            FieldType::Int => Value::Integer(i64::from(cursor.i32()?)),
            FieldType::Long => Value::Integer(cursor.i64()?),
            FieldType::Float => Value::Float(cursor.f32()?),
            FieldType::Double => Value::Double(cursor.f64()?),
            FieldType::String => self.text(cursor, depth)?,
            FieldType::Struct(index) => self.object(index, &cursor.bytes[cursor.at..], depth)?,
            FieldType::Unknown => Value::Null,
        })
    }

    fn constant(&self, field: &Field, key: i64, depth: u32) -> Parsed<Value<'c>> {
        let Some(index) = field.type_index.filter(|_| self.pools.pay(LOOK_UP)) else { return Ok(Value::Missing(key)) };
        match self.pools.get(index, key) {
            Some(bytes) if Some(index) == self.pools.string => self.text(&mut self.cursor(bytes), depth + 1),
            Some(bytes) => self.object(index, bytes, depth + 1),
            None if key == 0 => Ok(Value::Null),
            None => Ok(Value::Missing(key)),
        }
    }

    fn object(&self, index: u32, bytes: &'c [u8], depth: u32) -> Parsed<Value<'c>> {
        let of = &self.schema.types[index as usize];
        match of.fields.first() {
            Some(field) if of.simple && !field.array && depth < INDIRECTIONS => {
                self.one(field, &mut self.cursor(bytes), depth + 1)
            }
            _ => Ok(Value::Object(Object { chunk: *self, type_index: index, bytes })),
        }
    }

    fn text(&self, cursor: &mut Cursor<'c>, depth: u32) -> Parsed<Value<'c>> {
        Ok(match text::read(cursor)? {
            Text::Null => Value::Null,
            Text::Here(text) => {
                self.pools.pay(text.len() as u64);
                Value::String(text)
            }
            Text::Pooled(key) => match self.pools.string.and_then(|string| self.pools.get(string, key)) {
                Some(bytes) if depth < INDIRECTIONS && self.pools.pay(LOOK_UP) => {
                    self.text(&mut self.cursor(bytes), depth + 1)?
                }
                _ if key == 0 => Value::Null,
                _ => Value::Missing(key),
            },
        })
    }

    /// Converts a time or a duration to nanoseconds; None for other units. Times are never negative (see
    /// `Header::start_ns`).
    pub(super) fn nanoseconds(&self, unit: Unit, value: i64) -> Option<i64> {
        Some(match unit {
            Unit::TicksSinceStart => self.header.time(value),
            Unit::Ticks => self.header.span(value),
            Unit::EpochNanos => value.max(0),
            Unit::Nanos => value,
            Unit::Micros => value.saturating_mul(1000),
            Unit::EpochMillis => value.saturating_mul(1_000_000).max(0),
            Unit::Millis => value.saturating_mul(1_000_000),
            Unit::Seconds => value.saturating_mul(1_000_000_000),
            _ => return None,
        })
    }
}

impl<'c> Object<'c> {
    /// The object's type, with its fields.
    pub fn type_(&self) -> &'c Type {
        &self.chunk.schema.types[self.type_index as usize]
    }

    /// The value of a field, by its name or by a path `field.of.its.object`. A missing or broken field is null.
    pub fn get(&self, path: &str) -> Value<'c> {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        let value = self.field(name);
        match (rest, value) {
            (None, value) => value,
            (Some(rest), Value::Object(object)) => object.get(rest),
            _ => Value::Null,
        }
    }

    fn field(&self, name: &str) -> Value<'c> {
        let found = self.find(name);
        found.and_then(|(field, mut cursor)| self.chunk.field(field, &mut cursor).ok()).unwrap_or(Value::Null)
    }

    /// The field, and a cursor at its first byte. The look-up pays for what lies before the field.
    fn find(&self, name: &str) -> Option<(&'c Field, Cursor<'c>)> {
        let mut cursor = self.chunk.cursor(self.bytes);
        for (before, field) in self.type_().fields.iter().enumerate() {
            if field.name == name {
                return self.chunk.pools.pay(cursor.at as u64 / 2 + before as u64).then_some((field, cursor));
            }
            shape::skip_field(&self.chunk.schema.types, field, &mut cursor).ok()?;
        }
        // A failed look-up costs as much as a successful one for the last field.
        self.chunk.pools.pay(cursor.at as u64 / 2 + self.type_().fields.len() as u64);
        None
    }

    /// The key by which a field refers to its constant.
    pub fn key(&self, name: &str) -> Option<i64> {
        let (field, mut cursor) = self.find(name)?;
        if field.constant && !field.array { cursor.i64().ok() } else { None }
    }

    /// All fields, up to the first broken one.
    pub fn fields(&self) -> impl Iterator<Item = (&'c Field, Value<'c>)> + use<'c> {
        let chunk = self.chunk;
        let mut cursor = chunk.cursor(self.bytes);
        self.type_().fields.iter().map_while(move |field| {
            let (value, begin) = (chunk.field(field, &mut cursor.clone()).ok()?, cursor.at);
            shape::skip_field(&chunk.schema.types, field, &mut cursor).ok()?;
            chunk.pools.pay((cursor.at - begin) as u64 / 2 + 1).then_some((field, value))
        })
    }

    /// The field's integer; see [`Value::as_u64`].
    pub fn u64(&self, path: &str) -> Option<u64> {
        self.get(path).as_u64()
    }

    /// The field's integer; see [`Value::as_i64`].
    pub fn i64(&self, path: &str) -> Option<i64> {
        self.get(path).as_i64()
    }

    /// The field's text.
    pub fn string(&self, path: &str) -> Option<Cow<'c, str>> {
        self.get(path).into_string()
    }

    /// The field's object.
    pub fn object(&self, path: &str) -> Option<Object<'c>> {
        match self.get(path) {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }
}

impl<'c> Array<'c> {
    /// The elements, up to the first broken one.
    pub fn iter(&self) -> impl Iterator<Item = Value<'c>> + use<'c> {
        let Array { chunk, field, bytes, length } = *self;
        let mut cursor = chunk.cursor(bytes);
        (0..length).map_while(move |_| {
            let begin = cursor.at;
            let value = chunk.one(field, &mut cursor.clone(), 0).ok()?;
            shape::skip_element(&chunk.schema.types, field, &mut cursor).ok()?;
            // Elements without a size: return one for all of them, however many the file says there are.
            if cursor.at == begin && length > 1 || !chunk.pools.pay(1) { None } else { Some(value) }
        })
    }
}

impl<'c> Value<'c> {
    /// The value of an integer or a boolean.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Integer(value) => Some(*value),
            Value::Boolean(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    /// The bits of an integer or a boolean.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i64().map(|value| value as u64)
    }

    /// The value of any number; a long loses what 53 bits can't hold.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(f64::from(*value)),
            Value::Double(value) => Some(*value),
            Value::Integer(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// The value of a text.
    pub fn into_string(self) -> Option<Cow<'c, str>> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}
