//! JDK Flight Recorder files and repositories. `plimsoll_jfr::reader` reads what is in them.

mod read;

pub use read::{Recording, gaps, is_recording};
