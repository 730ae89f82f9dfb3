//! An ELF file in memory, laid out as the loader would, for tests and examples. Each uses a part of this file.
#![allow(dead_code, reason = "each test uses a part")]

use std::ops::Range;

use object::{Object, ObjectSection, ObjectSegment};
use plimsoll_tracker::stack::Image;

#[path = "../../../../fixtures/jdks.rs"]
mod jdks;

pub struct Module {
    pub base: u64,
    pub bytes: Vec<u8>,
    pub eh_frame_hdr: u64,
    pub eh_frame: Range<u64>,
}

impl Module {
    /// `None` where the machine has no such file.
    pub fn load(path: &str) -> Option<Self> {
        let data = std::fs::read(path).ok()?;
        let file = object::File::parse(&*data).expect("an ELF file");
        let base = file.segments().map(|s| s.address()).min()? & !0xfff;
        let end = file.segments().map(|s| s.address() + s.size()).max()?;
        let mut bytes = vec![0; (end - base) as usize];
        for segment in file.segments() {
            let from = (segment.address() - base) as usize;
            let content = segment.data().expect("segment data");
            bytes[from..from + content.len()].copy_from_slice(content);
        }
        let section = |name| file.section_by_name(name).map(|s| s.address()..s.address() + s.size());
        let (hdr, eh_frame) = (section(".eh_frame_hdr")?, section(".eh_frame")?);
        Some(Self { base, bytes, eh_frame_hdr: hdr.start, eh_frame })
    }

    pub fn memory(&self) -> Image<'_> {
        Image { base: self.base, bytes: &self.bytes }
    }

    pub fn eh_frame_bytes(&self) -> &[u8] {
        &self.bytes[(self.eh_frame.start - self.base) as usize..(self.eh_frame.end - self.base) as usize]
    }
}

/// The subjects: C, C++, interpreters, a JVM, the loader. The first four must exist; the others are used if the machine
/// has them.
pub fn subjects() -> Vec<(String, Module)> {
    let lib = "/lib/x86_64-linux-gnu";
    let mut paths = vec![format!("{lib}/libc.so.6"), format!("{lib}/ld-linux-x86-64.so.2"), "/bin/bash".to_owned()];
    paths.push("/usr/lib/x86_64-linux-gnu/libstdc++.so.6".to_owned());
    paths.extend(["/usr/bin/python3".to_owned(), format!("{lib}/libcrypto.so.3"), format!("{lib}/libm.so.6")]);
    paths.extend(jdks::installed().iter().map(|jdk| format!("{}/lib/server/libjvm.so", jdk.home.display())));
    let found: Vec<_> = paths.into_iter().filter_map(|path| Module::load(&path).map(|module| (path, module))).collect();
    assert!(found.len() >= 3, "only {} subjects on this machine", found.len());
    found
}
