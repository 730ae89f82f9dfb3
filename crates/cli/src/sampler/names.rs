//! Finds the names of frames in sites on a thread of its own, so that no interval waits for the symbols of libjvm. A
//! name that is not known yet is written as `libjvm.so` and an offset; a later full instant has the name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_facts::units::Avma;
use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_profiles::profile::{Frame, Profile};
use plimsoll_report::jfr::{Site, unnamed};
use plimsoll_tracked::books::Books;
use plimsoll_tracked::sites::Sites;
use plimsoll_tracked::symbols::{SourceLocation, SymbolOptions, Symbols};
use rustix::time::{ClockId, clock_gettime};

/// Module path ("" for code outside modules) → offset (there: address) → functions. An empty list: the symbols have no
/// name for it.
type LocationsByModule = HashMap<String, HashMap<u64, Vec<SourceLocation>>>;

#[derive(Default)]
pub struct Names {
    known: LocationsByModule,
    /// The program that the names belong to, by the start of its tracker. After an exec, the same path may be another
    /// build.
    start_ns: u64,
    pending: Option<Receiver<(LocationsByModule, Duration)>>,
    /// Whether `pending` belongs to an earlier program.
    is_outdated: bool,
    /// When the next search may start.
    next: Option<Instant>,
}

/// The search may use one part in `SHARE` of a core.
const SHARE: u32 = 1000;

impl Names {
    /// The sites of an instant, with the names that are known after `wait`. `must`: there is no later instant.
    pub fn sites(
        &mut self,
        of: &Sites,
        books: &Books,
        options: SymbolOptions,
        wait: Duration,
        must: bool,
    ) -> Vec<Site> {
        let began = Instant::now();
        self.begin(books.process.start_ns);
        self.answer(wait);
        let missing = self.missing(of);
        let due = must || self.next.is_none_or(|next| Instant::now() >= next);
        if !missing.is_empty() && self.pending.is_none() && due {
            self.start_query(missing, books, options);
            self.answer(wait.saturating_sub(began.elapsed()));
        }
        Site::of(of, |profile, frame| {
            let (module, at) = key(profile, frame);
            Some(self.known.get(module)?.get(&at)?.as_slice())
        })
    }

    /// Forgets the names of another program. A search for that program runs to its end, because two searches at a time
    /// would cost twice the share.
    fn begin(&mut self, start_ns: u64) {
        if std::mem::replace(&mut self.start_ns, start_ns) != start_ns {
            self.known.clear();
            self.is_outdated = self.pending.is_some();
        }
    }

    fn missing(&self, of: &Sites) -> BTreeMap<String, BTreeSet<u64>> {
        let mut missing: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for frame in unnamed(of) {
            let (module, at) = key(&of.profile, frame);
            if self.known.get(module).is_none_or(|known| !known.contains_key(&at)) {
                missing.entry(module.to_owned()).or_default().insert(at);
            }
        }
        missing
    }

    fn start_query(&mut self, missing: BTreeMap<String, BTreeSet<u64>>, books: &Books, options: SymbolOptions) {
        let books = Books { process: books.process.clone(), modules: books.modules.clone(), ..Books::default() };
        let (answer, answered) = channel();
        let thread = move || {
            // No instant waits for this thread, so it has its own deadline.
            let mut symbols = Symbols::new(&options, &books, Deadline::after(NAMES));
            let found = missing.into_iter().map(|(module, offsets)| {
                let locations = find(&mut symbols, &books, &module, offsets);
                (module, locations)
            });
            let found = found.collect();
            let spent = clock_gettime(ClockId::ThreadCPUTime);
            let spent = Duration::new(spent.tv_sec.unsigned_abs(), spent.tv_nsec.unsigned_abs() as u32);
            // Sending fails if the recording has ended; then nobody needs the names.
            let _ = answer.send((found, spent));
        };
        if thread::Builder::new().name("names".into()).spawn(thread).is_ok() {
            self.pending = Some(answered);
        }
    }

    fn answer(&mut self, wait: Duration) {
        let Some(pending) = &self.pending else { return };
        match pending.recv_timeout(wait) {
            Ok((found, spent)) => {
                let found = if self.is_outdated { LocationsByModule::default() } else { found };
                for (module, names) in found {
                    self.known.entry(module).or_default().extend(names);
                }
                self.is_outdated = false;
                self.next = Some(Instant::now() + spent * SHARE);
                self.pending = None;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => (self.pending, self.is_outdated) = (None, false),
        }
    }
}

fn key<'p>(profile: &'p Profile, frame: &Frame) -> (&'p str, u64) {
    match frame.module {
        Some(module) => (&profile.module_at(module).path, frame.offset),
        None => ("", frame.address.0),
    }
}

fn find(
    symbols: &mut Symbols,
    books: &Books,
    module: &str,
    offsets: BTreeSet<u64>,
) -> HashMap<u64, Vec<SourceLocation>> {
    let index = books.modules.iter().position(|of| of.path == module);
    match index {
        Some(index) => {
            symbols.resolve(&books.modules, &BTreeMap::from([(index, offsets.clone())]));
            let locations =
                |offset| symbols.at(index, offset).map(|location| location.functions.clone()).unwrap_or_default();
            offsets.into_iter().map(|offset| (offset, locations(offset))).collect()
        }
        None => {
            // A JIT listed this code under this address. Other code may take the address later, but that is rare.
            let location = |name: String| SourceLocation { function: name.into(), file: None, line: None, java: false };
            let named = |at| (at, symbols.jit(Avma(at)).map(location).into_iter().collect());
            offsets.into_iter().map(named).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_program_before_an_exec_are_forgotten_also_if_they_come_late() {
        let found = || LocationsByModule::from([("/bin/shop".to_owned(), HashMap::from([(0x10, Vec::new())]))]);
        let mut names = Names::default();
        names.begin(1);
        let search = |names: &mut Names| {
            let (answer, answered) = channel();
            names.pending = Some(answered);
            answer
        };
        let answer = search(&mut names);
        answer.send((found(), Duration::ZERO)).expect("pending");
        names.answer(Duration::ZERO);
        assert!(names.known == found() && names.pending.is_none());
        let late = search(&mut names);
        names.begin(1);
        assert!(names.known == found(), "the same program");
        names.begin(2);
        assert!(names.known.is_empty() && names.pending.is_some());
        late.send((found(), Duration::ZERO)).expect("pending");
        names.answer(Duration::ZERO);
        assert!(names.known.is_empty() && names.pending.is_none());
        let answer = search(&mut names);
        answer.send((found(), Duration::ZERO)).expect("pending");
        names.answer(Duration::ZERO);
        assert!(names.known == found());
    }
}
