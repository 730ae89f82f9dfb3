//! TARGET: a PID, a segment file, a saved JSON, or a directory of segments (its newest).

use std::fs;
use std::path::Path;

use plimsoll_observer::books::Books;
use plimsoll_observer::source::segment::{self, Life};
use plimsoll_report::{json, words};

use crate::Failure;
use crate::sys;

/// Books of a target, and the PID under which its process can be asked for more, if it lives.
pub struct Target {
    pub books: Books,
    pub live_pid: Option<u32>,
}

pub fn open(target: &str) -> Result<Target, Failure> {
    if let Ok(pid) = target.parse::<u32>() {
        return by_pid(pid);
    }
    let path = Path::new(target);
    let shown = words::printable(target);
    let meta = fs::metadata(path).map_err(|e| format!("'{shown}' is no PID and can't be read as a file: {e}"))?;
    if meta.is_dir() {
        fs::read_dir(path).map_err(|e| format!("the directory '{shown}' can't be read: {e}"))?;
        let newest = segment::list(path).pop();
        let (path, _) = newest.ok_or_else(|| format!("there is no segment in the directory '{shown}'"))?;
        return by_file(&path);
    }
    match segment::head_of(path) {
        Ok(_) => by_file(path),
        Err(error) if !looks_like_json(path) => Err(error.into()),
        Err(_) => {
            let bytes = fs::read(path).map_err(|e| format!("'{shown}' can't be read: {e}"))?;
            let books = json::parse(&bytes).map_err(|e| format!("'{shown}' can't be used: {e}"))?;
            Ok(Target { books, live_pid: None })
        }
    }
}

fn by_pid(pid: u32) -> Result<Target, Failure> {
    let found = segment::find_by_pid(pid);
    let exists = Path::new(&format!("/proc/{pid}")).exists();
    match found {
        Some((path, _, Life::Live)) => live(&path, pid),
        Some((path, _, _)) if exists && segment::start_time_ns(pid).is_some() => Err(format!(
            "process {pid} is not tracked; a segment of that PID is left in {}: report on that file, or start the program with 'plimsoll run'",
            words::printable(&path.display().to_string())
        )
        .into()),
        Some((path, _, life)) => Ok(Target { books: books(&path, life)?, live_pid: None }),
        None if exists && segment::leader_of(pid).is_some_and(|leader| leader != pid) => {
            let leader = segment::leader_of(pid).unwrap_or(pid);
            Err(format!("{pid} is a thread of process {leader}: plimsoll report {leader}").into())
        }
        None if exists && is_closed_to_us(pid) => Err(format!(
            "process {pid} is another user's: whether it is tracked can't be seen from here; try: sudo plimsoll report {pid}"
        )
        .into()),
        None if exists => Err(format!("process {pid} is not tracked: start it with 'plimsoll run -- COMMAND'").into()),
        None => Err(format!("there is no process {pid}, nor a segment of one; if it was run with --dir, name that directory").into()),
    }
}

/// True if the kernel keeps the mappings of a process from us: then its segment may lie where we can't look.
fn is_closed_to_us(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/maps")).is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
}

fn by_file(path: &Path) -> Result<Target, Failure> {
    let head = segment::head_of(path)?;
    let life = segment::life_of(&head, path);
    if life == Life::Live { live(path, head.pid) } else { Ok(Target { books: books(path, life)?, live_pid: None }) }
}

fn live(path: &Path, pid: u32) -> Result<Target, Failure> {
    let mut books = books(path, Life::Live)?;
    books.read_resident(pid);
    Ok(Target { books, live_pid: Some(pid) })
}

/// Books of a segment file.
pub fn books(path: &Path, life: Life) -> Result<Books, Failure> {
    let segment = segment::read(path)?;
    // Nobody was there to note the moment of a kill: the last moment that the segment tells of stands for it.
    let now = match life {
        Life::Live => sys::boottime_ns(),
        _ => segment.last_sign_ns(),
    };
    Ok(Books::new(&segment, life, now))
}

fn looks_like_json(path: &Path) -> bool {
    let start = sys::read_start(path, 64);
    start.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{')
}
