//! The tracker's evaluation of a seccomp filter equals the kernel's: random filters, each in force in a child of its
//! own, which makes one call with random arguments.

use plimsoll_tracker::sys::filter::{AUDIT_ARCH, Instruction, run};

const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;
/// No system call has it.
const NUMBER: u32 = 0x3210;

struct Random(u64);
impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) % n as u64) as u32
    }
}

fn step(code: u16, yes: u8, no: u8, k: u32) -> Instruction {
    Instruction { code, yes, no, k }
}

/// Other calls are allowed; this one fails with an error number that depends on all steps.
fn filter(random: &mut Random) -> Vec<Instruction> {
    let body = 20;
    let mut all = vec![step(0x20, 0, 0, 0), step(0x15, 1, 0, NUMBER), step(0x06, 0, 0, ALLOW)];
    // Every memory cell is written before any is read; the kernel refuses other filters.
    all.extend((0..16).map(|i| step(0x02, 0, 0, i)));
    const FIELDS: [u32; 14] = [0, 4, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60];
    let plain = [0x00, 0x01, 0x80, 0x81, 0x07, 0x87, 0x84];
    let arithmetic =
        [0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0xa4, 0xac];
    let jumps = [0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d];
    for left in (0..body).rev() {
        let k = if random.below(2) == 0 { random.below(70) } else { random.below(u32::MAX) };
        all.push(match random.below(6) {
            0 => step(0x20, 0, 0, FIELDS[random.below(14) as usize]),
            1 => step([0x60, 0x61, 0x02, 0x03][random.below(4) as usize], 0, 0, random.below(16)),
            2 => step(plain[random.below(7) as usize], 0, 0, k),
            3 | 4 => {
                let code = arithmetic[random.below(18) as usize];
                step(code, 0, 0, if matches!(code, 0x64 | 0x74) { k % 32 } else { k.max(1) })
            }
            _ => {
                let code = jumps[random.below(9) as usize];
                let [yes, no] = [(); 2].map(|()| random.below(left + 1) as u8);
                if code == 0x05 { step(code, 0, 0, yes as u32) } else { step(code, yes, no, k) }
            }
        });
    }
    all.extend([step(0x54, 0, 0, 0xff), step(0x44, 0, 0, ERRNO), step(0x16, 0, 0, 0)]);
    all
}

/// How the child ended: by an exit status, which is the call's result, or by a signal. `None`: the kernel refused the
/// filter.
fn kernel(filter: &[Instruction], arguments: &[u64; 6]) -> Option<Result<u32, i32>> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr() as *mut libc::sock_filter };
    // SAFETY: the child makes nothing but system calls.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let [a, b, c, d, e, f] = *arguments;
            if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) != 0 {
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
            let answer = libc::syscall(NUMBER as libc::c_long, a, b, c, d, e, f);
            libc::_exit(if answer == 0 { 0 } else { *libc::__errno_location() });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        match (libc::WIFEXITED(status), libc::WTERMSIG(status)) {
            (true, _) => Some(Ok(libc::WEXITSTATUS(status) as u32)),
            (false, libc::SIGKILL) => None,
            (false, signal) => Some(Err(signal)),
        }
    }
}

#[test]
fn random_filters_do_what_the_kernel_does_with_them() {
    let mut random = Random(11);
    let (mut answered, mut killed, mut different) = (0, 0, vec![]);
    for round in 0..500 {
        let filter = filter(&mut random);
        let arguments = [(); 6].map(|()| (random.below(u32::MAX) as u64) << 32 | random.below(9) as u64);
        let mut data = [0u32; 16];
        (data[0], data[1]) = (NUMBER, AUDIT_ARCH);
        for (i, a) in arguments.iter().enumerate() {
            (data[4 + 2 * i], data[5 + 2 * i]) = (*a as u32, (*a >> 32) as u32);
        }
        let ours = run(&filter, &data);
        match kernel(&filter, &arguments) {
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
