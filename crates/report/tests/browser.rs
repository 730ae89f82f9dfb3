//! The page in Chromium: no error, no script of a target, no horizontal scroll bar, keyboard, two moments, paper.
//! The browser is driven by its own protocol over a pair of pipes (`--remote-debugging-pipe`).

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

mod page_kit;
use page_kit::{html, ledger, recording};

/// A page that isn't loaded by then will never be.
const PATIENCE: Duration = Duration::from_secs(120);

struct Browser {
    child: Child,
    commands: File,
    answers: File,
    unread: Vec<u8>,
    session: String,
    number: u64,
    /// Events of the browser that came between answers, errors included.
    events: Vec<Json>,
    folder: PathBuf,
}

impl Browser {
    fn new(name: &str) -> Browser {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("browser-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let [commands, answers] = ["commands", "answers"].map(|name| folder.join(name));
        assert!(Command::new("mkfifo").args([&commands, &answers]).status().expect("mkfifo").success());
        let script = "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                      --user-data-dir=\"$2\" --remote-debugging-pipe about:blank 3<\"$0\" 4>\"$1\"";
        let child = Command::new("sh")
            .args(["-c", script])
            .args([&commands, &answers, &folder.join("profile")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        // Each open waits for the other side, in the order of the shell's redirections.
        let commands = OpenOptions::new().write(true).open(&commands).expect("a pipe");
        let answers = File::open(&answers).expect("a pipe");
        let mut browser = Browser {
            child,
            commands,
            answers,
            unread: vec![],
            session: String::new(),
            number: 0,
            events: vec![],
            folder,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    fn call(&mut self, method: &str, parameters: Json) -> Json {
        self.number += 1;
        let mut command = json!({"id": self.number, "method": method, "params": parameters});
        if !self.session.is_empty() {
            command["sessionId"] = json!(self.session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("the browser lives (is chromium installed? .ci/setup)");
        loop {
            let message = self.message();
            if message["id"] != self.number {
                self.events.push(message);
                continue;
            }
            assert!(message["error"].is_null(), "{method}: {}", message["error"]);
            return message["result"].clone();
        }
    }

    fn message(&mut self) -> Json {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&message[..end]).expect("JSON");
            }
            let mut piece = vec![0; 1 << 16];
            let length = self.answers.read(&mut piece).expect("a pipe");
            assert!(length > 0, "the browser ended (is chromium installed? .ci/setup)");
            self.unread.extend_from_slice(&piece[..length]);
        }
    }

    /// The value of an expression in the page. The page's policy doesn't apply to it.
    fn value(&mut self, expression: &str) -> Json {
        let result = self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    fn number(&mut self, expression: &str) -> f64 {
        self.value(expression).as_f64().unwrap_or_else(|| panic!("{expression} is not a number"))
    }

    fn open(&mut self, page: &str, width: u32, colours: &str) {
        let file = self.folder.join("page.html");
        std::fs::write(&file, page).expect("written");
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let feature = json!([{"name": "prefers-color-scheme", "value": colours}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": feature}));
        self.call("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        self.until("location.protocol === 'file:' && document.readyState === 'complete'");
    }

    fn until(&mut self, condition: &str) {
        let end = Instant::now() + PATIENCE;
        while self.value(condition) != true {
            assert!(Instant::now() < end, "never: {condition}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn key(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let text = if key == "Enter" { "\r" } else { "" };
            let event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    fn has_no_error(&mut self) {
        // The answer comes after the events before it.
        self.value("1");
        let is_error = |event: &&Json| {
            matches!(
                event["method"].as_str(),
                Some("Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled")
            )
        };
        let errors: Vec<&Json> = self.events.iter().filter(is_error).collect();
        assert!(errors.is_empty(), "{errors:#?}");
        assert_eq!(self.value("typeof window.pwned"), "undefined", "a name of the target ran");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn hostile_names_do_nothing_and_every_width_fits() {
    let mut browser = Browser::new("widths");
    for page in [html(&ledger()), html(&recording())] {
        for (width, colours) in [(400, "dark"), (400, "light"), (1280, "light"), (1280, "dark")] {
            browser.open(&page, width, colours);
            browser.value("for (const d of document.querySelectorAll('details')) d.open = true");
            let wide = browser.number("document.documentElement.scrollWidth - document.documentElement.clientWidth");
            assert!(wide <= 0.0, "{width} px: the page is {wide} px too wide");
            // Text and paper differ in each colour scheme.
            let paper = browser.value("getComputedStyle(document.body).backgroundColor");
            assert_eq!(paper, if colours == "dark" { "rgb(20, 24, 27)" } else { "rgb(255, 255, 255)" });
            // Every name is a text: the elements are those of the page.
            assert_eq!(browser.number("document.querySelectorAll('img, iframe, script:not([type])').length"), 1.0);
            assert_eq!(browser.number("document.querySelectorAll('[onload], [onerror], [onmouseover]').length"), 0.0);
            browser.has_no_error();
        }
        let verdict = browser.number("document.querySelector('.verdict .sentence')?.getBoundingClientRect().top ?? 0");
        assert!(verdict < 900.0, "the verdict is {verdict} px down");
        let paper = browser.call("Page.printToPDF", json!({"printBackground": true}));
        assert!(paper["data"].as_str().is_some_and(|pdf| pdf.len() > 10_000), "no paper");
        browser.has_no_error();
    }
}

#[test]
fn two_moments_are_picked_by_keyboard_and_by_pointer() {
    let mut browser = Browser::new("moments");
    browser.open(&html(&recording()), 1280, "light");
    browser.until("document.querySelectorAll('#drawn svg[viewBox]').length > 1");
    let change = "document.querySelector('#charts td[data-h=change]').textContent";
    let whole = browser.value(change);
    browser.value("document.getElementById('moment-a').focus()");
    for _ in 0..5 {
        browser.key("ArrowRight", 39);
    }
    assert_eq!(browser.number("Number(document.getElementById('moment-a').value)"), 5.0);
    assert_eq!(
        browser.value("document.getElementById('moment-a').getAttribute('aria-valuetext')"),
        "2026-11-20 18:46:00"
    );
    let at = browser.value("(() => { const svg = document.querySelector('#drawn svg'); svg.scrollIntoView(); const r = svg.getBoundingClientRect(); return [r.left + r.width * 0.6, r.top + 100] })()");
    for kind in ["mousePressed", "mouseReleased"] {
        let event = json!({"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
        browser.call("Input.dispatchMouseEvent", event);
    }
    let moved = browser.number("Number(document.getElementById('moment-b').value)");
    assert!((700.0..1000.0).contains(&moved), "B is at {moved}");
    assert_ne!(browser.value(change), whole);
    // By site: the 20 sites that grow, and no others.
    let sites = browser.value("[...document.querySelectorAll('#charts details')].map((d) => [d.firstChild.textContent, d.querySelectorAll('tbody tr').length])");
    let sites = sites.as_array().expect("tables").iter().find(|table| table[0] == "live by call site").expect("sites");
    assert_eq!(sites[1], 20);
    browser.has_no_error();
}

#[test]
fn flame_graph_and_tables_work_by_keyboard() {
    let mut browser = Browser::new("flame");
    browser.open(&html(&recording()), 1280, "light");
    let boxes = "document.querySelectorAll('.flame-boxes [data-call]').length";
    assert!(browser.number(boxes) > 50.0);
    browser.value("document.querySelector('.flame-boxes [tabindex=\"0\"]').focus()");
    let focused = "document.activeElement.textContent";
    assert_eq!(browser.value(focused), "all");
    browser.key("ArrowDown", 40);
    assert_eq!(browser.value(focused), "main");
    browser.key("ArrowDown", 40);
    browser.key("ArrowRight", 39);
    let all = browser.number(boxes);
    browser.key("Enter", 13);
    assert!(browser.number(boxes) < all, "Enter zooms into a box");
    browser.key("Escape", 27);
    assert_eq!(browser.number(boxes), all);
    browser.value("(() => { const f = document.getElementById('flame-search'); f.value = '^allocate_1[0-9]?_'; f.dispatchEvent(new Event('input')) })()");
    assert!(
        browser
            .value("document.querySelector('.flame-bar [role=status]').textContent")
            .as_str()
            .is_some_and(|text| text.contains("calls match"))
    );
    assert!(browser.number("document.querySelectorAll('.flame-boxes .hit').length") > 0.0);
    // The views of growth and of live bytes differ.
    let label = "document.querySelector('.flame-boxes').firstChild.getAttribute('aria-label')";
    let growth = browser.value(label);
    browser.value("(() => { const s = document.getElementById('flame-view'); s.value = '1'; s.dispatchEvent(new Event('change')) })()");
    assert_ne!(browser.value(label), growth);
    let column = "[...document.querySelectorAll('#of-lines tbody tr')].map((row) => Number(row.cells[5].dataset.v))";
    browser.value("document.getElementById('of-lines').open = true; document.querySelector('#of-lines th:nth-child(6) button').click()");
    let peaks: Vec<f64> = serde_json::from_value(browser.value(column)).expect("numbers");
    assert!(peaks.len() == 25 && peaks.is_sorted_by(|one, other| one >= other), "{peaks:?}");
    assert_eq!(
        browser.value("document.querySelector('#of-lines th:nth-child(6)').getAttribute('aria-sort')"),
        "descending"
    );
    browser.has_no_error();
}
