//! How a process ended, as far as this is known. Each source knows a part:
//!
//! ```text
//! the parent           exit status, signal             `run` and `record -- COMMAND` write it into the segment
//! the process itself   that it ran its exit handlers   the segment's state
//!                      that it calls exec              the segment's field `ended`
//! the kernel           that it killed for memory       the cgroup's counter of kills, its log
//! /proc                that the PID lives on           another program has replaced this one by exec
//! ```

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It ran its exit handlers; the status is unknown.
    Exited,
    Code(u8),
    Signal(u8),
    /// The process continues with another program.
    Exec,
    /// The tracker's segment shows that it ran no exit handlers: killed by a signal, `_exit`, or exec.
    Unknown,
    /// Neither the tracker nor a parent of ours saw the end. It may also have ended normally.
    Unseen,
}

/// Whether the kernel killed the process because memory ran out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oom {
    #[default]
    Unknown,
    No,
    Yes,
    /// The kernel killed a process of its cgroup. Whether it was this one isn't known.
    InGroup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub how: How,
    pub oom: Oom,
}

const SIGKILL: u8 = 9;

/// What is known if only the cgroup's counter of kills moved.
pub const GROUP_KILL: &str = "the kernel killed a process of its cgroup because memory ran out";

/// The state in `plimsoll.TargetEnd` of a process that was neither tracked nor our child.
pub const UNSEEN: &str = "ended";

impl Ending {
    pub const UNKNOWN: Ending = Ending { how: How::Unknown, oom: Oom::Unknown };

    pub fn of(how: How) -> Ending {
        Ending { how, oom: Oom::Unknown }
    }

    pub fn oom_killed() -> Ending {
        Ending { how: How::Signal(SIGKILL), oom: Oom::Yes }
    }

    /// The OOM killer sends SIGKILL. So it didn't kill a process with another status, even if it killed another process
    /// of its cgroup. For a process without a status, the cgroup's counter proves nothing.
    pub fn with(how: How, oom: Oom) -> Ending {
        let oom = match (how, oom) {
            (How::Signal(SIGKILL), oom) => oom,
            (How::Unknown | How::Unseen, Oom::Yes | Oom::InGroup) => Oom::InGroup,
            (_, Oom::Yes | Oom::InGroup) => Oom::Unknown,
            (_, oom) => oom,
        };
        Ending { how, oom }
    }

    pub fn is_oom_kill(&self) -> bool {
        self.oom == Oom::Yes
    }

    /// Whether it may have been an OOM kill.
    pub fn is_sigkill(&self) -> bool {
        self.how == How::Signal(SIGKILL)
    }

    /// The id in JSON.
    pub fn id(&self) -> &'static str {
        match self.how {
            _ if self.is_oom_kill() => "oom-killed",
            How::Exited | How::Code(_) => "exited",
            How::Signal(_) => "signal",
            How::Exec => "exec",
            How::Unknown | How::Unseen => "unknown",
        }
    }

    pub fn code(&self) -> Option<u8> {
        if let How::Code(code) = self.how { Some(code) } else { None }
    }

    pub fn signal(&self) -> Option<u8> {
        if let How::Signal(signal) = self.how { Some(signal) } else { None }
    }

    /// The inverse of `id`, `code` and `signal`. It also takes the states of a recording.
    pub fn from_words(id: &str, code: Option<u8>, signal: Option<u8>, oom: Oom) -> Ending {
        let how = match (id, code, signal) {
            (_, Some(code), _) => How::Code(code),
            (_, _, Some(signal)) => How::Signal(signal),
            ("oom-killed", ..) => return Ending::oom_killed(),
            ("exited", ..) => How::Exited,
            ("exec", ..) => How::Exec,
            (UNSEEN, ..) => How::Unseen,
            _ => How::Unknown,
        };
        Ending::with(how, oom)
    }

    /// The words for a report's first line.
    pub fn sentence(&self) -> String {
        if self.oom == Oom::InGroup {
            return match self.how {
                How::Signal(_) => format!("killed by signal 9 (SIGKILL; {GROUP_KILL}: unknown whether this one)"),
                how => format!("{}; {GROUP_KILL}", Ending::of(how).sentence()),
            };
        }
        match self.how {
            _ if self.is_oom_kill() => "OOM-killed".to_owned(),
            How::Exited => "exited".to_owned(),
            How::Code(code) => format!("exited with status {code}"),
            How::Signal(SIGKILL) if self.oom == Oom::Unknown => {
                "killed by signal 9 (SIGKILL; unknown whether by the OOM killer)".to_owned()
            }
            How::Signal(signal) => match name(signal) {
                Some(name) => format!("killed by signal {signal} ({name})"),
                None => format!("killed by signal {signal}"),
            },
            How::Exec => "replaced by exec".to_owned(),
            How::Unknown => "ended by _exit, killed, or replaced by exec (not known which)".to_owned(),
            How::Unseen => "ended (how isn't known: only its parent knows)".to_owned(),
        }
    }

    /// The low three bytes of the header's field `ended`: the kind, the value, and whether it was an OOM kill.
    pub fn word(&self) -> u64 {
        let (kind, value) = match self.how {
            How::Code(code) => (1, code),
            How::Signal(signal) => (2, signal),
            How::Exec => return plimsoll_segment::ENDED_BY_EXEC,
            How::Exited | How::Unknown | How::Unseen => return 0,
        };
        let oom = match self.oom {
            Oom::Unknown => 0,
            Oom::No => 1,
            Oom::Yes => 2,
            Oom::InGroup => 3,
        };
        kind | u64::from(value) << 8 | oom << 16
    }

    /// None if the parent has written nothing, or nothing valid.
    pub fn from_word(word: u64) -> Option<Ending> {
        let word = word & ((1 << plimsoll_segment::ENDED_AT_SHIFT) - 1);
        let value = (word >> 8) as u8;
        let how = match word & 0xff {
            1 => How::Code(value),
            2 => How::Signal(value),
            _ if word == plimsoll_segment::ENDED_BY_EXEC => How::Exec,
            _ => return None,
        };
        let oom = match (word >> 16) & 0xff {
            1 => Oom::No,
            2 => Oom::Yes,
            3 => Oom::InGroup,
            _ => Oom::Unknown,
        };
        Some(Ending::with(how, oom))
    }
}

/// Names from signal(7), for signals with the same number on every supported CPU.
fn name(signal: u8) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_survives_the_segment_and_the_json() {
        let mut seen = 0;
        for how in [How::Code(0), How::Code(255), How::Signal(9), How::Signal(11)] {
            for oom in [Oom::Unknown, Oom::No, Oom::Yes, Oom::InGroup] {
                let ending = Ending::with(how, oom);
                assert_eq!(Ending::from_word(ending.word()), Some(ending));
                let back = Ending::from_words(ending.id(), ending.code(), ending.signal(), ending.oom);
                assert_eq!(back, ending);
                seen += 1;
            }
        }
        assert_eq!(seen, 16);
        for how in [How::Exited, How::Exec, How::Unknown] {
            // The segment keeps an exec too; the other two aren't known to the parent.
            let kept = (how == How::Exec).then(|| Ending::of(how));
            assert_eq!(Ending::from_word(Ending::of(how).word()), kept);
            assert_eq!(Ending::from_words(Ending::of(how).id(), None, None, Oom::Unknown).how, how);
        }
        // An end that nobody saw may have been a normal one, so the sentence doesn't call it a kill.
        let unseen = Ending::from_words(UNSEEN, None, None, Oom::Unknown);
        assert_eq!((unseen.how, unseen.id(), unseen.word()), (How::Unseen, "unknown", 0));
        assert!(!unseen.sentence().contains("kill") && Ending::UNKNOWN.sentence().contains("_exit"));
        // A damaged segment may have any word.
        for shift in 0..64 {
            let _ = Ending::from_word(1 << shift);
        }
    }

    /// A program whose child was OOM-killed may itself exit with 0. Older versions wrote such ends as OOM kills, into
    /// segments (the word) and reports.
    #[test]
    fn only_sigkill_is_an_oom_kill() {
        for (how, word, sentence) in [
            (How::Code(0), 1 | 2 << 16, "exited with status 0"),
            (How::Signal(15), 2 | 15 << 8 | 2 << 16, "killed by signal 15 (SIGTERM)"),
        ] {
            let ending = Ending::from_word(word).expect("a parent's word");
            assert_eq!((ending.how, ending.is_oom_kill(), ending.sentence().as_str()), (how, false, sentence));
            let read = Ending::from_words("oom-killed", ending.code(), ending.signal(), Oom::Yes);
            assert_eq!((read.how, read.is_oom_kill()), (how, false));
        }
        assert!(Ending::with(How::Signal(9), Oom::Yes).is_oom_kill());
        for how in [How::Unseen, How::Unknown, How::Signal(9)] {
            let ending = Ending::with(how, Oom::InGroup);
            assert!(!ending.is_oom_kill() && ending.sentence().contains(GROUP_KILL), "{}", ending.sentence());
            assert_eq!(Ending::with(how, Oom::Yes).is_oom_kill(), how == How::Signal(9));
        }
    }
}
