//! Finds the call stack that owns the growth of a line.
//!
//! ```text
//! the line's own category  ─▶  the largest stack that grew
//! a line of no category    ─▶  the largest stack that grew, of categories that no line of the ledgers has
//! RSS                      ─▶  that of the line that grew most; without lines, the largest stack that grew
//! ```
//! A stack must explain a fair part of the growth: the largest of many small ones owns nothing. A stack that only B has
//! may be one of A's stacks under another name. So if only A has another stack of about the same size, B's stack
//! explains nothing.

use super::{A, B, Comparison, Direction, Lines, RSS, Site};

/// The least part of a line's growth that its owner explains.
const FAIR: f64 = 0.1;
/// Two stacks of one category, one of them only in A, the other only in B, count as one stack if their sizes differ by
/// less than this part of their size and of the growth. Otherwise the stack in B explains what it has more.
const OF_SIZE: f64 = 0.1;
const OF_GROWTH: f64 = 0.5;
const RENAMED_NOTE: &str = "some call stacks are only in A, others only in B: a stack whose functions have other names \
                            in B, as in another build, is listed twice";

impl Site {
    fn growth(&self) -> f64 {
        self.held[B].saturating_sub(self.held[A]) as f64
    }

    fn is_only_in(&self, side: usize) -> bool {
        self.held[side] > 0 && self.held[1 - side] == 0
    }
}

impl Comparison {
    /// The site that most likely owns the growth of a line.
    pub fn site_of(&self, line: &str) -> Option<&Site> {
        let growth = self.line_changes().into_iter().find(|(part, _)| part.line == line);
        let growth = growth.map(|(_, change)| change.interval.mean);
        let own = self.grown(growth).find(|site| site.line.as_deref() == Some(line));
        own.or_else(|| {
            let is_mapped = self.is_mapped(line)?;
            self.grown(growth).find(|site| self.is_of_no_line(site) && is_mapped.is_none_or(|is| is == site.is_mapped))
        })
    }

    /// Like `site_of`; for [`RSS`], the site of the line that grew most.
    pub fn owner_of(&self, line: &str) -> Option<&Site> {
        if line != RSS {
            return self.site_of(line);
        }
        match self.line_changes().iter().find(|(_, change)| change.direction() == Direction::Grew) {
            Some((part, _)) => self.site_of(&part.line),
            None => self.grown(self.rss().map(|change| change.interval.mean)).next(),
        }
    }

    /// A sentence if stacks of A may be listed again in B under other names.
    pub fn renamed_note(&self) -> Option<String> {
        let sites = &self.tracked.as_ref()?.sites;
        let largest = sites.iter().map(|site| site.least).max().unwrap_or(0) as f64;
        let is_listed = |site: &&Site| site.least as f64 >= largest * FAIR && !site.is_stackless;
        let has_one_of = |side: usize| sites.iter().filter(is_listed).any(|site| site.is_only_in(side));
        (has_one_of(A) && has_one_of(B)).then(|| RENAMED_NOTE.to_owned())
    }

    /// The stacks that explain a fair part of this growth, the largest first. `None`: the growth is unknown.
    fn grown(&self, growth: Option<f64>) -> impl Iterator<Item = &Site> {
        let all = move || self.tracked.iter().flat_map(|tracked| &tracked.sites);
        let is_fair = move |site: &Site| growth.is_none_or(|growth| site.growth() >= growth * FAIR);
        let is_renamed = move |site: &Site| {
            let of_size = site.growth() * OF_SIZE;
            let apart = growth.map_or(of_size, |growth| of_size.min(growth.abs() * OF_GROWTH));
            let is_old = |old: &Site| old.is_only_in(A) && old.category == site.category && !old.is_stackless;
            let is_near = |old: &Site| (site.growth() + old.growth()).abs() < apart;
            site.is_only_in(B) && all().any(|old| is_old(old) && is_near(old))
        };
        all().filter(move |site| site.growth() > 0.0 && !site.is_stackless && is_fair(site) && !is_renamed(site))
    }

    /// Whether no ledger has the line of the site's category. Without NMT, the VM's blocks are in the allocator's line.
    fn is_of_no_line(&self, site: &Site) -> bool {
        let has = |line: &str| self.lines.values().flat_map(Lines::keys).any(|part| part.line == line);
        let is_there = |line: &str| self.lines.is_empty() || has(line);
        site.line.as_deref().is_none_or(|line| !is_there(line))
    }

    /// Whether a line without a category of its own has mappings only, or blocks of malloc only; `Some(None)`: it may
    /// have both. `None`: no stack of another category can own its growth.
    fn is_mapped(&self, line: &str) -> Option<Option<bool>> {
        let is_glibc = |line: &str| line.starts_with("glibc-");
        match line {
            "other-anonymous" | "shared-memory" => Some(Some(true)),
            "glibc-live" | "glibc-unknown" => Some(Some(false)),
            // Beside glibc's malloc: the heap of a runtime that maps its memory itself, such as CPython's pools.
            "other-allocator" if self.lines.values().flat_map(Lines::keys).any(|part| is_glibc(&part.line)) => {
                Some(Some(true))
            }
            "other-allocator" | "vm-internal" => Some(None),
            _ => None,
        }
    }
}
