//! Writes the allocation events of a recording: bytes that each thread took from the Java heap on slow paths, and heap
//! chunks if the VM has them. The view of the stacks follows. The JSON form has the schema `plimsoll.allocations/2`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_profiles::allocation::{Allocations, Chunks};
use plimsoll_profiles::profile::GroupBy;
use serde::Serialize;

use crate::json_lines;
use crate::profile::{View, json, text};
use crate::words::{count, counted, cut, printable};

pub const SCHEMA: &str = "plimsoll.allocations/2";

/// Threads listed if the view itself is by something other than threads.
const THREADS: usize = 8;

/// `all`: list every entry, never sum up the small ones.
pub fn write(out: &mut dyn Write, of: &Allocations, view: &View, by: GroupBy, all: bool) -> io::Result<()> {
    writeln!(out, "{}", printable(&heading(of)))?;
    let events: Vec<String> = of.events.iter().map(|(name, n)| format!("{} {name}", count(*n))).collect();
    if !events.is_empty() {
        writeln!(out, "{}", events.join(", "))?;
    }
    if of.slow_paths() > 0 {
        writeln!(out)?;
        threads(out, of, all || by == GroupBy::Thread)?;
    }
    // The view by thread already is the table of slow paths by thread.
    if by == GroupBy::Thread && of.slow_paths() > 0 && view.measure() == "slow_path" {
        return text::gaps(out, view);
    }
    writeln!(out)?;
    text::write(out, view, by, all)
}

/// `allocations of Substrate VM 25.0.3+9-LTS, pid 4711`.
pub fn heading(of: &Allocations) -> String {
    // HotSpot's version text goes on after a comma with how the VM was built.
    let version = of.vm.version.split(',').next().unwrap_or_default();
    let name = match (of.vm.name.is_empty(), version.starts_with(&of.vm.name)) {
        (true, _) => "an unknown VM".to_string(),
        (false, true) => version.to_string(),
        (false, false) => format!("{} {version}", of.vm.name),
    };
    let pid = of.vm.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
    format!("allocations of {name}{pid}")
}

fn threads(out: &mut dyn Write, of: &Allocations, all: bool) -> io::Result<()> {
    let chunks_head = if of.chunks.is_some() { "  heap chunks, about" } else { "" };
    writeln!(out, "{}", format!("slow paths     from heap  {:30}{chunks_head}", "thread").trim_end())?;
    let line = |out: &mut dyn Write, slow_paths: u64, bytes: u64, name: &str, chunks: Option<&Chunks>| {
        let chunks = chunks.map_or(String::new(), |c| format!("  {}", chunks_words(c)));
        let text = format!("{:>10}  {:>12}  {:30}{chunks}", count(slow_paths), Bytes(bytes), cut(name, 30));
        writeln!(out, "{}", text.trim_end())
    };
    let shown = if all || of.threads.len() <= THREADS + 1 { of.threads.len() } else { THREADS };
    for thread in &of.threads[..shown] {
        line(out, thread.slow_paths, thread.bytes, &thread.thread, thread.chunks.as_ref())?;
    }
    let rest = &of.threads[shown..];
    let sum = |threads: &[plimsoll_profiles::allocation::ThreadSlowPaths]| {
        threads.iter().fold((0u64, 0u64), |s, t| (s.0.saturating_add(t.slow_paths), s.1.saturating_add(t.bytes)))
    };
    if !rest.is_empty() {
        let (slow_paths, bytes) = sum(rest);
        line(out, slow_paths, bytes, &counted(rest.len() as u64, "more thread"), None)?;
    }
    let (slow_paths, bytes) = sum(&of.threads);
    line(out, slow_paths, bytes, "all", of.chunks.as_ref())?;
    if let Some(chunks) = &of.chunks {
        let mut line = String::from("by the rule of");
        for word in printable(&chunks.why).split(' ') {
            if line.chars().count() + 1 + word.chars().count() > text::WIDTH {
                writeln!(out, "{line}")?;
                line = " ".into();
            }
            line = line + " " + word;
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// `5 of 1.00 MiB, 2 of large arrays: 12.4 MiB`.
fn chunks_words(chunks: &Chunks) -> String {
    let aligned = (chunks.aligned > 0).then(|| format!("{} of {}", count(chunks.aligned), chunks.aligned_size));
    let slices = (chunks.slices > Bytes::ZERO).then(|| format!("{} of shared ones", chunks.slices));
    let own = (chunks.own > 0).then(|| format!("{} of large arrays", count(chunks.own)));
    let parts: Vec<String> = [aligned, own, slices].into_iter().flatten().collect();
    match parts.is_empty() {
        true => "none".into(),
        false if parts.len() == 1 && chunks.aligned == 0 => parts.concat(),
        false => format!("{}: {}", parts.join(", "), chunks.bytes()),
    }
}

/// The part of a native image's heap that the tracker itself counted: mapping calls below `slowPathNew*`.
pub fn mapped_slow_paths(out: &mut dyn Write, calls: u64, bytes: Option<u64>) -> io::Result<()> {
    let bytes = bytes.map_or(String::new(), |bytes| format!(": {} of heap chunks", Bytes(bytes)));
    writeln!(out, "slow paths of the Java heap (slowPathNew*): {}{bytes}", counted(calls, "mapping call"))
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    vm: VmLine<'a>,
    events: &'a BTreeMap<&'static str, u64>,
    threads: Vec<ThreadLine<'a>>,
    chunks: Option<ChunksLine<'a>>,
    profile: json::Document<'a>,
}

#[derive(Serialize)]
struct VmLine<'a> {
    name: &'a str,
    version: &'a str,
    pid: Option<u64>,
}

#[derive(Serialize)]
struct ThreadLine<'a> {
    thread: &'a str,
    slow_paths: u64,
    bytes: u64,
    chunks: Option<ChunksLine<'a>>,
}

#[derive(Serialize)]
struct ChunksLine<'a> {
    aligned: u64,
    aligned_size_bytes: u64,
    slices_bytes: u64,
    own: u64,
    own_bytes: u64,
    bytes: u64,
    why: &'a str,
}

pub fn write_json(out: &mut dyn Write, of: &Allocations, view: &View) -> io::Result<()> {
    fn chunks(of: &Chunks) -> ChunksLine<'_> {
        ChunksLine {
            aligned: of.aligned,
            aligned_size_bytes: of.aligned_size.0,
            slices_bytes: of.slices.0,
            own: of.own,
            own_bytes: of.own_bytes.0,
            bytes: of.bytes().0,
            why: &of.why,
        }
    }
    let document = Document {
        schema: SCHEMA,
        vm: VmLine { name: &of.vm.name, version: &of.vm.version, pid: of.vm.pid },
        events: &of.events,
        threads: of
            .threads
            .iter()
            .map(|t| ThreadLine {
                thread: &t.thread,
                slow_paths: t.slow_paths,
                bytes: t.bytes,
                chunks: t.chunks.as_ref().map(chunks),
            })
            .collect(),
        chunks: of.chunks.as_ref().map(chunks),
        profile: json::document(view),
    };
    json_lines::write(out, &document)
}
