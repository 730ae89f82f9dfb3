//! Parses perf's jitdump (Linux, tools/perf/Documentation/jitdump-specification.txt): code loads with their times.
//! Pure.
//!
//! ```text
//! header  magic "JiTD" u32 │ version u32 │ total size u32 │ machine u32 │ pad u32 │ pid u32 │ time u64 │ flags u64
//! record  id u32 │ total size u32 │ time u64 │ …     id 0, code load: pid u32 │ tid u32 │ vma u64 │ address u64 │
//!                                                    size u64 │ index u64 │ name, NUL │ code
//!                                                    id 1, code move: pid │ tid │ vma │ old u64 │ new u64 │ size u64 │ index
//! ```

use std::collections::HashMap;

use super::perf_map::Map;

/// "JiTD" in the writer's byte order.
const MAGIC: u32 = 0x4A69_5444;
const RECORD_HEADER: usize = 16;

/// All code of the dump as a map. Addresses that were reused have several names, as in a perf map.
pub fn parse(bytes: &[u8]) -> Option<Map> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    if u32_at(0)? != MAGIC {
        return None;
    }
    let mut map = Map::default();
    let mut by_index: HashMap<u64, String> = HashMap::new();
    let mut at = u32_at(8)? as usize;
    while let (Some(id), Some(size)) = (u32_at(at), u32_at(at.saturating_add(4))) {
        let size = size as usize;
        if size < RECORD_HEADER {
            break;
        }
        let body = at + RECORD_HEADER;
        let field = |n: usize| u64_at(body + 8 * n);
        match id {
            // pid and tid are field 0, vma is field 1.
            0 => {
                if let (Some(start), Some(bytes_of_code), Some(index)) = (field(2), field(3), field(4)) {
                    let end = (at + size).min(bytes.len());
                    let name = bytes.get(body + 40..end).unwrap_or_default();
                    let name = String::from_utf8_lossy(name.split(|&b| b == 0).next().unwrap_or_default());
                    let name: String = name.chars().take(1024).collect();
                    map.add(start, start.saturating_add(bytes_of_code), name.clone());
                    by_index.insert(index, name);
                }
            }
            1 => {
                if let (Some(new), Some(moved), Some(index)) = (field(3), field(4), field(5))
                    && let Some(name) = by_index.get(&index)
                {
                    map.add(new, new.saturating_add(moved), name.clone());
                }
            }
            _ => {}
        }
        if map.is_cut() {
            break;
        }
        at = at.saturating_add(size);
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump() -> Vec<u8> {
        let mut out = Vec::new();
        for word in [MAGIC, 1, 40, 62, 0, 77] {
            out.extend(word.to_ne_bytes());
        }
        out.extend([0; 16]);
        let mut load = |start: u64, size: u64, index: u64, name: &str| {
            let total = RECORD_HEADER + 40 + name.len() + 1 + size as usize;
            out.extend(0u32.to_ne_bytes());
            out.extend((total as u32).to_ne_bytes());
            out.extend(5u64.to_ne_bytes());
            for field in [77, start, start, size, index] {
                out.extend(field.to_ne_bytes());
            }
            out.extend(name.as_bytes());
            out.push(0);
            out.extend(vec![0x90; size as usize]);
        };
        load(0x1000, 16, 1, "f");
        load(0x2000, 32, 2, "g");
        out.extend(1u32.to_ne_bytes());
        out.extend(64u32.to_ne_bytes());
        out.extend(6u64.to_ne_bytes());
        for field in [77u64, 0x3000, 0x1000, 0x3000, 16, 1] {
            out.extend(field.to_ne_bytes());
        }
        out
    }

    #[test]
    fn loads_and_moves_are_found() {
        let map = parse(&dump()).unwrap();
        assert_eq!(
            [0x1005, 0x2000, 0x300f, 0x3010].map(|a| map.at(a)),
            [Some("f".into()), Some("g".into()), Some("f".into()), None]
        );
        assert_eq!(parse(b"JiTX"), None);
    }

    #[test]
    fn a_damaged_dump_is_read_without_harm() {
        let good = dump();
        let mut read = 0;
        for at in 0..good.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = byte;
                read += usize::from(parse(&bytes).is_some_and(|map| !map.is_empty()));
            }
            let _ = parse(&good[..at]);
        }
        assert!(read > 300, "{read}");
    }
}
