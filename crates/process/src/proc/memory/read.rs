//! Reads /proc/PID/mem and /proc/PID/pagemap. Both are opened once: the descriptors keep referring to the same address
//! space, even if the process ends or execs and its PID is reused (proc(5)).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{Memory, PAGE, PRESENT};
use crate::proc::{Target, zero_pages};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

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
        // The shared zero page is present and not in Rss: like a page that isn't there, it reads as zeros.
        let within =
            AddressRange::sized(Avma(first.saturating_mul(PAGE)), Bytes((into.len() as u64).saturating_mul(PAGE)));
        if into.iter().any(|word| *word & PRESENT != 0)
            && let Ok(zero) = zero_pages(pagemap, within)
        {
            for page in zero.iter().flat_map(|run| run.start.0 / PAGE..run.end.0 / PAGE) {
                let index = page.checked_sub(first).and_then(|index| usize::try_from(index).ok());
                if let Some(word) = index.and_then(|index| into.get_mut(index)) {
                    *word = 0;
                }
            }
        }
        true
    }
}
