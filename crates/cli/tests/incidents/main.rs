//! Incidents with known answers, on real libraries from Maven Central: the owner of the memory, exactly the right verdicts, and the
//! remedy typed as it is printed, with the saving that it was to have and a program that works afterwards.
//!
//! One case of each kind is in `make test`, on one JVM; the others, and the other JVMs, are in `make test-full`.

mod agents;
mod bursts;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/cgroup.rs"]
mod cgroup;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../explain/fixture.rs"]
mod fixture;
mod heaps;
mod inflaters;
mod kit;
mod lucene;
mod netty;
mod rocks;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/stage.rs"]
mod stage;
mod streams;
mod threads;
