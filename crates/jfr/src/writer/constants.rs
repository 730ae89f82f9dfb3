//! Constants: the names, symbols, methods and stacks that events refer to by number, and the checkpoint events that
//! define the numbers.
//!
//! A number never stands for two values, because readers may carry resolved constants from one chunk to the next. Each
//! chunk defines those constants that its events use, because each chunk must be readable alone. A constant that a chunk
//! doesn't use is forgotten, and later gets a new number: so memory is bounded by the constants of two chunks.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::integers;
use super::types::{CLASS, FRAME_TYPE, METHOD, NMT_TYPE, STACK_TRACE, SYMBOL, Type};
use crate::format::CHECKPOINT;

/// A call stack, innermost frame first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Frames from the innermost to the outermost.
    pub frames: Vec<Frame>,
    /// Whether the stack walk ended early.
    pub truncated: bool,
}

/// One frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// For a Java frame its class, `java.util.HashMap`; for a native one its module, `libz.so.1`.
    pub class: String,
    /// Name without arguments.
    pub function: String,
    /// Line number; 0 if unknown.
    pub line: u32,
    /// How the frame was run.
    pub kind: FrameType,
}

/// How a frame was run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FrameType {
    /// Native code that doesn't belong to a VM.
    #[default]
    Native,
    /// Interpreted Java code.
    Interpreted,
    /// Compiled Java code.
    Jit,
    /// Java code inlined into its caller.
    Inlined,
    /// Kernel code.
    Kernel,
}

impl FrameType {
    /// The names that HotSpot and async-profiler use.
    const fn description(self) -> &'static str {
        match self {
            FrameType::Native => "Native",
            FrameType::Interpreted => "Interpreted",
            FrameType::Jit => "JIT compiled",
            FrameType::Inlined => "Inlined",
            FrameType::Kernel => "Kernel",
        }
    }
}

/// Order of the pools in a checkpoint, after those of the table's own names. A constant may refer to earlier and to
/// later ones.
const POOLS: [u64; 6] = [NMT_TYPE, SYMBOL, FRAME_TYPE, CLASS, METHOD, STACK_TRACE];

pub(super) struct Constants {
    /// Constants by pool and encoded value: equal values share one constant.
    numbers: HashMap<(u64, Vec<u8>), Constant>,
    /// Numbers by stack, so that a stack that is written each second needs one lookup. A stack is known by its hash of
    /// 128 bits with random keys, because its names take some KiB.
    stacks: HashMap<[u64; 2], Constant>,
    keys: [RandomState; 2],
    chunk: u64,
    pools: Vec<Pool>,
}

#[derive(Default)]
struct Pool {
    id: u64,
    /// Last number given. Numbers stay small, because small ones take fewer bytes and most events have names.
    last: u64,
    /// Entries added in this chunk since the last checkpoint: encoded, and their number.
    fresh: (Vec<u8>, u64),
}

struct Constant {
    number: u64,
    chunk: u64,
}

impl Constants {
    pub(super) fn new(names: &[Type]) -> Constants {
        let ids = names.iter().map(|of| of.id).chain(POOLS);
        let pools = ids.map(|id| Pool { id, ..Pool::default() }).collect();
        let keys = [RandomState::new(), RandomState::new()];
        Constants { numbers: HashMap::new(), stacks: HashMap::new(), keys, chunk: 0, pools }
    }

    /// Begins a chunk, which has no constants yet. Those of the last chunk keep their numbers.
    pub(super) fn next_chunk(&mut self) {
        self.stacks.retain(|_, constant| constant.chunk == self.chunk);
        self.numbers.retain(|_, constant| constant.chunk == self.chunk);
        self.chunk += 1;
        self.mark_written();
    }

    pub(super) fn name(&mut self, pool: u64, text: &str) -> u64 {
        let mut value = Vec::with_capacity(text.len() + 2);
        integers::string(&mut value, Some(text));
        self.number(pool, value)
    }

    fn symbol(&mut self, text: &str) -> u64 {
        self.name(SYMBOL, text)
    }

    pub(super) fn stack(&mut self, stack: &Stack) -> u64 {
        let key = self.keys.each_ref().map(|key| key.hash_one(stack));
        if let Some(constant) = self.stacks.get(&key).filter(|constant| constant.chunk == self.chunk) {
            return constant.number;
        }
        let mut value = vec![u8::from(stack.truncated)];
        integers::long(&mut value, stack.frames.len() as u64);
        for frame in &stack.frames {
            let method = self.method(frame);
            let kind = self.frame_type(frame.kind);
            // Readers omit a line number of -1.
            let line = if frame.line == 0 { u64::from(u32::MAX) } else { u64::from(frame.line) };
            for part in [method, line, 0, kind] {
                integers::long(&mut value, part);
            }
        }
        let number = self.number(STACK_TRACE, value);
        self.stacks.insert(key, Constant { number, chunk: self.chunk });
        number
    }

    /// async-profiler's converter colours frames by these numbers. It uses 0 for interpreted frames; for other readers
    /// 0 is null, so interpreted frames get another number.
    fn frame_type(&mut self, kind: FrameType) -> u64 {
        let number = match kind {
            FrameType::Jit => 1,
            FrameType::Inlined => 2,
            FrameType::Native => 3,
            FrameType::Kernel => 5,
            FrameType::Interpreted => 8,
        };
        let mut value = Vec::new();
        integers::string(&mut value, Some(kind.description()));
        self.insert(FRAME_TYPE, value, Some(number))
    }

    fn method(&mut self, frame: &Frame) -> u64 {
        let class_name = self.symbol(&frame.class.replace('.', if frame.kind.is_java() { "/" } else { "." }));
        let mut class = Vec::new();
        // The class has no loader, package or modifiers.
        for part in [0, class_name, 0, 0] {
            integers::long(&mut class, part);
        }
        let class = self.number(CLASS, class);
        let name = self.symbol(&frame.function);
        // Readers parse the descriptor. The arguments are unknown, so it has none.
        let descriptor = self.symbol("()V");
        let mut method = Vec::new();
        for part in [class, name, descriptor, 0, 0] {
            integers::long(&mut method, part);
        }
        self.number(METHOD, method)
    }

    fn number(&mut self, pool: u64, value: Vec<u8>) -> u64 {
        self.insert(pool, value, None)
    }

    fn insert(&mut self, pool: u64, value: Vec<u8>, fixed: Option<u64>) -> u64 {
        let key = (pool, value);
        let Some(pool) = self.pools.iter_mut().find(|known| known.id == pool) else { return 0 };
        let number = match self.numbers.get_mut(&key) {
            Some(constant) if constant.chunk == self.chunk => return constant.number,
            Some(constant) => {
                constant.chunk = self.chunk;
                constant.number
            }
            None => {
                // 0 means null to every reader.
                pool.last += u64::from(fixed.is_none());
                let number = fixed.unwrap_or(pool.last);
                self.numbers.insert(key.clone(), Constant { number, chunk: self.chunk });
                number
            }
        };
        let (entries, count) = &mut pool.fresh;
        integers::long(entries, number);
        entries.extend_from_slice(&key.1);
        *count += 1;
        number
    }

    pub(super) fn has_fresh(&self) -> bool {
        self.pools.iter().any(|pool| pool.fresh.1 > 0)
    }

    /// Marks the new constants as written.
    pub(super) fn mark_written(&mut self) {
        self.pools.iter_mut().for_each(|pool| pool.fresh = Default::default());
    }

    /// Encodes a checkpoint of the new constants. `delta` is the distance to the previous one.
    pub(super) fn checkpoint(&self, ticks: u64, delta: i64) -> Vec<u8> {
        let fresh = self.pools.iter().filter(|pool| pool.fresh.1 > 0);
        checkpoint(ticks, delta, fresh.map(|pool| (pool.id, pool.fresh.1, pool.fresh.0.as_slice())))
    }
}

/// The end of every chain of checkpoints: a checkpoint without pools.
pub(super) fn empty_checkpoint() -> Vec<u8> {
    checkpoint(0, 0, std::iter::empty())
}

fn checkpoint<'a>(ticks: u64, delta: i64, pools: impl Iterator<Item = (u64, u64, &'a [u8])>) -> Vec<u8> {
    let mut body = Vec::new();
    // Type, start time, duration, and the distance in two's complement.
    for value in [CHECKPOINT as u64, ticks, 0, delta as u64] {
        integers::long(&mut body, value);
    }
    body.push(0);
    let pools: Vec<_> = pools.collect();
    integers::long(&mut body, pools.len() as u64);
    for (pool, count, entries) in pools {
        integers::long(&mut body, pool);
        integers::long(&mut body, count);
        body.extend_from_slice(entries);
    }
    let mut out = Vec::new();
    integers::event(&mut out, &body);
    out
}

impl FrameType {
    const fn is_java(self) -> bool {
        matches!(self, FrameType::Interpreted | FrameType::Jit | FrameType::Inlined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(function: &str) -> Stack {
        Stack { frames: vec![Frame { function: function.into(), ..Frame::default() }], truncated: false }
    }

    #[test]
    fn a_constant_that_the_last_chunk_did_not_use_is_forgotten_and_its_number_is_not_reused() {
        let mut constants = Constants::new(&[]);
        let mut sizes = vec![];
        let mut given = vec![];
        for chunk in 0..5 {
            constants.next_chunk();
            let always = constants.stack(&stack("always"));
            assert_eq!(always, 1, "used by each chunk, so it keeps its number");
            let first = constants.stack(&stack(&format!("only in {chunk}")));
            assert_eq!(constants.stack(&stack(&format!("only in {chunk}"))), first);
            assert!(!given.contains(&first), "{first} stood for another stack: {given:?}");
            given.push(first);
            sizes.push((constants.stacks.len(), constants.numbers.len()));
        }
        // 2 stacks; a class with its symbol, a frame type, a descriptor, and a name and a method for each stack.
        assert_eq!(sizes[0], (2, 10));
        // In each later chunk one stack of the last one is left, with its method and its name.
        assert_eq!(sizes[1..], [(3, 13); 4]);
        constants.next_chunk();
        assert_eq!(constants.stack(&stack("only in 0")), 7, "it comes back under a new number");
    }
}
