//! What native libraries hold, by their blocks' first words.

use crate::units::{AddressRange, Avma, Bytes};

/// Live blocks with one first word, an address in a library's data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectBlocks {
    pub first_word: Avma,
    pub count: u64,
    /// Resident bytes of their chunks.
    pub resident: Bytes,
    /// Some of the blocks, from what malloc returned to the end of the chunk.
    pub some: Vec<AddressRange>,
}

#[derive(Clone, Debug, Default)]
pub struct NativeObjects {
    /// Largest first.
    pub classes: Vec<ObjectClass>,
    pub caches: Vec<BlockCache>,
}

/// Live blocks that begin with the address of one symbol of a library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectClass {
    /// Path of the library, as mapped.
    pub library: String,
    /// The symbol, as linked: `_ZTV…` is a class's table of virtual functions. Empty if the library doesn't name it.
    pub symbol: String,
    pub count: u64,
    pub resident: Bytes,
}

/// A RocksDB block cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockCache {
    /// Path of the library, as mapped.
    pub library: String,
    pub capacity: Bytes,
    /// What its entries are charged with, their own records included. None if it could not be read.
    pub used: Option<Bytes>,
}
