//! Which processes are served, and under which names. Pure.
//!
//! A name stands in addresses and in the label `target`, so a restart must give the same one. It is the name of the
//! program or, for a JVM, of its main class or jar; never a PID. Of several with one name the oldest keeps it, and the
//! others get `-2`, `-3`, …; a number that is free again goes to the next one.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_facts::units::Bytes;
use plimsoll_process::processes::{Identity, Listed};
use plimsoll_report::process_title::java_first;

use super::wire::is_name;
use crate::process_argument;

/// Limit of targets at a time; each has about 50 series.
pub const MOST: usize = 256;
/// `--all`: a process that is neither a JVM nor tracked is served from this RSS on.
const LEAST: Bytes = Bytes(64 << 20);
/// Characters of a name, without its number.
const LONGEST: usize = 60;
/// First parts of addresses that don't name a target.
const RESERVED: [&str; 4] = ["api", "metrics", "healthz", "favicon.ico"];

/// The processes that the command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSelection {
    /// JVMs, tracked processes, and big ones.
    All,
    These {
        identities: Vec<Identity>,
        names: Vec<String>,
    },
}

impl TargetSelection {
    fn matches(&self, of: &Listed) -> bool {
        match self {
            TargetSelection::All => of.kind.is_jvm || of.kind.is_tracked || of.rss >= LEAST,
            TargetSelection::These { identities, names } => {
                identities.contains(&of.identity) || process_argument::names(of).iter().any(|name| names.contains(name))
            }
        }
    }
}

/// The processes to serve, and how many more match. A process that is served stays so, whatever its size is later.
pub fn chosen<'l>(
    selection: &TargetSelection,
    listed: &'l [Listed],
    served: &BTreeSet<Identity>,
    own: &[u32],
) -> (Vec<&'l Listed>, usize) {
    let is_own = |of: &Listed| own.contains(&of.identity.pid);
    let mut found: Vec<&Listed> =
        listed.iter().filter(|of| !is_own(of) && (served.contains(&of.identity) || selection.matches(of))).collect();
    let rank = |of: &Listed| match (served.contains(&of.identity), of.kind.is_tracked || of.kind.is_jvm) {
        (true, _) => 0,
        (_, true) => 1,
        _ => 2,
    };
    found.sort_by_key(|of| (rank(of), std::cmp::Reverse(of.rss), of.identity));
    let left_out = found.len().saturating_sub(MOST);
    found.truncate(MOST);
    (found, left_out)
}

/// The names in use: without and with a number.
pub type Names = BTreeMap<Identity, (String, String)>;

/// Adds names for processes that have none yet, the oldest first. A process whose program has changed (exec, or a VM
/// that is loaded by now) gets a new one.
pub fn name_all(names: &mut Names, chosen: &[&Listed]) {
    let is_same =
        |identity: &Identity, known: &String| chosen.iter().any(|of| of.identity == *identity && base(of) == *known);
    names.retain(|identity, (known, _)| is_same(identity, known));
    let mut new: Vec<&&Listed> = chosen.iter().filter(|of| !names.contains_key(&of.identity)).collect();
    new.sort_by_key(|of| (of.identity.start, of.identity.pid));
    for of in new {
        let base = base(of);
        let is_free = |name: &String| !names.values().any(|(_, used)| used == name);
        let numbered = (2..).map(|n| format!("{base}-{n}"));
        let name = std::iter::once(base.clone()).chain(numbered).find(is_free).unwrap_or_default();
        names.insert(of.identity, (base, name));
    }
}

/// The name without its number.
fn base(of: &Listed) -> String {
    let program = || match of.command.first() {
        // setproctitle: `nginx: worker process`.
        Some(first) if !first.is_empty() => {
            let first = first.split([' ', ':']).next().unwrap_or(first);
            first.rsplit('/').next().unwrap_or(first).to_owned()
        }
        _ => of.name.clone(),
    };
    let java = || {
        let what = java_first(&of.name, &of.command);
        let main = what.split(' ').next().unwrap_or_default().to_owned();
        let file = main.rsplit('/').next().unwrap_or(&main);
        // `java Shop.java` compiles it first.
        match file.strip_suffix(".jar").or(file.strip_suffix(".java")) {
            Some(file) => file.to_owned(),
            None => file.rsplit('.').next().unwrap_or(file).to_owned(),
        }
    };
    let name = if of.kind.is_jvm { java() } else { program() };
    let fine = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    let name: String = name.chars().map(fine).take(LONGEST).collect();
    let name = name.trim_start_matches(['.', '-']).to_owned();
    match is_name(&name) {
        true if RESERVED.contains(&name.as_str()) => format!("{name}_"),
        true => name,
        false => "process".into(),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_process::processes::ProcessKind;

    use super::*;

    fn listed(pid: u32, command: &[&str], is_jvm: bool, mib: u64) -> Listed {
        Listed {
            identity: Identity { pid, start: u64::from(pid) },
            uid: 0,
            name: "comm".into(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            rss: Bytes(mib << 20),
            kind: ProcessKind { is_jvm, is_tracked: false },
        }
    }

    #[test]
    fn names_are_those_of_programs_and_fit_into_an_address() {
        for (command, is_jvm, expected) in [
            (&["/usr/bin/redis-server 127.0.0.1:6379"][..], false, "redis-server"),
            (&["java", "-Xmx1g", "-jar", "/srv/shop.jar", "x"], true, "shop"),
            (&["java", "-cp", "x", "org.example.Shop"], true, "Shop"),
            (&["java", "/srv/Shop.java"], true, "Shop"),
            (&["nginx: worker process"], false, "nginx"),
            (&[], false, "comm"),
            (&["/opt/<b>x\n\"y"], false, "b_x"),
            (&["/opt/..."], false, "process"),
            (&["metrics"], false, "metrics_"),
            (&["é"], false, "_"),
        ] {
            let name = base(&listed(1, command, is_jvm, 1));
            assert!(is_name(&name), "{name}");
            if expected != "b_x" {
                assert_eq!(name, expected);
            }
        }
        assert!(base(&listed(1, &[&"x".repeat(300)], false, 1)).len() <= LONGEST);
    }

    #[test]
    fn a_restart_gets_the_name_that_it_had() {
        let (first, second, third) =
            (listed(10, &["java"], false, 1), listed(11, &["java"], false, 1), listed(12, &["java"], false, 1));
        let mut names = BTreeMap::new();
        name_all(&mut names, &[&second, &first]);
        let of = |names: &Names, one: &Listed| names[&one.identity].1.clone();
        assert_eq!((of(&names, &first), of(&names, &second)), ("java".into(), "java-2".into()));
        name_all(&mut names, &[&second, &third]);
        assert_eq!((of(&names, &second), of(&names, &third)), ("java-2".into(), "java".into()));
        // An exec.
        let other = listed(11, &["/bin/sleep"], false, 1);
        name_all(&mut names, &[&other, &third]);
        assert_eq!((of(&names, &other), of(&names, &third)), ("sleep".into(), "java".into()));
    }

    #[test]
    fn a_served_process_stays_and_the_rest_is_counted() {
        let all: Vec<Listed> = (1..=300).map(|pid| listed(pid, &["big"], false, 100 + u64::from(pid))).collect();
        let served = BTreeSet::from([all[0].identity]);
        let (found, left_out) = chosen(&TargetSelection::All, &all, &served, &[300]);
        assert_eq!((found.len(), left_out), (MOST, 299 - MOST));
        assert!(found.iter().any(|of| of.identity.pid == 1) && found.iter().all(|of| of.identity.pid != 300));
        let small = [listed(1, &["small"], false, 1), listed(2, &["java", "A"], true, 1)];
        let pids = |selection: &TargetSelection| {
            chosen(selection, &small, &BTreeSet::new(), &[]).0.iter().map(|of| of.identity.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(&TargetSelection::All), [2]);
        assert_eq!(pids(&TargetSelection::These { identities: vec![], names: vec!["small".into()] }), [1]);
        assert_eq!(
            pids(&TargetSelection::These { identities: vec![Identity { pid: 2, start: 2 }], names: vec![] }),
            [2]
        );
        assert!(
            pids(&TargetSelection::These { identities: vec![Identity { pid: 2, start: 1 }], names: vec![] }).is_empty()
        );
    }
}
