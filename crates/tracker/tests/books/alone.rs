//! A test in a process of its own: the tracker's tables are statics, one set for each process.

use std::process::Command;

const INSIDE: &str = "PLIMSOLL_TEST_ALONE";

/// Runs `body` in a process that runs nothing else. The calling thread must be the test's own.
pub fn alone(body: impl FnOnce()) {
    let name = std::thread::current().name().expect("test threads have names").to_string();
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        return body();
    }
    let output = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", &name, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(INSIDE, &name)
        // jemalloc needs static TLS, of which glibc has little left for a library that is loaded late.
        .env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384")
        .output()
        .expect("own program");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("1 passed"), "{name} alone: {}\n{printed}", output.status);
    printed.lines().filter(|l| l.contains("exercised")).for_each(|l| println!("{l}"));
}
