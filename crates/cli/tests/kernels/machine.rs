//! A machine with one of the kernels: qemu without KVM, its disk a cpio archive with busybox, the static program, C
//! programs and the C library that they need. It runs fixtures/kernels/init, then ends; what it wrote are the rows.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use serde_json::Value;

use crate::kernel::{Kernel, SUITES};
use crate::rows::{Row, rows};
use crate::{repository, roots, target};

/// Seconds for one boot, while other tests run.
const LONGEST: &str = "1200";

pub struct Machine {
    /// The release of its kernel.
    pub release: String,
    rows: BTreeMap<String, Row>,
}

impl Machine {
    pub fn row(&self, name: &str) -> &Row {
        self.rows.get(name).unwrap_or_else(|| panic!("{}: no row {name}", self.release))
    }

    pub fn has(&self, name: &str) -> bool {
        self.rows.contains_key(name)
    }

    pub fn json(&self, name: &str) -> Value {
        let Row { out, err, status } = self.row(name);
        serde_json::from_str(out).unwrap_or_else(|e| panic!("{} {name}: {e}: {status} {out}{err}", self.release))
    }

    /// The output of a row that must succeed.
    pub fn text(&self, name: &str) -> &str {
        let Row { out, err, status } = self.row(name);
        assert_eq!(*status, 0, "{} {name}: {out}{err}", self.release);
        out
    }
}

/// The machines of all suites, each booted once, one at a time.
pub fn machines() -> impl Iterator<Item = &'static Machine> {
    static BOOTED: [OnceLock<Machine>; SUITES.len()] = [const { OnceLock::new() }; SUITES.len()];
    static ONE: Mutex<()> = Mutex::new(());
    let is_known = cfg!(target_arch = "x86_64");
    if !is_known {
        println!("kernels: skipped, these machines are x86-64");
    }
    BOOTED.iter().zip(SUITES).filter(move |_| is_known).map(|(machine, (suite, version))| {
        let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let machine = machine.get_or_init(|| boot(suite));
        assert!(machine.release.starts_with(version), "{suite}: {}", machine.release);
        machine
    })
}

fn boot(suite: &str) -> Machine {
    let kernel = Kernel::of(suite, target());
    let disk = disk(suite, kernel.ram_disk.as_deref());
    let mut qemu = Command::new("timeout");
    qemu.args(["-s", "KILL", LONGEST, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]);
    qemu.args(["-m", "1024", "-display", "none", "-monitor", "none", "-serial", "stdio", "-nic", "none", "-no-reboot"]);
    // The kernel's check of its timers fails if the machine gets no CPU for a moment.
    qemu.args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check tsc=reliable"]);
    let done = qemu.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&disk).stdin(Stdio::null()).output();
    let done = done.expect("timeout");
    fs::remove_file(disk).expect("ours");
    let console = String::from_utf8_lossy(&done.stdout).replace('\r', "");
    let rows = rows(&console);
    let end = rows.get("kernel").zip(rows.get("yama-report"));
    let (kernel, _) = end.unwrap_or_else(|| panic!("{suite}: {console}{}", String::from_utf8_lossy(&done.stderr)));
    Machine { release: kernel.out.trim().to_owned(), rows }
}

/// The archive that the kernel unpacks as its root.
fn disk(suite: &str, ram_disk: Option<&Path>) -> PathBuf {
    let root = target().join("kernels").join(format!("root-{suite}-{}", std::process::id()));
    let bin = root.join("bin");
    for folder in ["bin", "proc", "sys", "dev", "tmp", "root", "etc", "lib64", "lib/x86_64-linux-gnu"] {
        fs::create_dir_all(root.join(folder)).expect("target/ is ours");
    }
    let copy = |from: &str, to: &str| fs::copy(from, root.join(to)).unwrap_or_else(|e| panic!("{from}: {e}"));
    copy("/bin/busybox", "bin/busybox");
    let applets = Command::new("/bin/busybox").arg("--list").output().expect("busybox (.ci/setup full)").stdout;
    for applet in String::from_utf8_lossy(&applets).lines().filter(|name| !["busybox", "true"].contains(name)) {
        symlink("busybox", bin.join(applet)).expect("a new link");
    }
    // doctor tries the tracker with it, so it must not be static.
    copy("/bin/true", "bin/true");
    copy("/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2");
    copy("/lib/x86_64-linux-gnu/libc.so.6", "lib/x86_64-linux-gnu/libc.so.6");
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n").expect("ours");
    let done = |command: &mut Command| {
        let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    done(Command::new("strip").arg("-o").arg(bin.join("plimsoll")).arg(roots::static_program(target())));
    let fixtures = repository().join("fixtures");
    for source in ["c/many_blocks", "explain/huge", "kernels/features", "kernels/hog", "kernels/paths"] {
        let (source, name) = (fixtures.join(source).with_extension("c"), source.split_once('/').expect("a path").1);
        done(Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(bin.join(name)).arg(source));
    }
    done(Command::new("install").arg(fixtures.join("kernels/init")).arg(root.join("init")));
    if let Some(module) = ram_disk {
        fs::copy(module, root.join("brd.ko")).expect("a module");
    }
    let archive = root.with_extension("cpio");
    let script = r#"cd "$0" && find . | cpio --quiet -o -H newc -R 0:0 >"$1""#;
    done(Command::new("sh").args(["-c", script]).arg(&root).arg(&archive));
    fs::remove_dir_all(root).expect("ours");
    archive
}
