//! Who may hold a JVM's native memory, as far as the process shows it without a tracker. The signs are libraries
//! besides the JDK's, open jars, and blocks of one size.

use super::case::Case;
use super::remedy::{MIN_PERCENT_TO_MENTION, remedy};
use super::{Effort, Remedy};
use crate::ledger::{is_tracker, large_buffers};
use plimsoll_facts::snapshot::{EqualBlocks, ObjectClass, ZlibStates, folder_of_jdk};
use plimsoll_facts::units::{Bytes, count, counted};
use plimsoll_tracked::symbols::demangle;

/// Libraries that the evidence names.
const NAMED: usize = 5;
/// Sizes of blocks that the evidence names.
const SIZES: usize = 3;

/// A library with native memory of its own.
struct Known {
    /// Part of the name of its shared object or its jar, in lower case.
    mark: &'static str,
    name: &'static str,
    /// Whether it keeps a cache with a bound of its own, so that much memory in use is normal.
    caches: bool,
    /// Code that releases its memory.
    end: &'static str,
}

const KNOWN: [Known; 8] = [
    Known {
        mark: "rocksdb",
        name: "RocksDB",
        caches: true,
        end: "close every RocksIterator, Options and ColumnFamilyHandle; one LRUCache for all tables bounds the block caches",
    },
    Known {
        mark: "zstd",
        name: "zstd-jni",
        caches: false,
        end: "close every ZstdInputStream, ZstdOutputStream and Zstd*Ctx, on errors too: by try-with-resources",
    },
    Known { mark: "brotli", name: "Brotli", caches: false, end: "close every BrotliInputStream, Encoder and Decoder" },
    Known {
        mark: "tcnative",
        name: "Netty's OpenSSL",
        caches: false,
        end: "ReferenceCountUtil.release(sslContext)   // one SslContext for all connections",
    },
    Known {
        mark: "sqlite",
        name: "SQLite",
        caches: true,
        end: "close every Statement and ResultSet; PRAGMA cache_size bounds each connection's cache",
    },
    Known {
        mark: "duckdb",
        name: "DuckDB",
        caches: true,
        end: "close every Statement and ResultSet; SET memory_limit bounds the memory of each database",
    },
    Known {
        mark: "onnxruntime",
        name: "ONNX Runtime",
        caches: false,
        end: "close every OnnxTensor and OrtSession.Result",
    },
    Known {
        mark: "jnidispatch",
        name: "JNA",
        caches: false,
        end: "close() every com.sun.jna.Memory that outlives its call",
    },
];

/// Objects of the C library, the C++ runtime, the loader and the JDK, by the beginning of the file's name. The JDK of a
/// distribution may use the distribution's libz.
const NOT_FOREIGN: [&str; 13] = [
    "ld-linux",
    "ld-musl",
    "libc.so",
    "libc-",
    "libm.so",
    "libm-",
    "libdl",
    "libpthread",
    "librt",
    "libgcc_s",
    "libstdc++",
    "libnss_",
    "libz.so",
];

/// Libraries that hold no native memory between calls: their streams' buffers are arrays of the Java heap.
const HOLD_NOTHING: [&str; 2] = ["snappyjava", "lz4-java"];

/// java.util.zip, whose blocks are known by their sizes.
const ZIP: (&str, &str) = (
    "java.util.zip",
    "close every GZIPInputStream, GZIPOutputStream and ZipFile, on errors too: by try-with-resources; end() every Inflater and Deflater",
);
const NETTY: (&str, &str) = (
    "Netty",
    "ReferenceCountUtil.release(buffer)   // -Dio.netty.leakDetection.level=advanced logs where a leaked buffer was allocated",
);

/// `of`: the bytes whose holder is unknown.
pub(crate) fn evidence(case: Case<'_>, of: Bytes) -> Vec<String> {
    let mut lines = block_caches(case);
    lines.extend(equal_blocks(case, of));
    lines.extend(objects(case, of));
    lines.extend(loaded(case));
    if has_nettys_blocks(case) {
        let counted = by_netty(case);
        lines.push(match counted {
            Bytes(0) => "Netty is in the program: its buffers come from Unsafe, and without NMT they are among these blocks".to_owned(),
            _ => format!(
                "Netty is in the program: it counts {counted} that it allocated with Unsafe, and without NMT they are among these blocks"
            ),
        });
    }
    lines
}

/// The native code besides the JDK's.
pub(crate) fn loaded(case: Case<'_>) -> Vec<String> {
    const NONE: &str = "no library is loaded besides the JDK's: java.util.zip (Inflater, Deflater), Unsafe, java.nio \
                        or the JDK's own agents may hold them";
    let libraries = libraries(case);
    let (idle, holding): (Vec<&str>, Vec<&str>) = libraries.iter().partition(|name| holds_nothing(name));
    // A jar whose library isn't loaded has run no native code.
    let is_loaded = |known: &Known| holding.iter().any(|name| file_name(name).to_lowercase().contains(known.mark));
    let jars: Vec<&str> = case.snapshot.jars.iter().map(|jar| file_name(jar)).collect();
    let jars: Vec<&str> = jars.into_iter().filter(|jar| known(jar).is_some_and(is_loaded)).collect();
    let mut lines = Vec::new();
    if !holding.is_empty() {
        lines.push(format!("libraries besides the JDK's that may hold them: {}", listed(&holding)));
    }
    if !jars.is_empty() {
        lines.push(format!("jars that it has open, of libraries with native memory: {}", listed(&jars)));
    }
    if holding.is_empty() {
        lines.push(match idle.is_empty() {
            true => NONE.to_owned(),
            false => format!("the libraries besides the JDK's keep no native memory between calls: {}", listed(&idle)),
        });
    }
    lines
}

/// Code that releases the memory of each loaded library that is known. If blocks have zlib's sizes, java.util.zip comes
/// first. None if nothing shows whose code that is.
pub(crate) fn endings(case: Case<'_>, of: Bytes) -> Option<Remedy> {
    let mut found: Vec<&Known> = libraries(case).into_iter().map(file_name).filter_map(known).collect();
    found.sort_unstable_by_key(|known| known.name);
    found.dedup_by_key(|known| known.name);
    let mut ends: Vec<(&str, &str)> = found.iter().map(|known| (known.name, known.end)).collect();
    if has_nettys_blocks(case) {
        ends.push(NETTY);
    }
    if zlib(case).1.percent_of(of) >= MIN_PERCENT_TO_MENTION {
        ends.insert(0, ZIP);
    }
    if ends.is_empty() {
        return None;
    }
    let (names, how): (Vec<&str>, Vec<&str>) = ends.into_iter().unzip();
    let what = format!("close the objects that hold native memory: {}", names.join(", "));
    Some(remedy(Effort::Code, what, how.join("\n"), ""))
}

/// What RocksDB's block caches hold inside their capacity. What exceeds it is pinned by open iterators and readers.
pub(crate) fn bounded(case: Case<'_>) -> Bytes {
    case.snapshot.native_objects.caches.iter().filter_map(|cache| Some(cache.used?.min(cache.capacity))).sum()
}

/// Whether every library that may hold `of` keeps a cache of its own, and nothing indicates forgotten objects. One
/// reading can't tell such a cache from a leak.
pub(crate) fn may_be_a_cache(case: Case<'_>, of: Bytes) -> bool {
    /// From this percentage of the bytes on, objects of the library's classes indicate a leak.
    const OBJECTS_AT_LEAST: f64 = 20.0;
    let mut holding = libraries(case).into_iter().filter(|name| !holds_nothing(name)).peekable();
    let is_there = holding.peek().is_some();
    is_there
        && holding.all(|name| known(file_name(name)).is_some_and(|known| known.caches))
        && !has_nettys_blocks(case)
        && in_objects(case).percent_of(of) < OBJECTS_AT_LEAST
        && zlib(case).1.percent_of(of) < MIN_PERCENT_TO_MENTION
}

/// Classes of the suspects, largest first.
fn classes(case: Case<'_>) -> impl Iterator<Item = &ObjectClass> {
    let libraries = libraries(case);
    case.snapshot.native_objects.classes.iter().filter(move |class| libraries.contains(&class.library.as_str()))
}

fn in_objects(case: Case<'_>) -> Bytes {
    classes(case).map(|class| class.resident).sum()
}

/// The largest classes, if their objects have a large part of the bytes.
fn objects(case: Case<'_>, of: Bytes) -> Option<String> {
    let all = in_objects(case);
    let name = |class: &ObjectClass| {
        let name = demangle(class.symbol.as_bytes());
        let table = name.strip_prefix("{vtable(").and_then(|rest| rest.strip_suffix(")}"));
        match (table, class.symbol.is_empty()) {
            (Some(class), _) => class.to_owned(),
            (None, false) => name,
            (None, true) => "an unnamed class".to_owned(),
        }
    };
    let line = |class: &ObjectClass| format!("{} of {} ({})", count(class.count), name(class), class.resident);
    let largest: Vec<String> = classes(case).take(SIZES).map(line).collect();
    let library = classes(case).next().map(|class| file_name(&class.library))?;
    (all.percent_of(of) >= MIN_PERCENT_TO_MENTION)
        .then(|| format!("{all} are objects of classes of {library}, the largest: {}", largest.join(", ")))
}

/// The block caches of each library: contents and capacity.
pub(crate) fn block_caches(case: Case<'_>) -> Vec<String> {
    let caches = &case.snapshot.native_objects.caches;
    let read: Vec<_> = caches.iter().filter_map(|cache| Some((cache.capacity, cache.used?))).collect();
    let used: Bytes = read.iter().map(|(_, used)| *used).sum();
    let capacity: Bytes = read.iter().map(|(capacity, _)| *capacity).sum();
    let over: Bytes = read.iter().map(|(capacity, used)| *used - *capacity).sum();
    let mut lines = Vec::new();
    if used > Bytes(0) {
        lines.push(format!(
            "RocksDB's block cache{} {used} of a capacity of {capacity}, which bounds it",
            if read.len() == 1 { " holds".to_owned() } else { format!("s ({}) hold", read.len()) }
        ));
    }
    if over > Bytes::mib(1) {
        lines.push(format!("{over} above the capacity are pinned by open iterators and by values in use"));
    }
    lines
}

/// Contents and capacity of the block caches for which both could be read.
pub(crate) fn block_cache(case: Case<'_>) -> Option<(Bytes, Bytes)> {
    let read = case.snapshot.native_objects.caches.iter().filter_map(|cache| Some((cache.used?, cache.capacity)));
    let (used, capacity) = read.fold((Bytes(0), Bytes(0)), |(used, all), one| (used + one.0, all + one.1));
    (used > Bytes(0)).then_some((used, capacity))
}

/// Netty's own count of memory that it allocated with Unsafe.
pub(crate) fn by_netty(case: Case<'_>) -> Bytes {
    case.vm().and_then(|vm| vm.direct_buffers.as_ref()).map(|direct| direct.by_netty).unwrap_or_default()
}

/// Whether Netty's buffers may be among the blocks: without the VM's books, they look like any other block.
fn has_nettys_blocks(case: Case<'_>) -> bool {
    (case.has_netty() || by_netty(case) > Bytes(0)) && !case.has_vm_books()
}

fn known(file: &str) -> Option<&'static Known> {
    let file = file.to_lowercase();
    KNOWN.iter().find(|known| file.contains(known.mark))
}

fn holds_nothing(path: &str) -> bool {
    HOLD_NOTHING.iter().any(|mark| file_name(path).contains(mark))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names[..names.len().min(NAMED)].join(", "))
}

/// Shared objects that are neither the JDK's, the C library's, an allocator nor ours.
fn libraries(case: Case<'_>) -> Vec<&str> {
    let objects = case.snapshot.vmas.iter().filter(|vma| vma.executable && vma.inode != 0);
    let jdk = folder_of_jdk(&case.snapshot.vmas);
    let is_foreign = |name: &&str| {
        let file = file_name(name);
        file.contains(".so")
            && !jdk.is_some_and(|folder| name.starts_with(folder))
            && !is_tracker(name)
            && !case.snapshot.allocators.iter().any(|known| known.path == **name)
            && !NOT_FOREIGN.iter().any(|known| file.starts_with(known))
    };
    let mut names: Vec<&str> = objects.map(|vma| vma.name.as_str()).filter(is_foreign).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Sizes that have a large part of the bytes: a signature of their holder.
fn equal_blocks(case: Case<'_>, of: Bytes) -> Vec<String> {
    // Merges the sizes of one known holder: a tracker's trailer gives some of its blocks another size.
    let mut kinds: Vec<(Peak, Vec<Bytes>)> = Vec::new();
    for peak in beside_buffers(case) {
        match kinds.iter_mut().find(|(kind, _)| kind.maker.is_some() && kind.maker == peak.maker) {
            Some((Peak { blocks, .. }, sizes)) => {
                blocks.count = blocks.count.saturating_add(peak.blocks.count);
                blocks.resident += peak.blocks.resident;
                sizes.push(peak.blocks.usable());
            }
            None => kinds.push((peak, vec![peak.blocks.usable()])),
        }
    }
    kinds.sort_by_key(|(kind, _)| std::cmp::Reverse(kind.blocks.resident));
    let is_worth = |(kind, _): &&(Peak, Vec<Bytes>)| kind.blocks.resident.percent_of(of) >= MIN_PERCENT_TO_MENTION;
    let mut cached = bounded(case);
    let line = |(Peak { blocks: kind, maker }, sizes): &(Peak, Vec<Bytes>)| {
        let may_be_cached = kind.resident <= cached;
        cached -= if may_be_cached { kind.resident } else { Bytes(0) };
        let whose = maker.or(may_be_cached.then_some("perhaps the block cache's"));
        let whose = whose.map(|maker| format!(": {maker}")).unwrap_or_default();
        let mut sizes: Vec<u64> = sizes.iter().map(|size| size.0).collect();
        sizes.sort_unstable();
        let sizes: Vec<String> = sizes.into_iter().map(count).collect();
        format!(
            "{} of one size ({} bytes) hold {} of resident memory{whose}",
            counted(kind.count, "block"),
            sizes.join(" or "),
            kind.resident
        )
    };
    kinds.iter().filter(is_worth).take(SIZES).map(line).collect()
}

/// How many blocks are zlib's by their sizes, and their resident bytes.
pub(crate) fn zlib(case: Case<'_>) -> (u64, Bytes) {
    let peaks = beside_buffers(case).into_iter().filter(|peak| peak.maker.is_some());
    peaks.fold((0, Bytes(0)), |(number, bytes), Peak { blocks, .. }| {
        (number.saturating_add(blocks.count), bytes + blocks.resident)
    })
}

/// Blocks of one size, and what they are if the size shows it.
#[derive(Clone, Copy)]
struct Peak {
    blocks: EqualBlocks,
    maker: Option<&'static str>,
}

/// The sizes with the largest sums. From the two sizes that zlib shares with usual buffers, it takes off as many blocks
/// as direct buffers and Netty's may be. With NMT, a buffer's header makes its block larger than zlib's.
fn beside_buffers(case: Case<'_>) -> Vec<Peak> {
    let Some(glibc) = case.glibc() else { return Vec::new() };
    let mut peaks = glibc.peaks.clone();
    let direct = case.vm().and_then(|vm| vm.direct_buffers.as_ref()).filter(|_| !case.has_vm_books());
    let Some(direct) = direct else { return by_maker(case, &peaks) };
    let (large, large_bytes) = match large_buffers(direct, glibc, case.snapshot.host.page) {
        Some(large) => (large.number, large.bytes),
        None => (0, Bytes(0)),
    };
    let mut bytes = direct.at_walk - large_bytes + direct.by_netty;
    // Netty counts bytes, but not buffers.
    let count = direct.count.filter(|_| direct.by_netty == Bytes(0));
    let mut count = count.map_or(u64::MAX, |count| count.saturating_sub(large));
    for peak in &mut peaks {
        let Some(size) = OfZlib::by_size(peak).and(BUFFERS.into_iter().rev().find(|size| *size <= peak.usable()))
        else {
            continue;
        };
        let number = bytes.0.div_ceil(size.0).min(count).min(peak.count);
        (bytes, count) = (bytes - size.scaled(number, 1), count - number);
        *peak = of_peak(peak, peak.count - number);
    }
    by_maker(case, &peaks)
}

/// `number` of the blocks of `peak`.
fn of_peak(peak: &EqualBlocks, number: u64) -> EqualBlocks {
    EqualBlocks { count: number, resident: peak.resident.scaled(number, peak.count), ..*peak }
}

/// Divides the sizes that other programs use too: zlib has no more of these blocks than its open streams need.
fn by_maker(case: Case<'_>, peaks: &[EqualBlocks]) -> Vec<Peak> {
    let streams = case.glibc().map(|glibc| glibc.zlib).unwrap_or_default();
    let (mut states, mut windows) = (u64::MAX, streams.inflaters);
    let mut tables = streams.deflaters.saturating_mul(TABLES);
    // All blocks of zlib, if the tracker saw each.
    let mut booked = case.booked_count("zlib").unwrap_or(u64::MAX);
    let mut divided = Vec::new();
    for peak in peaks {
        let Some(kind) = OfZlib::by_size(peak) else {
            divided.push(Peak { blocks: *peak, maker: None });
            continue;
        };
        let left = match kind {
            OfZlib::State => &mut states,
            OfZlib::Window => &mut windows,
            OfZlib::Table => &mut tables,
        };
        let number = peak.count.min(*left).min(booked);
        (*left, booked) = (*left - number, booked - number);
        let both = [(number, Some(kind.name())), (peak.count - number, None)];
        let both = both.into_iter().filter(|(number, _)| *number > 0);
        divided.extend(both.map(|(number, maker)| Peak { blocks: of_peak(peak, number), maker }));
    }
    divided
}

/// Sizes of zlib's windows that are usual sizes of buffers, too.
const BUFFERS: [Bytes; 2] = [Bytes::kib(32), Bytes::kib(64)];
/// Blocks of 64 KiB that an open Deflater has: its window, two tables, and what is pending.
const TABLES: u64 = 4;

/// What zlib requests with its usual settings (inflate.c `inflateInit2_`, `updatewindow`; deflate.c `deflateInit2_`:
/// windowBits 15, memLevel 8).
#[derive(Clone, Copy)]
enum OfZlib {
    State,
    Window,
    Table,
}

impl OfZlib {
    /// A chunk has up to 16 bytes more, and that of a tracked block up to 24.
    fn by_size(peak: &EqualBlocks) -> Option<OfZlib> {
        match peak.usable().0 {
            usable if ZlibStates::OF_INFLATER.contains(&usable) => Some(OfZlib::State),
            32_768..=32_784 => Some(OfZlib::Window),
            65_536..=65_552 => Some(OfZlib::Table),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            OfZlib::State => "the size of an Inflater's state",
            OfZlib::Window => "the size of an Inflater's window",
            OfZlib::Table => "the size of a Deflater's window and tables",
        }
    }
}
