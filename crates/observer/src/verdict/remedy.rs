//! The constructor of remedies, and what several of them share.

use super::{Effect, Effort, Form, Remedy};
use plimsoll_facts::snapshot::{LoadedAllocator, Snapshot};
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

/// Makes the process call a function that gives free pages back. `with`: the step of `plimsoll try --pid` that makes
/// the call; `function`: how a debugger writes it. None: plimsoll can enter processes on this host, but not this one.
///
/// gdb remains for hosts on which plimsoll enters no process. On a processor with AMX, gdb 13 fails to call a function,
/// and the program may end. gdb has a stopped thread make the call. A signal in another thread would make gdb abandon
/// the call, such as the SIGSEGV with which a JVM stops its threads. The thread would then return into nothing. `all`
/// leaves out the signals that gdb needs itself.
pub(crate) fn call(snapshot: &Snapshot, with: &str, function: &str) -> Option<Remedy> {
    let pid = snapshot.process.pid;
    // If the allocator is linked into the program, plimsoll can't borrow a thread for the call.
    let program = snapshot.process.executable.as_ref();
    let is_library = |known: &LoadedAllocator| known.serves_malloc && Some(&known.path) != program;
    if snapshot.host.can_enter && snapshot.allocators.iter().any(is_library) {
        let how = format!("plimsoll try --pid {pid} --with {with}");
        let cost = "stops threads briefly, one at a time, until one has started the call; holds the allocator's locks while it \
                    releases pages; the next burst takes the memory again";
        return Some(remedy(Effort::Now, GIVE_BACK, how, cost));
    }
    if snapshot.host.can_enter {
        return None;
    }
    let how = format!("gdb -p {pid} -batch -ex 'handle all nostop noprint pass' -ex 'call {function}'");
    let cost = "stops the process while gdb is attached, and deadlocks if a thread was stopped inside malloc: try it on a replica";
    // Nobody should type it unread.
    Some(Remedy { form: Form::Stop, ..remedy(Effort::Now, GIVE_BACK, how, cost) })
}
