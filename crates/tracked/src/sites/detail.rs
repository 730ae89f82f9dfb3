//! What samples say about a site besides its sums. Sites of the same names are one entry (the interpreter and both
//! compilers have their own stacks of one call), so details merge.

/// Maximum number of threads named for a site.
const THREADS: usize = 5;

/// What samples say about a site besides its sums.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    /// Samples taken, and live ones.
    pub samples: u64,
    pub live_samples: u64,
    /// Estimated number of all blocks ever allocated by requested size: below 16, below 32, … below 256 KiB, all
    /// larger.
    pub sizes: [u64; 16],
    /// Age of the oldest live sample in ns.
    pub oldest_ns: Option<u64>,
    /// Live samples: age in ns, and the blocks that each stands for. From a saved report: the median alone.
    pub ages: Vec<(u64, f64)>,
    /// Threads that allocated live blocks, and a weight in proportion to their bytes.
    pub threads: Vec<(String, f64)>,
    /// Variances of live bytes and blocks if no site was missed; used to compare two reports.
    pub division: [f64; 2],
    /// Whether these are blocks of a caller without samples, under its short stack.
    pub unsampled: bool,
}

impl Detail {
    /// Adds what the samples of another site say, which is the same entry or line.
    pub fn merge(&mut self, other: &Detail) {
        self.samples = self.samples.saturating_add(other.samples);
        self.live_samples = self.live_samples.saturating_add(other.live_samples);
        self.sizes.iter_mut().zip(other.sizes).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        self.oldest_ns = self.oldest_ns.max(other.oldest_ns);
        self.ages.extend_from_slice(&other.ages);
        for (name, weight) in &other.threads {
            self.add_thread(name, *weight);
        }
        self.division.iter_mut().zip(other.division).for_each(|(sum, variance)| *sum += variance);
        self.unsampled &= other.unsampled;
    }

    /// A detail of all these sites; None if there is none.
    pub fn merged<'a>(all: impl IntoIterator<Item = &'a Detail>) -> Option<Detail> {
        let mut all = all.into_iter();
        let mut sum = all.next()?.clone();
        all.for_each(|other| sum.merge(other));
        Some(sum)
    }

    pub(super) fn add_thread(&mut self, name: &str, weight: f64) {
        match self.threads.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += weight,
            None => self.threads.push((name.into(), weight)),
        }
    }

    /// Median age of the live blocks in ns.
    pub fn median_age_ns(&self) -> Option<u64> {
        let mut ages = self.ages.clone();
        ages.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let half = ages.iter().map(|(_, blocks)| blocks).sum::<f64>() / 2.0;
        let mut run = 0.0;
        let reached = ages.iter().find(|(_, blocks)| {
            run += blocks;
            run >= half
        });
        reached.map(|(age, _)| *age)
    }

    /// The names of the threads with most bytes, the largest first.
    pub fn thread_names(&self) -> Vec<&str> {
        let mut threads: Vec<&(String, f64)> = self.threads.iter().collect();
        threads.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        threads.into_iter().take(THREADS).map(|(name, _)| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Detail;

    #[test]
    fn merged_details_have_the_samples_of_all() {
        let detail = |samples, ages: &[(u64, f64)], threads: &[(&str, f64)]| Detail {
            samples,
            live_samples: ages.len() as u64,
            oldest_ns: ages.iter().map(|(age, _)| *age).max(),
            ages: ages.to_vec(),
            threads: threads.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect(),
            sizes: [samples; 16],
            division: [1.0, 2.0],
            unsampled: false,
        };
        let interpreted = detail(3, &[(900, 1.0), (50, 1.0)], &[("main", 10.0), ("worker", 1.0)]);
        let compiled = detail(5, &[(40, 4.0)], &[("worker", 20.0)]);
        let rest = Detail { unsampled: true, ..Detail::default() };
        let all = [&interpreted, &compiled, &rest];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let sum = Detail::merged(order.map(|index| all[index])).expect("three");
            assert_eq!((sum.samples, sum.live_samples, sum.sizes), (8, 3, [8; 16]));
            assert_eq!((sum.oldest_ns, sum.median_age_ns()), (Some(900), Some(40)));
            assert_eq!((sum.thread_names(), sum.division), (vec!["worker", "main"], [2.0, 4.0]));
            assert!(!sum.unsampled, "a part has samples");
        }
        assert_eq!(Detail::merged([]), None);
    }
}
