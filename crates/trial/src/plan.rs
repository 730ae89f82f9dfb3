//! In which order rows and rounds run.
//!
//! ```text
//! round 1   plain  A  B  C
//! round 2   C  B  A  plain
//! round 3   plain  A  B  C
//! ```
//! A drift of the machine (a cache that fills, another tenant, a clock that slows down) hits each row alike: over two
//! rounds each row has the same mean position. Differences are taken within a round, where the drift is smallest.

/// The rows of a round, in order. Rounds count from 0, and row 0 is the plain program.
pub fn order(round: usize, rows: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..rows).collect() } else { (0..rows).rev().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_two_rounds_each_row_has_the_same_mean_position() {
        for rows in 1..9 {
            let position = |round, row| order(round, rows).iter().position(|one| *one == row).expect("each row runs");
            let sums: Vec<usize> = (0..rows).map(|row| position(0, row) + position(1, row)).collect();
            assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
        }
        assert_eq!(order(4, 3), order(0, 3));
    }
}
