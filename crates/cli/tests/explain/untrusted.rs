//! Names from a target never reach the terminal unescaped, and never make a line of their own.

use std::process::Command;

use crate::fixture::{Explained, Fixture, compiled, run};

fn is_printable(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || !c.is_control())
}

#[test]
fn names_with_control_characters_are_escaped_everywhere() {
    let mut command = Command::new(compiled("hostile", &[]));
    command.args(["\x1b]0;title\x07", "a\r\nsum  0 B = RSS", "\u{202e}gnp"]);
    let fixture = Fixture::run(&mut command);
    for arguments in [&[][..], &["--maps"], &["--arenas"], &["--maps", "--arenas"]] {
        let output = run(fixture.pid(), arguments);
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(is_printable(&text), "{arguments:?}: {text:?}");
        assert!(!text.contains('\u{202e}'));
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
    }
    let explained = fixture.explained();
    explained.line_is("shared-memory", fixture.truth("shared"));
}

#[test]
fn a_long_command_is_cut_to_the_screen() {
    let long = "x".repeat(100_000);
    let fixture = Fixture::run(Command::new(compiled("healthy", &[])).args(["8", &long]));
    let text = String::from_utf8(run(fixture.pid(), &[]).stdout).unwrap();
    let first = text.lines().next().unwrap();
    assert!(first.chars().count() <= 132, "{}", first.chars().count());
}

#[test]
fn no_colours_without_a_terminal() {
    let fixture = Fixture::c("healthy", &["8"]);
    let output = run(fixture.pid(), &[]);
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn the_text_and_the_json_state_the_same_sum() {
    let fixture = Fixture::c("healthy", &[]);
    let json: Explained = fixture.explained();
    let text = String::from_utf8(run(fixture.pid(), &[]).stdout).unwrap();
    let line = text.lines().find(|line| line.trim_start().starts_with("sum ")).expect("a sum");
    assert!(line.ends_with("= RSS"), "{line}");
    let mib = json.0["rss_bytes"].as_u64().unwrap() as f64 / (1 << 20) as f64;
    assert!(line.contains(&format!("{mib:.1} MiB")), "{line} {mib}");
}
