//! Compiled category rules: bytes made by the observer (`rules/compile.rs`), read in place by the tracker.
//!
//! ```text
//! offset  header, 64 B
//! 0       magic "PLIMRUL1"
//! 8       u32 version            12  u32 bytes of the whole
//! 16      u64 hash of the rules' text
//! 24      u32 categories: offset 28  u32 count, at most 256      48 B each: name[39] NUL-padded, kind u8, 8 B zero
//! 32      u32 weak: offset       36  u32 count                   40 B each: u16 default, 6 B zero, 256-bit set 'unless'
//! 40      u32 objects: offset    44  u32 count                   64 B each: u16 target, u8 length, u8 zero, glob[60]
//! 48      u32 tables: offset     52  u32 count, sorted by id     40 B each: build id[20] zero-padded, u32 ranges: count,
//! 56      8 B zero                                                          u32 starts offset, u32 targets offset, 8 B zero
//!         ranges of a table      starts: u32 Svma ascending; targets: u16. A range ends where the next begins;
//!                                the last one has target 0.
//! target  0 none   1..=256 category + 1   0x8000 | i weak entry i   0xFFFF through
//! ```
//!
//! Integers are little-endian and unaligned. A reader trusts nothing: an offset that points outside counts as absent.
//!
//! # Which owner a block has
//!
//! [`decide`] walks the caller's frames from the innermost outwards:
//! 1. It skips *through* frames (wrappers such as `os::malloc`, `operator new`, `strdup`, which own nothing).
//! 2. The loaded object of the first other frame is the owner. Rules for objects further out don't count, because the
//!    caller of a library doesn't own what the library allocates for itself.
//! 3. In that object, the first frame with a symbol rule decides. A *weak* rule gives its own category, unless the next
//!    outer rule gives one of the categories that it lists (an arena grown by the compiler belongs to the compiler).
//! 4. Without a symbol rule, the owner's object rule decides; else the category is the owner's file name. A whole
//!    object can be *through* too; this applies only if its symbols weren't compiled.

/// First eight bytes.
pub const MAGIC: [u8; 8] = *b"PLIMRUL1";
/// Version of the layout. Others are refused.
pub const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a category.
pub const CATEGORY_BYTES: usize = 48;
/// Longest name of a category, bytes.
pub const NAME_BYTES: usize = 39;
/// Maximum number of categories.
pub const CATEGORIES: usize = 256;
/// Bytes of a weak entry.
pub const WEAK_BYTES: usize = 40;
/// Bytes of an object rule.
pub const OBJECT_BYTES: usize = 64;
/// Longest glob for file names, bytes.
pub const GLOB_BYTES: usize = 60;
/// Bytes of a table's entry.
pub const TABLE_BYTES: usize = 40;
/// Bytes of a build id; shorter ones are zero-padded, longer ones cut.
pub const BUILD_ID_BYTES: usize = 20;
const _: () = assert!(NAME_BYTES < CATEGORY_BYTES - 8 && 4 + GLOB_BYTES == OBJECT_BYTES);
const _: () = assert!(8 + CATEGORIES / 8 == WEAK_BYTES && BUILD_ID_BYTES + 20 == TABLE_BYTES);

/// Rules for whole objects only, used if no symbols were compiled: a bare `LD_PRELOAD`.
pub const DEFAULT: &[u8] = include_bytes!("default_rules.bin");

/// The result of a rule for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleTarget {
    /// No rule.
    None,
    /// The memory counts for the frame's caller.
    Through,
    /// This category.
    Category(u16),
    /// Weak entry: its default category, unless an outer rule gives one of its exceptions.
    Weak(u16),
}

impl RuleTarget {
    /// The stored number.
    pub const fn encode(self) -> u16 {
        match self {
            RuleTarget::None => 0,
            RuleTarget::Through => 0xFFFF,
            RuleTarget::Category(i) => i + 1,
            RuleTarget::Weak(i) => 0x8000 | i,
        }
    }
    /// Decodes a stored number, given the numbers of categories and weak entries. A number out of bounds means no rule.
    const fn decode(raw: u16, categories: u16, weak: u16) -> RuleTarget {
        match raw {
            0 => RuleTarget::None,
            0xFFFF => RuleTarget::Through,
            _ if raw & 0x8000 != 0 && raw & 0x7FFF < weak => RuleTarget::Weak(raw & 0x7FFF),
            _ if raw <= categories => RuleTarget::Category(raw - 1),
            _ => RuleTarget::None,
        }
    }
}

/// The compiled rules of a run.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    bytes: &'a [u8],
    categories: Section,
    weak: Section,
    objects: Section,
    tables: Section,
}

#[derive(Clone, Copy)]
struct Section {
    offset: usize,
    count: usize,
}

/// The rules for one loaded object. Look it up once per object.
#[derive(Clone, Copy, Debug)]
pub struct ModuleRules<'a> {
    starts: &'a [u8],
    targets: &'a [u8],
    object: RuleTarget,
    limits: (u16, u16),
}

/// The rules for one frame, as input of [`decide`].
#[derive(Clone, Copy, Debug)]
pub struct FrameRule<Object> {
    /// Identifies the loaded object.
    pub object: Object,
    /// Result of the symbol rules.
    pub symbol: RuleTarget,
    /// Result of the rules for the whole object.
    pub whole: RuleTarget,
}

/// The owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A category of the rules.
    Category(u16),
    /// No rule: the file name of the object of this frame (0 = innermost).
    Object(usize),
    /// The caller has no frames.
    Unknown,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Rules<'a> {
    /// Checks the header. The cost doesn't depend on the size: tables are checked when they are looked up.
    pub fn parse(bytes: &'a [u8]) -> Option<Rules<'a>> {
        if bytes.get(..8)? != MAGIC || u32_at(bytes, 8)? != VERSION {
            return None;
        }
        let bytes = bytes.get(..u32_at(bytes, 12)? as usize)?;
        let section = |at: usize, entry: usize, most: usize| -> Option<Section> {
            let (offset, count) = (u32_at(bytes, at)? as usize, u32_at(bytes, at + 4)? as usize);
            if count > most {
                return None;
            }
            bytes.get(offset..offset.checked_add(count.checked_mul(entry)?)?)?;
            Some(Section { offset, count })
        };
        Some(Rules {
            bytes,
            categories: section(24, CATEGORY_BYTES, CATEGORIES)?,
            weak: section(32, WEAK_BYTES, 0x7FFE)?,
            objects: section(40, OBJECT_BYTES, u16::MAX as usize)?,
            tables: section(48, TABLE_BYTES, u16::MAX as usize)?,
        })
    }

    /// Hash of the text from which the rules were compiled.
    pub fn hash(&self) -> u64 {
        self.bytes.get(16..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
    }

    /// Number of categories.
    pub fn categories(&self) -> u16 {
        self.categories.count as u16
    }

    /// Number of tables, which is the number of objects whose symbols were compiled.
    pub fn tables(&self) -> usize {
        self.tables.count
    }

    fn entry(&self, section: Section, i: usize, bytes: usize) -> Option<&'a [u8]> {
        if i >= section.count {
            return None;
        }
        self.bytes.get(section.offset + i * bytes..)?.get(..bytes)
    }

    /// Name of a category, at most [`NAME_BYTES`] bytes; empty if there is none.
    pub fn category_name(&self, i: u16) -> &'a [u8] {
        let name = self.entry(self.categories, i as usize, CATEGORY_BYTES).map_or(&[][..], |e| &e[..NAME_BYTES]);
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        &name[..end]
    }

    fn limits(&self) -> (u16, u16) {
        (self.categories.count as u16, self.weak.count as u16)
    }

    /// The rules for an object with this path or file name and build id (empty if it has none).
    pub fn module(&self, path: &[u8], build_id: &[u8]) -> ModuleRules<'a> {
        let (starts, targets) = self.table(build_id).unwrap_or((&[], &[]));
        let object = self.object(path, !starts.is_empty()).unwrap_or(RuleTarget::None);
        ModuleRules { starts, targets, object, limits: self.limits() }
    }

    fn object(&self, path: &[u8], has_symbols: bool) -> Option<RuleTarget> {
        let (name, (categories, weak)) = (file_name(path), self.limits());
        (0..self.objects.count).find_map(|i| {
            let entry = self.entry(self.objects, i, OBJECT_BYTES)?;
            let target = RuleTarget::decode(u16_at(entry, 0)?, categories, weak);
            let glob = entry.get(4..)?.get(..entry[2] as usize)?;
            (glob_matches(glob, name) && !(has_symbols && target == RuleTarget::Through)).then_some(target)
        })
    }

    fn table(&self, build_id: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
        let key = padded(build_id)?;
        let (mut low, mut high) = (0, self.tables.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry(self.tables, middle, TABLE_BYTES)?;
            match entry[..BUILD_ID_BYTES].cmp(&key[..]) {
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
                core::cmp::Ordering::Equal => {
                    let count = u32_at(entry, BUILD_ID_BYTES)? as usize;
                    let starts = u32_at(entry, BUILD_ID_BYTES + 4)? as usize;
                    let targets = u32_at(entry, BUILD_ID_BYTES + 8)? as usize;
                    return Some((
                        self.bytes.get(starts..starts.checked_add(count.checked_mul(4)?)?)?,
                        self.bytes.get(targets..targets.checked_add(count.checked_mul(2)?)?)?,
                    ));
                }
            }
        }
        None
    }

    /// The ranges of the object with this build id: start and target.
    pub fn ranges(&self, build_id: &[u8]) -> Option<impl Iterator<Item = (u32, RuleTarget)> + use<'a>> {
        let (starts, targets) = self.table(build_id)?;
        let (categories, weak) = self.limits();
        Some(starts.chunks_exact(4).zip(targets.chunks_exact(2)).map(move |(start, target)| {
            let start = u32_at(start, 0).unwrap_or(0);
            (start, RuleTarget::decode(u16_at(target, 0).unwrap_or(0), categories, weak))
        }))
    }

    /// The owner of a block whose caller has these frames, innermost first. Each frame has the rules of its object and
    /// the Svma of the *call*: return address − 1 − bias. So a call at the very end of a function lies in that
    /// function.
    pub fn classify<'f>(&self, frames: impl IntoIterator<Item = (ModuleRules<'f>, u64)>) -> Decision {
        let frames = frames.into_iter().map(|(module, svma)| FrameRule {
            object: (module.starts.as_ptr() as usize, module.starts.len(), module.object),
            symbol: module.lookup(svma),
            whole: module.object,
        });
        decide(frames, |weak, category| self.weak(weak, category))
    }

    /// The category of weak entry `i` if the next outer rule gives `outer`.
    pub fn weak(&self, i: u16, outer: Option<u16>) -> Option<u16> {
        let entry = self.entry(self.weak, i as usize, WEAK_BYTES)?;
        if let Some(outer) = outer
            && entry.get(8 + outer as usize / 8)? >> (outer % 8) & 1 != 0
        {
            return Some(outer);
        }
        u16_at(entry, 0).filter(|&c| c < self.categories())
    }
}

/// A position in an object's ranges that belongs to no function. Its rule applies to a stack that is *through* in the
/// object and then in code of no file. The reason: a VM's native method that ends in a jump to its allocator leaves no
/// frame.
pub const CALLED_BY_GENERATED: u32 = u32::MAX - 1;
/// Name of that position in the rules.
pub const GENERATED_NAME: &str = "generated-code";

impl ModuleRules<'_> {
    /// Result of the symbol rules at an address in the object.
    pub fn lookup(&self, svma: u64) -> RuleTarget {
        let Ok(svma) = u32::try_from(svma) else { return RuleTarget::None };
        let (mut low, mut high) = (0, self.starts.len() / 4);
        while low < high {
            let middle = low + (high - low) / 2;
            match u32_at(self.starts, middle * 4) {
                Some(start) if start <= svma => low = middle + 1,
                _ => high = middle,
            }
        }
        // low = number of starts ≤ svma.
        let raw = low.checked_sub(1).and_then(|i| u16_at(self.targets, i * 2)).unwrap_or(0);
        RuleTarget::decode(raw, self.limits.0, self.limits.1)
    }

    /// Result of the rules for the object as a whole.
    pub fn whole(&self) -> RuleTarget {
        self.object
    }

    /// Whether its symbols were compiled.
    pub fn has_symbols(&self) -> bool {
        !self.starts.is_empty()
    }
}

/// The owner of a block; see the documentation of this module. `weak` resolves a weak entry, given the next outer rule.
pub fn decide<Object: PartialEq + Copy>(
    frames: impl IntoIterator<Item = FrameRule<Object>>,
    weak: impl Fn(u16, Option<u16>) -> Option<u16>,
) -> Decision {
    let mut owner: Option<(usize, FrameRule<Object>)> = None;
    let mut pending: Option<u16> = None;
    let mut any = false;
    for (i, frame) in frames.into_iter().enumerate() {
        any = true;
        if frame.symbol == RuleTarget::Through
            || (frame.symbol == RuleTarget::None && frame.whole == RuleTarget::Through)
        {
            continue;
        }
        if owner.is_some_and(|(_, owner)| owner.object != frame.object) {
            break;
        }
        owner.get_or_insert((i, frame));
        match frame.symbol {
            RuleTarget::Category(category) => {
                let category = pending.map_or(Some(category), |w| weak(w, Some(category)));
                return category.map_or(Decision::Object(i), Decision::Category);
            }
            RuleTarget::Weak(w) => pending = pending.or(Some(w)),
            RuleTarget::None | RuleTarget::Through => {}
        }
    }
    match owner {
        Some((i, owner)) => {
            let category = pending.and_then(|w| weak(w, None)).or(match owner.whole {
                RuleTarget::Category(category) => Some(category),
                _ => None,
            });
            category.map_or(Decision::Object(i), Decision::Category)
        }
        None if any => Decision::Object(0),
        None => Decision::Unknown,
    }
}

/// A build id as in the tables; None if it is empty.
pub fn padded(build_id: &[u8]) -> Option<[u8; BUILD_ID_BYTES]> {
    let mut key = [0; BUILD_ID_BYTES];
    let n = build_id.len().min(BUILD_ID_BYTES);
    key[..n].copy_from_slice(&build_id[..n]);
    (key != [0; BUILD_ID_BYTES]).then_some(key)
}

/// The part after the last slash.
pub fn file_name(path: &[u8]) -> &[u8] {
    &path[path.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1)..]
}

/// Whether the library is the runtime of a sanitizer that replaces malloc and must be loaded before any other library.
/// It may be gcc's (`libasan.so.8`), or clang's if it is shared (`libclang_rt.asan-x86_64.so`). UBSan's keeps libc's
/// malloc.
pub fn is_sanitizer(path: &[u8]) -> bool {
    const KINDS: [&[u8]; 4] = [b"asan", b"hwasan", b"lsan", b"tsan"];
    let Some(name) = file_name(path).strip_prefix(b"lib") else { return false };
    let (name, is_clangs) = name.strip_prefix(b"clang_rt.").map_or((name, false), |rest| (rest, true));
    let rest = KINDS.iter().find_map(|kind| name.strip_prefix(*kind));
    rest.is_some_and(|rest| rest.starts_with(b".so") || (is_clangs && rest.starts_with(b"-")))
}

/// Whether `name` is a name of its own: not a part of the file's name, as python3 is a part of python3.11.
pub fn is_other_name(name: &[u8], file: &[u8]) -> bool {
    !name.is_empty() && !file.windows(name.len()).any(|part| part == name)
}

/// Folder, with its slash, and name of the path by which a program was started, if that is another name of its file. A
/// relative path is taken in the file's own folder. The names of descriptors (fexecve) aren't names of programs.
pub fn other_path<'p>(file: &'p [u8], started: &'p [u8]) -> Option<[&'p [u8]; 2]> {
    let name = file_name(started);
    let by_descriptor = started.starts_with(b"/dev/fd/") || started.starts_with(b"/proc/");
    if by_descriptor || !is_other_name(name, file_name(file)) {
        return None;
    }
    let folder = if started.starts_with(b"/") { started } else { file };
    Some([&folder[..folder.len() - file_name(folder).len()], name])
}

/// Whether the whole text matches. `*` stands for any bytes, `?` for one byte, `[A-Za]` for one of these bytes; other
/// bytes stand for themselves.
pub fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    // The last star, and the position in the text where its rest was tried. On a mismatch, the star takes one more
    // byte.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if glob.get(g) == Some(&b'*') {
            retry = Some((g, t));
            g += 1;
        } else if let Some(width) = one_matches(glob.get(g..).unwrap_or(&[]), text[t]) {
            g += width;
            t += 1;
        } else if let Some((star, from)) = retry {
            retry = Some((star, from + 1));
            g = star + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    glob[g..].iter().all(|&b| b == b'*')
}

/// The width of the pattern's first element if it matches the byte. `[]` and an unclosed `[` stand for themselves.
fn one_matches(glob: &[u8], byte: u8) -> Option<usize> {
    let width = match glob.iter().position(|&b| b == b']') {
        Some(end) if glob[0] == b'[' && end > 1 => end + 1,
        _ => return glob.first().filter(|&&b| b == b'?' || b == byte).map(|_| 1),
    };
    let mut set = &glob[1..width - 1];
    while let [low, rest @ ..] = set {
        if let [b'-', high, after @ ..] = rest {
            if (*low..=*high).contains(&byte) {
                return Some(width);
            }
            set = after;
        } else {
            if *low == byte {
                return Some(width);
            }
            set = rest;
        }
    }
    None
}
