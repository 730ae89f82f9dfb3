//! The readers of the VM's memory survive any contents: unreadable pages, arbitrary pointers, circular chains. And the
//! compressed numbers equal those of a simple decoder.

#[path = "../../../fixtures/random.rs"]
mod random;

use plimsoll_segment::{FILE_BYTES, Purpose, Section};
use plimsoll_tracker::account::blocks;
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::stack::java::code_cache::{Blob, Code, Vm};
use plimsoll_tracker::stack::java::compiled::{self, Stream};
use plimsoll_tracker::stack::java::structs::{Layout, NONE};
use plimsoll_tracker::stack::java::{known, lifetimes, memory, method};
use plimsoll_tracker::sys::os;
use random::Random;
use std::sync::atomic::Ordering::Relaxed;

fn pages(n: usize, protection: i32) -> *mut u8 {
    pages_at(0, n, protection)
}

/// Maps pages at this address, if it is free.
fn pages_at(hint: usize, n: usize, protection: i32) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh private mapping.
    let p = unsafe { libc::mmap(hint as *mut libc::c_void, n * 4096, protection, flags, -1, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    p.cast()
}

#[test]
fn nothing_is_read_that_cannot_be() {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let p = pages(3, both);
    let at = p as u64;
    // SAFETY: own pages.
    unsafe {
        p.add(4094).cast::<u32>().write_unaligned(0xdead_beef);
        libc::mprotect(p.add(8192).cast(), 4096, libc::PROT_NONE);
    }
    assert_eq!(memory::load::<u32>(at + 4094), Some(0xdead_beef));
    assert_eq!(memory::load::<u64>(at + 8192 - 8), Some(0));
    for bad in [0, 1, 4095, at + 8192 - 7, at + 8192, at + 12287, 1 << 47, u64::MAX - 3, u64::MAX] {
        assert_eq!(memory::load::<u64>(bad), None, "{bad:x}");
    }
    assert_eq!(memory::slice(at, 8192, 8192).map(memory::Bytes::len), Some(8192));
    assert!(memory::slice(at, 8193, 9000).is_none() && memory::slice(at, 100, 99).is_none());
    // A page that was known to be readable, but no longer is.
    for (range, protect) in [(at as usize..at as usize + 4096, 1), (at as usize..at as usize + (100 << 12), 1)] {
        assert!(memory::load::<u8>(at).is_some());
        // SAFETY: own pages.
        unsafe { libc::mprotect(p.cast(), 4096, libc::PROT_NONE * protect) };
        memory::forget(range);
        assert_eq!(memory::load::<u8>(at), None);
        // SAFETY: own pages.
        unsafe { libc::mprotect(p.cast(), 4096, both) };
    }
}

/// UNSIGNED5 as its comment states it: digits of 64, low first; a byte above the limit says that another follows.
fn slow_number(bytes: &[u8], skip: u64) -> Option<(u32, usize)> {
    let mut sum = 0u64;
    for i in 0..5 {
        let digit = u64::from(*bytes.get(i)?).checked_sub(skip)?;
        sum += digit * 64u64.pow(i as u32);
        if digit < 192 - skip || i == 4 {
            return Some((sum as u32, i + 1));
        }
    }
    None
}

#[test]
fn compressed_numbers_equal_those_of_a_simple_decoder() {
    let mut random = Random(7);
    let mut lengths = [0; 6];
    for _ in 0..200_000 {
        let bytes: Vec<u8> =
            (0..random.below(7)).map(|_| if random.below(2) == 0 { 200 } else { random.next() as u8 }).collect();
        let skips_zero = random.below(2) == 0;
        let mut stream = Stream { bytes: bytes[..].into(), at: 0, skips_zero };
        let slow = slow_number(&bytes, u64::from(skips_zero));
        assert_eq!(stream.number(), slow.map(|(n, _)| n), "{bytes:?}");
        if let Some((_, length)) = slow {
            assert_eq!(stream.at, length);
            lengths[length] += 1;
        }
    }
    assert!(lengths[1..].iter().all(|n| *n > 1000), "{lengths:?}");
}

/// Offsets as this JDK has them: 8, 17 or 25. They cover three ways to the code heaps and to the tables of an nmethod.
fn layout(version: u32, at: u64) -> Layout {
    let both = Layout {
        array_length: 0,
        array_data: 8,
        heap_memory: 0,
        heap_map: 112,
        heap_log2: 248,
        space_low: 16,
        space_high: 24,
        space_low_boundary: 0,
        space_high_boundary: 8,
        used: 4,
        stubs_at: 8,
        stubs_bytes: 20,
        const_method: 8,
        access: 40,
        pool: 8,
        method_flags: 28,
        code_size: 34,
        name_index: 36,
        signature_index: 38,
        holder: 24,
        pool_length: 60,
        class_name: 24,
        symbol_length: 4,
        symbol_body: 6,
        block_header: 16,
        pc_desc: 16,
        const_method_size: 56,
        pool_size: 72,
        interpreter: at + 24,
        call_stub_return: at + 32,
        major: at + 40,
        ..Layout::EMPTY
    };
    let heaps = Layout { heaps: at, code_low: at + 8, code_high: at + 16, ..both };
    match version {
        8 => Layout {
            class_source_index: 54,
            only_heap: at,
            blob_name: 8,
            blob_size: 16,
            blob_relocations: 24,
            blob_frame: 44,
            blob_code_offset: 32,
            method: 64,
            compile_id: 180,
            level: 184,
            original_pc: 112,
            scope_pcs: 136,
            dependencies: 140,
            scopes_offset: 132,
            metadata: 128,
            deopt_offset: 108,
            deopt_mh_offset: 112,
            ..both
        },
        17 => Layout {
            source_index: 54,
            blob_name: 96,
            blob_size: 12,
            blob_frame: 28,
            blob_code: 32,
            method: 112,
            compile_id: 304,
            level: 308,
            original_pc: 300,
            scope_pcs: 268,
            dependencies: 272,
            scopes: 120,
            metadata: 260,
            deopt: 128,
            deopt_mh: 136,
            ..heaps
        },
        _ => Layout {
            source_index: 54,
            blob_name: 8,
            blob_kind: 56,
            blob_size: 24,
            blob_frame: 44,
            blob_code_offset: 36,
            blob_mutable: 16,
            blob_relocations: 28,
            method: 80,
            compile_id: 212,
            level: 216,
            original_pc: 208,
            scope_pcs: 196,
            scopes_offset: 200,
            immutable: 96,
            immutable_size: 160,
            deopt_offset: 176,
            deopt_mh_offset: 180,
            ..heaps
        },
    }
}

const PLANTED: u64 = 0x4000;

/// A compiled method with one inlined into it, and a method with its names: pc, blob, method.
fn plant(p: *mut u8, at: u64, version: u32, random: &mut Random) -> (u64, Blob, u64) {
    let l = layout(version, at);
    // SAFETY: all that is written lies in the pages, which end far behind.
    let byte = |to: u64, value: u8| unsafe { p.add((to - at) as usize).write(value) };
    let write = |to: u64, bytes: &[u8]| bytes.iter().enumerate().for_each(|(i, b)| byte(to + i as u64, *b));
    let word = |to: u64, value: u64| write(to, &value.to_le_bytes());
    let int = |to: u64, value: u64| write(to, &(value as u32).to_le_bytes());
    let here = at + PLANTED;
    let (blob, data, code, class) = (here, here + 0x400, here + 0x1000, here + 0x1800);
    let (some, own, pool, klass) = (here + 0x600, here + 0x700, here + 0x900, here + 0xb00);
    word(blob + u64::from(l.method), some);
    if version < 25 {
        if version == 8 {
            int(blob + u64::from(l.blob_code_offset), code - blob);
            int(blob + u64::from(l.scopes_offset), data - blob);
        } else {
            word(blob + u64::from(l.blob_code), code);
            word(blob + u64::from(l.scopes), data);
        }
        int(blob + u64::from(l.metadata), data + 0x100 - blob);
        int(blob + u64::from(l.scope_pcs), data + 0x80 - blob);
        int(blob + u64::from(l.dependencies), data + 0x80 + 4 * 16 - blob);
    } else {
        int(blob + u64::from(l.blob_code_offset), code - blob);
        word(blob + u64::from(l.immutable), data - 0x40);
        int(blob + u64::from(l.scope_pcs), 0);
        int(blob + u64::from(l.scopes_offset), 0x40);
        int(blob + u64::from(l.immutable_size), 0x80);
        word(blob + u64::from(l.blob_mutable), data + 0xf0);
        int(blob + u64::from(l.blob_relocations), 16);
    }
    let pcs = if version < 25 { data + 0x80 } else { data - 0x40 };
    for i in 0..4 {
        int(pcs + 16 * i, 32 * i);
        int(pcs + 16 * i + 4, 10);
    }
    let skip = u8::from(version == 25);
    write(data + 3, &[0, 1, 9].map(|n| n + skip));
    write(data + 10, &[3, 1, 5].map(|n| n + skip));
    word(data + 0x100, some);
    word(some + u64::from(l.const_method), own);
    word(own + u64::from(l.pool), pool);
    write(own + u64::from(l.code_size), &[40, 0, 1, 0, 2, 0]);
    word(pool + u64::from(l.holder), klass);
    int(pool + u64::from(l.pool_length), 3);
    word(klass + u64::from(l.class_name), class);
    for i in 0..3 {
        let symbol = class + 64 * i;
        write(symbol + u64::from(l.symbol_length), &[20, 0]);
        word(pool + u64::from(l.pool_size) + 8 * i, symbol);
    }
    (code + 32 * random.below(4), Blob { at: blob, frame: 64 }, some)
}

/// Every byte of a method changes and changes back: the cached facts equal a fresh reading, and the method's entry in
/// the segment has the current names. As in a VM, the count of freed methods changes before another method's bytes are
/// there; sometimes it is unknown.
#[test]
fn what_is_known_of_a_method_is_what_is_read() {
    const BYTES: usize = 256 << 10;
    // Far from all other mappings: a pointer with one changed byte must not lead to a stack or a heap, which change
    // meanwhile.
    let p = pages_at(0x10_0000_0000, BYTES / 4096, libc::PROT_READ | libc::PROT_WRITE);
    let at = p as u64;
    // SAFETY: own pages.
    let words = unsafe { core::slice::from_raw_parts_mut(p.cast::<u64>(), BYTES / 8) };
    let mut random = Random(5);
    words[..6].copy_from_slice(&[at + 512, at, at + BYTES as u64, at + 256, at + 8, 25]);
    (words[32 + 1], words[32 + 2]) = (at, 100 << 32);
    (words[64], words[65], words[100]) = (1, at + 800, at + 1024);
    (words[128 + 2], words[128 + 3], words[128 + 31]) = (at, at + BYTES as u64, 7);
    let l = layout(25, at);
    let vm = Vm::new(l).expect("a VM");
    let (_, _, some) = plant(p, at, 25, &mut random);
    let base = os::table(FILE_BYTES, Purpose::Data).expect("address space");
    // SAFETY: a zeroed writable mapping of that size, never unmapped.
    let segment = unsafe { Segment::at(base as usize) };
    assert!(segment.populate_start() && blocks::publish(segment));

    let here = PLANTED as usize;
    // The offsets that matter: pointers, lengths, indexes, texts, lines.
    let (own, pool, class) = (here + 0x700, here + 0x900, here + 0x1800);
    let (mut recalled, mut changed, mut none, mut unfreed) = (0, 0, 0, 0);
    let mut undo: Vec<(usize, u8)> = Vec::new();
    let mut freed = 1;
    for _ in 0..400_000 {
        // SAFETY: each place lies in the pages.
        let mut set = |to: usize, value: u8| unsafe {
            freed += 1;
            undo.push((to, *p.add(to)));
            p.add(to).write(value);
        };
        match random.below(16) {
            0 => set(class + random.below(3 * 64) as usize, random.next() as u8),
            1 => set(class + 64 * random.below(3) as usize + 4, 18 + random.below(3) as u8),
            2 => set(own + 34 + 2 * random.below(3) as usize, 1 + random.below(3) as u8),
            3 => set(own + 28, random.below(4) as u8),
            4 => set(own + 56 + random.below(64) as usize, random.below(2) as u8),
            5 => set(pool + 60, 1 + random.below(4) as u8),
            6 => set(pool + 72 + 8 * random.below(3) as usize, 64 * random.below(4) as u8),
            7 => set(here + 0x600 + 8 + random.below(6) as usize, random.next() as u8),
            8 => set(here + 0x600 + random.below(0x700) as usize, random.next() as u8),
            9 => memory::forget(0..4096),
            _ => {}
        }
        let freed_now = if random.below(4) == 0 { 0 } else { freed };
        let before = known::recall(&vm, some, freed_now);
        let read = method::read_identity(&vm, some);
        assert!(before.is_none_or(|(identity, _)| Some(identity) == read));
        assert_eq!(method::identity(&vm, some), read);
        let found = method::index(segment, &vm, some, freed_now);
        assert_eq!(found.map(|(_, identity)| identity), read);
        recalled += u64::from(before.is_some());
        none += u64::from(read.is_none());
        if let Some((Some(index), _)) = found
            && before.is_none()
        {
            // The cached result is this entry, and is valid until something changes.
            let kept = known::recall(&vm, some, freed_now);
            assert!(kept.is_none_or(|known| Some(known.0) == read && known.1 == index));
            changed += u64::from(kept.is_some());
            if kept.is_some() && freed_now != 0 {
                // The method's first pointer. While the count is unchanged, nothing is compared.
                // SAFETY: in the pages.
                let flip = || unsafe { *p.add(here + 0x600 + 8) ^= 1 };
                flip();
                assert_eq!(known::recall(&vm, some, freed), kept);
                assert!(known::recall(&vm, some, 0).is_none() && known::recall(&vm, some, freed + 1).is_none());
                flip();
                unfreed += 1;
            }
        }
        if random.below(8) == 0 {
            freed += 1;
            while let Some((to, value)) = undo.pop() {
                // SAFETY: as above.
                unsafe { p.add(to).write(value) };
            }
        }
        let used = segment.used(Section::Methods);
        assert!(found.is_none_or(|(index, _)| index.is_none_or(|i| (i as usize) < used)));
        if let Some((Some(i), identity)) = found {
            assert_eq!(segment.method(i).identity.load(Relaxed), identity);
        }
    }
    println!("{recalled} recalled, {changed} read and kept, {unfreed} not compared again, {none} no methods");
    assert!(recalled > 100_000 && changed > 40_000 && unfreed > 10_000 && none > 5_000);
}

#[test]
fn any_memory_is_survived() {
    const BYTES: usize = 256 << 10;
    // Far from all other mappings, as above: a damaged pointer may lead to another test's stack, which changes between
    // reads.
    let p = pages_at(0x1234_5600_0000, BYTES / 4096 + 1, libc::PROT_READ | libc::PROT_WRITE);
    let at = p as u64;
    // SAFETY: own pages; the last one can't be read.
    let words = unsafe {
        libc::mprotect(p.add(BYTES).cast(), 4096, libc::PROT_NONE);
        core::slice::from_raw_parts_mut(p.cast::<u64>(), BYTES / 8)
    };
    let mut random = Random(11);
    let mut vms = [0; 3];
    let (mut methods, mut frames, mut named) = (0u64, 0u64, 0u64);
    for round in 0..1500u64 {
        for w in words.iter_mut() {
            *w = match random.below(8) {
                0..=3 => at + random.below(BYTES as u64 + 4096) / 8 * 8,
                4 => random.below(64),
                5 => random.below(1 << 12) | random.below(1 << 12) << 32,
                6 => 0,
                _ => random.next(),
            };
        }
        let version = [8, 17, 25][round as usize % 3];
        // Enough of the data is valid that most VMs pass the first check.
        let (list, heap, map) = (at + 512, at + 1024, at + 4096);
        words[0] = list;
        (words[1], words[2]) = (at, at + BYTES as u64);
        words[3] = at + 256;
        words[4] = at + 8 * random.below(100);
        words[5] = version.into();
        (words[32 + 1], words[32 + 2]) = (at + 8 * random.below(1000), (100 + random.below(1000)) << 32);
        words[64] = 1 + random.below(3);
        words[65] = at + 800;
        if version == 8 {
            words[0] = heap;
            (words[128], words[129]) = (at, at + BYTES as u64);
        }
        for i in 0..3 {
            words[100 + i] = heap;
        }
        (words[128 + 2], words[128 + 3]) = (at, at + BYTES as u64);
        words[128 + 14 + 2] = map;
        words[128 + 31] = 7;
        if random.below(2) == 0 {
            // Blocks of random sizes.
            let bytes = map as usize - at as usize;
            let mut segment = 0;
            while segment < BYTES >> 7 {
                let n = 1 + random.below(300) as usize;
                for i in 0..n.min((BYTES >> 7) - segment) {
                    let back = i.min(1 + random.below(254) as usize) as u8;
                    // SAFETY: the map lies in the pages, a byte for each segment.
                    unsafe { p.add(bytes + segment + i).write(back) };
                }
                segment += n;
            }
        }
        let Some(vm) = Vm::new(layout(version, at)) else { continue };
        vms[round as usize % 3] += 1;
        for _ in 0..20 {
            let (pc, blob, some) = plant(p, at, version, &mut random);
            for _ in 0..random.below(2) * random.below(200) {
                words[(PLANTED + random.below(0x2000)) as usize / 8] = at + random.below(BYTES as u64 + 4096);
            }
            if random.below(2) == 0 {
                // SAFETY: in the pages.
                unsafe { p.add((PLANTED + random.below(0x2000)) as usize).write(random.next() as u8) };
            }
            let mut inlined = 0;
            compiled::frames(&vm, blob, pc, |_| inlined += 1);
            frames += inlined;
            compiled::deoptimised(&vm, blob, pc);
            methods += u64::from(compiled::method(&vm, blob).is_some());
            named += u64::from(method::identity(&vm, some).is_some());
            method::bci(&vm, some, random.next());
            // And random words.
            let pc = at + random.below(BYTES as u64 + 64);
            if let Some(Code::Method(blob)) = vm.code(pc) {
                compiled::frames(&vm, blob, pc, |_| frames += 1);
            }
            vm.blob_name(pc);
        }
    }
    println!("{vms:?} VMs, {methods} compiled, {frames} frames, {named} methods with names");
    assert!(vms.iter().all(|vms| *vms > 300) && methods > 10_000 && frames > 20_000 && named > 10_000);
    let none = Layout::EMPTY;
    assert!(Vm::new(none).is_none() && none.blob_kind == NONE);
}

/// Finds counters in memory that is laid out like jstat's; then reads memory with arbitrary contents.
#[test]
fn the_counters_of_a_vm_are_found_or_nothing_is() {
    let p = pages(2, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: own pages, which only this thread uses.
    let bytes = unsafe { std::slice::from_raw_parts_mut(p, 4096) };
    let put = |bytes: &mut [u8], at: usize, v: u32| bytes[at..at + 4].copy_from_slice(&v.to_le_bytes());
    let write = |bytes: &mut [u8], names: &[&str]| {
        bytes.fill(0);
        bytes[..4].copy_from_slice(&[0xca, 0xfe, 0xc0, 0xc0]);
        put(bytes, 24, 32);
        put(bytes, 28, names.len() as u32);
        for (i, name) in names.iter().enumerate() {
            let at = 32 + i * 64;
            put(bytes, at, 64);
            put(bytes, at + 4, 20);
            put(bytes, at + 16, 56);
            bytes[at + 20..at + 20 + name.len()].copy_from_slice(name.as_bytes());
        }
    };
    let at = p as u64;
    write(bytes, &["sun.rt.other", "sun.rt.safepoints", "java.cls.unloadedClasses2", "java.cls.unloadedClasses"]);
    let value = |entry: u64| at + 32 + 64 * entry + 56;
    assert_eq!(lifetimes::counters(at), Some([value(3), value(1)]));
    // Some entries are texts, which end where the entry does.
    for text in [0, 2] {
        write(bytes, &["sun.gc.name", "sun.rt.safepoints", "java.rt.vmFlags", "java.cls.unloadedClasses"]);
        put(bytes, 32 + text * 64 + 16, 61);
        assert_eq!(lifetimes::counters(at), Some([value(3), value(1)]), "entry {text} is a text of three bytes");
    }
    put(bytes, 32 + 64 + 16, 61);
    assert_eq!(lifetimes::counters(at), None, "no counter has three bytes");
    write(bytes, &["sun.rt.safepoints", "java.cls.unloadedClasses2"]);
    assert_eq!(lifetimes::counters(at), None, "one is missing");
    write(bytes, &["sun.rt.safepoints", "java.cls.unloadedClasses"]);
    bytes[0] = 0;
    assert_eq!(lifetimes::counters(at), None, "no magic");
    assert_eq!(lifetimes::counters(8), None, "it can't be read");
    let mut random = Random(5);
    let mut found = 0;
    for _ in 0..20_000 {
        write(bytes, &["sun.rt.safepoints", "java.cls.unloadedClasses"]);
        for _ in 0..random.below(3) {
            let (at, v) = (4 * random.below(40) as usize, random.next());
            put(bytes, at, if random.one_in(2) { v as u32 } else { v as u32 % 200 });
        }
        found += usize::from(lifetimes::counters(at).is_some());
    }
    println!("exercised: both found {found} times of 20000");
    assert!((1_000..19_000).contains(&found));
}
