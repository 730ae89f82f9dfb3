//! The columns: what is measured of each run. Text and JSON take their names from this table, and docs/cli.md explains
//! them.

/// How a figure is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Milliseconds,
    Seconds,
    PerSecond,
}

/// Which figures of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

macro_rules! metrics {
    ($($variant:ident $id:literal $heading:literal $unit:ident $better:ident $resolution:literal $meaning:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Metric { $(#[doc = $meaning] $variant),* }

        impl Metric {
            pub const ALL: [Metric; [$($id),*].len()] = [$(Metric::$variant),*];

            /// The key in JSON. Scripts depend on it.
            pub const fn id(self) -> &'static str {
                match self { $(Metric::$variant => $id),* }
            }

            pub const fn heading(self) -> &'static str {
                match self { $(Metric::$variant => $heading),* }
            }

            pub const fn unit(self) -> Unit {
                match self { $(Metric::$variant => Unit::$unit),* }
            }

            pub const fn better(self) -> Better {
                match self { $(Metric::$variant => Better::$better),* }
            }

            /// The smallest difference that the measurement can resolve, in the unit. No interval is narrower.
            pub(crate) const fn resolution(self) -> f64 {
                match self { $(Metric::$variant => $resolution),* }
            }
        }
    };
}

metrics! {
    Peak "peak_bytes" "RSS peak" Bytes Lower 65536.0
        "largest RSS: the kernel's own peak (VmHWM) of one process; of several the largest sum of the samples"
    Steady "steady_bytes" "steady" Bytes Lower 65536.0
        "RSS when the load ends, or at the end of --for"
    Idle "idle_bytes" "after idling" Bytes Lower 65536.0
        "RSS after --idle seconds without load"
    Retained "retained_bytes" "retained" Bytes Lower 65536.0
        "free inside the allocator, but resident, when the load ends"
    // The runner looks every 50 ms, and a look takes a few ms: it sees that a program is ready up to one look late. A
    // difference of two programs has this error twice.
    Ready "ready_seconds" "ready after" Seconds Lower 0.1
        "time from the start until the program was ready"
    Took "took_seconds" "took" Seconds Lower 0.01
        "time from the start to the end of a program that ends by itself"
    Mean "mean_milliseconds" "mean" Milliseconds Lower 0.001
        "mean latency of the built-in load"
    P50 "p50_milliseconds" "p50" Milliseconds Lower 0.001
        "median latency that the load generator reported"
    P90 "p90_milliseconds" "p90" Milliseconds Lower 0.001
        "90th percentile"
    P99 "p99_milliseconds" "p99" Milliseconds Lower 0.001
        "99th percentile"
    Throughput "throughput_per_second" "requests/s" PerSecond Higher 0.01
        "requests per second that the load generator reported"
    Cpu "cpu_seconds" "CPU" Seconds Lower 0.02
        "processor time of the program and its children up to the end of the load"
}

/// The metrics that count memory, in the order in which one of them decides which row is best.
pub const MEMORY: [Metric; 3] = [Metric::Idle, Metric::Steady, Metric::Peak];
