//! Metrics, pages and documents of live processes.

use serde_json::Value;

use crate::child::wait_for;
use crate::kit::{Server, Subject};
use crate::metrics::samples;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn metrics_are_those_of_the_process_and_of_the_server() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    let health = server.get("/healthz");
    assert_eq!((health.code, health.body.as_str()), (200, "ok\n"));

    let text = server.get("/metrics");
    assert!(text.head.contains("content-type: text/plain; version=0.0.4"), "{}", text.head);
    let lines = samples(&text.body, "plimsoll_resident_bytes");
    assert!(lines.len() > 3 && lines.iter().all(|(labels, _)| labels.starts_with("target=\"shop\",")), "{lines:?}");
    assert!(lines.values().sum::<f64>() > 300_000.0, "{lines:?}");
    let of_target = text.body.lines().filter(|line| line.contains("{target=\"shop\"")).count();
    assert!((20..=80).contains(&of_target), "{of_target} series\n{}", text.body);
    // The PID is in one series, so that a restart continues the others.
    let pid = format!("pid=\"{}\"", subject.pid());
    assert_eq!(text.body.lines().filter(|line| line.contains(&pid)).count(), 1);
    for own in ["plimsoll_targets 1\n", "plimsoll_serve_cpu_seconds_total ", "plimsoll_serve_resident_bytes "] {
        assert!(text.body.contains(own), "{own}: {}", text.body);
    }

    let open = server.get_with("/metrics", "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n");
    assert!(open.head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{}", open.head);
    assert!(open.body.ends_with("\n# EOF\n") && open.body.contains("# TYPE plimsoll_target info\n"), "{}", open.body);
    assert!(open.body.contains("# TYPE plimsoll_serve_cpu_seconds counter\n"), "{}", open.body);
}

#[test]
fn documents_are_those_of_the_command_line() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    let targets = json(&server.get("/api/targets").body);
    assert_eq!(targets["schema"], "plimsoll.targets/1");
    assert_eq!(targets["targets"][0]["name"], "shop");
    assert_eq!(targets["targets"][0]["pid"].to_string(), subject.pid());
    let ledger = json(&server.get("/api/shop/explain").body);
    assert_eq!(ledger["schema"], "plimsoll.ledger/1");
    let lines = ledger["lines"].as_array().expect("lines").iter().map(|line| line["resident_bytes"].as_i64());
    let sum: i64 = lines.flatten().sum::<i64>() + ledger["remainder_bytes"].as_i64().expect("a number");
    assert_eq!(Some(sum), ledger["rss_bytes"].as_i64());
    let report = server.get("/api/shop/report");
    assert!(report.code == 404 && report.body.contains("is not tracked"), "{report:?}");
    for path in ["/api/other/explain", "/other", "/etc/passwd"] {
        assert_eq!(server.get(path).code, 404, "{path}");
    }
}

#[test]
fn a_tracked_process_has_its_report_and_its_categories() {
    let mut command = std::process::Command::new(crate::kit::PLIMSOLL);
    let segments = crate::kit::scratch("tracked");
    command.args(["run", "--dir"]).arg(&segments).args(["--", "sh", "-c", "echo up; read end"]);
    let subject = Subject::of(command);
    let server = Server::of(&subject, &[]);
    let text = server.get("/metrics").body;
    assert!(samples(&text, "plimsoll_native_live_bytes").values().sum::<f64>() > 0.0, "{text}");
    assert_eq!(json(&server.get("/api/sh/report").body)["schema"], "plimsoll.report/1");
    assert!(server.get("/sh").body.contains("id=\"stacks\""));
}

#[test]
fn pages_carry_their_policy() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    let list = server.get("/");
    assert!(list.code == 200 && list.body.contains("<a href=\"/shop\">shop</a>"), "{list:?}");
    let page = server.get("/shop");
    assert!(page.code == 200 && page.body.contains("echo up; read end"), "{page:?}");
    for answer in [&list, &page] {
        for line in [
            "content-type: text/html; charset=utf-8",
            "content-security-policy: default-src 'none'; style-src 'sha256-",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
        ] {
            assert!(answer.head.contains(line), "{line}: {}", answer.head);
        }
        assert!(!answer.head.contains("unsafe-inline"), "{}", answer.head);
    }
    // HEAD has the head alone.
    let head = server.send(b"HEAD /shop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_name_is_served_again_after_a_restart() {
    let first = Subject::named("plimsoll-restarted");
    let server = Server::start(&["plimsoll-restarted", "--interval", "1s"]);
    let pid = || {
        let targets = json(&server.get("/api/targets").body);
        let of = targets["targets"].as_array().expect("targets").iter().find(|of| of["name"] == "plimsoll-restarted");
        of.map(|of| of["pid"].to_string())
    };
    wait_for("the first one", || (pid() == Some(first.pid())).then_some(()));
    drop(first);
    wait_for("its end", || (pid().is_none() && server.get("/plimsoll-restarted").code == 404).then_some(()));
    let second = Subject::named("plimsoll-restarted");
    wait_for("the second one", || (pid() == Some(second.pid())).then_some(()));
}
