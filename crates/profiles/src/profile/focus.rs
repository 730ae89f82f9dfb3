//! Focus: only what happened below a function. The outermost matching frame becomes the root, so that recursions stay
//! complete.

use std::collections::BTreeMap;

use regex::Regex;

use super::{FrameOrigin, Profile, Value};

/// The pattern of `--focus REGEX`; it matches anywhere in a function's or module's name. Time is linear in the text (no
/// backtracking).
#[derive(Clone, Debug)]
pub struct Focus(Regex);

#[derive(Clone, Debug)]
pub struct Focused {
    pub profile: Profile,
    /// For each column, the part outside the focus. `profile.total() + left_out` is the whole.
    pub left_out: Vec<Value>,
}

impl Focus {
    /// The error is one sentence.
    pub fn new(pattern: &str) -> Result<Focus, String> {
        let regex = regex::RegexBuilder::new(pattern).size_limit(1 << 20).build();
        regex.map(Focus).map_err(|e| match e {
            regex::Error::CompiledTooBig(_) => "the pattern is too large".into(),
            // The last line says what is wrong; the lines before it mark the position in the pattern.
            e => {
                let text = e.to_string();
                let last = text.lines().last().unwrap_or_default().trim();
                format!("it isn't a regular expression: {}", last.strip_prefix("error: ").unwrap_or(last))
            }
        })
    }

    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl Profile {
    /// The modules most of whose native functions have no name: no pattern can match them. Every library has a few
    /// functions without one.
    pub fn nameless_modules(&self) -> Vec<&str> {
        let mut functions = BTreeMap::new();
        for (entry, _) in self.entries() {
            for frame in self.frames_of(entry.stack) {
                if matches!(self.frame_at(*frame).kind, FrameOrigin::Native | FrameOrigin::Unknown) {
                    let id = self.function_of(*frame);
                    functions.insert(id.0, self.function_at(id));
                }
            }
        }
        let mut modules: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for function in functions.into_values().filter(|function| !function.module.is_empty()) {
            let (named, nameless) = modules.entry(&function.module).or_default();
            *(if function.named { named } else { nameless }) += 1;
        }
        let most = modules.into_iter().filter(|(_, (named, nameless))| nameless > named);
        most.map(|(module, _)| module).collect()
    }

    pub fn focus(&self, focus: &Focus) -> Focused {
        let matched: Vec<bool> =
            self.functions.iter().map(|f| focus.matches(&f.name) || focus.matches(&f.module)).collect();
        let mut profile = self.emptied();
        let mut left_out = vec![Value::default(); self.columns.len()];
        for (entry, values) in self.entries() {
            let frames = self.frames_of(entry.stack);
            match frames.iter().rposition(|f| matched[self.function_of(*f).0 as usize]) {
                Some(root) => {
                    let stack = profile.stack(&frames[..=root]);
                    profile.add(stack, entry.labels, values);
                }
                None => left_out.iter_mut().zip(values).for_each(|(sum, v)| *sum = sum.plus(*v)),
            }
        }
        // The exact total belongs to the whole profile.
        for column in &mut profile.columns {
            column.exact_total = None;
        }
        Focused { profile, left_out }
    }
}
