//! Encodes the events of one instant, field by field.

use super::constants::{Constants, Stack};
use super::integers;

/// Collects the events of one instant.
pub struct Batch<'r> {
    constants: &'r mut Constants,
    ticks: u64,
    pub(super) events: Vec<u8>,
    body: Vec<u8>,
    /// Whether this instant opens a chunk: then the events that each chunk needs must be written.
    pub opens_chunk: bool,
}

/// Writes the fields of one event, in the order of its declaration.
pub struct Body<'b> {
    constants: &'b mut Constants,
    bytes: &'b mut Vec<u8>,
}

impl<'r> Batch<'r> {
    pub(super) fn new(constants: &'r mut Constants, ticks: u64, opens_chunk: bool) -> Batch<'r> {
        Batch { constants, ticks, events: Vec::new(), body: Vec::new(), opens_chunk }
    }

    /// Adds one event. `fields` must write the fields that the table declares for `id`, except `startTime`.
    pub fn event(&mut self, id: u64, fields: impl FnOnce(&mut Body<'_>)) {
        self.body.clear();
        integers::long(&mut self.body, id);
        integers::long(&mut self.body, self.ticks);
        fields(&mut Body { constants: self.constants, bytes: &mut self.body });
        integers::event(&mut self.events, &self.body);
    }
}

impl Body<'_> {
    /// Writes an int or a long; negative values in two's complement.
    pub fn long(&mut self, value: u64) {
        integers::long(self.bytes, value);
    }

    /// Writes a float (IEEE 754).
    pub fn float(&mut self, value: f32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes a boolean.
    pub fn flag(&mut self, value: bool) {
        self.bytes.push(u8::from(value));
    }

    /// Writes a string into the event itself.
    pub fn text(&mut self, text: &str) {
        integers::string(self.bytes, Some(text));
    }

    /// Writes the number of a name in the pool `pool`.
    pub fn constant(&mut self, pool: u64, text: &str) {
        let number = self.constants.name(pool, text);
        integers::long(self.bytes, number);
    }

    /// Writes the number of a stack in the pool of stacks, or null.
    pub fn stack(&mut self, stack: Option<&Stack>) {
        let number = stack.map_or(0, |stack| self.constants.stack(stack));
        integers::long(self.bytes, number);
    }
}
