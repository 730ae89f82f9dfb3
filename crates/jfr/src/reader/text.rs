//! Strings in the encodings of the format.

use std::borrow::Cow;

use super::cursor::{Broken, Cursor, Parsed};
use crate::format::text::{EMPTY, LATIN1, NULL, POOLED, UTF8, UTF16};

pub(super) enum Text<'a> {
    Null,
    /// A key in the pool of java.lang.String.
    Pooled(i64),
    Here(Cow<'a, str>),
}

pub(super) fn read<'a>(cursor: &mut Cursor<'a>) -> Parsed<Text<'a>> {
    Ok(match cursor.u8()? {
        NULL => Text::Null,
        EMPTY => Text::Here(Cow::Borrowed("")),
        POOLED => Text::Pooled(cursor.i64()?),
        UTF8 => {
            let length = cursor.count()?;
            Text::Here(String::from_utf8_lossy(cursor.take(length)?))
        }
        UTF16 => {
            let length = cursor.count()?;
            if let Some(text) = ascii(cursor, length) {
                cursor.at += length;
                return Ok(Text::Here(Cow::Borrowed(text)));
            }
            // A unit takes at least one byte, so the capacity never exceeds the bytes available.
            let mut units = Vec::with_capacity(length.min(cursor.bytes.len() - cursor.at));
            for _ in 0..length {
                units.push(cursor.u16()?);
            }
            Text::Here(Cow::Owned(String::from_utf16_lossy(&units)))
        }
        LATIN1 => {
            let length = cursor.count()?;
            let bytes = cursor.take(length)?;
            Text::Here(match std::str::from_utf8(bytes) {
                Ok(text) if bytes.is_ascii() => Cow::Borrowed(text),
                _ => Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()),
            })
        }
        _ => return Err(Broken::Malformed("a string in an unknown encoding")),
    })
}

/// In a compressed chunk, an ASCII UTF-16 unit takes one byte, so an ASCII text is valid UTF-8 as it stands. A JVM
/// writes nearly every string of an event this way.
#[inline]
fn ascii<'a>(cursor: &Cursor<'a>, length: usize) -> Option<&'a str> {
    let bytes = cursor.bytes.get(cursor.at..cursor.at.checked_add(length)?)?;
    if cursor.compressed && bytes.is_ascii() { std::str::from_utf8(bytes).ok() } else { None }
}

#[inline]
pub(super) fn skip(cursor: &mut Cursor<'_>) -> Parsed<()> {
    match cursor.u8()? {
        NULL | EMPTY => Ok(()),
        POOLED => cursor.i64().map(|_| ()),
        UTF8 | LATIN1 => {
            let length = cursor.count()?;
            cursor.take(length).map(|_| ())
        }
        UTF16 => {
            let length = cursor.count()?;
            if ascii(cursor, length).is_some() {
                cursor.at += length;
                Ok(())
            } else if cursor.compressed {
                cursor.skip_leb128(length)
            } else {
                cursor.take(length.saturating_mul(2)).map(|_| ())
            }
        }
        _ => Err(Broken::Malformed("a string in an unknown encoding")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ASCII texts take the shortcut of `ascii`, others are decoded unit by unit; both give the text that was encoded.
    #[test]
    fn ascii_texts_read_the_same_by_both_decoders() {
        let texts = ["", "a", "/shop/orders/4711?page=9", "\u{7f}", "\u{80}", "größe", "日本", "a\u{1f600}b"];
        let mut by_decoder = [0; 2];
        for compressed in [true, false] {
            for text in texts {
                let units: Vec<u16> = text.encode_utf16().collect();
                let mut bytes = vec![UTF16];
                if compressed {
                    let groups = |unit: u16| {
                        let mut rest = unit;
                        let mut out = vec![];
                        while rest >= 0x80 {
                            out.push(rest as u8 | 0x80);
                            rest >>= 7;
                        }
                        out.push(rest as u8);
                        out
                    };
                    bytes.push(units.len() as u8);
                    bytes.extend(units.iter().copied().flat_map(groups));
                } else {
                    bytes.extend((units.len() as u32).to_be_bytes());
                    bytes.extend(units.iter().flat_map(|unit| unit.to_be_bytes()));
                }
                bytes.push(0x2a);
                let mut cursor = Cursor::new(&bytes, compressed);
                let Ok(Text::Here(read)) = self::read(&mut cursor) else { panic!("{text}") };
                by_decoder[usize::from(matches!(read, Cow::Borrowed(_)))] += 1;
                assert_eq!((&*read, cursor.at), (text, bytes.len() - 1));
                let mut skipped = Cursor::new(&bytes, compressed);
                assert_eq!((skip(&mut skipped), skipped.at), (Ok(()), bytes.len() - 1));
                for short in 1..bytes.len() - 1 {
                    let whole = self::read(&mut Cursor::new(&bytes[..short], compressed)).is_ok();
                    assert!(!whole && skip(&mut Cursor::new(&bytes[..short], compressed)).is_err());
                }
            }
        }
        assert!(by_decoder.iter().all(|count| *count >= 4), "{by_decoder:?}");
    }
}
