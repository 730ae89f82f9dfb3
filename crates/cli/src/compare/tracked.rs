//! The tracked runs of a comparison: their segments, and what the stacks in them show.
//!
//! The tracker changes RSS, so these runs follow the measured ones and give no figure of RSS. Every block has its stack
//! (`--sites exact`): figures are counted, not sampled.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_observer::ledger::LineId;
use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_profiles::allocation::{has_java_names, slow_paths_of_mappings};
use plimsoll_profiles::profile::{ChangeKind, Profile, ProfileDiff, SiteChange, StackId};
use plimsoll_report::profile::{folded, stack_text, svg};
use plimsoll_report::words::counted;
use plimsoll_tracked::books::Runtime;
use plimsoll_tracked::segment;
use plimsoll_tracked::sites::{HELD, LIVE, MAPPED_COUNT, PEAK, of_one_run};
use plimsoll_trial::comparison::{B, Category, Measure, Site, Tracked};

use crate::output::to_output;
use crate::stack_options::{Stacks, without_wrappers};
use crate::target::{self, TrackedTarget};
use crate::{Failure, launch, tracker};

/// Sites that a comparison keeps.
const MOST_SITES: usize = 100;
/// Limit of the gaps of the tracked runs that become notes.
const MOST_GAPS: usize = 8;

/// A directory for the segments of one run; removed with them.
pub struct Folder(PathBuf);

impl Folder {
    pub fn make(number: usize) -> Result<Folder, Failure> {
        // Not beside the directory of segments: there another user could make this name first, and PLIMSOLL_DIR may be
        // a volume in a read-only root.
        let segments = tracker::default_directory();
        let path = segments.join(format!("compare-{}-{number}", std::process::id()));
        for directory in [&segments, &path] {
            let refused = |why: String| format!("the directory {} {why}", directory.display());
            tracker::private_directory(directory).map_err(refused)?;
        }
        Ok(Folder(path))
    }

    /// `None`: the tracker can't be loaded into this program.
    pub fn environment(&self, command: &[OsString]) -> Result<Option<Vec<(OsString, OsString)>>, Failure> {
        launch::tracked(command, &self.0)
    }

    /// Opens the segment of this process; for `None`, that of the ended process with the largest peak.
    fn open(&self, pid: Option<u32>, deadline: Deadline) -> Result<TrackedTarget, Failure> {
        let mut all = segment::list(&self.0, deadline);
        all.retain(|(_, head)| pid.is_none_or(|pid| head.pid == pid));
        // A segment that can't be read may be the largest: without it, the wrong processes would be compared.
        let opened: Vec<TrackedTarget> =
            all.iter().map(|(path, _)| target::open(path, deadline)).collect::<Result<_, Failure>>()?;
        let largest = opened.into_iter().max_by_key(|target| target.books.total.peak);
        largest.ok_or_else(|| "it left no segment: the tracker could not be loaded".into())
    }

    /// The run's sites. A live process must be read before it ends: the names of generated code go with it.
    pub fn read(&self, pid: Option<u32>) -> Result<TrackedRun, Failure> {
        let mut target = self.open(pid, Deadline::after(NAMES))?;
        let mut sites = Stacks::default().sites(&mut target, false)?;
        without_wrappers(&mut sites)?;
        Ok(TrackedRun {
            profile: of_one_run(&sites),
            is_resident_known: sites.is_resident_known,
            is_image: target.books.process.runtime == Runtime::NativeImage,
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The sites of one run.
pub struct TrackedRun {
    profile: Profile,
    is_resident_known: bool,
    is_image: bool,
}

/// The sites of all tracked runs, by side.
#[derive(Default)]
pub struct Runs {
    pub of: [Vec<TrackedRun>; 2],
    /// The programs end by themselves, so their peaks are compared.
    pub peaks: bool,
}

impl Runs {
    fn diff(&self, column: usize) -> ProfileDiff {
        let [a, b] = self.of.each_ref().map(|side| side.iter().map(|run| (&run.profile, column)).collect::<Vec<_>>());
        ProfileDiff::of_runs(&a, &b)
    }

    /// The bytes that are compared.
    fn measure(&self) -> Measure {
        match self.of.iter().flatten().all(|run| run.is_resident_known) {
            _ if self.peaks => Measure::Peak,
            true => Measure::Held,
            false => Measure::Live,
        }
    }

    fn column(&self) -> usize {
        match self.measure() {
            Measure::Peak => PEAK,
            Measure::Held => HELD,
            Measure::Live => LIVE,
        }
    }

    fn bytes(&self) -> ProfileDiff {
        self.diff(self.column())
    }

    /// `None`: a side has no tracked run.
    pub fn compared(&self) -> Option<Tracked> {
        if self.of.iter().any(Vec::is_empty) {
            return None;
        }
        let calls = self.diff(MAPPED_COUNT);
        let total = calls.total();
        let means = |figure: &dyn Fn(&TrackedRun) -> f64| {
            self.of.each_ref().map(|side| side.iter().map(figure).sum::<f64>() / side.len() as f64)
        };
        let slow_path = |run: &TrackedRun| slow_paths_of_mappings(&run.profile, "mapped").0 as f64;
        Some(Tracked {
            runs: self.of.each_ref().map(Vec::len),
            measure: self.measure(),
            sites: sites(&self.bytes(), &mappers(&calls), self.is_image()),
            categories: self.categories(),
            mapping_calls: [total.0.amount as f64, total.1.amount as f64],
            callers_of_mmap: sites(&calls, &mappers(&calls), self.is_image()),
            slow_paths: self.names_slow_paths().then(|| means(&slow_path)),
        })
    }

    /// What the tracked runs could not read or count. Stacks may differ because of that alone.
    pub fn notes(&self) -> Vec<String> {
        if self.of.iter().any(Vec::is_empty) {
            return Vec::new();
        }
        let gaps = self.bytes().profile.gaps;
        let mut notes: Vec<String> =
            gaps.iter().take(MOST_GAPS).map(|gap| format!("tracked runs: {}: {}", gap.reason, gap.effect)).collect();
        if gaps.len() > MOST_GAPS {
            let more = counted((gaps.len() - MOST_GAPS) as u64, "more gap");
            notes.push(format!("tracked runs: {more} (plimsoll run -- COMMAND prints all)"));
        }
        notes
    }

    /// Whether B is a native image. B decides, since a growth is on lines of B's ledgers.
    fn is_image(&self) -> bool {
        self.of[B].iter().all(|run| run.is_image)
    }

    /// Whether the stacks of every image name its methods: those of a stripped image don't, and 0 would be wrong.
    fn names_slow_paths(&self) -> bool {
        let mut images = self.of.iter().flatten().filter(|run| run.is_image).peekable();
        images.peek().is_some() && images.all(|run| has_java_names(&run.profile))
    }

    /// The largest change first.
    fn categories(&self) -> Vec<Category> {
        let column = self.column();
        let mut found: BTreeMap<String, Category> = BTreeMap::new();
        for (side, runs) in self.of.iter().enumerate() {
            for (at, run) in runs.iter().enumerate() {
                for (entry, values) in run.profile.entries() {
                    let Some(name) = entry.labels.category.map(|name| run.profile.name_at(name).to_owned()) else {
                        continue;
                    };
                    let category = found
                        .entry(name.clone())
                        .or_insert_with(|| Category { name, held: self.of.each_ref().map(|runs| vec![0; runs.len()]) });
                    let sum = &mut category.held[side][at];
                    *sum = sum.saturating_add(u64::try_from(values[column].amount).unwrap_or(0));
                }
            }
        }
        let mut categories: Vec<Category> = found.into_values().collect();
        let change = |category: &Category| category.means()[1] - category.means()[0];
        categories.sort_by(|one, other| change(other).abs().total_cmp(&change(one).abs()));
        categories
    }

    /// Writes the differential flame graphs and folded stacks of bytes and of mapping calls.
    pub fn write_stacks(&self, folder: &Path, title: &str) -> Result<(), Failure> {
        fs::create_dir_all(folder).map_err(|e| format!("cannot make the directory {}: {e}", folder.display()))?;
        for (name, mut diff) in [("bytes", self.bytes()), ("mapping-calls", self.diff(MAPPED_COUNT))] {
            title.clone_into(&mut diff.profile.title);
            let file = |ending: &str| folder.join(format!("{name}.{ending}"));
            to_output(Some(&file("svg")), |out| (svg::EXPORTER.diff)(out, &diff, false))?;
            to_output(Some(&file("folded")), |out| folded::differential(out, &diff))?;
        }
        Ok(())
    }
}

/// The stacks that made mapping calls in any run.
fn mappers(calls: &ProfileDiff) -> BTreeSet<Vec<String>> {
    let maps = |site: &&SiteChange| site.before.amount > 0 || site.after.amount > 0;
    calls.sites.iter().filter(maps).map(|site| stack_text(&calls.profile, site.stack)).collect()
}

/// The sites that differ by more than noise. The site whose difference exceeds its bound most comes first.
fn sites(diff: &ProfileDiff, mappers: &BTreeSet<Vec<String>>, is_image: bool) -> Vec<Site> {
    let least =
        |site: &SiteChange| i64::try_from(site.grown().unsigned_abs().saturating_sub(site.bound)).unwrap_or(i64::MAX);
    let is_change = |site: &&SiteChange| !matches!(site.change, ChangeKind::Noise | ChangeKind::Same);
    let mut changed: Vec<&SiteChange> = diff.sites.iter().filter(is_change).collect();
    changed.sort_by_key(|site| std::cmp::Reverse(least(site)));
    let site = |of: &&SiteChange| {
        let category = diff.category(of.stack).unwrap_or_default();
        let frames = stack_text(&diff.profile, of.stack);
        Site {
            category: category.to_owned(),
            line: line_of(category, is_image).map(|line| line.id().to_owned()),
            is_mapped: mappers.contains(&frames),
            is_stackless: is_stackless(&diff.profile, of.stack),
            frames,
            held: [of.before.amount, of.after.amount],
            least: least(of),
        }
    };
    changed.iter().take(MOST_SITES).map(site).collect()
}

/// The line with the memory of a category. A native image's Java heap and Unsafe memory are on lines of their own.
fn line_of(category: &str, is_image: bool) -> Option<LineId> {
    match category {
        "Java Heap" | "Image Heap" if is_image => Some(LineId::ImageHeap),
        "Unsafe" if is_image => Some(LineId::DirectBuffers),
        _ => LineId::of_vm_category(category),
    }
}

fn is_stackless(profile: &Profile, stack: StackId) -> bool {
    let first = profile.frames_of(stack).first();
    first.is_some_and(|frame| profile.function_at(profile.function_of(*frame)).is_no_stack())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_java_heap_of_a_native_image_is_on_its_own_line() {
        let lines = |is_image| ["Java Heap", "Image Heap", "Unsafe", "GC", "zlib"].map(|of| line_of(of, is_image));
        let [heap, buffers] = [Some(LineId::ImageHeap), Some(LineId::DirectBuffers)];
        assert_eq!(lines(true), [heap, heap, buffers, Some(LineId::Gc), None]);
        assert_eq!(lines(false), [Some(LineId::JavaHeap), None, None, Some(LineId::Gc), None]);
    }
}
