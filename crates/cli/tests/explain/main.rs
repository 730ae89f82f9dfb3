//! Cases with known answers: each fixture states what it did. `plimsoll explain` must find that line within 3 %, with
//! the right verdict and no wrong one. The answer always comes from the fixture, never from plimsoll.

mod allocators;
mod baseline;
mod beside_a_vm;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/cgroup.rs"]
mod cgroup;
mod cgroup_v2;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../../fixtures/child.rs"]
mod child;
#[path = "../harness/executable.rs"]
mod executable;
#[allow(dead_code, reason = "other test programs share it")]
mod fixture;
mod golang;
mod isolates;
mod java;
mod jdks;
mod moving;
mod native;
mod own;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../harness/redis.rs"]
mod redis;
mod refused;
mod servers;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/stage.rs"]
mod stage;
mod untrusted;
