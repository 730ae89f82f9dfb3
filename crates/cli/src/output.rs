//! Books in the form that the user chose: the options that `report`, `run` and `diff` share.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap::ValueEnum;
use plimsoll_observer::books::Books;
use plimsoll_report::{hotspot, json, native_image, text, words};

use crate::Failure;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    Category,
    Caller,
    Module,
    Thread,
}

impl By {
    pub fn lines(self) -> text::By {
        match self {
            By::Category => text::By::Category,
            By::Caller => text::By::Caller,
            By::Module => text::By::Module,
            By::Thread => text::By::Thread,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Style {
    Plimsoll,
    /// As -XX:+PrintNMTStatistics of GraalVM 25
    NativeImage,
    /// As that of GraalVM for JDK 23
    #[value(name = "native-image-23")]
    NativeImage23,
    /// As VM.native_memory of JDK 25
    Hotspot,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy)]
pub struct Choice {
    pub style: Style,
    pub format: Format,
    pub by: By,
    /// Callers and mappings too.
    pub detail: bool,
}

impl Choice {
    /// Function names cost reading the symbols of each library: only what prints them asks for them.
    pub fn wants_symbols(self) -> bool {
        self.detail || self.by == By::Caller
    }

    pub fn write(self, out: &mut dyn Write, books: &Books) -> io::Result<()> {
        match (self.format, self.style) {
            (Format::Json, _) => json::write(out, books),
            (Format::Text, Style::Plimsoll) => {
                text::write(out, books, self.by.lines())?;
                if self.detail && self.by != By::Caller { text::callers_only(out, books) } else { Ok(()) }
            }
            (Format::Text, Style::NativeImage) => native_image::write(out, books),
            (Format::Text, Style::NativeImage23) => native_image::write_23(out, books),
            (Format::Text, Style::Hotspot) if self.detail => hotspot::detail(out, books),
            (Format::Text, Style::Hotspot) => hotspot::summary(out, books),
        }
    }
}

/// Standard output or a file. A reader that went away (`| head`) is no failure.
pub fn to_output(file: Option<&Path>, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let (name, sink): (String, Box<dyn Write>) = match file {
        None => ("standard output".into(), Box::new(io::stdout().lock())),
        Some(path) => {
            let shown = words::printable(&path.display().to_string());
            (shown.clone(), Box::new(File::create(path).map_err(|e| format!("{shown} can't be written: {e}"))?))
        }
    };
    let mut out = BufWriter::new(sink);
    match write(&mut out).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(format!("{name} can't be written: {e}").into()),
        Ok(()) => Ok(()),
    }
}
