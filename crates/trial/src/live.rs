//! What can be tried on a program that runs, and what each step showed.
//!
//! ```text
//! nothing ─▶ step ─▶ step ─▶ …       each: RSS before, at once after, after idling; then its settings are restored
//! ```
//! A live program can't be put back into an earlier state, so each step runs once and no interval exists. The first
//! step changes nothing: how far RSS moves meanwhile is the measure for all others.

use crate::remedy::words;
use crate::rows::WORTH_PERCENT;

/// A flag of a VM and its value, as the VM prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: String,
    pub value: String,
}

impl Setting {
    /// Name and value become words of a command to the VM: `None` if anything in them may separate words.
    pub fn checked(name: &str, value: &str) -> Option<Setting> {
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let is_value =
            !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte));
        (is_name && is_value).then(|| Setting { name: name.into(), value: value.into() })
    }
}

/// One step that is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Only time passes.
    Nothing,
    /// glibc gives back the whole pages among its free chunks.
    Trim,
    /// A full collection of the Java heap.
    Collect,
    /// Redis, or the program's own jemalloc or tcmalloc, gives back its free pages.
    Purge,
    /// Flags that the VM can change while it runs. With `collect`, a collection follows, because the heap shrinks only
    /// then.
    Flags { settings: Vec<Setting>, collect: bool },
}

/// The grammar of `--with` beside `--pid`, for errors.
pub const GRAMMAR: &str = "trim, gc, purge, flag:-XX:NAME=VALUE, flag:-XX:NAME=VALUE,gc";

impl Step {
    /// The step that `--with TEXT` names.
    pub fn parse(text: &str) -> Result<Step, String> {
        if let Some(flags) = text.strip_prefix("flag:") {
            let (flags, collect) = flags.strip_suffix(",gc").map_or((flags, false), |flags| (flags, true));
            let settings: Option<Vec<Setting>> = words(flags)?.iter().map(|word| option(word)).collect();
            return match settings.filter(|settings| !settings.is_empty()) {
                Some(settings) => Ok(Step::Flags { settings, collect }),
                None => Err("expected flag:-XX:NAME=VALUE, flag:-XX:+NAME or flag:-XX:-NAME".into()),
            };
        }
        match text {
            "trim" => Ok(Step::Trim),
            "gc" => Ok(Step::Collect),
            "purge" => Ok(Step::Purge),
            _ => Err(format!("expected one of {GRAMMAR}")),
        }
    }

    /// The step of a remedy that a verdict offers, by its pasteable text. `None`: it needs a restart, or another tool.
    pub fn from_advice(how: &str) -> Option<Step> {
        let (mut settings, mut collect) = (Vec::new(), false);
        for command in how.split(" && ") {
            let words: Vec<&str> = command.split(' ').collect();
            match words.as_slice() {
                // The words between them give the port or the socket, if it isn't the default.
                ["redis-cli" | "valkey-cli", .., "MEMORY", "PURGE"] => return Some(Step::Purge),
                ["jcmd", _, "System.trim_native_heap"] => return Some(Step::Trim),
                ["plimsoll", "try", "--pid", _, "--with", step] => return Step::parse(step).ok(),
                ["jcmd", _, "GC.run"] => collect = true,
                ["jcmd", _, "VM.set_flag", name, value] => settings.push(Setting::checked(name, value)?),
                ["plimsoll", ..] | ["sleep", _] => {}
                _ => return None,
            }
        }
        match (settings.is_empty(), collect) {
            (true, true) => Some(Step::Collect),
            (true, false) => None,
            (false, collect) => Some(Step::Flags { settings, collect }),
        }
    }

    /// The name of the row: the text that `--with` takes, but shorter for flags.
    pub fn label(&self) -> String {
        match self {
            Step::Nothing => "nothing".into(),
            Step::Trim => "trim".into(),
            Step::Collect => "gc".into(),
            Step::Purge => "purge".into(),
            Step::Flags { settings, collect } => {
                let flags: Vec<String> = settings.iter().map(|one| format!("{}={}", one.name, one.value)).collect();
                format!("{}{}", flags.join(" "), if *collect { ", gc" } else { "" })
            }
        }
    }

    /// The commands of a VM that do the same by hand. How to purge depends on the program.
    pub fn commands(&self, pid: u32) -> Vec<String> {
        let jcmd = |command: &str| format!("jcmd {pid} {command}");
        match self {
            Step::Nothing | Step::Purge => Vec::new(),
            Step::Trim => vec![jcmd("System.trim_native_heap")],
            Step::Collect => vec![jcmd("GC.run")],
            Step::Flags { settings, collect } => {
                let set = settings.iter().map(|one| jcmd(&format!("VM.set_flag {} {}", one.name, one.value)));
                set.chain(collect.then(|| jcmd("GC.run"))).collect()
            }
        }
    }
}

/// `-XX:NAME=VALUE`, `-XX:+NAME`, `-XX:-NAME`.
fn option(word: &str) -> Option<Setting> {
    let flag = word.strip_prefix("-XX:")?;
    match (flag.strip_prefix('+'), flag.strip_prefix('-'), flag.split_once('=')) {
        (Some(name), ..) => Setting::checked(name, "true"),
        (_, Some(name), _) => Setting::checked(name, "false"),
        (_, _, Some((name, value))) => Setting::checked(name, value),
        _ => None,
    }
}

/// What happened at one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    pub label: String,
    pub commands: Vec<String>,
    /// RSS in bytes.
    pub before: Option<u64>,
    pub after: Option<u64>,
    pub idle: Option<u64>,
    /// Saving in bytes that a verdict before the first step expects: at least, at most.
    pub predicted: Option<(u64, u64)>,
    /// Lines of the ledger that changed, by id, name and bytes; the largest change first.
    pub lines: Vec<(String, String, i64)>,
    /// The flags that the trial restored, with their old values.
    pub set_back: Vec<Setting>,
    /// Why the step was not done, and what to type instead if there is a command for it.
    pub missing: Option<String>,
}

impl Tried {
    /// RSS after idling minus RSS before the step, in bytes. Negative: RSS became smaller.
    pub fn difference(&self) -> Option<i64> {
        Some(self.idle? as i64 - self.before? as i64)
    }
}

/// All steps on one process, the one without a change first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveTrial {
    pub pid: u32,
    pub command: String,
    /// The line that tries what needs a restart, on the same program.
    pub restart: String,
    pub idle_seconds: f64,
    pub interrupted: bool,
    /// A flag keeps the value that a step gave it; a note has the command that sets it back.
    pub keeps_flags: bool,
    pub steps: Vec<Tried>,
    /// Sentences about the whole trial.
    pub notes: Vec<String>,
}

/// What a live trial showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
    /// The index of the step, and by how many bytes RSS became smaller.
    Saves(usize, u64),
    /// No step saved more than 1 % of RSS and more than RSS moved by itself.
    Nothing,
    /// No step was done.
    NoStep,
}

impl LiveTrial {
    /// How far RSS moved while nothing was done, in bytes.
    pub fn drift(&self) -> Option<i64> {
        self.steps.first()?.difference()
    }

    /// The step that saved most, if it saved more than 1 % of RSS and more than RSS moved by itself in the same time.
    pub fn most(&self) -> Most {
        let done = || self.steps.iter().enumerate().skip(1).filter_map(|(at, step)| Some((at, step.difference()?)));
        let Some((at, difference)) = done().min_by_key(|(_, difference)| *difference) else { return Most::NoStep };
        let whole = self.steps.get(at).and_then(|step| step.before).unwrap_or_default() as f64;
        let floor = (whole * WORTH_PERCENT / 100.0).max(self.drift().unwrap_or_default().unsigned_abs() as f64);
        match difference < 0 && difference.unsigned_abs() as f64 > floor {
            true => Most::Saves(at, difference.unsigned_abs()),
            false => Most::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(name: &str, value: &str) -> Setting {
        Setting { name: name.into(), value: value.into() }
    }

    #[test]
    fn with_beside_a_pid_names_a_step_or_is_refused() {
        assert_eq!(Step::parse("trim"), Ok(Step::Trim));
        assert_eq!(Step::parse("gc"), Ok(Step::Collect));
        let both = Step::parse("flag:-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30,gc").expect("flags");
        let settings = vec![flag("MinHeapFreeRatio", "10"), flag("MaxHeapFreeRatio", "30")];
        assert_eq!(both, Step::Flags { settings, collect: true });
        assert_eq!(both.label(), "MinHeapFreeRatio=10 MaxHeapFreeRatio=30, gc");
        assert_eq!(both.commands(7)[1..], ["jcmd 7 VM.set_flag MaxHeapFreeRatio 30", "jcmd 7 GC.run"]);
        let one = Step::parse("flag:-XX:+HeapDumpOnOutOfMemoryError").expect("a flag");
        assert_eq!(one, Step::Flags { settings: vec![flag("HeapDumpOnOutOfMemoryError", "true")], collect: false });
        for bad in ["", "arenas=2", "flag:", "flag:,gc", "flag:MaxHeapFreeRatio=3", "flag:-XX:A", "flag:-XX:A=b\u{0}c"]
        {
            assert!(Step::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn advice_that_needs_no_restart_is_a_step() {
        assert_eq!(Step::from_advice("jcmd 7 System.trim_native_heap"), Some(Step::Trim));
        assert_eq!(Step::from_advice("jcmd 7 GC.run && sleep 10 && plimsoll explain 7"), Some(Step::Collect));
        assert_eq!(Step::from_advice("plimsoll try --pid 7 --with trim"), Some(Step::Trim));
        for purge in ["redis-cli MEMORY PURGE", "valkey-cli -p 7000 MEMORY PURGE", "plimsoll try --pid 7 --with purge"]
        {
            assert_eq!(Step::from_advice(purge), Some(Step::Purge));
        }
        let ratios =
            "jcmd 7 VM.set_flag MinHeapFreeRatio 10 && jcmd 7 VM.set_flag MaxHeapFreeRatio 30 && jcmd 7 GC.run";
        let settings = vec![flag("MinHeapFreeRatio", "10"), flag("MaxHeapFreeRatio", "30")];
        assert_eq!(Step::from_advice(ratios), Some(Step::Flags { settings, collect: true }));
        for other in [
            "MALLOC_ARENA_MAX=2",
            "gdb -p 7 -batch -ex 'call (int)malloc_trim(0)'",
            "plimsoll try --pid 7 --with tri",
            "jcmd 7 GC.run; rm",
            "jcmd 7 VM.set_flag A b;c",
            "plimsoll explain 7",
            "",
        ] {
            assert_eq!(Step::from_advice(other), None, "{other}");
        }
    }

    /// Steps of (before, after idling) in MiB.
    fn trial(steps: &[(u64, u64)]) -> LiveTrial {
        let one = |(before, idle): &(u64, u64)| Tried {
            before: Some(before << 20),
            idle: Some(idle << 20),
            ..Tried::default()
        };
        LiveTrial { steps: steps.iter().map(one).collect(), ..LiveTrial::default() }
    }

    #[test]
    fn the_step_that_saves_most_moves_more_than_the_program_itself() {
        assert_eq!(trial(&[(500, 501), (501, 251), (251, 240)]).most(), Most::Saves(1, 250 << 20));
        // RSS fell by 20 MiB without a change, so a fall of 15 MiB shows nothing.
        assert_eq!(trial(&[(500, 480), (480, 465)]).most(), Most::Nothing);
        assert_eq!(trial(&[(500, 500), (500, 496)]).most(), Most::Nothing, "below 1 %");
        assert_eq!(trial(&[(500, 500), (500, 510)]).most(), Most::Nothing);
        assert_eq!((trial(&[(500, 500)]).most(), LiveTrial::default().most()), (Most::NoStep, Most::NoStep));
        assert_eq!(trial(&[(500, 480)]).drift(), Some(-20 << 20));
    }
}
