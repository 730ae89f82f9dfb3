//! Which pages of a process are resident, by one scan of its page tables: the Rss of each mapping without smaps.

use std::fs::File;
use std::io;
use std::time::Duration;

use super::host::limits;
use crate::foreign::{Stopwatch, Target};
use crate::proc::scan::{self, Limits};
use crate::proc::smaps::{carried, parse_maps};
use crate::proc::status::parse_tmpfs_devices;
use plimsoll_facts::snapshot::{Backing, Residency, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

/// One scan of the page tables, for mappings that are updated by it: the Rss and the anonymous memory that smaps would
/// report, and which pages these are. If a mapping is unchanged, its other fields are those of the last smaps.
pub struct ScannedPages {
    /// The earlier mappings, if they were read again.
    pub before: Option<Vec<Vma>>,
    pub residency: Residency,
    /// Without the time given to other threads.
    pub took: Duration,
}

/// State that a series of such readings keeps about the mappings.
#[derive(Default)]
pub struct KnownMappings {
    /// The lines of status that count address space by kind. Any mmap, munmap, mprotect or brk that changes the amount
    /// of a kind changes these lines. Empty: it is unknown whether the mappings are those of maps.
    accounts: Vec<u8>,
}

/// Fails if the kernel has no such scan, if it refuses maps, or if a limit was reached ([`super::is_too_much`]). maps
/// is read again only if the accounts have changed, or if a page is resident outside the known mappings. The reason is
/// that printing maps takes the kernel half of the time of a reading.
pub fn read_pages(target: &Target, known: &mut KnownMappings, vmas: &mut Vec<Vma>) -> io::Result<ScannedPages> {
    let began = Stopwatch::start();
    let limits = limits(target.deadline());
    let pagemap = target.file("pagemap")?;
    let accounts = accounts(&target.read("status")?);
    let stays = !accounts.is_empty() && known.accounts == accounts;
    known.accounts = Vec::new();
    if stays && let (residency, true) = scanned(&pagemap, vmas, limits)? {
        known.accounts = accounts;
        return Ok(ScannedPages { before: None, residency, took: began.elapsed() });
    }
    let text = target.read("maps")?;
    // On an error, smaps is read instead, which has a gap for this.
    let tmpfs = parse_tmpfs_devices(&target.read("mountinfo")?);
    let parsed = parse_maps(&text, &tmpfs);
    if parsed.bad_lines > 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut now = carried(parsed.vmas, vmas);
    let (mut residency, has_all) = scanned(&pagemap, &mut now, limits)?;
    if !has_all {
        // Memory was mapped between the two readings; the next one will have it. If this happens twice, the process
        // maps continuously.
        residency = scanned(&pagemap, &mut now, limits)?.0;
    }
    known.accounts = accounts;
    Ok(ScannedPages { before: Some(std::mem::replace(vmas, now)), residency, took: began.elapsed() })
}

/// The user half of the address space: the vsyscall page isn't the process's.
const WHOLE: AddressRange = AddressRange { start: Avma(0), end: Avma(1 << 63) };

/// Sets Rss and anonymous memory of each mapping. False: pages outside these mappings are resident.
fn scanned(pagemap: &File, vmas: &mut [Vma], limits: Limits) -> io::Result<(Residency, bool)> {
    if vmas.iter().any(|vma| vma.range.end.0 > scan::END && vma.range.end <= WHOLE.end) {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    let pages = scan::resident(pagemap, vmas.iter().map(|vma| vma.range.end), limits)?;
    let residency = Residency::new(vec![WHOLE], pages.all, Bytes(0)).with_anonymous(pages.anonymous);
    let mut inside = Bytes(0);
    for vma in vmas {
        let resident = residency.resident(vma.range);
        inside += resident;
        // Pages of hugetlbfs don't count in Rss (fs/proc/task_mmu.c, `smaps_hugetlb_range`).
        (vma.rss, vma.anonymous) = match vma.backing {
            Backing::Hugetlbfs => (Bytes(0), Bytes(0)),
            _ => (resident, residency.anonymous(vma.range)),
        };
    }
    let has_all = inside == residency.resident(WHOLE);
    Ok((residency, has_all))
}

fn accounts(status: &[u8]) -> Vec<u8> {
    const KEYS: [&[u8]; 7] = [b"VmSize:", b"VmLck:", b"VmData:", b"VmStk:", b"VmExe:", b"VmLib:", b"Threads:"];
    let lines = status.split(|byte| *byte == b'\n').filter(|line| KEYS.iter().any(|key| line.starts_with(key)));
    lines.collect::<Vec<_>>().join(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::super::read_smaps;
    use super::*;
    use crate::foreign::{Deadline, LOOK};

    /// A sleeping child process: nothing in it changes.
    struct Still(std::process::Child);
    impl Drop for Still {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_scan_has_each_mappings_rss_as_smaps_has_it() {
        let mut command = std::process::Command::new("sleep");
        let child = Still(command.arg("600").spawn().expect("a child"));
        let target = Target::open(child.0.id(), Deadline::after(20 * LOOK)).expect("it runs");
        let mut gaps = Vec::new();
        // Wait until it sleeps and nothing in it changes any more.
        // Whoever maps libc somewhere changes its PSS here.
        let mut read = || {
            let mut vmas = read_smaps(&target, &mut gaps).vmas;
            vmas.iter_mut().for_each(|vma| vma.pss = Bytes(0));
            vmas
        };
        let mut smaps = read();
        let (mut known, mut scanned) = (KnownMappings::default(), None);
        for _ in 0..600 {
            std::thread::sleep(Duration::from_millis(50));
            let mut vmas = smaps.clone();
            // Pages became anonymous since the last smaps.
            vmas.iter_mut().for_each(|vma| vma.anonymous = Bytes(0));
            if read_pages(&target, &mut known, &mut vmas).is_err() {
                break;
            }
            let again = read();
            let is_asleep = target.read("wchan").is_ok_and(|at| at.windows(5).any(|word| word == b"sleep"));
            let is_still = smaps == again && is_asleep;
            smaps = again;
            scanned = Some(vmas);
            if is_still {
                break;
            }
        }
        let Some(scanned) = scanned else {
            let refused = read_pages(&target, &mut known, &mut smaps).err().expect("then it works");
            // ENOTTY: a kernel before 6.7.
            assert_eq!(refused.raw_os_error(), Some(25), "{refused}");
            return;
        };
        assert!(smaps.len() > 5 && smaps.iter().any(|vma| vma.rss > Bytes(0)));
        assert_eq!(scanned, smaps, "all of each mapping, Rss and anonymous memory by the scan");
    }
}
