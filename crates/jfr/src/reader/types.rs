//! Types, fields and annotations as declared in a chunk's metadata.

/// An annotation of an event type or a field. `values` are as written (arrays as `value-0`, `value-1`).
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
    /// A plain number, or not a number.
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
    /// An amount of data in bytes.
    Bytes,
    /// An amount of data in bits.
    Bits,
    /// A rate in bytes per second.
    BytesPerSecond,
    /// A rate in bits per second.
    BitsPerSecond,
    /// An address in the recorded process.
    Address,
    /// A frequency in Hz.
    Hertz,
    /// 1.0 is 100 %.
    Percentage,
}

/// How the bytes of a field are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// One byte; any value but 0 is true.
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
    /// A text, or null.
    String,
    /// The fields of another type, given by its index in the schema.
    Struct(u32),
    /// A type that the metadata lacks: neither this field nor what follows can be read.
    Unknown,
}

/// A field of a type.
#[derive(Clone, Debug)]
pub struct Field {
    /// Name as declared, such as `startTime`.
    pub name: String,
    /// How its bytes are encoded.
    pub kind: FieldType,
    /// Index of its type. For a constant, the type of the value that the key refers to.
    pub type_index: Option<u32>,
    /// Whether the field holds a key into its type's constant pool.
    pub constant: bool,
    /// Whether the field holds a count, then that many values.
    pub array: bool,
    /// Whether its integer is unsigned.
    pub unsigned: bool,
    /// Unit of its number, from the annotations.
    pub unit: Unit,
    /// Annotations in the order of the metadata.
    pub annotations: Vec<Annotation>,
    /// How to skip it; None if it has no size.
    pub(super) step: Option<SkipStep>,
}

/// A type of the chunk: of an event, a constant, a struct or an annotation.
#[derive(Clone, Debug, Default)]
pub struct Type {
    /// Id, valid within the chunk.
    pub id: i64,
    /// Name as declared, such as `jdk.ResidentSetSize` or `java.lang.Thread`.
    pub name: String,
    /// `jdk.jfr.Event` for an event; empty for most other types.
    pub super_name: String,
    /// Whether this type is a wrapper: its only field is the value.
    pub simple: bool,
    /// Fields in the order in which an event has them.
    pub fields: Vec<Field>,
    /// Annotations in the order of the metadata.
    pub annotations: Vec<Annotation>,
    pub(super) shape: SkipProgram,
}

impl Type {
    /// Whether this is the type of an event.
    pub(crate) fn is_event(&self) -> bool {
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

/// The annotation's `value`; empty for an annotation without one.
pub(super) fn annotation<'a>(all: &'a [Annotation], name: &str) -> Option<&'a str> {
    let found = all.iter().find(|annotation| annotation.name == name)?;
    Some(found.values.iter().find(|(key, _)| key == "value").map_or("", |(_, value)| value))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SkipStep {
    /// This many bytes, compressed or not.
    Bytes(u32),
    /// If compressed, `count` integers; else `width` bytes.
    Integers {
        count: u32,
        width: u32,
    },
    String,
    Struct(u32),
    Unknown,
    /// A count, then that many times the next step.
    Array,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SkipProgram {
    pub(super) steps: Vec<SkipStep>,
    /// Nesting depth of structs, this one included.
    pub(super) height: u32,
    pub(super) is_compiled: bool,
}
