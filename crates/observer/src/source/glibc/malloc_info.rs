//! Parses malloc_info(3)'s XML, as JDK 25's `System.native_heap_info` prints it: the fallback if the target's memory
//! can't be read, and the expected result in the walk's tests.
//!
//! ```text
//! <malloc version="1">
//! <heap nr="0"> <sizes>…</sizes>
//!   <total type="fast" count="1" size="32"/> <total type="rest" count="2" size="131"/>
//!   <system type="current" size="135168"/> <system type="max" …/> <aspace type="total" …/> …
//! </heap> …
//! <total type="fast" …/> <total type="rest" …/> <total type="mmap" count="1" size="4096"/> <system …/> …
//! </malloc>
//! ```

use plimsoll_facts::units::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MallocInfoArena {
    pub fast_count: u64,
    pub fast: Bytes,
    /// Binned chunks and top.
    pub rest_count: u64,
    pub rest: Bytes,
    pub system: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MallocInfo {
    pub arenas: Vec<MallocInfoArena>,
    pub total: MallocInfoArena,
    pub mmapped_count: u64,
    pub mmapped: Bytes,
}

/// None if the text isn't a complete malloc_info report.
pub fn parse(text: &str) -> Option<MallocInfo> {
    let mut info = MallocInfo::default();
    let mut inside: Option<MallocInfoArena> = None;
    let start = text.find("<malloc version")?;
    for tag in text.get(start..)?.split('<').skip(1) {
        let tag = tag.split('>').next()?;
        let name = tag.split([' ', '/']).next().unwrap_or("");
        match name {
            "heap" if inside.is_some() => return None,
            "heap" => inside = Some(MallocInfoArena::default()),
            "" if tag == "/heap" => info.arenas.push(inside.take()?),
            "" if tag == "/malloc" => return inside.is_none().then_some(info),
            "total" | "system" => {
                let (count, size) = (attribute(tag, "count").unwrap_or(0), Bytes(attribute(tag, "size")?));
                let of = inside.as_mut().unwrap_or(&mut info.total);
                match (name, text_attribute(tag, "type")?) {
                    ("total", "fast") => (of.fast_count, of.fast) = (count, size),
                    ("total", "rest") => (of.rest_count, of.rest) = (count, size),
                    ("total", "mmap") => (info.mmapped_count, info.mmapped) = (count, size),
                    ("system", "current") => of.system = size,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    None
}

fn text_attribute<'t>(tag: &'t str, name: &str) -> Option<&'t str> {
    tag.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.split('"').next())
}

fn attribute(tag: &str, name: &str) -> Option<u64> {
    text_attribute(tag, name)?.parse().ok()
}
