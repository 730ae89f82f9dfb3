//! Refuses to enter programs on CPUs other than x86-64: plimsoll has no code for them.

use plimsoll_facts::snapshot::Vma;
use plimsoll_process::proc::{Target, start_of};

use super::fault::Fault;
use super::release::Release;
use crate::target::started_behind;

/// Filters are read on x86-64 only.
pub fn check_vm(_: &Target, _: &str) -> Result<Option<String>, String> {
    Ok(None)
}

pub fn release(_: &Target, _: &[Vma], _: Release, _: &str) -> Result<i32, String> {
    Err("can't be entered on this CPU".to_owned())
}

pub enum ThreadLoader<'t> {
    /// Can't be made: this CPU has no loader.
    _Never(&'t std::convert::Infallible),
}

impl<'t> ThreadLoader<'t> {
    pub fn find(target: &'t Target, _: &[Vma], _: Option<&str>, _: &str) -> Result<ThreadLoader<'t>, String> {
        Err(format!(
            "can be attached to on this CPU only through the attach socket of a HotSpot JVM. Start it with: {}",
            started_behind(&start_of(target), "plimsoll run --")
        ))
    }

    pub fn load_agent(&self, _: &str, _: &str) -> Result<i32, Fault> {
        let ThreadLoader::_Never(never) = self;
        match **never {}
    }

    pub fn load_from_memory(&self, _: &[u8], _: &str) -> Result<i32, Fault> {
        let ThreadLoader::_Never(never) = self;
        match **never {}
    }
}
