//! Categories by rules: a readable text (docs/categories.md) → rules → tables of addresses in which the tracker looks
//! up callers.
//!
//! `parse` and `compile` are pure. `read` finds the objects that a command will load, and manages the cache.

pub mod compile;
pub mod modules;
pub mod names;
pub mod parse;
pub mod read;

use plimsoll_segment::rules::{Decision, FrameRule, RuleTarget, decide, file_name, glob_matches};

/// The rules that come with Plimsoll.
pub(crate) const BUILT_IN: &str = include_str!("../../rules/categories.rules");

/// The kind of owner that a category stands for. The compiled rules contain its index.
pub const KINDS: [&str; 6] = ["other", "vm", "runtime", "library", "libc", "allocator"];

/// A category as the rules declare it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CategoryRule {
    /// Name in reports.
    pub name: String,
    /// Index into [`KINDS`].
    pub kind: u8,
    /// Description, one line.
    pub about: String,
}

/// A rule whose category other categories may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weak {
    /// The category, unless the next outer rule gives one of `unless`.
    pub default: u16,
    /// Categories that replace the default.
    pub unless: Vec<u16>,
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// File that contains it.
    pub source: String,
    /// Number of its first line.
    pub line: usize,
    /// File names of objects; one must match.
    pub objects: Vec<String>,
    /// Function names; one must match. Empty: the rule applies to the whole object.
    pub symbols: Vec<String>,
    /// Result of the rule.
    pub target: RuleTarget,
    /// Examples: object and symbol (empty for a rule on whole objects).
    pub examples: Vec<(String, String)>,
}

/// All rules; the user's come first.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// Categories; the built-in ones come first.
    pub categories: Vec<CategoryRule>,
    /// Rules with `unless`.
    pub weak: Vec<Weak>,
    /// Rules; the first one that matches a frame decides.
    pub rules: Vec<Rule>,
    /// Hash of the whole text.
    pub hash: u64,
}

impl RuleSet {
    /// The built-in rules alone.
    pub fn parse_built_in() -> Result<RuleSet, parse::RulesError> {
        parse::parse(&[])
    }

    /// Index of the first rule for this function in this object. `name` is the result of [`names::qualified`].
    pub fn symbol_rule(&self, object: &str, name: &str) -> Option<usize> {
        let matches = |globs: &[String], text: &str| globs.iter().any(|g| glob_matches(g.as_bytes(), text.as_bytes()));
        self.rules.iter().position(|rule| matches(&rule.symbols, name) && matches(&rule.objects, object))
    }

    /// Index of the first rule for this object as a whole. A `through` rule applies only if there are no symbols.
    pub(crate) fn object_rule(&self, object: &str, has_symbols: bool) -> Option<usize> {
        self.rules.iter().position(|rule| {
            rule.symbols.is_empty()
                && !(has_symbols && rule.target == RuleTarget::Through)
                && rule.objects.iter().any(|g| glob_matches(g.as_bytes(), object.as_bytes()))
        })
    }

    /// Whether memory allocated by this function in this object counts for its caller. `name` is the result of
    /// [`names::qualified`].
    pub fn is_through(&self, object: &str, name: Option<&str>) -> bool {
        let symbol = self.target(name.and_then(|name| self.symbol_rule(object, name)));
        let whole = || self.target(self.object_rule(object, name.is_some()));
        symbol == RuleTarget::Through || (symbol == RuleTarget::None && whole() == RuleTarget::Through)
    }

    fn target(&self, rule: Option<usize>) -> RuleTarget {
        rule.map_or(RuleTarget::None, |i| self.rules[i].target)
    }

    /// The owner of a block whose caller has these frames, innermost first. A frame is the path of the object, and the
    /// symbol, either mangled or as printed; None if the object's symbols are unknown.
    pub fn classify(&self, frames: &[(&str, Option<&str>)]) -> Decision {
        let frames = frames.iter().map(|(path, symbol)| {
            let object = std::str::from_utf8(file_name(path.as_bytes())).unwrap_or(path);
            let rule = symbol.and_then(|symbol| self.symbol_rule(object, &names::qualified(symbol)));
            FrameRule {
                object,
                symbol: self.target(rule),
                whole: self.target(self.object_rule(object, symbol.is_some())),
            }
        });
        decide(frames, |weak, outer| self.resolve(weak, outer))
    }

    fn resolve(&self, weak: u16, outer: Option<u16>) -> Option<u16> {
        let weak = self.weak.get(weak as usize)?;
        Some(outer.filter(|outer| weak.unless.contains(outer)).unwrap_or(weak.default))
    }

    /// Name of a category by index.
    pub fn name(&self, category: u16) -> &str {
        self.categories.get(category as usize).map_or("", |c| &c.name)
    }
}

#[cfg(test)]
mod tests;
