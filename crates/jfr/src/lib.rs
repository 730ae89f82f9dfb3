//! JDK Flight Recorder files: a reader of any, and a writer whose file is whole at every moment.

pub mod reader;
pub mod writer;
