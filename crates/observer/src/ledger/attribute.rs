//! Mappings × claims → pieces. Every mapping is cut where claims begin and end, and its Rss is divided so that
//!
//!   Σ resident of a mapping's pieces = the mapping's Rss, to the byte.
//!
//! With one owner, all of it is that owner's: exact. With several owners, the page map divides it: exact if the page
//! map's sum equals smaps. If it doesn't (the zero page, or pages that changed between the two readings), the shares
//! are scaled, and the difference is the error bound. Without a page map, the lengths divide it, with the widest error
//! that length and Rss allow.

use std::collections::HashMap;

use super::ownership::{Claims, FREED_BLOCKS, Objects, likely_owner};
use super::{Grade, Owner, Piece};
use plimsoll_facts::gap::Source;
use plimsoll_facts::lines::LineId;
use plimsoll_facts::snapshot::{Backing, Snapshot, Vma};
use plimsoll_facts::units::{AddressRange, Bytes};

pub(crate) fn pieces(snapshot: &Snapshot, claims: &Claims) -> Vec<Piece> {
    let objects = Objects::of(snapshot);
    let mut pieces = Vec::with_capacity(snapshot.vmas.len());
    for (index, vma) in snapshot.vmas.iter().enumerate() {
        let first = pieces.len();
        let unclaimed = |range| {
            let (owner, grade) = unclaimed(snapshot, vma, &objects);
            let [resident, repeated, error, together] = [Bytes(0); 4];
            Piece { range, vma: index, owner, grade, source: Source::Proc, resident, repeated, error, together }
        };
        let mut from = vma.range.start;
        for claim in claims.overlapping(vma.range) {
            let range = claim.range.intersection(vma.range);
            if range.is_empty() {
                continue;
            }
            if from < range.start {
                pieces.push(unclaimed(AddressRange::new(from, range.start)));
            }
            pieces.push(Piece {
                range,
                vma: index,
                owner: claim.owner.clone(),
                grade: claim.grade,
                source: claim.source,
                resident: Bytes(0),
                repeated: Bytes(0),
                error: Bytes(0),
                together: Bytes(0),
            });
            from = range.end;
        }
        if from < vma.range.end {
            pieces.push(unclaimed(AddressRange::new(from, vma.range.end)));
        }
        share_out(snapshot, vma, &mut pieces[first..]);
        for piece in pieces[first..].iter_mut().filter(|piece| is_likely_only(piece)) {
            (piece.error, piece.together) = (piece.resident, vma.rss);
        }
    }
    pieces
}

/// Whether the owner is only likely: all of the piece may belong to the program itself.
fn is_likely_only(piece: &Piece) -> bool {
    let is_guess = match &piece.owner {
        Owner::Line(LineId::OtherAllocator, _) => piece.source == Source::Proc,
        Owner::Line(LineId::GlibcLive, detail) => detail == FREED_BLOCKS,
        _ => false,
    };
    is_guess && piece.grade == Grade::Estimated
}

fn share_out(snapshot: &Snapshot, vma: &Vma, pieces: &mut [Piece]) {
    if let [only] = pieces {
        only.resident = vma.rss;
        return;
    }
    if vma.rss == Bytes(0) {
        return;
    }
    let by_page_map = snapshot.residency.as_ref().filter(|seen| seen.covers(vma.range));
    let weights: Vec<u64> = match by_page_map {
        Some(seen) => pieces.iter().map(|piece| seen.resident(piece.range).0).collect(),
        None => pieces.iter().map(|piece| piece.range.length().0).collect(),
    };
    let sum: u64 = weights.iter().sum();
    let (weights, sum, known) = match (sum, by_page_map) {
        // The page map found none of the resident pages, so only the lengths are left.
        (0, _) => {
            let lengths: Vec<u64> = pieces.iter().map(|piece| piece.range.length().0).collect();
            let sum = lengths.iter().sum();
            (lengths, sum, None)
        }
        (sum, known) => (weights, sum, known),
    };
    let difference = Bytes(sum).abs_diff(vma.rss);
    for (piece, share) in pieces.iter_mut().zip(apportion(vma.rss.0, &weights, sum)) {
        piece.resident = Bytes(share);
        let length = piece.range.length();
        let rest = vma.range.length() - length;
        let (least, most) = (vma.rss - rest, vma.rss.min(length));
        let widest = (piece.resident - least).max(most - piece.resident);
        // What one piece has too much, another lacks. If pages only came or only went between the two readings, the
        // pieces of one owner together are wrong by the difference at most.
        (piece.error, piece.together) = match known {
            Some(_) => (difference.min(widest), difference),
            None => (widest, vma.rss),
        };
        if piece.error > Bytes(0) {
            piece.grade = piece.grade.max(if known.is_some() { Grade::Derived } else { Grade::Estimated });
        }
    }
}

/// The errors of the pieces, such that those of one mapping and owner add up to their common bound at most.
pub(crate) fn errors(pieces: &[Piece]) -> Vec<Bytes> {
    let mut errors = Vec::with_capacity(pieces.len());
    for of_vma in pieces.chunk_by(|one, next| one.vma == next.vma) {
        if let [only] = of_vma {
            errors.push(only.error.min(only.together));
            continue;
        }
        // In a hostile process, one mapping may have tens of thousands of owners.
        let mut sums: HashMap<&Owner, Bytes> = HashMap::new();
        for piece in of_vma {
            let sum = sums.entry(&piece.owner).or_default();
            let error = piece.error.min(piece.together - *sum);
            *sum += error;
            errors.push(error);
        }
    }
    errors
}

/// Divides `total` in proportion to `weights`. The largest remainders get what rounding leaves, so the sum is `total`.
pub(crate) fn apportion(total: u64, weights: &[u64], sum: u64) -> Vec<u64> {
    if sum == 0 {
        let mut shares = vec![0; weights.len()];
        if let Some(first) = shares.first_mut() {
            *first = total;
        }
        return shares;
    }
    let product = |weight: &u64| u128::from(total) * u128::from(*weight);
    let mut shares: Vec<u64> = weights.iter().map(|weight| (product(weight) / u128::from(sum)) as u64).collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|index| std::cmp::Reverse(product(&weights[*index]) % u128::from(sum)));
    let missing = total - shares.iter().sum::<u64>().min(total);
    for index in by_remainder.into_iter().cycle().take(missing as usize) {
        shares[index] += 1;
    }
    shares
}

/// Owner of an unclaimed part, by what the kernel says about the mapping.
fn unclaimed(snapshot: &Snapshot, vma: &Vma, objects: &Objects) -> (Owner, Grade) {
    let line = |line, detail: &str| (Owner::line(line, detail), Grade::Exact);
    match vma.backing {
        Backing::Kernel => line(LineId::Libraries, &vma.name),
        Backing::File if objects.contain(vma) => line(LineId::Libraries, snapshot.process.shown_file(&vma.name)),
        Backing::File | Backing::Device => line(LineId::MappedFiles, &with_deleted(vma)),
        Backing::Shmem | Backing::Hugetlbfs => line(LineId::SharedMemory, &with_deleted(vma)),
        Backing::MainStack => line(LineId::ThreadStacks, "main"),
        Backing::Brk => line(LineId::OtherAnonymous, "[heap]"),
        Backing::Anonymous => match likely_owner(snapshot) {
            // From outside, an unnamed mapping of an allocator looks like one of the program. If another allocator
            // serves malloc, or a runtime has its heap here, it is the likely owner; the error bound covers the case
            // that it isn't.
            Some(kind) if vma.writable && !vma.shared && vma.name.is_empty() => {
                (Owner::line(LineId::OtherAllocator, &kind.to_string()), Grade::Estimated)
            }
            _ => line(LineId::OtherAnonymous, &vma.name),
        },
    }
}

fn with_deleted(vma: &Vma) -> String {
    if vma.deleted { format!("{} (deleted)", vma.name) } else { vma.name.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use plimsoll_facts::units::Avma;

    #[test]
    fn shares_add_up_and_stay_near_their_weight() {
        let mut random = Random(7);
        let mut next = |below| random.below(below);
        let mut uneven = 0;
        for _ in 0..2000 {
            let weights: Vec<u64> = (0..1 + next(12)).map(|_| next(1 << 20)).collect();
            let sum = weights.iter().sum::<u64>();
            let total = next(1 << 30);
            let shares = apportion(total, &weights, sum);
            assert_eq!(shares.iter().sum::<u64>(), total);
            if sum > 0 {
                for (share, weight) in shares.iter().zip(&weights) {
                    let ideal = total as f64 * *weight as f64 / sum as f64;
                    assert!((*share as f64 - ideal).abs() <= 1.0);
                    uneven += usize::from(ideal.fract() != 0.0);
                }
            }
        }
        assert!(uneven > 100);
    }

    /// Each owner's sum is searched for among those found so far.
    fn naive(pieces: &[Piece]) -> Vec<Bytes> {
        let mut sums: Vec<(usize, Owner, Bytes)> = Vec::new();
        let mut errors = Vec::new();
        for piece in pieces {
            let is_same = |sum: &&(usize, Owner, Bytes)| sum.0 == piece.vma && sum.1 == piece.owner;
            let before = sums.iter().filter(is_same).map(|sum| sum.2).sum();
            let error = piece.error.min(piece.together - before);
            sums.push((piece.vma, piece.owner.clone(), error));
            errors.push(error);
        }
        errors
    }

    #[test]
    fn errors_equal_those_of_a_search_through_all_owners() {
        let mut random = Random(3);
        let mut cut = 0;
        for _ in 0..500 {
            let mut vma = 0;
            let mut piece = |_| {
                vma += usize::from(random.one_in(8));
                let owner = match random.below(3) {
                    0 => Owner::Arena(random.index(3)),
                    1 => Owner::line(LineId::ThreadStacks, ["", "a", "b"][random.index(3)]),
                    _ => Owner::line(LineId::Libraries, ["", "a", "b"][random.index(3)]),
                };
                Piece {
                    range: AddressRange::new(Avma(0), Avma(4096)),
                    vma,
                    owner,
                    grade: Grade::Derived,
                    source: Source::Proc,
                    resident: Bytes(4096),
                    repeated: Bytes(0),
                    error: Bytes(random.below(1000)),
                    together: Bytes(1000),
                }
            };
            let pieces: Vec<Piece> = (0..60).map(&mut piece).collect();
            let errors = errors(&pieces);
            cut += errors.iter().zip(&pieces).filter(|(error, piece)| **error < piece.error).count();
            assert_eq!(errors, naive(&pieces));
        }
        assert!(cut > 1000, "{cut}");
    }
}
