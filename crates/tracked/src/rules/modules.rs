//! What an ELF file needs to run, from its bytes. The search in `read.rs` uses it.

use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, Object, ReadRef};

/// What a file tells the loader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// e_machine: a library for another machine is skipped.
    pub machine: u16,
    /// DT_NEEDED, in order.
    pub needed: Vec<String>,
    /// DT_RUNPATH, else DT_RPATH, split.
    pub path: Vec<String>,
    /// Whether `path` also applies to the libraries' own libraries (DT_RPATH without DT_RUNPATH, ld.so(8)).
    pub inherited: bool,
}

/// Reads the dynamic section; `None` if it isn't a 64-bit ELF file. A static program needs nothing.
pub fn needs<'d, R: ReadRef<'d>>(data: R) -> Option<Needs> {
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let mut needs = Needs { machine: header.e_machine(endian).0, ..Needs::default() };
    let Ok(sections) = header.sections(endian, data) else { return Some(needs) };
    let Ok(Some((entries, strings))) = sections.dynamic(endian, data) else { return Some(needs) };
    let Ok(strings) = sections.strings(endian, data, strings) else { return Some(needs) };
    let text = |entry: &object::elf::Dyn64<Endianness>| {
        let bytes = strings.get(entry.val32(endian)?).ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let (mut rpath, mut runpath) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry.tag(endian) {
            DT_NEEDED => needs.needed.extend(text(entry)),
            DT_RPATH => rpath.extend(text(entry)),
            DT_RUNPATH => runpath.extend(text(entry)),
            _ => {}
        }
    }
    needs.inherited = runpath.is_empty() && !rpath.is_empty();
    let path = if runpath.is_empty() { rpath } else { runpath };
    needs.path = path.iter().flat_map(|p| p.split(':')).filter(|p| !p.is_empty()).map(str::to_string).collect();
    Some(needs)
}

/// The build id of an ELF file, if it has one.
pub fn build_id<'d, R: ReadRef<'d>>(data: R) -> Option<Vec<u8>> {
    let file = ElfFile64::<Endianness, R>::parse(data).ok()?;
    file.build_id().ok().flatten().filter(|id| !id.is_empty()).map(<[u8]>::to_vec)
}

/// The interpreter of a script, from its first bytes: `/usr/bin/env` and `python3` for `#!/usr/bin/env python3`; only
/// `/bin/sh` for `#!/bin/sh -e`.
pub fn interpreter(head: &[u8]) -> Option<(String, Option<String>)> {
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let program = words.next()?.to_string();
    let env = program.rsplit('/').next() == Some("env");
    let looked_up = env.then(|| words.find(|w| !w.starts_with('-') && !w.contains('='))).flatten();
    Some((program, looked_up.map(str::to_string)))
}

/// Parses ld.so.conf(5): directories, and patterns of files to include.
pub fn loader_directories(conf: &str) -> (Vec<String>, Vec<String>) {
    let (mut directories, mut includes) = (Vec::new(), Vec::new());
    for line in conf.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()) {
        match line.strip_prefix("include ") {
            Some(pattern) => includes.extend(pattern.split_whitespace().map(str::to_string)),
            None => directories.push(line.to_string()),
        }
    }
    (directories, includes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_script_names_its_interpreter() {
        let of = |text: &str| interpreter(text.as_bytes());
        assert_eq!(of("#!/bin/sh -e\nls"), Some(("/bin/sh".into(), None)));
        assert_eq!(of("#! /usr/bin/env -S LANG=C python3 -u\n"), Some(("/usr/bin/env".into(), Some("python3".into()))));
        assert_eq!((of("#!\n"), of("ELF"), of("")), (None, None, None));
    }

    #[test]
    fn ld_so_conf_names_directories_and_files_to_include() {
        let (directories, includes) = loader_directories("# c\n/opt/lib # x\n\ninclude /etc/ld.so.conf.d/*.conf\n");
        assert_eq!((directories, includes), (vec!["/opt/lib".into()], vec!["/etc/ld.so.conf.d/*.conf".to_string()]));
    }

    #[test]
    fn a_file_that_is_not_elf_needs_nothing() {
        assert_eq!(needs(&b"#!/bin/sh"[..]), None);
        assert_eq!(needs(&b"\x7fELF\x02\x01\x01"[..]), None);
        assert_eq!(build_id(&b"\x7fELF"[..]), None);
    }
}
