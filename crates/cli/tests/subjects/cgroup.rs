//! A memory cgroup of the test's own, version 1 or 2. Needs root.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub struct Cgroup {
    path: PathBuf,
    version: u32,
}

impl Cgroup {
    /// Makes a group, or says why it can't.
    pub fn make(name: &str) -> Result<Cgroup, String> {
        let name = format!("plimsoll-{name}-{}", std::process::id());
        let (base, version) = if Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
            (Path::new("/sys/fs/cgroup/memory"), 1)
        } else {
            let base = Path::new("/sys/fs/cgroup");
            let controllers =
                fs::read_to_string(base.join("cgroup.controllers")).map_err(|e| format!("no cgroups: {e}"))?;
            if !controllers.split_whitespace().any(|controller| controller == "memory") {
                return Err(format!("the memory controller is not among '{}'", controllers.trim()));
            }
            // Children get the controller only if the parent enables it; a delegated root may refuse that.
            fs::write(base.join("cgroup.subtree_control"), "+memory").map_err(|e| format!("subtree_control: {e}"))?;
            (base, 2)
        };
        let path = base.join(name);
        // A killed test with this PID may have left it. One that can't be removed is a failure, and no reason to skip.
        let _ = fs::remove_dir(&path);
        match fs::create_dir(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => panic!("{}: {e}, with processes in it", path.display()),
            made => made.map_err(|e| format!("{}: {e}", path.display()))?,
        }
        Ok(Cgroup { path, version })
    }

    pub fn limit(&self, bytes: u64) {
        let name = if self.version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
        fs::write(self.path.join(name), bytes.to_string()).expect("a limit can be set");
        // Swap would only delay the kill; without swap the file may be missing.
        let swap = if self.version == 1 {
            ("memory.memsw.limit_in_bytes", bytes.to_string())
        } else {
            ("memory.swap.max", "0".into())
        };
        let _ = fs::write(self.path.join(swap.0), swap.1);
    }

    /// A shell that joins the group and then execs the command, so that the group is charged from the command's first
    /// page.
    pub fn wrap(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(self.path.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                inside.env(name, value);
            }
        }
        inside
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the hierarchy is mounted, and the type and options of mount(8) that mount it again.
    pub fn mounted(&self) -> (&Path, &'static str) {
        let kind = if self.version == 1 { "cgroup -o memory" } else { "cgroup2" };
        (self.path.parent().expect("a mount point"), kind)
    }

    pub fn oom_kills(&self) -> u64 {
        let name = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        self.read(name).get("oom_kill").copied().unwrap_or(0)
    }

    /// memory.stat under the names of version 2: `anon`, `file` (page cache, shmem included), `shmem`.
    pub fn stat(&self) -> BTreeMap<String, u64> {
        let mut stat = self.read("memory.stat");
        if self.version == 1 {
            for (new, old) in [("anon", "rss"), ("file", "cache")] {
                let value = stat.get(old).copied().unwrap_or(0);
                stat.insert(new.into(), value);
            }
        }
        stat
    }

    fn read(&self, name: &str) -> BTreeMap<String, u64> {
        let text = fs::read_to_string(self.path.join(name)).expect("a cgroup has its files");
        let pair =
            |line: &str| line.split_once(' ').and_then(|(key, value)| Some((key.to_string(), value.parse().ok()?)));
        text.lines().filter_map(pair).collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The group is empty only after the killed process has been reaped.
        let until = Instant::now() + Duration::from_secs(60);
        let is_busy = || fs::remove_dir(&self.path).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy);
        while is_busy() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
