//! Rules over a ledger. Each rule states what it found in numbers, what to do about it in order of effort, and what
//! that would save. A rule must be right when it returns a verdict, and return None otherwise. Pure.

mod allocator_retention;
mod arena_retention;
mod attachable;
mod case;
mod certainty;
mod classes;
mod code_cache;
mod compiler_arena;
mod direct_buffers;
mod file_pages;
mod go_retention;
mod growth;
mod healthy;
mod heap_options;
mod heap_that_fits;
mod heap_unused;
mod higher_limit;
mod huge_pages;
mod inspector;
mod limit_near;
mod listening;
mod map_count;
mod mapped_files;
mod native_leak;
mod other_heap_remedies;
mod other_heap_retention;
mod redis;
mod remedies;
mod remedy;
mod start;
mod string_table;
mod suspects;
mod thread_stacks;
mod throttled;
mod unclear;
mod vm_options;

pub use case::{Case, ago};
pub use certainty::certainty;
pub use file_pages::{FilePages, file_pages};
pub(crate) use heap_options::LargeHeap;
pub use remedies::returned_by_trim;

use crate::ledger::{Ledger, LineId};
use plimsoll_facts::snapshot::{Root, Snapshot};
use plimsoll_facts::units::Bytes;

macro_rules! verdicts {
    (@line whole) => { None };
    (@line $line:ident) => { Some(LineId::$line) };
    ($($variant:ident $id:literal of $line:ident: $($rule:path),*;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum VerdictId { $($variant),* }

        impl VerdictId {
            pub const ALL: &'static [VerdictId] = &[$(VerdictId::$variant),*];

            /// The id. Scripts depend on it, and it is the name of the page in docs/verdicts/.
            pub const fn id(self) -> &'static str {
                match self { $(VerdictId::$variant => $id),* }
            }

            /// The page: what the verdict means, when it applies, its remedies.
            pub const fn page(self) -> &'static str {
                match self { $(VerdictId::$variant => include_str!(concat!("../../../../docs/verdicts/", $id, ".md"))),* }
            }

            /// The line whose bytes it is about; None for verdicts about the whole process.
            pub const fn line(self) -> Option<LineId> {
                match self { $(VerdictId::$variant => verdicts!(@line $line)),* }
            }
        }

        const RULES: &[Rule] = &[$($($rule,)*)*];
    };
}

// Each row has a verdict, its id, the line whose bytes it is about (or `whole`), and the rules that may return it.
verdicts! {
    ArenaRetention "arena-retention" of GlibcRetained: arena_retention::rule;
    AllocatorRetention "allocator-retention" of GlibcRetained: allocator_retention::rule, other_heap_retention::rule, go_retention::rule;
    ThreadStacks "thread-stacks" of ThreadStacks: thread_stacks::rule;
    DirectBufferGrowth "direct-buffer-growth" of DirectBuffers: direct_buffers::rule;
    ClassGrowth "class-growth" of Class: classes::rule;
    CodeCacheGrowth "code-cache-growth" of CodeCache: code_cache::rule;
    CompilerArena "compiler-arena" of Compiler: compiler_arena::rule;
    NativeLeak "native-leak" of GlibcLive: native_leak::rule;
    MappedFileGrowth "mapped-file-growth" of MappedFiles: mapped_files::rule;
    HugePages "huge-pages" of whole: huge_pages::rule;
    HeapCommittedUnused "heap-committed-unused" of JavaHeap: heap_unused::rule;
    // `judge` adds it: it depends on the verdicts of the rules.
    LimitNear "limit-near" of whole: ;
    MapCount "map-count" of whole: map_count::rule;
    Growth "growth" of whole: growth::rule;
    // `judge` adds the state of the whole process.
    Healthy "healthy" of whole: ;
    Unclear "unclear" of whole: ;
}

impl VerdictId {
    /// Whether it describes the state of the whole process, not a problem in a part of it.
    pub const fn is_state(self) -> bool {
        matches!(self, VerdictId::Healthy | VerdictId::Unclear)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Nothing to do, but a figure that is often misread.
    Note,
    Warning,
    /// The process is about to be killed or to fail.
    Critical,
}

impl Severity {
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effort {
    /// A command on the running process.
    Now,
    /// A variable or flag, and a restart.
    Restart,
    /// A change of the image or deployment.
    Deploy,
    /// A change of the code.
    Code,
}

impl Effort {
    pub const fn name(self) -> &'static str {
        match self {
            Effort::Now => "now",
            Effort::Restart => "restart",
            Effort::Deploy => "deploy",
            Effort::Code => "code",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    pub what: String,
    /// Text that can be pasted unchanged.
    pub how: String,
    pub form: Form,
    pub effort: Effort,
    pub trade_off: String,
    pub effect: Effect,
}

/// What kind of text a remedy has, and thus what to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For a shell.
    Command,
    /// For a shell; it starts the program a second time, so the first has to end before.
    Start,
    /// For a shell; it stops or restarts the program.
    Stop,
    /// A variable or an option, for the next start.
    Setting,
    /// Lines of a Dockerfile.
    Image,
    /// A line of a Kubernetes manifest.
    Manifest,
    Code,
}

impl Form {
    /// The form of a text without words of the target.
    pub fn of(effort: Effort, how: &str) -> Form {
        let word = how.split_whitespace().next().unwrap_or_default();
        match effort {
            _ if word.starts_with('-') || word.contains('=') => Form::Setting,
            _ if matches!(word, "RUN" | "ENV") => Form::Image,
            _ if word.ends_with(':') => Form::Manifest,
            Effort::Code => Form::Code,
            _ => Form::Command,
        }
    }
}

/// Resident bytes that a remedy is expected to free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// Depends on properties of the program that the snapshot doesn't have.
    #[default]
    Unknown,
    /// Computed from the snapshot by the remedy's mechanism: at least, at most. May be too wide for a figure.
    Modelled(Bytes, Bytes),
}

impl Effect {
    /// Half of the width of the widest figure, in percent of its middle.
    const WIDEST: u128 = 30;

    /// The bounds that an output may have: those no wider than ± 30 % of their middle. Nobody can act on wider ones.
    ///
    /// (most − least) / 2 ≤ 0.3 × (most + least) / 2
    pub fn figure(self) -> Option<(Bytes, Bytes)> {
        self.bounds().filter(|(least, most)| {
            let (least, most) = (u128::from(least.0), u128::from(most.0));
            most.saturating_sub(least) * 100 <= Effect::WIDEST * (most + least)
        })
    }

    /// How a figure was found; `unknown` if there is none.
    pub fn confidence(self) -> &'static str {
        match self.figure() {
            None => "unknown",
            Some(_) => "modelled",
        }
    }

    /// Bounds for the order of remedies. Outputs use [`Effect::figure`].
    const fn bounds(self) -> Option<(Bytes, Bytes)> {
        match self {
            Effect::Unknown => None,
            Effect::Modelled(least, most) => Some((least, most)),
        }
    }
}

impl Remedy {
    /// What to do with the first line of `how`, as a word of four columns, and what to do before or afterwards.
    pub fn verb(&self) -> (&'static str, &'static str) {
        match self.form {
            Form::Command => ("run ", ""),
            Form::Start => ("run ", "stop the running process first"),
            Form::Stop => ("see ", ""),
            Form::Setting => ("set ", "and start it again"),
            Form::Image => ("add ", "to the image"),
            Form::Manifest => ("set ", "in the manifest"),
            Form::Code => ("code", ""),
        }
    }

    /// The row of a headline: the first line of `how`. A headline may be typed unread, so it never stops a program.
    pub fn headline(&self, of: VerdictId) -> Option<String> {
        match self.form {
            Form::Stop => Some(format!("remedy 1 of {}: it stops or restarts the program", of.id())),
            _ => self.how.lines().next().map(str::to_owned),
        }
    }

    /// The text above a line of `how`: where the line goes, and what else is needed.
    pub fn label(&self, line: &str) -> &'static str {
        let form = match self.form {
            Form::Setting | Form::Image | Form::Manifest => Form::of(self.effort, line),
            known => known,
        };
        match form {
            Form::Start => "stop the running process first; then, with the variables that it needs:",
            Form::Stop => "this stops or restarts the program:",
            Form::Setting if line.starts_with("--memory ") => "docker run:",
            // All other options are Java's. Behind -jar they would be the program's.
            Form::Setting if line.starts_with('-') => "before -jar or the main class, then restart the JVM:",
            Form::Setting => "in the environment of the program, then restart it:",
            Form::Image => "Dockerfile:",
            Form::Manifest => "Kubernetes:",
            Form::Command | Form::Code => "",
        }
    }

    pub fn saves(self, least: Bytes, most: Bytes) -> Remedy {
        Remedy { effect: Effect::Modelled(least, most.max(least)), ..self }
    }

    /// For a setting whose saving depends on the program, so that no figure is known beforehand. `plimsoll try` must
    /// have a row for it.
    pub(crate) fn may_save_nothing(self) -> Remedy {
        const MAY: &str = "may save nothing (plimsoll try measures it)";
        let trade_off = match self.trade_off.as_str() {
            "" => MAY.to_owned(),
            cost => format!("{MAY}; {cost}"),
        };
        Remedy { trade_off, ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub id: VerdictId,
    pub severity: Severity,
    /// How much memory it is about.
    pub bytes: Bytes,
    /// One sentence.
    pub summary: String,
    /// The figures that prove it.
    pub evidence: Vec<String>,
    /// In order of effort; for equal effort, the largest expected saving first.
    pub remedies: Vec<Remedy>,
}

impl Verdict {
    /// Expected saving of the best remedy that has a figure: at least, at most.
    pub fn saving(&self) -> Option<(Bytes, Bytes)> {
        self.remedies.iter().filter_map(|remedy| remedy.effect.figure()).max()
    }
}

type Rule = fn(Case<'_>) -> Option<Verdict>;

/// Most severe first; among equals the state of the whole process, then the biggest. If no rule warns, the state is
/// `healthy`, but only if nearly all of RSS could be judged. Otherwise it is `unclear`, which may also accompany
/// warnings.
pub fn judge(snapshot: &Snapshot, ledger: &Ledger) -> Vec<Verdict> {
    let case = Case { snapshot, ledger };
    let mut verdicts: Vec<Verdict> = RULES.iter().filter_map(|rule| rule(case)).collect();
    let unclear = unclear::verdict(case, &verdicts);
    let near = limit_near::verdict(case, &verdicts, unclear.as_ref());
    verdicts.extend(near);
    for verdict in &mut verdicts {
        let expected = |remedy: &Remedy| remedy.effect.bounds().map(|(least, _)| least).unwrap_or_default();
        verdict.remedies.sort_by_key(|remedy| (remedy.effort, std::cmp::Reverse(expected(remedy))));
    }
    if let Some(unclear) = unclear {
        verdicts.push(unclear);
    } else if verdicts.iter().all(|verdict| verdict.severity == Severity::Note) {
        verdicts.push(healthy::verdict(case, verdicts.len()));
    }
    if !case.takes_commands() {
        verdicts.iter_mut().for_each(|verdict| verdict.remedies.retain(|remedy| !is_by_jcmd(snapshot, remedy)));
    }
    if snapshot.process.is_secure {
        verdicts.iter_mut().for_each(without_ignored_variables);
    }
    for remedy in verdicts.iter_mut().flat_map(|verdict| &mut verdict.remedies) {
        as_root(snapshot.host.root, remedy);
        where_jcmd_works(snapshot, remedy);
    }
    let rank = |verdict: &Verdict| std::cmp::Reverse((verdict.severity, verdict.id.is_state(), verdict.bytes));
    verdicts.sort_by_key(rank);
    verdicts
}

/// Removes settings that a program in secure-execution mode ignores: the loader removes its variables and those of
/// glibc's malloc (sysdeps/generic/unsecvars.h), and jemalloc and tcmalloc read theirs by secure_getenv(3).
fn without_ignored_variables(verdict: &mut Verdict) {
    const IGNORED: [&str; 6] =
        ["LD_PRELOAD=", "GLIBC_TUNABLES=", "MALLOC_ARENA_MAX=", "MALLOC_MMAP_THRESHOLD_=", "MALLOC_CONF=", "TCMALLOC_"];
    let is_ignored = |remedy: &Remedy| {
        let is_setting = matches!(remedy.form, Form::Setting | Form::Image);
        let sets = is_setting && IGNORED.iter().any(|name| remedy.how.contains(name));
        sets || remedy.how.contains("plimsoll try --with jemalloc")
    };
    let all = verdict.remedies.len();
    verdict.remedies.retain(|remedy| !is_ignored(remedy));
    if verdict.remedies.len() < all {
        let why = "it was started in secure-execution mode (ld.so(8): set-user-ID, file capabilities or a security \
                   module), which ignores LD_PRELOAD and malloc's variables: none is proposed";
        verdict.evidence.push(why.to_owned());
    }
}

/// Removes `sudo` where it isn't needed: rules print it in front of what needs root. A remedy that starts the program
/// stays as it is, because the target's own words may contain `sudo`.
fn as_root(root: Root, remedy: &mut Remedy) {
    if root == Root::Sudo || remedy.form == Form::Start || !remedy.how.contains("sudo ") {
        return;
    }
    remedy.how = remedy.how.replace("sudo ", "");
    remedy.trade_off = remedy.trade_off.replace("sudo ", "");
    if root == Root::Elsewhere {
        add(remedy, "type it as root");
    }
}

fn is_by_jcmd(snapshot: &Snapshot, remedy: &Remedy) -> bool {
    remedy.form == Form::Command && remedy.how.contains(&format!("jcmd {} ", snapshot.process.pid))
}

/// jcmd is a JDK's program: the host of a container seldom has one. A VM before JDK 11 takes commands of its own user
/// only (JDK-8197387).
fn where_jcmd_works(snapshot: &Snapshot, remedy: &mut Remedy) {
    const ROOT_MAY_FROM: u32 = 11;
    let process = &snapshot.process;
    if !is_by_jcmd(snapshot, remedy) {
        return;
    }
    if let Some(inside) = process.namespaced_pid.filter(|_| process.contained) {
        add(remedy, &format!("without a jcmd here, type it in the container, where the PID is {inside}"));
    }
    let jdk = snapshot.hotspot.as_ref().and_then(|vm| vm.jdk());
    if snapshot.host.root == Root::Already && process.uid != 0 && jdk.is_some_and(|jdk| jdk < ROOT_MAY_FROM) {
        add(remedy, &format!("type it as the user of the VM (uid {}): this VM refuses root", process.uid));
    }
}

/// Appends a note to a remedy's trade-off, which is printed below the remedy.
fn add(remedy: &mut Remedy, text: &str) {
    if !remedy.trade_off.is_empty() {
        remedy.trade_off += "; ";
    }
    remedy.trade_off += text;
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
