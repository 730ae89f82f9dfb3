//! Has a program call the function of its allocator that gives free memory back, on a thread of ours.

use std::io;
use std::thread::{self, JoinHandle};

use plimsoll_process::proc::{self, Target};

use super::release::Release;
use super::{fault, native};

/// A call, in the target, of its allocator's function that gives free memory back.
pub struct Releasing(JoinHandle<Result<(), String>>);

impl Releasing {
    /// Starts the call on a thread of plimsoll's, so that the caller can handle signals meanwhile. If the caller
    /// doesn't wait for the end, the call goes on. `verb`: the command up to the PID, for remedies.
    pub fn start(target: Target, release: Release, verb: &'static str) -> io::Result<Releasing> {
        let call = move || call(&target, release, verb);
        thread::Builder::new().name("release".into()).spawn(call).map(Releasing)
    }

    pub fn is_done(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the end. The error is the end of a sentence: what keeps plimsoll from it.
    pub fn result(self) -> Result<(), String> {
        self.0.join().unwrap_or_else(|_| Err("plimsoll failed".to_owned()))
    }
}

fn call(target: &Target, release: Release, verb: &'static str) -> Result<(), String> {
    let maps = target.read("maps").map_err(|_| "it has ended or can't be read")?;
    let mut vmas = proc::parse_maps(&maps, &[]).vmas;
    vmas.iter_mut().for_each(|vma| vma.name = target.inside(&vma.name).into());
    let answer =
        native::release(target, &vmas, release, verb).map_err(|why| format!("it {}", fault::without_run(&why)))?;
    release.error(answer).map_or(Ok(()), |error| Err(format!("{} failed: {error}", release.call())))
}
