//! The constructor of remedies, and what several of them share.

use super::{Effect, Effort, Form, Remedy};
use plimsoll_facts::snapshot::Snapshot;
use plimsoll_facts::units::Bytes;

/// Below this, a remedy isn't worth offering.
pub(crate) const FLOOR: Bytes = Bytes::mib(16);
/// Percentage of the bytes that a verdict is about: a smaller part gets neither a sentence nor a remedy.
pub(super) const MIN_PERCENT_TO_MENTION: f64 = 10.0;
pub(crate) const GIVE_BACK: &str = "give the free pages back now";

/// `how` must be pasteable unchanged, and contain no command line of the target (`start.rs`). [`Remedy::saves`] adds
/// the expected saving.
pub(crate) fn remedy(
    effort: Effort,
    what: impl Into<String>,
    how: impl Into<String>,
    trade_off: impl Into<String>,
) -> Remedy {
    let how = how.into();
    let form = Form::of(effort, &how);
    Remedy { what: what.into(), how, form, effort, trade_off: trade_off.into(), effect: Effect::Unknown }
}

/// Has gdb call a function of the process that gives free pages back. All threads run meanwhile. A signal in one of them,
/// such as the SIGSEGV with which a JVM stops its threads, would make gdb abandon the call, and the thread return into
/// nothing. `all` leaves out the signals that gdb needs itself.
///
/// gdb 13.1 on an Intel Xeon with AMX (2026-11-26): "Couldn't write extended state status: Bad address". Nothing is
/// called, and the nanosleep that gdb had interrupted returns errno 516, so that `sleep` ends. Newer ones weren't at hand.
pub(crate) fn call(snapshot: &Snapshot, function: &str) -> Remedy {
    if snapshot.host.has_tiles {
        let how = format!("have the program call {function}");
        let cost = "needs a change of the program: gdb 13 can't call functions on a processor with AMX, and the program may end";
        return Remedy { form: Form::Code, ..remedy(Effort::Now, GIVE_BACK, how, cost) };
    }
    let pid = snapshot.process.pid;
    let how = format!("gdb -p {pid} -batch -ex 'handle all nostop noprint pass' -ex 'call {function}'");
    let cost = "stops the process while gdb is attached, and deadlocks if a thread was stopped inside malloc: try it on a replica";
    // Nobody should type it unread.
    Remedy { form: Form::Stop, ..remedy(Effort::Now, GIVE_BACK, how, cost) }
}
