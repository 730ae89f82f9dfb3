//! HTTP/1.1 as far as this server speaks it: which question a request asks, and the head of an answer. Pure.
//!
//! Everything unusual is refused: methods beside GET and HEAD, bodies, an absolute target, a Host that is not this
//! machine. A browser sends the Host of the address that the user sees. So the last check refuses a page of another
//! site whose name suddenly resolves to 127.0.0.1 (DNS rebinding).

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use plimsoll_report::page;
use plimsoll_report::prometheus::Style;
use sha2::{Digest, Sha256};

use crate::serve::wire::{Content, Head, Hello, Question, QuestionKind, Status, is_name};

/// Limits of the head of a request: bytes, and header lines.
pub const MOST_HEAD: usize = 8 << 10;
const MOST_LINES: usize = 64;

/// RFC 4648; the padding may be absent.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A request whose head is complete.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub question: Question,
    pub is_head: bool,
    /// The connection stays open after the answer.
    pub keeps: bool,
}

/// An answer without a question to the reader.
#[derive(Debug, PartialEq, Eq)]
pub struct BadRequest {
    pub code: u16,
    pub sentence: &'static str,
}

pub enum Parsed {
    /// The head is not complete.
    Partial,
    /// The request, and the bytes that it takes.
    Request(Request, usize),
    BadRequest(BadRequest),
}

const fn refusal(code: u16, sentence: &'static str) -> Parsed {
    Parsed::BadRequest(BadRequest { code, sentence })
}

pub fn parse(input: &[u8], rules: &Hello) -> Parsed {
    let mut lines = [httparse::EMPTY_HEADER; MOST_LINES];
    let mut request = httparse::Request::new(&mut lines);
    let length = match request.parse(input) {
        Ok(httparse::Status::Complete(length)) if length <= MOST_HEAD => length,
        Ok(httparse::Status::Partial) if input.len() < MOST_HEAD => return Parsed::Partial,
        Ok(_) => return refusal(431, "the head of the request is longer than 8 KiB"),
        Err(httparse::Error::TooManyHeaders) => return refusal(431, "the request has more than 64 header lines"),
        Err(httparse::Error::Version) => return refusal(505, "this server speaks HTTP/1.1"),
        Err(_) => return refusal(400, "this is not an HTTP request"),
    };
    let all = |name: &'static str| {
        request.headers.iter().filter(move |line| line.name.eq_ignore_ascii_case(name)).map(|line| line.value)
    };
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return refusal(405, "only GET and HEAD are answered"),
    };
    let has_body = all("transfer-encoding").next().is_some() || all("content-length").any(|value| value != b"0");
    if has_body {
        return refusal(413, "a request has no body here");
    }
    let is_old = request.version == Some(0);
    let mut hosts = all("host");
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host),
        (None, None) if is_old => None,
        _ => return refusal(400, "a request names one Host"),
    };
    if rules.is_loopback && host.is_some_and(|host| !is_this_machine(host)) {
        return refusal(403, "the Host of the request is not this machine: use http://127.0.0.1 or http://localhost");
    }
    let Some(path) = request.path.filter(|path| path.starts_with('/')) else {
        return refusal(400, "the target of a request is a path");
    };
    let path = path.split('?').next().unwrap_or_default();
    let Some(mut question) = question(path) else { return refusal(404, "there is no such page. The list: /") };
    // A supervisor asks for health, and has no token; the answer has no figure.
    if let Some(digest) = rules.token.as_ref().filter(|_| question.kind != QuestionKind::Health) {
        let mut given = all("authorization");
        let is_right = given.next().and_then(token).is_some_and(|token| is_equal(&Sha256::digest(token), digest));
        if !is_right {
            return refusal(401, "this server needs its token: as Bearer token, or as the password of any user");
        }
    }
    if question.kind == QuestionKind::Metrics {
        question.style = u8::from(all("accept").any(wants_open_metrics));
    }
    let closes = |value: &[u8]| words(value).any(|word| word.eq_ignore_ascii_case("close"));
    let stays = |value: &[u8]| words(value).any(|word| word.eq_ignore_ascii_case("keep-alive"));
    let keeps = if is_old { all("connection").any(stays) } else { !all("connection").any(closes) };
    Parsed::Request(Request { question, is_head, keeps }, length)
}

/// Addresses. `/NAME` is a target, so no target is named like another address (`targets::RESERVED`).
fn question(path: &str) -> Option<Question> {
    let of = |kind, target: &str| is_name(target).then(|| Question { target: target.into(), ..Question::of(kind) });
    Some(match path {
        "/" => Question::of(QuestionKind::List),
        "/healthz" => Question::of(QuestionKind::Health),
        "/metrics" => Question::of(QuestionKind::Metrics),
        "/api/targets" => Question::of(QuestionKind::Targets),
        _ => match path.strip_prefix("/api/").map(|rest| rest.split_once('/')) {
            Some(Some((target, "explain"))) => of(QuestionKind::Explain, target)?,
            Some(Some((target, "report"))) => of(QuestionKind::Report, target)?,
            Some(Some((target, "recording"))) => of(QuestionKind::Recording, target)?,
            Some(_) => return None,
            None => of(QuestionKind::Page, path.strip_prefix('/')?)?,
        },
    })
}

fn words(value: &[u8]) -> impl Iterator<Item = &str> {
    std::str::from_utf8(value).unwrap_or_default().split(',').map(str::trim)
}

/// `localhost`, 127.0.0.0/8 or `[::1]`, with any port: a tunnel has another one.
fn is_this_machine(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => (address, rest.strip_prefix(':').unwrap_or(rest)),
        None => host.split_once(':').unwrap_or((host, "")),
    };
    let is_loopback = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    port.bytes().all(|byte| byte.is_ascii_digit()) && (name.eq_ignore_ascii_case("localhost") || is_loopback)
}

/// The token of `Bearer TOKEN`, or of `Basic base64(user:TOKEN)`, which browsers can send.
fn token(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    let rest = rest.trim();
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Some(rest.as_bytes().to_vec()),
        "basic" => {
            let plain = BASE64.decode(rest).ok()?;
            let colon = plain.iter().position(|byte| *byte == b':')?;
            Some(plain[colon + 1..].to_vec())
        }
        _ => None,
    }
}

/// Takes the same time wherever the first difference is. The digests hide the length of the token too.
fn is_equal(one: &[u8], other: &[u8; 32]) -> bool {
    let differing = one.iter().zip(other).fold(0, |all, (one, other)| std::hint::black_box(all | (one ^ other)));
    one.len() == other.len() && std::hint::black_box(differing) == 0
}

/// Whether the client accepts OpenMetrics, and prefers it or doesn't mind.
fn wants_open_metrics(accept: &[u8]) -> bool {
    let quality = |name: &str| {
        words(accept)
            .filter(|range| range.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(name)))
            .map(|range| {
                let given = range.split(';').find_map(|part| part.trim().strip_prefix("q="));
                given.map_or(1.0, |q| q.parse::<f64>().unwrap_or(0.0))
            })
            .fold(0.0, f64::max)
    };
    let open = quality("application/openmetrics-text");
    open > 0.0 && open >= quality("text/plain")
}

/// The head of an answer from the reader.
pub fn head_of(answer: &Head, keeps: bool) -> String {
    let code = match answer.status {
        Status::Fine => 200,
        Status::Absent => 404,
        Status::Failed => 503,
    };
    head(code, content_type(answer.content), answer.length, keeps, answer.content == Content::Html)
}

fn content_type(content: Content) -> &'static str {
    match content {
        Content::Plain => "text/plain; charset=utf-8",
        Content::Prometheus => Style::Prometheus.content_type(),
        Content::OpenMetrics => Style::OpenMetrics.content_type(),
        Content::Html => "text/html; charset=utf-8",
        Content::Json => "application/json",
    }
}

/// The whole of an answer that the listener makes itself. An answer to HEAD has no body (RFC 9110, 9.3.2).
pub fn refused(refusal: &BadRequest, is_head: bool) -> Vec<u8> {
    let body = format!("{}\n", refusal.sentence);
    let mut head = head(refusal.code, content_type(Content::Plain), body.len(), false, false);
    if !is_head {
        head.push_str(&body);
    }
    head.into_bytes()
}

/// Whether the bytes of a request begin with the method HEAD, whatever else is wrong with them.
pub fn is_head(request: &[u8]) -> bool {
    request.trim_ascii_start().starts_with(b"HEAD ")
}

fn head(code: u16, content: &str, length: usize, keeps: bool, is_page: bool) -> String {
    let reason = match code {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "HTTP Version Not Supported",
    };
    let connection = if keeps { "keep-alive" } else { "close" };
    let policy = if is_page { page::policy() } else { "default-src 'none'".into() };
    let more = match code {
        401 => "WWW-Authenticate: Basic realm=\"plimsoll\", charset=\"UTF-8\"\r\nWWW-Authenticate: Bearer\r\n",
        405 => "Allow: GET, HEAD\r\n",
        503 => "Retry-After: 5\r\n",
        _ => "",
    };
    format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {content}\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\
         Content-Security-Policy: {policy}; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n\
         X-Frame-Options: DENY\r\nCross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n\
         Cache-Control: no-store\r\n{more}\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const OPEN: Hello = Hello { is_loopback: true, token: None };

    fn code(text: &str, rules: &Hello) -> u16 {
        match parse(text.as_bytes(), rules) {
            Parsed::Partial => 100,
            Parsed::Request(..) => 200,
            Parsed::BadRequest(refusal) => refusal.code,
        }
    }

    fn get(path: &str) -> Option<Request> {
        match parse(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes(), &OPEN) {
            Parsed::Request(request, _) => Some(request),
            _ => None,
        }
    }

    #[test]
    fn each_address_is_one_question() {
        let kinds = [
            ("/", QuestionKind::List),
            ("/healthz", QuestionKind::Health),
            ("/metrics?x=y", QuestionKind::Metrics),
            ("/api/targets", QuestionKind::Targets),
            ("/shop", QuestionKind::Page),
            ("/api/shop/explain", QuestionKind::Explain),
            ("/api/shop/report", QuestionKind::Report),
            ("/api/shop/recording", QuestionKind::Recording),
        ];
        for (path, kind) in kinds {
            assert_eq!(get(path).map(|request| request.question.kind), Some(kind), "{path}");
        }
        for path in ["/../etc/passwd", "/shop/x", "/api/shop", "/api/../explain", "/%2e%2e", "//", "/.git", "/api/"] {
            assert_eq!(get(path), None, "{path}");
        }
    }

    #[test]
    fn only_plain_requests_to_this_machine_are_answered() {
        let host = "Host: 127.0.0.1:9464\r\n";
        for (text, expected) in [
            (format!("GET / HTTP/1.1\r\n{host}\r\n"), 200),
            (format!("HEAD / HTTP/1.1\r\n{host}\r\n"), 200),
            ("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n".into(), 200),
            ("GET / HTTP/1.1\r\nhost: LocalHost\r\n\r\n".into(), 200),
            ("GET / HTTP/1.0\r\n\r\n".into(), 200),
            ("GET / HTTP/1.1\r\n".into(), 100),
            ("GET / HTTP/1.1\r\n\r\n".into(), 400),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n".into(), 400),
            ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n".into(), 403),
            ("GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n".into(), 403),
            ("GET / HTTP/1.1\r\nHost: localhost:x\r\n\r\n".into(), 403),
            ("GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n".into(), 403),
            (format!("GET http://evil.example/ HTTP/1.1\r\n{host}\r\n"), 400),
            (format!("POST / HTTP/1.1\r\n{host}\r\n"), 405),
            (format!("GET / HTTP/1.1\r\n{host}Content-Length: 5\r\n\r\nhello"), 413),
            (format!("GET / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n"), 413),
            (format!("GET /{} HTTP/1.1\r\n{host}\r\n", "x".repeat(MOST_HEAD)), 431),
            (format!("GET / HTTP/1.1\r\n{host}{}\r\n", "A: b\r\n".repeat(65)), 431),
            ("GET / HTTP/2.0\r\n\r\n".into(), 505),
            ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".into(), 400),
        ] {
            assert_eq!(code(&text, &OPEN), expected, "{text}");
        }
    }

    #[test]
    fn a_token_opens_as_bearer_and_as_password() {
        let rules = Hello { is_loopback: false, token: Some(Sha256::digest(b"sesame").into()) };
        let with = |line: &str| code(&format!("GET / HTTP/1.1\r\nHost: node\r\n{line}\r\n"), &rules);
        assert_eq!(with("Authorization: Bearer sesame\r\n"), 200);
        // printf 'me:sesame' | base64
        assert_eq!(with("Authorization: basic bWU6c2VzYW1l\r\n"), 200);
        for line in ["", "Authorization: Bearer sesamE\r\n", "Authorization: Bearer \r\n", "Authorization: Basic !\r\n"]
        {
            assert_eq!(with(line), 401, "{line}");
        }
        assert_eq!(with("Authorization: Bearer x\r\nAuthorization: Bearer sesame\r\n"), 401);
        assert_eq!(code("GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n", &rules), 200);
    }

    #[test]
    fn the_format_of_the_metrics_follows_accept() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1";
        assert!(wants_open_metrics(prometheus.as_bytes()) && wants_open_metrics(b"application/openmetrics-text"));
        for accept in [
            "*/*",
            "text/html,*/*;q=0.8",
            "application/openmetrics-text;q=0",
            "text/plain,application/openmetrics-text;q=0.5",
        ] {
            assert!(!wants_open_metrics(accept.as_bytes()), "{accept}");
        }
    }

    #[test]
    fn connections_stay_open_as_each_version_has_it() {
        let keeps = |version: &str, line: &str| match parse(
            format!("GET / HTTP/{version}\r\nHost: localhost\r\n{line}\r\n").as_bytes(),
            &OPEN,
        ) {
            Parsed::Request(request, _) => request.keeps,
            _ => panic!("{line}"),
        };
        assert!(keeps("1.1", "") && keeps("1.0", "Connection: keep-alive\r\n"));
        assert!(!keeps("1.1", "Connection: x, Close\r\n") && !keeps("1.0", ""));
    }

    /// No bytes make the parser panic, and what it accepts is a question that the reader accepts.
    #[test]
    fn any_bytes_are_refused_or_a_question() {
        let good = b"GET /api/shop/explain HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nConnection: close\r\n\r\n";
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        let mut below = |n: usize| random.index(n);
        let mut accepted = 0;
        for _ in 0..20_000 {
            let mut text = good.to_vec();
            for _ in 0..below(4) {
                let at = below(text.len());
                match below(3) {
                    0 => text[at] = below(256) as u8,
                    1 => text.insert(at, below(256) as u8),
                    _ => drop(text.remove(at)),
                }
            }
            if let Parsed::Request(request, length) = parse(&text, &OPEN) {
                let bytes = request.question.encode(3).expect("short");
                assert_eq!(Question::decode(&bytes), Some((3, request.question)));
                assert!(length <= text.len());
                accepted += 1;
            }
        }
        assert!(accepted > 1000, "{accepted}");
    }
}
