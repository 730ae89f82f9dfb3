//! The functions of allocators that give free memory back, which a running program can be made to call.
//!
//! A debugger would make a stopped thread call the function, which deadlocks if that thread was inside malloc. Here a
//! thread that plimsoll starts calls it. One thread of the program stands still, only while it makes three other calls.

use plimsoll_facts::snapshot::AllocatorKind;

/// An allocator with a function that gives free pages back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    Glibc,
    Jemalloc,
    Tcmalloc,
}

impl Release {
    /// The name that mallctl(3) gets: all arenas (MALLCTL_ARENAS_ALL in jemalloc.h is 4096).
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no process is entered there"))]
    pub const ALL_ARENAS: &str = "arena.4096.purge";

    /// mimalloc's mi_collect works for the calling thread only.
    pub fn of(kind: AllocatorKind) -> Option<Release> {
        match kind {
            AllocatorKind::Glibc => Some(Release::Glibc),
            AllocatorKind::Jemalloc => Some(Release::Jemalloc),
            AllocatorKind::Tcmalloc => Some(Release::Tcmalloc),
            AllocatorKind::Mimalloc | AllocatorKind::Musl | AllocatorKind::Go | AllocatorKind::V8 => None,
        }
    }

    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no process is entered there"))]
    pub fn symbol(self) -> &'static str {
        match self {
            Release::Glibc => "malloc_trim",
            Release::Jemalloc => "mallctl",
            Release::Tcmalloc => "MallocExtension_ReleaseFreeMemory",
        }
    }

    /// The call as a programmer writes it.
    pub fn call(self) -> &'static str {
        match self {
            Release::Glibc => "malloc_trim(0)",
            Release::Jemalloc => r#"mallctl("arena.4096.purge", NULL, NULL, NULL, 0)"#,
            Release::Tcmalloc => "MallocExtension_ReleaseFreeMemory()",
        }
    }

    /// Whether the function reports an error by this answer. The other two have none.
    pub fn error(self, answer: i32) -> Option<std::io::Error> {
        (self == Release::Jemalloc && answer != 0).then(|| std::io::Error::from_raw_os_error(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_names_its_function_and_its_argument() {
        for release in [Release::Glibc, Release::Jemalloc, Release::Tcmalloc] {
            assert!(release.call().starts_with(&format!("{}(", release.symbol())), "{release:?}");
        }
        assert!(Release::Jemalloc.call().contains(&format!("\"{}\"", Release::ALL_ARENAS)));
    }

    #[test]
    fn only_mallctl_reports_an_error() {
        assert!(Release::Jemalloc.error(2).is_some() && Release::Jemalloc.error(0).is_none());
        assert!(Release::Glibc.error(1).is_none() && Release::Tcmalloc.error(77).is_none());
    }
}
