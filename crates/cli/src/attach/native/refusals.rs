//! What keeps plimsoll out of a native program, each with its remedy. The texts follow "process PID".

use plimsoll_process::proc::{self, Access, Target, has_more_rights_than_its_user, start_of, status_field};

use super::filter::{Closed, MOST_LISTS, Purpose};
use crate::target::{refused, started_behind};

/// `status` is /proc/PID/status.
pub fn check(target: &Target, status: &[u8], purpose: Purpose, verb: &str) -> Result<(), String> {
    let status = String::from_utf8_lossy(status);
    let run = || started_behind(&start_of(target), "plimsoll run --");
    if let Some(why) = reason(&status, target.pid(), verb, run) {
        return Err(why);
    }
    if purpose == Purpose::Release {
        return Ok(());
    }
    // The library lies where the target's user can change it. In a user namespace, capabilities are that user's own.
    let our_namespace = Target::open(std::process::id(), target.deadline()).map(|us| us.link("ns/user").ok());
    let is_ours = our_namespace.is_ok_and(|ours| ours.is_some() && ours == target.link("ns/user").ok());
    match is_ours && has_more_rights_than_its_user(&status) {
        true => Err(of_rights(proc::is_secure(target) == Some(true), run)),
        false => Ok(()),
    }
}

/// `is_secure`: the capabilities come from the program's file, so `run` would leave the program untracked, too.
fn of_rights(is_secure: bool, run: impl Fn() -> String) -> String {
    let why = "has capabilities that its user does not have, and that user could change the library";
    match is_secure {
        true => format!(
            "{why}. Its loader ignores LD_PRELOAD, so plimsoll run can't track it either. If the starter gives it the \
             capabilities (systemd: AmbientCapabilities=) and not its file, plimsoll run can"
        ),
        false => format!("{why}. Start it with: {}", run()),
    }
}

/// The first reason that /proc/PID/status shows. `run`: the line that starts the program under the tracker.
fn reason(status: &str, pid: u32, verb: &str, run: impl Fn() -> String) -> Option<String> {
    let tracer = status_field(status, "TracerPid:").filter(|tracer| *tracer != "0");
    if let Some(tracer) = tracer {
        return Some(format!("is traced by process {tracer} (a debugger or strace): end that first"));
    }
    if status_field(status, "State:").is_some_and(|state| state.starts_with('T')) {
        return Some(format!("is stopped: kill -CONT {pid} && plimsoll {verb} {pid}"));
    }
    let has_shadow_stack =
        status_field(status, "x86_Thread_features:").is_some_and(|f| f.split(' ').any(|f| f == "shstk"));
    has_shadow_stack
        .then(|| format!("has a shadow stack, so no thread of it can be borrowed. Start it with: {}", run()))
}

/// The text for a process whose seccomp filters would stop the entry.
pub fn filtered(target: &Target, verb: &str, why: Closed) -> String {
    let is_root = rustix::process::geteuid().is_root();
    let run = || started_behind(&start_of(target), "plimsoll run --");
    of_filters(target.pid(), verb, is_root, why, run)
}

fn of_filters(pid: u32, verb: &str, is_root: bool, why: Closed, run: impl Fn() -> String) -> String {
    let is_hidden =
        "has a seccomp filter, which the kernel shows only to a process with CAP_SYS_ADMIN and without a filter";
    let why_not = match why {
        Closed::Hidden if is_root => {
            return format!("{is_hidden}. As root outside of the container: plimsoll {verb} PID, with its PID there");
        }
        Closed::Hidden => return format!("{is_hidden}. Try: {}", proc::as_root(&refused(verb, pid))),
        Closed::Thread(why) => return why,
        Closed::New => return "got another seccomp filter meanwhile: try again".to_owned(),
        Closed::Late => {
            return "has more threads or seccomp filters than could be looked at in time: try again when the machine is less busy".to_owned();
        }
        Closed::TooMany => format!("has threads with more than {MOST_LISTS} different lists of seccomp filters"),
        Closed::Refused => return closed(pid, verb),
        Closed::NotShown => "has a seccomp filter, and this kernel shows none (CONFIG_CHECKPOINT_RESTORE)".to_owned(),
        Closed::Strict => "has a thread in seccomp's strict mode, which ends for almost any call".to_owned(),
        Closed::Call(name) => {
            format!("has a seccomp filter that does not allow {name}, which plimsoll must call in the process")
        }
    };
    format!("{why_not}. Start it with: {}", run())
}

/// The text for a process for which the kernel refuses ptrace(2).
pub fn closed(pid: u32, verb: &str) -> String {
    format!("can't be traced: {}", crate::target::closed(pid, verb, Access::Attach))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_file_capabilities_is_not_sent_to_run() {
        let of = |is_secure| of_rights(is_secure, || "plimsoll run -- /srv/shop".to_owned());
        assert!(of(false).ends_with(". Start it with: plimsoll run -- /srv/shop"), "{}", of(false));
        assert!(of(true).contains("AmbientCapabilities=") && !of(true).contains("/srv/shop"), "{}", of(true));
    }

    #[test]
    fn each_obstacle_has_a_sentence_with_a_remedy() {
        let of = |text: &str| reason(text, 7, "attach", || "plimsoll run -- /srv/shop".to_owned());
        assert_eq!(of("State:\tS (sleeping)\nTracerPid:\t0\nSeccomp:\t0\nx86_Thread_features:\t\n"), None);
        for (status, words) in [
            ("TracerPid:\t12\nSeccomp:\t0", ["process 12", "end that"]),
            ("State:\tT (stopped)\nTracerPid:\t0", ["stopped", "kill -CONT 7 && plimsoll attach 7"]),
            (
                "Seccomp:\t0\nx86_Thread_features:\twrss shstk \n",
                ["shadow stack", "Start it with: plimsoll run -- /srv/shop"],
            ),
        ] {
            let sentence = of(status).expect(status);
            assert!(words.iter().all(|word| sentence.contains(word)), "{sentence}");
        }
    }

    #[test]
    fn each_obstacle_of_a_filter_has_a_sentence_with_a_remedy() {
        let of = |why, is_root| of_filters(7, "attach", is_root, why, || "plimsoll run -- /srv/shop".to_owned());
        for (why, words) in [
            (Closed::Call("clone"), ["does not allow clone,", "Start it with: plimsoll run -- /srv/shop"]),
            (Closed::TooMany, ["more than 64 different", "Start it with: plimsoll run -- /srv/shop"]),
            (Closed::New, ["another seccomp filter", "try again"]),
            (Closed::Late, ["in time", "try again"]),
            (Closed::Strict, ["strict mode", "Start it with: plimsoll run -- /srv/shop"]),
            (Closed::NotShown, ["CONFIG_CHECKPOINT_RESTORE", "Start it with: plimsoll run -- /srv/shop"]),
            (Closed::Hidden, ["CAP_SYS_ADMIN", " plimsoll attach 7"]),
        ] {
            let sentence = of(why, false);
            assert!(words.iter().all(|word| sentence.contains(word)), "{sentence}");
        }
        let inside = of(Closed::Hidden, true);
        assert!(inside.contains("outside of the container") && !inside.contains("sudo"), "{inside}");
    }
}
