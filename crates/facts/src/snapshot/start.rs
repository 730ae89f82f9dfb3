//! What starts the process again, and where it listens: what a person types about it.

use core::net::SocketAddr;

use crate::shell::{command_line, quoted};

/// What a person types to start the same program again. /proc/PID/cmdline alone doesn't show it, because a program may
/// overwrite it. The same words in another user's shell or outside of the container start something else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The words, the first of them the path of the program; and the folder in which they are typed.
    Command {
        words: Vec<String>,
        folder: Option<String>,
        /// Variables of the process on which its memory depends. None: one of them can't be printed.
        variables: Option<Vec<(String, String)>>,
    },
    /// systemd starts it: the unit's name.
    Unit {
        name: String,
        of_user: bool,
    },
    /// It has replaced its arguments by a title, or was started under a name that isn't its file's.
    Title,
    /// It is in a container, or sees other files.
    Contained,
    OtherUser,
    /// An argument isn't UTF-8.
    NotText,
    #[default]
    Unread,
}

/// The comment on a command line without them.
pub const LACKING: &str = "with the variables that it needs";

/// Whether options of a variable (JAVA_TOOL_OPTIONS) may be printed in a report: only those of the VM itself, and
/// agents without options. Properties, options of agents and commands (`-XX:OnError=`) may contain a secret under any
/// name. Unlike arguments, only the process's user and root can read a variable in /proc.
pub fn are_public(options: &str) -> bool {
    options.split_whitespace().all(|word| {
        let is_of_vm = word.starts_with("-XX:") && !word.starts_with("-XX:On");
        let may_be_bare = ["-X", "-javaagent:", "-agentpath:"].iter().any(|start| word.starts_with(start));
        is_of_vm || (may_be_bare && !word.contains('='))
    })
}

impl Start {
    /// The line that starts the program behind `before`, for example `plimsoll run --`; `then` is a comment on it. And
    /// whether it has the program's command line: otherwise a comment says where to put that.
    pub fn behind(&self, before: &str, then: &str) -> (String, bool) {
        let more = if then.is_empty() { String::new() } else { format!("; {then}") };
        match self {
            // A trial starts the program several times. It can't do that for a unit, which systemd starts.
            Start::Unit { name, .. } if before.starts_with("plimsoll try") => {
                (format!("{before}   # and then the command line in ExecStart= of {name}{more}"), false)
            }
            // The unit's own line may have options and a folder that the process doesn't show. Editing starts nothing.
            Start::Unit { name, of_user } => {
                let (systemctl, unit) = (Start::systemctl(*of_user), quoted(name).unwrap_or_default());
                let what = format!("ExecStart=: put {before} in front of the program{more}");
                (format!("{systemctl} edit --full {unit} && {systemctl} restart {unit}   # {what}"), false)
            }
            _ => match self.command(&format!("{before} ")) {
                Some(command) => {
                    let needs = self.lacks_variables().then_some(LACKING);
                    let comments: Vec<&str> =
                        needs.into_iter().chain([then].into_iter().filter(|then| !then.is_empty())).collect();
                    match comments.is_empty() {
                        true => (command, true),
                        false => (format!("{command}   # {}", comments.join("; ")), true),
                    }
                }
                None => {
                    let what =
                        format!("and then the command that starts it (not printed: {}){more}", self.why_unknown());
                    (format!("{before}   # {what}"), false)
                }
            },
        }
    }

    /// The command line, in its folder, behind its variables and `before`.
    pub fn command(&self, before: &str) -> Option<String> {
        let Start::Command { words, folder, .. } = self else { return None };
        let command = command_line(words.iter().map(String::as_str))?;
        let folder = match folder {
            Some(folder) => format!("cd {} && ", quoted(folder)?),
            None => String::new(),
        };
        Some(format!("{folder}{}{before}{command}", self.assignments().unwrap_or_default()))
    }

    /// Whether its command line is known, and not all of its variables.
    pub fn lacks_variables(&self) -> bool {
        matches!(self, Start::Command { .. }) && self.assignments().is_none()
    }

    /// The variables as a shell reads them. None: one of them is missing.
    fn assignments(&self) -> Option<String> {
        let Start::Command { variables, .. } = self else { return None };
        variables.as_ref()?.iter().map(|(name, value)| Some(format!("{name}={} ", quoted(value)?))).collect()
    }

    pub fn why_unknown(&self) -> &'static str {
        match self {
            Start::Title => "the process shows a title in place of its arguments",
            Start::Contained => "it runs in a container, and the same line starts something else here",
            Start::OtherUser => "it runs as another user",
            Start::NotText | Start::Command { .. } => "its arguments aren't text",
            Start::Unit { .. } | Start::Unread => "its arguments can't be read",
        }
    }

    pub fn systemctl(of_user: bool) -> &'static str {
        if of_user { "systemctl --user" } else { "sudo systemctl" }
    }
}

/// Sockets at which the process accepts connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    /// By port.
    pub tcp: Vec<SocketAddr>,
    /// Paths of Unix sockets, for the observer.
    pub unix: Vec<String>,
    /// Whether the process is in another network namespace: there, the same address is another socket.
    pub elsewhere: bool,
}
