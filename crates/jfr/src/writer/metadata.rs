//! The metadata event: every type, event and annotation of the chunk as a tree of elements. Names and values in the
//! tree are indices into one list of strings.
//!
//! ```text
//! strings = count string*
//! element = name  count (key value)*  count element*
//! root ─┬─ metadata ── class (name id superType? simpleType?) ─┬─ annotation (class value…)
//!       │                                                       └─ field (name class constantPool? dimension?) ── annotation
//!       └─ region (locale gmtOffset)
//! ```

use std::collections::HashMap;

use super::event::{Event, Field, Table};
use super::integers;
use super::types::{self, Type, TypeKind};
use crate::format::METADATA;

#[derive(Default)]
struct Element {
    name: &'static str,
    attributes: Vec<(String, String)>,
    children: Vec<Element>,
}

impl Element {
    fn new(name: &'static str) -> Element {
        Element { name, ..Element::default() }
    }
    fn with(mut self, key: &str, value: impl ToString) -> Element {
        self.attributes.push((key.to_owned(), value.to_string()));
        self
    }
    fn child(mut self, child: Element) -> Element {
        self.children.push(child);
        self
    }
    fn children(mut self, children: impl IntoIterator<Item = Element>) -> Element {
        self.children.extend(children);
        self
    }
}

/// Metadata of a chunk with all events of the table.
pub(super) fn all(of: &Table) -> Vec<u8> {
    event(1, of.types().map(type_element).chain(of.events().iter().map(|event| event_element(event))))
}

/// Metadata of a chunk without events.
pub(super) fn none() -> Vec<u8> {
    event(2, [])
}

fn event(id: u64, classes: impl IntoIterator<Item = Element>) -> Vec<u8> {
    let region = Element::new("region").with("locale", "en_US").with("gmtOffset", 0);
    let root = Element::new("root").child(Element::new("metadata").children(classes)).child(region);
    let mut strings = Strings::default();
    let mut tree = Vec::new();
    write(&root, &mut strings, &mut tree);
    let mut body = Vec::new();
    // Type, start time, duration, id. Readers cache the types that they know by this id.
    for value in [METADATA as u64, 0, 0, id, strings.list.len() as u64] {
        integers::long(&mut body, value);
    }
    for text in &strings.list {
        integers::string(&mut body, Some(text));
    }
    body.extend_from_slice(&tree);
    let mut out = Vec::new();
    integers::event(&mut out, &body);
    out
}

#[derive(Default)]
struct Strings {
    list: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.list.len() as u64;
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

fn write(element: &Element, strings: &mut Strings, out: &mut Vec<u8>) {
    integers::long(out, strings.number(element.name));
    integers::long(out, element.attributes.len() as u64);
    for (key, value) in &element.attributes {
        integers::long(out, strings.number(key));
        integers::long(out, strings.number(value));
    }
    integers::long(out, element.children.len() as u64);
    for child in &element.children {
        write(child, strings, out);
    }
}

fn type_element(of: &Type) -> Element {
    let mut element = Element::new("class").with("name", of.name);
    match of.kind {
        TypeKind::Annotation { .. } => element = element.with("superType", "java.lang.annotation.Annotation"),
        TypeKind::Simple => element = element.with("simpleType", true),
        TypeKind::Primitive | TypeKind::Struct => {}
    }
    element = element.with("id", of.id);
    if let TypeKind::Annotation { content_type, label } = of.kind {
        element = element.child(annotation(types::LABEL, Some(label)));
        if content_type {
            element = element.child(annotation(types::CONTENT_TYPE, None));
        }
    }
    element.children(of.fields.iter().map(|field| {
        let mut member = Element::new("field").with("name", field.name).with("class", field.of);
        if field.pooled {
            member = member.with("constantPool", true);
        }
        if field.array {
            member = member.with("dimension", 1);
        }
        member.child(annotation(types::LABEL, Some(field.label)))
    }))
}

fn event_element(event: &Event) -> Element {
    let mut element =
        Element::new("class").with("name", event.name).with("superType", "jdk.jfr.Event").with("id", event.id);
    let mut category = Element::new("annotation").with("class", types::CATEGORY);
    for (index, part) in event.category.iter().enumerate() {
        category = category.with(&format!("value-{index}"), part);
    }
    element = element
        .child(annotation(types::LABEL, Some(event.label)))
        .child(annotation(types::DESCRIPTION, Some(event.description)))
        .child(category);
    if event.experimental {
        element = element.child(annotation(types::EXPERIMENTAL, None));
    }
    element.children(event.fields.iter().map(field_element))
}

fn field_element(field: &Field) -> Element {
    let kind = field.kind;
    let mut element = Element::new("field").with("name", field.name).with("class", kind.of);
    if kind.pooled {
        element = element.with("constantPool", true);
    }
    element = element.child(annotation(types::LABEL, Some(field.label)));
    if !field.description.is_empty() {
        element = element.child(annotation(types::DESCRIPTION, Some(field.description)));
    }
    element.children(kind.annotations.iter().map(|(of, value)| annotation(*of, *value)))
}

fn annotation(of: u64, value: Option<&str>) -> Element {
    let element = Element::new("annotation").with("class", of);
    match value {
        Some(value) => element.with("value", value),
        None => element,
    }
}
