//! Declares events in one table, from which metadata, encoding and documentation are made.
//!
//! ```text
//! events! { Struct id "name" "Label" WHEN ["Category", …] experimental? "Description" {
//!     field: Kind "name" "Label" "Description",
//! } … }
//! ```
//! For each event, this makes a struct with a `write` method, and `EVENTS` with all of them. `WHEN` is a `&str` in
//! scope. Each event begins with `startTime`, which is the time of the instant.

use std::fmt::Write;

use super::batch::Body;
use super::types::{self, Type};

/// An event as its metadata declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Id, unique among all events and types of the table.
    pub id: u64,
    /// Name, such as `jdk.ResidentSetSize`.
    pub name: &'static str,
    /// Name that viewers show.
    pub label: &'static str,
    /// Groups in viewers, from the outermost to the innermost.
    pub category: &'static [&'static str],
    /// Description without a full stop.
    pub description: &'static str,
    /// Whether JDK Mission Control and VisualVM hide it by default.
    pub experimental: bool,
    /// How often it is written, in words, for [`Table::document`].
    pub when: &'static str,
    /// Fields, `startTime` included.
    pub fields: &'static [Field],
}

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, such as `reserved`.
    pub name: &'static str,
    /// Name that viewers show.
    pub label: &'static str,
    /// Description without a full stop; may be empty.
    pub description: &'static str,
    /// Type and unit of its values.
    pub kind: FieldKind,
}

impl Field {
    /// The first field of every event: ticks since the chunk's start.
    pub const START_TIME: Field = Field {
        name: "startTime",
        label: "Start Time",
        description: "",
        kind: FieldKind {
            words: "moment",
            of: types::LONG,
            pooled: false,
            annotations: &[(types::TIMESTAMP, Some("TICKS"))],
        },
    };
}

/// Type of a field, and the annotations that give readers its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldKind {
    /// Name of the kind in [`Table::document`].
    pub words: &'static str,
    /// Id of the type.
    pub of: u64,
    /// Whether the value is a number in the type's pool.
    pub pooled: bool,
    /// Annotations by id, each with its `value` if it has one.
    pub annotations: &'static [(u64, Option<&'static str>)],
}

/// A kind of field: the Rust type of its values, and how they are written.
pub trait Value {
    /// The kind as declared in the metadata.
    const KIND: FieldKind;
    /// Rust type of the values.
    type Of<'a>;
    /// Writes one value.
    fn put(value: &Self::Of<'_>, body: &mut Body<'_>);
}

/// The events and types that a recording's chunks declare.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub(super) events: &'static [&'static Event],
    pub(super) names: &'static [Type],
}

impl Table {
    /// Makes a table. `names` are the program's own types of pooled names ([`Type::of_names`]).
    ///
    /// # Panics
    /// Panics if two events or types have the same id, or if one uses an id of the format: 0, 1, or 76. 76 is the 'L'
    /// of a chunk's magic, which is read as a type when a reserve page is walked as events. In a `const`, this is a
    /// compile error.
    pub const fn new(events: &'static [&'static Event], names: &'static [Type]) -> Table {
        let table = Table { events, names };
        let count = table.id_count();
        let mut a = 0;
        while a < count {
            let id = table.id(a);
            assert!(id != 0 && id != 1 && id != b'L' as u64, "an id of the format");
            let mut b = a + 1;
            while b < count {
                assert!(id != table.id(b), "two events or types of one id");
                b += 1;
            }
            a += 1;
        }
        table
    }

    const fn id_count(&self) -> usize {
        self.events.len() + self.names.len() + types::TYPES.len()
    }

    const fn id(&self, index: usize) -> u64 {
        let (events, names) = (self.events.len(), self.names.len());
        if index < events {
            self.events[index].id
        } else if index < events + names {
            self.names[index - events].id
        } else {
            types::TYPES[index - events - names].id
        }
    }

    /// The events in the order of their declaration.
    pub const fn events(&self) -> &'static [&'static Event] {
        self.events
    }

    /// The types in the order in which chunks declare them.
    pub fn types(&self) -> impl Iterator<Item = &'static Type> {
        let (plain, annotations) = types::TYPES.split_at(types::FIRST_ANNOTATION);
        plain.iter().chain(self.names).chain(annotations)
    }

    /// Describes every event with its fields, in Markdown.
    pub fn document(&self) -> String {
        let mut text = String::new();
        for event in self.events {
            let experimental = if event.experimental { " (experimental)" } else { "" };
            let _ = write!(
                text,
                "\n## {}{experimental}\n\n{}. {}.\nWritten {}. Category: {}.\n\n| field | kind | label | meaning |\n| --- | --- | --- | --- |\n",
                event.name,
                event.label,
                event.description,
                event.when,
                event.category.join(", ")
            );
            for Field { name, label, description, kind } in event.fields {
                let _ = writeln!(text, "| `{name}` | {} | {label} | {description} |", kind.words);
            }
        }
        text
    }
}

/// Declares events; see the documentation of this module (writer/event.rs).
#[macro_export]
macro_rules! events {
    ($($event:ident $id:literal $name:literal $label:literal $when:ident [$($category:literal),*] $($experimental:ident)?
        $description:literal
        { $($field:ident: $kind:ident $field_name:literal $field_label:literal $field_description:literal,)* })*) => {
        $(#[doc = $description]
        pub struct $event<'a> { $(#[doc = $field_description] pub $field: <$kind as $crate::writer::Value>::Of<'a>),* }
        impl $event<'_> {
            /// The event as declared in the metadata.
            pub const EVENT: &'static $crate::writer::Event = &$crate::writer::Event {
                id: $id,
                name: $name,
                label: $label,
                category: &[$($category),*],
                description: $description,
                experimental: $crate::events!(@experimental $($experimental)?),
                when: $when,
                fields: &[$crate::writer::Field::START_TIME, $($crate::writer::Field {
                    name: $field_name,
                    label: $field_label,
                    description: $field_description,
                    kind: <$kind as $crate::writer::Value>::KIND,
                }),*],
            };

            /// Adds the event to the instant.
            pub fn write(&self, batch: &mut $crate::writer::Batch<'_>) {
                batch.event($id, |body| {
                    $(<$kind as $crate::writer::Value>::put(&self.$field, body);)*
                });
            }
        })*
        /// All events of the table.
        pub const EVENTS: &[&$crate::writer::Event] = &[$($event::EVENT),*];
    };
    (@experimental experimental) => { true };
    (@experimental) => { false };
}
