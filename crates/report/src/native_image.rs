//! Prints books as Native Image prints its own NMT (-XX:+PrintNMTStatistics): KB rounded down, and every category, zero
//! or not. An image's own categories come first and in its own order, so that existing parsers find their lines. Ours
//! follow under their names, without the peak of mappings where it is unknown. The one difference: GraalVM 25.0.2
//! prints `Serviceability)`, with a parenthesis too many.

use std::io::{self, Write};

use plimsoll_tracked::books::{Books, Figures, NATIVE_IMAGE_CATEGORIES, Runtime};

use crate::words::printable;

/// Categories of ours whose mappings the tracker doesn't follow.
const WITHOUT_PEAKS: [&str; 3] = ["Plimsoll", "Thread Stack", "Loaded Libraries"];

/// The text of GraalVM 25: KB, of blocks and of mappings.
pub fn write(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    writeln!(out, "Native memory tracking\n")?;
    block(out, "Total", &books.total)?;
    lines(books).iter().try_for_each(|(name, figures)| block(out, name, figures))
}

fn block(out: &mut dyn Write, name: &str, f: &Figures) -> io::Result<()> {
    let kb = |bytes: u64| bytes / 1024;
    let (live, reserved, committed) = (f.live.0, f.reserved.0, f.committed.0);
    writeln!(out, "{}", printable(name))?;
    let (all, all_committed) = (kb(live.saturating_add(reserved)), kb(live.saturating_add(committed)));
    writeln!(out, "    (reserved={all}KB, committed={all_committed}KB)")?;
    writeln!(out, "    (malloc={}KB, count={})", kb(live), f.live_count)?;
    writeln!(out, "    (peak malloc={}KB, count at peak={})", kb(f.peak.0), f.count_at_peak)?;
    writeln!(out, "    (mmap: reserved={}KB, committed={}KB)", kb(reserved), kb(committed))?;
    // The tracker keeps no peaks of these, and the present value would be taken for one.
    if WITHOUT_PEAKS.contains(&name) {
        return Ok(());
    }
    let (reserved, committed) = (kb(f.peak_reserved.0), kb(f.peak_committed.0));
    writeln!(out, "    (mmap: peak reserved={reserved}KB, peak committed={committed}KB)")
}

/// The text of GraalVM for JDK 23: bytes, of blocks only.
pub fn write_23(out: &mut dyn Write, books: &Books) -> io::Result<()> {
    let total = &books.total;
    writeln!(out, "Native memory tracking")?;
    writeln!(out, "  Peak total used memory: {} bytes", total.peak.0)?;
    writeln!(out, "  Total alive allocations at peak usage: {}", total.count_at_peak)?;
    writeln!(out, "  Total used memory: {} bytes", total.live.0)?;
    writeln!(out, "  Total alive allocations: {}", total.live_count)?;
    for (name, f) in lines(books) {
        let name = printable(&name);
        writeln!(out, "  {name} peak used memory: {} bytes", f.peak.0)?;
        writeln!(out, "  {name} alive allocations at peak: {}", f.count_at_peak)?;
        writeln!(out, "  {name} currently used memory: {} bytes", f.live.0)?;
        writeln!(out, "  {name} currently alive allocations: {}", f.live_count)?;
    }
    Ok(())
}

fn lines(books: &Books) -> Vec<(String, Figures)> {
    let mut lines: Vec<(String, Figures)> = match books.process.runtime {
        Runtime::NativeImage => {
            NATIVE_IMAGE_CATEGORIES.iter().map(|name| (name.to_string(), Figures::default())).collect()
        }
        _ => Vec::new(),
    };
    for category in &books.categories {
        match lines.iter_mut().find(|(name, _)| *name == category.name) {
            Some((_, figures)) => *figures = category.figures,
            None => lines.push((category.name.clone(), category.figures)),
        }
    }
    lines
}
