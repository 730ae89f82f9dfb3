//! Reads /proc/PID/mem and /proc/PID/pagemap. Both are opened once: the descriptors keep referring to the same address
//! space, even if the process ends or execs and its PID is reused (proc(5)).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::Memory;
use crate::source::proc::Target;
use crate::units::Avma;

pub struct Live {
    memory: File,
    pagemap: Option<File>,
}

impl Live {
    /// Fails with EACCES or EPERM if ptrace access is not granted (ptrace(2), "access mode checking").
    pub fn open(target: &Target) -> io::Result<Live> {
        Ok(Live { memory: target.file("mem")?, pagemap: target.file("pagemap").ok() })
    }
}

impl Memory for Live {
    fn read(&self, at: Avma, into: &mut [u8]) -> bool {
        // The kernel treats the offset as signed and fails for the upper half, where user space has nothing.
        self.memory.read_exact_at(into, at.0).is_ok()
    }

    fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
        let Some(pagemap) = &self.pagemap else { return false };
        // Words that aren't filled stay 0: no page.
        let mut bytes = vec![0; into.len() * 8];
        let Some(mut offset) = first.checked_mul(8) else { return false };
        let mut filled = 0;
        while filled < bytes.len() {
            match pagemap.read_at(&mut bytes[filled..], offset) {
                // Past the end of the address space; overwritten pointers lead there.
                Ok(0) => break,
                Ok(count) => {
                    filled += count;
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        for (word, bytes) in into.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        true
    }
}
