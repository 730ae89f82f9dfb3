//! GraalVM native images: an executable or shared library with its heap in a section of its own.

pub(crate) mod chunks;
mod parse;
mod read;
pub(crate) mod unpacked;

pub use parse::{ImageFile, find_image, parse_image_nmt};
pub use read::read;
