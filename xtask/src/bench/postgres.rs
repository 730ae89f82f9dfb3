//! A PostgreSQL server with a fresh data directory, plain or tracked, and its clients.

use super::time_limit::{ONE_RUN, must_within_limit, output, within};
use crate::stage::{Result, plimsoll};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A data directory, and the user that its server runs as. Removed when dropped.
pub struct Data {
    folder: PathBuf,
    /// PostgreSQL refuses to run as root. `None`: this process is not root.
    user: Option<(u32, u32)>,
}

/// A running server; stopped when dropped.
pub struct Server {
    child: Child,
}

impl Data {
    pub fn create() -> Result<Data> {
        let folder = std::env::temp_dir().join(format!("plimsoll-bench-postgres-{}", std::process::id()));
        let data = Data { folder, user: user()? };
        data.give(&data.folder)?;
        let mut initdb = Command::new(program("initdb")?);
        data.as_user(&mut initdb);
        must_within_limit(
            initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "-D"]).arg(data.folder.join("data")),
        )?;
        // The checkout may lie in a folder that only this user may enter.
        fs::copy(plimsoll()?, data.folder.join("plimsoll"))?;
        Ok(data)
    }

    /// Makes a folder that belongs to the server's user.
    fn give(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        self.user.map_or(Ok(()), |(uid, gid)| Ok(chown(folder, Some(uid), Some(gid))?))
    }

    fn as_user(&self, command: &mut Command) {
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid).env_remove("HOME").env_remove("XDG_CACHE_HOME");
        }
        command.current_dir("/");
    }

    /// A client program, with options that name the address of the server.
    pub fn client(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(program(name)?);
        self.as_user(&mut command);
        command.arg("-h").arg(&self.folder).args(["-U", "postgres"]);
        Ok(command)
    }

    /// A file that the clients can read.
    pub fn script(&self, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.folder.join(name);
        fs::write(&file, text)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        Ok(file)
    }

    /// Starts a server and waits until it accepts connections. Tracked: the value of `--sites`, and where a folder of
    /// segments is made.
    pub fn serve(&self, tracked: Option<(&str, &Path)>) -> Result<Server> {
        let postgres = program("postgres")?;
        let segments = tracked.map(|(_, directory)| directory.join("postgres"));
        let mut command = match (tracked, &segments) {
            (Some((sites, directory)), Some(segments)) => {
                // The segments of the last server stay until here: they show that the server was tracked.
                let _ = fs::remove_dir_all(segments);
                self.give(segments)?;
                if self.user.is_some() {
                    // The server's user must pass the parent of the segments' folder, which belongs to us.
                    fs::set_permissions(directory, fs::Permissions::from_mode(0o711))?;
                }
                let mut command = Command::new(self.folder.join("plimsoll"));
                command
                    .args(["run", "--sites", sites, "--report", "none", "--dir"])
                    .arg(segments)
                    .arg("--")
                    .arg(postgres);
                command
            }
            _ => Command::new(postgres),
        };
        self.as_user(&mut command);
        command.arg("-D").arg(self.folder.join("data")).arg("-k").arg(&self.folder);
        command.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "autovacuum=off"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut server = Server { child };
        let begin = Instant::now();
        while !output(&mut self.client("pg_isready")?)?.status.success() {
            if begin.elapsed() > Duration::from_secs(120) || server.child.try_wait()?.is_some() {
                return Err("PostgreSQL accepts no connections".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGINT is PostgreSQL's fast shutdown.
        if must_within_limit(Command::new("kill").args(["-INT", &self.pid().to_string()])).is_err() {
            let _ = self.child.kill();
        }
        let _ = within(ONE_RUN, self.pid(), "PostgreSQL", || Ok(self.child.wait()?));
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The newest of the installed versions; Debian allows several.
fn program(name: &str) -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").map_err(|_| "PostgreSQL is missing: run .ci/setup")?.flatten();
    let newest = versions.max_by_key(|entry| entry.file_name().to_string_lossy().parse::<u32>().unwrap_or(0));
    Ok(newest.ok_or("PostgreSQL has no version")?.path().join("bin").join(name))
}

fn user() -> Result<Option<(u32, u32)>> {
    if !fs::read_to_string("/proc/self/status")?.contains("\nUid:\t0\t0") {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find_map(|line| line.strip_prefix("postgres:x:")).ok_or("there is no user postgres")?;
    let mut ids = line.split(':').map(str::parse::<u32>);
    let mut id = || ids.next().ok_or("/etc/passwd is damaged");
    Ok(Some((id()??, id()??)))
}
