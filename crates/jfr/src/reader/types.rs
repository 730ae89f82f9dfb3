//! Types, fields and annotations, as a chunk's metadata declares them.

/// An annotation of an event type or a field; `values` as written (arrays as `value-0`, `value-1`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The annotation's type: `jdk.jfr.Label`.
    pub name: String,
    /// Key and value of each element.
    pub values: Vec<(String, String)>,
}

/// What a field's integer counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A plain number, or no number at all.
    #[default]
    None,
    /// A moment in ticks of the chunk's clock.
    TicksSinceStart,
    /// A moment in ms since 1970 UTC.
    EpochMillis,
    /// A moment in ns since 1970 UTC.
    EpochNanos,
    /// A length of time in ticks of the chunk's clock.
    Ticks,
    /// A length of time in ns.
    Nanos,
    /// A length of time in µs.
    Micros,
    /// A length of time in ms.
    Millis,
    /// A length of time in s.
    Seconds,
    /// An amount of data.
    Bytes,
    /// An amount of data.
    Bits,
    /// A rate.
    BytesPerSecond,
    /// A rate.
    BitsPerSecond,
    /// An address in the recorded process.
    Address,
    /// A frequency.
    Hertz,
    /// 1.0 is 100 %.
    Percentage,
}

/// What the bytes of a field are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One byte; anything but 0 is true.
    Boolean,
    /// 8 bits.
    Byte,
    /// 16 bits.
    Short,
    /// A UTF-16 unit.
    Char,
    /// 32 bits.
    Int,
    /// 64 bits.
    Long,
    /// IEEE 754, 32 bits.
    Float,
    /// IEEE 754, 64 bits.
    Double,
    /// A text or null.
    String,
    /// Fields of another type, by its index in the schema.
    Struct(u32),
    /// Of a type that the metadata doesn't have: neither it nor what follows can be read.
    Unknown,
}

/// A field of a type.
#[derive(Clone, Debug)]
pub struct Field {
    /// As declared: `startTime`.
    pub name: String,
    /// What its bytes are.
    pub kind: Kind,
    /// The index of its type; also of what a constant's key leads to.
    pub type_index: Option<u32>,
    /// Stored as a key of its type's constant pool.
    pub constant: bool,
    /// A count, then as many values.
    pub array: bool,
    /// An integer without a sign.
    pub unsigned: bool,
    /// What its number counts, by the annotations.
    pub unit: Unit,
    /// In the order of the metadata.
    pub annotations: Vec<Annotation>,
    /// How to step over it; None: it has no size.
    pub(super) step: Option<Step>,
}

/// A type of the chunk: of an event, a constant, a struct or an annotation.
#[derive(Clone, Debug, Default)]
pub struct Type {
    /// Within the chunk.
    pub id: i64,
    /// As declared: `jdk.ResidentSetSize`, `java.lang.Thread`.
    pub name: String,
    /// `jdk.jfr.Event` for an event; empty for most others.
    pub super_name: String,
    /// A wrapper: its one field is the value.
    pub simple: bool,
    /// In the order in which an event has them.
    pub fields: Vec<Field>,
    /// In the order of the metadata.
    pub annotations: Vec<Annotation>,
    pub(super) shape: Shape,
}

impl Type {
    /// Whether it is an event's.
    pub fn is_event(&self) -> bool {
        self.super_name == "jdk.jfr.Event"
    }

    /// The index of a field in `fields`.
    pub fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// The `value` of the annotation of this name; empty for one without a value.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        annotation(&self.annotations, name)
    }
}

impl Field {
    /// The `value` of the annotation of this name; empty for one without a value.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        annotation(&self.annotations, name)
    }
}

/// Its value; empty for one without.
pub(super) fn annotation<'a>(all: &'a [Annotation], name: &str) -> Option<&'a str> {
    let found = all.iter().find(|annotation| annotation.name == name)?;
    Some(found.values.iter().find(|(key, _)| key == "value").map_or("", |(_, value)| value))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A run of bytes in both forms.
    Bytes(u32),
    /// Integers: compressed, so many; else so many bytes.
    Integers {
        count: u32,
        width: u32,
    },
    String,
    Struct(u32),
    Unknown,
    /// A count, then so many of the next step.
    Array,
}

#[derive(Clone, Debug, Default)]
pub struct Shape {
    pub(super) steps: Vec<Step>,
    /// Structs below each other, this one included.
    pub(super) height: u32,
    pub(super) is_compiled: bool,
}
