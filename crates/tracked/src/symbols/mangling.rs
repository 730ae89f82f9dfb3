//! Demangles names of Rust, C++, and Java in a native image.

use std::fmt;

use crate::rules::names::{self, Bounded, LONGEST};

/// Demangles names of Rust and C++; other names are unchanged.
pub fn demangle(name: &[u8]) -> String {
    // Removes the version from names in the dynamic table (`memcpy@@GLIBC_2.14`).
    let name = name.split(|&b| b == b'@').next().unwrap_or(name);
    let text = String::from_utf8_lossy(name);
    if let Ok(rust) = rustc_demangle::try_demangle(&text) {
        let mut out = Bounded::default();
        return if fmt::write(&mut out, format_args!("{rust:#}")).is_ok() { out.0 } else { cut(&text) };
    }
    if let Some(java) = image_mangled(&text) {
        return java;
    }
    if !text.starts_with("_Z") {
        return cut(&text);
    }
    names::cpp(&text).unwrap_or_else(|| cut(&text))
}

fn cut(name: &str) -> String {
    name.chars().take(LONGEST).collect()
}

/// Length of the hash at the end of a native image's local symbols: 128 bits in base 62.
const HASH: usize = 22;

/// Local symbols of a native image that kept them (`-H:-DeleteLocalSymbols`): `App_main_a61…` → `App.main`, `App_b2…` →
/// `App.<init>`. The class is a simple name, in which underscores are rare. So the first underscore is taken for the
/// dot.
pub(crate) fn image_local(name: &str) -> Option<String> {
    let (rest, hash) = name.rsplit_once('_')?;
    let letters = hash.as_bytes();
    // C functions of an image end in words (JNU_CallStaticMethodByName). One in 10⁴ random hashes looks like a word.
    let is_random = letters.iter().any(u8::is_ascii_digit)
        || letters.windows(2).any(|w| w[0].is_ascii_uppercase() && w[1].is_ascii_uppercase());
    if letters.len() != HASH || !is_random || !letters.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    match rest.split_once('_') {
        Some((class, method)) if !class.is_empty() && !method.is_empty() => Some(format!("{class}.{method}")),
        _ if !rest.is_empty() => Some(format!("{rest}.<init>")),
        _ => None,
    }
    .map(|name| cut(&name))
}

/// Symbols of an image with debug information: `_ZN15java.lang.Class7forNameEJP…` → `java.lang.Class.forName`. They are
/// Itanium names with dots in the class names. The J, which says that the return type is mangled first, is used only by
/// Java compilers (Itanium C++ ABI, 5.1.4).
pub(crate) fn image_mangled(name: &str) -> Option<String> {
    let mut rest = name.strip_prefix("_ZN")?;
    let mut parts: Vec<&str> = Vec::new();
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            break;
        }
        let length: usize = rest[..digits].parse().ok()?;
        parts.push(rest.get(digits..)?.get(..length)?);
        rest = &rest[digits + length..];
    }
    let after = match rest.strip_prefix("C1E").or_else(|| rest.strip_prefix("C2E")) {
        Some(after) => {
            parts.push("<init>");
            after
        }
        None => rest.strip_prefix('E')?,
    };
    // A constructor has the name of its class.
    if let [class, .., method] = parts.as_mut_slice()
        && class.rsplit(['.', '$']).next() == Some(*method)
    {
        *method = "<init>";
    }
    (after.starts_with('J') && parts.len() >= 2).then(|| cut(&parts.join(".")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::rules::names::bomb;

    #[test]
    fn names_of_four_languages() {
        assert_eq!(demangle(b"_ZN10JavaThread17thread_main_innerEv"), "JavaThread::thread_main_inner()");
        assert_eq!(demangle(b"_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"), "core::fmt::Write::write_fmt");
        let method = demangle(b"_ZN43_$LT$shop..Plain$u20$as$u20$shop..Maker$GT$4make17h0123456789abcdefE");
        assert_eq!(method, "<shop::Plain as shop::Maker>::make");
        assert_eq!(demangle(b"inflateInit2_@@ZLIB_1.2.0"), "inflateInit2_");
        assert_eq!(demangle(b"_Z\xff("), "_Z\u{fffd}(");
        assert_eq!(demangle(b"_ZN3App10directLeafEJP19java.nio.ByteBufferi"), "App.directLeaf");
        assert_eq!(
            demangle(b"_ZN15java.lang.Class19getProtectionDomainEJP3Foov"),
            "java.lang.Class.getProtectionDomain"
        );
        assert_eq!(
            demangle(b"_ZN25java.nio.DirectByteBuffer16DirectByteBufferEJvi"),
            "java.nio.DirectByteBuffer.<init>"
        );
        let local = |name| image_local(name).unwrap_or_default();
        assert_eq!(local("$Proxys11e6d682_value_qybwAZfxmTE6t4KOIhd003"), "$Proxys11e6d682.value");
        assert_eq!(local("ArrayList_7HbqoXbRs19FQxJRlbkAQK"), "ArrayList.<init>");
        assert_eq!(local("JNU_CallStaticMethodByName"), "");
    }

    #[test]
    fn a_name_that_would_expand_to_megabytes_is_unchanged() {
        assert_eq!(demangle(bomb().as_bytes()), bomb());
        assert_eq!(demangle(b"_Z1fIiEv1aIiE1aIS1_S1_E"), "void f<int>(a<int>, a<a<int>, a<int> >)");
    }

    #[test]
    fn any_bytes_give_a_name() {
        let mut random = Random(1);
        let alphabet = b"_ZNKSILE0123456789aJRPvXmC1DdT_.$@";
        for _ in 0..20_000 {
            let mut name = b"_ZN".to_vec();
            for _ in 0..24 {
                name.push(alphabet[random.index(alphabet.len())]);
            }
            let _ = (demangle(&name), image_local(&String::from_utf8_lossy(&name)));
        }
    }
}
