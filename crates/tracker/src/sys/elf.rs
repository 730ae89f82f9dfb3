//! The loader's list of objects and their symbols, read in place: no lock, no allocation, no dlsym (which allocates its
//! error state on some glibc versions and is itself hooked).
//!
//! `_r_debug` is ld.so's record for debuggers. It is filled before the tracker is relocated (elf/dl-debug.c). A program
//! without a C library doesn't import ld.so's symbols; there the program's DT_DEBUG entry leads to the record. musl has a
//! pointer to its record (`_dl_debug_addr`, ldso/dynlink.c).
//!
//! Before `main` the list doesn't change, so it is read directly ([`objects`]). Afterwards only the objects that the
//! program started with are read directly, because they are never unloaded ([`scope`]). All others come from
//! dl_iterate_phdr, under the loader's lock ([`super::libc::each_loaded`]), or are read after the kernel has confirmed
//! that each node is readable ([`objects_checked`]).

use super::cpu::weak_address;
use super::os;
use core::ffi::{CStr, c_char, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The head of glibc's and musl's `struct link_map` (link.h); the rest is private to the loader.
#[repr(C)]
pub struct LinkMap {
    /// Avma = Svma + bias.
    pub bias: usize,
    name: *const c_char,
    dynamic: *const Dyn,
    next: *const LinkMap,
    prev: *const LinkMap,
}

#[repr(C)]
struct Debug {
    version: i32,
    map: *const LinkMap,
}

#[repr(C)]
struct Dyn {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Sym {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

unsafe extern "C" {
    #[link_name = "_DYNAMIC"]
    static OWN_DYNAMIC: [Dyn; 0];
}

const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

/// A loaded object.
#[derive(Clone, Copy)]
pub struct Object(&'static LinkMap);

/// First node of the loader's list; null if it can't be found.
fn first() -> *const LinkMap {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let mut record = weak_address!("_r_debug");
    let of_musl = weak_address!("_dl_debug_addr") as *const usize;
    if record == 0 && !of_musl.is_null() {
        // SAFETY: musl's variable, which its loader fills before it runs any code of other objects.
        record = unsafe { of_musl.read_volatile() };
    }
    if record == 0 {
        record = FOUND.load(Relaxed);
    }
    if record == 0 {
        record = record_of_program().unwrap_or(0);
        FOUND.store(record, Relaxed);
    }
    // SAFETY: ld.so's record, which is set up before relocation, and stays.
    unsafe { (record as *const Debug).as_ref() }.map_or(core::ptr::null(), |d| d.map)
}

/// The address of `_r_debug` as the loader stores it for debuggers: in the program's dynamic section (DT_DEBUG).
fn record_of_program() -> Option<usize> {
    const AT_PHDR: u64 = 3;
    const AT_PHNUM: u64 = 5;
    const PT_PHDR: u32 = 6;
    const DT_DEBUG: i64 = 21;
    let (at, count) = (os::auxiliary_value(AT_PHDR)?, os::auxiliary_value(AT_PHNUM)?);
    // SAFETY: the kernel mapped the program's headers, and the auxiliary vector has their address.
    let headers = unsafe { core::slice::from_raw_parts(at as *const Phdr, count) };
    let is_fixed = || headers.iter().find(|p| p.kind == PT_LOAD).is_some_and(|p| p.address != 0);
    let bias = match headers.iter().find(|p| p.kind == PT_PHDR) {
        Some(p) => at.wrapping_sub(p.address),
        None if is_fixed() => 0,
        // A loader that was started by its name: its record isn't here.
        None => return None,
    };
    let mut d = bias.wrapping_add(headers.iter().find(|p| p.kind == PT_DYNAMIC)?.address) as *const Dyn;
    loop {
        // SAFETY: the dynamic section ends with a DT_NULL entry.
        match unsafe { &*d } {
            Dyn { tag: 0, .. } => return None,
            Dyn { tag: DT_DEBUG, value } => return Some(*value).filter(|&v| v != 0),
            // SAFETY: not yet at DT_NULL.
            _ => d = unsafe { d.add(1) },
        }
    }
}

/// All loaded objects in the order of the loader's list: the executable, the preloaded ones, the rest. Valid only
/// before `main`, in a constructor, or up to the first object that dlopen may have loaded.
pub fn objects() -> impl Iterator<Item = Object> {
    let mut at = first();
    core::iter::from_fn(move || {
        // SAFETY: nodes of the loader's list live as long as their object, and no object is unloaded: see above.
        let o = unsafe { at.as_ref() }?;
        at = o.next;
        Some(Object(o))
    })
}

impl Object {
    /// Path as the loader has it; empty for the executable.
    pub fn name(&self) -> &'static [u8] {
        if self.0.name.is_null() {
            return &[];
        }
        // SAFETY: a NUL-terminated string owned by the loader.
        unsafe { CStr::from_ptr(self.0.name) }.to_bytes()
    }

    /// Whether this is the object that holds this code.
    pub fn is_self(&self) -> bool {
        core::ptr::eq(self.0.dynamic, (&raw const OWN_DYNAMIC).cast())
    }

    /// Whether this is the C library: glibc, or musl, whose loader exports its third stage (ldso/dynlink.c).
    pub fn is_libc(&self) -> bool {
        // gcompat, which runs programs for glibc over musl, has glibc's function.
        let name = if weak_address!("__dls3") != 0 { c"__dls3" } else { c"gnu_get_libc_version" };
        self.symbol(name).is_some()
    }

    /// Avma = Svma + bias.
    pub fn bias(&self) -> usize {
        self.0.bias
    }

    /// First address, one past the last, and .eh_frame_hdr (0 = none), from the program headers. These lie in the first
    /// page at the load bias of all objects except non-PIE executables.
    pub fn extent(&self, readable: fn(usize) -> bool) -> Option<(usize, usize, usize)> {
        let start = if self.0.bias != 0 { self.0.bias } else { fixed_start(self.0.dynamic as usize) };
        if start == 0 || !readable(start) || !readable(start + 4088) {
            return None;
        }
        let (mut end, mut hdr) = (0, 0);
        for p in headers(start) {
            let at = self.0.bias.wrapping_add(p.address);
            match p.kind {
                PT_LOAD => end = end.max(at.wrapping_add(p.memory_bytes)),
                PT_GNU_EH_FRAME => hdr = at,
                _ => {}
            }
        }
        (end > start).then_some((start, end, hdr))
    }

    /// The address ranges of this position-independent object's file that were mapped readable.
    pub fn readable_segments(&self, readable: fn(usize) -> bool) -> impl Iterator<Item = Range<usize>> {
        let bias = self.0.bias;
        let is_readable = bias != 0 && readable(bias) && readable(bias + 4088);
        let headers = if is_readable { headers(bias) } else { &[] };
        headers.iter().filter(|p| p.kind == PT_LOAD && p.flags & PF_R != 0).map(move |p| {
            let start = bias.wrapping_add(p.address);
            start..start.saturating_add(p.file_bytes)
        })
    }

    /// The address in an entry of the dynamic section.
    fn dynamic(&self, tag: i64) -> Option<usize> {
        // glibc relocates these pointers in place, except in the vdso and on read-only dynamic sections.
        self.dynamic_value(tag).map(|value| if value < self.0.bias { value + self.0.bias } else { value })
    }

    /// The value of an entry of the dynamic section, as it is there.
    fn dynamic_value(&self, tag: i64) -> Option<usize> {
        let mut d = self.0.dynamic;
        if d.is_null() {
            return None;
        }
        loop {
            // SAFETY: the dynamic section ends with a DT_NULL entry.
            let e = unsafe { &*d };
            match e.tag {
                0 => return None,
                t if t == tag => return Some(e.value),
                // SAFETY: not yet at DT_NULL.
                _ => d = unsafe { d.add(1) },
            }
        }
    }

    /// Whether the object calls itself by this name (DT_SONAME). Its file may have another.
    pub fn is_named(&self, name: &CStr) -> bool {
        let (Some(strings), Some(at)) = (self.dynamic(DT_STRTAB), self.dynamic_value(DT_SONAME)) else { return false };
        // SAFETY: the entry is an offset into the object's table of strings.
        unsafe { CStr::from_ptr((strings as *const c_char).add(at)) == name }
    }

    /// Address of a defined, exported symbol of this object, by name; default versions win over hidden ones.
    pub fn symbol(&self, name: &CStr) -> Option<usize> {
        self.symbol_and_bytes(name).map(|(address, _)| address)
    }

    /// As [`Object::symbol`]; also returns how many bytes the symbol has.
    pub fn symbol_and_bytes(&self, name: &CStr) -> Option<(usize, usize)> {
        // SAFETY: an entry of the object's own table.
        self.entry(name).map(|(address, entry)| (address, unsafe { (*entry).size }))
    }

    /// Takes the value out of an exported symbol's entry. The loader passes over such an entry, as if this object did
    /// not define the symbol (musl: find_sym in ldso/dynlink.c; glibc: check_match in elf/dl-lookup.c).
    ///
    /// # Safety
    /// This library itself, whose table nobody else changes.
    pub unsafe fn hide(&self, name: &CStr) {
        let Some((_, entry)) = self.entry(name) else { return };
        let value = entry as usize + core::mem::offset_of!(Sym, value);
        let is_in = |p: &&Phdr| {
            p.kind == PT_LOAD && (p.address..p.address + p.file_bytes).contains(&value.wrapping_sub(self.0.bias))
        };
        // Other code in the same segment may be running.
        let is_plain = headers(self.0.bias).iter().find(is_in).is_some_and(|p| p.flags == PF_R);
        let page = value & !4095;
        // SAFETY: the caller's contract: pages of this library's table, which stay readable.
        unsafe {
            if is_plain && os::protect(page, 4096, true) {
                word(value).store(0, Relaxed);
                os::protect(page, 4096, false);
            }
        }
    }

    /// Address and entry of a symbol.
    fn entry(&self, name: &CStr) -> Option<(usize, *const Sym)> {
        let symbols = self.dynamic(DT_SYMTAB)? as *const Sym;
        let strings = self.dynamic(DT_STRTAB)? as *const c_char;
        let versions = self.dynamic(DT_VERSYM).map(|v| v as *const u16);
        let mut hidden = None;
        let mut check = |i: u32| -> Option<(usize, *const Sym)> {
            // SAFETY: i comes from the object's own hash table; symbol, string and version tables run parallel.
            unsafe {
                let s = &*symbols.add(i as usize);
                if s.section == 0 || CStr::from_ptr(strings.add(s.name as usize)) != name {
                    return None;
                }
                let mut at = self.0.bias + s.value;
                if s.info & 15 == 10 {
                    // STT_GNU_IFUNC: the symbol is a resolver.
                    let resolver: extern "C" fn() -> usize = core::mem::transmute(at);
                    at = resolver();
                }
                if versions.is_some_and(|v| *v.add(i as usize) & 0x8000 != 0) {
                    hidden = Some((at, &raw const *s));
                    return None;
                }
                Some((at, &raw const *s))
            }
        };
        if let Some(t) = self.dynamic(DT_GNU_HASH) {
            let t = t as *const u32;
            // SAFETY: layout of the GNU hash section: nbuckets, symoffset, bloom words, shift, bloom (64-bit words),
            // buckets, chain; a chain ends with an odd hash.
            unsafe {
                let (buckets, first, bloom) = (*t, *t.add(1), *t.add(2));
                if buckets == 0 {
                    return None;
                }
                let hash = name.to_bytes().iter().fold(5381u32, |h, &c| h.wrapping_mul(33).wrapping_add(c as u32));
                let bucket = t.add(4 + 2 * bloom as usize);
                let chain = bucket.add(buckets as usize);
                let mut i = *bucket.add((hash % buckets) as usize);
                if i >= first {
                    loop {
                        let h = *chain.add((i - first) as usize);
                        if h | 1 == hash | 1
                            && let Some(a) = check(i)
                        {
                            return Some(a);
                        }
                        if h & 1 == 1 {
                            break;
                        }
                        i += 1;
                    }
                }
            }
        } else if let Some(t) = self.dynamic(DT_HASH) {
            let t = t as *const u32;
            // SAFETY: layout of the SysV hash section: nbucket, nchain, buckets, chains; the second word counts
            // symbols.
            let n = unsafe { *t.add(1) };
            for i in 1..n {
                if let Some(a) = check(i) {
                    return Some(a);
                }
            }
        }
        hidden
    }
}

/// The start of an executable that was linked to fixed addresses, from the address of its dynamic section. Linkers put
/// its ELF header at a multiple of 4 MiB; in a large program (node: 90 MiB) the data lie many such steps above it.
fn fixed_start(dynamic: usize) -> usize {
    const BITS: u32 = 22;
    const MOST: usize = 256;
    /// The last result: the start, counted in steps, << 32 | the dynamic section.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let nearest = dynamic >> BITS << BITS;
    if dynamic >> 32 != 0 {
        return nearest;
    }
    let known = KNOWN.load(Relaxed);
    if known as u32 as usize == dynamic {
        return ((known >> 32) as usize) << BITS;
    }
    let is = |at: usize| os::readable(at) && headers(at).iter().any(|p| p.kind == PT_DYNAMIC && p.address == dynamic);
    let steps = (1..=nearest >> BITS).rev().take(MOST);
    let start = steps.map(|n| n << BITS).find(|at| is(*at)).unwrap_or(nearest);
    KNOWN.store((start as u64 >> BITS) << 32 | dynamic as u64, Relaxed);
    start
}

/// The loaded object of a node in the loader's list.
pub fn object(map: &'static LinkMap) -> Object {
    Object(map)
}

/// Address of the dynamic section of the object that a handle of dlopen names.
///
/// # Safety
/// A handle that is open.
pub unsafe fn dynamic_of(handle: *const LinkMap) -> usize {
    // SAFETY: the caller's contract; a handle of glibc is its node.
    unsafe { (*handle).dynamic as usize }
}

/// The list, while other threads may change it: each node is read only after `readable` has confirmed it.
pub fn objects_checked(readable: fn(usize) -> bool) -> impl Iterator<Item = Object> {
    objects_checked_after(0, readable)
}

/// As [`objects_checked`], where the first `lasting` objects are never unloaded and needn't be confirmed.
pub fn objects_checked_after(lasting: usize, readable: fn(usize) -> bool) -> impl Iterator<Item = Object> {
    const MOST: usize = 10_000;
    let mut at = first();
    let mut left = MOST;
    core::iter::from_fn(move || {
        if at.is_null() || left == 0 {
            return None;
        }
        left -= 1;
        let is_lasting = MOST - left <= lasting;
        // SAFETY: a node of the loader's list, as the node before it says; the caller vouches for the first ones.
        let object = unsafe { object_checked(at, if is_lasting { |_| true } else { readable }) }?;
        at = object.0.next;
        Some(object)
    })
}

/// The object of a node that other threads may be unloading: read only after `readable` has confirmed it.
///
/// # Safety
/// `node` is or was a node of the loader's list.
pub unsafe fn object_checked(node: *const LinkMap, readable: fn(usize) -> bool) -> Option<Object> {
    if !readable(node as usize) || !readable(node as usize + size_of::<LinkMap>() - 8) {
        return None;
    }
    // SAFETY: just found readable. A node that is unloaded at this moment may hold garbage, so what it leads to is
    // checked too. Nodes come from libc's allocator, which keeps their pages mapped.
    let o: &'static LinkMap = unsafe { &*node };
    (readable(o.dynamic as usize) && (o.name.is_null() || readable(o.name as usize))).then_some(Object(o))
}

/// A loaded object as dl_iterate_phdr(3) shows it.
pub struct Loaded {
    /// Avma = Svma + bias.
    pub bias: usize,
    name: *const c_char,
    /// How many objects the loader has ever loaded, this one and later ones included.
    pub loaded_so_far: u64,
    headers: &'static [Phdr],
}

/// `struct dl_phdr_info` of glibc (link.h), as far as it is read.
#[repr(C)]
struct PhdrInfo {
    bias: usize,
    name: *const c_char,
    headers: *const Phdr,
    count: u16,
    /// The number of objects loaded so far, including those that have been unloaded since; the loader writes it under
    /// its lock.
    loaded: u64,
}

/// Called with each [`Loaded`].
pub type Visit<'a> = &'a mut dyn FnMut(&Loaded);

/// A callback for dl_iterate_phdr(3).
///
/// # Safety
/// `info` is what dl_iterate_phdr passes, and `data` points to a [`Visit`].
pub(super) unsafe extern "C" fn visit_loaded(info: *const c_void, _bytes: usize, data: *mut c_void) -> i32 {
    // SAFETY: the caller's contract.
    unsafe {
        let (info, visit) = (&*(info as *const PhdrInfo), &mut *(data as *mut Visit<'_>));
        if !info.headers.is_null() {
            let headers = core::slice::from_raw_parts(info.headers, info.count as usize);
            visit(&Loaded { bias: info.bias, loaded_so_far: info.loaded, name: info.name, headers });
        }
    }
    0
}

/// A callback for dl_iterate_phdr(3) that stores how many objects the loader has loaded so far, and ends the walk.
///
/// # Safety
/// `info` is what dl_iterate_phdr passes, and `data` points to a word.
pub(super) unsafe extern "C" fn note_count(info: *const c_void, _bytes: usize, data: *mut c_void) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { *(data as *mut u64) = (*(info as *const PhdrInfo)).loaded };
    1
}

/// Pages that the loader has made read-only after it relocated them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// First address.
    pub start: usize,
    /// One past the last.
    pub end: usize,
}

impl Loaded {
    /// Path as the loader has it; empty for the executable.
    pub fn name(&self) -> &[u8] {
        if self.name.is_null() {
            return &[];
        }
        // SAFETY: a NUL-terminated string of the loader's, whose lock keeps the object loaded.
        unsafe { CStr::from_ptr(self.name) }.to_bytes()
    }

    /// Whether this is the object that holds this code.
    pub fn is_self(&self) -> bool {
        let own = &raw const OWN_DYNAMIC as usize;
        self.find(PT_DYNAMIC).is_some_and(|p| self.bias.wrapping_add(p.address) == own)
    }

    fn find(&self, kind: u32) -> Option<&Phdr> {
        self.headers.iter().find(|p| p.kind == kind)
    }

    /// The dynamic section; empty if there is none.
    pub fn dynamic(&self) -> &'static [u8] {
        self.find(PT_DYNAMIC)
            .and_then(|p| self.memory(self.bias.wrapping_add(p.address), Some(p.memory_bytes)))
            .unwrap_or_default()
    }

    /// Bytes at an address of a loaded segment; without a length, all up to the segment's end.
    pub fn memory(&self, at: usize, bytes: Option<usize>) -> Option<&'static [u8]> {
        let (_, end) = self.segment(at)?;
        let bytes = bytes.unwrap_or(end - at);
        // SAFETY: inside a readable segment of an object that the loader's lock keeps mapped. Callers read the dynamic
        // section and the tables that it names, which nobody writes after relocation.
        (bytes <= end - at).then(|| unsafe { core::slice::from_raw_parts(at as *const u8, bytes) })
    }

    /// The readable loaded segment that holds an address: its ends.
    fn segment(&self, at: usize) -> Option<(usize, usize)> {
        self.headers.iter().filter(|p| p.kind == PT_LOAD && p.flags & PF_R != 0).find_map(|p| {
            let start = self.bias.wrapping_add(p.address);
            let end = start.checked_add(p.memory_bytes)?;
            (start..end).contains(&at).then_some((start, end))
        })
    }

    /// Whether an address is this object's code.
    pub fn is_code(&self, at: usize) -> bool {
        self.headers.iter().filter(|p| p.kind == PT_LOAD && p.flags & PF_X != 0).any(|p| {
            let start = self.bias.wrapping_add(p.address);
            at.wrapping_sub(start) < p.memory_bytes
        })
    }

    /// Whether the eight bytes at this address belong to a segment that was writable while the loader relocated it.
    pub fn is_data(&self, at: usize) -> bool {
        self.headers.iter().filter(|p| p.kind == PT_LOAD && p.flags & (PF_W | PF_X) == PF_W).any(|p| {
            let start = self.bias.wrapping_add(p.address);
            p.memory_bytes >= 8 && at.wrapping_sub(start) <= p.memory_bytes - 8
        })
    }

    /// The whole pages of PT_GNU_RELRO, which elf/dl-reloc.c makes read-only.
    pub fn guarded(&self) -> Option<Guarded> {
        let p = self.find(PT_GNU_RELRO)?;
        let start = self.bias.wrapping_add(p.address);
        let (start, end) = (start & !4095, start.wrapping_add(p.memory_bytes) & !4095);
        (start < end).then_some(Guarded { start, end })
    }
}

/// The word at an address of an object's data.
///
/// # Safety
/// The address is aligned, and its eight bytes stay mapped for as long as the reference is used.
pub unsafe fn word(at: usize) -> &'static core::sync::atomic::AtomicUsize {
    // SAFETY: the caller's contract; other threads and the loader load and store whole words.
    unsafe { &*(at as *const core::sync::atomic::AtomicUsize) }
}

/// One program header (elf.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct Phdr {
    kind: u32,
    flags: u32,
    offset: usize,
    address: usize,
    physical: usize,
    file_bytes: usize,
    memory_bytes: usize,
    align: usize,
}

const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// Program headers of an object whose ELF header is mapped at `start`; empty if it isn't one.
fn headers(start: usize) -> &'static [Phdr] {
    // SAFETY: `start` is the first address of a loaded object, or of a page that the kernel found readable: the ELF
    // header and the program headers are looked for in that page only.
    unsafe {
        let h = start as *const u8;
        if core::slice::from_raw_parts(h, 4) != b"\x7fELF" {
            return &[];
        }
        let (at, n) = ((h.add(32) as *const usize).read(), (h.add(56) as *const u16).read() as usize);
        if at + n * size_of::<Phdr>() > 4096 || at % 8 != 0 {
            return &[];
        }
        core::slice::from_raw_parts(h.add(at) as *const Phdr, n)
    }
}

/// Whether an object's ELF header is mapped at `start`, the first address of one of its segments.
pub fn is_header(start: usize) -> bool {
    !headers(start).is_empty()
}

/// The loaded segment (Avma range) that holds `address`.
pub fn segment_of(start: usize, bias: usize, address: usize) -> Option<(usize, usize)> {
    headers(start).iter().filter(|p| p.kind == PT_LOAD).find_map(|p| {
        let low = bias.wrapping_add(p.address);
        let high = low.wrapping_add(p.file_bytes);
        (low..high).contains(&address).then_some((low, high))
    })
}

/// The address of the code that an object's file has at these bytes, if all of them are code of one segment.
pub fn text_at(start: usize, bias: usize, offset: usize, bytes: usize) -> Option<usize> {
    headers(start).iter().filter(|p| p.kind == PT_LOAD && p.flags & PF_X != 0).find_map(|p| {
        let into = offset.checked_sub(p.offset)?;
        (into.checked_add(bytes)? <= p.file_bytes).then(|| bias.wrapping_add(p.address + into))
    })
}

/// Whether a mapping that was just made has the same bytes as the loaded code at `from`. A few places are compared;
/// comparing all would make all pages resident. Another file may be shorter than its mapping, so the kernel checks each
/// place first.
pub fn is_copy(start: usize, from: usize, bytes: usize) -> bool {
    let is = |at: usize| {
        // SAFETY: 64 bytes in one page that can be read, of a mapping that the program hasn't been given yet; and of a
        // loaded object's text.
        os::readable(start + at) && unsafe { *((start + at) as *const [u8; 64]) == *((from + at) as *const [u8; 64]) }
    };
    bytes >= 4096 && (0..=16).all(|i| is(((bytes - 64) / 16 * i) & !63))
}

/// The GNU build id of an object, from its loaded notes; empty if it has none.
pub fn build_id(start: usize, end: usize, bias: usize) -> &'static [u8] {
    for p in headers(start).iter().filter(|p| p.kind == PT_NOTE) {
        let mut at = bias.wrapping_add(p.address);
        let stop = at.saturating_add(p.memory_bytes);
        // Notes outside the loaded segments aren't in memory.
        if segment_of(start, bias, at).is_none_or(|(_, high)| stop > high) {
            continue;
        }
        while at >= start && at + 12 <= stop && stop <= end {
            // SAFETY: inside the note segment of a loaded object; a note is name size, descriptor size, type, name,
            // descriptor, both padded to 4.
            unsafe {
                let n = core::slice::from_raw_parts(at as *const u32, 3);
                let (name, descriptor) = ((n[0] as usize).next_multiple_of(4), n[1] as usize);
                if at + 12 + name + descriptor > stop {
                    break;
                }
                if n[2] == 3 && n[0] == 4 && core::slice::from_raw_parts((at + 12) as *const u8, 4) == b"GNU\0" {
                    return core::slice::from_raw_parts((at + 12 + name) as *const u8, descriptor.min(20));
                }
                at += 12 + name + descriptor.next_multiple_of(4);
            }
        }
    }
    &[]
}

/// Whether this object was loaded into a running process: then it comes after libc in the list. Determined once, at the
/// first hook or in the constructor, which dlopen runs under the loader's lock. Later an object in front may be
/// unloaded.
pub fn is_late() -> bool {
    const LATE: u8 = 1;
    const EARLY: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    if KNOWN.load(Relaxed) == 0 {
        let late = objects().take_while(|o| !o.is_self()).any(|o| o.is_libc());
        KNOWN.store(if late { LATE } else { EARLY }, Relaxed);
    }
    KNOWN.load(Relaxed) == LATE
}

/// First address of this object, and one past the last; 0 before [`note_own_extent`].
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// For [`own_extent`]. Called by the constructor, where the loader's list can be read.
pub fn note_own_extent() {
    if let Some((start, end, _)) = objects().find(Object::is_self).and_then(|own| own.extent(|_| true)) {
        OWN[1].store(end, Relaxed);
        OWN[0].store(start, Relaxed);
    }
}

/// The addresses of this object: code, data and .bss.
pub fn own_extent() -> Range<usize> {
    OWN[0].load(Relaxed)..OWN[1].load(Relaxed).next_multiple_of(4096)
}

/// The number of objects at the head of the list that were loaded before this one could be.
pub fn startup_count() -> usize {
    if !is_late() {
        return objects().count();
    }
    let libc_or_loader = |o: &Object| o.is_libc() || o.symbol(c"__tls_get_addr").is_some();
    objects().enumerate().filter(|(_, o)| libc_or_loader(o)).take(2).map(|(i, _)| i + 1).max().unwrap_or(0)
}

/// The objects that the program's references would be bound to without this object, in search order. In a process that
/// was already running: only those that the program started with (in the list up to libc and ld.so).
pub fn scope() -> impl Iterator<Item = Object> {
    let (from, to) = if is_late() {
        (0, startup_count())
    } else {
        (objects().position(|o| o.is_self()).map_or(0, |i| i + 1), usize::MAX)
    };
    objects().enumerate().skip_while(move |(i, _)| *i < from).take_while(move |(i, _)| *i < to).map(|(_, o)| o)
}

/// The address that the loader would have bound `name` to without this object.
pub fn next_symbol(name: &CStr) -> Option<usize> {
    scope().find_map(|o| o.symbol(name))
}
