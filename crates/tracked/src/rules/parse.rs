//! Parses the text of rules, line by line. `#` starts a comment at the beginning of a line or word. The grammar:
//!
//! ```text
//! category NAME [KIND]: what it holds
//! OBJECT, OBJECT …: FUNCTION | FUNCTION … -> NAME
//! OBJECT, OBJECT …                        -> NAME          the whole object
//! …                                       -> through       the memory counts for the caller
//! …                                       -> NAME unless NAME, NAME …
//!     example: OBJECT FUNCTION
//! ```
//!
//! A line that ends in `|` or `,` continues in the next line. OBJECT and FUNCTION are globs (`*`, `?`).

use super::{BUILT_IN, CategoryRule, KINDS, Rule, RuleSet, Weak};
use plimsoll_segment::rules::{CATEGORIES, GLOB_BYTES, NAME_BYTES, RuleTarget};
use std::fmt;

/// An error in a rules file: what and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesError {
    /// File.
    pub source: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.source, self.line, self.what)
    }
}

impl std::error::Error for RulesError {}

/// A line with its continuations, without comments.
struct Line {
    file: usize,
    source: String,
    number: usize,
    text: String,
}

impl Line {
    fn error(&self, what: impl Into<String>) -> RulesError {
        RulesError { source: self.source.clone(), line: self.number, what: what.into() }
    }
}

/// Parses `files`, (name, text) each, followed by the built-in rules: the user's rules are tried first.
pub fn parse(files: &[(&str, &str)]) -> Result<RuleSet, RulesError> {
    let sources: Vec<(&str, &str)> = files.iter().copied().chain([("categories.rules", BUILT_IN)]).collect();
    parse_only(&sources)
}

/// Parses exactly these files, in this order.
pub fn parse_only(files: &[(&str, &str)]) -> Result<RuleSet, RulesError> {
    let lines: Vec<Line> =
        files.iter().enumerate().flat_map(|(file, (source, text))| lines(file, source, text)).collect();
    let mut set = RuleSet { hash: hash(files), ..RuleSet::default() };
    // Built-in categories come first, so that their indexes don't depend on the user's files.
    for built_in in [true, false] {
        for line in lines.iter().filter(|line| (line.file + 1 == files.len()) == built_in) {
            if let Some(rest) = line.text.strip_prefix("category ") {
                add_category(&mut set, line, rest)?;
            }
        }
    }
    for line in &lines {
        if line.text.starts_with("category ") {
            continue;
        }
        if let Some(rest) = line.text.strip_prefix("example:") {
            let Some(rule) = set.rules.last_mut().filter(|rule| rule.source == line.source) else {
                return Err(line.error("an example without a rule above it"));
            };
            let rest = rest.trim();
            let (object, symbol) = rest.split_once(' ').unwrap_or((rest, ""));
            if object.is_empty() || symbol.is_empty() != rule.symbols.is_empty() {
                return Err(
                    line.error("expected 'example: OBJECT FUNCTION' (no FUNCTION below a rule for whole objects)")
                );
            }
            rule.examples.push((object.to_string(), symbol.trim().to_string()));
        } else {
            let rule = rule(&mut set, line)?;
            set.rules.push(rule);
        }
    }
    Ok(set)
}

fn add_category(set: &mut RuleSet, line: &Line, rest: &str) -> Result<(), RulesError> {
    let form = "expected 'category NAME [KIND]: what it holds'";
    let (head, about) = rest.split_once(": ").ok_or_else(|| line.error(form))?;
    let (name, kind) = match head.trim().strip_suffix(']').and_then(|head| head.rsplit_once('[')) {
        Some((name, kind)) => (name.trim(), kind.trim()),
        None => (head.trim(), KINDS[0]),
    };
    let kind = KINDS
        .iter()
        .position(|k| *k == kind)
        .ok_or_else(|| line.error(format!("unknown kind '{kind}', expected one of {}", KINDS.join(", "))))?;
    if name.is_empty() || about.trim().is_empty() {
        return Err(line.error(form));
    }
    if name == "through" || name.contains(" unless ") || name.contains(',') {
        return Err(line.error(format!("'{name}' can't be the name of a category")));
    }
    if name.len() > NAME_BYTES {
        return Err(line.error(format!("the name '{name}' has {} bytes; the maximum is {NAME_BYTES}", name.len())));
    }
    if set.categories.iter().any(|c| c.name == name) {
        return Err(line.error(format!("category '{name}' already exists")));
    }
    if set.categories.len() == CATEGORIES {
        return Err(line.error(format!("more than {CATEGORIES} categories")));
    }
    set.categories.push(CategoryRule { name: name.into(), kind: kind as u8, about: about.trim().into() });
    Ok(())
}

fn rule(set: &mut RuleSet, line: &Line) -> Result<Rule, RulesError> {
    let (left, right) = line
        .text
        .rsplit_once("->")
        .filter(|(left, _)| left.is_empty() || left.ends_with(char::is_whitespace))
        .ok_or_else(|| line.error("expected 'OBJECT: FUNCTION | … -> CATEGORY'"))?;
    let (objects, symbols) = match left.split_once(": ") {
        Some((objects, symbols)) => (objects, split(symbols, '|')),
        None => (left, Vec::new()),
    };
    let objects = split(objects, ',');
    if objects.is_empty() || objects.iter().chain(&symbols).any(String::is_empty) {
        return Err(line.error("an empty pattern"));
    }
    if let Some(long) = objects.iter().find(|o| o.len() > GLOB_BYTES) {
        return Err(line.error(format!("'{long}' is longer than {GLOB_BYTES} bytes")));
    }
    let find = |set: &RuleSet, name: &str| {
        let index = set.categories.iter().position(|c| c.name == name.trim());
        index.map(|i| i as u16).ok_or_else(|| line.error(format!("no category '{}'", name.trim())))
    };
    let target = match (right.trim(), right.split_once(" unless ")) {
        ("through", _) => RuleTarget::Through,
        (_, Some(_)) if symbols.is_empty() => return Err(line.error("'unless' needs functions")),
        (_, Some((default, unless))) => {
            let unless = split(unless, ',').iter().map(|name| find(set, name)).collect::<Result<Vec<_>, _>>()?;
            let weak = Weak { default: find(set, default)?, unless };
            let i = set.weak.iter().position(|w| *w == weak).unwrap_or_else(|| {
                set.weak.push(weak);
                set.weak.len() - 1
            });
            RuleTarget::Weak(
                u16::try_from(i).ok().filter(|&i| i < 0x7FFE).ok_or_else(|| line.error("too many 'unless'"))?,
            )
        }
        (name, None) => RuleTarget::Category(find(set, name)?),
    };
    Ok(Rule { source: line.source.clone(), line: line.number, objects, symbols, target, examples: Vec::new() })
}

fn split(text: &str, separator: char) -> Vec<String> {
    text.split(separator).map(|part| part.trim().to_string()).collect()
}

fn lines(file: usize, source: &str, text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut continues = false;
    for (i, raw) in text.lines().enumerate() {
        let comment = raw.match_indices('#').find(|(at, _)| raw[..*at].chars().last().is_none_or(char::is_whitespace));
        let text = comment.map_or(raw, |(at, _)| &raw[..at]).trim();
        if text.is_empty() {
            continue;
        }
        match lines.last_mut().filter(|_| continues) {
            Some(line) => {
                line.text.push(' ');
                line.text.push_str(text);
            }
            None => lines.push(Line { file, source: source.into(), number: i + 1, text: text.into() }),
        }
        continues = text.ends_with(['|', ',']);
    }
    lines
}

/// FNV-1a, 64 bit, over names and texts. It only detects changes of the rules.
fn hash(files: &[(&str, &str)]) -> u64 {
    let bytes = files.iter().flat_map(|(name, text)| name.bytes().chain([0]).chain(text.bytes()).chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
