//! Table 4, the question of RFR 8304442: instructions of booking a reserve and a commit, among few and many mappings.
//!
//! The kernel allows 65,530 mappings, and valgrind about 10,000, so nothing is mapped: the books are called directly.
//! HotSpot's are called in its own libjvm.so (bench/hotspot_books.c), ours and the proposed structures in
//! crates/tracker/examples/mapping_books.rs, with the same addresses in the same order.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::callgrind::Calls;
use super::{Session, Table, threads};
use crate::bench::{java, words};
use crate::stage::{Result, folder, jdk, must, repository, target};

const MAJORS: [u32; 2] = [17, 25];
const MAPPINGS: [u64; 3] = [100, 10_000, 1_000_000];
/// An array of 10⁶ entries moves 8 MB for each new one.
const ROUNDS: u32 = 40;

/// Books of mappings to compare, and the program that calls them.
struct Contender {
    name: String,
    program: PathBuf,
    first: Vec<String>,
    /// Parts of the names of reserve, commit, release, and of the walk of a report.
    functions: [&'static str; 4],
}

const OURS: [(&str, &str); 5] = [
    ("Plimsoll's map (B+tree in the segment)", "map"),
    ("linked list", "list"),
    ("flat array, 16 B an entry", "array"),
    ("deferred queue, 64 B an event", "queue"),
    ("BTreeMap", "btree"),
];

pub fn table(session: &Session) -> Result<Table> {
    let rounds = session.rounds(ROUNDS).to_string();
    let mut table = Table::default();
    start(&mut table)?;
    table.line(
        "\nBooks alone, nothing mapped: the books have that number of regions of 64 KiB, half of each committed; the first address is booked last. Then a region in a gap is reserved, \
         half of it committed, and it is released, at places that are spread over all of them: instructions of one call, by callgrind, without the lock around it. Report: a walk over all \
         regions, instructions of one region. Memory: bytes of one region, reserved and committed.",
    );
    table.head(&[
        "books",
        "regions",
        "reserve",
        "commit",
        "release",
        "report, of one region",
        "memory, B of one region",
    ]);
    let mut found = Vec::new();
    for major in MAJORS.into_iter().filter(|major| jdk(*major).is_none()) {
        table.row(&words(&[&format!("HotSpot {major}, summary (linked list)"), "not run: no such JDK"]));
    }
    for contender in contenders()? {
        for mappings in MAPPINGS {
            let figures = contender.figures(mappings, &rounds)?;
            let cells = figures.map(|figure| figure.map_or("-".to_owned(), |figure| format!("{figure:.0}")));
            table.row(&[&[contender.name.clone(), grouped(mappings)], cells.as_slice()].concat());
            found.push((contender.name.clone(), mappings, figures));
        }
    }
    table.line(
        "\nThe deferred queue's own cost is in its report, which carries out what was queued, and in its memory, which grows by 64 B with each call until then. Plimsoll's report is the observer's \
         reader: it checks every block, because the program could have damaged it, and allocates nothing in the program. \
         The list, the array and the BTreeMap keep of a range only its address, its size and what is committed of it. HotSpot's books and Plimsoll's map also \
         keep category, caller and protection, and add to sums, so the comparison is to their disadvantage. \
         One figure is probably the counter's: callgrind seems to count each byte of a `rep movsb`, which glibc's memmove uses for the array's release at 10,000.",
    );
    threads::rows(session, &mut table)?;
    table.summary = summary(&found);
    Ok(table)
}

/// Reserve and commit of a whole VM at its start, in the three modes. Here the lock, the stack and the VM's wrapper
/// count, and the list is short.
fn start(table: &mut Table) -> Result<()> {
    table.line(
        "Start of a VM (`-Xint -XX:+UseSerialGC`, an empty `main`): instructions of one call, by callgrind, with all that the function calls. `add_reserved_region` and `add_committed_region` are the \
         books inside of them; detail mode walks the stack too, and its list has more entries, because equal neighbours with different stacks aren't joined. \
         So 680 to 740 instructions more (JDK 25, summary, the two os:: functions less those of `off`) and 2,500 (JDK 17, detail, the two books inside) are both right.",
    );
    table.head(&[
        "VM",
        "NMT",
        "os::reserve_memory",
        "os::commit_memory",
        "add_reserved_region",
        "add_committed_region",
    ]);
    let classes = folder("bench/published/empty")?;
    let source = classes.join("Empty.java");
    std::fs::write(&source, "public class Empty { public static void main(String[] a) {} }\n")?;
    for major in MAJORS {
        let Some(home) = jdk(major) else {
            table.row(&words(&[&format!("HotSpot {major}"), "not run: no such JDK", "", "", "", ""]));
            continue;
        };
        let classes_of_jdk = classes.join(major.to_string());
        must(Command::new(home.join("bin/javac")).arg("-d").arg(&classes_of_jdk).arg(&source))?;
        for mode in ["off", "summary", "detail"] {
            let flags = ["-Xint", "-XX:+UseSerialGC", "-Xmx64m", &format!("-XX:NativeMemoryTracking={mode}"), "-cp"];
            let arguments = [words(&flags), vec![classes_of_jdk.display().to_string(), "Empty".into()]].concat();
            let (calls, _) = Calls::of(&java(&home), &arguments)?;
            let each =
                ["os::reserve_memory(", "os::commit_memory(", "::add_reserved_region(", "::add_committed_region("]
                    .map(|name| calls.each("", name).map_or("-".to_owned(), |figure| format!("{figure:.0}")));
            table.row(&[&[format!("HotSpot {major}"), mode.to_owned()], each.as_slice()].concat());
        }
    }
    Ok(())
}

fn contenders() -> Result<Vec<Contender>> {
    let harness = folder("bench")?.join("hotspot_books");
    let source = repository().join("bench/hotspot_books.c");
    must(Command::new("gcc").args(["-O2", "-o"]).arg(&harness).arg(source).arg("-ldl"))?;
    let mut all = Vec::new();
    for major in MAJORS {
        let Some(home) = jdk(major) else { continue };
        all.push(Contender {
            name: format!("HotSpot {major}, summary (linked list)"),
            program: harness.clone(),
            first: vec![home.join("lib/server/libjvm.so").display().to_string()],
            functions: [
                "::add_reserved_region(",
                "::add_committed_region(",
                "::remove_released_region(unsigned char",
                "::walk_virtual_memory(",
            ],
        });
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "-q", "--release", "-p", "plimsoll-tracker", "--example", "mapping_books"]);
    must(cargo.current_dir(repository()))?;
    let example = target().join("release/examples/mapping_books");
    all.extend(OURS.map(|(name, word)| Contender {
        name: name.to_owned(),
        program: example.clone(),
        first: vec![word.to_owned()],
        functions: ["books_reserve", "books_commit", "books_release", "books_report"],
    }));
    Ok(all)
}

impl Contender {
    /// Reserve, commit, release, report of one region, bytes of one region.
    fn figures(&self, mappings: u64, rounds: &str) -> Result<[Option<f64>; 5]> {
        let arguments = [self.first.clone(), vec![mappings.to_string(), rounds.to_owned()]].concat();
        let (calls, printed) = Calls::of(Path::new(&self.program), &arguments)?;
        let [reserve, commit, release, report] = self.functions;
        let of_round = |function: &str| calls.each("rounds_of", function);
        let bytes = printed.split_whitespace().next().and_then(|bytes| bytes.parse::<f64>().ok());
        let of_one = |whole: f64| whole / mappings as f64;
        Ok([
            of_round(reserve),
            of_round(commit),
            of_round(release),
            calls.each("", report).map(of_one),
            bytes.map(of_one),
        ])
    }
}

fn summary(found: &[(String, u64, [Option<f64>; 5])]) -> String {
    let of = |begins: &str| {
        let rows = found.iter().filter(|(name, ..)| name.starts_with(begins));
        let cells = rows.map(|(_, mappings, [reserve, commit, ..])| {
            let sum = reserve.zip(*commit).map(|(reserve, commit)| grouped((reserve + commit).round() as u64));
            format!("{} with {}", sum.as_deref().unwrap_or("not counted"), grouped(*mappings))
        });
        let cells: Vec<String> = cells.collect();
        if cells.is_empty() { "not run".to_owned() } else { cells.join(", ") + " regions" }
    };
    format!(
        "Instructions of a reserve and a commit together: in HotSpot 25 {}; in Plimsoll {}.",
        of("HotSpot 25"),
        of("Plimsoll")
    )
}

/// `1,000,000`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that callgrind didn't see has no cost, which isn't a cost of 0.
    #[test]
    fn a_sum_needs_both_figures() {
        let row = |name: &str, mappings, reserve, commit| {
            (name.to_owned(), mappings, [reserve, commit, Some(1.0), Some(1.0), Some(1.0)])
        };
        let found = [
            row("HotSpot 25, summary", 100, Some(1000.4), Some(1999.2)),
            row("HotSpot 25, summary", 10_000, Some(1000.0), None),
            row("Plimsoll's map", 100, None, None),
        ];
        assert_eq!(
            summary(&found),
            "Instructions of a reserve and a commit together: in HotSpot 25 3,000 with 100, not counted with 10,000 regions; in Plimsoll not counted with 100 regions."
        );
        assert_eq!(
            summary(&found[2..]),
            "Instructions of a reserve and a commit together: in HotSpot 25 not run; in Plimsoll not counted with 100 regions."
        );
    }
}
