//! Settings of the host: huge pages and the number of mappings.

use super::*;

#[test]
fn huge_pages_are_a_warning_in_stacks_and_a_note_elsewhere() {
    let mut snapshot = with_mappings(&[Bytes::mib(2); 40]);
    for vma in &mut snapshot.vmas {
        vma.anon_huge = Bytes::mib(2);
    }
    assert_eq!(ids(&snapshot), ["healthy", "huge-pages"]);
    for (tid, vma) in (1..).zip(&snapshot.vmas) {
        snapshot.threads.push(Thread { tid, namespaced_tid: tid, stack: Some(vma.range), ..Thread::default() });
    }
    let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
    assert_eq!((verdicts[0].id, verdicts[0].severity), (VerdictId::HugePages, Severity::Warning));
    // The same stacks in a process of 8 GiB.
    let range = AddressRange::sized(Avma(1 << 40), Bytes::mib(8192));
    let rss = range.length();
    snapshot.vmas.push(Vma { range, readable: true, writable: true, rss, backing: Backing::Shmem, ..Vma::default() });
    assert_eq!(verdict_of(&snapshot, VerdictId::HugePages).severity, Severity::Note);
}

/// pthread_attr_setstack, or guards by MADV_GUARD: the kernel has one mapping for several stacks and the memory beside
/// them.
#[test]
fn huge_pages_of_a_mapping_count_once_for_all_its_stacks() {
    let mib = Bytes::mib;
    let of = |rss: Bytes, huge: Bytes| {
        let mut snapshot = with_mappings(&[mib(40)]);
        let vma = &mut snapshot.vmas[0];
        (vma.backing, vma.rss, vma.anon_huge) = (Backing::Anonymous, rss, huge);
        let start = vma.range.start;
        for tid in 1..=4_u32 {
            let stack = Some(AddressRange::sized(Avma(start.0 + (u64::from(tid) - 1) * (10 << 20)), mib(10)));
            snapshot.threads.push(Thread { tid, namespaced_tid: tid, stack, ..Thread::default() });
        }
        snapshot
    };
    let whole = verdict_of(&of(mib(40), mib(10)), VerdictId::HugePages);
    assert_eq!((whole.bytes, whole.severity), (mib(10), Severity::Warning));
    // 40 MiB of stacks and 36 of another block: the block may hold all huge pages but 2 MiB.
    let mut beside = of(mib(40), mib(38));
    beside.vmas[0].range = AddressRange::sized(beside.vmas[0].range.start, mib(76));
    beside.vmas[0].rss = mib(76);
    assert!(!ids(&beside).contains(&"huge-pages"), "{:?}", ids(&beside));
    beside.vmas[0].anon_huge = mib(50);
    assert_eq!(verdict_of(&beside, VerdictId::HugePages).bytes, mib(14));
}

#[test]
fn mappings_near_the_kernels_limit_count_deleted_files() {
    let mut snapshot = with_mappings(&vec![Bytes(4096); 800]);
    snapshot.host.max_map_count = Some(1000);
    for vma in snapshot.vmas.iter_mut().take(500) {
        (vma.backing, vma.inode, vma.deleted) = (Backing::File, 7, true);
    }
    let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
    assert_eq!(verdicts[0].id, VerdictId::MapCount);
    assert!(verdicts[0].evidence.iter().any(|line| line.starts_with("of deleted files: 500;")), "{verdicts:?}");
    // A memory file, which the kernel calls deleted too, has never had another name.
    snapshot.vmas[0].backing = Backing::Shmem;
    let verdict = verdict_of(&snapshot, VerdictId::MapCount);
    assert!(verdict.evidence.iter().any(|line| line.starts_with("of deleted files: 499;")), "{verdict:?}");
    assert_eq!(verdict.remedies[1].what, "unmap files that the program doesn't read any more");
    let mut shared = with_mappings(&vec![Bytes(4096); 800]);
    shared.host.max_map_count = Some(1000);
    assert_eq!(verdict_of(&shared, VerdictId::MapCount).remedies[1].what, "make fewer, larger mappings");
    snapshot.host.max_map_count = Some(1200);
    assert!(!ids(&snapshot).contains(&"map-count"), "800 of 1,200 mappings");
}

/// Each setting of the host has a next step: a command, or the sentence that a new start suffices.
#[test]
fn a_note_on_huge_pages_says_what_to_do() {
    use plimsoll_facts::snapshot::Thp;
    for (thp, number, is_measured, says) in [
        (Thp::Always, 2, true, "any program gets them"),
        (Thp::Madvise, 1, true, "only mappings for which a program requests them"),
        (Thp::Never, 0, false, "a new start of the program gets none"),
        (Thp::Unknown, 1, true, "unknown"),
    ] {
        let mut snapshot = with_mappings(&[Bytes::mib(2); 40]);
        snapshot.host.thp = thp;
        snapshot.vmas.iter_mut().for_each(|vma| vma.anon_huge = Bytes::mib(2));
        let verdict = verdict_of(&snapshot, VerdictId::HugePages);
        let has = verdict.remedies.iter().any(|remedy| remedy.how.starts_with("plimsoll try --with thp=never -- "));
        assert_eq!((verdict.remedies.len(), has), (number, is_measured), "{verdict:?}");
        assert!(verdict.evidence[0].contains(says), "{verdict:?}");
        let is_from_before = verdict.evidence.iter().any(|text| text.starts_with("no mapping has requested them"));
        assert_eq!(is_from_before, thp == Thp::Madvise, "{verdict:?}");
        snapshot.vmas[0].flags.huge_advised = true;
        let requested = verdict_of(&snapshot, VerdictId::HugePages);
        let says_where = requested.remedies.iter().any(|remedy| remedy.trade_off.contains("only there can they be"));
        assert_eq!(says_where, thp == Thp::Madvise, "{requested:?}");
    }
}

#[test]
fn madvise_is_not_proposed_if_the_host_uses_it() {
    for (thp, is_proposed) in
        [(plimsoll_facts::snapshot::Thp::Always, true), (plimsoll_facts::snapshot::Thp::Madvise, false)]
    {
        let mut snapshot = with_mappings(&[Bytes::mib(2); 40]);
        snapshot.host.thp = thp;
        for vma in &mut snapshot.vmas {
            vma.anon_huge = Bytes::mib(2);
        }
        let verdict = verdict_of(&snapshot, VerdictId::HugePages);
        assert_eq!(verdict.remedies.iter().any(|remedy| remedy.how.contains("echo madvise")), is_proposed);
    }
}
