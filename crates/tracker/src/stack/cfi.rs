//! From a pc to its unwind rule, through a module's `.eh_frame_hdr` and `.eh_frame` as they lie in memory
//! (Linux Standard Base, Core, 10.6 "Exception Frames"; DWARF 5, 6.4).
//!
//! ```text
//!  .eh_frame_hdr   version=1 │ enc(eh_frame) │ enc(count) │ enc(table) │ eh_frame │ count │ table…
//!                  table: count × { i32 first pc, i32 its FDE }, both relative to the header, sorted by pc
//!
//!  .eh_frame       record… ; record = u32 length │ u32 id │ body
//!   CIE  (id = 0)  version │ "zPLR…\0" │ uleb code factor │ sleb data factor │ uleb ra column │ uleb n │ n bytes │ program
//!   FDE  (id > 0)  CIE = address of id - id;  enc(first pc) │ enc(length) │ uleb n │ n bytes │ program
//! ```

use super::Rule;
use super::arch::x86_64::RA;
use super::eh_frame::{Cie, Cursor, Fde, encoding};
use super::instructions;
use super::read::Image;

/// The linear search of a section without a table gives up after this many records.
const SCAN_LIMIT: u32 = 1 << 20;

/// The rule for `pc`. `FRAME_POINTER`: no record covers it. `UNKNOWN`: the record is damaged, or a rule can't express
/// it.
pub fn rule(tables: Image<'_>, eh_frame_hdr: u64, pc: u64) -> Rule {
    match locate(tables, eh_frame_hdr, pc) {
        None => Rule::UNKNOWN,
        Some(None) => Rule::FRAME_POINTER,
        Some(Some(fde)) if fde.cie.signal => Rule::SIGNAL,
        Some(Some(fde)) => instructions::run(&fde, pc).unwrap_or(Rule::UNKNOWN),
    }
}

/// `None`: damaged. `Some(None)`: intact, but nothing covers `pc`.
fn locate(tables: Image<'_>, hdr: u64, pc: u64) -> Option<Option<Fde<'_>>> {
    let mut cursor = Cursor::at(tables, hdr)?;
    let [version, of_frame, of_count, of_table] = cursor.take()?;
    if version != 1 {
        return None;
    }
    let eh_frame = cursor.pointer(of_frame, hdr)?;
    if of_count == encoding::OMIT || of_table != encoding::DATA_RELATIVE | encoding::SDATA4 {
        return scan(tables, eh_frame, pc);
    }
    let count = usize::try_from(cursor.pointer(of_count, hdr)?).ok()?;
    let table = cursor.left.get(..count.checked_mul(8)?)?.as_chunks::<8>().0;

    let target = pc.wrapping_sub(hdr) as i64;
    let half = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| i64::from(i32::from_le_bytes(*bytes)));
    let after = table.partition_point(|row| half(row) <= target);
    let Some(row) = after.checked_sub(1).and_then(|last| table.get(last)) else {
        return Some(None);
    };
    let fde = fde(tables, hdr.wrapping_add_signed(half(&row[4..])))?;
    Some(fde.covers(pc).then_some(fde))
}

fn scan(tables: Image<'_>, eh_frame: u64, pc: u64) -> Option<Option<Fde<'_>>> {
    let mut at = eh_frame;
    for _ in 0..SCAN_LIMIT {
        let mut cursor = Cursor::at(tables, at)?;
        let length = cursor.u32()?;
        if length == 0 {
            return Some(None);
        }
        if cursor.u32()? != 0 {
            let fde = fde(tables, at)?;
            if fde.covers(pc) {
                return Some(Some(fde));
            }
        }
        at = at.checked_add(4)?.checked_add(u64::from(length))?;
    }
    None
}

/// The body of the record at `at`, after its length. No compiler writes the 64-bit form (length 0xffff_ffff), and
/// libgcc doesn't read it.
#[inline(always)]
fn record(tables: Image<'_>, at: u64) -> Option<Cursor<'_>> {
    let mut cursor = Cursor::at(tables, at)?;
    let length = cursor.u32()?;
    cursor.block(u64::from(length))
}

#[inline(always)]
fn fde(tables: Image<'_>, at: u64) -> Option<Fde<'_>> {
    let mut cursor = record(tables, at)?;
    let id_at = cursor.address();
    let id = cursor.u32()?;
    if id == 0 {
        return None;
    }
    let cie = cie(tables, id_at.checked_sub(u64::from(id))?)?;
    let first = cursor.pointer(cie.pointer, 0)?;
    let length = cursor.pointer(cie.pointer & 0x0f, 0)?;
    if cie.augmented {
        let n = cursor.uleb()?;
        cursor.block(n)?;
    }
    Some(Fde { cie, first, length, program: cursor })
}

#[inline(always)]
fn cie(tables: Image<'_>, at: u64) -> Option<Cie<'_>> {
    let mut cursor = record(tables, at)?;
    if cursor.u32()? != 0 {
        return None;
    }
    let version = cursor.u8()?;
    if !matches!(version, 1 | 3 | 4) {
        return None;
    }
    let mut letters = cursor;
    while cursor.u8()? != 0 {}
    if version == 4 {
        cursor.block(2)?; // address and segment selector sizes
    }
    let code_factor = cursor.uleb()?;
    let data_factor = cursor.sleb()?;
    let column = if version == 1 { u64::from(cursor.u8()?) } else { cursor.uleb()? };
    if column != RA {
        return None;
    }

    let mut cie =
        Cie { code_factor, data_factor, pointer: encoding::ABSOLUTE, program: cursor, augmented: false, signal: false };
    match letters.u8()? {
        0 => return Some(cie),
        b'z' => {}
        // Without 'z' the length of the augmentation is unknown, so the rest cannot be read.
        _ => return None,
    }
    cie.augmented = true;
    let size = cursor.uleb()?;
    let mut data = cursor.block(size)?;
    cie.program = cursor;
    loop {
        match letters.u8()? {
            0 => return Some(cie),
            b'R' => cie.pointer = data.u8()?,
            b'P' => {
                let personality = data.u8()?;
                data.pass(personality)?;
            }
            b'L' => {
                data.u8()?;
            }
            b'S' => cie.signal = true,
            b'B' | b'G' => {} // AArch64: return addresses are signed with the B key; tagged memory
            _ => return None,
        }
    }
}
