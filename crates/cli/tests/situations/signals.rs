//! Signal handlers that allocate or jump out.

use crate::kit::situation;
use crate::situations;

situations! {
    signal_allocates over both => situation("signal_allocates").links(&["libbump"]).moments(4);
    signal_jumps_out over both_musl_in_full => situation("signal_jumps_out").links(&["libbump"]).moments(2);
    signal_maps over both_musl_in_full => situation("signal_maps").args(&["allocate"]).moments(2);
    signal_jumps_out_of_maps over both_musl_in_full => situation("signal_maps").named("signal_jumps_out_of_maps").args(&["jump"]);
    longjmp_handler over both_musl_in_full => situation("longjmp_handler").moments(2);
}
