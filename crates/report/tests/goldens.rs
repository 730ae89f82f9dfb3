//! Each format of the same known books, to the byte. BLESS=1 writes the goldens anew.

use std::path::PathBuf;

use plimsoll_observer::books::Books;
use plimsoll_observer::source::segment::{self, Life};
use plimsoll_report::{json, text};

#[path = "../../observer/tests/synthetic/mod.rs"]
mod synthetic;

fn server() -> Books {
    static NAME: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let name = NAME.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("plimsoll-golden-{}-{name}.seg", std::process::id()));
    std::fs::write(&path, synthetic::server(4711).trimmed()).unwrap();
    let segment = segment::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    Books::new(&segment, Life::Killed, 1_010_000_000_000)
}

fn golden(name: &str, text: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let want = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; BLESS=1 makes it", path.display()));
    let (want, text) = (String::from_utf8(want).unwrap(), String::from_utf8(text.to_vec()).unwrap());
    assert!(want == text, "{name} differs; BLESS=1 takes the new one:\n{text}");
}

fn bytes(write: impl Fn(&mut dyn std::io::Write) -> std::io::Result<()>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    out
}

#[test]
fn text_by_everything() {
    let books = server();
    for (by, name) in [
        (text::By::Category, "report.txt"),
        (text::By::Caller, "report-by-caller.txt"),
        (text::By::Module, "report-by-module.txt"),
        (text::By::Thread, "report-by-thread.txt"),
    ] {
        golden(name, &bytes(|out| text::write(out, &books, by)));
    }
}

#[test]
fn json_and_back() {
    let books = server();
    let written = bytes(|out| json::write(out, &books));
    golden("report.json", &written);
    let again = bytes(|out| json::write(out, &json::parse(&written).unwrap()));
    assert!(written == again, "a saved report reads as what it was");
}

#[test]
fn what_is_no_report_is_refused_in_one_sentence() {
    for (bytes, say) in [
        (&b"{}"[..], "it is no report"),
        (
            b"{\"schema\":\"plimsoll.ledger/1\"}",
            "its schema is 'plimsoll.ledger/1', this plimsoll reads 'plimsoll.report/1'",
        ),
        (b"{\"schema\":\"plimsoll.report/1\"}", "it is a damaged report"),
        (b"\xff\xfe", "it is no report"),
    ] {
        let error = json::parse(bytes).unwrap_err();
        assert!(error.starts_with(say) && !error.contains('\n'), "{error}");
    }
}
