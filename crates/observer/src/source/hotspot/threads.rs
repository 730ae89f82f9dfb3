//! Parses Thread.print's header lines. They have full names; the kernel cuts names at 15 bytes.
//!
//! ```text
//! "main" #1 prio=5 os_prio=0 cpu=30.22ms elapsed=701.33s tid=0x00007f3554017f40 nid=0x22ae waiting on condition  [0x…]
//! "C2 CompilerThread0" #17 [8950] daemon prio=9 … nid=8950 waiting on condition  [0x0000000000000000]           21 on
//! ```

use plimsoll_facts::snapshot::JavaThread;

pub fn parse_threads(text: &str) -> Vec<JavaThread> {
    text.lines().filter_map(thread).collect()
}

fn thread(line: &str) -> Option<JavaThread> {
    // A name may contain quotes: it ends at the last quote before the fields, which have none.
    let rest = line.strip_prefix('"')?;
    let end = rest.rfind('"')?;
    let fields = &rest[end + 1..];
    let nid = fields.split_once("nid=")?.1.split_whitespace().next()?;
    let tid = match nid.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => nid.parse().ok()?,
    };
    Some(JavaThread { name: rest[..end].to_string(), tid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutated::mutated;

    const DUMP: &str = concat!(
        "Full thread dump OpenJDK 64-Bit Server VM (17.0.15+6 mixed mode, sharing):\n\n",
        "\"main\" #1 prio=5 os_prio=0 cpu=30.22ms elapsed=701.33s tid=0x00007f3554017f40 nid=0x22ae waiting on condition  [0x0]\n",
        "   java.lang.Thread.State: TIMED_WAITING (sleeping)\n\n",
        "\"a \"quoted\" name\" #17 [8950] daemon prio=9 os_prio=0 tid=0x00007ff5d40c4860 nid=8950 runnable  [0x0]\n",
        "\"VM Thread\" os_prio=0 cpu=0.61ms elapsed=701.61s tid=0x00007ff5d40b0030 nid=8934 runnable  \n"
    );

    #[test]
    fn thread_names_and_ids_of_jdk_17_and_21() {
        let threads = parse_threads(DUMP);
        let seen: Vec<_> = threads.iter().map(|thread| (&*thread.name, thread.tid)).collect();
        assert_eq!(seen, [("main", 0x22ae), ("a \"quoted\" name", 8950), ("VM Thread", 8934)]);
    }

    #[test]
    fn mutated_dumps_never_panic() {
        let threads = mutated(DUMP.as_bytes(), 2000).map(|text| parse_threads(&String::from_utf8_lossy(&text)).len());
        assert!(threads.sum::<usize>() > 2000);
    }
}
