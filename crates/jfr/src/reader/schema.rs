//! Parses the metadata event: every type that the chunk's events and constants are made of, with its annotations.
//!
//! ```text
//! metadata event   size | type 0 | start | duration | id | count, strings … | root element
//! element          name | count, (name, value) … | count, children …           names and values are indices of strings
//! root             metadata { class { field { annotation … }, annotation …, setting … } … }, region
//! ```

use std::collections::HashMap;

use super::cursor::{Broken, Cursor, Parsed};
use super::shape;
use super::text::{self, Text};
use super::types::{Annotation, Field, FieldType, Type, Unit, annotation};
use crate::format::METADATA;

/// Metadata above these limits is hostile: JDK 25 has 1,500 fields and 7,000 strings.
const STRINGS: usize = 1 << 20;
const ELEMENTS: usize = 1 << 18;
const DEPTH: usize = 16;
/// Bytes of the texts that the elements refer to, all together: each reference becomes a copy, and all may refer to one
/// long text. JDK 25 has some 100 KB.
const TEXT: usize = 16 << 20;
/// Bytes of the name of an annotation's type, of which each annotation has a copy.
const ANNOTATION: usize = 256;

#[derive(Clone, Debug, Default)]
pub(super) struct Schema {
    pub types: Vec<Type>,
    by_id: HashMap<i64, u32>,
    by_name: HashMap<String, u32>,
}

impl Schema {
    pub(super) fn by_id(&self, id: i64) -> Option<&Type> {
        self.index_of(id).map(|index| &self.types[index as usize])
    }

    pub(super) fn index_of(&self, id: i64) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn index_by_name(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Parses a complete metadata event.
    pub(super) fn parse(event: &[u8], compressed: bool) -> Parsed<Schema> {
        let mut cursor = Cursor::new(event, compressed);
        cursor.i32()?;
        if cursor.i64()? != METADATA {
            return Err(Broken::Malformed("no metadata event where the header has it"));
        }
        for _start_duration_id in 0..3 {
            cursor.i64()?;
        }
        let count = cursor.count()?;
        if count > STRINGS {
            return Err(Broken::Malformed("metadata with too many strings"));
        }
        let mut strings = Vec::with_capacity(count.min(event.len()));
        for _ in 0..count {
            strings.push(match text::read(&mut cursor)? {
                Text::Here(text) => text,
                Text::Null | Text::Pooled(_) => "".into(),
            });
        }
        let mut elements = Elements { cursor, strings: &strings, left: ELEMENTS, text: TEXT };
        let root = elements.element(0)?;
        Ok(Builder::default().build(&root))
    }
}

struct Element<'a> {
    name: &'a str,
    attributes: Vec<(&'a str, &'a str)>,
    children: Vec<Element<'a>>,
}

impl<'a> Element<'a> {
    fn get(&self, key: &str) -> &'a str {
        self.attributes.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }

    fn id(&self, key: &str) -> Option<i64> {
        self.get(key).parse().ok()
    }

    fn children(&self, name: &'static str) -> impl Iterator<Item = &Element<'a>> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

struct Elements<'a, 's> {
    cursor: Cursor<'a>,
    strings: &'s [std::borrow::Cow<'a, str>],
    left: usize,
    text: usize,
}

impl<'s> Elements<'_, 's> {
    fn string(&mut self) -> Parsed<&'s str> {
        let index = self.cursor.count()?;
        let text = self.strings.get(index).ok_or(Broken::Malformed("metadata refers to a missing string"))?;
        self.text = self.text.checked_sub(text.len()).ok_or(Broken::Malformed("metadata with too much text"))?;
        Ok(&**text)
    }

    fn spend(&mut self, count: usize) -> Parsed<()> {
        self.left = self.left.checked_sub(count).ok_or(Broken::Malformed("metadata with too many elements"))?;
        Ok(())
    }

    fn element(&mut self, depth: usize) -> Parsed<Element<'s>> {
        if depth > DEPTH {
            return Err(Broken::Malformed("metadata nested too deep"));
        }
        let name = self.string()?;
        let count = self.cursor.count()?;
        self.spend(count)?;
        let mut attributes = Vec::with_capacity(count);
        for _ in 0..count {
            attributes.push((self.string()?, self.string()?));
        }
        let count = self.cursor.count()?;
        self.spend(count)?;
        let mut children = Vec::with_capacity(count);
        for _ in 0..count {
            children.push(self.element(depth + 1)?);
        }
        Ok(Element { name, attributes, children })
    }
}

#[derive(Default)]
struct Builder {
    schema: Schema,
}

impl Builder {
    fn build(mut self, root: &Element<'_>) -> Schema {
        let classes = || root.children("metadata").flat_map(|metadata| metadata.children("class"));
        for class in classes() {
            let Some(id) = class.id("id") else { continue };
            let index = self.schema.types.len() as u32;
            let name = class.get("name").to_string();
            self.schema.by_id.entry(id).or_insert(index);
            self.schema.by_name.entry(name.clone()).or_insert(index);
            let super_name = class.get("superType").to_string();
            self.schema.types.push(Type { id, name, super_name, ..Type::default() });
        }
        let classes = classes().filter(|class| class.id("id").is_some());
        for (index, class) in classes.enumerate() {
            let fields: Vec<Field> = class.children("field").map(|field| self.field(field)).collect();
            let simple = class.get("simpleType") == "true" && fields.len() == 1;
            let annotations = self.annotations(class);
            let into = &mut self.schema.types[index];
            (into.fields, into.annotations, into.simple) = (fields, annotations, simple);
        }
        shape::compile(&mut self.schema.types);
        self.schema
    }

    fn field(&self, element: &Element<'_>) -> Field {
        let type_index = element.id("class").and_then(|id| self.schema.index_of(id));
        let kind =
            type_index.map_or(FieldType::Unknown, |index| match self.schema.types[index as usize].name.as_str() {
                "boolean" => FieldType::Boolean,
                "byte" => FieldType::Byte,
                "short" => FieldType::Short,
                "char" => FieldType::Char,
                "int" => FieldType::Int,
                "long" => FieldType::Long,
                "float" => FieldType::Float,
                "double" => FieldType::Double,
                "java.lang.String" => FieldType::String,
                _ => FieldType::Struct(index),
            });
        let annotations = self.annotations(element);
        Field {
            name: element.get("name").to_string(),
            kind,
            type_index,
            constant: element.get("constantPool") == "true",
            array: !matches!(element.get("dimension"), "" | "0"),
            unsigned: annotation(&annotations, "jdk.jfr.Unsigned").is_some(),
            unit: unit(&annotations),
            annotations,
            step: None,
        }
    }

    fn annotations(&self, element: &Element<'_>) -> Vec<Annotation> {
        let one = |child: &Element<'_>| {
            let of = child.id("class").and_then(|id| self.schema.by_id(id))?;
            let name = Some(&of.name).filter(|name| name.len() <= ANNOTATION)?.clone();
            let others = child.attributes.iter().filter(|(key, _)| *key != "class");
            Some(Annotation { name, values: others.map(|(k, v)| (k.to_string(), v.to_string())).collect() })
        };
        element.children("annotation").filter_map(one).collect()
    }
}

fn unit(annotations: &[Annotation]) -> Unit {
    let is = |name: &str| annotation(annotations, name);
    if let Some(unit) = is("jdk.jfr.Timestamp") {
        return match unit {
            "TICKS" => Unit::TicksSinceStart,
            "NANOSECONDS_SINCE_EPOCH" => Unit::EpochNanos,
            _ => Unit::EpochMillis,
        };
    }
    if let Some(unit) = is("jdk.jfr.Timespan") {
        return match unit {
            "TICKS" => Unit::Ticks,
            "MICROSECONDS" => Unit::Micros,
            "MILLISECONDS" => Unit::Millis,
            "SECONDS" => Unit::Seconds,
            _ => Unit::Nanos,
        };
    }
    if let Some(amount) = is("jdk.jfr.DataAmount") {
        let rate = is("jdk.jfr.Frequency").is_some();
        return match (amount == "BITS", rate) {
            (false, false) => Unit::Bytes,
            (false, true) => Unit::BytesPerSecond,
            (true, false) => Unit::Bits,
            (true, true) => Unit::BitsPerSecond,
        };
    }
    match () {
        () if is("jdk.jfr.MemoryAddress").is_some() => Unit::Address,
        () if is("jdk.jfr.Percentage").is_some() => Unit::Percentage,
        () if is("jdk.jfr.Frequency").is_some() => Unit::Hertz,
        () => Unit::None,
    }
}
