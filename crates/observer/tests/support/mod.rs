//! Real processes for the tests: built with the machine's compilers, ended with the test.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use plimsoll_observer::snapshot::{Backing, Vma};
use plimsoll_observer::units::{AddressRange, Avma, Bytes};

/// A child that is killed when the test is over, and what it printed until it was ready.
pub struct Subject {
    pub child: Child,
    pub said: String,
}

impl Subject {
    /// Starts the command and waits for a line that says READY.
    pub fn start(command: &mut Command) -> Subject {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = String::new();
        loop {
            let before = said.len();
            if lines.read_line(&mut said).expect("readable") == 0 {
                panic!("ended before READY: {said}");
            }
            if said[before..].trim_end().ends_with("READY") {
                break;
            }
        }
        // Keep the pipe open: a subject that goes on printing must not die of SIGPIPE.
        child.stdout = Some(lines.into_inner());
        Subject { child, said }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles tests/programs/NAME.c into the target directory, once for each test program that asks.
pub fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    // A program that another thread is still writing can't be started (ETXTBSY).
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{name}-{}{}",
        std::process::id(),
        flags.concat().replace('/', "_")
    ));
    if !binary.exists() {
        let status = Command::new("cc")
            .args(["-O1", "-pthread", "-o"])
            .arg(&binary)
            .arg(source)
            .args(flags)
            .status()
            .expect("cc");
        assert!(status.success());
    }
    binary
}

/// The mappings with what the sources look at: range, rights, name, backing, and Rss of smaps.
pub fn vmas(pid: u32) -> Vec<Vma> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let mut vmas: Vec<Vma> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some((start, end)) = words[0].split_once('-').filter(|_| !words[0].ends_with(':')) {
            let hex = |text: &str| Avma(u64::from_str_radix(text, 16).expect("hex"));
            let name = words.get(5).copied().unwrap_or("").to_string();
            let backing = match &*name {
                "" => Backing::Anonymous,
                "[heap]" => Backing::Brk,
                "[stack]" => Backing::MainStack,
                name if name.starts_with("[anon") => Backing::Anonymous,
                name if name.starts_with('[') => Backing::Kernel,
                _ => Backing::File,
            };
            vmas.push(Vma {
                range: AddressRange::new(hex(start), hex(end)),
                readable: words[1].contains('r'),
                writable: words[1].contains('w'),
                executable: words[1].contains('x'),
                shared: words[1].contains('s'),
                offset: u64::from_str_radix(words[2], 16).expect("hex"),
                name,
                backing,
                ..Vma::default()
            });
        } else if words[0] == "Rss:" {
            vmas.last_mut().expect("a header first").rss = Bytes::kib(words[1].parse().expect("a number"));
        }
    }
    vmas
}
