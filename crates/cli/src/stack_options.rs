//! The options that select stacks: shared by `report` and `diff`.

use std::path::PathBuf;

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::units::Bytes;
use plimsoll_profiles::profile::{Focus, Focused, Profile};
use plimsoll_report::profile::View;
use plimsoll_report::words;
use plimsoll_tracked::books::{Books, Figures, Runtime};
use plimsoll_tracked::rules::read as rules;
use plimsoll_tracked::sites::{Sites, Wrappers};

use crate::Failure;
use crate::output::{By, Format, Style, Weigh};
use crate::suggestion::nearest_name;
use crate::target::TrackedTarget;

/// Which stacks to show, and how: options of `report` and `diff`.
#[derive(Default, clap::Args)]
pub struct Stacks {
    /// Show only stacks with a matching function or module, from that frame inwards
    #[arg(long, value_name = "REGEX")]
    pub focus: Option<String>,
    /// Size lines and boxes by bytes, or by the number of blocks or calls
    #[arg(long, value_enum, default_value = "bytes")]
    pub weight: Weigh,
    /// Choose the measure: live, peak, cumulative, requested, temporary, reserved, committed, resident, mapped_file,
    /// held (live blocks, and resident mappings without files), or mapped (by all calls of mmap); for a recording
    /// slow_path, object or sampled [default: held as text and in diff; live in other formats, and of ended processes;
    /// cumulative with --weight calls]
    #[arg(long, value_name = "MEASURE")]
    pub measure: Option<String>,
    /// Print all lines and frames, however small; for a recording, print all curves
    #[arg(long)]
    pub all: bool,
    /// Read a module's symbols from this file or directory; repeat for several
    #[arg(long, value_name = "FILE|DIR")]
    pub symbols: Vec<PathBuf>,
    /// Apply the category rules in this file to whole stacks and Java methods. Its rows: 'category Orders: what the server
    /// keeps', then 'server: cache_* -> Orders' or 'java: org.acme.cache.* -> Orders'
    #[arg(long, value_name = "FILE")]
    pub rules: Vec<PathBuf>,
}

impl Stacks {
    /// Refuses a path in `--symbols` that doesn't exist.
    pub fn check(&self) -> Result<(), Failure> {
        for path in &self.symbols {
            let shown = words::printable(&path.display().to_string());
            std::fs::metadata(path).map_err(|e| format!("--symbols: '{shown}' can't be read: {e}"))?;
        }
        Ok(())
    }

    /// Refuses options that a recording can't follow, because they need the books of a tracked process.
    pub fn refuse_for_recording(&self, style: Style, detail: bool) -> Result<(), Failure> {
        let given = [
            (style != Style::Plimsoll, "--style"),
            (detail, "--detail"),
            (!self.rules.is_empty(), "--rules"),
            (!self.symbols.is_empty(), "--symbols"),
        ];
        match given.iter().find(|(is_given, _)| *is_given) {
            Some((_, option)) => Err(format!(
                "{option} needs a process, a segment or a saved report: leave it out for a flight recording"
            )
            .into()),
            None => Ok(()),
        }
    }

    /// Refuses `--all` where every line is written anyway.
    pub fn refuse_all(&self, format: Format) -> Result<(), Failure> {
        match self.all && !matches!(format, Format::Text | Format::Tree) {
            true => {
                Err(format!("--all lists the small lines of a text: leave it out with --format {}", format.name())
                    .into())
            }
            false => Ok(()),
        }
    }

    /// Refuses options that choose the lines of our own table beside the layout of another program.
    pub fn refuse_beside_style(&self, style: Style, by: By) -> Result<(), Failure> {
        let option = match style {
            Style::Plimsoll => return Ok(()),
            // Stacks have a sentence of their own.
            _ if self.are_requested() || by.lines().is_none() => return Ok(()),
            _ if by != By::Category => "--by",
            _ if self.all => "--all",
            _ => return Ok(()),
        };
        Err(format!("--style {} has lines of its own: leave {option} out, or --style", style.name()).into())
    }

    /// Whether an option was given that only stacks can satisfy.
    pub fn are_requested(&self) -> bool {
        self.focus.is_some() || self.measure.is_some() || self.weight == Weigh::Calls
    }

    /// The target's sites with names. Rules, if there are any, set their categories by deep frames.
    pub fn sites(&self, target: &mut TrackedTarget, by_thread: bool) -> Result<Sites, Failure> {
        let mut sites = target.sites(&target.symbols(&self.symbols), by_thread);
        if !self.rules.is_empty() || target.books.process.runtime == Runtime::NativeImage {
            let rules =
                rules::rules(&self.rules, target.deadline).map_err(|e| format!("--rules: {}", words::printable(&e)))?;
            sites.recategorize(&rules, &mut target.books);
        }
        Ok(sites)
    }

    /// The measure by name; `bytes` is the default if bytes are counted.
    pub fn measure<'a>(&'a self, bytes: &'a str) -> Option<&'a str> {
        let default = if self.weight == Weigh::Calls { "cumulative" } else { bytes };
        Some(self.measure.as_deref().unwrap_or(default))
    }

    /// Refuses a measure of resident bytes where they aren't known of all sites: `resident` would be 0, and `held` live
    /// blocks alone.
    pub fn refuse_unknown(&self, of: &[(&Sites, &Books)]) -> Result<(), Failure> {
        let Some(measure) = self.measure.as_deref() else { return Ok(()) };
        let instead = match measure {
            "held" => "--measure live for the blocks, or --measure committed for the mappings",
            "resident" => "--measure committed",
            _ => return Ok(()),
        };
        // `held` has no mapped files, `resident` has them.
        let is_known = |of: &(&Sites, &Books)| {
            let lacks = |figures: &Figures| figures.resident.is_none() && figures.committed > Bytes::ZERO;
            let of_files = || of.1.categories.iter().any(|category| lacks(&category.figures));
            of.0.is_resident_known && (measure == "held" || !of_files())
        };
        if of.iter().all(is_known) {
            return Ok(());
        }
        let why = match of.iter().any(|(_, books)| books.ending.is_some()) {
            true => "of a process that has ended",
            false => "here",
        };
        Err(format!("--measure {measure} is not known {why}: use {instead}").into())
    }

    /// The view by a measure: the requested one, or a default.
    pub fn view<'p>(&self, of: &'p Profile, measure: Option<&str>) -> Result<View<'p>, Failure> {
        let weight = self.weight.weight();
        View::new(of, measure, weight).map_err(|reason| {
            let typed = measure.unwrap_or_default();
            // A measure of the other unit isn't mistyped.
            let is_known = of.columns.iter().any(|column| column.measure == typed);
            let names = of.columns.iter().filter(|column| column.unit == weight.unit()).map(|column| column.measure);
            match nearest_name(typed, names).filter(|_| !is_known) {
                Some(near) => {
                    format!("there is no measure '{}'. Did you mean '{near}'?", words::printable(typed)).into()
                }
                None => Failure(reason),
            }
        })
    }

    pub fn column(&self, of: &Sites, bytes: &str) -> Result<usize, Failure> {
        Ok(self.view(&of.profile, self.measure(bytes))?.column)
    }

    /// Restricts the sites to the focus; returns what was left out.
    pub fn focused(&self, of: &mut Sites) -> Result<Option<Focused>, Failure> {
        self.focused_profile(&mut of.profile, "--symbols FILE")
    }

    /// `names`: how the functions of a module without names get them. If nothing matches, a gap says so.
    pub fn focused_profile(&self, of: &mut Profile, names: &str) -> Result<Option<Focused>, Failure> {
        let Some(pattern) = &self.focus else { return Ok(None) };
        let focus = Focus::new(pattern).map_err(|e| format!("--focus {}: {e}", words::printable(pattern)))?;
        let mut focused = of.focus(&focus);
        let nameless = of.nameless_modules();
        if focused.profile.entries().len() == 0
            && let [first, others @ ..] = nameless.as_slice()
        {
            let (modules, have) = match others {
                [] => ((*first).to_owned(), "has"),
                [second] => (format!("{first} and {second}"), "have"),
                more => (format!("{first} and {} more modules", more.len()), "have"),
            };
            let reason = format!("{modules} {have} no function names");
            let gap = Gap::new(Source::Symbols, reason, format!("/{pattern}/ can't match these functions"));
            focused.profile.gaps.push(gap.remedy(names));
        }
        *of = focused.profile.clone();
        Ok(Some(focused))
    }
}

/// Removes the allocator's own frames, so that the first frame is the one that requested the memory.
pub fn without_wrappers(sites: &mut Sites) -> Result<(), Failure> {
    let rules = rules::built_in()?;
    let mut wrappers = Wrappers::new(&rules);
    *sites = sites.trimmed(|profile, frames| wrappers.leading(profile, frames));
    Ok(())
}
