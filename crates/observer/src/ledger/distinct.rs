//! Memory that the process maps several times, and memory that it shares with other processes. smaps counts a page once
//! per mapping. So a process's sum may exceed the memory that it really has: JDK 17's ZGC maps its heap three times.
//!
//!   RSS = distinct + repeated       repeated: pages that an earlier mapping of the process has too
//!   PSS                             each page divided by the number of its mappings in all processes (proc(5))
//!
//! Two mappings of the same part of a file have the same pages wherever both are resident. So the page map's `present`
//! bits are enough; frame numbers, which need root, are not needed. Without a page map nothing counts as repeated. In
//! private mappings the anonymous pages are left out: these are copies that the program has written.

use super::Piece;
use plimsoll_facts::snapshot::{Snapshot, Vma};
use plimsoll_facts::units::{AddressRange, Bytes};

/// Groups of resident file mappings (by index) that map a common part of a file. Descriptors without a file (rings of
/// io_uring and perf) share one inode, but each has memory of its own.
fn groups(vmas: &[Vma]) -> Vec<Vec<usize>> {
    let is_file = |vma: &Vma| vma.inode != 0 && !vma.name.starts_with("anon_inode:");
    let is_candidate = |vma: &Vma| is_file(vma) && vma.rss > if vma.shared { Bytes(0) } else { vma.anonymous };
    let mut shared: Vec<usize> = (0..vmas.len()).filter(|index| is_candidate(&vmas[*index])).collect();
    shared.sort_by_key(|index| (vmas[*index].device, vmas[*index].inode, vmas[*index].offset, *index));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut end = 0;
    for index in shared {
        let vma = &vmas[index];
        let is_same = |last: &usize| (vmas[*last].device, vmas[*last].inode) == (vma.device, vma.inode);
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(is_same) && vma.offset < end => group.push(index),
            _ => {
                groups.push(vec![index]);
                end = 0;
            }
        }
        end = end.max(vma.offset.saturating_add(vma.range.length().0));
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// Mappings for which the page map is needed to find repeated pages.
pub fn mapped_again(snapshot: &Snapshot) -> impl Iterator<Item = &Vma> {
    groups(&snapshot.vmas).into_iter().flatten().map(|index| &snapshot.vmas[index])
}

/// For each piece (in address order), its resident bytes that another mapping of the process also has and that are
/// counted there.
pub(crate) fn repeated(snapshot: &Snapshot, pieces: &[Piece]) -> Vec<Bytes> {
    let mut repeated = vec![Bytes(0); pieces.len()];
    let Some(seen) = &snapshot.residency else { return repeated };
    for group in groups(&snapshot.vmas) {
        // Offset in the file, length, index of the piece.
        let mut runs: Vec<(u64, u64, usize)> = Vec::new();
        for vma in group {
            let first = pieces.partition_point(|piece| piece.vma < vma);
            let of_vma = pieces[first..].iter().enumerate().take_while(|(_, piece)| piece.vma == vma);
            for (index, piece) in of_vma.filter(|(_, piece)| seen.covers(piece.range)) {
                let mapping = &snapshot.vmas[vma];
                let offset = |run: AddressRange| mapping.offset.saturating_add(run.start.0 - mapping.range.start.0);
                runs.extend(seen.shared_runs_in(piece.range).map(|run| (offset(run), run.length().0, first + index)));
            }
        }
        runs.sort_unstable();
        // The runs are sorted by start. So between this run's start and the end of the earlier runs, those cover
        // everything.
        let mut end = 0;
        for (start, length, piece) in runs {
            let until = start.saturating_add(length);
            repeated[piece] += Bytes(until.min(end).saturating_sub(start));
            end = end.max(until);
        }
    }
    for (bytes, piece) in repeated.iter_mut().zip(pieces) {
        // The page map and smaps are two readings.
        *bytes = (*bytes).min(piece.resident);
    }
    repeated
}

/// The piece's share of its mapping's PSS. If the text has no PSS (kernels before 2.6.25), the whole mapping.
pub(crate) fn proportional(vma: &Vma, piece: &Piece) -> Bytes {
    vma.pss.min(vma.rss).scaled(piece.resident.0, vma.rss.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Ledger, LineId};
    use crate::random::Random;
    use plimsoll_facts::snapshot::Backing;
    use plimsoll_facts::snapshot::Residency;
    use plimsoll_facts::units::Avma;

    const PAGE: u64 = 4096;

    fn view(at: u64, offset: u64, pages: u64, resident: u64) -> Vma {
        Vma {
            range: AddressRange::sized(Avma(at * PAGE), Bytes(pages * PAGE)),
            readable: true,
            writable: true,
            shared: true,
            offset: offset * PAGE,
            inode: 7,
            backing: Backing::Shmem,
            name: "/memfd:frames".to_owned(),
            rss: Bytes(resident * PAGE),
            pss: Bytes(resident * PAGE),
            ..Vma::default()
        }
    }

    /// A snapshot of these views, with the resident ranges by address.
    fn snapshot(vmas: Vec<Vma>, resident: &[(u64, u64)]) -> Snapshot {
        let pages = |(from, to): &(u64, u64)| AddressRange::new(Avma(from * PAGE), Avma(to * PAGE));
        let residency =
            Residency::new(vmas.iter().map(|vma| vma.range).collect(), resident.iter().map(pages).collect(), Bytes(0));
        Snapshot { vmas, residency: Some(residency), ..Snapshot::default() }
    }

    #[test]
    fn a_page_in_three_views_counts_once() {
        let mut views = vec![view(1000, 0, 100, 60), view(2000, 0, 100, 60), view(3000, 0, 100, 20)];
        let resident = [(1000, 1060), (2000, 2060), (3050, 3070)];
        let ledger = Ledger::of(&snapshot(views.clone(), &resident));
        assert_eq!(ledger.rss, Bytes(140 * PAGE));
        assert_eq!(ledger.distinct, Bytes(70 * PAGE), "0 to 60 in two views, 50 to 70 in the third");
        let line = ledger.line(LineId::SharedMemory).expect("a line");
        assert_eq!((line.resident, line.distinct), (Bytes(140 * PAGE), Bytes(70 * PAGE)));
        // Another file, copies in a private mapping, or another part of the file: no repeated pages.
        (views[1].inode, views[2].shared, views[2].anonymous) = (8, false, Bytes(20 * PAGE));
        assert_eq!(Ledger::of(&snapshot(views.clone(), &resident)).distinct, Bytes(140 * PAGE));
        (views[1].inode, views[1].offset) = (7, 100 * PAGE);
        assert_eq!(Ledger::of(&snapshot(views.clone(), &resident)).distinct, Bytes(140 * PAGE));
        // Of the private mapping, 10 pages are the file's, as in the first view, and 10 are copies.
        views[2].anonymous = Bytes(10 * PAGE);
        let mut written = snapshot(views.clone(), &resident);
        let copies = AddressRange::new(Avma(3060 * PAGE), Avma(3070 * PAGE));
        written.residency = written.residency.map(|seen| seen.with_anonymous(vec![copies]));
        assert_eq!(Ledger::of(&written).distinct, Bytes(130 * PAGE));
        views.iter_mut().for_each(|view| view.name = "anon_inode:[io_uring]".into());
        assert_eq!(Ledger::of(&snapshot(views.clone(), &resident)).distinct, Bytes(140 * PAGE));
        // Without a page map, nothing is subtracted.
        views[1].offset = 0;
        let unread = Snapshot { vmas: views, ..Snapshot::default() };
        assert_eq!(Ledger::of(&unread).distinct, Bytes(140 * PAGE));
    }

    #[test]
    fn distinct_equals_a_set_of_pages_on_random_views() {
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        let mut next = |below| random.below(below);
        let (mut some, mut none) = (0, 0);
        for _ in 0..500 {
            let (mut views, mut resident) = (Vec::new(), Vec::new());
            let mut twin = std::collections::BTreeSet::new();
            for at in 0..1 + next(6) {
                let (offset, pages, inode) = (next(40), 1 + next(40), 1 + next(2));
                let mut rss = 0;
                for page in (0..pages).filter(|_| next(3) > 0).collect::<Vec<_>>() {
                    resident.push((at * 1000 + page, at * 1000 + page + 1));
                    twin.insert((inode, offset + page));
                    rss += 1;
                }
                views.push(Vma { inode, ..view(at * 1000, offset, pages, rss) });
            }
            let ledger = Ledger::of(&snapshot(views, &resident));
            assert_eq!(ledger.distinct, Bytes(twin.len() as u64 * PAGE));
            if ledger.distinct < ledger.rss { some += 1 } else { none += 1 }
        }
        assert!(some > 100 && none > 50, "{some} {none}");
    }
}
