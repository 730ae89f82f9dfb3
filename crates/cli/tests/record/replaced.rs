//! A program that replaces itself by another build under the same path, as servers do for an upgrade.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::reader::{self, Read};
use crate::{Running, Workspace, events, stage, wait_until};

/// `NAME` is the function that allocates. Its name is all that differs, so both builds have it at one offset.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) void *NAME(void) {
    char *block = malloc(1 << 16);
    if (block)
        *(volatile char *)block = 1;
    return block;
}
int main(int argc, char **argv) {
    for (int at = 0; at < 64; at++)
        if (!NAME())
            return 1;
    puts("ready");
    fflush(stdout);
    char line[8];
    if (argc == 1 && fgets(line, sizeof line, stdin))
        execv(argv[0], argv);
    return 0;
}
"#;

/// Whether a stack of the last sites has this function.
fn has(read: &Read, function: &str) -> bool {
    let last = events(read, "plimsoll.Site").map(|site| site.time_ns).max();
    events(read, "plimsoll.Site")
        .filter(|site| Some(site.time_ns) == last)
        .any(|site| format!("{:?}", site.fields["stackTrace"]).contains(function))
}

#[test]
fn functions_after_an_exec_are_those_of_the_new_build() {
    let workspace = Workspace::new("replaced");
    std::fs::write(workspace.path("shop.c"), SOURCE).expect("a file");
    let built = |program: &str, name: &str| {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-Wall", "-Werror", &format!("-DNAME={name}"), "-o"]);
        stage::must(gcc.arg(workspace.path(program)).arg(workspace.path("shop.c")));
    };
    built("shop", "maker_one");
    built("next", "maker_two");
    let program = workspace.path("shop");
    let mut record = workspace.plimsoll(&["record", "-o", "n.jfr", "--interval", "4s", "--sites", "exact", "--"]);
    record.arg(&program).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut recorder = Running(record.spawn().expect("plimsoll starts"));
    let mut stdin = recorder.0.stdin.take().expect("piped");
    let mut lines = BufReader::new(recorder.0.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    // A new file begins with a full instant.
    recorder.signal("HUP");
    let written = || reader::read(&std::fs::read(workspace.path("n.jfr")).unwrap_or_default());
    wait_until("the first name", || written().is_ok_and(|read| has(&read, "maker_one")));
    std::fs::rename(workspace.path("next"), &program).expect("our own");
    writeln!(stdin, "go").expect("it reads");
    assert_eq!(lines.next().as_deref(), Some("ready"));
    drop(stdin);
    assert!(recorder.0.wait().expect("our child").success());
    let read = workspace.read("n.jfr");
    assert!(has(&read, "maker_two") && !has(&read, "maker_one"));
}
