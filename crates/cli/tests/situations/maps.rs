//! The virtual memory map.

use crate::harness::situation;
use crate::situations;

situations! {
    map_basic => situation("map_basic").moments(3);
    map_commit => situation("map_commit").moments(10);
    map_remap => situation("map_remap").moments(8);
    map_partial => situation("map_partial").moments(7);
    map_errors => situation("map_errors").moments(2);
    map_protect => situation("map_protect").moments(6);
    map_advice => situation("map_advice");
    map_brk => situation("map_brk").moments(5);
    map_shm => situation("map_shm").moments(4);
    map_threads => situation("map_threads");
    fork_maps => situation("fork_maps").moments(3);
    map_many => situation("map_many").moments(3);
}
