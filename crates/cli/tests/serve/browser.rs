//! The pages of `serve`, and the pages of processes that were killed, in Chromium.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::child::wait_for;
use crate::chromium::Browser;
use crate::kit::{PLIMSOLL, Server, Subject, scratch};

/// Presses the mouse on the middle of an element.
fn click(browser: &mut Browser, element: &str) {
    let middle = format!(
        "(() => {{ const e = document.querySelector('{element}'); e.scrollIntoView({{block: 'center'}}); \
         const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2] }})()"
    );
    let at = browser.value(&middle);
    for kind in ["mousePressed", "mouseReleased"] {
        let event = json!({"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
        browser.call("Input.dispatchMouseEvent", event);
    }
}

#[test]
fn the_list_leads_to_a_page_that_is_read_again_until_the_reader_chooses() {
    let subject = Subject::named("/opt/\"><img src=x onerror='window.pwned = 1'>");
    let server = Server::of(&subject, &["--interval", "1s"]);
    let targets: Value = serde_json::from_str(&server.get("/api/targets").body).expect("JSON");
    let name = targets["targets"][0]["name"].as_str().expect("a name");
    // Curves need two readings.
    wait_for("curves", || server.get(&format!("/{name}")).body.contains("id=\"charts\"").then_some(()));
    let mut browser = Browser::new("serve");
    let list = format!("http://127.0.0.1:{}/", server.port);
    for (width, colours) in [(400, "dark"), (1280, "light")] {
        browser.visit(&list, width, colours);
        browser.fits(width);
        assert_eq!(browser.value("document.querySelector('.targets a').textContent"), name);
        browser.has_no_error();
        browser.visit(&format!("{list}{name}"), width, colours);
        browser.value("for (const d of document.querySelectorAll('details')) d.open = true");
        browser.fits(width);
        assert_eq!(browser.number("document.querySelectorAll('img').length"), 0.0);
        browser.has_no_error();
    }
    browser.visit(&list, 1280, "light");
    click(&mut browser, ".targets a");
    browser.until("location.pathname !== '/' && document.readyState === 'complete'");

    // The page is read again, and unfolded parts stay unfolded.
    browser.value("window.isFirst = true; document.getElementById('lines').open = true");
    browser.until("window.isFirst === undefined && document.readyState === 'complete'");
    assert_eq!(browser.value("document.getElementById('lines').open"), true);
    browser.has_no_error();

    // What the reader chooses stays: by key, and by the mouse. A key that only walks through the page chooses nothing.
    let (button, state) =
        ("document.getElementById('pause').textContent", "document.getElementById('live').textContent");
    browser.value("document.getElementById('moment-a').focus()");
    browser.key("Tab", 9);
    assert_eq!((browser.value(button), browser.value(state)), (json!("Pause"), json!("read again every 15 s")));
    browser.value("document.getElementById('moment-a').focus()");
    browser.key("ArrowRight", 39);
    assert_eq!((browser.value(button), browser.value(state)), (json!("Continue"), json!("paused")));
    click(&mut browser, "#pause");
    assert_eq!((browser.value(button), browser.value(state)), (json!("Pause"), json!("read again every 15 s")));
    click(&mut browser, "#lines thead button");
    assert_eq!(browser.value(button), "Continue");
    browser.has_no_error();

    click(&mut browser, "#pause");
    drop(subject);
    browser.until(&format!("{state} === 'The process has ended.'"));
}

/// The page begins with the end, and proposes nothing that is about the dead process's PID.
fn begins_with_its_end(browser: &mut Browser, page: &Path, end: &str) {
    let html = std::fs::read_to_string(page).expect("a page");
    for (width, colours) in [(400, "dark"), (1280, "light")] {
        browser.open(&html, width, colours);
        browser.value("for (const d of document.querySelectorAll('details')) d.open = true");
        browser.fits(width);
        let ending = browser.value("document.querySelector('main .ending').textContent");
        assert!(ending.as_str().is_some_and(|text| text.starts_with(&format!("Ended: {end}"))), "{ending}");
        let top = browser.number("document.querySelector('main .ending').getBoundingClientRect().top + scrollY");
        assert!(top < 400.0, "the end is {top} px down");
        let first =
            browser.value("document.querySelector('main .ending, main article, main h2:not(.hidden)').className");
        assert_eq!(first, "ending", "the end comes before all else");
        let pid = browser.value("document.querySelector('.facts li').textContent");
        let pid = pid.as_str().and_then(|fact| fact.strip_prefix("pid ")).expect("a PID").to_owned();
        let proposed = browser.value("[...document.querySelectorAll('pre, footer p')].map((e) => e.textContent)");
        for text in proposed.as_array().expect("texts").iter().filter_map(Value::as_str) {
            assert!(!text.split_whitespace().any(|word| word == pid), "process {pid} has ended: {text}");
        }
        browser.has_no_error();
    }
}

#[test]
fn the_page_of_a_killed_process_begins_with_its_end() {
    let folder = scratch("killed");
    let (recording, segments) = (folder.join("x.jfr"), folder.join("segments"));
    let plimsoll = |arguments: &[&str]| {
        let mut command = Command::new(PLIMSOLL);
        command.args(arguments).env("PLIMSOLL_DIR", &segments).current_dir(&folder);
        command.output().expect("plimsoll")
    };
    // A program that the shell started would leave a segment of its own.
    let killed = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; kill -9 $$";
    let killed = plimsoll(&["record", "-o", "x.jfr", "--interval", "50ms", "--", "sh", "-c", killed]);
    assert!(recording.exists(), "{killed:?}");
    let mut browser = Browser::new("killed");
    for (target, end) in [("x.jfr", "killed by signal 9 (SIGKILL"), ("segments", "killed by signal 9 (SIGKILL")] {
        let made = plimsoll(&["report", target, "--format", "html", "-o", "page.html"]);
        assert!(made.status.success(), "{made:?}");
        begins_with_its_end(&mut browser, &folder.join("page.html"), end);
    }
    // Nobody waited for this one: how it ended is not known.
    plimsoll(&["run", "--dir", "alone", "--", "sh", "-c", "kill -9 $$"]);
    let made = plimsoll(&["report", "alone", "--format", "html", "-o", "page.html"]);
    assert!(made.status.success(), "{made:?}");
    begins_with_its_end(
        &mut browser,
        &folder.join("page.html"),
        "ended by _exit, killed, or replaced by exec (not known which)",
    );
}
