//! The library's own memcpy, memmove, memset and so on, against byte loops. This test program itself uses them, because
//! their symbols come before libc's.

#[path = "../../preload/src/memory.rs"]
mod memory;

use std::cmp::Ordering;
use std::ffi::{c_char, c_int};
use std::hint::black_box;

unsafe extern "C" {
    fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8;
    fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8;
    fn memset(to: *mut u8, byte: c_int, n: usize) -> *mut u8;
    fn memcmp(a: *const u8, b: *const u8, n: usize) -> c_int;
    fn bcmp(a: *const u8, b: *const u8, n: usize) -> c_int;
    fn strlen(text: *const c_char) -> usize;
}

const ROOM: usize = 460;
const LENGTHS: std::ops::Range<usize> = 0..199;

fn pattern() -> Vec<u8> {
    (0..ROOM).map(|i| (i * 7 + i / 256 * 3) as u8 | 1).collect()
}

/// Byte by byte, which the compiler can't turn into the function under test.
fn copied(mut room: Vec<u8>, to: usize, from: usize, n: usize) -> Vec<u8> {
    let source: Vec<u8> = (0..n).map(|i| black_box(room[from + i])).collect();
    (0..n).for_each(|i| room[to + i] = black_box(source[i]));
    room
}

#[test]
fn memcpy_copies_each_byte() {
    for n in LENGTHS {
        for (to, from) in [(0, 200), (3, 205), (200, 0), (201, 17)] {
            let mut room = pattern();
            // SAFETY: both ranges lie in the room, apart from each other.
            let answer = unsafe { memcpy(room.as_mut_ptr().add(to), room.as_ptr().add(from), n) };
            assert_eq!(answer as usize, room.as_ptr() as usize + to);
            assert!(room == copied(pattern(), to, from, n), "memcpy of {n} from {from} to {to}");
        }
    }
}

#[test]
fn memmove_moves_overlapping_ranges() {
    for n in LENGTHS {
        for distance in (0..40).chain([63, 64, 65, 149]) {
            for (to, from) in [(100, 100 + distance), (100 + distance, 100)] {
                let mut room = pattern();
                // SAFETY: both ranges lie in the room.
                unsafe { memmove(room.as_mut_ptr().add(to), room.as_ptr().add(from), n) };
                assert!(room == copied(pattern(), to, from, n), "memmove of {n} from {from} to {to}");
            }
        }
    }
}

#[test]
fn memset_fills_the_range_and_nothing_else() {
    for n in LENGTHS {
        for (to, byte) in [(0, 0), (5, 0xff), (16, 0x1a5)] {
            let mut room = pattern();
            // SAFETY: the range lies in the room.
            unsafe { memset(room.as_mut_ptr().add(to), byte, n) };
            let mut expected = pattern();
            (to..to + n).for_each(|i| expected[i] = black_box(byte as u8));
            assert!(room == expected, "memset of {n} at {to}");
        }
    }
}

#[test]
fn memcmp_and_bcmp_find_each_difference() {
    for n in LENGTHS {
        for (left, right) in [(0, 200), (1, 207)] {
            let mut room = copied(pattern(), right, left, n);
            for at in 0..=n {
                for by in [1u8, 0x80] {
                    // Bytes behind the range must not matter.
                    room[right + at] = room[right + at].wrapping_add(by);
                    let expected = match at {
                        _ if at == n => Ordering::Equal,
                        _ => room[left + at].cmp(&room[right + at]),
                    };
                    let (a, b) = (room[left..].as_ptr(), room[right..].as_ptr());
                    // SAFETY: both ranges lie in the room.
                    let (ordered, differs) = unsafe { (memcmp(a, b, n), bcmp(a, b, n)) };
                    assert_eq!(ordered.cmp(&0), expected, "memcmp of {n}, differing at {at}");
                    assert_eq!(differs == 0, expected == Ordering::Equal, "bcmp of {n}, differing at {at}");
                    room[right + at] = room[right + at].wrapping_sub(by);
                }
            }
        }
    }
}

#[test]
fn strlen_finds_the_end_of_any_text() {
    for start in 0..40 {
        for n in LENGTHS {
            let mut room = pattern();
            room[start + n] = 0;
            // SAFETY: the text ends inside the room.
            assert_eq!(unsafe { strlen(room[start..].as_ptr().cast()) }, n, "from {start}");
        }
    }
}
