//! GraalVM native images. Finds where the Java memory of an image lies: the image heap (a section of its file), each
//! isolate's view of it, and the heap chunks. Reads the image's own NMT report, if it was built with NMT.

pub(crate) mod chunks;
mod parse;
mod read;
mod report;
pub(crate) mod unpacked;

pub use parse::{ImageFile, find_image, parse_image_nmt};
pub use read::read;
pub(crate) use report::read_again;
pub use report::report;
