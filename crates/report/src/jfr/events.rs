//! The events of a recording: one table. Metadata, encoding, docs/jfr-events.md and the tests come from it.
//!
//! The `jdk.` events have the fields that HotSpot 25 and Native Image write, so that the JDK's own tools can show them.
//! Our own events add the rest. Each event begins with `startTime`, which the instant gives.

use plimsoll_facts::units::{Avma, Bytes};
use plimsoll_jfr::writer::kinds::{
    self, Count, Flag, Moment, Nanoseconds, NmtType, NoThread, Number, Share, Text, Trace,
};
use plimsoll_jfr::writer::{Body, FieldKind, Table, Type, Value};

/// What Plimsoll's recordings declare in their metadata.
pub static TABLE: Table = Table::new(EVENTS, &[Type::of_names(NAME, "plimsoll.types.Name")]);
const NAME: u64 = 31;

pub enum Amount {}
impl Value for Amount {
    const KIND: FieldKind = kinds::Amount::KIND;
    type Of<'a> = Bytes;
    fn put(value: &Bytes, body: &mut Body<'_>) {
        body.long(value.0);
    }
}

pub enum Address {}
impl Value for Address {
    const KIND: FieldKind = kinds::Address::KIND;
    type Of<'a> = Avma;
    fn put(value: &Avma, body: &mut Body<'_>) {
        body.long(value.0);
    }
}

/// A word that repeats: stored once, in the pool of names.
pub enum Name {}
impl Value for Name {
    const KIND: FieldKind = FieldKind { words: "name", of: NAME, pooled: true, annotations: &[] };
    type Of<'a> = &'a str;
    fn put(value: &&str, body: &mut Body<'_>) {
        body.constant(NAME, value);
    }
}

// How often an event is written: the column of docs/jfr-events.md.
const INTERVAL: &str = "each interval";
/// Whenever smaps was read.
const LINES: &str = "each interval, or as often as 0.4 percent of a core allows to read mappings and pages";
const FULL: &str = "in full instants";
const MOVED: &str = "when it has changed, and in full instants";
const CHUNK: &str = "at the beginning of each chunk";
const CHANGE: &str = "at the beginning of each chunk, and when it has changed";
const JUDGED: &str = "at the beginning of each chunk, and when it has changed; in full instants also when its bytes have, by a sixteenth";
const END: &str = "once, at the end";

plimsoll_jfr::events! {
    NativeMemoryUsage 100 "jdk.NativeMemoryUsage" "Native Memory Usage Per Type" INTERVAL
        ["Java Virtual Machine", "Memory"]
        "Native memory usage for a given memory type: live blocks and mappings of one category"
    {
        category: NmtType "type" "Memory Type" "Category of the native memory",
        reserved: Amount "reserved" "Reserved Memory" "Reserved bytes for this type",
        committed: Amount "committed" "Committed Memory" "Committed bytes for this type",
    }
    NativeMemoryUsageTotal 101 "jdk.NativeMemoryUsageTotal" "Total Native Memory Usage" INTERVAL
        ["Java Virtual Machine", "Memory"]
        "Total native memory usage: the exact sum of the NativeMemoryUsage events of the same moment"
    {
        reserved: Amount "reserved" "Reserved Memory" "Total amount of reserved bytes",
        committed: Amount "committed" "Committed Memory" "Total amount of committed bytes",
    }
    ResidentSetSize 102 "jdk.ResidentSetSize" "Resident Set Size" INTERVAL
        ["Java Virtual Machine", "Memory"]
        "Resident set size of the process"
    {
        size: Amount "size" "Resident Set Size" "Resident set size of the process",
        peak: Amount "peak" "Resident Set Size Peak Value" "Resident set size peak value of the process",
    }
    NativeMemoryUsagePeak 103 "jdk.NativeMemoryUsagePeak" "Native Memory Usage Peak Per Type" FULL
        ["Java Virtual Machine", "Memory"] experimental
        "Highest native memory usage for a given memory type: peak of its live blocks plus peak of its mappings, which may be at different moments. Of thread stacks, libraries and Plimsoll it is the highest reading"
    {
        duration: Nanoseconds "duration" "Duration" "",
        event_thread: NoThread "eventThread" "Event Thread" "Thread in which event was committed in",
        stack_trace: Trace "stackTrace" "Stack Trace" "Stack Trace starting from the method the event was committed in",
        category: NmtType "type" "Memory Type" "Category of the native memory",
        peak_reserved: Amount "peakReserved" "Peak Reserved Memory" "Peak reserved bytes for this type",
        peak_committed: Amount "peakCommitted" "Peak Committed Memory" "Peak committed bytes for this type",
        count_at_peak: Count "countAtPeak" "Count At Peak" "Number of live blocks at the peak of their bytes",
    }
    NativeMemoryUsageTotalPeak 104 "jdk.NativeMemoryUsageTotalPeak" "Total Native Memory Usage Peak" FULL
        ["Java Virtual Machine", "Memory"] experimental
        "Highest native memory usage of the process: peak of its live blocks plus peak of its mappings, which may be at different moments. Of thread stacks, libraries and Plimsoll it is the highest reading"
    {
        duration: Nanoseconds "duration" "Duration" "",
        event_thread: NoThread "eventThread" "Event Thread" "Thread in which event was committed in",
        stack_trace: Trace "stackTrace" "Stack Trace" "Stack Trace starting from the method the event was committed in",
        peak_reserved: Amount "peakReserved" "Peak Reserved Memory" "Peak reserved bytes",
        peak_committed: Amount "peakCommitted" "Peak Committed Memory" "Peak committed bytes",
        count_at_peak: Count "countAtPeak" "Count At Peak" "Number of live blocks at the peak of their bytes",
    }
    NativeLibrary 105 "jdk.NativeLibrary" "Native Library" CHANGE
        ["Java Virtual Machine", "Runtime"]
        "A dynamic library or other native image mapped by the process"
    {
        name: Text "name" "Name" "",
        base: Address "baseAddress" "Base Address" "Starting address of the module",
        top: Address "topAddress" "Top Address" "Ending address of the module, if available",
    }
    Target 110 "plimsoll.Target" "Target" CHUNK
        ["Plimsoll"]
        "The process that is recorded"
    {
        pid: Count "pid" "PID" "In the recorder's PID namespace",
        command: Text "command" "Command" "Arguments as the process was given them",
        executable: Text "executable" "Executable" "",
        runtime: Name "runtime" "Runtime" "native, hotspot or native-image",
        runtime_version: Text "runtimeVersion" "Runtime Version" "As the runtime states it",
        mode: Name "mode" "Tracker Mode" "off, sampled or exact; untracked without the tracker",
        interval: Nanoseconds "interval" "Interval" "Between two instants",
        callers: Text "callers" "Callers" "The command that names the callers of what it allocates",
        plimsoll: Text "plimsoll" "Plimsoll" "Version of the recorder",
    }
    LedgerLine 111 "plimsoll.LedgerLine" "Ledger Line" LINES
        ["Plimsoll", "Ledger"]
        "Resident memory of one owner. The lines of one moment sum to the Rss of its plimsoll.Ledger, the line remainder included"
    {
        line: Name "line" "Line" "java-heap, glibc-retained, thread-stacks, …, remainder",
        resident: Amount "resident" "Resident" "Resident bytes",
        reserved: Amount "reserved" "Reserved" "Address space",
        committed: Amount "committed" "Committed" "The part of the address space that may be touched",
        error: Amount "error" "Error" "By how much the resident bytes may be wrong",
        grade: Name "grade" "Grade" "exact, derived or estimated",
    }
    Ledger 112 "plimsoll.Ledger" "Ledger" LINES
        ["Plimsoll", "Ledger"]
        "Resident memory of the process as the kernel counts it, and the part that no owner claims"
    {
        rss: Amount "rss" "Rss" "Sum of the process's mappings in one reading of smaps",
        remainder: Amount "remainder" "Remainder" "What no line explains",
        swap: Amount "swap" "Swap" "Swapped out",
        mappings: Count "mappings" "Mappings" "Kernel mappings",
        threads: Count "threads" "Threads" "",
        provenance_age: Nanoseconds "provenanceAge" "Age of Provenance" "How long ago the virtual machine and the allocator were last queried for owners; the resident bytes are of this moment",
    }
    Category 113 "plimsoll.Category" "Category" MOVED
        ["Plimsoll", "Books"]
        "Blocks and mappings of one category, as the tracker books them. At any moment the last event of each category is valid. These sum to the plimsoll.Total, except for the peaks"
    {
        category: Name "category" "Category" "",
        origin: Name "origin" "Origin" "Where the name comes from: own, rule, module, program or vm",
        live: Amount "live" "Live" "Usable bytes of live blocks",
        live_count: Count "liveCount" "Live Count" "Live blocks",
        requested: Amount "requested" "Requested" "Requested bytes of the live blocks",
        peak: Amount "peak" "Peak" "Highest live bytes",
        count_at_peak: Count "countAtPeak" "Count At Peak" "Live blocks at the peak",
        cumulative: Amount "cumulative" "Cumulative" "Bytes ever allocated",
        cumulative_count: Count "cumulativeCount" "Cumulative Count" "Blocks ever allocated",
        reserved: Amount "reserved" "Reserved" "Address space mapped",
        committed: Amount "committed" "Committed" "The part of the address space that may be touched",
    }
    Total 114 "plimsoll.Total" "Total" INTERVAL
        ["Plimsoll", "Books"]
        "Blocks and mappings of the process, as the tracker books them"
    {
        live: Amount "live" "Live" "Usable bytes of live blocks",
        live_count: Count "liveCount" "Live Count" "Live blocks",
        requested: Amount "requested" "Requested" "Requested bytes of the live blocks",
        peak: Amount "peak" "Peak" "Highest live bytes",
        count_at_peak: Count "countAtPeak" "Count At Peak" "Live blocks at the peak",
        peak_time: Moment "peakTime" "Peak Time" "When the peak was",
        peak_error: Amount "peakError" "Peak Error" "By how much the peak may be too low",
        cumulative: Amount "cumulative" "Cumulative" "Bytes ever allocated",
        cumulative_count: Count "cumulativeCount" "Cumulative Count" "Blocks ever allocated",
        reserved: Amount "reserved" "Reserved" "Address space mapped",
        committed: Amount "committed" "Committed" "The part of the address space that may be touched",
        own: Amount "own" "Own Cost" "What the tracker itself uses",
    }
    Site 115 "plimsoll.Site" "Allocation Site" FULL
        ["Plimsoll", "Books"]
        "Blocks of one call stack. The sites of one moment sum to its plimsoll.Total in live, liveCount, requested, cumulative and cumulativeCount. All but the largest sites are one event without a stack; sites that only map memory have none"
    {
        stack_trace: Trace "stackTrace" "Stack Trace" "Where the blocks were requested, innermost frame first",
        category: Name "category" "Category" "",
        live: Amount "live" "Live" "Usable bytes of live blocks",
        live_count: Count "liveCount" "Live Count" "Live blocks",
        requested: Amount "requested" "Requested" "Requested bytes of the live blocks",
        peak: Amount "peak" "Peak" "Highest live bytes",
        count_at_peak: Count "countAtPeak" "Count At Peak" "Live blocks at the peak",
        cumulative: Amount "cumulative" "Cumulative" "Bytes ever allocated",
        cumulative_count: Count "cumulativeCount" "Cumulative Count" "Blocks ever allocated",
        error: Amount "error" "Error" "By how much the live bytes may be wrong: 0 where every block is counted",
    }
    Arena 116 "plimsoll.Arena" "Arena" FULL
        ["Plimsoll", "Allocator"]
        "One arena of glibc's malloc"
    {
        address: Address "address" "Address" "Of its malloc_state",
        kind: Name "kind" "Kind" "main or thread",
        reserved: Amount "reserved" "Reserved" "Address space of its heaps",
        live: Amount "live" "Live" "Chunks that the program holds, with their headers",
        live_count: Count "liveCount" "Live Count" "",
        retained: Amount "retained" "Retained" "Free chunks: bins, fast bins, tcache and top",
        live_resident: Amount "liveResident" "Live, Resident" "Resident bytes of live chunks and of what they share pages with",
        retained_resident: Amount "retainedResident" "Retained, Resident" "Resident bytes of free chunks",
        trimmable: Amount "trimmable" "Trimmable" "Whole resident pages that are free: what malloc_trim would give back",
        threads: Count "threads" "Threads" "Attached threads",
    }
    Cgroup 117 "plimsoll.Cgroup" "Memory Cgroup" INTERVAL
        ["Plimsoll", "Limit"]
        "The memory cgroup whose limit would kill the process first: its limit and the memory charged to it"
    {
        path: Name "path" "Path" "Group that sets the limit; the process's own where none does. It may change in a recording",
        limited: Flag "limited" "Limited" "False where no group has a limit",
        limit: Amount "limit" "Limit" "0 where no group has one",
        charged: Amount "charged" "Charged" "What the kernel counts against the limit",
        working_set: Amount "workingSet" "Working Set" "Charged less inactive file pages",
        peak: Amount "peak" "Peak" "Highest charge that the kernel remembers",
        anonymous: Amount "anonymous" "Anonymous" "",
        file: Amount "file" "File" "Page cache, shared memory included",
        kernel: Amount "kernel" "Kernel" "Slab, page tables, kernel stacks",
        sock: Amount "sock" "Sockets" "",
        limit_hits: Count "limitHits" "Limit Hits" "Times that the limit was reached",
        oom_kills: Count "oomKills" "OOM Kills" "Processes of the target's own group that the kernel killed, for any limit",
    }
    Pressure 118 "plimsoll.MemoryPressure" "Memory Pressure" INTERVAL
        ["Plimsoll", "Limit"]
        "Share of the time in which tasks waited for memory (PSI)"
    {
        scope: Name "scope" "Scope" "cgroup or system",
        some: Share "some" "Some" "Share of the last 10 s in which a task waited",
        full: Share "full" "Full" "Share of the last 10 s in which all tasks waited",
        some_total: Nanoseconds "someTotal" "Some, Total" "Since the group or the system started",
        full_total: Nanoseconds "fullTotal" "Full, Total" "Since the group or the system started",
    }
    Verdict 119 "plimsoll.Verdict" "Verdict" JUDGED
        ["Plimsoll"]
        "A problem and its remedy: plimsoll why VERDICT explains it"
    {
        verdict: Name "verdict" "Verdict" "arena-retention, thread-stacks, …, healthy",
        severity: Name "severity" "Severity" "note, warning or critical",
        bytes: Amount "bytes" "Bytes" "How much memory it is about",
        summary: Text "summary" "Summary" "One sentence",
        evidence: Text "evidence" "Evidence" "The numbers that it rests on",
        saving_least: Amount "savingAtLeast" "Saving, At Least" "What the best remedy is expected to save",
        saving_most: Amount "savingAtMost" "Saving, At Most" "What the best remedy is expected to save",
        remedy: Text "remedy" "Remedy" "The remedy of the least effort, to be pasted",
    }
    Gap 120 "plimsoll.Gap" "Gap" CHANGE
        ["Plimsoll"]
        "A part that could not be read, the affected figures, and the command that helps"
    {
        source: Name "source" "Source" "",
        reason: Text "reason" "Reason" "",
        effect: Text "effect" "Effect" "",
        remedy: Text "remedy" "Remedy" "",
    }
    TargetEnd 121 "plimsoll.TargetEnd" "Target End" END
        ["Plimsoll"]
        "The end of the process, if the recording has it"
    {
        state: Name "state" "State" "exited (it ran its exit handlers, or its status is known), killed (by a signal, or it ran no exit handlers: _exit, exec), or ended where only its parent knows",
        how: Text "how" "How" "One sentence",
        exit_code: Number "exitCode" "Exit Code" "-1 where it is not known",
        signal: Number "signal" "Signal" "Signal that killed it; 0 if none did, -1 if it is not known",
        oom_killed: Flag "oomKilled" "OOM Killed" "The kernel killed the process because memory ran out; with signal -1: this or another process of its cgroup, in the last seconds",
        last_sign: Moment "lastSign" "Last Sign of Life" "Recorded in the segment",
    }
    Recorder 122 "plimsoll.Recorder" "Recorder" INTERVAL
        ["Plimsoll"]
        "The cost of the recording itself"
    {
        cpu: Nanoseconds "cpu" "CPU" "Processor time of the recorder so far, all its recordings together",
        reading: Nanoseconds "reading" "Reading" "How long the sources of this instant were read",
        mmap_lock: Nanoseconds "mmapLock" "Under the mmap lock" "Part of that time: reading smaps, which holds the process's mmap lock for parts of it",
        missed: Count "missed" "Missed" "Instants that were left out since the last one, because reading took too long",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unlike_each_other_and_every_kind_has_its_type() {
        for event in EVENTS {
            let mut names: Vec<&str> = event.fields.iter().map(|field| field.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), event.fields.len(), "{}", event.name);
            for field in event.fields {
                assert!(TABLE.types().any(|one| one.id == field.kind.of), "{} {}", event.name, field.name);
            }
        }
    }
}
