//! The cache of symbols: reading returns what was written.

use plimsoll_tracked::parsers::cache::{parse, write};

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Some((fingerprint, known)) = parse(&text) else { return };
    let again = write(fingerprint, &known);
    let (_, reread) = parse(&again).expect("what we wrote");
    assert_eq!(reread.len(), known.len(), "entries are lost");
}
