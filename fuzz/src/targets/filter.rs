//! Another process's system call filters, in which `attach` looks up calls of which some arguments are unknown. The
//! kernel checks a filter when it is installed; these bytes may be anything.
//!
//! ```text
//! 0  which arguments are known u8    8  two filters, divided in the middle
//! ```
//! `plimsoll` is a program, which no other crate can import, so its file is compiled here too.

#[allow(dead_code, reason = "used by the program")]
#[path = "../../../crates/cli/src/attach/native/filter/program.rs"]
pub mod program;

use program::{MOST, action, combined, data, results};

pub fn run(bytes: &[u8]) {
    let Some((head, filters)) = bytes.split_first_chunk::<8>() else { return };
    let instructions = filters.len() / 8;
    let (newer, older) = filters[..instructions * 8].split_at(instructions / 2 * 8);
    for number in [0, 9, u32::MAX] {
        let values = [7u64, u64::MAX, u64::from(number), 0, 1 << 32, 64];
        let unknown = std::array::from_fn(|i| Some(values[i]).filter(|_| head[0] >> i & 1 == 1));
        let exact = results(older, &data(number, &values.map(Some)));
        let possible = results(older, &data(number, &unknown));
        assert!(older.len() <= 8 * MOST || possible.is_none(), "a filter that the kernel would not install");
        if let (Some(possible), Some(exact)) = (&possible, &exact)
            && unknown.iter().all(Option::is_some)
        {
            assert_eq!(possible, exact, "two runs of a filter differ");
        }
        // What holds for any values holds for these. The instruction pointer is unknown in both.
        if let (Some(possible), Some(exact)) = (&possible, &exact) {
            assert!(exact.iter().all(|result| possible.contains(result)), "{possible:x?} lacks some of {exact:x?}");
        }
        // The kernel takes the lower action, of equal ones the newer.
        let [first, second] = [newer, older].map(|filter| results(filter, &data(number, &unknown)));
        if let (Some(first), Some(second)) = (first, second) {
            let both = combined([newer, older].into_iter(), &data(number, &unknown)).expect("both are known");
            for (a, b) in first.iter().flat_map(|a| second.iter().map(move |b| (*a, *b))) {
                let result = if action(b) < action(a) { b } else { a };
                assert!(both.contains(&result), "{both:x?} lacks {result:x}");
            }
        }
    }
}
