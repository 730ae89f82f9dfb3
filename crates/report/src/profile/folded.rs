//! Folded stacks: `outermost;…;innermost amount`, one line for each stack, as flame graph tools read them.
//!
//! The format has no escapes: a semicolon in a name (`[u8; 4]`) becomes a comma. Stacks that round to 0 are left out.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Exporter, View, changes, named};

pub const EXPORTER: Exporter = Exporter {
    view: |out, view, _| write(out, view),
    diff: |out, diff, _| write(out, &changes(diff)),
    is_binary: false,
    keeps_wrappers: false,
    is_of_stacks: true,
    has_closing_lines: false,
};

pub fn write(out: &mut dyn Write, view: &View) -> io::Result<()> {
    let mut lines: BTreeMap<String, i64> = BTreeMap::new();
    for (entry, values) in view.profile.entries() {
        let frames = view.profile.frames_of(entry.stack).iter().rev();
        let names: Vec<String> =
            frames.map(|f| named(view.profile.function_at(view.profile.function_of(*f))).replace(';', ",")).collect();
        let stack = if names.is_empty() { "[no stack]".to_string() } else { names.join(";") };
        let sum = lines.entry(stack).or_default();
        *sum = sum.saturating_add(values[view.column].amount);
    }
    for (stack, amount) in lines.iter().filter(|(_, amount)| **amount != 0) {
        writeln!(out, "{stack} {amount}")?;
    }
    Ok(())
}
