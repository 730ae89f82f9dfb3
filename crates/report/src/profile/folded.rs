//! Folded stacks: `outermost;…;innermost amount`, one line for each stack, as flame graph tools read them. A difference
//! has two amounts, before and after, as differential flame graphs take them.
//!
//! The format has no escapes: a semicolon in a name (`[u8; 4]`) becomes a comma. Stacks that round to 0 are left out.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_profiles::profile::{Profile, ProfileDiff};

use super::{Exporter, View, named};

pub const EXPORTER: Exporter = Exporter {
    view: |out, view, _| write(out, view),
    diff: |out, diff, _| differential(out, diff),
    is_binary: false,
    keeps_wrappers: false,
    is_of_stacks: true,
    has_closing_lines: false,
};

pub fn write(out: &mut dyn Write, view: &View) -> io::Result<()> {
    for (stack, [amount]) in stacks(view.profile, [view.column]) {
        if amount != 0 {
            writeln!(out, "{stack} {amount}")?;
        }
    }
    Ok(())
}

/// `outermost;…;innermost before after`: the input of differential flame graph tools (difffolded.pl's output).
pub fn differential(out: &mut dyn Write, diff: &ProfileDiff) -> io::Result<()> {
    for (stack, [before, after]) in stacks(&diff.profile, [0, 1]) {
        if (before, after) != (0, 0) {
            writeln!(out, "{stack} {before} {after}")?;
        }
    }
    Ok(())
}

fn stacks<const N: usize>(profile: &Profile, columns: [usize; N]) -> BTreeMap<String, [i64; N]> {
    let mut lines: BTreeMap<String, [i64; N]> = BTreeMap::new();
    for (entry, values) in profile.entries() {
        let frames = profile.frames_of(entry.stack).iter().rev();
        let names: Vec<String> =
            frames.map(|f| named(profile.function_at(profile.function_of(*f))).replace(';', ",")).collect();
        let stack = if names.is_empty() { "[no stack]".to_string() } else { names.join(";") };
        let sums = lines.entry(stack).or_insert([0; N]);
        for (sum, column) in sums.iter_mut().zip(columns) {
            *sum = sum.saturating_add(values[column].amount);
        }
    }
    lines
}
