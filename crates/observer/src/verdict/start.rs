//! Remedies that start the program again: with a variable, under the tracker, in a trial. They contain the command line
//! of the process as a shell reads it. Where that isn't known, they say what is missing, and never a wrong command.
//!
//! A command line may contain a password. It is printed as it is: any user of the machine may read it in
//! /proc/PID/cmdline, and every output of `explain` already begins with it. A line with a part hidden could not be
//! pasted.

use super::case::{Barrier, Case};
use super::remedy::remedy;
use super::{Effort, Form, Remedy};
use plimsoll_facts::shell::quoted;
use plimsoll_facts::snapshot::{LACKING, Start};

impl Case<'_> {
    /// Starts the program again with this variable. A shell and systemd take its value as it is.
    pub(crate) fn start_with(self, what: &str, setting: &'static str, trade_off: &str) -> Remedy {
        let start = &self.snapshot.process.start;
        if let Some(name) = self.options_of(setting) {
            // A command would replace the present options.
            let keep = format!("{trade_off}; {name} is set already: put its present options in front");
            return Remedy { form: Form::Setting, ..remedy(Effort::Restart, what, setting, keep) };
        }
        let how = match start {
            Start::Unit { name, of_user } => Some(with_drop_in(name, *of_user, setting)),
            _ => start.command(&format!("{setting} ")).map(|command| match start.lacks_variables() {
                true => format!("{command}   # {LACKING}"),
                false => command,
            }),
        };
        let Some(how) = how else {
            let trade_off = [trade_off, start.why_unknown()].join("; ");
            return Remedy { form: Form::Setting, ..remedy(Effort::Restart, what, setting, trade_off) };
        };
        let (form, trade_off) = match start {
            Start::Unit { name, of_user } => {
                (Form::Stop, format!("{trade_off}; undo: {}", without_drop_in(name, *of_user)))
            }
            _ => (Form::Start, trade_off.to_owned()),
        };
        Remedy { form, ..remedy(Effort::Restart, what, how, trade_off) }
    }

    /// The name of the setting's variable, if it has a list of options and the process has some in it.
    fn options_of(self, setting: &'static str) -> Option<&'static str> {
        let (name, _) = setting.split_once('=')?;
        (name == "GODEBUG" && self.variable(name).is_some()).then_some(name)
    }

    /// The command that starts it with `plimsoll run`, and the command that prints its books then. If the tracker can't
    /// be loaded: another build of the program, or two readings.
    pub(crate) fn start_tracked(self, what: &str) -> Remedy {
        let other_build = |what: &str, how: &str| {
            let what = format!("start {what} under the tracker, and see the calls that hold it");
            remedy(Effort::Deploy, what, format!("plimsoll run --   # and then the program, {how}"), "")
        };
        match self.barrier() {
            Some(Barrier::Static) => {
                return other_build("a dynamically linked build", "linked dynamically: a static one loads no library");
            }
            Some(Barrier::Sanitizer) => {
                return other_build(
                    "another build",
                    "built without the sanitizer, whose runtime must come before any other library",
                );
            }
            Some(Barrier::TwoLibcs) if !self.is_jvm() => return self.compare_readings(),
            Some(Barrier::Secure) => return self.compare_readings(),
            _ => {}
        }
        self.start_below("plimsoll run --", what, &format!("then: plimsoll report {} --by site", self.name()), "")
    }

    /// The command line of the program behind another command, which starts it. `then` is a comment on it.
    pub(crate) fn start_below(self, before: &str, what: &str, then: &str, trade_off: &str) -> Remedy {
        let start = &self.snapshot.process.start;
        let (how, has_command) = start.behind(before, then);
        let form = match start {
            _ if has_command => Form::Start,
            Start::Unit { .. } if !how.starts_with(before) => Form::Stop,
            _ => Form::Command,
        };
        Remedy { form, ..remedy(Effort::Restart, what, how, trade_off) }
    }

    /// The name by which `plimsoll report` finds the program after it was started again.
    fn name(self) -> String {
        let process = &self.snapshot.process;
        let name = match &process.start {
            Start::Command { words, .. } => words.first().and_then(|path| path.rsplit('/').next()),
            _ => None,
        };
        quoted(name.unwrap_or(&process.name)).unwrap_or_default()
    }
}

/// A unit's name may have a backslash: `a\x2db.service`.
fn unit(name: &str) -> String {
    quoted(name).unwrap_or_default()
}

/// systemd.unit(5): a file in `UNIT.d` adds to the unit. For the user's manager, `~` must stay outside of quotes.
fn drop_in(name: &str, of_user: bool) -> (String, String) {
    let folder = if of_user { "~/.config/systemd/user" } else { "/etc/systemd/system" };
    let folder = format!("{folder}/{}", unit(&format!("{name}.d")));
    let file = format!("{folder}/plimsoll.conf");
    (folder, file)
}

fn with_drop_in(name: &str, of_user: bool, setting: &str) -> String {
    let ((folder, file), sudo) = (drop_in(name, of_user), if of_user { "" } else { "sudo " });
    let (systemctl, unit) = (Start::systemctl(of_user), unit(name));
    format!(
        "{sudo}mkdir -p {folder} && printf '[Service]\\nEnvironment=%s\\n' {setting} | {sudo}tee {file} && \
         {systemctl} daemon-reload && {systemctl} restart {unit}"
    )
}

fn without_drop_in(name: &str, of_user: bool) -> String {
    let ((_, file), sudo) = (drop_in(name, of_user), if of_user { "" } else { "sudo " });
    let (systemctl, unit) = (Start::systemctl(of_user), unit(name));
    format!("{sudo}rm {file} && {systemctl} daemon-reload && {systemctl} restart {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::verdict::VerdictId;
    use plimsoll_facts::snapshot::Snapshot;

    fn of(start: Start, remedy: fn(Case<'_>) -> Remedy) -> Remedy {
        let mut snapshot = Snapshot::default();
        snapshot.process.name = "shop".into();
        snapshot.process.start = start;
        let ledger = Ledger::of(&snapshot);
        remedy(Case { snapshot: &snapshot, ledger: &ledger })
    }

    fn command(words: &[&str], folder: Option<&str>) -> Start {
        Start::Command {
            words: words.iter().copied().map(String::from).collect(),
            folder: folder.map(String::from),
            variables: Some(Vec::new()),
        }
    }

    fn traced(case: Case<'_>) -> Remedy {
        case.start_with("trace", "GODEBUG=gctrace=1", "lines on stderr")
    }

    fn tracked(case: Case<'_>) -> Remedy {
        case.start_tracked("track it")
    }

    #[test]
    fn a_known_command_line_is_printed_to_be_pasted() {
        let shop = command(&["/srv/shop", "--name", "it's $(reboot)", "a\nb"], Some("/srv/two words"));
        let remedy = of(shop.clone(), traced);
        let line =
            r#"cd '/srv/two words' && GODEBUG=gctrace=1 /srv/shop --name 'it'\''s $(reboot)' "$(printf 'a\012b')""#;
        assert_eq!((remedy.how.as_str(), remedy.verb().0), (line, "run "));
        let line = r#"cd '/srv/two words' && plimsoll run -- /srv/shop --name 'it'\''s $(reboot)' "$(printf 'a\012b')"   # then: plimsoll report shop --by site"#;
        assert_eq!(of(shop, tracked).how, line);
        // A program whose name looks like an assignment, and an argument that a shell could not read back.
        assert_eq!(of(command(&["a=b"], None), traced).how, "GODEBUG=gctrace=1 'a=b'");
        assert_eq!(of(command(&["/a", "b\n"], None), traced).how, "GODEBUG=gctrace=1");
    }

    #[test]
    fn options_that_a_variable_has_are_not_replaced() {
        let mut snapshot = Snapshot::default();
        snapshot.process.start = command(&["/srv/shop"], None);
        snapshot.process.environment = vec![("GODEBUG".into(), "http2client=0".into())];
        let ledger = Ledger::of(&snapshot);
        let remedy = traced(Case { snapshot: &snapshot, ledger: &ledger });
        assert_eq!((remedy.how.as_str(), remedy.verb().0), ("GODEBUG=gctrace=1", "set "));
        assert!(remedy.trade_off.ends_with("GODEBUG is set already: put its present options in front"), "{remedy:?}");
    }

    #[test]
    fn an_unknown_command_line_is_a_setting_or_a_sentence() {
        let remedy = of(Start::Title, traced);
        assert_eq!((remedy.how.as_str(), remedy.verb()), ("GODEBUG=gctrace=1", ("set ", "and start it again")));
        assert_eq!(remedy.trade_off, "lines on stderr; the process shows a title in place of its arguments");
        let how = of(Start::OtherUser, tracked).how;
        assert_eq!(
            how,
            "plimsoll run --   # and then the command that starts it (not printed: it runs as another user); \
             then: plimsoll report shop --by site"
        );
    }

    /// Without these variables, the program would run over another allocator, or with another cap.
    #[test]
    fn variables_of_the_process_stand_in_front() {
        let start = |variables: Option<&[(&str, &str)]>| Start::Command {
            words: vec!["/srv/shop".into()],
            folder: Some("/srv".into()),
            variables: variables.map(|all| all.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()),
        };
        let known = start(Some(&[("LD_PRELOAD", "/opt/my malloc.so"), ("MALLOC_ARENA_MAX", "2")]));
        let front = "cd /srv && LD_PRELOAD='/opt/my malloc.so' MALLOC_ARENA_MAX=2 ";
        let then = "then: plimsoll report shop --by site";
        assert_eq!(of(known.clone(), tracked).how, format!("{front}plimsoll run -- /srv/shop   # {then}"));
        assert_eq!(of(known, traced).how, format!("{front}GODEBUG=gctrace=1 /srv/shop"));
        // If one variable can't be printed or can't be quoted, none is printed.
        let ends = start(Some(&[("LD_PRELOAD", "/a.so"), ("MALLOC_CONF", "a\n")]));
        for unknown in [start(None), ends] {
            let missing = "# with the variables that it needs";
            let how = of(unknown.clone(), tracked).how;
            assert_eq!(how, format!("cd /srv && plimsoll run -- /srv/shop   {missing}; {then}"));
            assert_eq!(of(unknown.clone(), traced).how, format!("cd /srv && GODEBUG=gctrace=1 /srv/shop   {missing}"));
            assert_eq!(
                unknown.behind("plimsoll try --", "").0,
                format!("cd /srv && plimsoll try -- /srv/shop   {missing}")
            );
        }
    }

    #[test]
    fn a_service_is_changed_through_systemd() {
        let unit = |of_user| Start::Unit { name: r"shop\x2d1.service".into(), of_user };
        let remedy = of(unit(false), traced);
        assert_eq!(
            remedy.how,
            "sudo mkdir -p /etc/systemd/system/'shop\\x2d1.service.d' && printf '[Service]\\nEnvironment=%s\\n' \
             GODEBUG=gctrace=1 | sudo tee /etc/systemd/system/'shop\\x2d1.service.d'/plimsoll.conf && \
             sudo systemctl daemon-reload && sudo systemctl restart 'shop\\x2d1.service'"
        );
        assert!(remedy.trade_off.contains("undo: sudo rm /etc/systemd/system/'shop\\x2d1.service.d'/plimsoll.conf"));
        assert_eq!(
            remedy.headline(VerdictId::Unclear).unwrap(),
            "remedy 1 of unclear: it stops or restarts the program"
        );
        let how = of(unit(true), tracked).how;
        assert_eq!(
            how,
            "systemctl --user edit --full 'shop\\x2d1.service' && systemctl --user restart 'shop\\x2d1.service'   \
             # ExecStart=: put plimsoll run -- in front of the program; then: plimsoll report shop --by site"
        );
        // A service that tries its program several times would not be the service any more.
        let tried = of(unit(false), |case| case.start_below("plimsoll try --", "", "", ""));
        assert_eq!(tried.form, Form::Command);
        assert_eq!(tried.how, r"plimsoll try --   # and then the command line in ExecStart= of shop\x2d1.service");
    }
}
