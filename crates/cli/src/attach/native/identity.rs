//! Which program the target runs, and with whose rights.
//!
//! Between the reading of its objects and the stop of a thread, the target may run execve. With root's rights, plimsoll
//! would then set registers in a set-user-ID program as the caller of that program has chosen them.

use plimsoll_process::proc::{Target, status_field};

/// Lines of /proc/PID/status that a program with other rights changes.
const RIGHTS: [&str; 5] = ["Uid:", "Gid:", "Groups:", "CapPrm:", "CapEff:"];

#[derive(Debug, PartialEq, Eq)]
pub struct ExecIdentity {
    program: Vec<u8>,
    rights: Vec<String>,
}

impl ExecIdentity {
    /// `status` is that of the process or of one of its threads, which differs only if the thread has changed its own
    /// rights. `None`: the process has ended, or the kernel doesn't show its program.
    pub fn of(target: &Target, status: &[u8]) -> Option<ExecIdentity> {
        let program = target.link("exe").ok()?;
        ExecIdentity::new(program, &String::from_utf8_lossy(status))
    }

    /// Whether the target has this identity now, by the status of one of its threads.
    pub fn is_that_of(&self, target: &Target, status: &[u8]) -> bool {
        ExecIdentity::of(target, status).is_some_and(|now| now == *self)
    }

    fn new(program: Vec<u8>, status: &str) -> Option<ExecIdentity> {
        let rights: Vec<String> = RIGHTS.iter().filter_map(|key| Some(status_field(status, key)?.to_owned())).collect();
        (rights.len() == RIGHTS.len()).then_some(ExecIdentity { program, rights })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_other_rights_is_another() {
        let status = "Name:\ta\nUid:\t5\t5\t5\t5\nGid:\t5\t5\t5\t5\nGroups:\t\nCapPrm:\t00\nCapEff:\t00\n";
        let of = |status: &str| ExecIdentity::new(b"/bin/a".to_vec(), status);
        assert!(of(status).is_some() && of(status) == of(&status.replace("Name:\ta", "Name:\tb")));
        for (from, to) in [("5\t5\n", "0\t5\n"), ("CapPrm:\t00", "CapPrm:\t20"), ("Groups:\t", "Groups:\t4")] {
            let changed = status.replacen(from, to, 1);
            assert!(changed != status && of(status) != of(&changed), "{changed}");
        }
        assert!(of("Uid:\t5").is_none() && ExecIdentity::new(b"/bin/b".to_vec(), status) != of(status));
    }
}
