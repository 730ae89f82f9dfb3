//! Whether a program can be tracked by preloading, judged from its file before it is started.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, elf};

/// What stands in the way. Displays as the end of a sentence that begins with the program's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// No PT_INTERP: nothing loads a preloaded library.
    Static,
    /// The kernel marks it AT_SECURE, and the loader then ignores LD_PRELOAD.
    Secure(&'static str),
    /// Another libc's loader: the tracker is built for glibc's.
    Musl,
    /// Not this machine's word size or CPU.
    OtherMachine,
    /// Its dynamic symbols have a malloc, which every object finds before the tracker's.
    OwnMalloc,
    /// An allocator is linked into it that no library sees: blocks of the program itself pass by.
    HiddenAllocator(String),
    /// `#!/usr/bin/env NAME`: the program proper comes by exec.
    StartedByEnv(String),
}

impl Hindrance {
    /// Whether starting it with the tracker still shows something.
    pub fn leaves_something(&self) -> bool {
        matches!(self, Hindrance::HiddenAllocator(_) | Hindrance::StartedByEnv(_))
    }
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hindrance::Static => {
                write!(f, "is statically linked: no library can be preloaded into it; it runs untracked")
            }
            Hindrance::Secure(why) => {
                write!(f, "{why}: the loader ignores preloaded libraries then; it runs untracked")
            }
            Hindrance::Musl => write!(f, "uses musl: the tracker needs glibc; it runs untracked"),
            Hindrance::OtherMachine => write!(f, "is of another machine type than the tracker; it runs untracked"),
            Hindrance::OwnMalloc => {
                write!(f, "exports a malloc of its own, which is found before the tracker's; it runs untracked")
            }
            Hindrance::HiddenAllocator(symbol) => {
                write!(
                    f,
                    "has an allocator linked into it ({symbol}): only blocks of its libraries and its mappings are tracked"
                )
            }
            Hindrance::StartedByEnv(name) => {
                write!(f, "is a script that env starts: without --follow only env is tracked, not '{name}'")
            }
        }
    }
}

/// Scripts whose interpreter is a script, and so on: as many as the kernel follows.
const INTERPRETERS: usize = 4;

/// The file that the kernel will really run, and what hinders tracking it. Files that can't be read are no hindrance:
/// the start will tell.
pub fn hindrance(
    path: &Path,
    uid: u32,
    gid: u32,
    has_capabilities: impl Fn(&Path) -> bool,
) -> Option<(PathBuf, Hindrance)> {
    let mut path = path.to_path_buf();
    for _ in 0..INTERPRETERS {
        let file = File::open(&path).ok()?;
        let mut start = Vec::new();
        (&file).take(512).read_to_end(&mut start).ok()?;
        if let Some((interpreter, argument)) = script(&start) {
            if interpreter.file_name().is_some_and(|n| n == "env") {
                let name = String::from_utf8_lossy(&argument).trim_start_matches("-S").trim().to_string();
                return Some((path, Hindrance::StartedByEnv(name)));
            }
            path = interpreter;
            continue;
        }
        let meta = fs::metadata(&path).ok()?;
        // AT_SECURE (getauxval(3)): effective and real ids differ after exec, or it gained capabilities.
        let secure = [
            (meta.mode() & 0o4000 != 0 && meta.uid() != uid, "is set-user-ID"),
            (meta.mode() & 0o2010 == 0o2010 && meta.gid() != gid, "is set-group-ID"),
            (uid != 0 && has_capabilities(&path), "has file capabilities"),
        ];
        if let Some((_, why)) = secure.into_iter().find(|(is, _)| *is) {
            return Some((path, Hindrance::Secure(why)));
        }
        return judge(&start, file).map(|h| (path, h));
    }
    None
}

/// `#!interpreter argument`; the argument is the rest of the line, as the kernel takes it.
fn script(start: &[u8]) -> Option<(PathBuf, Vec<u8>)> {
    let line = start.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?.trim_ascii();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t')).unwrap_or(line.len());
    let path = Path::new(std::ffi::OsStr::from_bytes(&line[..end])).to_path_buf();
    Some((path, line[end..].trim_ascii().to_vec()))
}

fn judge(start: &[u8], file: File) -> Option<Hindrance> {
    if !start.starts_with(&elf::ELFMAG) {
        return None;
    }
    let machine = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    let same = start.get(4) == Some(&elf::ELFCLASS64) && start.get(18..20) == Some(&machine.to_le_bytes());
    if !same {
        return Some(Hindrance::OtherMachine);
    }
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let endian = elf.endian();
    let mut interpreter = None;
    for segment in elf.elf_program_headers() {
        if let Ok(Some(name)) = segment.interpreter(endian, &cache) {
            interpreter = Some(name.to_vec());
        }
    }
    let Some(interpreter) = interpreter else {
        // UPX's stub looks static and then loads the real program's loader; the loader itself has no interpreter either.
        let packed = memchr::memmem::find(start, b"UPX!").is_some();
        let loader = elf.dynamic_symbols().any(|s| s.name_bytes() == Ok(b"_rtld_global"));
        return (!packed && !loader && elf.elf_header().e_type(endian) != elf::ET_CORE).then_some(Hindrance::Static);
    };
    if memchr::memmem::find(&interpreter, b"ld-musl").is_some() {
        return Some(Hindrance::Musl);
    }
    if elf.dynamic_symbols().any(|s| s.is_definition() && s.name_bytes() == Ok(b"malloc")) {
        return Some(Hindrance::OwnMalloc);
    }
    const ALLOCATORS: [&[u8]; 6] = [b"malloc", b"je_malloc", b"_rjem_malloc", b"mi_malloc", b"tc_malloc", b"rpmalloc"];
    let hidden = elf.symbols().filter(|s| s.is_definition()).find_map(|s| {
        let name = s.name_bytes().ok()?;
        ALLOCATORS.contains(&name).then(|| String::from_utf8_lossy(name).into_owned())
    });
    hidden.map(Hindrance::HiddenAllocator)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &Path) -> Option<Hindrance> {
        hindrance(path, 1000, 1000, |_| false).map(|(_, h)| h)
    }

    #[test]
    fn ordinary_programs_are_not_hindered() {
        assert_eq!(of(Path::new("/proc/self/exe")), None);
        assert_eq!(of(Path::new("/nowhere")), None);
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        assert_eq!(script(b"#! /bin/sh -e x\necho"), Some(("/bin/sh".into(), b"-e x".to_vec())));
        let dir = std::env::temp_dir().join(format!("plimsoll-program-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (a, b, c) = (dir.join("a"), dir.join("b"), dir.join("c"));
        fs::write(&a, "#!/usr/bin/env python3\n").unwrap();
        fs::write(&b, format!("#!{}\n", a.display())).unwrap();
        fs::write(&c, format!("#!{}\n", c.display())).unwrap();
        assert_eq!(of(&b), Some(Hindrance::StartedByEnv("python3".into())));
        assert_eq!(of(&c), None, "a script that is its own interpreter ends");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn linkage_is_read_from_the_file() {
        let dir = std::env::temp_dir().join(format!("plimsoll-linkage-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let source = "#include <stddef.h>\nVIS void *malloc(size_t n) { (void)n; return 0; }\nint main(void) { return malloc(1) != 0; }\n";
        fs::write(dir.join("m.c"), source).unwrap();
        fs::write(dir.join("plain.c"), "int main(void) { return 0; }\n").unwrap();
        let build = |name: &str, arguments: &[&str]| {
            let out = dir.join(name);
            let source = dir.join(if name == "static" { "plain.c" } else { "m.c" });
            let cc = std::process::Command::new("cc").arg(source).arg("-o").arg(&out).args(arguments).output();
            assert!(cc.unwrap().status.success(), "cc {arguments:?}");
            of(&out)
        };
        assert_eq!(build("exported", &["-DVIS=", "-rdynamic"]), Some(Hindrance::OwnMalloc));
        let hidden = build("hidden", &["-DVIS=__attribute__((visibility(\"hidden\")))"]);
        assert_eq!(hidden, Some(Hindrance::HiddenAllocator("malloc".into())));
        assert_eq!(build("static", &["-static"]), Some(Hindrance::Static));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn set_user_id_counts_only_if_the_user_changes() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("plimsoll-suid-{}", std::process::id()));
        fs::copy("/proc/self/exe", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        let owner = fs::metadata(&path).unwrap().uid();
        let as_user = |uid| hindrance(&path, uid, 0, |_| false).map(|(_, h)| h);
        assert_eq!(as_user(owner), None);
        assert_eq!(as_user(owner + 1), Some(Hindrance::Secure("is set-user-ID")));
        let capable = hindrance(Path::new("/proc/self/exe"), 1000, 1000, |_| true).map(|(_, h)| h);
        assert_eq!(capable, Some(Hindrance::Secure("has file capabilities")));
        fs::remove_file(path).unwrap();
    }
}
