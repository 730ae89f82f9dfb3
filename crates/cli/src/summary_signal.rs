//! The signal of `run --signal`: the names that the tracker accepts, and those that a VM needs for itself. The VM
//! replaces the tracker's handler at its start, so the signal would do what the VM does with it:
//!
//! | VM | signal | effect |
//! | --- | --- | --- |
//! | HotSpot | HUP, INT, TERM | the program ends (unless started with -Xrs) |
//! | | QUIT | prints the threads |
//! | | USR2 (`SR_signum`) | up to JDK 17 the program crashes, later a warning |
//! | | ILL, BUS, FPE, SEGV, PIPE, XFSZ | handlers of the VM (`os::Posix`, signals_posix.cpp) |
//! | native image | HUP, INT, TERM | the program ends (exit handlers: the default of executables since GraalVM 25, and of older images with `jfr` or `nmt`) |
//! | | QUIT, USR1 | with `--enable-monitoring` it dumps its threads, its heap |
//! | | PROF | with `jfr` it samples its threads |
//! | | BUS, SEGV | handlers of the VM (`SubstrateSegfaultHandler`) |
//! | Go | all but 32 to 34 (`sigtable`, runtime/sigtab_linux_generic.go; 34 since Go 1.15) | what Go does with it; most often nothing |

use std::path::Path;

use object::read::elf::{Dyn, FileHeader};
use object::{LittleEndian, ReadRef, elf};
use plimsoll_process::foreign::Deadline;

use crate::Failure;
use crate::suggestion::nearest_name;
use crate::{sys, untrackable};

const NAMES: [(&str, u8); 9] = [
    ("HUP", libc::SIGHUP as u8),
    ("USR1", libc::SIGUSR1 as u8),
    ("USR2", libc::SIGUSR2 as u8),
    ("URG", libc::SIGURG as u8),
    ("VTALRM", libc::SIGVTALRM as u8),
    ("PROF", libc::SIGPROF as u8),
    ("WINCH", libc::SIGWINCH as u8),
    ("IO", libc::SIGIO as u8),
    ("PWR", libc::SIGPWR as u8),
];
/// No program that was tried uses it: HotSpot and native images have none of the real-time signals.
const FREE: &str = "RTMIN+3";
/// Go's runtime leaves this one to musl.
const FREE_IN_GO: &str = "RTMIN";
/// SIGRTMIN of glibc and musl differ by one; the tracker counts from this number.
const RTMIN: u8 = 34;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vm {
    HotSpot,
    NativeImage,
    Go,
}

impl Vm {
    fn name(self) -> &'static str {
        match self {
            Vm::HotSpot => "a JVM",
            Vm::NativeImage => "a native image",
            Vm::Go => "a Go program",
        }
    }

    fn uses(self, signal: u8) -> bool {
        use libc::{
            SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGPIPE, SIGPROF, SIGQUIT, SIGSEGV, SIGTERM, SIGUSR1, SIGUSR2,
            SIGXFSZ,
        };
        let signals: &[i32] = match self {
            Vm::HotSpot => {
                &[SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGBUS, SIGFPE, SIGSEGV, SIGUSR2, SIGPIPE, SIGTERM, SIGXFSZ]
            }
            Vm::NativeImage => &[SIGHUP, SIGINT, SIGQUIT, SIGBUS, SIGUSR1, SIGSEGV, SIGTERM, SIGPROF],
            Vm::Go => return signal != RTMIN,
        };
        signals.contains(&i32::from(signal))
    }

    fn free(self) -> &'static str {
        if self == Vm::Go { FREE_IN_GO } else { FREE }
    }
}

/// A signal that the tracker accepts (summary.rs there); it would ignore any other silently. KILL and STOP cannot be
/// caught; 32 and 33 belong to glibc (nptl(7)).
pub fn parse(text: &str) -> Result<String, String> {
    let good = number(text).is_some_and(|n| (1..=64).contains(&n) && ![9, 19, 32, 33].contains(&n));
    let names = NAMES.map(|(name, _)| name).join(", ");
    match nearest_name(text.strip_prefix("SIG").unwrap_or(text), NAMES.map(|(name, _)| name)) {
        _ if good => Ok(text.into()),
        Some(near) => Err(format!("Did you mean '{near}'?")),
        None => Err(format!("expected {names}, RTMIN+n, or a signal's number")),
    }
}

fn number(text: &str) -> Option<u8> {
    let digits = |text: &str| text.parse::<u8>().ok().filter(|_| text.len() < 3 && !text.starts_with('+'));
    let name = text.strip_prefix("SIG").unwrap_or(text);
    match name.strip_prefix("RTMIN") {
        Some("") => Some(RTMIN),
        Some(plus) => digits(plus.strip_prefix('+').unwrap_or(plus)).filter(|n| *n <= 30).map(|n| RTMIN + n),
        None => digits(text).or_else(|| NAMES.iter().find(|(known, _)| *known == name).map(|(_, n)| *n)),
    }
}

/// Refuses a signal that the program's VM uses. A JVM that a script starts isn't recognised.
pub fn check(signal: &str, program: &Path, shown: &str, deadline: Deadline) -> Result<(), Failure> {
    let Some(vm) = vm_of(program, deadline) else { return Ok(()) };
    if number(signal).is_none_or(|number| !vm.uses(number)) {
        return Ok(());
    }
    let (name, free) = (vm.name(), vm.free());
    Err(format!("--signal {signal}: '{shown}' is {name}, which uses that signal itself: use --signal {free}").into())
}

/// The VM that the program is known to start.
fn vm_of(program: &Path, deadline: Deadline) -> Option<Vm> {
    let loaded = untrackable::loaded(program, deadline);
    let is_java = |path: &Path| path.file_name().is_some_and(|name| name == "java");
    if is_java(program) || is_java(&loaded) {
        return Some(Vm::HotSpot);
    }
    vm_of_elf(&sys::open(&loaded, deadline).ok()?.pieces())
}

/// A launcher of a JDK needs libjli.so, a program that embeds a JVM may need libjvm.so. A native image has its heap in
/// a section. Go's linker writes its own section even into stripped programs.
fn vm_of_elf<'d, R: ReadRef<'d>>(data: R) -> Option<Vm> {
    const LIBRARIES: [&[u8]; 2] = [b"libjli.so", b"libjvm.so"];
    let header = elf::FileHeader64::<LittleEndian>::parse(data).ok()?;
    let sections = header.sections(LittleEndian, data).ok()?;
    if sections.section_by_name(LittleEndian, b".svm_heap").is_some() {
        return Some(Vm::NativeImage);
    }
    if sections.section_by_name(LittleEndian, b".go.buildinfo").is_some() {
        return Some(Vm::Go);
    }
    let (entries, strings) = sections.dynamic(LittleEndian, data).ok()??;
    let strings = sections.strings(LittleEndian, data, strings).ok()?;
    let needed = entries.iter().filter(|entry| entry.tag(LittleEndian) == elf::DT_NEEDED);
    let mut names = needed.filter_map(|entry| strings.get(entry.val32(LittleEndian)?).ok());
    names.any(|name| LIBRARIES.contains(&name)).then_some(Vm::HotSpot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_process::foreign::NAMES as SECONDS;

    #[test]
    fn names_and_numbers_of_signals_are_known() {
        for (text, known) in [("USR2", 12), ("SIGUSR2", 12), ("12", 12), ("RTMIN", 34), ("RTMIN+3", 37), ("64", 64)] {
            assert_eq!(number(text), Some(known), "{text}");
        }
        for text in ["KILL", "9", "+9", "33", "RTMIN+31", "123", "SIG12", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    /// cc links a launcher as a JDK does, and a program with an image's section.
    #[test]
    fn a_signal_that_the_vm_uses_is_refused() {
        let dir = std::env::temp_dir().join(format!("plimsoll-signal-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let build = |name: &str, source: &str, arguments: &[&str]| {
            let (file, out) = (dir.join("source.c"), dir.join(name));
            std::fs::write(&file, source).expect("source");
            let mut cc = std::process::Command::new("cc");
            let made = cc.arg(&file).arg("-o").arg(&out).args(arguments).arg(format!("-L{}", dir.display())).output();
            assert!(made.expect("cc").status.success(), "cc {name}");
            out
        };
        const MAIN: &str = "int main(void) { return 0; }\n";
        build("libjli.so", "int JLI_Launch;\n", &["-shared"]);
        let launcher = build("launcher", MAIN, &["-Wl,--no-as-needed", "-ljli"]);
        let image = build("image", &format!("__attribute__((section(\".svm_heap\"))) int heap = 1;\n{MAIN}"), &[]);
        let go = build("go", &format!("__attribute__((section(\".go.buildinfo\"))) int built = 1;\n{MAIN}"), &[]);
        let plain = build("plain", MAIN, &[]);
        let script = dir.join("script");
        std::fs::write(&script, format!("#!{}\n", launcher.display())).expect("script");
        let java = dir.join("java");
        std::fs::write(&java, "#!/bin/sh\n").expect("script");
        let refused = |signal: &str, program: &Path| {
            check(signal, program, "p", Deadline::after(SECONDS)).err().map(|Failure(sentence)| sentence)
        };
        for program in [&launcher, &script, &java] {
            for signal in ["USR2", "12", "HUP", "2", "3", "15"] {
                let sentence = refused(signal, program).unwrap_or_default();
                let expected =
                    format!("--signal {signal}: 'p' is a JVM, which uses that signal itself: use --signal RTMIN+3");
                assert_eq!(sentence, expected, "{}", program.display());
            }
            assert!(["USR1", "URG", "PROF", "RTMIN+3"].iter().all(|signal| refused(signal, program).is_none()));
        }
        assert!(["USR1", "3", "HUP", "2", "11", "15", "PROF"].iter().all(|signal| refused(signal, &image).is_some()));
        assert!(["USR2", "WINCH", "RTMIN+3"].iter().all(|signal| refused(signal, &image).is_none()));
        for signal in ["USR2", "PROF", "RTMIN+3", "64"] {
            let expected =
                format!("--signal {signal}: 'p' is a Go program, which uses that signal itself: use --signal RTMIN");
            assert_eq!(refused(signal, &go), Some(expected));
        }
        assert!(["RTMIN", "34"].iter().all(|signal| refused(signal, &go).is_none()));
        assert!(["USR1", "USR2", "HUP", "3"].iter().all(|signal| refused(signal, &plain).is_none()));
        std::fs::remove_dir_all(dir).expect("removed");
    }
}
