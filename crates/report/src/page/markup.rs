//! Escapes foreign text for HTML that is XML as well, and for JSON inside a script element; hashes for the policy.

use base64::Engine;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::profile::svg::escaped;
use crate::words::cut;

/// Maximum length of a text, in characters.
const LONGEST: usize = 2000;

/// Foreign text for a text node or a quoted attribute.
pub(crate) fn text(foreign: &str) -> String {
    escaped(&cut(foreign, LONGEST))
}

/// Like `text`, for several lines in `pre`: those of a command, or of a call stack.
pub(crate) fn lines(foreign: &str) -> String {
    foreign.lines().map(text).collect::<Vec<_>>().join("\n")
}

/// Foreign text for the script, which puts it into text nodes.
pub(crate) fn plain(foreign: &str) -> String {
    cut(foreign, LONGEST)
}

/// JSON that can be written into a script element: no character of it can end the element or a line of JavaScript.
pub(crate) fn json(document: &impl Serialize) -> serde_json::Result<String> {
    let mut out = String::new();
    for c in serde_json::to_string(document)?.chars() {
        match c {
            // These occur inside strings only, where JSON has an escape for each.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// RFC 4648, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The source expression of the Content-Security-Policy that allows this text of an inline element, and no other.
pub(crate) fn hash_source(inline: &str) -> String {
    format!("'sha256-{}'", base64(&Sha256::digest(inline.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let pairs = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        pairs.iter().for_each(|(plain, coded)| assert_eq!(base64(plain.as_bytes()), *coded));
        // echo -n 'x' | openssl dgst -sha256 -binary | base64
        assert_eq!(hash_source("x"), "'sha256-LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE='");
    }

    #[test]
    fn no_text_ends_its_element() {
        let names = ["</script><script>", "<!--", "\u{2028}", "a&b", "\"'", "]]>", "\u{202e}x", "\0"];
        for name in names {
            let json = json(&[plain(name)]).expect("JSON");
            assert!(!json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']), "{json}");
            let back: Vec<String> = serde_json::from_str(&json).expect("JSON");
            assert_eq!(back, [plain(name)]);
            assert!(!text(name).contains(['<', '>', '"', '\'', '\0', '\u{202e}']), "{}", text(name));
        }
    }
}
