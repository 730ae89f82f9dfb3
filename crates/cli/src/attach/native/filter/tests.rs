use super::*;

const KILL: u32 = 0x8000_0000;

/// `result` for this call, and ALLOW for others.
fn filter(number: libc::c_long, result: u32) -> Vec<u8> {
    let all =
        [(0x20u16, [0, 0], 0), (0x15, [0, 1], number as u32), (0x06, [0, 0], result), (0x06, [0, 0], 0x7fff_0000)];
    all.into_iter().flat_map(|(code, jumps, k)| [&code.to_le_bytes()[..], &jumps, &k.to_le_bytes()].concat()).collect()
}

fn refusal(lists: &[&[Vec<u8>]], is_needed: impl Fn(Need) -> bool) -> Option<Closed> {
    let lists = lists.iter().map(|list| list.to_vec()).collect();
    Filters { lists, ..Filters::default() }.refusal(is_needed)
}

#[test]
fn a_call_is_refused_unless_all_filters_of_all_threads_allow_it() {
    const LOG: u32 = 0x7ffc_0000;
    let error = |code: i32| 0x5_0000 | code as u32;
    let needed = |need| need != Need::FromMemory;
    let of = |number, result| refusal(&[&[filter(-1, 0), filter(number, result)], &[]], needed);
    assert_eq!(refusal(&[], needed), None);
    assert_eq!(of(libc::SYS_ptrace, KILL), None, "nobody makes this call");
    for call in calls::all() {
        let is_needed = needed(call.need);
        let refused = Some(Closed::Call(call.name)).filter(|_| is_needed);
        let name = |closed: Option<Closed>| {
            closed.map(|closed| match closed {
                Closed::Call(name) => name.split(' ').next().unwrap_or_default(),
                other => panic!("{other:?}"),
            })
        };
        let own = name(refused);
        // Another row may need the same call always.
        let always = calls::all().any(|other| other.number == call.number && other.need == Need::Always);
        let of = |result| name(of(call.number, result));
        if is_needed {
            assert_eq!(of(KILL), own, "{}", call.name);
        }
        assert_eq!(of(LOG), None, "{}", call.name);
        let may_fail = !is_needed || (call.need == Need::MayFail && !always);
        if may_fail {
            assert_eq!(of(error(libc::EPERM)), None, "{}", call.name);
        } else {
            assert_eq!(of(error(libc::EPERM)), own, "{}", call.name);
        }
    }
    assert_eq!(of(libc::SYS_clone3, error(libc::ENOSYS)), None);
    assert_eq!(of(libc::SYS_clone, error(libc::ENOSYS)), Some(Closed::Call("clone")));
    let kills = filter(libc::SYS_memfd_create, KILL);
    assert_eq!(refusal(&[std::slice::from_ref(&kills)], needed), None);
    assert_eq!(refusal(&[&[kills]], |need| need == Need::FromMemory), Some(Closed::Call("memfd_create")));
}

/// A program that is killed for execve(2) has no use for the hooks of exec. One that gets an error from it goes on.
#[test]
fn a_call_before_an_exec_is_waived_only_if_every_exec_kills_the_process() {
    const EPERM: u32 = 0x5_0001;
    let of = |rules: &[(libc::c_long, u32)]| {
        let list: Vec<_> = rules.iter().map(|(number, result)| filter(*number, *result)).collect();
        refusal(&[&list], |need| need != Need::FromMemory)
    };
    let (access, execve, execveat) = (libc::SYS_access, libc::SYS_execve, libc::SYS_execveat);
    let refused = Some(Closed::Call("access"));
    assert_eq!(of(&[(access, KILL)]), refused);
    assert_eq!(of(&[(access, KILL), (execve, KILL), (execveat, KILL)]), None);
    assert_eq!(of(&[(access, KILL), (execve, KILL)]), refused);
    for survived in [EPERM, 0, 0x7ff0_0000] {
        assert_eq!(of(&[(access, KILL), (execve, survived), (execveat, KILL)]), refused, "{survived:x}");
        assert_eq!(of(&[(access, KILL), (execve, KILL), (execveat, survived)]), refused, "{survived:x}");
    }
    let (shmctl, shmat) = (libc::SYS_shmctl, libc::SYS_shmat);
    assert_eq!(of(&[(shmctl, KILL), (shmat, EPERM)]), Some(Closed::Call("shmctl")));
    assert_eq!(of(&[(shmctl, KILL), (shmat, KILL)]), None);
}

#[test]
fn filters_are_known_as_long_as_a_thread_has_as_many() {
    let status =
        |mode: u32, count: u32| format!("State:\tS\nSeccomp:\t{mode}\nSeccomp_filters:\t{count}\n").into_bytes();
    let marks = [(1, status(0, 0)), (2, status(2, 1))].map(|(tid, status)| (tid, Mark::of(&status)));
    let filters = Filters { marks: marks.into(), lists: Vec::new() };
    assert!(filters.cover(1, &status(0, 0)) && filters.cover(2, &status(2, 1)));
    assert!(!filters.cover(1, &status(2, 1)) && !filters.cover(2, &status(2, 2)));
    // A thread that has begun since.
    assert!(filters.cover(3, &status(2, 1)) && filters.cover(3, &status(0, 0)) && !filters.cover(3, &status(2, 3)));
}
