//! The examples below each command's help and in its man page.

/// Command, its examples, and what each does.
pub const ALL: &[(&str, &[(&str, &str)])] = &[
    (
        "run",
        &[
            ("plimsoll run -- java -jar shop.jar", "Track a program; plimsoll report PID shows its books at any time"),
            ("plimsoll run --report summary -- ./server", "Print the books when the program ends"),
            (
                "plimsoll run --sites exact --dir /books -- ./server",
                "Keep the stack of every block, and the segment on a volume",
            ),
        ],
    ),
    (
        "attach",
        &[
            ("plimsoll attach 4711", "Load the tracker into process 4711"),
            ("plimsoll attach 4711 --sites off", "Keep the exact books by caller, and stop taking deep stacks"),
        ],
    ),
    ("detach", &[("plimsoll detach 4711", "Remove the tracker's hooks from process 4711")]),
    (
        "explain",
        &[
            ("plimsoll explain", "List what could be explained, biggest first"),
            ("plimsoll explain 4711", "Explain process 4711"),
            ("plimsoll explain shop.jar", "Explain the JVM that runs this jar"),
            ("plimsoll explain 4711 --format html -o shop.html", "Write one page for a ticket"),
        ],
    ),
    (
        "record",
        &[
            ("plimsoll record 4711 -o shop.jfr --duration 10m", "Record a running process for ten minutes"),
            ("plimsoll record -o start.jfr -- java -jar shop.jar", "Record a program from its first instruction"),
        ],
    ),
    ("watch", &[("plimsoll watch", "List all processes"), ("plimsoll watch java", "Watch one of them")]),
    (
        "serve",
        &[
            ("plimsoll serve --all", "Serve http://127.0.0.1:9464/"),
            ("plimsoll serve java --history /var/lib/plimsoll", "Keep the last 24 hours"),
        ],
    ),
    (
        "report",
        &[
            ("plimsoll report 4711", "Print live memory by category"),
            ("plimsoll report 4711 --by site", "Print the call stacks that hold the most"),
            ("plimsoll report 4711 --format svg --by site -o flame.svg", "Draw a flame graph"),
            ("plimsoll report shop.jfr --from +10m", "Print a recording from its tenth minute on"),
        ],
    ),
    (
        "diff",
        &[
            ("plimsoll report 4711 --by site --format json -o before.json", "Save a report"),
            ("plimsoll diff before.json 4711 --by site", "Later: print which call stacks hold more"),
        ],
    ),
    (
        "try",
        &[
            ("plimsoll try --ready port:8080 -- java -jar shop.jar", "Try the remedies that explain proposes"),
            (
                "plimsoll try --ready port:8080 --load 'wrk -d 20 http://127.0.0.1:8080/' --with arenas=2 --with jemalloc -- java -jar shop.jar",
                "Try these two under a load",
            ),
            ("plimsoll try --pid 4711", "Try on a running process what needs no restart"),
        ],
    ),
    (
        "compare",
        &[
            ("plimsoll compare --a './old' --b './new'", "Compare two programs that end by themselves"),
            (
                "plimsoll compare --ready port:8080 --a 'java -jar old.jar' --b 'java -jar new.jar' --budget budget.txt",
                "Fail a build if a line grew beyond its budget",
            ),
        ],
    ),
    (
        "why",
        &[("plimsoll why", "List the verdicts"), ("plimsoll why arena-retention", "Print the page of arena-retention")],
    ),
    (
        "doctor",
        &[("plimsoll doctor", "Check this machine"), ("plimsoll doctor --format json", "Print the same as JSON")],
    ),
];

/// The text below the help of a command: a line each, the command first.
pub fn of(verb: &str) -> String {
    let examples = ALL.iter().find(|(name, _)| *name == verb).map_or(&[][..], |(_, examples)| examples);
    let lines: Vec<String> = examples.iter().map(|(command, does)| format!("  {command}\n      {does}")).collect();
    format!("Examples:\n{}", lines.join("\n"))
}
