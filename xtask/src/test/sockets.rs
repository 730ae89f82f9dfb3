//! A killed JVM leaves its attach socket `/tmp/.java_pidN`. PIDs are reused, so a later process could find the socket
//! of a dead one under its own PID. Between groups the runner removes sockets without a listener.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Removes the sockets that it may remove; those of another user stay.
pub fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(".java_pid")) else { continue };
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        // Only connects to sockets of dead processes: the listener of a running JVM would answer.
        if is_socket && !Path::new("/proc").join(pid).exists() && is_dead(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// unix(7): a socket file without a listener refuses each connection. A JVM in another PID namespace still listens.
fn is_dead(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::child::wait_until;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_sockets_that_nobody_listens_on_are_removed() {
        let folder = std::env::temp_dir().join(format!("plimsoll-sockets-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        // Above the largest PID (proc(5), pid_max), so no process has these.
        let path = |name: &str| folder.join(name);
        let live = UnixListener::bind(path(".java_pid4194305")).expect("a socket");
        drop(UnixListener::bind(path(".java_pid4194306")).expect("a socket"));
        drop(UnixListener::bind(path("other")).expect("a socket"));
        // A child that another test forks has a copy of a listener until its exec.
        wait_until("nobody to listen", || is_dead(&path(".java_pid4194306")));
        fs::write(path(".java_pid4194307"), "").expect("a file");
        clear(&folder);
        let left =
            [".java_pid4194305", ".java_pid4194306", ".java_pid4194307", "other"].map(|name| path(name).exists());
        assert_eq!(left, [true, false, true, true]);
        drop(live);
        fs::remove_dir_all(&folder).expect("ours");
    }
}
