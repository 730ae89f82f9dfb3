//! Turns symbols, mangled or not, into the qualified names that the rules match (docs/categories.md, FUNCTION).

use std::borrow::Cow;
use std::fmt;

/// Limit for demangled names: a mangled name of 1 KiB can stand for gigabytes by referring to its own parts.
pub(crate) const LONGEST: usize = 4096;

/// The qualified name of a function, without return type and parameters, but with template arguments. The symbol may be
/// mangled (Itanium C++, Rust) or demangled. A C name is unchanged. Parts that a compiler split off (`.cold`,
/// `.part.0`) have the name of the whole function; a lambda has the name of its function.
pub fn qualified(symbol: &str) -> Cow<'_, str> {
    if (symbol.starts_with("_R") || symbol.starts_with("_ZN") && symbol.ends_with('E') && symbol.contains("17h"))
        && let Ok(name) = rustc_demangle::try_demangle(symbol)
    {
        return Cow::Owned(format!("{name:#}"));
    }
    let symbol = without_clone_suffix(symbol);
    if symbol.starts_with("_Z") {
        if let Some(name) = plain(symbol) {
            return Cow::Owned(name);
        }
        return demangled(symbol).map_or(Cow::Borrowed(symbol), Cow::Owned);
    }
    if symbol.contains(['(', ' ', '<']) { Cow::Borrowed(without_signature(symbol)) } else { Cow::Borrowed(symbol) }
}

/// The qualified name of a simple mangled symbol: nested names, constructors, destructors, operator new; no templates
/// and no substitutions. Four of five functions of a VM are of this kind, and the full demangler takes ten times as
/// long. (Itanium C++ ABI, 5.1.3.)
pub fn plain(symbol: &str) -> Option<String> {
    let mut rest = symbol.strip_prefix("_Z")?.as_bytes();
    let mut out = String::with_capacity(symbol.len());
    let nested = rest.first() == Some(&b'N');
    if nested {
        rest = &rest[1..];
        while let [b'K' | b'V' | b'r', after @ ..] = rest {
            rest = after;
        }
    }
    let mut last = "";
    loop {
        if let [b'L', after @ ..] = rest {
            // Internal linkage.
            rest = after;
        }
        match rest {
            [b'0'..=b'9', ..] => {
                let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
                let length: usize = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
                let name = std::str::from_utf8(rest[digits..].get(..length)?).ok()?;
                rest = &rest[digits + length..];
                last = if name.starts_with("_GLOBAL__N") { "(anonymous namespace)" } else { name };
                separate(&mut out).push_str(last);
                if !nested {
                    // Template arguments or an ABI tag would follow here.
                    return (!matches!(rest.first(), Some(b'I' | b'B'))).then_some(out);
                }
            }
            [b'C', b'1'..=b'5', b'E', ..] if !last.is_empty() => {
                separate(&mut out).push_str(last);
                return Some(out);
            }
            [b'D', b'0'..=b'5', b'E', ..] if !last.is_empty() => {
                separate(&mut out).push('~');
                out.push_str(last);
                return Some(out);
            }
            [b'n', kind @ (b'w' | b'a'), b'E', ..] if nested && !out.is_empty() => {
                separate(&mut out).push_str(if *kind == b'w' { "operator new" } else { "operator new[]" });
                return Some(out);
            }
            [b'E', ..] if nested && !out.is_empty() => return Some(out),
            _ => return None,
        }
    }
}

/// The qualified name, by the full demangler.
pub fn demangled(symbol: &str) -> Option<String> {
    Some(without_signature(&cpp(symbol)?).to_string())
}

/// The name of a C++ function with return type and parameters. `None` if the symbol isn't mangled, or if the name is
/// longer than [`LONGEST`].
pub(crate) fn cpp(symbol: &str) -> Option<String> {
    let mut out = Bounded::default();
    let symbol = cpp_demangle::Symbol::new(symbol.as_bytes()).ok()?;
    symbol.structured_demangle(&mut out, &cpp_demangle::DemangleOptions::new()).ok()?;
    Some(out.0)
}

/// A text that refuses to become longer than [`LONGEST`].
#[derive(Default)]
pub(crate) struct Bounded(pub(crate) String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

fn separate(out: &mut String) -> &mut String {
    if !out.is_empty() {
        out.push_str("::");
    }
    out
}

/// Removes suffixes of GCC and Clang and symbol versions from a symbol as the linker knows it.
fn without_clone_suffix(symbol: &str) -> &str {
    if symbol.contains([' ', '(']) {
        return symbol;
    }
    let symbol = symbol.split('@').next().filter(|s| !s.is_empty()).unwrap_or(symbol);
    const SUFFIXES: [&str; 8] = [".cold", ".part", ".constprop", ".isra", ".lto_priv", ".localalias", ".llvm", ".warm"];
    if !symbol.contains('.') {
        return symbol;
    }
    let cut = SUFFIXES.iter().filter_map(|suffix| symbol.find(suffix)).filter(|&at| at > 0).min();
    cut.map_or(symbol, |at| &symbol[..at])
}

/// `void A::f<int>(B) const [clone .part.0]` → `A::f<int>`.
fn without_signature(name: &str) -> &str {
    const ANONYMOUS: &str = "(anonymous namespace)";
    let bytes = name.as_bytes();
    let (mut depth, mut start, mut i) = (0usize, 0, 0);
    let mut in_operator = false;
    while i < bytes.len() {
        let rest = &name.as_bytes()[i..];
        if rest.starts_with(ANONYMOUS.as_bytes()) {
            i += ANONYMOUS.len();
            continue;
        }
        let word_begins = i == 0 || matches!(bytes[i - 1], b':' | b' ');
        if depth == 0 && word_begins && rest.starts_with(b"operator") {
            // The operator's signs aren't brackets, and its words ("operator new") aren't a return type.
            i += "operator".len();
            in_operator = true;
            let signs = name.as_bytes()[i..].iter().take_while(|b| b"<>=-!+*/%^&|~,".contains(b)).count();
            i += signs;
            if name.as_bytes()[i..].starts_with(b"()") {
                i += 2;
            }
            continue;
        }
        match bytes[i] {
            b'<' => depth += 1,
            b'>' => depth = depth.saturating_sub(1),
            b'(' if depth == 0 => return name[start..i].trim_end(),
            b'[' if depth == 0 && rest.starts_with(b"[clone") => return name[start..i].trim_end(),
            b' ' if depth == 0 && !in_operator && !rest.starts_with(b" [clone") => start = i + 1,
            b'(' => {
                // A cast or a parameter list inside template arguments: its brackets don't close the outer ones.
                depth += 1;
            }
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        i += 1;
    }
    name[start..].trim_end()
}

/// A C++ name of 270 bytes that stands for 9 MB: each of its parameters names the one before it 16 times.
#[cfg(test)]
pub(crate) fn bomb() -> String {
    // Each parameter takes two numbers: one for the template `a`, one for the type that its arguments make of it
    // (Itanium C++ ABI, 5.1.10). S_ is `f`, S0_ the first `a`, S1_ `a<int>`.
    let parameters = ["S1_", "S3_", "S5_", "S7_", "S9_"].map(|before| format!("1aI{}E", before.repeat(16)));
    format!("_Z1fIiEv1aIiE{}", parameters.concat())
}

#[cfg(test)]
mod tests {
    use super::{bomb, qualified};

    #[test]
    fn known_symbols_have_their_qualified_names() {
        for (symbol, name) in [
            ("malloc", "malloc"),
            ("deflateInit2_", "deflateInit2_"),
            ("_dl_map_object.part.0", "_dl_map_object"),
            ("posix_memalign@@GLIBC_2.2.5", "posix_memalign"),
            ("_ZN2os6mallocEm8MEMFLAGS", "os::malloc"),
            ("_ZN2os6mallocEm8MEMFLAGS.cold", "os::malloc"),
            ("_Znwm", "operator new"),
            ("_Znam", "operator new[]"),
            ("_ZN12CHeapObjBase6MallocEm", "CHeapObjBase::Malloc"),
            ("os::malloc(unsigned long, MemTag)", "os::malloc"),
            ("ClassFileParser::parse_stream(ClassFileStream const*) [clone .part.0]", "ClassFileParser::parse_stream"),
            ("G1CollectedHeap::G1CollectedHeap()", "G1CollectedHeap::G1CollectedHeap"),
            ("void A::f<int, (MemTag)3>(B) const", "A::f<int, (MemTag)3>"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("std::ostream& std::operator<< <char>(std::ostream&)", "std::operator<< <char>"),
            ("A::operator()(int) const", "A::operator()"),
            ("A::f(int)::{lambda(int)#1}::operator()(int) const", "A::f"),
            ("CHeapObj<(MemTag)5>::operator new(unsigned long)", "CHeapObj<(MemTag)5>::operator new"),
            ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_Z", "_Z"),
            ("", ""),
        ] {
            assert_eq!(qualified(symbol), name, "{symbol}");
        }
    }

    /// Without the template arguments of `f`, [`plain`](super::plain) would answer first.
    #[test]
    fn a_name_that_would_expand_to_megabytes_stays_a_symbol() {
        let two = "_Z1fIiEv1aIiE1aIS1_S1_E";
        assert_eq!(super::cpp(two).as_deref(), Some("void f<int>(a<int>, a<a<int>, a<int> >)"));
        assert_eq!(qualified(two), "f<int>");
        assert_eq!(qualified(&bomb()), bomb());
    }

    #[test]
    fn any_text_gives_a_name_or_a_part_of_itself() {
        for junk in
            ["(", "<<<", "operator", "operator(", "a b c(", ")", ">>", "_ZN", "_ZNK9", "_R", "é(ü)", "[clone", " ["]
        {
            let _ = qualified(junk);
        }
    }
}
