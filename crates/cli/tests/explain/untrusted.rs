//! Names from a target never reach the terminal unescaped, and never make a line of their own.

use std::process::Command;

use crate::fixture::{Explained, Fixture, compiled, fresh, run};

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

/// The page of a live process, and the page of its saved JSON: the same figures, and no name that is markup.
#[test]
fn the_page_of_a_hostile_process_has_one_script_and_it_is_ours() {
    let mut command = Command::new(compiled("hostile", &[]));
    command.args(["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\u{202e}gnp"]);
    let fixture = Fixture::run(&mut command);
    let folder = fresh("page");
    let [page, json, again] =
        ["live.html", "saved.json", "saved.html"].map(|name| folder.join(name).display().to_string());
    for arguments in [["--format", "html", "-o", &page], ["--format", "json", "-o", &json]] {
        let output = run(fixture.pid(), &arguments);
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    }
    let plimsoll = env!("CARGO_BIN_EXE_plimsoll");
    let output = Command::new(plimsoll).args(["report", &json, "--format", "html", "-o", &again]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut cards = Vec::new();
    for file in [page, again] {
        let html = std::fs::read_to_string(&file).unwrap();
        assert!(is_printable(&html) && !html.contains('\u{202e}'), "{file}");
        assert_eq!(html.matches("<script").count(), 2, "{file}: our data and our script");
        assert!(!html.contains("<img") && html.contains("&lt;img src=x onerror=alert(1)&gt;"), "{file}");
        let verdict = html.split("class=\"verdict").nth(1).and_then(|rest| rest.split("</article>").next());
        cards.push(verdict.expect("a verdict").to_owned());
    }
    assert_eq!(cards[0], cards[1]);
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
