//! Unwind tables, as the tracker reads them in the process, and a walk that uses them on a stack of any content.
//!
//! ```text
//! 0  length of the tables u16   2  where .eh_frame_hdr begins u16   4  tables   then the stack's words
//! ```

use plimsoll_tracker::stack::walk::Read;
use plimsoll_tracker::stack::{Entry, Image, Walker, rule_for};

const BASE: u64 = 0x40_0000;
const STACK: u64 = 0x7fff_0000_0000;

pub fn run(bytes: &[u8]) {
    let Some((&[a, b, c, d], rest)) = bytes.split_first_chunk() else { return };
    let (length, hdr) = (u16::from_le_bytes([a, b]) as usize, u16::from_le_bytes([c, d]) as u64);
    let (tables, stack) = rest.split_at(length.min(rest.len()));
    let tables = Image { base: BASE, bytes: tables };
    let rule = |pc| rule_for(tables, BASE + hdr, pc);
    for pc in (0..128).map(|n| BASE + 0xf80 + n * 16).chain([0, BASE - 1, u64::MAX]) {
        rule(pc);
    }
    let memory = Image { base: STACK, bytes: stack };
    // The code in this range keeps frame pointers, as libjvm's does.
    let records = BASE + 0x800..BASE + 0xc00;
    let walker = Walker { stack: STACK..STACK + stack.len() as u64, through_jit: true, records };
    let (mut frames, mut reads) = ([0; 64], [Read::default(); 128]);
    let in_module = |pc: u64| (BASE..BASE + (1 << 20)).contains(&pc).then(|| rule(pc));
    let entry = Entry { ra: BASE + 0x40, sp: STACK, fp: STACK + 64 };
    let walk = walker.walk(&memory, in_module, entry, &mut frames, &mut reads);
    assert!(walk.frames <= frames.len() && walk.reads <= reads.len());
}
