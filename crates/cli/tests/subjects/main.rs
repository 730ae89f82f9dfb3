//! The matrix of real subjects: programs that people run, from Debian, Maven Central and npm, each without and with the
//! tracker. Both must have the same output and exit status, and the books must balance. Each prints one line.
//!
//! `.ci/setup` installs the programs; the tests fetch the rest once into `target/subjects`.

mod books;
mod build;
#[allow(dead_code, reason = "shared with other test programs")]
mod cgroup;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../../fixtures/child.rs"]
mod child;
mod death;
mod healthy;
mod http;
mod java;
mod launcher;
mod native_image;
mod nmt;
mod postgres;
mod redis;
mod scripts;
mod stage;
