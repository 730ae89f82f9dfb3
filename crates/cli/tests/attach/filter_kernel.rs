//! Compares the interpreter with which `attach` looks a call up in a seccomp filter with the kernel, on the same random
//! filters.

#[allow(dead_code, unreachable_pub, reason = "a file of the program, included here")]
#[path = "../../src/attach/native/filter/program.rs"]
mod program;
#[path = "../../../../fixtures/random_filters.rs"]
mod random_filters;

use program::{combined, data, error, is_allowed, results};
use random_filters::{ALLOW, ERRNO, NUMBER, Random, filter, kernel, step};

fn bytes(filter: &[libc::sock_filter]) -> Vec<u8> {
    filter.iter().flat_map(|of| [&of.code.to_le_bytes()[..], &[of.jt, of.jf], &of.k.to_le_bytes()].concat()).collect()
}

#[test]
fn a_call_whose_arguments_are_known_has_the_kernels_result() {
    let mut random = Random(23);
    let (mut answered, mut killed) = (0, 0);
    for round in 0..500 {
        let filter = filter(&mut random);
        let arguments = random.arguments();
        let ours = results(&bytes(&filter), &data(NUMBER, &arguments.map(Some)));
        match kernel(&[&filter], &arguments) {
            None => continue,
            Some(Ok(answer)) => {
                assert_eq!(ours, Some(vec![ERRNO | answer]), "{round}");
                answered += 1;
            }
            Some(Err(signal)) => {
                assert_eq!((signal, ours), (libc::SIGSYS, Some(vec![0])), "{round}");
                killed += 1;
            }
        }
    }
    println!("exercised: {answered} answers, {killed} divisions by 0");
    assert!(answered > 300 && killed > 0, "{answered} answers, {killed} divisions by 0");
}

/// Whatever the unknown arguments are, the result is one of those that are given.
#[test]
fn a_call_of_which_arguments_are_unknown_has_one_of_the_results() {
    let mut random = Random(29);
    let (mut several, mut nothing, mut one) = (0, 0, 0);
    for round in 0..3000 {
        let mut filter = filter(&mut random);
        if round % 2 == 0 {
            // Instead of the word itself, one of two results that depend on it.
            let limit = random.below(256);
            filter.truncate(filter.len() - 2);
            filter.extend([step(0x25, 0, 1, limit), step(0x06, 0, 0, ERRNO | 1), step(0x06, 0, 0, ERRNO | 2)]);
        }
        let filter = bytes(&filter);
        let known = random.below(64);
        let mut arguments = random.arguments();
        let abstracted: Vec<Option<u64>> = (0..6).map(|i| Some(arguments[i]).filter(|_| known >> i & 1 == 1)).collect();
        let possible = results(&filter, &data(NUMBER, &abstracted.try_into().expect("six")));
        match possible.as_ref().map(Vec::len) {
            None => nothing += 1,
            Some(1) => one += 1,
            Some(_) => several += 1,
        }
        for _ in 0..20 {
            let result = results(&filter, &data(NUMBER, &arguments.map(Some))).expect("a result");
            assert_eq!(result.len(), 1, "{round}");
            assert!(
                possible.as_ref().is_none_or(|all| all.contains(&result[0])),
                "{round}: {possible:x?}, {result:x?}"
            );
            let others = random.arguments();
            (0..6).filter(|i| known >> i & 1 == 0).for_each(|i| arguments[i] = others[i]);
        }
    }
    println!("exercised: {one} with one result, {several} with several, {nothing} unknown");
    assert!(
        one > 100 && several > 100 && nothing > 100,
        "{one} with one result, {several} with several, {nothing} unknown"
    );
}

/// Two filters: the kernel does what the more restrictive one says.
#[test]
fn two_filters_have_the_kernels_result() {
    const LOG: u32 = 0x7ffc_0000;
    const TRAP: u32 = 0x0003_0000;
    let of = |action: u32| {
        [step(0x20, 0, 0, 0), step(0x15, 1, 0, NUMBER), step(0x06, 0, 0, ALLOW), step(0x06, 0, 0, action)]
    };
    // KILL_PROCESS, KILL_THREAD, TRACE without a tracer, an action that no kernel knows.
    let actions = [0x8000_0000, 0, TRAP, ERRNO | 7, ERRNO | 9, 0x7ff0_0000, 0x1234_0000, LOG, ALLOW];
    for newer in actions {
        for older in actions {
            let filters = [of(newer), of(older)];
            let lists = filters.each_ref().map(|filter| bytes(filter));
            let possible = combined(lists.iter().map(Vec::as_slice), &data(NUMBER, &[None; 6])).expect("known");
            let kernels = kernel(&[&filters[0], &filters[1]], &[0; 6]).expect("both are valid");
            let context = format!("{newer:x} {older:x}: {possible:x?}, the kernel {kernels:?}");
            match kernels {
                // The call's own error: there is no such call. TRACE without a tracer has the same.
                Ok(code) if code == libc::ENOSYS as u32 => {
                    assert!(possible.iter().all(|result| is_allowed(*result) || *result == 0x7ff0_0000), "{context}");
                }
                Ok(code) => assert!(possible.iter().any(|result| error(*result) == Some(code as i32)), "{context}"),
                Err(signal) => {
                    assert_eq!(signal, libc::SIGSYS, "{context}");
                    assert!(
                        possible.iter().all(|result| !is_allowed(*result) && error(*result).is_none()),
                        "{context}"
                    );
                }
            }
            if newer == older {
                assert!(possible.iter().all(|result| *result == newer), "{context}");
            }
        }
    }
}

/// A filter that the kernel would refuse has no result, and looking a call up in it takes bounded time.
#[test]
fn hostile_filters_are_bounded() {
    let unknown = data(NUMBER, &[None; 6]);
    let of = |filter: &[libc::sock_filter]| results(&bytes(filter), &unknown);
    let (load, end) = (step(0x20, 0, 0, 16), step(0x06, 0, 0, ALLOW));
    assert_eq!(of(&[end]), Some(vec![ALLOW]));
    assert_eq!(of(&[]), None);
    assert_eq!(results(&bytes(&[end])[..7], &unknown), None, "half an instruction");
    assert_eq!(of(&vec![end; 4097]), None, "too long");
    assert_eq!(of(&[load]), None, "it does not end");
    assert_eq!(of(&[step(0x05, 0, 0, u32::MAX), end]), None, "a jump out of it");
    assert_eq!(of(&[load, step(0x15, 200, 0, 1), end]), None, "a jump out of it");
    assert_eq!(of(&[step(0x34, 0, 0, 0), end]), None, "a division by 0");
    assert_eq!(of(&[step(0x20, 0, 0, 64), end]), None, "a word that is not there");
    assert_eq!(of(&[step(0x20, 0, 0, 2), end]), None, "half of a word");
    assert_eq!(of(&[step(0x02, 0, 0, 16), end]), None, "a cell that is not there");
    assert_eq!(of(&[step(0xff, 0, 0, 0), end]), None, "no instruction");
    assert_eq!(of(&[load, step(0x16, 0, 0, 0)]), None, "it returns an unknown word");
    // The divisor is an unknown word: 0 kills.
    assert_eq!(of(&[load, step(0x07, 0, 0, 0), step(0x3c, 0, 0, 0), end]), Some(vec![0, ALLOW]));
    // Two ways at each of 2,047 branches.
    let mut long: Vec<_> = (0..2047).flat_map(|n| [load, step(0x15, 0, 0, n)]).collect();
    long.push(end);
    assert_eq!(of(&long), Some(vec![ALLOW]));
    // More results than are kept.
    let many: Vec<_> =
        (0..40).flat_map(|n| [load, step(0x15, 0, 1, n), step(0x06, 0, 0, ERRNO | n)]).chain([end]).collect();
    assert_eq!(of(&many), None);
    assert_eq!(combined([&bytes(&[end])[..], &bytes(&many)[..]].into_iter(), &unknown), None);
}
