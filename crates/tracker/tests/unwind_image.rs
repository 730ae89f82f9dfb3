//! Methods of native images. Compares the found prologues with the symbols of one image, and the frame sizes at every
//! byte with the `.debug_frame` of another. Compares both with synthetic code whose frames the test knows.
#![cfg(target_arch = "x86_64")]

#[path = "../../../fixtures/random.rs"]
mod random;

use std::io::Write;
use std::path::Path;
use std::process::Command;

use gimli::{BaseAddresses, CfaRule, DebugFrame, EndianSlice, LittleEndian, Register, UnwindContext, UnwindSection};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use plimsoll_tracker::stack::native_image::rule;
use plimsoll_tracker::stack::rule::{Base, SavedFp, Step};
use random::Random;

/// A native image of the kit beside the checkout (`../shared/subjects`), or one that `make native-images` built. None,
/// reported and counted as skipped, if this machine has neither: no package contains it.
fn subject(name: &str) -> Option<Vec<u8>> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Ok(built) = std::fs::read(repository.join("target/native-images").join(name)) {
        return Some(built);
    }
    let kit = |up: &str| repository.join(up).join(format!("shared/subjects/native-image/{name}.xz"));
    let Some(packed) = ["..", "../.."].map(kit).into_iter().find(|path| path.exists()) else {
        // Not eprintln!, which libtest hides for a passed test.
        let reason = "neither ../shared/subjects/native-image nor `make native-images`";
        let _ = std::io::stderr().write_all(format!("subject native-image {name}: skipped, {reason}\n").as_bytes());
        return None;
    };
    let out = Command::new("xz").arg("-dc").arg(packed).output().expect("xz");
    assert!(out.status.success());
    Some(out.stdout)
}

/// CFA as a distance from the stack pointer.
fn cfa(text: &[u8], at: usize) -> Option<i32> {
    match rule(text, at)?.step() {
        Step::Frame { cfa, .. } => {
            assert!(cfa.base == Base::Sp && cfa.deref.is_none());
            Some(cfa.offset)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_method_is_found_from_anywhere_in_it() {
    let Some(data) = subject("app") else { return };
    let file = object::File::parse(&*data).expect("an ELF file");
    let text = file.section_by_name(".text").expect("text");
    let (base, bytes) = (text.address(), text.data().expect("in the file"));
    // Java methods have a hash of 22 characters at their names' end, and are sized.
    let java = |name: &str| {
        name.rsplit('_').next().is_some_and(|hash| hash.len() == 22 && hash.chars().all(|c| c.is_ascii_alphanumeric()))
    };
    let mut random = Random(7);
    let (mut methods, mut queried) = (0, 0);
    for symbol in file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.size() > 32) {
        if !symbol.name().is_ok_and(java) {
            continue;
        }
        let start = (symbol.address() - base) as usize;
        let end = start + symbol.size() as usize;
        // Without code in front of it, only the method's own prologue can be found; its frame is largest inside.
        let own = bytes.get(start..end).expect("in the text");
        let Some(first) = (12..32).filter_map(|at| cfa(own, at)).max() else { continue };
        methods += 1;
        for _ in 0..8 {
            let at = start + 20 + random.below((end - start - 20) as u64) as usize;
            let seen = cfa(bytes, at).expect("a method");
            // After the add of the epilogue, a frame consists of the return address only.
            assert!(
                seen == first || seen == 8 || seen == 16,
                "{} + {}: {seen}, not {first}",
                symbol.address(),
                at - start
            );
            queried += 1;
        }
    }
    assert!(methods > 13_000 && queried > 100_000, "{methods} methods, {queried} places");
}

#[test]
fn frame_sizes_are_those_of_debug_frame() {
    let Some(data) = subject("appfp") else { return };
    let file = object::File::parse(&*data).expect("an ELF file");
    let text = file.section_by_name(".text").expect("text");
    let (base, bytes) = (text.address(), text.data().expect("in the file"));
    let section = file.section_by_name(".debug_frame").expect("debug info").uncompressed_data().expect("readable");
    let frames = DebugFrame::from(EndianSlice::new(&section, LittleEndian));
    let mut context = UnwindContext::new();
    let (mut addresses, mut different) = (0u64, Vec::new());
    let bases = BaseAddresses::default();
    let mut entries = frames.entries(&bases);
    while let Some(entry) = entries.next().expect("well formed") {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|_, bases, offset| frames.cie_from_offset(bases, offset)).expect("well formed");
        let mut table = fde.rows(&frames, &bases, &mut context).expect("well formed");
        while let Some(row) = table.next_row().expect("well formed") {
            let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { continue };
            // 8: no frame. There the builder's tables omit the pushed frame pointer (25.0.2: neither `push %rbp` nor
            // the pop has a row of its own).
            if *register != Register(7) || *offset == 8 {
                continue;
            }
            for pc in row.start_address()..row.end_address().min(row.start_address() + 64) {
                let at = (pc - base) as usize;
                if cfa(bytes, at) != Some(*offset as i32) {
                    different.push((pc, *offset, cfa(bytes, at)));
                }
                addresses += 1;
            }
        }
    }
    assert!(addresses > 500_000, "{addresses} places");
    let share = different.len() as f64 / addresses as f64;
    assert!(share < 0.001, "{} of {addresses}: {:x?}", different.len(), &different[..different.len().min(40)]);
}

/// Code that the test generates: methods with known frames, decoys inside them, with and without padding between them.
struct Written {
    text: Vec<u8>,
    /// For each byte: CFA − sp; `None` for padding.
    truth: Vec<Option<i32>>,
}

fn write(random: &mut Random) -> Written {
    let mut w = Written { text: Vec::new(), truth: Vec::new() };
    for _ in 0..200 {
        let most = if random.below(4) == 0 { 500 } else { 15 };
        let n = 8 * random.below(most) as i32;
        let put = |w: &mut Written, code: &[u8], cfa: i32| {
            w.text.extend_from_slice(code);
            w.truth.resize(w.text.len(), Some(cfa));
        };
        let number = |mode8: &[u8], mode32: &[u8], n: i32| -> Vec<u8> {
            match i8::try_from(n) {
                Ok(n) => [mode8, &[n as u8]].concat(),
                Err(_) => [mode32, &n.to_le_bytes()].concat(),
            }
        };
        let sub = number(&[0x48, 0x83, 0xec], &[0x48, 0x81, 0xec], n);
        let kind = random.below(3);
        let full = match kind {
            0 => {
                put(&mut w, &sub, 8);
                n + 8
            }
            1 => {
                put(&mut w, &[0x55], 8);
                put(&mut w, &sub, 16);
                n + 16
            }
            _ => {
                put(&mut w, &number(&[0x48, 0x8d, 0x5c, 0x24], &[0x48, 0x8d, 0x9c, 0x24], -n), 8);
                put(&mut w, &[0x49, 0x3b, 0x5f, 0x08, 0x0f, 0x86, 1, 2, 3, 0, 0x48, 0x8b, 0xe3], 8);
                n + 8
            }
        };
        for _ in 0..random.below(60) {
            match random.below(8) {
                // The decoy: stack space for the x87 unit, at a multiple of 16, behind an ordinary instruction. It
                // contains no call.
                0 => {
                    put(&mut w, &[0x97], full);
                    while !w.text.len().is_multiple_of(16) {
                        put(&mut w, &[0x97], full);
                    }
                    put(&mut w, &[0x48, 0x83, 0xec, 0x08], full);
                    w.truth.truncate(w.text.len() - 4);
                    w.truth.resize(w.text.len(), Some(full));
                    put(&mut w, &[0xdd, 0x04, 0x24], full);
                }
                1 => put(&mut w, &[0xe8, 1, 2, 3, 0, 0x90], full),
                _ => put(&mut w, &[0x48, 0x89, 0x44, 0x24, 0x10], full),
            }
        }
        put(&mut w, &number(&[0x48, 0x83, 0xc4], &[0x48, 0x81, 0xc4], n), full);
        if kind == 1 {
            put(&mut w, &[0x5d], 16);
        }
        if random.below(2) == 0 {
            put(&mut w, &[0x41, 0x83, 0x6f, 0x18, 0x01, 0x0f, 0x8e, 9, 9, 0, 0], 8);
        }
        put(&mut w, &[0xc3], 8);
        // A slow path at the end, behind the ret: its last instruction is a call that doesn't return.
        if random.below(2) == 0 {
            put(&mut w, &[0x48, 0x89, 0xc7, 0xe8, 1, 2, 3, 0xff], full);
        }
        let aligned = w.text.len().next_multiple_of(16);
        w.text.resize(aligned, 0xcc);
        w.truth.resize(aligned, None);
    }
    w
}

#[test]
fn written_text_is_read_back() {
    let mut random = Random(20_261_121);
    let (mut queried, mut down) = (0, 0);
    for _ in 0..50 {
        let w = write(&mut random);
        // The queries: the addresses behind calls, less one; and every instruction's start, where a signal may
        // interrupt.
        for (at, truth) in w.truth.iter().enumerate() {
            let Some(truth) = truth else { continue };
            let call = w.text[at.saturating_sub(4)] == 0xe8;
            let first = at == 0 || w.truth[at - 1].is_none();
            let ret = w.text[at] == 0xc3 && (w.truth[at] == Some(8));
            if call || first || ret {
                assert_eq!(cfa(&w.text, at), Some(*truth), "at {at}: {:x?}", &w.text[at.saturating_sub(12)..at + 4]);
                queried += 1;
                down += u32::from(ret);
            }
        }
    }
    assert!(queried > 50_000 && down > 8_000, "{queried} queried, {down} of them behind the frame");
}

#[test]
fn an_entry_point_says_where_the_frame_pointer_is() {
    // As 21.0 enters from C: sub $0x68,%rsp; mov %r14,%rax; mov %rbp,0x30(%rsp); call
    let mut text = vec![0x48, 0x83, 0xec, 0x68, 0x49, 0x8b, 0xc6, 0x48, 0x89, 0x6c, 0x24, 0x30, 0xe8, 1, 2, 3, 0];
    text.resize(64, 0x90);
    let step = rule(&text, 16).expect("a method").step();
    assert!(matches!(step, Step::Frame { fp: SavedFp::Cfa(-0x40), .. }), "{step:?}");
}

#[test]
fn any_bytes_are_answered() {
    let mut random = Random(99);
    let mut found = 0;
    for _ in 0..20_000 {
        let mut text: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
        for _ in 0..4 {
            let prologues: [&[u8]; 4] = [&[0x55], &[0x48, 0x81, 0xec], &[0x48, 0x8d, 0x9c, 0x24], &[0x49, 0x3b, 0x5f]];
            let piece = prologues[random.below(4) as usize];
            let at = random.below(200) as usize & !15;
            for (i, b) in piece.iter().enumerate() {
                if let Some(byte) = text.get_mut(at + i) {
                    *byte = *b;
                }
            }
        }
        let at = random.below(260) as usize;
        found += usize::from(rule(&text, at).is_some());
    }
    assert!(found > 50, "{found}");
}
