//! The cache of symbols: reading returns what was written.

use plimsoll_tracked::parsers::cache::{parse, write};

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Some((fingerprint, reason, known)) = parse(&text) else { return };
    let again = write(fingerprint, reason, &known);
    let (_, reason_again, reread) = parse(&again).expect("what we wrote");
    assert_eq!(reason_again.is_some(), reason.is_some());
    assert_eq!(reread.len(), known.len(), "entries are lost");
}
