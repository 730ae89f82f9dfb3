//! Writes books in the form that the user chose: options that `report`, `run` and `diff` share.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use plimsoll_facts::shell::quoted;
use plimsoll_process::foreign::own_files;
use plimsoll_profiles::profile;
use plimsoll_report::profile::{self as exporters, Exporter};
use plimsoll_report::{hotspot, native_image, text, words};
use plimsoll_tracked::books::Books;

use crate::{Failure, pager, progress, sys};

/// Prints a message. `eprintln!` panics if standard error is full or closed, and would then end us before we start our
/// program, or while we are its parent.
pub fn print_message(sentence: impl Display) {
    progress::erase();
    let _ = io::stderr().write_all(format!("plimsoll: {sentence}\n").as_bytes());
}

/// Prints what was done on standard output. A closed output is no reason to fail: the work is done.
pub fn print_done(sentence: impl Display) {
    let sentence = format!("{sentence}\n");
    let _ = io::stdout().write_all(words::as_called(&sentence).as_bytes());
}

/// Asks on a terminal; elsewhere, and with `--yes`, the answer is yes.
pub fn is_confirmed(question: &str, yes: bool) -> io::Result<bool> {
    if yes || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(true);
    }
    io::stderr().write_all(format!("{question} [y/N] ").as_bytes())?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// A path made safe for a terminal.
pub fn shown(path: &Path) -> String {
    words::printable(&path.display().to_string())
}

/// The command that reports on a segment, quoted for a shell; the path if no command can be quoted. The target's user
/// may have chosen the directory, so no part of its name may run in the reader's shell.
pub fn report_of(segment: &Path) -> String {
    segment.to_str().and_then(quoted).map_or_else(|| shown(segment), |path| format!("plimsoll report {path}"))
}

/// When a screen has colours.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set and not empty, or TERM is dumb
    Auto,
    /// Whatever the output, NO_COLOR and TERM
    Always,
    Never,
}

impl Color {
    /// no-color.org; and termcap's `dumb` has no attributes.
    pub fn is_on(self, to_terminal: bool) -> bool {
        let is_unset = |name: &str| std::env::var_os(name).is_none_or(|set| set.is_empty());
        match self {
            Color::Auto => {
                to_terminal && is_unset("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
            Color::Always => true,
            Color::Never => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Kind of memory, by rules over the calling stack
    Category,
    /// The few frames above the allocating call
    Caller,
    /// Deep stack that allocated
    Site,
    /// Java package that allocated
    Package,
    /// Class of Java objects, in a flight recording
    Class,
    /// Library or program that allocated
    Module,
    /// Thread that allocated
    Thread,
}

impl By {
    /// The table of the books that this choice selects; `None`: the choice needs the sites.
    pub fn lines(self) -> Option<text::LinesBy> {
        match self {
            By::Category => Some(text::LinesBy::Category),
            By::Caller => Some(text::LinesBy::Caller),
            By::Module => Some(text::LinesBy::Module),
            By::Thread => Some(text::LinesBy::Thread),
            By::Site | By::Package | By::Class => None,
        }
    }

    pub fn groups(self) -> profile::GroupBy {
        match self {
            By::Category => profile::GroupBy::Category,
            By::Caller => profile::GroupBy::Caller,
            By::Site => profile::GroupBy::Site,
            By::Package => profile::GroupBy::Package,
            By::Class => profile::GroupBy::Class,
            By::Module => profile::GroupBy::Module,
            By::Thread => profile::GroupBy::Thread,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Style {
    /// Columns of live, peak, committed and reserved memory
    Plimsoll,
    /// Like -XX:+PrintNMTStatistics of GraalVM 25
    NativeImage,
    /// Like -XX:+PrintNMTStatistics of GraalVM for JDK 23
    #[value(name = "native-image-23")]
    NativeImage23,
    /// Like VM.native_memory of JDK 25
    Hotspot,
}

impl Style {
    /// The name as the user types it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// The table of output formats: name, help, and the exporter of profiles (None: the format cannot show stacks).
macro_rules! formats {
    ($($(#[$help:meta])* $name:ident: $exporter:expr;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
        pub enum Format {
            $($(#[$help])* $name,)*
        }

        impl Format {
            fn of_profiles(self) -> Option<&'static Exporter> {
                match self {
                    $(Format::$name => $exporter,)*
                }
            }
        }
    };
}

formats! {
    Text: Some(&exporters::TEXT);
    Json: Some(&exporters::json::EXPORTER);
    /// Call tree, outermost function first
    Tree: Some(&exporters::TREE);
    /// One line for each stack: `main;f;g 4096`
    Folded: Some(&exporters::folded::EXPORTER);
    /// Flame graph
    Svg: Some(&exporters::svg::EXPORTER);
    /// For `go tool pprof`
    Pprof: Some(&exporters::pprof::EXPORTER);
    /// One page: flame graph and tables; of a report also verdict, memory, curves
    Html: Some(&exporters::html::EXPORTER);
    /// Flight recording of this one moment
    Jfr: None;
}

impl Format {
    /// The exporter of stacks; an error if the format has none.
    pub fn exporter(self) -> Result<&'static Exporter, Failure> {
        self.of_profiles().ok_or_else(|| format!("--format {} has no view of stacks", self.name()).into())
    }

    /// The name as the user types it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Refuses a `--style`, which is a layout of text, beside another format.
    pub fn refuse_style(self, style: Style) -> Result<(), Failure> {
        match style != Style::Plimsoll && self != Format::Text {
            true => Err(format!("--style is a layout of text: leave it out with --format {}", self.name()).into()),
            false => Ok(()),
        }
    }

    /// Whether the output is not text. A flight recording is not.
    fn is_binary(self) -> bool {
        self.of_profiles().is_none_or(|exporter| exporter.is_binary)
    }
}

/// What `try` and `compare` write: the same table in each of these.
#[derive(Clone, Copy, ValueEnum)]
pub enum TicketFormat {
    Text,
    Json,
    /// A table for a ticket or a commit
    Markdown,
    /// One self-contained page
    Html,
}

/// For a command that does not support some values: its help omits them, and a user who types one gets a reason.
pub fn hiding<T: ValueEnum + PartialEq + Send + Sync + 'static>(
    values: &[T],
) -> impl TypedValueParser<Value = T> + use<T> {
    let offered = T::value_variants()
        .iter()
        .filter_map(|value| value.to_possible_value().map(|shown| shown.hide(values.contains(value))))
        .collect::<Vec<_>>();
    PossibleValuesParser::new(offered).try_map(|name| T::from_str(&name, false))
}

#[derive(Default, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Weigh {
    #[default]
    Bytes,
    Calls,
}

impl Weigh {
    pub fn weight(self) -> profile::Weight {
        match self {
            Weigh::Bytes => profile::Weight::Bytes,
            Weigh::Calls => profile::Weight::Calls,
        }
    }
}

/// The text that `report` and `run` print.
#[derive(Clone, Copy)]
pub struct Choice {
    pub style: Style,
    pub by: By,
    /// Also print callers and mappings.
    pub detail: bool,
    /// Also print the small lines, each on its own.
    pub all: bool,
}

impl Choice {
    /// Symbols are read only if the output shows function names: reading those of every library is slow.
    pub fn wants_symbols(self) -> bool {
        self.detail || self.by == By::Caller
    }

    pub fn write(self, out: &mut dyn Write, books: &Books) -> io::Result<()> {
        match self.style {
            Style::Plimsoll => {
                text::write(out, books, self.by.lines().unwrap_or_default(), self.all)?;
                if self.detail && self.by != By::Caller { text::callers_only(out, books, self.all) } else { Ok(()) }
            }
            Style::NativeImage => native_image::write(out, books),
            Style::NativeImage23 => native_image::write_23(out, books),
            Style::Hotspot if self.detail => hotspot::detail(out, books),
            Style::Hotspot => hotspot::summary(out, books),
        }
    }
}

/// A terminal cannot show binary output, and would obey some of its bytes.
pub fn refuse_terminal(format: Format, file: Option<&Path>) -> Result<(), Failure> {
    match format.is_binary() && file.is_none() && io::stdout().is_terminal() {
        true => Err(format!("--format {} is binary: write it to a file with -o FILE", format.name()).into()),
        false => Ok(()),
    }
}

/// Rust's runtime opens /dev/null in place of a closed standard output: every report would silently vanish there.
pub fn require_stdout() -> Result<(), Failure> {
    if sys::has_stdout() { Ok(()) } else { Err("cannot write the report: standard output is closed".into()) }
}

/// Writes to standard output or to a file (`own_files::create` lists the files that it refuses). On a terminal, what is
/// higher than the screen goes through a pager. A reader that closes the pipe (`| head`) is not an error.
pub fn to_output(file: Option<&Path>, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    if file.is_none() {
        require_stdout()?;
    }
    let (name, written) = match file {
        None if pager::is_there() => {
            let mut text = Vec::new();
            let made = write(&mut text);
            progress::end();
            ("standard output".into(), made.and_then(|()| pager::write(&text)))
        }
        None => {
            progress::end();
            ("standard output".into(), through(io::stdout().lock(), write))
        }
        Some(path) => {
            let shown = shown(path);
            let file = own_files::create(path).map_err(|e| format!("cannot write {shown}: {e}"))?;
            (shown, through(file, write))
        }
    };
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(format!("cannot write {name}: {e}").into()),
        Ok(()) => Ok(()),
    }
}

/// As `to_output`, for a result that took long to get: if the file can't be written, standard output gets it.
pub fn to_output_at_least(
    file: Option<&Path>,
    write: impl Fn(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let written = to_output(file, &write);
    if written.is_err() && file.is_some() {
        let _ = to_output(None, &write);
    }
    written
}

/// Bytes of one write. A report may have hundreds of MiB: with the 8 KiB of the standard library, that is 40,000 system
/// calls.
const BUFFER: usize = 64 << 10;

fn through(sink: impl Write, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER, sink);
    write(&mut out).and_then(|()| out.flush())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_command_with_a_segments_path_can_be_pasted() {
        assert_eq!(report_of(Path::new("/dev/shm/a/7-1.seg")), "plimsoll report /dev/shm/a/7-1.seg");
        assert_eq!(report_of(Path::new("/tmp/a;id>o;/7-1.seg")), "plimsoll report '/tmp/a;id>o;/7-1.seg'");
        // A word that isn't text can't be quoted.
        assert_eq!(report_of(Path::new(OsStr::from_bytes(b"/tmp/\xff;id/7-1.seg"))), "/tmp/\u{fffd};id/7-1.seg");
    }

    /// Counts the writes.
    struct Sink(usize, Vec<u8>);

    impl Write for &mut Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_large_report_is_written_in_large_pieces() {
        let mut sink = Sink(0, Vec::new());
        let piece = [b'x'; 100];
        through(&mut sink, |out| (0..10_000).try_for_each(|_| out.write_all(&piece))).expect("a vector takes all");
        assert_eq!(sink.1, vec![b'x'; 1_000_000]);
        assert_eq!(sink.0, 1_000_000 / (BUFFER / 100 * 100) + 1);
    }
}
