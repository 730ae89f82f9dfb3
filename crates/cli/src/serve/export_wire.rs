//! The protocol between the process that reads and the process that sends. Pure: bytes in, values out.
//!
//! ```text
//!  reader (may read processes, has no network)    sender (may connect to the addresses of its command line)
//!     │◀── Receipt   8 bytes: ready, what confines the sender ────────────────────│  once
//!     │── ExportHead  128 bytes: kind, name of the target, times, length; body ──▶│  one at a time
//!     │◀── Receipt   8 bytes: what became of it ──────────────────────────────────│
//!  either end closed ──────────────────────────────────────────────────────────────▶  the other process ends
//! ```
//! The sender gets what leaves the machine and nothing else. What it may answer is 8 bytes, each of which is checked.

use super::wire::{NAME, is_name};

pub const EXPORT_HEAD: usize = 128;
pub const RECEIPT: usize = 8;
/// Limit of a body, in bytes.
pub const MOST_BODY: usize = 32 << 20;

/// What is sent, and in which form. The discriminants are those of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExportKind {
    /// OTLP: the metrics of all targets.
    Metrics = 0,
    /// OTLP: the call stacks of one target.
    Profiles = 1,
    /// Pyroscope: the call stacks of one target, in pprof's format.
    Pprof = 2,
}

impl ExportKind {
    pub const ALL: [ExportKind; 3] = [ExportKind::Metrics, ExportKind::Profiles, ExportKind::Pprof];
}

/// The head of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportHead {
    pub kind: ExportKind,
    /// Empty for an export about all targets.
    pub target: String,
    /// Seconds since 1970: the time that the figures are about.
    pub from: u64,
    pub until: u64,
    pub length: usize,
}

impl ExportHead {
    pub fn encode(&self) -> Option<[u8; EXPORT_HEAD]> {
        let mut bytes = [0; EXPORT_HEAD];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&u32::try_from(self.length).ok()?.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.from.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.until.to_le_bytes());
        bytes[24..24 + NAME].get_mut(..self.target.len())?.copy_from_slice(self.target.as_bytes());
        (self.length <= MOST_BODY).then_some(bytes)
    }

    pub fn decode(bytes: &[u8; EXPORT_HEAD]) -> Option<ExportHead> {
        let kind = *ExportKind::ALL.iter().find(|kind| **kind as u8 == bytes[0])?;
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let length = u32::from_le_bytes(bytes[4..8].try_into().ok()?) as usize;
        let name = &bytes[24..24 + NAME];
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        let target = std::str::from_utf8(&name[..end]).ok()?.to_owned();
        let head = ExportHead { kind, target, from: number(8)?, until: number(16)?, length };
        let is_valid = head.target.is_empty() == (kind == ExportKind::Metrics)
            && (head.target.is_empty() || is_name(&head.target));
        (is_valid && head.encode()? == *bytes).then_some(head)
    }
}

/// What became of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// The sender is confined: the bits of `Confined`.
    Ready(u8),
    Arrived,
    /// The receiver took the export, but rejected this many data points or profiles.
    InPart(u32),
    /// The receiver answered with this status.
    Status(u16),
    /// No connection, or it broke: the error of the system.
    Error(i32),
    /// Not in time.
    Late,
    /// The answer is not HTTP.
    NotHttp,
}

impl Receipt {
    pub fn encode(self) -> [u8; RECEIPT] {
        let (kind, value): (u8, u32) = match self {
            Receipt::Ready(bits) => (0, u32::from(bits)),
            Receipt::Arrived => (1, 0),
            Receipt::InPart(rejected) => (2, rejected),
            Receipt::Status(code) => (3, u32::from(code)),
            Receipt::Error(code) => (4, code.unsigned_abs()),
            Receipt::Late => (5, 0),
            Receipt::NotHttp => (6, 0),
        };
        let mut bytes = [0; RECEIPT];
        bytes[0] = kind;
        bytes[4..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; RECEIPT]) -> Option<Receipt> {
        let value = u32::from_le_bytes(bytes[4..].try_into().ok()?);
        let receipt = match bytes[0] {
            0 => Receipt::Ready(u8::try_from(value).ok()?),
            1 => Receipt::Arrived,
            2 => Receipt::InPart(value),
            3 => Receipt::Status(u16::try_from(value).ok()?),
            4 => Receipt::Error(i32::try_from(value).ok()?),
            5 => Receipt::Late,
            6 => Receipt::NotHttp,
            _ => return None,
        };
        (receipt.encode() == *bytes).then_some(receipt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_back_and_no_other_bytes_are_one() {
        for kind in ExportKind::ALL {
            let target = if kind == ExportKind::Metrics { String::new() } else { "shop-2".into() };
            let head = ExportHead { kind, target, from: 7, until: u64::MAX, length: MOST_BODY };
            let bytes = head.encode().expect("short");
            assert_eq!(ExportHead::decode(&bytes), Some(head.clone()));
            for at in 0..EXPORT_HEAD {
                for bit in 0..8 {
                    let mut damaged = bytes;
                    damaged[at] ^= 1 << bit;
                    assert_ne!(ExportHead::decode(&damaged), Some(head.clone()), "{at}.{bit}");
                }
            }
        }
        let too_long =
            ExportHead { kind: ExportKind::Metrics, target: String::new(), from: 0, until: 0, length: MOST_BODY + 1 };
        assert_eq!(too_long.encode(), None);
        for name in ["", "../x", "a b", "a&from=1", &"x".repeat(NAME + 1)] {
            let head = ExportHead { kind: ExportKind::Pprof, target: name.into(), from: 0, until: 0, length: 0 };
            assert!(head.encode().is_none_or(|bytes| ExportHead::decode(&bytes).is_none()), "{name}");
        }
    }

    #[test]
    fn receipts_are_read_back() {
        let all = [
            Receipt::Ready(15),
            Receipt::Arrived,
            Receipt::InPart(9),
            Receipt::Status(503),
            Receipt::Error(111),
            Receipt::Late,
            Receipt::NotHttp,
        ];
        for receipt in all {
            assert_eq!(Receipt::decode(&receipt.encode()), Some(receipt));
        }
        assert_eq!(Receipt::decode(&[7; RECEIPT]), None);
    }
}
