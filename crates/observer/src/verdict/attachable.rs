//! Whether `plimsoll attach` loads the tracker into the process, and what that costs: docs/attach.md.

use super::case::{Barrier, Case};
use plimsoll_facts::snapshot::{AllocatorKind, LoadedAllocator};

impl Case<'_> {
    /// Whether `plimsoll attach` works on a program without a VM, as far as the snapshot shows.
    pub(crate) fn can_be_attached_to(self) -> bool {
        let allocators = &self.snapshot.allocators;
        let is_library = |known: &LoadedAllocator| Some(&known.path) != self.snapshot.process.executable.as_ref();
        // A program that imports an allocator's own functions is listed too, after the library.
        let serves = allocators.iter().find(|known| known.serves_malloc);
        let has_libc = allocators.iter().any(|known| known.kind == AllocatorKind::Glibc && is_library(known));
        // `attach` needs no LD_PRELOAD. But the user could change the library that a program with more rights loads.
        let is_shut = self.barrier().is_some_and(|barrier| barrier != Barrier::Secure);
        let process = &self.snapshot.process;
        let is_closed = is_shut || process.is_strict || process.exceeds_user || self.snapshot.exports_malloc;
        let is_closed = is_closed || self.refuses_agents();
        cfg!(target_arch = "x86_64") && has_libc && serves.is_some_and(is_library) && !is_closed
    }

    /// A VM that was started with -XX:-EnableDynamicAgentLoading refuses the tracker, and `attach` doesn't go past it.
    pub(crate) fn refuses_agents(self) -> bool {
        self.is_jvm() && self.allows_agents() == Some(false)
    }

    /// Whether the VM accepts agents that are loaded later, by its flag in force or else its options. None: neither
    /// shows it.
    fn allows_agents(self) -> Option<bool> {
        let given = |option: &str| match option {
            "-XX:+EnableDynamicAgentLoading" => Some(true),
            "-XX:-EnableDynamicAgentLoading" => Some(false),
            _ => None,
        };
        let answered = self.flag("EnableDynamicAgentLoading").map(|value| value == "true");
        answered.or_else(|| self.vm_options().rev().find_map(given))
    }

    /// What an attach leaves in the process, and prints there (JEP 451).
    pub(crate) fn cost_of_attach(self) -> String {
        if self.lacks_books() {
            return String::new();
        }
        let stays = "plimsoll detach removes the hooks; 1 MiB or more of the library and its tables stays until the process ends";
        let is_new = self.vm().is_some_and(|vm| vm.jdk().is_none_or(|jdk| jdk >= 21));
        let warns = is_new && !self.snapshot.is_detached && self.allows_agents() != Some(true);
        let warning = "; the JVM prints a warning on its standard error that an agent was loaded";
        format!("{stays}{}", if warns { warning } else { "" })
    }
}
