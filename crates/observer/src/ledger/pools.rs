//! Thread pools: threads whose names differ only in numbers. `N` stands for a number that differs, or may.
//!
//! ```text
//! name                        pool                      instance
//! worker-17                   worker-N                  -
//! GC Thread#3                 GC Thread#N               -
//! pool-17-thread-1            pool-N-thread-N           17      one executor of many
//! lettuce-nioEventLoop-4-1    lettuce-nioEventLoop-N-N  4       one ClientResources of several
//! http-nio-8080-exec-5        http-nio-8080-exec-N      8080    the only one, so its number stays in the name
//! C2 CompilerThread0          C2 CompilerThreadN        -
//! G1 Conc#0                   G1 Conc#N                 -       digits inside a word are part of it
//! ```
//! The last number belongs to the thread. Earlier numbers distinguish instances of the pool. The kernel cuts a name to
//! 15 bytes; where the thread's number is cut off, the rest of the name still finds the pool.

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
    /// By the name up to its last numbers, with `N` for earlier ones.
    pools: BTreeMap<String, Pool>,
    /// Number of instances, by the pool's name.
    instances: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, Default)]
struct Pool {
    instances: BTreeSet<String>,
    /// The end of its names, twice: with `N` for each number, and with `N` for the last number only. The longest end is
    /// kept, because the kernel may have cut off a number in others.
    ends: (String, String),
}

impl ThreadPools {
    pub fn of<'n>(names: impl Iterator<Item = &'n str>) -> ThreadPools {
        let mut pools = BTreeMap::<String, Pool>::new();
        for name in names {
            let folded = fold(name);
            let pool = pools.entry(folded.pool).or_default();
            pool.instances.insert(folded.instance);
            if folded.ends.0.len() > pool.ends.0.len() {
                pool.ends = folded.ends;
            }
        }
        let several = pools.iter().filter(|(_, pool)| pool.instances.len() > 1);
        let instances = several.map(|(name, pool)| (name.clone() + &pool.ends.0, pool.instances.len())).collect();
        ThreadPools { pools, instances }
    }

    /// The pool that a thread of this name belongs to.
    pub fn pool(&self, name: &str) -> String {
        let folded = fold(name);
        match self.pools.get(&folded.pool) {
            Some(pool) if pool.instances.len() == 1 => folded.only + &pool.ends.1,
            Some(pool) => folded.pool + &pool.ends.0,
            None => folded.pool + &folded.ends.0,
        }
    }

    /// Number of instances of a pool, by the pool's name. 1 for a pool without numbers.
    pub fn instances(&self, pool: &str) -> usize {
        self.instances.get(pool).copied().unwrap_or(1)
    }
}

struct Folded {
    /// The name up to its last numbers; any earlier number is `N`.
    pool: String,
    /// Like `pool`, with the earlier numbers kept: for a pool with one instance.
    only: String,
    /// The last numbers as `N`: all of them, and only the last.
    ends: (String, String),
    instance: String,
}

fn is_separator(c: char) -> bool {
    matches!(c, '-' | '#' | '_' | '/' | ':' | '.' | ' ')
}

/// `elasticsearch[node-1][write][T#3]`: the name without the bracket behind the thread's own number, and that bracket.
fn in_brackets(name: &str) -> Option<(&str, char)> {
    let close = name.chars().last().filter(|c| matches!(c, ']' | ')'))?;
    let inner = &name[..name.len() - 1];
    let has_number = inner.ends_with(|c: char| c.is_ascii_digit());
    (has_number && inner.contains(|c: char| !c.is_ascii_digit() && !is_separator(c))).then_some((inner, close))
}

fn fold(name: &str) -> Folded {
    if let Some((inner, close)) = in_brackets(name) {
        let mut folded = fold(inner);
        folded.ends.0.push(close);
        folded.ends.1.push(close);
        return folded;
    }
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || is_separator(c));
    if stem.is_empty() {
        let (pool, only) = (name.to_owned(), name.to_owned());
        return Folded { pool, only, ends: Default::default(), instance: String::new() };
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
    let tail = name[stem.len()..].trim_end_matches(is_separator);
    let (before, own) = tail.split_at(tail.trim_end_matches(|c: char| c.is_ascii_digit()).len());
    let earlier: Vec<&str> = before.split(is_separator).filter(|word| is_number(word)).collect();
    let mut every = before.to_owned();
    for number in &earlier {
        every = every.replacen(number, "N", 1);
    }
    let end = if own.is_empty() { "" } else { "N" };
    numbers.extend(earlier);
    let ends = (every + end, before.to_owned() + end);
    Folded { pool, only: stem.to_owned(), ends, instance: numbers.join("-") }
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
        assert_eq!(pools(&["worker-0", "worker-59"]), [("worker-N".into(), 1)]);
        assert_eq!(pools(&["GC Thread#3", "GC Thread#0"]), [("GC Thread#N".into(), 1)]);
        assert_eq!(pools(&["C2 CompilerThread0"]), [("C2 CompilerThreadN".into(), 1)]);
        assert_eq!(pools(&["pool-1-thread-1", "pool-2-thread-1"]), [("pool-N-thread-N".into(), 2)]);
        assert_eq!(pools(&["pool-1-thread-1", "pool-1-thread-2"]), [("pool-1-thread-N".into(), 1)]);
        assert_eq!(pools(&["http-nio-8080-exec-1", "http-nio-8080-exec-2"]), [("http-nio-8080-exec-N".into(), 1)]);
        let lettuce = ["lettuce-nioEventLoop-4-1", "lettuce-nioEventLoop-4-2", "lettuce-nioEventLoop-9-1"];
        assert_eq!(pools(&lettuce), [("lettuce-nioEventLoop-N-N".into(), 2)]);
        assert_eq!(pools(&lettuce[..2]), [("lettuce-nioEventLoop-4-N".into(), 1)]);
        // A name with the same number twice, and one whose second number is part of its first.
        assert_eq!(pools(&["loop-1-1", "loop-11-1"]), [("loop-N-N".into(), 2)]);
    }

    #[test]
    fn a_number_in_brackets_is_the_threads_own() {
        let names = ["elasticsearch[node-1][write][T#1]", "elasticsearch[node-1][write][T#12]"];
        assert_eq!(pools(&names), [("elasticsearch[node-1][write][T#N]".into(), 1)]);
        assert_eq!(pools(&["worker (1)", "worker (20)"]), [("worker (N)".into(), 1)]);
        assert_eq!(pools(&["[1]"]), [("[N]".into(), 1)]);
        assert_eq!(pools(&["1]", "]", "a]"]), [("1]".into(), 1), ("]".into(), 1), ("a]".into(), 1)]);
    }

    #[test]
    fn digits_inside_a_word_and_names_of_digits_alone_stay() {
        assert_eq!(pools(&["G1 Conc#0", "G1 Conc#1"]), [("G1 Conc#N".into(), 1)]);
        assert_eq!(pools(&["123"]), [("123".into(), 1)]);
        assert_eq!(pools(&[""]), [(String::new(), 1)]);
        assert_eq!(pools(&["main"]), [("main".into(), 1)]);
    }

    /// In 15 bytes: `pool-9-thread-1`, `pool-12-thread-`, `pool-123-thread`.
    #[test]
    fn names_that_the_kernel_cut_are_of_the_same_pool() {
        let names = ["pool-9-thread-1", "pool-12-thread-", "pool-123-thread"];
        assert_eq!(pools(&names), [("pool-N-thread-N".into(), 3)]);
        assert_eq!(pools(&names[1..]), [("pool-N-thread".into(), 2)]);
    }
}
