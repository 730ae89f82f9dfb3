//! Finds out which file imports which, from the text of a crate: paths that begin with `crate`, `super`, `self`, a name
//! that `use` binds, or that of a child module.
//!
//! ```text
//! text ──tokens──► paths ──re-exports followed──► file → file ──► an import of a later stage; a circle of files
//! ```
//! Comments, strings and test-only code are ignored. A folder's `mod.rs` and the files in the folder are one unit:
//! imports between them make no circle.

use std::collections::{BTreeMap, BTreeSet};

type Path = Vec<String>;
/// An import: from one file to another, both relative to the crate's `src`.
pub type Import = (String, String);

/// One crate: its modules and their imports.
pub struct Crate {
    /// Module path → file. The crate's root is the empty path.
    files: BTreeMap<Path, String>,
    imports: BTreeSet<(Path, Path)>,
}

impl Crate {
    /// `files`: paths below `src` and their text.
    pub fn new(files: &BTreeMap<String, String>) -> Crate {
        let read: BTreeMap<Path, (String, Module)> = files
            .iter()
            .map(|(file, text)| (module(file), (file.clone(), Module::read(&module(file), file, text))))
            .collect();
        let for_tests: Vec<&Path> = read.values().flat_map(|(_, module)| &module.for_tests).collect();
        let is_for_tests = |path: &Path| for_tests.iter().any(|of| path.starts_with(of));
        let modules: BTreeMap<&Path, &Module> =
            read.iter().filter(|(path, _)| !is_for_tests(path)).map(|(path, (_, module))| (path, module)).collect();
        let names = Names::of(&modules);
        let mut imports = BTreeSet::new();
        for (from, module) in &modules {
            let by_name = module.by_name.iter().flat_map(|(here, path)| names.of_name(from, here, path));
            for path in module.paths.iter().cloned().chain(by_name).flat_map(|path| names.in_files(&path)) {
                // A name that another module re-exports is an import of both modules. The file of one CPU means itself
                // by a name that the file of the other has, too.
                let owners = Some(names.owners(&path)).filter(|owners| !owners.contains(*from)).unwrap_or_default();
                let to = owners.into_iter().chain([names.deepest(&path)]);
                for to in to.filter(|to| !to.is_empty() && to != *from) {
                    imports.insert(((*from).clone(), to));
                }
            }
        }
        let files = modules.keys().map(|path| ((*path).clone(), read[*path].0.clone())).collect();
        Crate { files, imports }
    }

    /// Modules right below the root.
    pub fn top(&self) -> BTreeSet<&str> {
        self.files.keys().filter_map(|path| path.first()).map(String::as_str).collect()
    }

    /// Imports of a module in a later stage, or in the same one. `stages` are in the order of the flow.
    pub fn upward(&self, stages: &[&[&str]]) -> BTreeSet<Import> {
        let stage =
            |path: &Path| stages.iter().position(|stage| path.first().is_some_and(|m| stage.contains(&m.as_str())));
        let is_upward = |(from, to): &&(Path, Path)| {
            from.first() != to.first() && stage(from).zip(stage(to)).is_some_and(|(from, to)| to >= from)
        };
        self.imports.iter().filter(is_upward).map(|import| self.named(import)).collect()
    }

    /// Circles of files that import one another, one set for each circle.
    pub fn circles(&self) -> BTreeSet<BTreeSet<&str>> {
        let is_left_out = |(from, to): &&(Path, Path)| from.starts_with(to) || to.starts_with(from);
        let reached = |from: &Path| {
            let (mut seen, mut left) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(at) = left.pop() {
                for (_, next) in self.imports.iter().filter(|import| !is_left_out(import) && import.0 == at) {
                    if seen.insert(next.clone()) {
                        left.push(next.clone());
                    }
                }
            }
            seen
        };
        let reach: BTreeMap<&Path, BTreeSet<Path>> = self.files.keys().map(|path| (path, reached(path))).collect();
        let circle = |(of, to): (&&Path, &BTreeSet<Path>)| -> BTreeSet<&str> {
            to.iter().filter(|other| reach[*other].contains(*of)).map(|path| self.files[path].as_str()).collect()
        };
        reach.iter().map(circle).filter(|circle| !circle.is_empty()).collect()
    }

    fn imports(&self) -> BTreeSet<Import> {
        self.imports.iter().map(|import| self.named(import)).collect()
    }

    fn named(&self, (from, to): &(Path, Path)) -> Import {
        (self.files[from].clone(), self.files[to].clone())
    }
}

/// Where the names of a crate lead.
struct Names<'m> {
    modules: &'m BTreeMap<&'m Path, &'m Module>,
    /// An exported macro belongs to the crate's root, wherever its file is; several, where the CPU decides.
    macros: BTreeMap<&'m str, Vec<&'m Path>>,
    /// A module whose file has another name; several, where the CPU decides which of them it is.
    elsewhere: Vec<&'m (Path, Path)>,
}

impl<'m> Names<'m> {
    fn of(modules: &'m BTreeMap<&'m Path, &'m Module>) -> Names<'m> {
        let mut macros = BTreeMap::<&str, Vec<&Path>>::new();
        for (path, module) in modules {
            for name in &module.macros {
                macros.entry(name).or_default().push(path);
            }
        }
        Names { modules, macros, elsewhere: modules.values().flat_map(|module| &module.elsewhere).collect() }
    }

    /// The path by the names of its files: `cpu::X` is `x86_64::X`, and `aarch64::X`.
    fn in_files(&self, path: &Path) -> Vec<Path> {
        let there = |(name, file): &&(Path, Path)| {
            path.strip_prefix(&name[..]).map(|rest| file.iter().chain(rest).cloned().collect())
        };
        let found: Vec<Path> = self.elsewhere.iter().copied().filter_map(|of| there(&of)).collect();
        if found.is_empty() { vec![path.clone()] } else { found }
    }

    /// What `name::…` within `from` may mean: a path that a `use` binds to the name, or a child module. Any other name
    /// is a crate's or a type's.
    fn of_name(&self, from: &Path, here: &Path, path: &Path) -> Vec<Path> {
        let Some((name, rest)) = path.split_first() else { return vec![] };
        let bound = self.modules.get(from).and_then(|module| module.names.get(name)).into_iter().flatten();
        let child: Path = here.iter().chain([name]).cloned().collect();
        let is_child = self.in_files(&child).iter().any(|file| self.modules.contains_key(file));
        let child = is_child.then_some(child);
        bound.chain(&child).map(|to| to.iter().chain(rest).cloned().collect()).collect()
    }

    /// The module of `path` as it is written.
    fn deepest(&self, path: &Path) -> Path {
        let length = (0..=path.len()).rev().find(|length| self.modules.contains_key(&path[..*length].to_vec()));
        path[..length.unwrap_or(0)].to_vec()
    }

    /// The modules that define what `path` names. A name that a module re-exports leads on to its origin.
    fn owners(&self, path: &Path) -> BTreeSet<Path> {
        if let (Some(of_macro), [_]) = (path.first().and_then(|name| self.macros.get(name.as_str())), &path[..]) {
            return of_macro.iter().map(|file| (*file).clone()).collect();
        }
        let (mut owners, mut seen, mut left) = (BTreeSet::new(), BTreeSet::new(), vec![(path.clone(), 0)]);
        while let Some((path, steps)) = left.pop() {
            // A circle of re-exports does not compile: both bounds only prevent an endless loop, since a crate's name
            // is taken for a module's (`use a::b as a` within `x` makes x::a, x::a::b, x::a::b::b, …).
            if steps > 20 || !seen.insert(path.clone()) {
                continue;
            }
            let at = self.deepest(&path);
            let rest = &path[at.len()..];
            let bound = rest.first().and_then(|name| self.modules.get(&at).and_then(|module| module.names.get(name)));
            let leads_on = |bound: &&Path| match bound.strip_prefix(&at[..]) {
                Some([name, further @ ..]) => !further.is_empty() && Some(name) != rest.first(),
                _ => true,
            };
            let further: Vec<&Path> = bound.into_iter().flatten().filter(leads_on).collect();
            if further.is_empty() {
                owners.insert(at.clone());
            }
            for bound in further {
                let found = self.in_files(&bound.iter().chain(&rest[1..]).cloned().collect());
                left.extend(found.into_iter().map(|path| (path, steps + 1)));
            }
        }
        owners
    }
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`; `lib.rs` and `main.rs` the root.
fn module(file: &str) -> Path {
    let mut parts: Path = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

#[derive(Default)]
struct Module {
    /// The paths that the module uses, from the crate's root.
    paths: Vec<Path>,
    /// The paths that begin with another name, `a::b`, each with the module around it.
    by_name: Vec<(Path, Path)>,
    /// The names that `use` binds: name → paths; several, where a `cfg` decides.
    names: BTreeMap<String, BTreeSet<Path>>,
    /// Names of the macros that the module defines.
    macros: Vec<String>,
    for_tests: Vec<Path>,
    /// `#[path = "b.rs"] mod a;`: a, and b, the module path of the file's name.
    elsewhere: Vec<(Path, Path)>,
}

impl Module {
    fn read(at: &Path, file: &str, text: &str) -> Module {
        let tokens = tokens(text);
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut module = Module::default();
        // Inline modules around the token, each with the depth of its brace.
        let (mut inline, mut depth) = (Vec::<(String, usize)>::new(), 0usize);
        let mut i = 0;
        while i < tokens.len() {
            let here = || at.iter().chain(inline.iter().map(|(name, _)| name)).cloned().collect::<Path>();
            let word = |n: usize| tokens.get(i + n).map_or("", String::as_str);
            match word(0) {
                "#" if is_for_tests(&tokens[i..]) => {
                    let end = end_of_item(&tokens, i);
                    if let Some(at) = (i..end).find(|at| tokens[*at] == "mod") {
                        module.for_tests.push(here().into_iter().chain([tokens[at + 1].clone()]).collect());
                    }
                    i = end;
                    continue;
                }
                "mod" if word(2) == "{" => {
                    inline.push((word(1).to_owned(), depth));
                    depth += 1;
                    i += 3;
                    continue;
                }
                "#" if word(2) == "path" => {
                    let at = i + tokens[i..].iter().position(|token| token == "mod").unwrap_or(0);
                    let file = format!("{folder}/{}", word(4).trim_start_matches('"'));
                    let name = here().into_iter().chain([tokens[at + 1].clone()]).collect();
                    module.elsewhere.push((name, self::module(file.trim_start_matches('/'))));
                }
                "macro_rules" if word(1) == "!" => module.macros.push(word(2).to_owned()),
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    inline.pop_if(|(_, opened)| *opened == depth);
                }
                // pub(in crate::a) states a visibility; it is not an import.
                "in" if matches!(word(1), "crate" | "super" | "self") => i += 1,
                "use" => {
                    let mut found = vec![];
                    i = tree(&tokens, i + 1, &vec![], &mut found);
                    for (path, name) in found {
                        let is_rooted = matches!(path.first().map(String::as_str), Some("crate" | "super" | "self"));
                        if !is_rooted {
                            module.by_name.push((here(), path.clone()));
                        }
                        // `use child::X` is relative to this module, unless `child` is a crate's name; an unknown path
                        // belongs to no module.
                        let path = if is_rooted { path } else { ["self".to_owned()].into_iter().chain(path).collect() };
                        let Some(path) = absolute(&here(), &path) else { continue };
                        if is_rooted {
                            module.paths.push(path.clone());
                        }
                        if inline.is_empty() {
                            module.names.entry(name).or_default().insert(path);
                        }
                    }
                    continue;
                }
                "crate" | "super" | "self" if word(1) == "::" => {
                    let mut found = vec![];
                    i = tree(&tokens, i, &vec![], &mut found);
                    module.paths.extend(found.iter().filter_map(|(path, _)| absolute(&here(), path)));
                    continue;
                }
                name if word(1) == "::" && is_name(name) && (i == 0 || tokens[i - 1] != "::") => {
                    let mut found = vec![];
                    i = tree(&tokens, i, &vec![], &mut found);
                    module.by_name.extend(found.into_iter().map(|(path, _)| (here(), path)));
                    continue;
                }
                _ => {}
            }
            i += 1;
        }
        module
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// `super::a` within `x::y` is `x::a`; None above the root.
fn absolute(here: &Path, path: &Path) -> Option<Path> {
    let mut at = here.clone();
    let mut rest = path.as_slice();
    while let Some((first, after)) = rest.split_first() {
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()?),
            _ => break,
        }
        rest = after;
    }
    Some(at.into_iter().chain(rest.iter().cloned()).collect())
}

/// The paths of `a::b::{c, d as e}` from `tokens[i]` on, each with the name that it binds, and the index of the next
/// token.
fn tree(tokens: &[String], mut i: usize, before: &Path, found: &mut Vec<(Path, String)>) -> usize {
    let mut path = before.clone();
    loop {
        let token = tokens.get(i).map_or("", String::as_str);
        if token == "{" {
            i += 1;
            while tokens.get(i).is_some_and(|token| token != "}") {
                let next = tree(tokens, i, &path, found);
                // A token that cannot be part of a path (the body after a `match crate::a {`) ends the search.
                i = if tokens.get(next).is_some_and(|token| token == ",") { next + 1 } else { next.max(i + 1) };
            }
            return i + 1;
        }
        if token == "*" || !is_name(token) {
            found.push((path, String::new()));
            return i + usize::from(token == "*");
        }
        if token != "self" || path.is_empty() {
            path.push(token.to_owned());
        }
        i += 1;
        match tokens.get(i).map(String::as_str) {
            Some("::") => i += 1,
            Some("as") => {
                found.push((path, tokens.get(i + 1).cloned().unwrap_or_default()));
                return i + 2;
            }
            _ => {
                let name = path.last().cloned().unwrap_or_default();
                found.push((path, name));
                return i;
            }
        }
    }
}

/// `#[cfg(test)]`, `#[cfg(all(test, …))]`.
fn is_for_tests(tokens: &[String]) -> bool {
    let begins = |with: &[&str]| tokens.iter().map(String::as_str).take(with.len()).eq(with.iter().copied());
    begins(&["#", "[", "cfg", "(", "test"]) || begins(&["#", "[", "cfg", "(", "all", "(", "test"])
}

/// The index after the item that begins at `i`: after its `;`, or after its closing brace.
fn end_of_item(tokens: &[String], i: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(i) {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth -= 1;
                if depth == 0 && token == "}" {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Words, `::` and single characters. Comments and characters are dropped; a string is one token: `"` and its contents.
fn tokens(text: &str) -> Vec<String> {
    let text: Vec<char> = text.chars().collect();
    let at = |i: usize| text.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut tokens, mut i) = (vec![], 0);
    while i < text.len() {
        match (at(i), at(i + 1)) {
            ('/', '/') => i += text[i..].iter().position(|c| *c == '\n').unwrap_or(text.len() - i),
            ('/', '*') => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        ('\0', _) => break,
                        _ => i += 1,
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            ('"', _) => {
                let from = i;
                i += 1;
                while i < text.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                tokens.push(text[from..i.min(text.len())].iter().collect());
                i += 1;
            }
            ('r', '"' | '#') if !raw_quote(&text[i + 1..]).is_empty() => {
                let quote = raw_quote(&text[i + 1..]);
                let end: Vec<char> = std::iter::once('"').chain(quote[..quote.len() - 1].iter().copied()).collect();
                let from = i + 1 + quote.len();
                let length = text[from.min(text.len())..].windows(end.len()).position(|w| w == end).unwrap_or(0);
                i = from + length + end.len();
                tokens.push("\"".to_owned());
            }
            // A character literal has a closing quote, a lifetime has none.
            ('\'', '\\') => {
                i += 3;
                i += 1 + text[i.min(text.len())..].iter().position(|c| *c == '\'').unwrap_or(0);
            }
            ('\'', _) => i += if at(i + 2) == '\'' { 3 } else { 1 },
            (':', ':') => {
                tokens.push("::".to_owned());
                i += 2;
            }
            (c, _) if is_word(c) => {
                let length = text[i..].iter().take_while(|c| is_word(**c)).count();
                tokens.push(text[i..i + length].iter().collect());
                i += length;
            }
            (c, _) => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                i += 1;
            }
        }
    }
    tokens
}

/// The hashes and the quote after the `r` of a raw string: `#"` of `r#"`; empty if this is not a raw string.
fn raw_quote(text: &[char]) -> &[char] {
    let hashes = text.iter().take_while(|c| **c == '#').count();
    if text.get(hashes) == Some(&'"') { &text[..=hashes] } else { &[] }
}

#[test]
fn the_checker_finds_upward_imports_and_circles() {
    let tree = |files: &[(&str, &str)]| files.iter().map(|(f, t)| ((*f).to_owned(), (*t).to_owned())).collect();
    let made = |files: &[(&str, &str)]| Crate::new(&tree(files));
    let names = |imports: BTreeSet<Import>| imports.into_iter().map(|(a, b)| format!("{a} > {b}")).collect::<Vec<_>>();
    let stages: &[&[&str]] = &[&["low"], &["mid", "beside"], &["high"]];
    let upward = |files: &[(&str, &str)]| names(made(files).upward(stages));
    let with = |text: &str| {
        upward(&[
            ("lib.rs", ""),
            ("low.rs", text),
            ("mid/mod.rs", ""),
            ("mid/part.rs", ""),
            ("beside.rs", ""),
            ("high.rs", ""),
        ])
    };
    // Each way to write an import.
    for text in [
        "use crate::high::X;",
        "use super::high;",
        "use crate::{mid as m, high};",
        "fn f() -> super::high::X { crate::high::f() }",
        "mod inner { use super::super::high::X; }",
        "macro_rules! m { () => { $crate::high::f() } }",
        "const C: char = '\"'; use crate::high::X; const S: &str = r#\"//\"#;",
        "fn f<'a>(x: &'a u8) { let _ = '{'; crate::high::f() }",
    ] {
        assert!(with(text).contains(&"low.rs > high.rs".to_owned()), "{text}: {:?}", with(text));
    }
    // Not imports: comments, strings, tests, visibility.
    for text in [
        "// use crate::high;",
        "/* use crate::high; /* crate::high */ crate::high */",
        "const S: &str = \"use crate::high;\";",
        "const S: &str = r#\" \" use crate::high; \"#;",
        "#[cfg(test)]\nmod tests { use crate::high; }",
        "#[cfg(test)]\nuse crate::high;",
        "#[cfg(all(test, unix))]\nfn f() { crate::high::f() }",
        "pub(in crate::high) fn f() {}",
    ] {
        assert_eq!(with(text), Vec::<String>::new(), "{text}");
    }
    // A downward import is allowed; one within a stage is not.
    assert_eq!(upward(&[("high.rs", "use crate::low;"), ("low.rs", "")]), Vec::<String>::new());
    assert_eq!(upward(&[("mid/part.rs", "use crate::beside::X;"), ("beside.rs", "")]), ["mid/part.rs > beside.rs"]);
    // A name of an earlier stage that a later stage re-exports.
    let through = [("mid/part.rs", "use crate::high::X;"), ("high.rs", "pub use crate::low::X;"), ("low.rs", "")];
    assert_eq!(upward(&through), ["mid/part.rs > high.rs"]);
    // A module that lies in another file, or in one of several.
    let cpus = "#[cfg(x)]\n#[path = \"x.rs\"]\npub mod cpu;\n#[cfg(y)]\n#[path = \"y.rs\"]\npub mod cpu;";
    let of_cpu = [
        ("low/mod.rs", cpus),
        ("low/x.rs", "use crate::high;"),
        ("low/y.rs", ""),
        ("high.rs", "use crate::low::cpu::X;"),
    ];
    assert_eq!(upward(&of_cpu), ["low/x.rs > high.rs"]);
    let circle =
        [("low/mod.rs", cpus), ("low/x.rs", "use super::os;"), ("low/y.rs", ""), ("low/os.rs", "use super::cpu::X;")];
    assert_eq!(made(&circle).circles(), [["low/os.rs", "low/x.rs"].into()].into());
    // The same module's name re-exported, and a path that begins with a name that `use` binds.
    let re_exported = "#[path = \"x.rs\"] mod cpu; pub use cpu::X;";
    for user in ["use crate::low::X;", "use crate::low; type Y = low::X;", "use crate::low as l; fn f(_: &l::X) {}"] {
        let files = [("low/mod.rs", re_exported), ("low/x.rs", "pub type X = crate::high::Z;"), ("high.rs", user)];
        assert_eq!(made(&files).circles(), [["high.rs", "low/x.rs"].into()].into(), "{user}");
    }
    // The same by a child module, which needs no `use`.
    let files = [("a/mod.rs", "mod b; fn f() { b::X::f() }"), ("a/b.rs", "pub use crate::high::X;"), ("high.rs", "")];
    assert!(names(made(&files).imports()).contains(&"a/mod.rs > high.rs".to_owned()));
    // A name of two meanings: a `cfg` decides.
    let files = [
        ("low.rs", "#[cfg(x)] use crate::a as of; #[cfg(y)] use crate::b as of; fn f() { of::X }"),
        ("a.rs", "use crate::low::f;"),
        ("b.rs", ""),
    ];
    assert_eq!(made(&files).circles(), [["a.rs", "low.rs"].into()].into());
    // Not imports: a path that goes on from another one, and a name that another module binds.
    let files = [
        ("low.rs", "use crate::mid; fn f() { std::high::X; high::X }"),
        ("mid.rs", ""),
        ("high.rs", "use crate::low;"),
    ];
    assert_eq!(made(&files).circles(), BTreeSet::new());
    // A macro of the crate belongs to the file that defines it, or to those for each CPU.
    let of_macro = [("low.rs", "crate::table!(x);"), ("high.rs", "macro_rules! table { () => {} }")];
    assert_eq!(upward(&of_macro), ["low.rs > high.rs"]);
    let of_two = [
        ("low.rs", "crate::table!(x);"),
        ("mid.rs", "macro_rules! table { () => {} }"),
        ("high.rs", "macro_rules! table { () => {} }"),
    ];
    assert_eq!(upward(&of_two), ["low.rs > high.rs", "low.rs > mid.rs"]);
    let both = "macro_rules! part { () => {} } macro_rules! whole { () => { $crate::part!() } }";
    assert_eq!(made(&[("low/x.rs", both), ("low/y.rs", both)]).circles(), BTreeSet::new());
    // A test file may import anything.
    let tests = [("low/mod.rs", "#[cfg(test)]\nmod tests;"), ("low/tests.rs", "use crate::high;"), ("high.rs", "")];
    assert_eq!(upward(&tests), Vec::<String>::new());

    // Circles of three, by way of a re-export; a folder and its own file are one unit.
    let files = [
        ("a/mod.rs", "mod x; mod y; mod z; pub use x::X; use y::Y;"),
        ("a/x.rs", "use super::y;"),
        ("a/y.rs", "use crate::a::z::{self, Z};"),
        ("a/z.rs", "use super::X;"),
        ("b.rs", "use crate::a::X;"),
    ];
    let expected: BTreeSet<BTreeSet<&str>> = [["a/x.rs", "a/y.rs", "a/z.rs"].into()].into();
    assert_eq!(made(&files).circles(), expected);
    let without: Vec<_> = files.into_iter().filter(|(file, _)| *file != "a/z.rs").collect();
    assert_eq!(made(&without).circles(), BTreeSet::new());
}
