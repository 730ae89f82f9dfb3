//! What a row changes: the environment, the command, or the live process.
//!
//! A row comes from `--with TEXT`, or from a remedy of a verdict, whose text is made to be pasted. No row comes from a
//! remedy that changes the code or a setting of the host, or that only `try --pid` can do.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::launcher;

/// An allocator that can be preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreloadedAllocator {
    Jemalloc,
    Tcmalloc,
    Mimalloc,
}

impl PreloadedAllocator {
    const ALL: [PreloadedAllocator; 3] =
        [PreloadedAllocator::Jemalloc, PreloadedAllocator::Tcmalloc, PreloadedAllocator::Mimalloc];

    pub const fn name(self) -> &'static str {
        match self {
            PreloadedAllocator::Jemalloc => "jemalloc",
            PreloadedAllocator::Tcmalloc => "tcmalloc",
            PreloadedAllocator::Mimalloc => "mimalloc",
        }
    }

    /// Names of its library, the preferred one first.
    pub const fn libraries(self) -> &'static [&'static str] {
        match self {
            PreloadedAllocator::Jemalloc => &["libjemalloc.so.2"],
            PreloadedAllocator::Tcmalloc => &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"],
            PreloadedAllocator::Mimalloc => &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"],
        }
    }

    /// Debian's package, as an argument of `apt-get install`.
    pub const fn package(self) -> &'static str {
        match self {
            PreloadedAllocator::Jemalloc => "libjemalloc2",
            PreloadedAllocator::Tcmalloc => "libtcmalloc-minimal4",
            PreloadedAllocator::Mimalloc => "libmimalloc3, before Debian 13 libmimalloc2.0",
        }
    }
}

/// A step that acts on the live process, between the load and the idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// malloc_trim, by the VM's own command or by a thread of plimsoll's.
    Trim,
}

/// One change that a row makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemedyChange {
    /// Name and value of a variable.
    Environment(String, String),
    Preload(PreloadedAllocator),
    /// Options of a Java VM.
    JavaOptions(Vec<String>),
    /// Another command in place of the plain one.
    Command(Vec<String>),
    /// PR_SET_THP_DISABLE, which children and programs started by exec inherit.
    NoHugePages,
    Live(Action),
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    pub label: String,
    pub changes: Vec<RemedyChange>,
}

/// A program to start, with the changes applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    pub command: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    pub no_huge_pages: bool,
    pub action: Option<Action>,
}

/// The grammar of `--with`, for its help and its errors.
pub const GRAMMAR: &str = "arenas=N[,N…], trim, jemalloc[,background], tcmalloc, mimalloc, thp=never, env:NAME=VALUE, \
                           flag:-XX:…, cmd:COMMAND";

impl Remedy {
    fn one(label: impl Into<String>, change: RemedyChange) -> Remedy {
        Remedy { label: label.into(), changes: vec![change] }
    }

    /// The row or rows that `--with TEXT` names.
    pub fn parse(text: &str) -> Result<Vec<Remedy>, String> {
        let one = |remedy: Remedy| Ok(vec![remedy]);
        if let Some(pair) = text.strip_prefix("env:") {
            let Some((name, value)) = pair.split_once('=').filter(|(name, _)| !name.is_empty()) else {
                return Err("expected env:NAME=VALUE".into());
            };
            return one(environment(name, value));
        }
        if let Some(options) = text.strip_prefix("flag:") {
            let options = words(options)?;
            return match options.first().is_some_and(|first| first.starts_with('-')) {
                true => one(java_options(options)),
                false => Err("expected flag:-XX:…, an option of the Java VM".into()),
            };
        }
        if let Some(command) = text.strip_prefix("cmd:") {
            let command = words(command)?;
            return match command.is_empty() {
                true => Err("expected cmd:COMMAND".into()),
                false => one(Remedy::one(command.join(" "), RemedyChange::Command(command))),
            };
        }
        if let Some(list) = text.strip_prefix("arenas=") {
            let cap = |number: &str| match number.parse::<u32>() {
                Ok(cap @ 1..) if !number.starts_with('+') => Ok(environment("MALLOC_ARENA_MAX", &cap.to_string())),
                _ => Err("expected numbers above 0, as in arenas=1,2,4".to_owned()),
            };
            return list.split(',').map(cap).collect();
        }
        match text {
            "trim" => one(Remedy::one("trim", RemedyChange::Live(Action::Trim))),
            "thp=never" => one(Remedy::one("thp=never", RemedyChange::NoHugePages)),
            "jemalloc,background" => one(jemalloc_in_background()),
            _ => match PreloadedAllocator::ALL.iter().find(|allocator| allocator.name() == text) {
                Some(allocator) => one(Remedy::one(text, RemedyChange::Preload(*allocator))),
                None => Err(format!("expected one of {GRAMMAR}")),
            },
        }
    }

    /// The row of a remedy that a verdict offers, by its pasteable text. `None`: it can't be tried by a restart.
    pub fn from_advice(how: &str) -> Option<Remedy> {
        if how.ends_with(" System.trim_native_heap") || how.ends_with(" --with trim") {
            return Some(Remedy::one("trim", RemedyChange::Live(Action::Trim)));
        }
        // A shell's assignments come first; the lines for a Dockerfile and for Kubernetes repeat them.
        let assignments = |prefix: &str| {
            how.lines().filter_map(|line| line.strip_prefix(prefix)).flat_map(assignments_of).collect::<Vec<_>>()
        };
        let pairs = Some(assignments("")).filter(|pairs| !pairs.is_empty()).unwrap_or_else(|| assignments("ENV "));
        if !pairs.is_empty() {
            let changes = pairs.into_iter().map(|(name, value)| change(&name, value)).collect::<Option<Vec<_>>>()?;
            return Some(Remedy { label: label(&changes), changes });
        }
        let options = words(how).ok()?;
        let is_option = |word: &String| ["-XX:", "-Xm", "-Xs", "-D"].iter().any(|start| word.starts_with(start));
        let is_row = !options.is_empty() && options.iter().all(is_option);
        is_row.then(|| java_options(options))
    }

    /// Whether it changes options of a Java VM, which a program without a VM ignores.
    pub fn is_for_a_vm(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, RemedyChange::JavaOptions(_)))
    }

    /// The changed start. `find` returns the path of an allocator's library; without it the row can't run, and the
    /// error says what to install. `read` returns the contents of an argument file of `java`.
    pub fn apply(
        &self,
        plain: &Start,
        find: impl Fn(PreloadedAllocator) -> Option<OsString>,
        read: impl Fn(&Path) -> Option<Vec<u8>>,
    ) -> Result<Start, String> {
        let mut start = plain.clone();
        for change in &self.changes {
            match change {
                RemedyChange::Environment(name, value) => start.set(name, value),
                RemedyChange::Preload(allocator) => {
                    let Some(path) = find(*allocator) else {
                        let (library, package) = (allocator.libraries()[0], allocator.package());
                        return Err(format!("{library} is not on this machine (Debian: apt-get install {package})"));
                    };
                    start.preload(&path);
                }
                RemedyChange::JavaOptions(options) => {
                    let old = start.get("JAVA_TOOL_OPTIONS").and_then(OsStr::to_str).unwrap_or_default().to_owned();
                    // A verdict prints the options that the variable has, too: an agent must not be loaded twice.
                    let present = words(&old).unwrap_or_default();
                    let options = options.strip_prefix(present.as_slice()).unwrap_or(options);
                    if launcher::is_java(&start.command) {
                        start.command = launcher::with_options(&start.command, options, &read);
                    } else {
                        // A script starts the VM. The variable reaches it, and each other VM below it.
                        let options = options.iter().map(|option| quoted(option)).collect::<Vec<_>>().join(" ");
                        let all = [old.as_str(), &options].join(" ");
                        start.set("JAVA_TOOL_OPTIONS", all.trim_start());
                    }
                }
                RemedyChange::Command(command) => start.command = command.iter().map(OsString::from).collect(),
                RemedyChange::NoHugePages => start.no_huge_pages = true,
                RemedyChange::Live(action) => start.action = Some(*action),
            }
        }
        Ok(start)
    }
}

/// Variables of glibc's malloc, and the tunables (`glibc.malloc.…`) of the same meaning: env_alias in glibc's
/// elf/dl-tunables.list.
const TUNABLES: [(&str, &str); 8] = [
    ("MALLOC_ARENA_MAX", "arena_max"),
    ("MALLOC_ARENA_TEST", "arena_test"),
    ("MALLOC_CHECK_", "check"),
    ("MALLOC_MMAP_MAX_", "mmap_max"),
    ("MALLOC_MMAP_THRESHOLD_", "mmap_threshold"),
    ("MALLOC_PERTURB_", "perturb"),
    ("MALLOC_TOP_PAD_", "top_pad"),
    ("MALLOC_TRIM_THRESHOLD_", "trim_threshold"),
];

impl Start {
    /// GLIBC_TUNABLES in its environment.
    pub fn tunables(&self) -> Option<&OsStr> {
        self.get("GLIBC_TUNABLES")
    }

    fn get(&self, name: &str) -> Option<&OsStr> {
        self.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
    }

    /// MALLOC_CONF is a list; a later setting wins. Any other variable is replaced.
    fn set(&mut self, name: &str, value: &str) {
        let old = self.get(name).filter(|old| name == "MALLOC_CONF" && !old.is_empty()).map(OsStr::to_owned);
        let value = match old {
            Some(mut old) => {
                old.push(",");
                old.push(value);
                old
            }
            None => value.into(),
        };
        self.replace(name, value);
        self.leave_out_tunable(name);
    }

    /// Leaves out the tunable of the same meaning, which would win over the variable (glibc's elf/dl-tunables.c).
    fn leave_out_tunable(&mut self, name: &str) {
        let Some((_, tunable)) = TUNABLES.iter().find(|(variable, _)| *variable == name) else { return };
        let Some(old) = self.tunables().map(OsStr::as_bytes) else { return };
        let assignment = format!("glibc.malloc.{tunable}=");
        let others = old.split(|byte| *byte == b':').filter(|one| !one.starts_with(assignment.as_bytes()));
        let others = others.collect::<Vec<_>>().join(&b':');
        if others.len() != old.len() {
            self.replace("GLIBC_TUNABLES", OsString::from_vec(others));
        }
    }

    fn replace(&mut self, name: &str, value: OsString) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.into(), value));
    }

    /// Puts the library in front of those that are preloaded already.
    fn preload(&mut self, library: &OsStr) {
        let mut all = library.to_owned();
        if let Some(old) = self.get("LD_PRELOAD").filter(|old| !old.is_empty()) {
            all.push(":");
            all.push(old);
        }
        self.replace("LD_PRELOAD", all);
    }
}

fn environment(name: &str, value: &str) -> Remedy {
    let changes = vec![RemedyChange::Environment(name.into(), value.into())];
    Remedy { label: label(&changes), changes }
}

fn java_options(options: Vec<String>) -> Remedy {
    Remedy::one(options.join(" "), RemedyChange::JavaOptions(options))
}

fn jemalloc_in_background() -> Remedy {
    let background = RemedyChange::Environment("MALLOC_CONF".into(), "background_thread:true".into());
    let changes = vec![RemedyChange::Preload(PreloadedAllocator::Jemalloc), background];
    Remedy { label: label(&changes), changes }
}

/// The name of the row: the word of `--with` if there is one.
fn label(changes: &[RemedyChange]) -> String {
    match changes {
        [RemedyChange::Environment(name, cap)] if name == "MALLOC_ARENA_MAX" => format!("arenas={cap}"),
        [RemedyChange::Preload(PreloadedAllocator::Jemalloc), RemedyChange::Environment(name, value)]
            if name == "MALLOC_CONF" && value == "background_thread:true" =>
        {
            "jemalloc,background".into()
        }
        _ => changes.iter().map(describe).collect::<Vec<_>>().join(" "),
    }
}

/// What a change does, as it would be typed.
pub fn describe(change: &RemedyChange) -> String {
    match change {
        RemedyChange::Environment(name, value) => format!("{name}={value}"),
        RemedyChange::Preload(allocator) => allocator.name().into(),
        RemedyChange::JavaOptions(options) => options.join(" "),
        RemedyChange::Command(command) => command.join(" "),
        RemedyChange::NoHugePages => "thp=never".into(),
        RemedyChange::Live(Action::Trim) => "trim".into(),
    }
}

/// `NAME=VALUE` or `NAME='VALUE'`, one or several of them, and nothing else on the line.
fn assignments_of(line: &str) -> Vec<(String, String)> {
    let is_upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let assignment = |word: &String| {
        let (name, value) = word.split_once('=')?;
        (!name.is_empty() && name.chars().all(is_upper)).then(|| (name.to_owned(), value.to_owned()))
    };
    let words = words(line).unwrap_or_default();
    words.iter().map(assignment).collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// The change that an assignment of a verdict makes.
fn change(name: &str, value: String) -> Option<RemedyChange> {
    match name {
        "LD_PRELOAD" => {
            let is_its = |allocator: &&PreloadedAllocator| value.contains(&format!("lib{}", allocator.name()));
            PreloadedAllocator::ALL.iter().find(is_its).map(|allocator| RemedyChange::Preload(*allocator))
        }
        "JAVA_TOOL_OPTIONS" => words(&value).ok().map(RemedyChange::JavaOptions),
        _ => Some(RemedyChange::Environment(name.into(), value)),
    }
}

/// The words of a command line, between blanks, quoted as for a POSIX shell (2.2). Nothing is expanded. A backslash
/// before a line feed continues the line; between `"`, a backslash escapes only what is special there. The error is one
/// clause.
pub fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut all, mut word, mut quote): (Vec<String>, Option<String>, Option<char>) = (Vec::new(), None, None);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => match (quote, rest.next().ok_or("a backslash ends the text")?) {
                (_, '\n') => {}
                (Some(_), c) if !matches!(c, '$' | '`' | '"' | '\\') => word.get_or_insert_default().extend(['\\', c]),
                (_, c) => word.get_or_insert_default().push(c),
            },
            (None, c) if c.is_whitespace() => all.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    all.extend(word);
    if quote.is_some() { Err("a quotation mark has no partner".into()) } else { Ok(all) }
}

/// A word of JAVA_TOOL_OPTIONS, which the VM splits at blanks outside of quotes. A backslash is a character there
/// (`Arguments::parse_options_buffer` in HotSpot).
fn quoted(word: &str) -> Cow<'_, str> {
    match word.contains(|c: char| c.is_whitespace() || c == '\'' || c == '"') || word.is_empty() {
        false => word.into(),
        true if word.contains('\'') => format!("'{}'", word.replace('\'', r#"'"'"'"#)).into(),
        true => format!("'{word}'").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(command: &str, environment: &[(&str, &str)]) -> Start {
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Start {
            command: words(command).expect("words").iter().map(OsString::from).collect(),
            environment,
            ..Start::default()
        }
    }

    fn applied(with: &str, plain: &Start) -> Start {
        let remedies = Remedy::parse(with).expect(with);
        let find = |one: PreloadedAllocator| Some(OsString::from(format!("/lib/{}", one.libraries()[0])));
        remedies[0].apply(plain, find, |_| None).expect(with)
    }

    #[test]
    fn with_names_rows_or_is_refused() {
        let labels =
            |text: &str| Remedy::parse(text).map(|all| all.into_iter().map(|one| one.label).collect::<Vec<_>>());
        assert_eq!(labels("arenas=1,2"), Ok(vec!["arenas=1".to_owned(), "arenas=2".into()]));
        assert_eq!(labels("jemalloc,background"), Ok(vec!["jemalloc,background".to_owned()]));
        assert_eq!(labels("env:A_B=c=d"), Ok(vec!["A_B=c=d".to_owned()]));
        assert_eq!(labels("flag:-XX:+UseG1GC -Xmx1g"), Ok(vec!["-XX:+UseG1GC -Xmx1g".to_owned()]));
        for bad in
            ["", "arenas=", "arenas=0", "arenas=2,x", "env:", "env:=1", "flag:", "flag:X", "cmd:", "cmd:'", "dlmalloc"]
        {
            assert!(labels(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_change_keeps_what_the_user_set() {
        let plain = start("server", &[("LD_PRELOAD", "/own.so"), ("MALLOC_CONF", "narenas:2"), ("A", "1")]);
        let jemalloc = applied("jemalloc,background", &plain);
        let value = |name: &str| jemalloc.get(name).and_then(OsStr::to_str).map(str::to_owned);
        assert_eq!(value("LD_PRELOAD").as_deref(), Some("/lib/libjemalloc.so.2:/own.so"));
        assert_eq!(value("MALLOC_CONF").as_deref(), Some("narenas:2,background_thread:true"));
        assert_eq!(value("A").as_deref(), Some("1"));
        assert_eq!(jemalloc.command, plain.command);
        assert!(applied("thp=never", &plain).no_huge_pages);
        assert_eq!(applied("trim", &plain).action, Some(Action::Trim));
        assert_eq!(applied("cmd:other 'a b'", &plain).command, ["other", "a b"]);
        let missing = Remedy::parse("mimalloc").expect("a row")[0].apply(&plain, |_| None, |_| None);
        let advice = "(Debian: apt-get install libmimalloc3, before Debian 13 libmimalloc2.0)";
        assert!(missing.expect_err("it is missing").ends_with(advice));
    }

    /// glibc prefers a tunable to the variable of the same meaning.
    #[test]
    fn a_tunable_does_not_undo_a_variable() {
        let of = |with: &str, tunables: &str| {
            let changed = applied(with, &start("server", &[("GLIBC_TUNABLES", tunables)]));
            changed.tunables().and_then(OsStr::to_str).map(str::to_owned)
        };
        let found = of("arenas=2", "glibc.rtld.nns=8:glibc.malloc.arena_max=8");
        assert_eq!(found.as_deref(), Some("glibc.rtld.nns=8"));
        let two = "glibc.malloc.arena_max=8:glibc.malloc.trim_threshold=1:glibc.malloc.arena_max=4";
        assert_eq!(of("arenas=2", two).as_deref(), Some("glibc.malloc.trim_threshold=1"));
        assert_eq!(of("env:MALLOC_TRIM_THRESHOLD_=9", "glibc.malloc.trim_threshold=1").as_deref(), Some(""));
        for with in ["env:A=b", "env:MALLOC_TOP_PAD_=1", "trim"] {
            assert_eq!(of(with, two).as_deref(), Some(two), "{with}");
        }
        assert_eq!(of("env:GLIBC_TUNABLES=glibc.malloc.check=3", two).as_deref(), Some("glibc.malloc.check=3"));
        assert_eq!(applied("arenas=2", &start("server", &[])).tunables(), None);
    }

    #[test]
    fn options_reach_a_vm_directly_or_through_a_script() {
        let direct = applied("flag:-XX:+UseSerialGC", &start("java -jar a.jar", &[]));
        assert_eq!(direct.command, ["java", "-XX:+UseSerialGC", "-jar", "a.jar"]);
        assert_eq!(direct.environment, []);
        let remedy = Remedy::parse("flag:-XX:+UseSerialGC").expect("a row").remove(0);
        let read = |path: &Path| (path == Path::new("main")).then(|| b"shop.Main".to_vec());
        let in_file = remedy.apply(&start("java @main serve", &[]), |_| None, read).expect("options");
        assert_eq!(in_file.command, ["java", "-XX:+UseSerialGC", "@main", "serve"]);
        let script = applied("flag:-XX:+UseSerialGC", &start("./start.sh", &[("JAVA_TOOL_OPTIONS", "-Xmx1g")]));
        assert_eq!(script.get("JAVA_TOOL_OPTIONS").and_then(OsStr::to_str), Some("-Xmx1g -XX:+UseSerialGC"));
        // As a verdict prints it: the options of the variable, then its own.
        for (command, applied) in [("java -jar a.jar", None), ("./start.sh", Some("-Xmx1g -XX:+A -XX:B=1"))] {
            let start = start(command, &[("JAVA_TOOL_OPTIONS", "-Xmx1g")]);
            let advice = Remedy::from_advice("JAVA_TOOL_OPTIONS='-Xmx1g -XX:+A -XX:B=1'").expect("an assignment");
            let start = advice.apply(&start, |_| None, |_| None).expect("options");
            match applied {
                None => assert_eq!(start.command, ["java", "-XX:+A", "-XX:B=1", "-jar", "a.jar"]),
                some => assert_eq!(start.get("JAVA_TOOL_OPTIONS").and_then(OsStr::to_str), some),
            }
        }
    }

    #[test]
    fn an_option_with_blanks_stays_one_in_a_variable() {
        let of = |with: &str| {
            let script = applied(with, &start("./start.sh", &[("JAVA_TOOL_OPTIONS", "-Xmx1g")]));
            script.get("JAVA_TOOL_OPTIONS").and_then(OsStr::to_str).expect("UTF-8").to_owned()
        };
        let found = of("flag:-XX:OnOutOfMemoryError='kill -9 %p' -Da=b");
        assert_eq!(found, "-Xmx1g '-XX:OnOutOfMemoryError=kill -9 %p' -Da=b");
        assert_eq!(of(r#"flag:-Da="it's \"b\"""#), r#"-Xmx1g '-Da=it'"'"'s "b"'"#);
        for with in ["-Da='b c'", r#"-Da="it's \"b\"" -Db="#] {
            let plain = words(with).expect("words");
            assert_eq!(words(&of(&format!("flag:{with}"))).expect("words")[1..], plain, "{with}");
        }
    }

    #[test]
    fn remedies_of_verdicts_become_rows() {
        let of = |how: &str| Remedy::from_advice(how).map(|remedy| remedy.label);
        let cap = "MALLOC_ARENA_MAX=4\nENV MALLOC_ARENA_MAX=4\nenv: [{name: MALLOC_ARENA_MAX, value: \"4\"}]";
        assert_eq!(of(cap).as_deref(), Some("arenas=4"));
        assert_eq!(Remedy::from_advice(cap), Remedy::parse("arenas=4").ok().map(|mut all| all.remove(0)));
        let jemalloc = "RUN apt-get update && apt-get install -y libjemalloc2\nENV LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2\n\
                        ENV MALLOC_CONF=background_thread:true";
        assert_eq!(of(jemalloc).as_deref(), Some("jemalloc,background"));
        let beside_another = jemalloc.replace(".so.2", r".so.2:/opt/\$LIB/a.so");
        assert_eq!(of(&beside_another).as_deref(), Some("jemalloc,background"));
        assert_eq!(of("jcmd 7 System.trim_native_heap").as_deref(), Some("trim"));
        assert_eq!(of("plimsoll try --pid 7 --with trim").as_deref(), Some("trim"));
        let periodic = "JAVA_TOOL_OPTIONS='-XX:+UnlockExperimentalVMOptions -XX:TrimNativeHeapInterval=60000'";
        let options = "-XX:+UnlockExperimentalVMOptions -XX:TrimNativeHeapInterval=60000";
        assert_eq!(of(periodic).as_deref(), Some(options));
        assert_eq!(of("-XX:-AlwaysPreTouch").as_deref(), Some("-XX:-AlwaysPreTouch"));
        let two = Remedy::from_advice("MALLOC_MMAP_THRESHOLD_=131072 JAVA_TOOL_OPTIONS='-Xmx1g -Da=b'").expect("two");
        let threshold = RemedyChange::Environment("MALLOC_MMAP_THRESHOLD_".into(), "131072".into());
        let options = RemedyChange::JavaOptions(["-Xmx1g", "-Da=b"].map(String::from).to_vec());
        assert_eq!(two.changes, [threshold, options]);
        for other in [
            "",
            "jcmd 7 GC.run",
            "redis-cli MEMORY PURGE",
            "plimsoll try --pid 7 --with purge",
            "jcmd 7 VM.class_hierarchy | grep -oE 'io\\.opentelemetry' | sort -u",
            "cd /srv && GOGC=100 /srv/shop -x",
            "plimsoll run -- /srv/shop   # then: plimsoll report shop --by site",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            "ClientResources shared = DefaultClientResources.create(); RedisClient.create(shared, uri); // one for all clients",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn words_are_those_of_a_shell_without_expansion() {
        assert_eq!(words(r#" a 'b c'"d"\ e "" $f"#), Ok(["a", "b cd e", "", "$f"].map(String::from).to_vec()));
        // POSIX 2.2.3: what isn't special between quotation marks keeps its backslash.
        let quoted = r#"-Dfilter="\d+" "\$\`\"\\" '\d'"#;
        assert_eq!(words(quoted), Ok([r"-Dfilter=\d+", r#"$`"\"#, r"\d"].map(String::from).to_vec()));
        // A line feed after a backslash isn't part of any word.
        let folded = "java \\\n  -jar \"a\\\nb\"c\\\nd 'e\\\n'";
        assert_eq!(words(folded), Ok(["java", "-jar", "abcd", "e\\\n"].map(String::from).to_vec()));
        assert!(words("'a").is_err() && words("a\\").is_err());
    }
}
