//! Java frames of HotSpot, without an agent: under `run` the VM has no agent.
//!
//! ```text
//! malloc ◀ libzip, libnio, libjvm …          by the modules' rules
//!        ◀ native method's wrapper           code: blob ▶ a frame of fixed size
//!        ◀ compiled method                   compiled: pc ▶ scopes ▶ methods inlined into each other
//!        ◀ interpreter                       slots of the frame: method, bytecode pointer
//!        ◀ call stub ◀ libjvm … thread start
//! ```
//! The rules for the walk are ordinary ones ([`super::rule`]); which Java methods a frame has is determined after the
//! walk is done ([`frames`]). Everything is read from the VM's own memory as the tables say that libjvm exports for
//! debuggers ([`structs`]), with loads that can't fault ([`memory`]).
//!
//! AsyncGetCallTrace isn't used. It needs a JNIEnv and a class-load event enabled by an agent (else it returns −1). It
//! returns jmethodIDs that must have been made beforehand. It doesn't know the native frames between Java ones.
//!
//! # When a remembered stack may stand for a new one
//!
//! The memo compares the stack's words. With Java frames the words don't suffice: later another nmethod or method may
//! lie at the same address. [`Guard`]s say what else must be the same. For a compiled frame, this is the word of the
//! nmethod that holds its compile id, which is never given out twice. For an interpreted frame, it is the identity of
//! its method by name. [`known`] compares the names byte by byte with what was read before, and doesn't hash them
//! again. It does so only if the VM can have freed a method since the last comparison ([`lifetimes`]).

use core::sync::atomic::{AtomicU32, Ordering::*};

use plimsoll_segment::{Counter, Cut, FrameKind, frame_flags};

use super::frames::Frame;
use super::generated_code;
use super::read::peek;
use super::rule::{Base, Rule};
use super::rule::{Cfa, SavedFp};
use crate::segment::Segment;
use crate::segment::slots::{self, GENERATION, forget_stacks};
use code_cache::{Blob, Code, Vm};
use once::Once;
use structs::Layout;

pub mod cells;
pub mod code_cache;
pub mod compiled;
pub mod known;
pub mod lifetimes;
pub mod memory;
pub mod method;
pub mod once;
pub mod returns;
pub mod structs;

/// Generation of the code map in which no VM was found, + 1.
static TRIED: AtomicU32 = AtomicU32::new(0);
/// How often a VM was found that wasn't ready.
static STARTING: AtomicU32 = AtomicU32::new(0);
static VM: Once<Vm> = Once::empty();
/// Bytes of the frame through which virtual threads are entered; 0 = none was seen yet.
static ENTRY_BYTES: AtomicU32 = AtomicU32::new(0);

/// The VM, if this process has one that runs Java code.
fn vm() -> Option<&'static Vm> {
    VM.get().or_else(find_vm)
}

/// Whether a walk of this process has met Java code.
pub fn is_found() -> bool {
    VM.get().is_some()
}

#[cold]
fn find_vm() -> Option<&'static Vm> {
    let generation = GENERATION.load(Relaxed).wrapping_add(1).max(1);
    if cfg!(not(target_arch = "x86_64")) || TRIED.load(Relaxed) == generation {
        return None;
    }
    let claim = VM.claim()?;
    let layout = Layout::find();
    let Some(vm) = layout.and_then(Vm::new) else {
        // No new attempt before another object is loaded, except for a VM that is still starting: it runs Java code
        // soon.
        if layout.is_none() || STARTING.fetch_add(1, Relaxed) > 1000 {
            TRIED.store(generation, Relaxed);
        }
        return None;
    };
    // Before there is a VM, the hooks don't forget pages, so all pages are forgotten now.
    memory::forget(0..usize::MAX);
    let vm = claim.fill(vm);
    forget();
    Some(vm)
}

/// Forgets remembered stacks: with what has just become known, they may be longer.
fn forget() {
    if let Some(segment) = Segment::current() {
        forget_stacks(segment);
    }
}

/// From now on there is a VM, without any code.
#[cfg(test)]
pub fn begin_test() {
    if let Some(claim) = VM.claim() {
        claim.fill(Vm::EMPTY);
    }
}

/// Calls `real`, which unmaps memory of the process or makes it unreadable. What is known about that memory is
/// forgotten before the call, since a reader may be about to use it. It is forgotten again after the call, since a
/// reader may have queried the kernel in between.
#[inline(always)]
pub fn unmapping<R>(start: usize, bytes: usize, real: impl FnOnce() -> R) -> R {
    unmapping_if(true, start, bytes, real)
}

/// As [`unmapping`], but forgets only if `forgets` is true.
#[inline(always)]
pub fn unmapping_if<R>(forgets: bool, start: usize, bytes: usize, real: impl FnOnce() -> R) -> R {
    let forgets = forgets && VM.is_ready();
    if forgets {
        memory::forget(start..start.saturating_add(bytes));
    }
    let result = real();
    if forgets {
        memory::forget(start..start.saturating_add(bytes));
    }
    result
}

/// The rule for code in no module: `pc` is inside the call, one below the return address.
pub fn rule(pc: u64) -> Option<Rule> {
    let vm = vm().filter(|vm| vm.holds(pc))?;
    if !slots::is_checking()
        && let Some(known) = returns::recall(pc + 1)
    {
        return Some(known.rule);
    }
    rule_of_code(vm, pc + 1)
}

fn rule_of_code(vm: &Vm, ra: u64) -> Option<Rule> {
    let fp = Rule::frame(Cfa { base: Base::Fp, offset: 16, deref: None }, SavedFp::Cfa(-16));
    match vm.code(ra)? {
        Code::Interpreter => Some(Rule::interpreted(vm.bytecode_slot)),
        Code::Entry | Code::Upcall => Some(fp),
        Code::Stub(blob) => Some(Rule::compiled(blob.frame as i32)),
        Code::Method(blob) => Some(match compiled::deoptimised(vm, blob, ra) {
            Some(own) => Rule::deoptimised(blob.frame as i32, own as i32),
            None => Rule::compiled(blob.frame as i32),
        }),
        Code::Continuation => {
            let bytes = match ENTRY_BYTES.load(Relaxed) {
                0 => entry_bytes(vm)?,
                known => known,
            };
            Some(Rule::continuation(bytes as i32))
        }
        Code::Other => Some(Rule::FRAME_POINTER),
    }
}

/// Newer VMs export where the entry frame's code returns to; in older ones it is learned when a stack goes through it.
fn entry_bytes(vm: &Vm) -> Option<u32> {
    let pc = memory::load(vm.layout.continuation_return).filter(|_| vm.layout.continuation_return != 0)?;
    let Code::Method(blob) = vm.code(pc)? else { return None };
    ENTRY_BYTES.store(blob.frame, Relaxed);
    Some(blob.frame)
}

/// What must be unchanged for a remembered Java frame to be valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Guard {
    /// Address of a word in the code cache; or, if odd, one above a method's; 0: [`generated_code::changes`].
    at: u64,
    value: u64,
}

/// A number that changes before the VM frees a method; 0: it isn't known.
#[inline]
pub fn methods_freed() -> u64 {
    vm().and_then(lifetimes::changes).unwrap_or(0)
}

impl Guard {
    /// Whether the guard is about a method, which stays the same as long as [`methods_freed`] is unchanged.
    #[inline]
    pub fn is_of_method(self) -> bool {
        self.at & 1 == 1
    }

    /// No more memory has become executable.
    pub fn no_more_code() -> Guard {
        Guard { at: 0, value: generated_code::changes() }
    }

    /// Whether the guarded word or method is unchanged. Called after the stack's words have been compared: then the
    /// frame is live.
    #[inline]
    pub fn holds(self) -> bool {
        if self.at == 0 {
            return generated_code::changes() == self.value;
        }
        let Some(vm) = vm() else { return false };
        if self.at & 1 == 0 {
            memory::load(self.at) == Some(self.value)
        } else {
            Segment::current().inspect(|segment| segment.count(Counter::methods_compared, 1));
            method::identity(vm, self.at - 1) == Some(self.value)
        }
    }

    /// As [`Guard::holds`], where the word is known to be readable.
    ///
    /// # Safety
    /// The guard held when [`memory::unmappings`] had the value that it had when the caller's walk began, and its word
    /// lies in the code cache, which the VM never unmaps.
    #[inline]
    pub unsafe fn holds_where_readable(self) -> bool {
        if self.at == 0 || self.at & 7 != 0 {
            return self.holds();
        }
        // SAFETY: the caller's contract: the page could be read, and no hook has seen it unmapped since.
        unsafe { peek::<u64>(self.at) == self.value }
    }
}

/// The frames that a return address in the code cache stands for, innermost first; `words` are what the walk noted of
/// the frame, `freed` is [`methods_freed`], read when the walk began. `None`: the code cache doesn't hold the address,
/// or its code isn't understood. Then it is a frame of code without a name.
pub fn frames(segment: Segment, ra: u64, words: [u64; 2], freed: u64, mut each: impl FnMut(Frame)) -> Option<Guard> {
    let vm = vm().filter(|vm| vm.holds(ra))?;
    let known = if words[0] == 0 { returns::recall(ra) } else { None };
    if let Some(known) = known.as_ref().filter(|_| !slots::is_checking()) {
        known.frames().for_each(each);
        return Some(known.guard);
    }
    let mut list = returns::List::default();
    let mut each = |f: Frame| {
        list.push(f);
        each(f);
    };
    let mut java = |method: u64, bci: Option<u16>, flags: u8| {
        let (index, identity) = method::index(segment, vm, method, freed).unzip();
        each(match index.flatten() {
            Some(index) => {
                Frame { value: (index as u64) << 16 | bci.unwrap_or(0xffff) as u64, kind: FrameKind::Java, flags }
            }
            None => Frame { value: ra, kind: FrameKind::Jit, flags: 0 },
        });
        identity
    };
    match vm.code(ra)? {
        Code::Interpreter => {
            let [method, bcp] = words;
            let (bci, flags) = match method::bci(vm, method, bcp) {
                Some(bci) => (Some(bci), frame_flags::INTERPRETED),
                None if method::is_native(vm, method) => (None, frame_flags::NATIVE),
                None => (None, frame_flags::INTERPRETED),
            };
            Some(Guard { at: method | 1, value: java(method, bci, flags)? })
        }
        Code::Method(blob) => {
            let at = compiled::identity_at(vm, blob);
            let guard = Guard { at, value: memory::load(at)? };
            let pc = if words[0] != 0 { words[0] } else { ra };
            let method = compiled::method(vm, blob)?;
            if method::is_native(vm, method) {
                learn_entry(vm, blob, method);
                java(method, None, frame_flags::NATIVE);
                return Some(guard);
            }
            let tier = match compiled::level(vm, blob) {
                1..=3 => frame_flags::C1,
                4 => frame_flags::C2,
                _ => 0,
            };
            let mut any = false;
            let whole = compiled::frames(vm, blob, pc, |v| {
                any = true;
                java(v.method, v.bci, if v.inlined { tier | frame_flags::INLINED } else { tier });
            });
            if whole.is_none() && !any {
                java(method, None, tier);
            }
            if words[0] == 0
                && whole.is_some()
                && let Some(rule) = rule_of_code(vm, ra)
            {
                let differs = known.is_some_and(|known| !known.is(guard, rule, &list));
                segment.count(Counter::memo_disagreements, differs as u64);
                returns::keep(ra, guard, rule, &list);
            }
            Some(guard)
        }
        Code::Continuation => {
            each(Frame { value: Cut::Unmounted as u64, kind: FrameKind::Cut, flags: 0 });
            None
        }
        code => {
            let name = vm.blob_name(ra).filter(|_| code != Code::Entry);
            let name = if code == Code::Entry { b"call_stub" } else { name.as_deref().unwrap_or_default() };
            if let Some(index) = method::stub(segment, name) {
                each(Frame { value: (index as u64) << 16 | 0xffff, kind: FrameKind::Java, flags: 0 });
            }
            None
        }
    }
}

fn learn_entry(vm: &Vm, blob: Blob, method: u64) {
    if ENTRY_BYTES.load(Relaxed) == 0 && method::is_named(vm, method, b"enterSpecial") {
        ENTRY_BYTES.store(blob.frame, Relaxed);
        forget();
    }
}
