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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub how: How,
    /// Whether the kernel killed it because memory ran out; None if unknown.
    pub oom: Option<bool>,
}

const SIGKILL: u8 = 9;

/// The state in `plimsoll.TargetEnd` of a process that was neither tracked nor our child.
pub const UNSEEN: &str = "ended";

impl Ending {
    pub const UNKNOWN: Ending = Ending { how: How::Unknown, oom: None };

    pub fn of(how: How) -> Ending {
        Ending { how, oom: None }
    }

    pub fn oom_killed() -> Ending {
        Ending { how: How::Signal(SIGKILL), oom: Some(true) }
    }

    pub fn is_oom_kill(&self) -> bool {
        self.oom == Some(true)
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
    pub fn from_words(id: &str, code: Option<u8>, signal: Option<u8>, oom: Option<bool>) -> Ending {
        let how = match (id, code, signal) {
            (_, Some(code), _) => How::Code(code),
            (_, _, Some(signal)) => How::Signal(signal),
            ("exited", ..) => How::Exited,
            ("exec", ..) => How::Exec,
            (UNSEEN, ..) => How::Unseen,
            _ => How::Unknown,
        };
        Ending { how, oom: if id == "oom-killed" { Some(true) } else { oom } }
    }

    /// The words for a report's first line.
    pub fn sentence(&self) -> String {
        match self.how {
            _ if self.is_oom_kill() => "OOM-killed".to_owned(),
            How::Exited => "exited".to_owned(),
            How::Code(code) => format!("exited with status {code}"),
            How::Signal(SIGKILL) if self.oom.is_none() => {
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
        let oom = self.oom.map_or(0, |oom| 1 + u64::from(oom));
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
            1 => Some(false),
            2 => Some(true),
            _ => None,
        };
        Some(Ending { how, oom })
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
            for oom in [None, Some(false), Some(true)] {
                let ending = Ending { how, oom };
                assert_eq!(Ending::from_word(ending.word()), Some(ending));
                let back = Ending::from_words(ending.id(), ending.code(), ending.signal(), ending.oom);
                assert_eq!(back, ending);
                seen += 1;
            }
        }
        assert_eq!(seen, 12);
        for how in [How::Exited, How::Exec, How::Unknown] {
            // The segment keeps an exec too; the other two aren't known to the parent.
            let kept = (how == How::Exec).then(|| Ending::of(how));
            assert_eq!(Ending::from_word(Ending::of(how).word()), kept);
            assert_eq!(Ending::from_words(Ending::of(how).id(), None, None, None).how, how);
        }
        // An end that nobody saw may have been a normal one, so it isn't said to be a kill.
        let unseen = Ending::from_words(UNSEEN, None, None, None);
        assert_eq!((unseen.how, unseen.id(), unseen.word()), (How::Unseen, "unknown", 0));
        assert!(!unseen.sentence().contains("kill") && Ending::UNKNOWN.sentence().contains("_exit"));
        // Any word, as in a damaged segment.
        for shift in 0..64 {
            let _ = Ending::from_word(1 << shift);
        }
    }
}
