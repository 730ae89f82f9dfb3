//! The events of one instant, field by field.

use super::constants::{Constants, Stack};
use super::integers;

/// The events of one instant while they are gathered.
pub struct Batch<'r> {
    constants: &'r mut Constants,
    ticks: u64,
    pub(super) events: Vec<u8>,
    body: Vec<u8>,
    /// The instant opens a chunk: events that each chunk must have are due.
    pub opens_chunk: bool,
}

/// The fields of one event while they are written, in the order of its declaration.
pub struct Body<'b> {
    constants: &'b mut Constants,
    bytes: &'b mut Vec<u8>,
}

impl<'r> Batch<'r> {
    pub(super) fn new(constants: &'r mut Constants, ticks: u64, opens_chunk: bool) -> Batch<'r> {
        Batch { constants, ticks, events: Vec::new(), body: Vec::new(), opens_chunk }
    }

    /// One event. `fields` must write those that the table declares for `id`, but for `startTime`.
    pub fn event(&mut self, id: u64, fields: impl FnOnce(&mut Body<'_>)) {
        self.body.clear();
        integers::long(&mut self.body, id);
        integers::long(&mut self.body, self.ticks);
        fields(&mut Body { constants: self.constants, bytes: &mut self.body });
        integers::event(&mut self.events, &self.body);
    }
}

impl Body<'_> {
    /// An int or a long; one with a sign in two's complement.
    pub fn long(&mut self, value: u64) {
        integers::long(self.bytes, value);
    }

    /// IEEE 754.
    pub fn float(&mut self, value: f32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// A boolean.
    pub fn flag(&mut self, value: bool) {
        self.bytes.push(u8::from(value));
    }

    /// A string in the event itself.
    pub fn text(&mut self, text: &str) {
        integers::string(self.bytes, Some(text));
    }

    /// A word in the pool of the type `pool`: one of the table's names.
    pub fn constant(&mut self, pool: u64, text: &str) {
        let number = self.constants.name(pool, text);
        integers::long(self.bytes, number);
    }

    /// A stack in the pool of stacks, or null.
    pub fn stack(&mut self, stack: Option<&Stack>) {
        let number = stack.map_or(0, |stack| self.constants.stack(stack));
        integers::long(self.bytes, number);
    }
}
