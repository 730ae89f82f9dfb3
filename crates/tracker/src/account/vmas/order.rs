//! The order word of a leaf as a number: how an entry gets a place, or loses it. Format: `segment::vmap`.
//!
//! ```text
//! order   behind │ free │ moved     │ kept │ count          places from the right, the first free one behind the last entry
//!       → behind │ moved    │ free  │ kept │ count + 1
//! ```

/// The lowest bit of place `at` of an order. 0 for `at` = 15: an order has 15 places.
#[inline(always)]
fn place(at: usize) -> u64 {
    16 << ((4 * at) & 63)
}

/// The number of the first free entry, and the order in which it has the place `at`.
///
/// The places from `at` to the free one's rotate by one. As a number: the rotated part is multiplied by 16, and the
/// free entry's number moves from the highest of these places to the lowest.
#[inline(always)]
pub(super) fn with_one_more(order: u64, at: usize, count: usize) -> (u64, u64) {
    let free = order >> (4 * count) >> 4 & 15;
    let rotating = (place(count) << 4).wrapping_sub(place(at));
    let moved = (order & rotating).wrapping_mul(15).wrapping_sub(free.wrapping_mul(rotating));
    (free, order.wrapping_add(moved).wrapping_add(1))
}

/// The number of the entry at `at`, and the order in which it is the first free one.
#[inline(always)]
pub(super) fn with_one_less(order: u64, at: usize, count: usize) -> (u64, u64) {
    let freed = order >> ((4 * at) & 63) >> 4 & 15;
    let rotating = place(count).wrapping_sub(place(at));
    let all = order & rotating;
    let moved = (all >> 4).wrapping_add(freed.wrapping_mul(rotating >> 4)).wrapping_sub(all);
    (freed, order.wrapping_add(moved).wrapping_sub(1))
}

/// The lowest `n` places of an order, its count shifted out.
#[inline(always)]
pub(super) fn places(n: usize) -> u64 {
    (1 << (4 * n)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_segment::vmap::LEAF_ENTRIES;
    use std::vec::Vec;

    /// Every place in leaves of every count, against a list.
    #[test]
    fn an_order_rotates_as_a_list_does() {
        // Unordered, so that a misplaced number is noticed.
        let numbers = [7, 12, 1, 15, 4, 9, 2, 14, 5, 11, 3, 8, 13, 6, 10];
        let word = |list: &[u64], count: usize| {
            list.iter().enumerate().fold(count as u64, |word, (at, number)| word | number << (4 * at + 4))
        };
        for count in 0..=LEAF_ENTRIES {
            for at in 0..=count {
                let order = word(&numbers, count);
                if count < LEAF_ENTRIES {
                    let mut list = Vec::from(numbers);
                    let free = list.remove(count);
                    list.insert(at, free);
                    assert_eq!(with_one_more(order, at, count), (free, word(&list, count + 1)), "{at} of {count}");
                }
                if at < count {
                    let mut list = Vec::from(numbers);
                    let freed = list.remove(at);
                    list.insert(count - 1, freed);
                    assert_eq!(with_one_less(order, at, count), (freed, word(&list, count - 1)), "{at} of {count}");
                }
            }
        }
    }
}
