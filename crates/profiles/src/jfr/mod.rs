//! Opens JDK Flight Recorder files and repositories. `plimsoll_jfr::reader` reads their contents.

mod read;

pub use read::{RecordingFiles, gaps, is_recording};
