//! The tracker's evaluation of a seccomp filter equals the kernel's. The filters are random, each in force in a child
//! of its own, which makes one call with random arguments.

use plimsoll_tracker::sys::filter::{AUDIT_ARCH, Instruction, run};

#[path = "../../../fixtures/random_filters.rs"]
mod random_filters;
use random_filters::{ERRNO, NUMBER, Random, filter, kernel};

#[test]
fn random_filters_do_what_the_kernel_does_with_them() {
    let mut random = Random(11);
    let (mut answered, mut killed, mut different) = (0, 0, vec![]);
    for round in 0..500 {
        let filter = filter(&mut random);
        let arguments = random.arguments();
        let mut data = [0u32; 16];
        (data[0], data[1]) = (NUMBER, AUDIT_ARCH);
        for (i, a) in arguments.iter().enumerate() {
            (data[4 + 2 * i], data[5 + 2 * i]) = (*a as u32, (*a >> 32) as u32);
        }
        let own = filter.iter().map(|of| Instruction { code: of.code, yes: of.jt, no: of.jf, k: of.k });
        let ours = run(&own.collect::<Vec<_>>(), &data);
        match kernel(&[&filter], &arguments) {
            None => continue,
            Some(Ok(answer)) if ours == Some(ERRNO | answer) => answered += 1,
            Some(Err(libc::SIGSYS)) if ours.is_none() => killed += 1,
            other => different.push(format!("{round}: {ours:x?}, the kernel {other:x?}")),
        }
    }
    assert!(different.is_empty(), "{different:#?}");
    eprintln!("{answered} answers, {killed} divisions by 0");
    assert!(answered > 300 && killed > 0, "{answered} answers, {killed} divisions by 0");
}
