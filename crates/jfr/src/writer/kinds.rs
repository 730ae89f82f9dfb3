//! Kinds of fields whose unit JFR's readers know.

use super::batch::Body;
use super::constants::Stack;
use super::event::{FieldKind, Value};
use super::types::{
    BOOLEAN, DATA_AMOUNT, FLOAT, INT, LONG, MEMORY_ADDRESS, NMT_TYPE, PERCENTAGE, STACK_TRACE, STRING, THREAD,
    TIMESPAN, TIMESTAMP, UNSIGNED,
};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident($of:expr, $pooled:literal, $words:literal, [$($annotation:expr),*])
        $given:ty => |$value:ident, $body:ident| $put:expr;)*) => {
        $($(#[$doc])* pub enum $name {}
        impl Value for $name {
            const KIND: FieldKind = FieldKind { words: $words, of: $of, pooled: $pooled, annotations: &[$($annotation),*] };
            type Of<'a> = $given;
            fn put($value: &Self::Of<'_>, $body: &mut Body<'_>) {
                $put
            }
        })*
    };
}

kinds! {
    /// An amount in bytes.
    Amount(LONG, false, "bytes", [(UNSIGNED, None), (DATA_AMOUNT, Some("BYTES"))])
        u64 => |value, body| body.long(*value);
    /// An unsigned number.
    Count(LONG, false, "number", [(UNSIGNED, None)]) u64 => |value, body| body.long(*value);
    /// A signed number.
    Number(INT, false, "number", []) i32 => |value, body| body.long(u64::from(*value as u32));
    /// An address in the recorded process.
    Address(LONG, false, "address", [(UNSIGNED, None), (MEMORY_ADDRESS, None)])
        u64 => |value, body| body.long(*value);
    /// Milliseconds since 1970; `None` is written as the smallest long, as the JDK does.
    Moment(LONG, false, "moment", [(TIMESTAMP, Some("MILLISECONDS_SINCE_EPOCH"))])
        Option<u64> => |value, body| body.long(value.unwrap_or(i64::MIN as u64));
    /// A length of time in nanoseconds.
    Nanoseconds(LONG, false, "nanoseconds", [(TIMESPAN, Some("NANOSECONDS"))])
        u64 => |value, body| body.long(*value);
    /// A share from 0 to 1.
    Share(FLOAT, false, "share", [(PERCENTAGE, None)]) f32 => |value, body| body.float(*value);
    /// A boolean.
    Flag(BOOLEAN, false, "boolean", []) bool => |value, body| body.flag(*value);
    /// A category of native memory, as in HotSpot's `jdk.NativeMemoryUsage`.
    NmtType(NMT_TYPE, true, "name", []) &'a str => |value, body| body.constant(NMT_TYPE, value);
    /// A text that rarely repeats; for repeated ones use [`super::Type::of_names`].
    Text(STRING, false, "text", []) &'a str => |value, body| body.text(value);
    /// A stack, or null.
    Trace(STACK_TRACE, true, "stack trace", []) Option<&'a Stack> => |value, body| body.stack(*value);
    /// A null thread: the event belongs to the process.
    NoThread(THREAD, true, "thread", []) () => |_value, body| body.long(0);
}
