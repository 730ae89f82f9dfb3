//! The protocol between the process that listens and the process that reads. Pure: bytes in, values out.
//!
//! ```text
//!  reader (may read processes, has no network)          listener (has the network, may read nothing)
//!     │── Hello    64 bytes: version, checks, digest of the token ──────────────────▶│  once
//!     │◀────────── Ready   104 bytes: kind 0, what confines the listener ────────────│  once
//!     │◀────────── Request 104 bytes: kind, style, number, name of a target ─────────│  at most 8 unanswered
//!     │── Reply    16 bytes: number, status, content, length; then the body ────────▶│  in any order
//!  either end closed ────────────────────────────────────────────────────────────────▶  the other process ends
//! ```
//! Integers are little-endian. A request has one length, and every bit of it is checked: a listener that sends anything
//! else is out of control, and the reader ends. So a taken-over listener can ask for the pages, documents and metrics
//! of the targets that are served, by the names in their list, and for nothing else. It names no PID, file or path.

/// Bytes of each message; of a reply without its body.
pub const HELLO: usize = 64;
pub const REQUEST: usize = 104;
pub const REPLY: usize = 16;
/// Limit of requests without a reply.
pub const MOST_REQUESTS: usize = 8;
/// Limit of the body of a reply, in bytes.
pub const MOST_BODY: usize = 32 << 20;
/// Bytes of the name of a target.
pub const NAME: usize = 96;

const VERSION: u8 = 1;

/// What the listener must know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Only names of this machine are accepted as Host.
    pub is_loopback: bool,
    /// SHA-256 of the token.
    pub token: Option<[u8; 32]>,
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[0] = VERSION;
        bytes[1] = u8::from(self.is_loopback);
        if let Some(digest) = &self.token {
            bytes[2] = 1;
            bytes[32..].copy_from_slice(digest);
        }
        bytes
    }

    pub fn decode(bytes: &[u8; HELLO]) -> Option<Hello> {
        let hello = Hello {
            is_loopback: bytes[1] == 1,
            token: (bytes[2] == 1).then(|| bytes[32..].try_into().unwrap_or_default()),
        };
        (hello.encode() == *bytes).then_some(hello)
    }
}

/// The kind of a question. The discriminants are those of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum QuestionKind {
    /// The listener is confined; `style` says how.
    Ready = 0,
    Health = 1,
    /// `style`: 0 Prometheus, 1 OpenMetrics.
    Metrics = 2,
    /// The list of targets, as a page or as JSON.
    List = 3,
    Targets = 4,
    /// Of one target: page, `explain --format json`, `report --format json`, and its history as JSON.
    Page = 5,
    Explain = 6,
    Report = 7,
    Recording = 8,
}

impl QuestionKind {
    const ALL: [QuestionKind; 9] = [
        QuestionKind::Ready,
        QuestionKind::Health,
        QuestionKind::Metrics,
        QuestionKind::List,
        QuestionKind::Targets,
        QuestionKind::Page,
        QuestionKind::Explain,
        QuestionKind::Report,
        QuestionKind::Recording,
    ];

    pub fn is_of_a_target(self) -> bool {
        matches!(self, QuestionKind::Page | QuestionKind::Explain | QuestionKind::Report | QuestionKind::Recording)
    }

    fn has_style(self) -> bool {
        matches!(self, QuestionKind::Ready | QuestionKind::Metrics)
    }
}

/// A question without its number: equal questions have equal answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    pub kind: QuestionKind,
    pub style: u8,
    /// Empty for a question that is not about one target.
    pub target: String,
}

impl Question {
    pub fn of(kind: QuestionKind) -> Question {
        Question { kind, style: 0, target: String::new() }
    }

    /// None: the name is too long for any target.
    pub fn encode(&self, number: u32) -> Option<[u8; REQUEST]> {
        let mut bytes = [0; REQUEST];
        bytes[0] = self.kind as u8;
        bytes[1] = self.style;
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].get_mut(..self.target.len())?.copy_from_slice(self.target.as_bytes());
        Some(bytes)
    }

    /// None: the listener is out of control.
    pub fn decode(bytes: &[u8; REQUEST]) -> Option<(u32, Question)> {
        let kind = *QuestionKind::ALL.iter().find(|kind| **kind as u8 == bytes[0])?;
        let end = bytes[8..].iter().position(|byte| *byte == 0).unwrap_or(NAME);
        let target = std::str::from_utf8(&bytes[8..8 + end]).ok()?;
        let number = u32::from_le_bytes(bytes[4..8].try_into().ok()?);
        let question = Question { kind, style: bytes[1], target: target.to_owned() };
        let style = if kind == QuestionKind::Metrics { 1 } else { 15 };
        let is_valid = is_name(target) == kind.is_of_a_target()
            && (target.is_empty() || kind.is_of_a_target())
            && (kind.has_style() && bytes[1] <= style || bytes[1] == 0);
        // Nothing may hide in the bytes that have no meaning.
        (is_valid && question.encode(number)? == *bytes).then_some((number, question))
    }
}

/// Whether a text has the form of a target's name: it stands in addresses, labels and names of directories.
pub fn is_name(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME).contains(&text.len()) && text.bytes().all(is_fine) && !text.starts_with('.')
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Fine = 0,
    /// No such target, or it is not tracked, or has no history: the body is the sentence.
    Absent = 1,
    /// It can't be read now: the body is the sentence.
    Failed = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Content {
    Plain = 0,
    Prometheus = 1,
    OpenMetrics = 2,
    Html = 3,
    Json = 4,
}

/// The head of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub number: u32,
    pub status: Status,
    pub content: Content,
    pub length: usize,
}

impl Head {
    pub fn encode(&self) -> [u8; REPLY] {
        let mut bytes = [0; REPLY];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4] = self.status as u8;
        bytes[5] = self.content as u8;
        bytes[8..12].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; REPLY]) -> Option<Head> {
        let status = [Status::Fine, Status::Absent, Status::Failed];
        let content = [Content::Plain, Content::Prometheus, Content::OpenMetrics, Content::Html, Content::Json];
        let head = Head {
            number: u32::from_le_bytes(bytes[..4].try_into().ok()?),
            status: *status.get(usize::from(bytes[4]))?,
            content: *content.get(usize::from(bytes[5]))?,
            length: u32::from_le_bytes(bytes[8..12].try_into().ok()?) as usize,
        };
        (head.length <= MOST_BODY && head.encode() == *bytes).then_some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_back_and_no_other_bytes_are_one() {
        for kind in QuestionKind::ALL {
            let target = if kind.is_of_a_target() { "shop-2" } else { "" };
            let question = Question { kind, style: u8::from(kind.has_style()), target: target.into() };
            let bytes = question.encode(7).expect("short");
            assert_eq!(Question::decode(&bytes), Some((7, question.clone())));
            // Every byte counts: a change gives another request or none, never the same one.
            for at in 0..REQUEST {
                for bit in 0..8 {
                    let mut damaged = bytes;
                    damaged[at] ^= 1 << bit;
                    assert_ne!(Question::decode(&damaged), Some((7, question.clone())), "{at}.{bit}");
                }
            }
        }
        assert_eq!(Question::decode(&[0xff; REQUEST]), None);
        assert_eq!(Question { target: "x".repeat(NAME + 1), ..Question::of(QuestionKind::Page) }.encode(1), None);
    }

    #[test]
    fn a_name_is_no_path() {
        for name in ["", "..", ".", "../etc", "a/b", "a b", "a\0b", "a\nb", "é", "<b>", &"x".repeat(NAME + 1)] {
            assert!(!is_name(name), "{name}");
            let bytes = Question { target: name.into(), ..Question::of(QuestionKind::Page) }.encode(1);
            // A NUL ends the name; then the rest has no meaning.
            assert!(bytes.is_none_or(|bytes| Question::decode(&bytes).is_none()), "{name}");
        }
        assert!(is_name("shop.jar_2-x") && is_name(&"x".repeat(NAME)));
    }

    #[test]
    fn heads_and_hellos_are_read_back() {
        let head = Head { number: 9, status: Status::Absent, content: Content::Json, length: MOST_BODY };
        assert_eq!(Head::decode(&head.encode()), Some(head));
        assert_eq!(Head::decode(&Head { length: MOST_BODY + 1, ..head }.encode()), None);
        for token in [None, Some([7; 32])] {
            let hello = Hello { is_loopback: token.is_none(), token };
            assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }
        assert_eq!(Hello::decode(&[0; HELLO]), None);
    }
}
