//! The tables by which the loader binds functions, as the tracker reads them of each loaded object.
//!
//! ```text
//! 0  length of the dynamic section u16   2  the section   then the object's memory from address 0x1000 on
//! ```

use plimsoll_tracker::patch::relocation::Tables;

const BASE: u64 = 0x1000;

pub fn run(bytes: &[u8]) {
    let Some((&[a, b], rest)) = bytes.split_first_chunk() else { return };
    let (dynamic, memory) = rest.split_at((u16::from_le_bytes([a, b]) as usize).min(rest.len()));
    let at = |at: u64, length: Option<u64>| {
        let from = usize::try_from(at.checked_sub(BASE)?).ok()?;
        match length {
            Some(length) => memory.get(from..from.checked_add(usize::try_from(length).ok()?)?),
            None => memory.get(from..),
        }
    };
    for bias in [0, BASE, u64::MAX] {
        let tables = Tables::find(dynamic, bias, at);
        let slots: Vec<_> = tables.slots().map(|slot| tables.symbol(slot.symbol)).collect();
        assert!(slots.len() <= 2 * memory.len() / 24, "more slots than the tables have entries");
    }
}
