//! Makes both sides of a record from one list of fields. The writer's threads update a shared struct in place; it
//! consists of atomics, so that no word is torn. A reader decodes a plain struct from bytes.

macro_rules! record {
    (@cell u8) => { core::sync::atomic::AtomicU8 };
    (@cell u16) => { core::sync::atomic::AtomicU16 };
    (@cell u32) => { core::sync::atomic::AtomicU32 };
    (@cell u64) => { core::sync::atomic::AtomicU64 };
    (@cell i64) => { core::sync::atomic::AtomicI64 };
    (@cell text $n:literal) => { [core::sync::atomic::AtomicU8; $n] };
    (@cell words $n:literal) => { [core::sync::atomic::AtomicU64; $n] };
    (@plain text $n:literal) => { [u8; $n] };
    (@plain words $n:literal) => { [u64; $n] };
    (@plain $t:ident) => { $t };
    (@get $b:ident, $o:expr, text $n:literal) => {{
        let mut a = [0u8; $n];
        a.copy_from_slice(&$b[$o..$o + $n]);
        a
    }};
    (@get $b:ident, $o:expr, words $n:literal) => {{
        let mut a = [0u64; $n];
        for (i, w) in a.iter_mut().enumerate() {
            *w = record!(@get $b, $o + 8 * i, u64);
        }
        a
    }};
    (@get $b:ident, $o:expr, $t:ident) => {{
        let mut a = [0u8; core::mem::size_of::<$t>()];
        a.copy_from_slice(&$b[$o..$o + core::mem::size_of::<$t>()]);
        $t::from_ne_bytes(a)
    }};
    ($(#[$meta:meta])* $shared:ident, $plain:ident, $bytes:literal {
        $($(#[$fmeta:meta])* $field:ident: $kind:ident $($n:literal)?,)*
    }) => {
        $(#[$meta])*
        #[repr(C, align(8))]
        pub struct $shared { $($(#[$fmeta])* pub $field: record!(@cell $kind $($n)?),)* }

        #[doc = concat!("[`", stringify!($shared), "`] as a reader sees it.")]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $plain { $($(#[$fmeta])* pub $field: record!(@plain $kind $($n)?),)* }

        impl crate::record::Sealed for $shared {}
        impl crate::Record for $shared {}

        impl $shared {
            /// Bytes of one entry in the file.
            pub const BYTES: usize = $bytes;
        }
        const _: () = assert!(core::mem::size_of::<$shared>() == $bytes, "the stated size is the real one");

        impl $plain {
            /// Decodes one entry; `None` if fewer bytes are given than an entry has.
            pub fn decode(bytes: &[u8]) -> Option<$plain> {
                let b = bytes.get(..$bytes)?;
                Some($plain { $($field: record!(@get b, core::mem::offset_of!($shared, $field), $kind $($n)?),)* })
            }
        }
    };
}
pub(crate) use record;

/// A record of the segment. It consists only of atomics, so a shared reference is sound even while others write. Only
/// the macro above implements it, and makes every field an atomic.
pub trait Record: Sealed {}

/// See [`Record`].
pub trait Sealed {}

/// The text in a fixed-size field, up to the first NUL.
pub fn text(field: &[u8]) -> &[u8] {
    let n = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    &field[..n]
}
