//! Real native images: `app HEAP_MIB DIRECT_MIB UNSAFE_MIB THREADS SECONDS` holds what its arguments say. The images
//! lie beside the checkout (../shared/subjects/native-image) or were built into target/native-images.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../fixtures/child.rs"]
mod child;
mod processes;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use child::Running;
use plimsoll_facts::snapshot::NativeImage;
use plimsoll_facts::units::Bytes;
use plimsoll_observer::source::known_files::KnownFiles;
use plimsoll_observer::source::native_image::{read, report};
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::proc::Target;
use processes::{native_image, vmas};

fn running(image: &Path, arguments: &[&str]) -> Running {
    let mut child =
        Command::new(image).args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.starts_with("ready"))), "it never was ready");
    Running(child)
}

fn facts(child: &Running) -> (NativeImage, Vec<plimsoll_facts::gap::Gap>) {
    let target = Target::open(child.0.id(), Deadline::after(LOOK)).expect("runs");
    let (vmas, files) = (vmas(child.0.id()), KnownFiles::default());
    let (nmt, mut gaps) = report(&target, &vmas, &files);
    let (image, others) = read(&target, &vmas, None, &files);
    gaps.extend(others);
    (NativeImage { nmt, ..image.expect("a native image") }, gaps)
}

#[test]
fn image_heaps_reservation_and_chunks_of_a_real_program_are_found() {
    let path = native_image("app");
    let child = running(&path, &["48", "8", "4", "4", "1000"]);
    let (image, gaps) = facts(&child);
    assert_eq!(gaps, []);
    assert!(image.version.contains("25.0"), "{}", image.version);
    assert_eq!(image.image_heap.iter().map(|heap| heap.view).collect::<Vec<_>>(), [false, true]);
    assert_eq!(image.isolates.len(), 1);
    assert_eq!(image.isolates[0].reservation.length(), Bytes(32 << 30));
    let chunks: Bytes = image.heap_chunks.iter().map(|chunk| chunk.length()).sum();
    // 48 arrays of 1 MiB and 48 × 64 arrays of 1 KiB: 51 MiB of arrays. Chunks have some free space and few other
    // objects.
    assert!(chunks >= Bytes::mib(51) && chunks < Bytes::mib(57), "{chunks}");
    let unsafe_or_direct: Bytes =
        image.nmt.iter().filter(|category| category.name == "Unsafe").map(|category| category.malloc).sum();
    assert!(unsafe_or_direct >= Bytes::mib(12) && unsafe_or_direct < Bytes::mib(13), "{:?}", image.nmt);
}

#[test]
fn an_image_without_diagnostic_commands_gets_no_signal() {
    let path = native_image("hello");
    let child = running_hello(&path);
    let (image, gaps) = facts(&child);
    assert_eq!(gaps, []);
    assert_eq!(image.nmt, []);
    assert_eq!(image.isolates.len(), 1);
    // The kernel delivers the lowest number first: after a SIGQUIT the image would end and never stop.
    let (pid, mut status) = (child.0.id() as i32, 0);
    // SAFETY: the PID is that of our child, which nobody else waits for; waitpid writes the local.
    let waited = unsafe {
        libc::kill(pid, libc::SIGSTOP);
        libc::waitpid(pid, &raw mut status, libc::WUNTRACED)
    };
    assert!(waited == pid && libc::WIFSTOPPED(status), "it was signalled: wait status {status:#x}");
}

/// The file of a running image is deleted, as by an update of the program.
#[test]
fn an_image_whose_file_was_deleted_is_recognised() {
    let copy = std::env::temp_dir().join(format!("plimsoll-deleted-image-{}", std::process::id()));
    // Another process copies the file. If a fork of another test inherited our open descriptor, exec would fail
    // (ETXTBSY).
    let copied = Command::new("cp").arg(native_image("hello")).arg(&copy).status().expect("cp");
    assert!(copied.success());
    let child = running_hello(&copy);
    std::fs::remove_file(&copy).expect("the copy");
    let (image, gaps) = facts(&child);
    assert_eq!(gaps, []);
    assert_eq!(image.isolates.len(), 1);
}

/// Runs `hello HEAP_MIB SECONDS`.
fn running_hello(image: &Path) -> Running {
    let mut child =
        Command::new(image).args(["16", "1000"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says something");
    Running(child)
}
