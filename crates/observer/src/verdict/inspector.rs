//! Remedies by Node's inspector, which opens without a restart: `node inspect -p` sends SIGUSR1. That signal ends a
//! program that has no handler for it, such as another one that contains V8, so these are for node alone.

use super::case::Case;
use super::remedy::remedy;
use super::{Effort, Remedy};

const OPENS: &str = "opens the inspector's port on 127.0.0.1";
/// Without a handler for SIGUSR1 (Node 20.19, 22.14 and later).
const NO_HANDLER: &str = "--disable-sigusr1";

/// None: it isn't node, or an option forbids node to open its inspector.
pub(crate) fn heap_snapshot(case: Case<'_>) -> Option<Remedy> {
    let cost = format!(
        "stops the program while the snapshot is taken, which may need as much memory again; {OPENS}. The memory panel of a \
         browser's developer tools shows the file"
    );
    inspect(case, "see which objects there are, in a heap snapshot", "takeHeapSnapshot()", &cost)
}

/// Like `heap_snapshot`, for V8's own count.
pub(crate) fn memory_usage(case: Case<'_>) -> Option<Remedy> {
    inspect(case, "print how much of V8's heap is used", "exec process.memoryUsage()", OPENS)
}

fn inspect(case: Case<'_>, what: &str, then: &str, cost: &str) -> Option<Remedy> {
    let process = &case.snapshot.process;
    let file = process.executable.as_deref()?.trim_end_matches(" (deleted)").rsplit('/').next()?;
    let options = process.environment.iter().filter(|(name, _)| name == "NODE_OPTIONS").map(|(_, value)| value);
    let is_open = !process.command.iter().chain(options).any(|text| text.contains(NO_HANDLER));
    if !matches!(file, "node" | "nodejs") || !is_open {
        return None;
    }
    // The port is in the network namespace of the process, and so must the client be.
    let (pid, cost) = match process.namespaced_pid.filter(|_| process.contained) {
        Some(inside) => (inside, format!("type it in the container; {cost}")),
        None => (case.pid(), cost.to_owned()),
    };
    Some(remedy(Effort::Now, what, format!("node inspect -p {pid}   # then: {then}"), cost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use plimsoll_facts::snapshot::Snapshot;

    #[test]
    fn a_signal_is_sent_to_node_only() {
        let of = |file: &str, command: &str, options: &str| {
            let mut snapshot = Snapshot::default();
            let process = &mut snapshot.process;
            (process.pid, process.executable) = (7, Some(file.to_owned()));
            process.command = vec!["node".to_owned(), command.to_owned()];
            process.environment = vec![("NODE_OPTIONS".to_owned(), options.to_owned())];
            (process.contained, process.namespaced_pid) = (file.starts_with("/opt"), Some(1));
            let ledger = Ledger::of(&snapshot);
            memory_usage(Case { snapshot: &snapshot, ledger: &ledger }).map(|remedy| remedy.how)
        };
        const HOW: &str = "node inspect -p 7   # then: exec process.memoryUsage()";
        for file in ["/usr/bin/node", "/usr/bin/nodejs", "/usr/bin/node (deleted)"] {
            assert_eq!(of(file, "a.js", "--max-old-space-size=64").as_deref(), Some(HOW), "{file}");
        }
        assert_eq!(of("/opt/node", "a.js", "").as_deref(), Some(&*HOW.replace("-p 7", "-p 1")));
        for file in ["/usr/bin/deno", "/usr/lib/electron/electron", "/usr/bin/chromium"] {
            assert_eq!(of(file, "a.js", ""), None, "{file}");
        }
        assert_eq!(of("/usr/bin/node", "--disable-sigusr1", ""), None);
        assert_eq!(of("/usr/bin/node", "a.js", "--disable-sigusr1"), None);
    }
}
