//! The types that events are made of, by JFR's names, in one table. The ids are ours (each chunk declares its own).
//! They stay the same in all chunks, because readers cache types and constants by id.

/// A type of field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    /// Id by which events and fields refer to it.
    pub id: u64,
    /// Name as readers know it.
    pub name: &'static str,
    pub(super) kind: TypeKind,
    pub(super) fields: &'static [Member],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeKind {
    Primitive,
    /// A wrapper: readers show its only field in its place.
    Simple,
    Struct,
    /// An annotation with its own label; `content_type` if it gives a unit.
    Annotation {
        content_type: bool,
        label: &'static str,
    },
}

/// A field of a type that isn't an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub name: &'static str,
    pub label: &'static str,
    pub of: u64,
    /// Whether the value is a number in the type's pool.
    pub pooled: bool,
    pub array: bool,
}

macro_rules! types {
    ($($const:ident $id:literal $name:literal $kind:expr; $([$($field:ident $label:literal $of:ident $($flag:ident)?),*])?)*) => {
        $(pub(crate) const $const: u64 = $id;)*
        pub(crate) const TYPES: &[Type] = &[$(Type {
            id: $id,
            name: $name,
            kind: $kind,
            fields: &[$($(Member {
                name: stringify!($field),
                label: $label,
                of: $of,
                pooled: flag!(pooled $($flag)?),
                array: flag!(array $($flag)?),
            }),*)?],
        }),*];
    };
}

macro_rules! flag {
    (pooled pooled) => {
        true
    };
    (array array) => {
        true
    };
    ($wanted:ident $($other:ident)?) => {
        false
    };
}

impl Type {
    /// A type of one name, whose values have a pool of their own.
    pub const fn of_names(id: u64, name: &'static str) -> Type {
        const WORD: &[Member] = &[Member { name: "name", label: "Name", of: STRING, pooled: false, array: false }];
        Type { id, name, kind: TypeKind::Simple, fields: WORD }
    }
}

/// Index of the first annotation in `TYPES`.
pub(super) const FIRST_ANNOTATION: usize = {
    let mut first = 0;
    while !matches!(TYPES[first].kind, TypeKind::Annotation { .. }) {
        first += 1;
    }
    first
};

const fn annotation(label: &'static str) -> TypeKind {
    TypeKind::Annotation { content_type: false, label }
}
const fn content_type(label: &'static str) -> TypeKind {
    TypeKind::Annotation { content_type: true, label }
}
use TypeKind::{Primitive, Simple, Struct};

types! {
    BOOLEAN 4 "boolean" Primitive;
    INT 5 "int" Primitive;
    LONG 6 "long" Primitive;
    FLOAT 7 "float" Primitive;
    STRING 8 "java.lang.String" Primitive;

    THREAD 20 "java.lang.Thread" Struct; [
        osName "OS Thread Name" STRING, osThreadId "OS Thread Id" LONG,
        javaName "Java Thread Name" STRING, javaThreadId "Java Thread Id" LONG, group "Java Thread Group" THREAD_GROUP pooled]
    THREAD_GROUP 21 "jdk.types.ThreadGroup" Struct; [parent "Parent" THREAD_GROUP pooled, name "Name" STRING]
    CLASS 22 "java.lang.Class" Struct; [
        classLoader "Class Loader" CLASS_LOADER pooled, name "Name" SYMBOL pooled, package "Package" PACKAGE pooled,
        modifiers "Access Modifiers" INT]
    CLASS_LOADER 23 "jdk.types.ClassLoader" Struct; [type "Type" CLASS pooled, name "Name" SYMBOL pooled]
    PACKAGE 24 "jdk.types.Package" Struct; [name "Name" SYMBOL pooled]
    METHOD 25 "jdk.types.Method" Struct; [
        type "Type" CLASS pooled, name "Name" SYMBOL pooled, descriptor "Descriptor" SYMBOL pooled,
        modifiers "Access Modifiers" INT, hidden "Hidden" BOOLEAN]
    SYMBOL 26 "jdk.types.Symbol" Simple; [string "String" STRING]
    STACK_TRACE 27 "jdk.types.StackTrace" Struct; [truncated "Truncated" BOOLEAN, frames "Stack Frames" STACK_FRAME array]
    STACK_FRAME 28 "jdk.types.StackFrame" Struct; [
        method "Java Method" METHOD pooled, lineNumber "Line Number" INT, bytecodeIndex "Bytecode Index" INT,
        type "Frame Type" FRAME_TYPE pooled]
    FRAME_TYPE 29 "jdk.types.FrameType" Simple; [description "Description" STRING]
    NMT_TYPE 30 "jdk.types.NMTType" Simple; [name "Name" STRING]

    LABEL 50 "jdk.jfr.Label" annotation("Label"); [value "Value" STRING]
    DESCRIPTION 51 "jdk.jfr.Description" annotation("Description"); [value "Value" STRING]
    CATEGORY 52 "jdk.jfr.Category" annotation("Category"); [value "Value" STRING array]
    EXPERIMENTAL 53 "jdk.jfr.Experimental" annotation("Experimental");
    CONTENT_TYPE 54 "jdk.jfr.ContentType" annotation("Content Type");
    TIMESTAMP 55 "jdk.jfr.Timestamp" content_type("Timestamp"); [value "Value" STRING]
    TIMESPAN 56 "jdk.jfr.Timespan" content_type("Timespan"); [value "Value" STRING]
    DATA_AMOUNT 57 "jdk.jfr.DataAmount" content_type("Data Amount"); [value "Value" STRING]
    UNSIGNED 58 "jdk.jfr.Unsigned" content_type("Unsigned Value");
    MEMORY_ADDRESS 59 "jdk.jfr.MemoryAddress" content_type("Memory Address");
    PERCENTAGE 60 "jdk.jfr.Percentage" content_type("Percentage");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_that_is_named_is_declared_once() {
        let ids: Vec<u64> = TYPES.iter().map(|one| one.id).collect();
        let mut once = ids.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), ids.len());
        for member in TYPES.iter().flat_map(|one| one.fields) {
            assert!(ids.contains(&member.of), "{member:?}");
        }
        // Readers show the only field of a simple type in its place.
        assert!(TYPES.iter().filter(|one| one.kind == TypeKind::Simple).all(|one| one.fields.len() == 1));
    }
}
