//! The events of a recording: one table. Metadata, encoding, docs/jfr-events.md and the tests come from it.
//!
//! The `jdk.` events have the fields that HotSpot 25 and Native Image write, so that their readers and views work; ours
//! have what those lack. Each event begins with `startTime`, which the instant gives.

use std::fmt::Write;

use super::Stack;
use super::integers;
use super::recording::Batch;
use super::types::{
    BOOLEAN, DATA_AMOUNT, FLOAT, INT, LONG, MEMORY_ADDRESS, NAME, NMT_TYPE, PERCENTAGE, STACK_TRACE, STRING, THREAD,
    TIMESPAN, TIMESTAMP, UNSIGNED,
};
use plimsoll_observer::units::{Avma, Bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: u64,
    pub name: &'static str,
    pub label: &'static str,
    pub category: &'static [&'static str],
    pub description: &'static str,
    /// Hidden by JDK Mission Control and VisualVM unless asked for.
    pub experimental: bool,
    pub when: When,
    /// `startTime` included.
    pub fields: &'static [Field],
}

/// How often an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In each instant.
    Interval,
    /// When smaps was read: each interval, or as often as 0.4 percent of a core allows.
    Lines,
    /// In full instants.
    Full,
    /// When it has changed, in full instants, and at the beginning of each chunk.
    Moved,
    /// At the beginning of each chunk.
    Chunk,
    /// When it has changed, and at the beginning of each chunk.
    Change,
    /// The same, and in full instants when only its bytes have.
    Judged,
    /// Once, at the end.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub label: &'static str,
    pub description: &'static str,
    pub kind: Kind,
}

/// What a field holds: its type, and the annotations by which readers know its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// For people: docs/jfr-events.md.
    pub words: &'static str,
    pub of: u64,
    pub pooled: bool,
    pub annotations: &'static [(u64, Option<&'static str>)],
}

/// A kind of field: what the program gives, and how it is written.
pub trait Value {
    const KIND: Kind;
    type Of<'a>;
    fn put(value: &Self::Of<'_>, batch: &mut Batch<'_>);
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident($of:expr, $pooled:literal, $words:literal, [$($annotation:expr),*])
        $given:ty => |$value:ident, $batch:ident| $put:expr;)*) => {
        $($(#[$doc])* pub enum $name {}
        impl Value for $name {
            const KIND: Kind = Kind { words: $words, of: $of, pooled: $pooled, annotations: &[$($annotation),*] };
            type Of<'a> = $given;
            fn put($value: &Self::Of<'_>, $batch: &mut Batch<'_>) {
                $put
            }
        })*
    };
}

kinds! {
    Amount(LONG, false, "bytes", [(UNSIGNED, None), (DATA_AMOUNT, Some("BYTES"))])
        Bytes => |value, batch| integers::long(&mut batch.body, value.0);
    Count(LONG, false, "number", [(UNSIGNED, None)]) u64 => |value, batch| integers::long(&mut batch.body, *value);
    Number(INT, false, "number", []) i32 => |value, batch| integers::long(&mut batch.body, u64::from(*value as u32));
    Address(LONG, false, "address", [(UNSIGNED, None), (MEMORY_ADDRESS, None)])
        Avma => |value, batch| integers::long(&mut batch.body, value.0);
    /// Milliseconds since 1970; `None` is the least long, as the JDK has it.
    Moment(LONG, false, "moment", [(TIMESTAMP, Some("MILLISECONDS_SINCE_EPOCH"))])
        Option<u64> => |value, batch| integers::long(&mut batch.body, value.unwrap_or(i64::MIN as u64));
    Nanoseconds(LONG, false, "nanoseconds", [(TIMESPAN, Some("NANOSECONDS"))])
        u64 => |value, batch| integers::long(&mut batch.body, *value);
    /// 0 to 1.
    Share(FLOAT, false, "share", [(PERCENTAGE, None)])
        f32 => |value, batch| batch.body.extend_from_slice(&value.to_be_bytes());
    Flag(BOOLEAN, false, "boolean", []) bool => |value, batch| batch.body.push(u8::from(*value));
    /// A word that comes again: in the pool of names.
    Name(NAME, true, "name", []) &'a str => |value, batch| batch.constant(NAME, value);
    NmtType(NMT_TYPE, true, "name", []) &'a str => |value, batch| batch.constant(NMT_TYPE, value);
    Text(STRING, false, "text", []) &'a str => |value, batch| integers::string(&mut batch.body, Some(value));
    Trace(STACK_TRACE, true, "stack trace", []) Option<&'a Stack> => |value, batch| batch.stack(*value);
    /// No thread: the events that have one are written for the process.
    NoThread(THREAD, true, "thread", []) () => |_value, batch| batch.body.push(0);
}

const START_TIME: Field = Field {
    name: "startTime",
    label: "Start Time",
    description: "",
    kind: Kind { words: "moment", of: LONG, pooled: false, annotations: &[(TIMESTAMP, Some("TICKS"))] },
};

macro_rules! events {
    ($($event:ident $id:literal $name:literal $label:literal $when:ident [$($category:literal),*] $($experimental:ident)?
        $description:literal
        { $($field:ident: $kind:ident $field_name:literal $field_label:literal $field_description:literal,)* })*) => {
        $(#[doc = $description]
        pub struct $event<'a> { $(pub $field: <$kind as Value>::Of<'a>),* }
        impl $event<'_> {
            pub const EVENT: &'static Event = &Event {
                id: $id,
                name: $name,
                label: $label,
                category: &[$($category),*],
                description: $description,
                experimental: events!(@experimental $($experimental)?),
                when: When::$when,
                fields: &[START_TIME, $(Field {
                    name: $field_name,
                    label: $field_label,
                    description: $field_description,
                    kind: <$kind as Value>::KIND,
                }),*],
            };

            pub fn write(&self, batch: &mut Batch<'_>) {
                batch.begin($id);
                $($kind::put(&self.$field, batch);)*
                batch.end();
            }
        })*
        pub const EVENTS: &[&Event] = &[$($event::EVENT),*];
    };
    (@experimental experimental) => { true };
    (@experimental) => { false };
}

events! {
    NativeMemoryUsage 100 "jdk.NativeMemoryUsage" "Native Memory Usage Per Type" Interval
        ["Java Virtual Machine", "Memory"]
        "Native memory usage for a given memory type: live blocks and mappings of one category"
    {
        category: NmtType "type" "Memory Type" "Category of the native memory",
        reserved: Amount "reserved" "Reserved Memory" "Reserved bytes for this type",
        committed: Amount "committed" "Committed Memory" "Committed bytes for this type",
    }
    NativeMemoryUsageTotal 101 "jdk.NativeMemoryUsageTotal" "Total Native Memory Usage" Interval
        ["Java Virtual Machine", "Memory"]
        "Total native memory usage: the exact sum of the NativeMemoryUsage events of the same moment"
    {
        reserved: Amount "reserved" "Reserved Memory" "Total amount of reserved bytes",
        committed: Amount "committed" "Committed Memory" "Total amount of committed bytes",
    }
    ResidentSetSize 102 "jdk.ResidentSetSize" "Resident Set Size" Interval
        ["Java Virtual Machine", "Memory"]
        "Resident set size of the process"
    {
        size: Amount "size" "Resident Set Size" "Resident set size of the process",
        peak: Amount "peak" "Resident Set Size Peak Value" "Resident set size peak value of the process",
    }
    NativeMemoryUsagePeak 103 "jdk.NativeMemoryUsagePeak" "Native Memory Usage Peak Per Type" Full
        ["Java Virtual Machine", "Memory"] experimental
        "Highest native memory usage for a given memory type: peak of its live blocks plus peak of its mappings, which may be of different moments"
    {
        duration: Nanoseconds "duration" "Duration" "",
        event_thread: NoThread "eventThread" "Event Thread" "Thread in which event was committed in",
        stack_trace: Trace "stackTrace" "Stack Trace" "Stack Trace starting from the method the event was committed in",
        category: NmtType "type" "Memory Type" "Category of the native memory",
        peak_reserved: Amount "peakReserved" "Peak Reserved Memory" "Peak reserved bytes for this type",
        peak_committed: Amount "peakCommitted" "Peak Committed Memory" "Peak committed bytes for this type",
        count_at_peak: Count "countAtPeak" "Count At Peak" "Number of live blocks at the peak of their bytes",
    }
    NativeMemoryUsageTotalPeak 104 "jdk.NativeMemoryUsageTotalPeak" "Total Native Memory Usage Peak" Full
        ["Java Virtual Machine", "Memory"] experimental
        "Highest native memory usage of the process: peak of its live blocks plus peak of its mappings, which may be of different moments"
    {
        duration: Nanoseconds "duration" "Duration" "",
        event_thread: NoThread "eventThread" "Event Thread" "Thread in which event was committed in",
        stack_trace: Trace "stackTrace" "Stack Trace" "Stack Trace starting from the method the event was committed in",
        peak_reserved: Amount "peakReserved" "Peak Reserved Memory" "Peak reserved bytes",
        peak_committed: Amount "peakCommitted" "Peak Committed Memory" "Peak committed bytes",
        count_at_peak: Count "countAtPeak" "Count At Peak" "Number of live blocks at the peak of their bytes",
    }
    NativeLibrary 105 "jdk.NativeLibrary" "Native Library" Chunk
        ["Java Virtual Machine", "Runtime"]
        "A dynamic library or other native image mapped by the process"
    {
        name: Text "name" "Name" "",
        base: Address "baseAddress" "Base Address" "Starting address of the module",
        top: Address "topAddress" "Top Address" "Ending address of the module, if available",
    }
    Target 110 "plimsoll.Target" "Target" Chunk
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
        plimsoll: Text "plimsoll" "Plimsoll" "Version of the recorder",
    }
    LedgerLine 111 "plimsoll.LedgerLine" "Ledger Line" Lines
        ["Plimsoll", "Ledger"]
        "Resident memory of one owner (docs/report-lines.md). The lines of one moment sum to the Rss of its plimsoll.Ledger, the line remainder included"
    {
        line: Name "line" "Line" "java-heap, glibc-retained, thread-stacks, …, remainder",
        resident: Amount "resident" "Resident" "Resident bytes",
        reserved: Amount "reserved" "Reserved" "Address space",
        committed: Amount "committed" "Committed" "The part of the address space that may be touched",
        error: Amount "error" "Error" "By how much the resident bytes may be wrong",
        grade: Name "grade" "Grade" "exact, derived or estimated",
    }
    Ledger 112 "plimsoll.Ledger" "Ledger" Lines
        ["Plimsoll", "Ledger"]
        "Resident memory of the process as the kernel counts it, and what no owner claims of it"
    {
        rss: Amount "rss" "Rss" "Sum of the process's mappings in one reading of smaps",
        remainder: Amount "remainder" "Remainder" "What no line explains",
        swap: Amount "swap" "Swap" "Swapped out",
        mappings: Count "mappings" "Mappings" "Kernel mappings",
        threads: Count "threads" "Threads" "",
        provenance_age: Nanoseconds "provenanceAge" "Age of Provenance" "How long ago the virtual machine and the allocator were last asked who owns what; the resident bytes are of this moment",
    }
    Category 113 "plimsoll.Category" "Category" Moved
        ["Plimsoll", "Books"]
        "Blocks and mappings of one category, as the tracker books them. At any moment the last event of each category holds: these sum to the plimsoll.Total, but for the peaks"
    {
        category: Name "category" "Category" "",
        origin: Name "origin" "Origin" "Where the name comes from: own, rule, module, program or vm",
        live: Amount "live" "Live" "Usable bytes of live blocks",
        live_count: Count "liveCount" "Live Count" "Live blocks",
        requested: Amount "requested" "Requested" "What the program asked for of the live bytes",
        peak: Amount "peak" "Peak" "Highest live bytes",
        count_at_peak: Count "countAtPeak" "Count At Peak" "Live blocks at the peak",
        cumulative: Amount "cumulative" "Cumulative" "Bytes ever allocated",
        cumulative_count: Count "cumulativeCount" "Cumulative Count" "Blocks ever allocated",
        reserved: Amount "reserved" "Reserved" "Address space mapped",
        committed: Amount "committed" "Committed" "The part of the address space that may be touched",
    }
    Total 114 "plimsoll.Total" "Total" Interval
        ["Plimsoll", "Books"]
        "Blocks and mappings of the process, as the tracker books them"
    {
        live: Amount "live" "Live" "Usable bytes of live blocks",
        live_count: Count "liveCount" "Live Count" "Live blocks",
        requested: Amount "requested" "Requested" "What the program asked for of the live bytes",
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
    Site 115 "plimsoll.Site" "Allocation Site" Full
        ["Plimsoll", "Books"]
        "Blocks of one call stack. The sites of one moment sum to its plimsoll.Total, but for the peaks; those beyond the biggest are one event without a stack"
    {
        stack_trace: Trace "stackTrace" "Stack Trace" "Where the blocks were asked for, innermost frame first",
        category: Name "category" "Category" "",
        live: Amount "live" "Live" "Usable bytes of live blocks",
        live_count: Count "liveCount" "Live Count" "Live blocks",
        requested: Amount "requested" "Requested" "What the program asked for of the live bytes",
        peak: Amount "peak" "Peak" "Highest live bytes",
        count_at_peak: Count "countAtPeak" "Count At Peak" "Live blocks at the peak",
        cumulative: Amount "cumulative" "Cumulative" "Bytes ever allocated",
        cumulative_count: Count "cumulativeCount" "Cumulative Count" "Blocks ever allocated",
        error: Amount "error" "Error" "By how much the live bytes may be wrong: 0 where every block is counted",
    }
    Arena 116 "plimsoll.Arena" "Arena" Full
        ["Plimsoll", "Allocator"]
        "One arena of glibc's malloc"
    {
        address: Address "address" "Address" "Of its malloc_state",
        kind: Name "kind" "Kind" "main or thread",
        reserved: Amount "reserved" "Reserved" "Address space of its heaps",
        live: Amount "live" "Live" "Chunks in the hands of the program, with their headers",
        live_count: Count "liveCount" "Live Count" "",
        retained: Amount "retained" "Retained" "Free chunks: bins, fast bins, tcache and top",
        live_resident: Amount "liveResident" "Live, Resident" "Resident bytes of live chunks and of what they share pages with",
        retained_resident: Amount "retainedResident" "Retained, Resident" "Resident bytes of free chunks",
        trimmable: Amount "trimmable" "Trimmable" "Whole resident pages that are free: what malloc_trim would give back",
        threads: Count "threads" "Threads" "Attached threads",
    }
    Cgroup 117 "plimsoll.Cgroup" "Memory Cgroup" Interval
        ["Plimsoll", "Limit"]
        "The memory cgroup whose limit would kill the process first: limit and what is charged to it"
    {
        path: Name "path" "Path" "Group that sets the limit; the process's own where none does",
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
        oom_kills: Count "oomKills" "OOM Kills" "Processes of the group that were killed for its limit",
    }
    Pressure 118 "plimsoll.MemoryPressure" "Memory Pressure" Interval
        ["Plimsoll", "Limit"]
        "How much of the time tasks waited for memory (PSI)"
    {
        scope: Name "scope" "Scope" "cgroup or system",
        some: Share "some" "Some" "Share of the last 10 s in which a task waited",
        full: Share "full" "Full" "Share of the last 10 s in which all tasks waited",
        some_total: Nanoseconds "someTotal" "Some, Total" "Since the group or the system started",
        full_total: Nanoseconds "fullTotal" "Full, Total" "Since the group or the system started",
    }
    Verdict 119 "plimsoll.Verdict" "Verdict" Judged
        ["Plimsoll"]
        "What is wrong and what to do about it (docs/verdicts/)"
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
    Gap 120 "plimsoll.Gap" "Gap" Change
        ["Plimsoll"]
        "What could not be read, which figures suffer, and what to type to close it"
    {
        source: Name "source" "Source" "",
        reason: Text "reason" "Reason" "",
        effect: Text "effect" "Effect" "",
        remedy: Text "remedy" "Remedy" "",
    }
    TargetEnd 121 "plimsoll.TargetEnd" "Target End" End
        ["Plimsoll"]
        "The end of the process, where the recording saw it"
    {
        state: Name "state" "State" "exited or killed; ended where only its parent knows",
        how: Text "how" "How" "One sentence",
        exit_code: Number "exitCode" "Exit Code" "-1 where it is not known",
        signal: Number "signal" "Signal" "That killed it; 0 where none did, -1 where it is not known",
        oom_killed: Flag "oomKilled" "OOM Killed" "The kernel killed a process of the cgroup for its limit in the last seconds",
        last_sign: Moment "lastSign" "Last Sign of Life" "That the segment tells of",
    }
    Recorder 122 "plimsoll.Recorder" "Recorder" Interval
        ["Plimsoll"]
        "What the recording itself costs"
    {
        cpu: Nanoseconds "cpu" "CPU" "Processor time of the recorder so far, all its recordings together",
        reading: Nanoseconds "reading" "Reading" "How long the sources of this instant were read",
        mmap_lock: Nanoseconds "mmapLock" "Under the mmap lock" "Of it the reading of smaps, which holds the process's mmap lock for parts of the time",
        missed: Count "missed" "Missed" "Instants that were left out since the last one, because reading took too long",
    }
}

/// docs/jfr-events.md but for its introduction.
pub fn document() -> String {
    let mut text = String::new();
    for event in EVENTS {
        let experimental = if event.experimental { " (experimental)" } else { "" };
        let when = match event.when {
            When::Interval => "each interval",
            When::Lines => "each interval, or as often as 0.4 percent of a core allows to read mappings and pages",
            When::Full => "in full instants",
            When::Moved => "when it has changed, and in full instants",
            When::Chunk => "at the beginning of each chunk",
            When::Change => "at the beginning of each chunk, and when it has changed",
            When::Judged => {
                "at the beginning of each chunk, and when it has changed; in full instants also when its bytes have, by a sixteenth"
            }
            When::End => "once, at the end",
        };
        let _ = write!(
            text,
            "\n## {}{experimental}\n\n{}. {}.\nWritten {when}. Category: {}.\n\n| field | kind | label | meaning |\n| --- | --- | --- | --- |\n",
            event.name,
            event.label,
            event.description,
            event.category.join(", ")
        );
        for field in event.fields {
            let _ =
                writeln!(text, "| `{}` | {} | {} | {} |", field.name, field.kind.words, field.label, field.description);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jfr::types::TYPES;

    #[test]
    fn ids_and_names_are_unlike_each_other_and_every_kind_has_its_type() {
        let mut ids: Vec<u64> = EVENTS.iter().map(|event| event.id).chain(TYPES.iter().map(|one| one.id)).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
        // 0 and 1 are metadata and checkpoint; 76 is what the 'L' of a chunk's magic is when a page of reserve is walked
        // as events (`recording`): no reader may take it for one of ours.
        assert!(!ids.contains(&0) && !ids.contains(&1) && !ids.contains(&u64::from(b'L')));
        for event in EVENTS {
            let mut names: Vec<&str> = event.fields.iter().map(|field| field.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), event.fields.len(), "{}", event.name);
            for field in event.fields {
                assert!(TYPES.iter().any(|one| one.id == field.kind.of), "{} {}", event.name, field.name);
            }
        }
    }
}
