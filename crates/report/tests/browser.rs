//! The page in Chromium: no error, no script of a target, no horizontal scroll bar, keyboard, two moments, paper.

use serde_json::{Value as Json, json};

#[path = "../../../fixtures/browser.rs"]
mod chromium;
mod page_kit;
use chromium::Browser;
use page_kit::{html, ledger, recording, short};

#[test]
fn hostile_names_do_nothing_and_every_width_fits() {
    let mut browser = Browser::new("widths");
    for page in [html(&ledger()), html(&recording())] {
        for (width, colours) in [(400, "dark"), (400, "light"), (1280, "light"), (1280, "dark")] {
            browser.open(&page, width, colours);
            browser.value("for (const d of document.querySelectorAll('details')) d.open = true");
            browser.fits(width);
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

/// What a screen reader says of a control is its name.
#[test]
fn every_control_has_a_name() {
    let mut browser = Browser::new("names");
    browser.call("Accessibility.enable", json!({}));
    let kinds = ["button", "link", "combobox", "slider", "searchbox", "treeitem", "image", "img", "DisclosureTriangle"];
    let mut found = Vec::new();
    for page in [html(&ledger()), html(&recording())] {
        browser.open(&page, 1280, "light");
        browser.value("for (const d of document.querySelectorAll('details')) d.open = true");
        let tree = browser.call("Accessibility.getFullAXTree", json!({}));
        let text = |node: &Json, key: &str| node[key]["value"].as_str().unwrap_or_default().trim().to_owned();
        for node in tree["nodes"].as_array().expect("nodes").iter().filter(|node| node["ignored"] != true) {
            let role = text(node, "role");
            if kinds.contains(&role.as_str()) {
                assert!(!text(node, "name").is_empty(), "a {role} without a name: {node:#}");
                found.push(role);
            }
        }
    }
    for kind in &kinds[..6] {
        assert!(found.iter().any(|role| role == kind), "no {kind} among {found:?}");
    }
}

/// The labels of each time axis, and whether they lie apart and inside of the picture.
fn axes(browser: &mut Browser) -> Vec<Vec<String>> {
    browser.until("document.querySelectorAll('#drawn svg[viewBox][role=img]').length > 1");
    let found = browser.value(
        "[...document.querySelectorAll('#drawn svg[role=img]')].map((svg) => { \
           const whole = svg.getBoundingClientRect(); \
           const labels = [...svg.querySelectorAll('text')].filter((text) => /:/.test(text.textContent)); \
           return labels.map((text) => { const r = text.getBoundingClientRect(); \
             return [text.textContent, r.left - whole.left, r.right - whole.left, whole.width] }) })",
    );
    let axis = |labels: &Json| {
        let labels = labels.as_array().expect("labels");
        let number = |label: &Json, at: usize| label[at].as_f64().expect("a place");
        for label in labels {
            assert!(number(label, 1) >= 0.0 && number(label, 2) <= number(label, 3) + 0.5, "cut: {labels:?}");
        }
        for pair in labels.windows(2) {
            assert!(number(&pair[0], 2) + 4.0 < number(&pair[1], 1), "one over another: {labels:?}");
        }
        labels.iter().map(|label| label[0].as_str().expect("a text").to_owned()).collect::<Vec<_>>()
    };
    found.as_array().expect("charts").iter().map(axis).collect()
}

/// A chart of any length has at least two labels. They lie apart, and differ unless it covers only a millisecond.
#[test]
fn the_labels_of_a_time_axis_differ_and_lie_apart() {
    let mut browser = Browser::new("labels");
    for (milliseconds, length) in [(1, 12), (1000, 12), (9_999, 12), (32_000, 8), (7_200_000, 8), (400_000_000, 19)] {
        let page = html(&short(milliseconds, &[0, milliseconds]));
        for width in [400, 700, 1280] {
            browser.open(&page, width, "light");
            let axes = axes(&mut browser);
            for labels in &axes {
                assert!(labels.len() >= 2 && labels.iter().all(|label| label.len() == length), "{labels:?}");
                // A millisecond has two.
                assert!(milliseconds == 1 || labels.is_sorted_by(|one, other| one < other), "{labels:?}");
            }
            browser.has_no_error();
        }
    }
}

#[test]
fn a_curve_is_drawn_from_its_first_to_its_last_reading() {
    let mut browser = Browser::new("readings");
    let shapes = "[...document.querySelectorAll('#drawn svg[role=img]')].map((svg) => ['path', 'circle', 'rect'].map((tag) => \
                  svg.querySelectorAll(tag + ':not(.gap):not(.spread):not(.under)').length))";
    let legend = "[...document.querySelectorAll('#drawn .legend li')].map((li) => li.textContent)";
    let said = "document.querySelector('#charts p[aria-live]').textContent";
    // One reading half a minute before the end: a point.
    browser.open(&html(&short(32_000, &[0])), 1280, "light");
    let _ = axes(&mut browser);
    assert_eq!(browser.value(shapes), json!([[0, 2, 0], [0, 0, 9]]));
    let names = browser.value(legend);
    let names: Vec<&str> = names.as_array().expect("names").iter().filter_map(Json::as_str).collect();
    assert_eq!(names[0], "RSS 778 MiB, 1 reading");
    assert!(names.contains(&"line 0 90.0 MiB, 1 reading"), "{names:?}");
    assert!(names.contains(&"line 8 82.0 MiB, 1 reading"), "the ninth alone isn't '1 others': {names:?}");
    let told = browser.value(said);
    assert!(told.as_str().is_some_and(|told| told.ends_with(": RSS 778 MiB, read once at 18:40:00")), "{told}");
    let title = browser.value("document.getElementById('memory-h').textContent");
    assert_eq!(title, "Where the memory was at the last reading, 2026-11-20 18:40:00 UTC, 32.0 s before the end");
    browser.has_no_error();
    // The curves end in the middle of the picture, 70 from its left and 10 from its right edge.
    browser.open(&html(&short(32_000, &[0, 16_000])), 1280, "light");
    let _ = axes(&mut browser);
    let ends = browser.value(
        "[...document.querySelectorAll('#drawn path.curve, #drawn path.layer')].map((path) => { const box = path.getBBox(); \
         return (box.x + box.width - 70) / (path.ownerSVGElement.clientWidth - 80) })",
    );
    let ends: Vec<f64> = serde_json::from_value(ends).expect("numbers");
    assert!(ends.len() == 11 && ends.iter().all(|end| (0.49..0.52).contains(end)), "{ends:?}");
    // Straight from one reading to the next: half of the rise in the middle.
    let rise = browser.value(
        "(() => { const at = document.querySelector('#drawn path.curve.s-ink').getAttribute('d').match(/[0-9.]+ [0-9.]+/g) \
         .map((point) => point.split(' ').map(Number)), [[x0, y0], [x1, y1]] = [at[0], at[at.length - 1]]; \
         return [y0 - y1, Math.max(...at.map(([x, y]) => Math.abs(y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y)))] })()",
    );
    let rise: [f64; 2] = serde_json::from_value(rise).expect("numbers");
    assert!(rise[0] > 20.0 && rise[1] < 0.2, "{rise:?}");
    let told = browser.value(said);
    let words = told.as_str().expect("a text");
    assert!(words.contains("RSS 778 MiB → 878 MiB (+100 MiB), last read at 18:40:16"), "{told}");
    let caption = browser.value("document.querySelector('#charts caption').textContent");
    assert!(caption.as_str().is_some_and(|text| text.ends_with(" They were last read at 18:40:16.")), "{caption}");
    browser.has_no_error();
}
