//! Clients that are slow, many, huge or forged, and targets with hostile names.

use std::io::{Read, Write};
use std::net::Shutdown;

use crate::kit::{Answer, Server, Subject, scratch};

const GOOD: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn no_answer_to_head_has_a_body() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    for (target, host, code) in
        [("/", "127.0.0.1", 200), ("/", "evil.example", 403), ("/a/b/c", "127.0.0.1", 404), ("x", "127.0.0.1", 400)]
    {
        let ask = |method: &str| {
            let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            Answer::of(&server.send(request.as_bytes()))
        };
        let (get, head) = (ask("GET"), ask("HEAD"));
        assert_eq!((get.code, head.code), (code, code), "{target} {host}");
        assert!(!get.body.is_empty() && head.body.is_empty(), "{target} {host}: {head:?}");
        assert!(head.head.contains("\r\ncontent-length: ") && !head.head.contains("\r\ncontent-length: 0"), "{head:?}");
    }
}

#[test]
fn forged_and_oversized_requests_are_refused() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    for (request, code) in [
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), 403),
        ("GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n".into(), 403),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}".into(), 405),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {}\r\n\r\n", "x".repeat(100_000)), 431),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "A: b\r\n".repeat(100)), 431),
        ("GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n".into(), 404),
        ("GET /%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n".into(), 404),
        ("\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n".into(), 400),
    ] {
        let answer = Answer::of(&server.send(request.as_bytes()));
        assert_eq!(answer.code, code, "{request:.80}: {answer:?}");
        assert!(answer.head.contains("nosniff") && answer.body.lines().count() == 1, "{answer:?}");
    }
    assert_eq!(server.get("/healthz").code, 200);
}

/// Far more clients than the listener takes at a time: clients that send no whole request make way for one that does.
#[test]
fn clients_that_never_finish_keep_nobody_out() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    let slow: Vec<_> = (0..600)
        .map(|n| {
            let mut stream = server.connect();
            if n % 2 == 0 {
                let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: loc");
            }
            stream
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(server.get("/healthz").code, 200);
        assert_eq!(server.get("/metrics").code, 200);
    }
    // The listener cuts each of them after 5 s.
    let ends = slow.into_iter().map(|mut stream| {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    assert!(ends.into_iter().all(|text| text.is_empty() || text.starts_with("HTTP/1.1 408 ")));
    assert_eq!(server.get("/healthz").code, 200);
}

#[test]
fn pipelined_and_half_closed_requests_are_answered_in_order() {
    let subject = Subject::named("shop");
    let server = Server::of(&subject, &[]);
    let mut stream = server.connect();
    let last = "GET /nothing/here HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream
        .write_all(format!("{GOOD}GET /api/targets HTTP/1.1\r\nHost: localhost\r\n\r\n{GOOD}{last}").as_bytes())
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    let found: Vec<_> = ["\r\n\r\nok\n", "plimsoll.targets/1", "\r\n\r\nok\nHTTP/1.1 404 "]
        .iter()
        .map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}")))
        .collect();
    assert!(found.is_sorted(), "{text}");

    let mut stream = server.connect();
    stream.write_all(b"GET /shop HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("</html>\n"), "{text:.200}");

    // Clients that close before the answer.
    for _ in 0..20 {
        server.connect().write_all(b"GET /shop HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    assert_eq!(server.get("/healthz").code, 200);
}

#[test]
fn names_and_arguments_of_a_target_stay_text() {
    let subject = Subject::named("/opt/\"><script>alert(1)</script>\n# TYPE forged counter\nforged 1");
    let server = Server::of(&subject, &[]);
    let text = server.get("/metrics").body;
    assert!(!text.lines().any(|line| line.starts_with("forged") || line.contains('<')), "{text}");
    let targets: serde_json::Value = serde_json::from_str(&server.get("/api/targets").body).expect("JSON");
    let name = targets["targets"][0]["name"].as_str().expect("a name").to_owned();
    assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)), "{name}");
    for path in ["/".to_owned(), format!("/{name}")] {
        let page = server.get(&path);
        assert!(page.code == 200 && !page.body.contains("<script>alert"), "{path}: {page:?}");
        assert!(page.body.contains("&lt;script&gt;alert"), "{path}");
    }
}

#[test]
fn a_token_is_required() {
    let subject = Subject::named("shop");
    let file = scratch("token").join("token");
    std::fs::write(&file, "correct-horse-battery\n").expect("a file");
    let pid = subject.pid();
    let server = Server::start(&[&pid, "--token-file", file.to_str().expect("UTF-8")]);
    for path in ["/", "/metrics", "/shop", "/api/targets", "/api/shop/explain"] {
        let answer = server.get(path);
        assert!(answer.code == 401 && answer.head.contains("www-authenticate: basic"), "{path}: {answer:?}");
        assert_eq!(server.get_with(path, "Authorization: Bearer wrong-horse-battery\r\n").code, 401, "{path}");
    }
    assert_eq!(server.get("/healthz").code, 200);
    assert_eq!(server.get_with("/metrics", "Authorization: Bearer correct-horse-battery\r\n").code, 200);
    // printf 'me:correct-horse-battery' | base64
    let basic = "Authorization: Basic bWU6Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5\r\n";
    assert_eq!(server.get_with("/", basic).code, 200);
}
