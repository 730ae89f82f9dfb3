//! Names of functions: what the rules match against.

use std::borrow::Cow;

/// The qualified name of a function, without return type and parameters, with template arguments: of a mangled symbol
/// (Itanium C++, Rust), or of one that was printed demangled. The names of C are their own.
/// Parts that a compiler split off (`.cold`, `.part.0`) have the name of the whole; a lambda that of its function.
pub fn qualified(symbol: &str) -> Cow<'_, str> {
    if (symbol.starts_with("_R") || symbol.starts_with("_ZN") && symbol.contains("17h"))
        && let Ok(name) = rustc_demangle::try_demangle(symbol)
    {
        return Cow::Owned(format!("{name:#}"));
    }
    let symbol = without_clone_suffix(symbol);
    if symbol.starts_with("_Z") {
        if let Some(name) = cpp_demangle::Symbol::new(symbol).ok().and_then(|name| name.demangle().ok()) {
            return Cow::Owned(without_signature(&name).to_string());
        }
        return Cow::Borrowed(symbol);
    }
    if symbol.contains(['(', ' ', '<']) { Cow::Borrowed(without_signature(symbol)) } else { Cow::Borrowed(symbol) }
}

/// Cuts GCC's and Clang's suffixes and symbol versions off a symbol as the linker knows it.
fn without_clone_suffix(symbol: &str) -> &str {
    if symbol.contains([' ', '(']) {
        return symbol;
    }
    let symbol = symbol.split('@').next().filter(|s| !s.is_empty()).unwrap_or(symbol);
    const SUFFIXES: [&str; 8] = [".cold", ".part", ".constprop", ".isra", ".lto_priv", ".localalias", ".llvm", ".warm"];
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
            // The operator's own signs are no brackets, and its words ("operator new") no return type.
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
                // A cast or a parameter list within template arguments: its brackets don't close ours.
                depth += 1;
            }
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        i += 1;
    }
    name[start..].trim_end()
}

#[cfg(test)]
mod tests {
    use super::qualified;

    #[test]
    fn known_answers() {
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

    #[test]
    fn any_text_gives_a_part_of_itself_or_a_name() {
        for junk in
            ["(", "<<<", "operator", "operator(", "a b c(", ")", ">>", "_ZN", "_ZNK9", "_R", "é(ü)", "[clone", " ["]
        {
            let _ = qualified(junk);
        }
    }
}
