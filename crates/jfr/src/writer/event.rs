//! How events are declared: one table from which metadata, encoding and documentation come.
//!
//! ```text
//! events! { Struct id "name" "Label" WHEN ["Category", …] experimental? "Description" {
//!     field: Kind "name" "Label" "Description",
//! } … }
//! ```
//! makes for each event a struct with a `write`, and `EVENTS` of them all. `WHEN` is a `&str` in scope. Each event begins with
//! `startTime`, which the instant gives.

use std::fmt::Write;

use super::batch::Body;
use super::types::{self, Type};

/// An event as its metadata declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Unlike that of every other event and type of the table.
    pub id: u64,
    /// `jdk.ResidentSetSize`
    pub name: &'static str,
    /// Its name for people.
    pub label: &'static str,
    /// From the outermost group to the innermost.
    pub category: &'static [&'static str],
    /// Without a full stop.
    pub description: &'static str,
    /// Hidden by JDK Mission Control and VisualVM unless asked for.
    pub experimental: bool,
    /// How often it is written, in words: for [`Table::document`].
    pub when: &'static str,
    /// `startTime` included.
    pub fields: &'static [Field],
}

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// `reserved`
    pub name: &'static str,
    /// Its name for people.
    pub label: &'static str,
    /// Without a full stop; may be empty.
    pub description: &'static str,
    /// What it holds.
    pub kind: Kind,
}

impl Field {
    /// Which every event begins with: ticks since the chunk's start.
    pub const START_TIME: Field = Field {
        name: "startTime",
        label: "Start Time",
        description: "",
        kind: Kind {
            words: "moment",
            of: types::LONG,
            pooled: false,
            annotations: &[(types::TIMESTAMP, Some("TICKS"))],
        },
    };
}

/// What a field holds: its type, and the annotations by which readers know its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// For people: [`Table::document`].
    pub words: &'static str,
    /// The id of its type.
    pub of: u64,
    /// The value is a number in the type's pool.
    pub pooled: bool,
    /// By id, each with its `value` where it has one.
    pub annotations: &'static [(u64, Option<&'static str>)],
}

/// A kind of field: what the program gives, and how it is written.
pub trait Value {
    /// As the metadata declares it.
    const KIND: Kind;
    /// What the program gives.
    type Of<'a>;
    /// Writes one value.
    fn put(value: &Self::Of<'_>, body: &mut Body<'_>);
}

/// What a recording's chunks declare.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub(super) events: &'static [&'static Event],
    pub(super) names: &'static [Type],
}

impl Table {
    /// `names`: types of the program's own, each of one pooled word ([`Type::of_names`]).
    ///
    /// # Panics
    /// If two events or types have the same id, or one has an id of the format: 0, 1, and 76, which is what the 'L' of a chunk's
    /// magic is when a page of reserve is walked as events. In a `const` that is an error of the compiler.
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

    /// In the order of their declaration.
    pub const fn events(&self) -> &'static [&'static Event] {
        self.events
    }

    /// The types that its chunks declare, in the order in which they do.
    pub fn types(&self) -> impl Iterator<Item = &'static Type> {
        let (plain, annotations) = types::TYPES.split_at(types::FIRST_ANNOTATION);
        plain.iter().chain(self.names).chain(annotations)
    }

    /// Every event with its fields, in Markdown.
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

/// Declares events: see the module's first comment.
#[macro_export]
macro_rules! events {
    ($($event:ident $id:literal $name:literal $label:literal $when:ident [$($category:literal),*] $($experimental:ident)?
        $description:literal
        { $($field:ident: $kind:ident $field_name:literal $field_label:literal $field_description:literal,)* })*) => {
        $(#[doc = $description]
        pub struct $event<'a> { $(#[doc = $field_description] pub $field: <$kind as $crate::writer::Value>::Of<'a>),* }
        impl $event<'_> {
            /// As the metadata declares it.
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

            /// Adds it to the instant.
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
