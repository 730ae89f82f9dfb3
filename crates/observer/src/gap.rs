//! A fact that could not be had: which source, why, which lines suffer, what to type to get it. Never an exit.

/// Where a fact comes from. The names are the ones that the JSON and the documentation use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    Proc,
    Pagemap,
    Cgroup,
    Segment,
    HotSpot,
    Glibc,
    NativeImage,
    Allocator,
    Jfr,
    Symbols,
}

impl Source {
    pub const fn name(self) -> &'static str {
        match self {
            Source::Proc => "proc",
            Source::Pagemap => "pagemap",
            Source::Cgroup => "cgroup",
            Source::Segment => "segment",
            Source::HotSpot => "hotspot",
            Source::Glibc => "glibc",
            Source::NativeImage => "native-image",
            Source::Allocator => "allocator",
            Source::Jfr => "jfr",
            Source::Symbols => "symbols",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub source: Source,
    /// What could not be read and why, in one sentence without a full stop.
    pub reason: String,
    /// Which lines suffer, and how.
    pub effect: String,
    /// What to type to close it; empty where nothing would.
    pub remedy: String,
}

impl Gap {
    pub fn new(source: Source, reason: impl Into<String>, effect: impl Into<String>) -> Gap {
        Gap { source, reason: reason.into(), effect: effect.into(), remedy: String::new() }
    }

    pub fn remedy(mut self, remedy: impl Into<String>) -> Gap {
        self.remedy = remedy.into();
        self
    }
}
