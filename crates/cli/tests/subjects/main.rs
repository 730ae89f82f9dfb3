//! The matrix of real subjects: programs that people run, from Debian, Maven Central and npm, each without and with the
//! tracker. The same output, the same exit status, and books that balance. What ran is said in one line for each.
//!
//! `.ci/setup` installs the programs; what comes from the other registries is fetched once into `target/subjects`.

mod books;
mod build;
mod cgroup;
mod death;
mod door;
mod healthy;
mod http;
mod java;
mod native_image;
mod nmt;
mod postgres;
mod redis;
mod scripts;
mod stage;
