//! What a HotSpot VM says about itself: whether it accepts an agent, whether it will warn, and its attach socket.

use std::time::Duration;

use plimsoll_observer::source::hotspot::{self, Mute, Patience, PerfData, Vm};
use plimsoll_process::proc;

use super::process::Process;
use crate::Failure;
use crate::output::{is_confirmed, print_message};
use crate::target::refused;

/// Long limits: on an overloaded machine the VM answers late, and attach can only wait.
const PATIENCE: Patience = Patience {
    handshake: Duration::from_secs(30),
    command: Duration::from_secs(30),
    commands: Duration::from_secs(60),
};

impl Process {
    /// JDK 21 and newer write a warning to the target's standard error when an agent is loaded later (JEP 451).
    /// Announces it, and asks on a terminal.
    pub(super) fn warning_is_accepted(&self, yes: bool) -> Result<bool, Failure> {
        let vm = self.perfdata();
        let text = |name: &str| vm.as_ref().and_then(|vm| vm.text(name)).unwrap_or_default();
        let version = text("java.property.java.vm.specification.version");
        let major: Option<u32> = version.strip_prefix("1.").unwrap_or(version).parse().ok();
        if self.allows_agents() == Some(true) || major.is_some_and(|major| major < 21) {
            return Ok(true);
        }
        let pid = self.pid;
        let who = match major {
            Some(_) => format!("JDK 21 and newer: process {pid}"),
            // With -XX:-UsePerfData, and while the VM starts or ends.
            None => format!("process {pid} shows no JDK version: JDK 21 or newer"),
        };
        print_message(format_args!(
            "{who} will warn on its standard error that an agent was loaded (unless started with -XX:+EnableDynamicAgentLoading)"
        ));
        Ok(is_confirmed("attach?", yes)?)
    }

    /// Whether -XX:+EnableDynamicAgentLoading or -XX:-EnableDynamicAgentLoading was given: the last one counts.
    pub(super) fn allows_agents(&self) -> Option<bool> {
        let vm = self.perfdata()?;
        // The VM reads its file of flags before its command line.
        let options = ["java.rt.vmFlags", "java.rt.vmArgs"].map(|name| vm.text(name).unwrap_or_default()).join(" ");
        options.rsplit_once("EnableDynamicAgentLoading").map(|(before, _)| before.ends_with('+'))
    }

    /// Without hsperfdata, the VM's own answer shows whether it accepts an agent.
    fn perfdata(&self) -> Option<PerfData> {
        hotspot::perfdata(&self.target, &self.vmas).unwrap_or_default()
    }

    /// Opens the VM's attach socket. `None`: no HotSpot VM, or one whose attach is disabled. `what`: the action as the
    /// error names it, such as "attached to".
    pub(super) fn speak(&self, what: &str) -> Result<Option<Vm>, Failure> {
        if !hotspot::is_hotspot(&self.vmas) {
            return Ok(None);
        }
        let perfdata = self.perfdata();
        let pid = self.pid;
        let verb = if what.starts_with("attach") { "attach" } else { "detach" };
        match Vm::open(&self.target, perfdata.as_ref(), PATIENCE) {
            Ok(vm) => Ok(Some(vm)),
            Err(_) if !self.is_there() => Err(self.unwilling(what, "").into()),
            Err(Mute::Disabled) => Ok(None),
            Err(mute @ Mute::NotAllowed(_)) => {
                let command = proc::as_root(&refused(verb, pid));
                Err(format!("cannot send a command to the JVM, process {pid}: {mute}. Try: {command}").into())
            }
            Err(mute) => Err(format!("cannot send a command to the JVM, process {pid}: {mute}").into()),
        }
    }
}
