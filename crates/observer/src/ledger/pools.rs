//! Thread pools: threads whose names differ only in numbers.
//!
//! ```text
//! name                        pool                    instance
//! GC Thread#3                 GC Thread               -
//! pool-17-thread-1            pool-N-thread           17      one executor of many
//! lettuce-nioEventLoop-4-1    lettuce-nioEventLoop    4       one ClientResources of several
//! http-nio-8080-exec-5        http-nio-8080-exec      8080    the only one, so its number stays in the name
//! G1 Conc#0                   G1 Conc                 -       digits inside a word are part of it
//! ```
//! The last number belongs to the thread. Earlier numbers distinguish instances of the pool.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_facts::snapshot::Snapshot;

/// Names of the snapshot's threads, in the snapshot's order. The VM knows full names, the kernel only 15 bytes.
pub fn thread_names(snapshot: &Snapshot) -> Vec<&str> {
    let java = snapshot.hotspot.as_ref().map(|vm| vm.threads_by_tid()).unwrap_or_default();
    let name =
        |thread: &plimsoll_facts::snapshot::Thread| java.get(&thread.namespaced_tid).map(|java| java.name.as_str());
    snapshot.threads.iter().map(|thread| name(thread).unwrap_or(&thread.name)).collect()
}

/// The pools of one process.
#[derive(Clone, Debug, Default)]
pub struct ThreadPools {
    /// Instances by folded name.
    instances: BTreeMap<String, BTreeSet<String>>,
}

impl ThreadPools {
    pub fn of<'n>(names: impl Iterator<Item = &'n str>) -> ThreadPools {
        let mut instances = BTreeMap::<String, BTreeSet<String>>::new();
        for name in names {
            let folded = fold(name);
            instances.entry(folded.pool).or_default().insert(folded.instance);
        }
        ThreadPools { instances }
    }

    /// The pool that a thread of this name belongs to.
    pub fn pool(&self, name: &str) -> String {
        let folded = fold(name);
        let only = self.instances.get(&folded.pool).is_some_and(|instances| instances.len() == 1);
        if only { folded.only } else { folded.pool }
    }

    /// Number of instances of a pool, by the pool's name. 1 for a pool without numbers.
    pub fn instances(&self, pool: &str) -> usize {
        self.instances.get(pool).map_or(1, BTreeSet::len)
    }
}

struct Folded {
    /// The name without the thread's own number; any other number becomes `N`.
    pool: String,
    /// The same with the other numbers kept, for a pool with one instance.
    only: String,
    instance: String,
}

fn is_separator(c: char) -> bool {
    matches!(c, '-' | '#' | '_' | '/' | ':' | '.' | ' ')
}

fn fold(name: &str) -> Folded {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || is_separator(c));
    if stem.is_empty() {
        return Folded { pool: name.to_owned(), only: name.to_owned(), instance: String::new() };
    }
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let mut numbers = Vec::new();
    let mut pool = String::new();
    for piece in stem.split_inclusive(is_separator) {
        let word = piece.trim_end_matches(is_separator);
        if is_number(word) {
            numbers.push(word);
            pool.push('N');
            pool.push_str(&piece[word.len()..]);
        } else {
            pool.push_str(piece);
        }
    }
    // After the stem: all numbers except the last, which is the thread's own.
    let tail = name[stem.len()..].split(is_separator).filter(|word| is_number(word));
    let mut tail: Vec<&str> = tail.collect();
    tail.pop();
    numbers.extend(tail);
    Folded { pool, only: stem.to_owned(), instance: numbers.join("-") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(names: &[&str]) -> Vec<(String, usize)> {
        let pools = ThreadPools::of(names.iter().copied());
        let names: BTreeSet<String> = names.iter().map(|name| pools.pool(name)).collect();
        names.into_iter().map(|name| (name.clone(), pools.instances(&name))).collect()
    }

    #[test]
    fn threads_of_a_pool_differ_in_numbers_only() {
        assert_eq!(pools(&["GC Thread#3", "GC Thread#0"]), [("GC Thread".into(), 1)]);
        assert_eq!(pools(&["pool-1-thread-1", "pool-2-thread-1"]), [("pool-N-thread".into(), 2)]);
        assert_eq!(pools(&["pool-1-thread-1", "pool-1-thread-2"]), [("pool-1-thread".into(), 1)]);
        assert_eq!(pools(&["http-nio-8080-exec-1", "http-nio-8080-exec-2"]), [("http-nio-8080-exec".into(), 1)]);
        let lettuce = ["lettuce-nioEventLoop-4-1", "lettuce-nioEventLoop-4-2", "lettuce-nioEventLoop-9-1"];
        assert_eq!(pools(&lettuce), [("lettuce-nioEventLoop".into(), 2)]);
        assert_eq!(pools(&lettuce[..2]), [("lettuce-nioEventLoop".into(), 1)]);
    }

    #[test]
    fn digits_inside_a_word_and_names_of_digits_alone_stay() {
        assert_eq!(pools(&["G1 Conc#0", "G1 Conc#1"]), [("G1 Conc".into(), 1)]);
        assert_eq!(pools(&["123"]), [("123".into(), 1)]);
        assert_eq!(pools(&[""]), [(String::new(), 1)]);
    }
}
