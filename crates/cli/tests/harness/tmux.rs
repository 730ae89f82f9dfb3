//! A terminal that tmux draws: the tests read its screen as a person would.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The screen shows a fact within milliseconds; on a busy machine within this time.
const PATIENCE: Duration = Duration::from_secs(120);

/// A tmux server of its own, in a folder of its own, which is removed with it.
pub struct Terminal(PathBuf);

impl Terminal {
    pub fn new(name: &str) -> Terminal {
        let folder = std::env::temp_dir().join(format!("plimsoll-terminal-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder");
        Terminal(folder)
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Runs tmux with these arguments. Its only session is `it`.
    pub fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").env("TMUX_TMPDIR", &self.0).args(["-f", "/dev/null"]).args(arguments);
        let output = command.stdin(Stdio::null()).output().expect("tmux: see .ci/setup");
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command of the shell in a terminal of that size.
    pub fn run(&self, (columns, rows): (u16, u16), command: &str) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.tmux(&["new-session", "-d", "-s", "it", "-x", &columns, "-y", &rows, command]);
    }

    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys", "-t", "it"], keys].concat());
    }

    /// The screen, once `is_right`.
    pub fn shows_what(&self, what: &str, is_right: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p", "-t", "it"]);
            if is_right(&screen) {
                return screen;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: not on the screen:\n{screen}");
            sleep(Duration::from_millis(50));
        }
    }

    /// The screen, once it shows all of these.
    pub fn shows(&self, facts: &[&str]) -> String {
        self.shows_what(&format!("{facts:?}"), |screen| facts.iter().all(|fact| screen.contains(fact)))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").env("TMUX_TMPDIR", &self.0).arg("kill-server");
        let _ = command.stderr(Stdio::null()).status();
        let _ = fs::remove_dir_all(&self.0);
    }
}
