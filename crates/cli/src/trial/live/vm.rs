//! The steps that a VM carries out itself, by its diagnostic commands.

use std::time::Duration;

use plimsoll_observer::source::hotspot::{self, Mute, Patience, Vm, parse_manageable};
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::{self, Target};
use plimsoll_report::words::printable;
use plimsoll_trial::live::Setting;

/// A full collection of a large heap takes seconds, and one that swaps takes longer.
const PATIENCE: Patience = Patience {
    handshake: Duration::from_secs(30),
    command: Duration::from_secs(120),
    commands: Duration::from_secs(120),
};
/// Time limit for one step with all of its commands.
const STEP: Duration = Duration::from_secs(180);

const ALL_FLAGS: &str = "VM.flags -all";

/// Opens the VM of a process, for one step. `None`: the process isn't a HotSpot VM.
pub fn open(target: &mut Target) -> Option<Result<Vm, Mute>> {
    target.allow(Deadline::after(STEP));
    let vmas = proc::parse_maps(&target.read("maps").ok()?, &[]).vmas;
    if !hotspot::is_hotspot(&vmas) {
        return None;
    }
    let perfdata = hotspot::perfdata(target, &vmas).unwrap_or_default();
    Some(Vm::open(target, perfdata.as_ref(), PATIENCE))
}

pub fn trim(vm: &mut Vm) -> Result<(), String> {
    vm.query("System.trim_native_heap").map(drop).map_err(String::from)
}

/// The answer is empty, unless -XX:+DisableExplicitGC forbids the collection.
pub fn collect(vm: &mut Vm) -> Result<(), String> {
    match vm.query("GC.run")?.trim() {
        "" => Ok(()),
        refusal => Err(format!("the VM answers: {}", first_line(refusal))),
    }
}

/// The present values of these flags. Fails if the VM can't change one of them while it runs, or set it back.
pub fn present(vm: &mut Vm, settings: &[Setting]) -> Result<Vec<Setting>, String> {
    let manageable = parse_manageable(&vm.query(ALL_FLAGS)?);
    let one = |setting: &Setting| match manageable.iter().find(|(name, _)| *name == setting.name) {
        Some((name, value)) => Setting::checked(name, value)
            .ok_or_else(|| format!("no command could set {name} back to what it is now ('{}')", printable(value))),
        None => {
            let pid = vm.pid();
            Err(format!(
                "this VM can't change {} while it runs (it can change these: jcmd {pid} VM.flags -all | grep manageable)",
                setting.name
            ))
        }
    };
    settings.iter().map(one).collect()
}

/// Sets them in this order: the VM checks each value against the others.
pub fn set(vm: &mut Vm, settings: &[Setting]) -> Result<(), String> {
    for setting in settings {
        let answer = vm.query(&format!("VM.set_flag {} {}", setting.name, setting.value))?;
        if !answer.trim().is_empty() {
            return Err(format!("the VM refuses {}={}: {}", setting.name, setting.value, first_line(&answer)));
        }
    }
    Ok(())
}

/// Sets the old values, the last one first, and returns those that the VM then shows.
pub fn set_back(vm: &mut Vm, old: &[Setting]) -> Result<Vec<Setting>, String> {
    let reversed: Vec<Setting> = old.iter().rev().cloned().collect();
    let refused = set(vm, &reversed).err();
    let now = parse_manageable(&vm.query(ALL_FLAGS)?);
    let is_back = |setting: &&Setting| now.contains(&(setting.name.clone(), setting.value.clone()));
    let back: Vec<Setting> = old.iter().filter(is_back).cloned().collect();
    match refused {
        Some(reason) if back.len() < old.len() => Err(reason),
        _ if back.len() < old.len() => Err("the VM still shows another value".into()),
        _ => Ok(back),
    }
}

fn first_line(answer: &str) -> &str {
    answer.trim().lines().next().unwrap_or_default()
}
