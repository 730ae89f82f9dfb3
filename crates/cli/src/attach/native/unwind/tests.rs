//! Walks of real threads (fixtures/c/unwound.c), which know their own return addresses and whether they hold something.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plimsoll_facts::snapshot::{Backing, Vma};
use plimsoll_process::foreign::{Deadline, FileKind};
use plimsoll_process::proc::{self, Target};

use super::point::Forbidden;
use super::ptrace::{Registers, Stop, Thread};
use super::unwind::table::Table;
use super::unwind::*;

const FLAGS: [&[&str]; 4] = [&["-O2"], &["-O0"], &["-O3", "-march=native"], &["-O2", "-fno-omit-frame-pointer"]];

fn compiled(flags: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp/unwound");
    std::fs::create_dir_all(&folder).expect("a folder");
    let name = format!("{}-{}-{:?}", flags.concat(), std::process::id(), std::thread::current().id());
    let program = folder.join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu17", "-g", "-pthread", "-w"]).args(flags).arg("-o").arg(&program);
    gcc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/c/unwound.c"));
    assert!(gcc.status().expect("gcc").success());
    program
}

/// A running fixture; ended when dropped.
struct Program {
    child: Child,
    target: Target,
    memory: File,
    vmas: Vec<Vma>,
    tables: Tables,
    holder: Range<u64>,
    /// The address of the word that is not 0 in the holder.
    held: u64,
    returns: Vec<u64>,
    file: PathBuf,
}

impl Program {
    fn start(flags: &[&str], mode: &str) -> Program {
        let file = compiled(flags);
        let mut child = Command::new(&file).arg(mode).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let mut numbers = line.split_whitespace().skip(1).map(|hex| u64::from_str_radix(hex, 16).expect("hex"));
        let mut next = || numbers.next().expect("a number");
        let (holder, held) = (next()..next(), next());
        let returns = numbers.collect();
        let target = Target::open(child.id(), Deadline::after(Duration::from_secs(300))).expect("it lives");
        let vmas = proc::parse_maps(&target.read("maps").expect("maps"), &[]).vmas;
        let memory = target.memory_for_writing().expect("its memory");
        let mut tables = Tables::default();
        for vma in vmas.iter().filter(|vma| vma.executable && vma.inode != 0) {
            tables.add(&target.mapped(vma, FileKind::Object).expect("an object").pieces(), &[vma]);
        }
        Program { child, target, memory, vmas, tables, holder, held, returns, file }
    }

    /// Stops the first thread, and passes its registers and its stack.
    fn stopped<T>(&self, then: impl FnOnce(&Registers, &Stack<'_>) -> T) -> T {
        let mut thread = Thread::seize(self.child.id(), self.child.id()).expect("seized");
        thread.interrupt().expect("interrupted");
        loop {
            match thread.wait(Deadline::after(Duration::from_secs(60))).expect("a stop") {
                Stop::Event => break,
                Stop::Signal(signal) => thread.run_with(signal).expect("it runs"),
                other => panic!("{other:?}"),
            }
        }
        let registers = thread.registers().expect("registers");
        let stack = self.vmas.iter().find(|vma| vma.backing == Backing::MainStack).expect("a stack").range;
        let mut bytes = vec![0; (stack.end.0 - (registers.rsp & !7)) as usize];
        self.memory.read_exact_at(&mut bytes, registers.rsp & !7).expect("the stack");
        then(&registers, &Stack { at: registers.rsp & !7, bytes: &bytes })
    }

    fn walk(&self, registers: &Registers, stack: &Stack<'_>) -> Result<Frames, &'static str> {
        let code = |at, into: &mut [u8]| self.memory.read_exact_at(into, at).is_ok();
        walk(&self.tables.current(&self.vmas), registers, stack, code)
    }

    /// Waits until the first thread sleeps in a wait that only this test ends.
    fn rests(self) -> Program {
        let call = || String::from_utf8_lossy(&self.target.read("syscall").unwrap_or_default()).into_owned();
        let began = std::time::Instant::now();
        while !call().starts_with(&format!("{} ", libc::SYS_clock_nanosleep)) {
            assert!(began.elapsed() < Duration::from_secs(120), "the first thread doesn't sleep: {}", call());
            std::thread::sleep(Duration::from_millis(1));
        }
        self
    }

    fn word(&self, at: u64) -> i32 {
        let mut bytes = [0; 4];
        self.memory.read_exact_at(&mut bytes, at).expect("a word");
        i32::from_le_bytes(bytes)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

#[test]
fn a_walk_finds_each_return_address_that_the_program_knows() {
    for flags in FLAGS {
        for mode in ["wait", "leftover", "handler", "holding", "held"] {
            let program = Program::start(flags, mode).rests();
            let frames = program.stopped(|registers, stack| program.walk(registers, stack));
            let frames = frames.unwrap_or_else(|why| panic!("{mode} {flags:?}: {why}"));
            let returns: Vec<u64> = frames.pcs.iter().map(|pc| pc + 1).collect();
            let known = &program.returns[..];
            assert!(known.len() >= 2, "{mode}");
            let is_in = returns.windows(known.len()).any(|part| part == known);
            assert!(is_in, "{mode} {flags:?}: {returns:x?} lacks {known:x?}");
            // The frames of libc below main's, and nothing of the stack before them but the interrupted functions'.
            let rest = frames.unproven.last().expect("the end of the stack");
            assert!(program.vmas.iter().any(|vma| vma.range.end.0 == rest.end && rest.end - rest.start < 64 << 10));
        }
    }
}

#[test]
fn only_real_frames_count_where_all_are_proven() {
    for (mode, is_held, is_refused_by_words) in [
        ("wait", false, false),
        ("leftover", false, true),
        ("handler", false, false),
        ("holding", true, true),
        ("held", true, true),
    ] {
        let program = Program::start(&["-O1"], mode).rests();
        let forbidden = Forbidden::new(vec![(program.holder.clone(), "the holder")], vec![]);
        program.stopped(|registers, stack| {
            let frames = program.walk(registers, stack).expect(mode);
            assert_eq!(forbidden.found(registers.rip, stack, Some(&frames)).is_some(), is_held, "{mode}");
            assert_eq!(forbidden.found(registers.rip, stack, None).is_some(), is_refused_by_words, "{mode}");
        });
    }
}

#[test]
fn nothing_is_proven_under_code_without_a_table() {
    let program = Program::start(&["-O1"], "bare").rests();
    let frames = program.stopped(|registers, stack| program.walk(registers, stack));
    assert_eq!(frames, Err("code without an unwind table"));
}

/// Stops at any instruction. Where the walk is accepted, the holder must not be on the stack, and malloc's lock not
/// held.
#[allow(clippy::print_stdout, reason = "a test prints what it counted")]
fn never_accepted_while_held(stops: usize) {
    for (flags, mode) in FLAGS.into_iter().map(|flags| (flags, "mixed")).chain([(FLAGS[0], "malloc")]) {
        let program = Program::start(flags, mode);
        let code = if mode == "mixed" { program.holder.clone() } else { malloc(&program) };
        let forbidden = Forbidden::new(vec![(code, "held")], vec![]);
        let (mut accepted, mut held, mut proven) = (0, 0, 0);
        for n in 0..stops {
            program.stopped(|registers, stack| {
                let frames = program.walk(registers, stack).ok();
                proven += usize::from(frames.is_some());
                let is_free = frames.is_some_and(|f| forbidden.found(registers.rip, stack, Some(&f)).is_none());
                let is_held = program.word(program.held) != 0;
                assert!(!(is_free && is_held), "{mode} {flags:?}: accepted at {:x}", registers.rip);
                accepted += usize::from(is_free);
                held += usize::from(is_held);
            });
            std::thread::sleep(Duration::from_micros(n as u64 % 97));
        }
        println!("exercised: {mode} {flags:?}: {stops} stops, {proven} proven, {accepted} accepted, {held} held");
        assert!(accepted > stops / 50 && held > stops / 50 && proven > stops / 2);
    }
}

/// malloc's code, as the survey finds it.
fn malloc(program: &Program) -> Range<u64> {
    let read = |range: Range<u64>| {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        program.memory.read_exact_at(&mut bytes, range.start).ok().map(|()| bytes)
    };
    let objects = super::objects::survey(&program.target, &program.vmas, read).expect("a C program");
    objects.forbidden.named("malloc").expect("malloc")
}

#[test]
fn at_any_instruction_a_thread_that_holds_something_is_refused() {
    never_accepted_while_held(120);
}

#[test]
#[ignore = "full: 5,000 stops of each program; make test has 120"]
fn at_5_000_instructions_a_thread_that_holds_something_is_refused() {
    never_accepted_while_held(5_000);
}

/// Flipped bytes of the tables and of the stack give another answer, or none, in time.
#[test]
fn broken_tables_and_stacks_are_survived() {
    let program = Program::start(&["-O1"], "handler").rests();
    let vma = program.vmas.iter().find(|vma| vma.executable && vma.name.ends_with("/libc.so.6")).expect("libc");
    let libc = std::fs::read(&vma.name).expect("the file");
    let table = Table::read(&libc[..]).expect("a table");
    assert!(table.bytes() > 100_000);
    for n in (0..libc.len()).step_by(libc.len() / 13) {
        let _ = Table::read(&libc[..n]);
    }
    program.stopped(|registers, stack| {
        let whole = program.walk(registers, stack);
        assert!(whole.is_ok());
        let (mut others, mut bytes) = (0, stack.bytes.to_vec());
        for i in 0..bytes.len().min(4000) {
            bytes[i] ^= 0x41;
            others += usize::from(program.walk(registers, &Stack { at: stack.at, bytes: &bytes }) != whole);
            bytes[i] ^= 0x41;
        }
        assert!(others > 10);
        let code = |at, into: &mut [u8]| program.memory.read_exact_at(into, at).is_ok();
        let mut broken = libc.clone();
        for i in (0..2000).step_by(3).chain((0..broken.len()).step_by(397)) {
            broken[i] ^= 0xff;
            if i % 40 == 0 || i < 2000 {
                let mut tables = Tables::default();
                tables.add(&broken[..], &[vma]);
                let _ = walk(&tables.current(&program.vmas), registers, stack, code);
            }
        }
    });
}
