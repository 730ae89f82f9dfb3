//! What starts a process again. Before its arguments may be typed, four things must hold. It was started with these
//! arguments. No service manager starts it. The same path is the same file for us. It runs as our user.
//!
//! Redis, nginx, PostgreSQL and sshd overwrite their arguments with a title. A title is one text with blanks, or ends
//! in the empty words that are left of the arguments. Its first word isn't a path of the process's file.

use super::{Target, stat};
use plimsoll_facts::snapshot::{Process, Start, are_public};

/// execvp(3) searches these if there is no PATH.
const NO_PATH: &str = "/bin:/usr/bin";
/// Processes between a service's worker and systemd. nginx and PostgreSQL have one.
const MOST_PARENTS: usize = 4;

/// Variables that a command line shows.
const MOST_VARIABLES: usize = 32;

pub fn read_start(target: &Target, process: &Process) -> Start {
    if let Some(unit) = unit(target) {
        return obeying(unit, Target::is_caller(process.uid));
    }
    if process.contained || !target.shares_our_root() {
        return Start::Contained;
    }
    if !Target::is_caller(process.uid) {
        return Start::OtherUser;
    }
    let Ok(text) = target.read("cmdline") else { return Start::Unread };
    let mut words = match parse_arguments(&text) {
        Ok(words) => words,
        Err(start) => return start,
    };
    let Some(folder) = target.link("cwd").ok().and_then(|path| String::from_utf8(path).ok()) else {
        return Start::Unread;
    };
    // The kernel marks a directory that was removed.
    if folder.ends_with(" (deleted)") {
        return Start::Unread;
    }
    let Some(program) = program(target, &words[0], &folder) else { return Start::Title };
    words[0] = program;
    let is_own = is_secure(target) == Some(false);
    let variables = target.read("environ").ok().filter(|_| is_own).and_then(|text| parse_variables(&text));
    Start::Command { words, folder: Some(folder).filter(|folder| folder != "/"), variables }
}

/// The variables that name the process's allocator, its libraries and their settings; no others, which may be secrets.
/// None if one of them can't be printed. The tracker isn't listed: `plimsoll run` adds it.
pub fn parse_variables(environment: &[u8]) -> Option<Vec<(String, String)>> {
    const PREFIXES: [&str; 3] = ["MALLOC_", "TCMALLOC_", "MIMALLOC_"];
    const NAMES: [&str; 7] = [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "GLIBC_TUNABLES",
        "_RJEM_MALLOC_CONF",
        "JE_MALLOC_CONF",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
    ];
    let mut found: Vec<(String, String)> = Vec::new();
    for entry in environment.split(|byte| *byte == 0) {
        let mut parts = entry.splitn(2, |byte| *byte == b'=');
        let (Some(name), Some(value)) = (parts.next().and_then(|name| str::from_utf8(name).ok()), parts.next()) else {
            continue;
        };
        let counts = NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        // getenv(3) finds the first of several.
        if !counts || found.iter().any(|(known, _)| known == name) {
            continue;
        }
        // A shell can't assign to any other name. Only a hostile process has more than `MOST_VARIABLES` of them.
        if found.len() == MOST_VARIABLES || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return None;
        }
        let value = str::from_utf8(value).ok()?;
        let has_secrets = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"].contains(&name) && !are_public(value);
        if has_secrets || !names_one_place(name, value) {
            return None;
        }
        let value = if name == "LD_PRELOAD" { without_tracker(value) } else { value.to_owned() };
        if !value.is_empty() || name != "LD_PRELOAD" {
            found.push((name.to_owned(), value));
        }
    }
    Some(found)
}

/// Whether the loader ignored variables that name libraries (AT_SECURE, getauxval(3)). The user who started a
/// set-user-ID program or sudo chose them, and /proc still shows them once the program has root's rights. If somebody
/// pasted a line with them, `plimsoll run` itself would load such a library. None if it isn't known.
pub fn is_secure(target: &Target) -> Option<bool> {
    is_secure_exec(&target.read("auxv").ok()?)
}

fn is_secure_exec(auxv: &[u8]) -> Option<bool> {
    const AT_SECURE: u64 = 23;
    let (words, _) = auxv.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    let secure = pairs.iter().find(|[tag, _]| u64::from_ne_bytes(*tag) == AT_SECURE);
    secure.map(|[_, value]| u64::from_ne_bytes(*value) != 0)
}

/// Whether each element means the same path in any folder. The printed line enters the folder in which the process is
/// now, which need not be the one in which it was started. An empty element of a path is the present folder; a bare
/// name in LD_PRELOAD is searched for on the path.
fn names_one_place(name: &str, value: &str) -> bool {
    let is_absolute = |element: &str| element.starts_with('/') || element.starts_with("$ORIGIN/");
    match name {
        "LD_LIBRARY_PATH" => value.split([':', ';']).all(is_absolute),
        "LD_PRELOAD" => value.split([' ', ':']).all(|path| !path.contains('/') || is_absolute(path)),
        _ => true,
    }
}

/// ld.so(8): paths are separated by blanks or colons.
fn without_tracker(preload: &str) -> String {
    let is_others = |path: &&str| !path.is_empty() && !is_trackers_library(path);
    preload.split([' ', ':']).filter(is_others).collect::<Vec<&str>>().join(":")
}

/// Whether it is `libplimsoll.so`, with or without its SHA-256 as `run` and `attach` unpack it; not another build
/// product called libplimsoll….
pub fn is_trackers_library(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    let Some(hash) = file.strip_prefix("libplimsoll").and_then(|rest| rest.strip_suffix(".so")) else { return false };
    let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    hash.is_empty() || hash == "_preload" || hash.strip_prefix('-').is_some_and(is_hash)
}

/// Whether it is the runtime of a sanitizer that replaces malloc, so that the tracker must stay out of the process.
pub fn is_sanitizer(path: &str) -> bool {
    plimsoll_segment::rules::is_sanitizer(path.as_bytes())
}

/// The arguments, if the text can be what exec(2) was given.
pub fn parse_arguments(text: &[u8]) -> Result<Vec<String>, Start> {
    let Some(text) = text.strip_suffix(b"\0") else { return Err(Start::Title) };
    let text = str::from_utf8(text).map_err(|_| Start::NotText)?;
    let words: Vec<String> = text.split('\0').map(str::to_owned).collect();
    let ends_empty = words.last().is_none_or(String::is_empty);
    if ends_empty { Err(Start::Title) } else { Ok(words) }
}

/// The path under which the process runs its file, by its first argument.
fn program(target: &Target, first: &str, folder: &str) -> Option<String> {
    if first.starts_with('/') {
        return target.runs(first).then(|| first.to_owned());
    }
    if first.contains('/') {
        let path = format!("{}/{}", folder.trim_end_matches('/'), first.trim_start_matches("./"));
        return target.runs(&path).then_some(path);
    }
    let environment = target.read("environ").ok()?;
    let path = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"PATH="));
    let path = path.map_or(NO_PATH.into(), String::from_utf8_lossy);
    let mut paths = path.split(':').filter(|folder| folder.starts_with('/')).map(|folder| format!("{folder}/{first}"));
    paths.find(|path| target.runs(path))
}

/// The unit of systemd that starts the process. A process in a unit's group that another program of the unit started,
/// as cron does, isn't started by the unit.
fn unit(target: &Target) -> Option<Start> {
    let unit = parse_unit(&target.read("cgroup").ok()?)?;
    // In another PID namespace, process 1 isn't ours.
    target.shares_our_namespace("pid").filter(|shared| *shared)?;
    let program = target.link("exe").ok()?;
    let mut parent = parse_parent(&target.read("stat").ok()?)?;
    for _ in 0..MOST_PARENTS {
        let above = Target::open(parent, target.deadline()).ok()?;
        if above.read("comm").ok()?.trim_ascii_end() == b"systemd" {
            return Some(unit);
        }
        if above.link("exe").ok()? != program {
            return None;
        }
        parent = parse_parent(&above.read("stat").ok()?)?;
    }
    None
}

/// A user's manager obeys that user only. The same command, typed by another user, is about another manager.
fn obeying(unit: Start, is_caller: bool) -> Start {
    match unit {
        Start::Unit { of_user: true, .. } if !is_caller => Start::OtherUser,
        unit => unit,
    }
}

/// The unit in `0::/system.slice/redis-server.service`, or of the user's manager in
/// `0::/user.slice/user-1000.slice/user@1000.service/app.slice/shop.service`; version 1 has `1:name=systemd:` in front.
/// Where the kernel could take a name for one of its files, systemd puts `_` in front (src/basic/cgroup-util.c,
/// cg_escape).
pub fn parse_unit(cgroup: &[u8]) -> Option<Start> {
    let text = str::from_utf8(cgroup).ok()?;
    let paths =
        text.lines().filter_map(|line| line.strip_prefix("0::").or(line.split_once(":name=systemd:").map(|of| of.1)));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    paths.filter_map(|path| path.rsplit_once('/')).find_map(|(above, name)| {
        let name = name.strip_prefix('_').unwrap_or(name);
        let is_service = name.ends_with(".service") && name.chars().all(is_plain) && !name.starts_with("user@");
        let of_user = above.split('/').any(|part| part.starts_with("user@"));
        is_service.then(|| Start::Unit { name: name.to_owned(), of_user })
    })
}

/// The parent's PID.
pub fn parse_parent(stat: &[u8]) -> Option<u32> {
    stat::number(stat, 4)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{Deadline, LOOK};
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn titles_are_not_arguments() {
        assert_eq!(parse_arguments(b"/bin/a\0-x\0\0b c\0"), Ok(["/bin/a", "-x", "", "b c"].map(String::from).to_vec()));
        // What Redis, nginx and Perl leave: no NUL at the end, or more of them.
        for title in ["", "redis-server *:6379", "nginx: worker process\0\0\0\0", "worker\0\0"] {
            assert_eq!(parse_arguments(title.as_bytes()), Err(Start::Title), "{title}");
        }
        assert_eq!(parse_arguments(b"a\0\xff\0"), Err(Start::NotText));
    }

    #[test]
    fn only_variables_of_memory_are_read() {
        let of = |text: &str| parse_variables(text.as_bytes());
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let tracker = "/root/.cache/plimsoll/libplimsoll.so";
        let text =
            format!("HOME=/root\0TOKEN=x\0LD_PRELOAD={tracker}:/a b.so\0MALLOC_ARENA_MAX=2\0MALLOC_ARENA_MAX=3\0=\0X");
        let both = [pair("LD_PRELOAD", "/a:b.so"), pair("MALLOC_ARENA_MAX", "2")];
        assert_eq!(of(&text), Some(both.to_vec()));
        assert_eq!(of(&format!("LD_PRELOAD={tracker}\0PLIMSOLL_DIR=/d\0")), Some(Vec::new()));
        let options = "JAVA_TOOL_OPTIONS=-Xmx1g";
        assert_eq!(of(options), Some(vec![pair("JAVA_TOOL_OPTIONS", "-Xmx1g")]));
        assert_eq!(of(&format!("{options} -Dpassword=x\0")), None);
        assert_eq!(of("MALLOC_$(id)=1\0"), None);
        let many = |number: usize| (0..number).map(|at| format!("MALLOC_{at}=1\0")).collect::<String>();
        assert_eq!(of(&many(MOST_VARIABLES)).map(|all| all.len()), Some(MOST_VARIABLES));
        assert_eq!(of(&many(MOST_VARIABLES + 1)), None);
        assert_eq!(parse_variables(b"LD_PRELOAD=/\xff.so\0"), None);
        assert_eq!(parse_variables(b"\xff=1\0"), Some(Vec::new()));
        for relative in
            ["LD_LIBRARY_PATH=/opt/lib:", "LD_LIBRARY_PATH=lib", "LD_PRELOAD=./a.so", "LD_PRELOAD=/a.so:b/c.so"]
        {
            assert_eq!(of(relative), None, "{relative}");
        }
        let kept = "LD_LIBRARY_PATH=/opt/lib:$ORIGIN/lib\0LD_PRELOAD=libjemalloc.so.2\0JE_MALLOC_CONF=narenas:1\0";
        assert_eq!(of(kept).map(|all| all.len()), Some(3));
    }

    /// The words of /proc/PID/auxv: AT_PAGESZ, AT_SECURE, AT_NULL.
    #[test]
    fn a_secure_exec_is_known_by_the_kernels_word() {
        let auxv = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        assert_eq!(is_secure_exec(&auxv(&[6, 4096, 23, 0, 0, 0])), Some(false));
        assert_eq!(is_secure_exec(&auxv(&[6, 4096, 23, 1, 0, 0])), Some(true));
        assert_eq!([is_secure_exec(&auxv(&[6, 4096])), is_secure_exec(&[])], [None; 2]);
        assert_eq!(is_secure_exec(&std::fs::read("/proc/self/auxv").expect("own auxv")), Some(false));
    }

    #[test]
    fn units_are_services_of_systemd() {
        let unit = |name: &str, of_user| Some(Start::Unit { name: name.to_owned(), of_user });
        assert_eq!(parse_unit(b"0::/system.slice/redis-server.service\n"), unit("redis-server.service", false));
        let hybrid = b"2:memory:/\n1:name=systemd:/system.slice/system-redis.slice/redis@a.service\n0::/\n";
        assert_eq!(parse_unit(hybrid), unit("redis@a.service", false));
        let of_user = b"0::/user.slice/user-1000.slice/user@1000.service/app.slice/shop.service\n";
        assert_eq!(parse_unit(of_user), unit("shop.service", true));
        assert_eq!(parse_unit(b"0::/system.slice/_memory.service\n"), unit("memory.service", false));
        for other in [
            "0::/user.slice/user-0.slice/session-3.scope\n",
            "0::/user.slice/user-1000.slice/user@1000.service\n",
            "0::/system.slice/docker-1f.scope\n",
            "0::/kubepods.slice/x.service/a\n",
            "0::/system.slice/$(id).service\n",
            "5:memory:/system.slice/a.service\n",
            "",
        ] {
            assert_eq!(parse_unit(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_unit_of_another_users_manager_gets_no_command() {
        let unit = |of_user| Start::Unit { name: "shop.service".into(), of_user };
        assert_eq!([unit(true), unit(false)].map(|unit| obeying(unit, false)), [Start::OtherUser, unit(false)]);
        assert_eq!(obeying(unit(true), true), unit(true));
    }

    /// A process that has printed a line and waits for one.
    struct Child(std::process::Child);

    impl Child {
        fn start(command: &mut Command) -> Child {
            // cargo sets it.
            let command = command.env_remove("LD_LIBRARY_PATH");
            let mut child = Child(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child"));
            let mut line = String::new();
            BufReader::new(child.0.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
            child
        }

        fn start_of(&self) -> Start {
            let target = Target::open(self.0.id(), Deadline::after(LOOK)).expect("it runs");
            let (process, _) = crate::proc::read_process(&target).expect("it runs");
            read_start(&target, &process)
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    const WAIT: &str = "echo; read line";

    #[test]
    fn real_processes_are_started_again_by_their_arguments() {
        let words = ["-c", WAIT, "two words", "", "it's\n$(id)"];
        let command = |program: &str, folder: Option<&str>| Start::Command {
            words: std::iter::once(program).chain(words).map(String::from).collect(),
            folder: folder.map(String::from),
            variables: Some(Vec::new()),
        };
        let child = Child::start(Command::new("/bin/sh").args(words).current_dir("/usr"));
        assert_eq!(child.start_of(), command("/bin/sh", Some("/usr")));
        // Relative to its folder, and found by PATH: the path is printed.
        let child = Child::start(Command::new("./sh").args(words).current_dir("/bin/"));
        let folder = std::fs::canonicalize("/bin").expect("a folder").display().to_string();
        assert_eq!(child.start_of(), command(&format!("{folder}/sh"), Some(&folder)));
        let child = Child::start(Command::new("sh").args(words).env("PATH", "/nowhere:/bin").current_dir("/"));
        assert_eq!(child.start_of(), command("/bin/sh", None));
        let child = Child::start(Command::new("sh").args(words).env("MALLOC_ARENA_MAX", "2"));
        let Start::Command { variables, .. } = child.start_of() else { panic!("its words are known") };
        assert_eq!(variables, Some(vec![("MALLOC_ARENA_MAX".to_owned(), "2".to_owned())]));
    }

    #[test]
    fn processes_under_another_name_have_a_title() {
        let child = Child::start(Command::new("/bin/sh").arg0("nginx: worker").args(["-c", WAIT]));
        assert_eq!(child.start_of(), Start::Title);
        let title = "$0 = 'worker'; $| = 1; print \"\\n\"; <STDIN>";
        let child = Child::start(Command::new("/usr/bin/perl").args(["-e", title]));
        assert_eq!(child.start_of(), Start::Title);
    }

    #[test]
    fn the_parent_is_behind_the_name() {
        assert_eq!(parse_parent(b"7 (a) S 3) R 12 7 7 0"), Some(12));
        assert_eq!(parse_parent(b"7 (a"), None);
    }
}
