//! Whether an instruction CALL ends at an address.

/// The longest form: FF, ModRM, SIB, a displacement of four bytes. A prefix before it changes nothing here.
const LONGEST: usize = 7;

/// `code` reads the target's instructions.
pub fn ends_at(address: u64, code: impl Fn(u64, &mut [u8]) -> bool) -> bool {
    let mut bytes = [0; LONGEST];
    address.checked_sub(LONGEST as u64).is_some_and(|from| code(from, &mut bytes)) && is_call(&bytes)
}

/// Finds calls of functions whose address is in a register or in a variable. Returns their ends, as offsets in `code`.
/// A call of another object's function by an address beside the code (RIP-relative) doesn't count.
pub fn ends_of_indirect(code: &[u8]) -> Vec<usize> {
    let is_one = |end: &usize| {
        let before = &code[..*end];
        let is_direct = *end >= 5 && before[*end - 5] == 0xe8;
        let is_relative = *end >= 6 && before[*end - 6..*end - 4] == [0xff, 0x15];
        !is_direct && !is_relative && (2..=LONGEST.min(*end)).any(|n| is_indirect(&before[*end - n..]))
    };
    (2..=code.len()).filter(is_one).collect()
}

/// Intel's manual, volume 2, CALL: E8 with a distance of four bytes, or FF /2.
fn is_call(bytes: &[u8; LONGEST]) -> bool {
    bytes[LONGEST - 5] == 0xe8 || (2..=LONGEST).any(|n| is_indirect(&bytes[LONGEST - n..]))
}

/// Whether the bytes are FF /2 and exactly its operand.
fn is_indirect(bytes: &[u8]) -> bool {
    let [0xff, modrm, rest @ ..] = bytes else { return false };
    if modrm >> 3 & 7 != 2 {
        return false;
    }
    let operand = match (modrm >> 6, modrm & 7) {
        (3, _) => 0,
        (0, 5) => 4,
        // With a SIB byte; without a base register, a displacement of four bytes follows.
        (0, 4) => 1 + if rest.first().is_some_and(|sib| sib & 7 == 5) { 4 } else { 0 },
        (0, _) => 0,
        (1, 4) => 2,
        (1, _) => 1,
        (_, 4) => 5,
        _ => 4,
    };
    rest.len() == operand
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodings as GNU as writes them.
    #[test]
    fn every_form_of_the_call_is_known_and_jumps_are_not() {
        let is = |tail: &[u8]| {
            let mut bytes = [0x90; LONGEST];
            bytes[LONGEST - tail.len()..].copy_from_slice(tail);
            is_call(&bytes)
        };
        for call in [
            &[0xe8, 1, 2, 3, 4][..],            // call label
            &[0xff, 0xd0],                      // call *%rax
            &[0x41, 0xff, 0xd3],                // call *%r11
            &[0xff, 0x10],                      // call *(%rax)
            &[0xff, 0x50, 8],                   // call *8(%rax)
            &[0xff, 0x90, 0, 1, 0, 0],          // call *256(%rax)
            &[0xff, 0x15, 1, 2, 3, 4],          // call *label(%rip)
            &[0xff, 0x14, 0xc8],                // call *(%rax,%rcx,8)
            &[0xff, 0x54, 0x24, 8],             // call *8(%rsp)
            &[0xff, 0x94, 0x24, 0, 1, 0, 0],    // call *256(%rsp)
            &[0xff, 0x14, 0xc5, 0, 0x10, 0, 0], // call *4096(,%rax,8)
        ] {
            assert!(is(call), "{call:x?}");
        }
        for other in [
            &[0xe9, 1, 2, 3, 4][..], // jmp label
            &[0xff, 0xe0],           // jmp *%rax
            &[0xff, 0xd0, 0x90],     // a call that ends earlier
            &[0xff, 0x50],           // half of one
            &[0xff, 0x15, 1, 2, 3],
            &[],
        ] {
            assert!(!is(other), "{other:x?}");
        }
        assert!(!ends_at(3, |_, _| true) && !ends_at(100, |_, _| false));
    }

    #[test]
    fn indirect_calls_are_told_from_direct_ones() {
        for (code, ends) in [
            (&[0xff, 0xd0, 0x90, 0x41, 0xff, 0xd3, 0x90][..], &[2, 6][..]),
            (&[0x64, 0xff, 0x14, 0x25, 0x40, 6, 0, 0, 0x48], &[8]), // call *%fs:0x640
            (&[0xff, 0x93, 0x40, 6, 0, 0], &[6]),                   // call *0x640(%rbx)
            (&[0xff, 0x15, 1, 2, 3, 4, 0x90], &[]),                 // call *label(%rip)
            (&[0xe8, 1, 2, 3, 4, 0xe8, 0, 0, 0xff, 0xd0], &[]),     // a distance with the bytes of a call
            (&[0xd0, 0xff], &[]),
            (&[], &[]),
        ] {
            assert_eq!(ends_of_indirect(code), ends, "{code:x?}");
        }
    }
}
