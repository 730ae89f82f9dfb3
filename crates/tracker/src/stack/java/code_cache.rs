//! The code cache: from a pc to the blob that holds it.
//!
//! ```text
//! CodeCache::_heaps ─▶ CodeHeap { memory: low…high, segment map: low…high, log2 of a segment's bytes }
//!
//! map      0   1   2   3  ff  ff   0   1      a byte for each segment: 0 = a block begins here, n = go back n,
//!          │               free    │          ff = free
//! memory   ├ header │ CodeBlob: header │ code │ … ┤
//! ```
//! (hotspot, share/memory/heap.hpp, share/code/codeBlob.hpp.) A code heap grows and never shrinks, and a blob with a
//! frame on the stack is not freed.

use super::memory::{Name, c_string, load};
use super::structs::{Layout, NONE};
use core::ops::Range;

/// Maximum number of code heaps: HotSpot makes one or three.
const HEAPS: usize = 8;
/// Maximum number of hops through the segment map: the largest blob has a few thousand segments, at 254 per hop.
const HOPS: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Heap {
    /// Low end of the reserved range, which never changes.
    low: u64,
    /// The address where the VM keeps the end of the committed range.
    high_at: u64,
    map: u64,
    log2: u32,
}

/// A VM that has begun to run Java code.
#[derive(Clone, Copy, Debug)]
pub struct Vm {
    pub layout: Layout,
    heaps: [Option<Heap>; HEAPS],
    cache: (u64, u64),
    interpreter: (u64, u64),
    /// Offset of the bytecode pointer from the frame pointer of an interpreted frame.
    pub bytecode_slot: i32,
    call_stub_return: u64,
    /// Encoding of compressed streams: see [`super::compiled`].
    pub skips_zero_bytes: bool,
}

/// The kind of code at a pc of the code cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Interpreter,
    /// Compiled Java, or the wrapper of a native method.
    Method(Blob),
    /// Runtime stub with a frame of fixed size.
    Stub(Blob),
    /// The call stub, through which C++ calls Java: keeps a frame pointer.
    Entry,
    /// An upcall stub, the same for foreign functions: keeps a frame pointer.
    Upcall,
    /// Where a virtual thread's frame returns to if its callers lie in the Java heap; or the stub that fetches them.
    Continuation,
    /// Other stubs, whose frame is unknown.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    pub at: u64,
    /// Bytes of the frame, return address and saved frame pointer included.
    pub frame: u32,
}

impl Vm {
    #[cfg(test)]
    pub(super) const EMPTY: Self = Self {
        layout: Layout::EMPTY,
        heaps: [None; HEAPS],
        cache: (0, 0),
        interpreter: (0, 0),
        bytecode_slot: 0,
        call_stub_return: 0,
        skips_zero_bytes: false,
    };

    /// `None` until the VM has made the code cache and the interpreter.
    pub fn new(layout: Layout) -> Option<Self> {
        let is_version_8 = layout.is_version_8();
        let (data, n) = if is_version_8 {
            (layout.only_heap, 1)
        } else {
            let list: u64 = load(layout.heaps)?;
            let n = load::<i32>(list.checked_add(layout.array_length as u64)?)? as usize;
            (load(list.wrapping_add(layout.array_data as u64))?, n)
        };
        let mut heaps = [None; HEAPS];
        if n == 0 || n > HEAPS {
            return None;
        }
        for (i, heap) in heaps.iter_mut().take(n).enumerate() {
            let at: u64 = load(data.wrapping_add(8 * i as u64))?;
            let log2: i32 = load(at.wrapping_add(layout.heap_log2 as u64))?;
            let memory = at.wrapping_add(layout.heap_memory as u64);
            *heap = Some(Heap {
                low: load(memory.wrapping_add(layout.space_low as u64))?,
                high_at: memory.wrapping_add(layout.space_high as u64),
                map: load(at.wrapping_add(layout.heap_map as u64 + layout.space_low as u64))?,
                log2: u32::try_from(log2).ok().filter(|l| (4..=16).contains(l))?,
            });
        }
        let cache: (u64, u64) = if is_version_8 {
            let memory = load::<u64>(data)?.wrapping_add(layout.heap_memory as u64);
            let bound = |of: u32| load(memory.wrapping_add(of as u64));
            (bound(layout.space_low_boundary)?, bound(layout.space_high_boundary)?)
        } else {
            (load(layout.code_low)?, load(layout.code_high)?)
        };
        let stubs: u64 = load(layout.interpreter)?;
        let code: u64 = load(stubs.checked_add(layout.stubs_at as u64)?)?;
        let bytes = load::<i32>(stubs.wrapping_add(layout.stubs_bytes as u64))?;
        let call_stub_return = load(layout.call_stub_return)?;
        let major: i32 = load(layout.major)?;
        let within = |a: u64| cache.0 <= a && a < cache.1;
        (cache.0 < cache.1 && within(code) && bytes > 0 && within(call_stub_return)).then_some(Self {
            layout,
            heaps,
            cache,
            interpreter: (code, code.wrapping_add(bytes as u64)),
            // From 9 on the frame also holds the class's mirror (hotspot, cpu/x86/frame_x86.hpp).
            bytecode_slot: if is_version_8 { -7 * 8 } else { -8 * 8 },
            call_stub_return,
            // JDK-8292758, in 20.
            skips_zero_bytes: major >= 20 && !is_version_8,
        })
    }

    pub fn holds(&self, pc: u64) -> bool {
        self.cache.0 <= pc && pc < self.cache.1
    }

    pub fn cache(&self) -> Range<u64> {
        self.cache.0..self.cache.1
    }

    /// The blob that holds `pc`: its address.
    fn blob(&self, pc: u64) -> Option<u64> {
        let mut heaps = self.heaps.iter().flatten();
        let heap = heaps.find(|h| h.low <= pc && load(h.high_at).is_some_and(|high: u64| pc < high))?;
        let mut segment = (pc - heap.low) >> heap.log2;
        for _ in 0..HOPS {
            match load::<u8>(heap.map.wrapping_add(segment))? {
                0xff => return None,
                0 => {
                    let block = heap.low + (segment << heap.log2);
                    let blob = block.wrapping_add(self.layout.block_header as u64);
                    let size: i32 = load(blob.wrapping_add(self.layout.blob_size as u64))?;
                    let used = load::<u8>(block.wrapping_add(self.layout.used as u64))? != 0;
                    return (used && size > 0 && blob <= pc && pc - blob < size as u64).then_some(blob);
                }
                back => segment = segment.checked_sub(back as u64)?,
            }
        }
        None
    }

    /// The code that holds this return address.
    pub fn code(&self, pc: u64) -> Option<Code> {
        if self.interpreter.0 <= pc && pc < self.interpreter.1 {
            return Some(Code::Interpreter);
        }
        if pc == self.call_stub_return {
            return Some(Code::Entry);
        }
        let at = self.blob(pc)?;
        let words: i32 = load(at.wrapping_add(self.layout.blob_frame as u64))?;
        if !(0..1 << 20).contains(&words) {
            return None;
        }
        let blob = Blob { at, frame: words as u32 * 8 };
        Some(match self.kind(at)? {
            BlobKind::Method if words >= 2 => Code::Method(blob),
            BlobKind::Method => return None,
            BlobKind::Upcall => Code::Upcall,
            BlobKind::Continuation => Code::Continuation,
            BlobKind::Other if words >= 2 => Code::Stub(blob),
            BlobKind::Other => Code::Other,
        })
    }

    /// The VM's name for the blob that holds this pc.
    pub fn blob_name(&self, pc: u64) -> Option<Name> {
        load(self.blob(pc)?.wrapping_add(self.layout.blob_name as u64)).and_then(c_string)
    }

    fn kind(&self, blob: u64) -> Option<BlobKind> {
        let l = &self.layout;
        if l.blob_kind != NONE {
            // CodeBlobKind, the same in 23 to 27.
            match load::<u8>(blob.wrapping_add(l.blob_kind as u64))? {
                1 => return Some(BlobKind::Method),
                11 => return Some(BlobKind::Upcall),
                _ => {}
            }
        }
        let name = load(blob.wrapping_add(l.blob_name as u64)).and_then(c_string);
        Some(match name.as_deref().unwrap_or_default() {
            b"nmethod" | b"native nmethod" if l.blob_kind == NONE => BlobKind::Method,
            name if name.starts_with(b"upcall_stub") => BlobKind::Upcall,
            name if name.windows(12).any(|w| w.eq_ignore_ascii_case(b"continuation")) => BlobKind::Continuation,
            _ => BlobKind::Other,
        })
    }
}

enum BlobKind {
    Method,
    Upcall,
    Continuation,
    Other,
}
