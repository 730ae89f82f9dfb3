//! What a seccomp filter does with a system call of which some arguments are unknown.
//!
//! A filter is a program of classic BPF over a call's number, architecture and arguments (seccomp(2)). Each word is a
//! number or unknown. Jumps go forward only, so one pass in order of the instructions sees every path: where paths
//! meet, a register that differs becomes unknown. A branch on an unknown word goes both ways. So the results are all
//! that the filter may return, and perhaps more.
//!
//! The bytes are the kernel's, but their author is the target's user: any bytes are bounded, and what the kernel would
//! refuse to install may have no result.

/// The kernel's limit of instructions (BPF_MAXINSNS).
pub const MOST: usize = 4096;
/// If a call has more different results than this, nothing is known of it.
const MOST_RESULTS: usize = 16;

/// `struct seccomp_data` as 32-bit words: number, architecture, instruction pointer, six arguments of two words each.
/// `None`: unknown.
pub type Data = [Option<u32>; 16];

/// The architecture of a call, as a filter sees it (linux/audit.h).
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// What a filter sees of a call.
pub fn data(number: u32, arguments: &[Option<u64>; 6]) -> Data {
    let mut data = [None; 16];
    (data[0], data[1]) = (Some(number), Some(AUDIT_ARCH_X86_64));
    for (i, argument) in arguments.iter().enumerate() {
        data[4 + 2 * i] = argument.map(|a| a as u32);
        data[5 + 2 * i] = argument.map(|a| (a >> 32) as u32);
    }
    data
}

/// The registers before an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; 16],
}

impl State {
    /// What holds on both paths.
    fn joined(&self, other: &State) -> State {
        let both = |a: Option<u32>, b: Option<u32>| a.filter(|_| a == b);
        let mut memory = self.memory;
        memory.iter_mut().zip(other.memory).for_each(|(own, other)| *own = both(*own, other));
        State { a: both(self.a, other.a), x: both(self.x, other.x), memory }
    }
}

/// Where a path goes on.
enum Next {
    /// Over this many instructions, in one way or two.
    Over([usize; 2]),
    Return(Option<u32>),
}

/// All values that a filter may return for a call. `None`: nothing is known of them, or the kernel would not have
/// installed the filter.
pub fn results(filter: &[u8], data: &Data) -> Option<Vec<u32>> {
    let (instructions, []) = filter.as_chunks::<8>() else { return None };
    if instructions.is_empty() || instructions.len() > MOST {
        return None;
    }
    let mut states: Vec<Option<State>> = vec![None; instructions.len()];
    // The kernel refuses a filter that reads a memory cell or register before it writes it.
    states[0] = Some(State { a: Some(0), x: Some(0), memory: [None; 16] });
    let mut results = Vec::new();
    let mut add = |result: u32| {
        if !results.contains(&result) {
            results.push(result);
        }
        results.len() <= MOST_RESULTS
    };
    for (at, instruction) in instructions.iter().enumerate() {
        let Some(mut state) = states[at].take() else { continue };
        match step(*instruction, &mut state, data, &mut add)? {
            Next::Return(result) => add(result?).then_some(())?,
            Next::Over(ways) => {
                let [first, second] = ways.map(|over| (at + 1).saturating_add(over));
                for to in [first].into_iter().chain((second != first).then_some(second)) {
                    let there = states.get_mut(to)?;
                    *there = Some(there.map_or(state, |there| there.joined(&state)));
                }
            }
        }
    }
    Some(results)
}

/// Executes one instruction. `add` notes a result of a path that ends here beside others.
fn step(instruction: [u8; 8], s: &mut State, data: &Data, add: &mut impl FnMut(u32) -> bool) -> Option<Next> {
    let [c, d, yes, no, k @ ..] = instruction;
    let (code, k) = (u16::from_le_bytes([c, d]), u32::from_le_bytes(k));
    let operand = if code & 8 == 0 { Some(k) } else { s.x };
    let cell = k as usize;
    let both = |f: fn(u32, u32) -> u32, s: &State| Some(f(s.a?, operand?));
    match code {
        0x00 => s.a = Some(k),
        0x01 => s.x = Some(k),
        0x20 if k % 4 == 0 => s.a = *data.get(cell / 4)?,
        0x60 => s.a = *s.memory.get(cell)?,
        0x61 => s.x = *s.memory.get(cell)?,
        0x80 => s.a = Some(size_of::<[u32; 16]>() as u32),
        0x81 => s.x = Some(size_of::<[u32; 16]>() as u32),
        0x02 => *s.memory.get_mut(cell)? = s.a,
        0x03 => *s.memory.get_mut(cell)? = s.x,
        0x07 => s.x = s.a,
        0x87 => s.a = s.x,
        0x04 | 0x0c => s.a = both(u32::wrapping_add, s),
        0x14 | 0x1c => s.a = both(u32::wrapping_sub, s),
        0x24 | 0x2c => s.a = both(u32::wrapping_mul, s),
        0x34 if k == 0 => return None,
        // Division by a register that is 0 ends the filter with 0, which kills.
        0x34 | 0x3c => match operand {
            Some(0) => return Some(Next::Return(Some(0))),
            Some(operand) => s.a = s.a.map(|a| a / operand),
            None => {
                add(0).then_some(())?;
                s.a = None;
            }
        },
        0x44 | 0x4c => s.a = both(|a, b| a | b, s),
        0x54 | 0x5c => s.a = both(|a, b| a & b, s),
        0x64 | 0x6c => s.a = both(u32::wrapping_shl, s),
        0x74 | 0x7c => s.a = both(u32::wrapping_shr, s),
        0x84 => s.a = s.a.map(u32::wrapping_neg),
        0xa4 | 0xac => s.a = both(|a, b| a ^ b, s),
        0x05 => return Some(Next::Over([cell; 2])),
        0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
            let ways = [yes, no].map(usize::from);
            let holds = s.a.zip(operand).map(|(a, b)| match code & 0xf0 {
                0x10 => a == b,
                0x20 => a > b,
                0x30 => a >= b,
                _ => a & b != 0,
            });
            return Some(Next::Over(holds.map_or(ways, |holds| [ways[usize::from(!holds)]; 2])));
        }
        0x06 => return Some(Next::Return(Some(k))),
        0x16 => return Some(Next::Return(s.a)),
        _ => return None,
    }
    Some(Next::Over([0; 2]))
}

/// What the kernel does for a result: lower is more restrictive, and the lowest of all filters counts
/// (kernel/seccomp.c, `seccomp_run_filters`). An unknown action kills; its number is lower than ALLOW's.
pub fn action(result: u32) -> i32 {
    (result & 0xffff_0000) as i32
}

const ACT_KILL_PROCESS: u32 = 0x8000_0000;
const ACT_ERRNO: u32 = 0x0005_0000;
const ACT_LOG: u32 = 0x7ffc_0000;
const ACT_ALLOW: u32 = 0x7fff_0000;

/// All results that a call may have under all filters of a thread. `None`: unknown.
pub fn combined<'f>(filters: impl Iterator<Item = &'f [u8]>, data: &Data) -> Option<Vec<u32>> {
    let all: Vec<Vec<u32>> = filters.map(|filter| results(filter, data)).collect::<Option<_>>()?;
    // The most restrictive result counts. So a result doesn't count if every result of some other filter is more
    // restrictive.
    let loosest = all.iter().filter_map(|of| of.iter().map(|result| action(*result)).max()).min();
    let counts = |result: &u32| loosest.is_none_or(|loosest| action(*result) <= loosest);
    Some(all.into_iter().flatten().filter(counts).collect())
}

/// Whether the kernel makes the call with this result.
pub fn is_allowed(result: u32) -> bool {
    matches!(result & 0xffff_0000, ACT_ALLOW | ACT_LOG)
}

/// Whether the call ends the whole process.
pub fn kills_process(result: u32) -> bool {
    result & 0xffff_0000 == ACT_KILL_PROCESS
}

/// The error number with which the call fails, without having been made.
pub fn error(result: u32) -> Option<i32> {
    (result & 0xffff_0000 == ACT_ERRNO).then_some((result & 0xffff) as i32)
}
