//! The rules against gimli's reading of the same tables, on the files of this machine.
#![cfg(target_arch = "x86_64")]

#[path = "stack/image.rs"]
mod image;
#[path = "../../../fixtures/random.rs"]
mod random;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, EvaluationResult, Expression, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindSection, UnwindTableRow, Value,
};
use image::{Module, subjects};
use plimsoll_tracker::stack::rule::{Base, SavedFp, Step};
use plimsoll_tracker::stack::{Image, Rule, rule_for};
use random::Random;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

const FP: Register = Register(6);
const SP: Register = Register(7);
const RA: Register = Register(16);

/// A machine state to try a row on. Memory is a hash of the address: any word there, always the same.
#[derive(Clone, Copy)]
struct State {
    sp: u64,
    fp: u64,
    pc: u64,
}

fn word(at: u64) -> u64 {
    (at ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// The CFA and registers that a row gives for that state. `None`: the row needs more than a rule can hold.
#[derive(PartialEq, Debug)]
enum Caller {
    Outermost,
    Frame { cfa: u64, fp: Fp },
}

#[derive(PartialEq, Debug)]
enum Fp {
    Same,
    Lost,
    At(u64),
}

fn by_rule(rule: Rule, state: State) -> Option<Caller> {
    match rule.step() {
        Step::WalkEnd => Some(Caller::Outermost),
        Step::Frame { cfa, fp } => {
            let base = if cfa.base == Base::Sp { state.sp } else { state.fp };
            let at = base.wrapping_add_signed(cfa.offset.into());
            let cfa = cfa.deref.map_or(at, |add| word(at).wrapping_add_signed(add.into()));
            let fp = match fp {
                SavedFp::Same => Fp::Same,
                SavedFp::Lost => Fp::Lost,
                SavedFp::Cfa(offset) => Fp::At(cfa.wrapping_add_signed(offset.into())),
                SavedFp::Fp(offset) => Fp::At(state.fp.wrapping_add_signed(offset.into())),
            };
            Some(Caller::Frame { cfa, fp })
        }
        _ => None,
    }
}

fn evaluate(expression: Expression<Bytes<'_>>, cfa: Option<u64>, state: State) -> Option<u64> {
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let mut evaluation = expression.evaluation(encoding);
    if let Some(cfa) = cfa {
        evaluation.set_initial_value(cfa);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = match register {
                    FP => state.fp,
                    SP => state.sp,
                    RA => state.pc,
                    _ => return None,
                };
                evaluation.resume_with_register(Value::Generic(value)).ok()?
            }
            EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                evaluation.resume_with_memory(Value::Generic(word(address))).ok()?
            }
            _ => return None,
        }
    }
    match evaluation.result().first()?.location {
        gimli::Location::Address { address } => Some(address),
        _ => None,
    }
}

fn by_gimli(row: &UnwindTableRow<usize>, section: &EhFrame<Bytes<'_>>, state: State) -> Option<Caller> {
    match row.register(RA)? {
        RegisterRule::Undefined => return Some(Caller::Outermost),
        RegisterRule::Offset(-8) => {}
        _ => return None,
    }
    if !matches!(row.register(SP), None | Some(RegisterRule::SameValue)) {
        return None;
    }
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register: SP, offset } => state.sp.wrapping_add_signed(*offset),
        CfaRule::RegisterAndOffset { register: FP, offset } => state.fp.wrapping_add_signed(*offset),
        CfaRule::RegisterAndOffset { .. } => return None,
        CfaRule::Expression(expression) => evaluate(expression.get(section).ok()?, None, state)?,
    };
    let fp = match row.register(FP) {
        None | Some(RegisterRule::SameValue) => Fp::Same,
        Some(RegisterRule::Offset(offset)) => Fp::At(cfa.wrapping_add_signed(offset)),
        Some(RegisterRule::Expression(expression)) => {
            Fp::At(evaluate(expression.get(section).ok()?, Some(cfa), state)?)
        }
        Some(_) => Fp::Lost,
    };
    Some(Caller::Frame { cfa, fp })
}

#[derive(Default, Debug)]
struct Count {
    fdes: u64,
    pcs: u64,
    sp: u64,
    fp: u64,
    deref: u64,
    saved_fp: u64,
    lost_fp: u64,
    ends: u64,
    signals: u64,
    expressions: u64,
    /// Rows that gimli reads and that a rule can't hold.
    beyond: u64,
    /// How many of 1000 addresses anywhere in the file no FDE covers.
    uncovered: u64,
}

fn compare(path: &str, module: &Module, random: &mut Random, most: usize) -> Count {
    let section = EhFrame::new(module.eh_frame_bytes(), LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(module.eh_frame.start);
    let mut context = UnwindContext::new();
    let mut count = Count::default();

    let mut ranges = Vec::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().expect("intact .eh_frame") {
        if let gimli::CieOrFde::Fde(partial) = entry {
            ranges.push(partial.parse(EhFrame::cie_from_offset).expect("intact FDE"));
        }
    }
    let stride = ranges.len().div_ceil(most);
    let memory = module.memory();
    for fde in ranges.iter().step_by(stride) {
        count.fdes += 1;
        let (first, length) = (fde.initial_address(), fde.len());
        let mut pcs = vec![first, first + length - 1];
        pcs.extend((0..6).map(|_| first + random.below(length)));
        for pc in pcs {
            let row = fde.unwind_info_for_address(&section, &bases, &mut context, pc).expect("a row");
            let state = State { sp: 0x7ffd_1234_5000 + random.below(512) * 8, fp: random.next() >> 17 << 3, pc };
            let rule = rule_for(memory, module.eh_frame_hdr, pc);
            count.pcs += 1;
            if fde.is_signal_trampoline() {
                assert_eq!(rule, Rule::SIGNAL, "{path} {pc:#x}");
                count.signals += 1;
                continue;
            }
            count.expressions += u64::from(matches!(row.cfa(), CfaRule::Expression(_)));
            let (ours, theirs) = (by_rule(rule, state), by_gimli(row, &section, state));
            match (&ours, &theirs) {
                // Neither register applies, or the formula isn't a base and an offset. Then gimli's row must be a
                // complex one too.
                (None, _) => {
                    assert_eq!(rule, Rule::UNKNOWN);
                    let plain = matches!(row.cfa(), CfaRule::RegisterAndOffset { register: SP | FP, .. });
                    assert!(theirs.is_none() || !plain, "{path} {pc:#x}: {row:?}");
                    count.beyond += 1;
                }
                (Some(Caller::Frame { cfa, fp: Fp::Lost }), Some(Caller::Frame { cfa: theirs, fp })) => {
                    assert_eq!(cfa, theirs, "{path} {pc:#x}: {rule:?} {row:?}");
                    let near = |at: u64| i16::try_from(at.wrapping_sub(*cfa) as i64).is_ok_and(|o| o != 0);
                    assert!(!matches!(fp, Fp::Same), "{path} {pc:#x}: {row:?}");
                    assert!(!matches!(fp, Fp::At(at) if near(*at)), "{path} {pc:#x}: {row:?}");
                    count.lost_fp += 1;
                }
                _ => assert_eq!(ours, theirs, "{path} {pc:#x}: {rule:?} {row:?}"),
            }
            match rule.step() {
                Step::WalkEnd => count.ends += 1,
                Step::Frame { cfa, fp } => {
                    *(if cfa.base == Base::Sp { &mut count.sp } else { &mut count.fp }) += 1;
                    count.deref += u64::from(cfa.deref.is_some());
                    count.saved_fp += u64::from(matches!(fp, SavedFp::Cfa(_) | SavedFp::Fp(_)));
                }
                _ => {}
            }
        }
    }
    count.uncovered = (0..1000)
        .filter(|_| {
            let pc = module.base + random.below(module.bytes.len() as u64);
            let covered = ranges.iter().any(|fde| fde.contains(pc));
            assert_eq!(!covered, rule_for(memory, module.eh_frame_hdr, pc) == Rule::FRAME_POINTER, "{path} {pc:#x}");
            !covered
        })
        .count() as u64;
    count
}

#[test]
fn rules_equal_gimlis_rows() {
    let mut random = Random(0x1357_9bdf);
    let mut total = Count::default();
    for (path, module) in subjects() {
        let count = compare(&path, &module, &mut random, 6000);
        println!("{path}: {count:?}");
        // ld.so's lazy binding trampolines count from rbx: few functions, but the file is small.
        assert!(count.beyond * 50 < count.pcs, "{path}: {} of {} rows beyond a rule", count.beyond, count.pcs);
        total.sp += count.sp;
        total.fp += count.fp;
        total.deref += count.deref;
        total.saved_fp += count.saved_fp;
        total.ends += count.ends;
        total.signals += count.signals;
        total.expressions += count.expressions;
        total.uncovered += count.uncovered;
        total.pcs += count.pcs;
        total.beyond += count.beyond;
        total.fdes += count.fdes;
        total.lost_fp += count.lost_fp;
    }
    println!("all: {total:?}");
    assert!(total.beyond * 500 < total.pcs, "{} of {} rows beyond a rule", total.beyond, total.pcs);
    for (what, n) in [
        ("rsp", total.sp),
        ("rbp", total.fp),
        ("saved rbp", total.saved_fp),
        ("outermost", total.ends),
        ("signal", total.signals),
        ("expression", total.expressions),
        ("dereferenced", total.deref),
        ("uncovered", total.uncovered),
    ] {
        assert!(n > 0, "no {what} row exercised");
    }
}

/// Every record is also found without the table.
#[test]
fn a_missing_table_is_searched_for_linearly() {
    let mut random = Random(77);
    let mut compared = 0;
    let (path, mut module) = subjects().into_iter().find(|(path, _)| path.ends_with("bash")).expect("bash");
    let text = module.base..module.eh_frame_hdr;
    let pcs: Vec<u64> = (0..400).map(|_| text.start + random.below(text.end - text.start)).collect();
    let with: Vec<Rule> = pcs.iter().map(|&pc| rule_for(module.memory(), module.eh_frame_hdr, pc)).collect();
    let count_encoding = (module.eh_frame_hdr - module.base) as usize + 2;
    module.bytes[count_encoding] = 0xff;
    for (pc, with) in pcs.into_iter().zip(with) {
        assert_eq!(with, rule_for(module.memory(), module.eh_frame_hdr, pc), "{path} {pc:#x}");
        compared += usize::from(with != Rule::FRAME_POINTER);
    }
    assert!(compared > 50, "only {compared} covered");
}

#[test]
fn damaged_tables_end_in_some_rule() {
    let module = subjects().remove(0).1;
    let hdr = module.eh_frame_hdr;
    let mut random = Random(4711);
    // The tables alone, so that a copy is cheap: header, table and records lie together.
    let from = hdr.min(module.eh_frame.start);
    let start = (from - module.base) as usize;
    let end = (module.eh_frame.end.max(hdr) - module.base) as usize;
    let clean = &module.bytes[start..end];
    let mut bytes = clean.to_vec();
    let text = hdr - module.base;
    let (mut changed, mut unknown, mut queried) = (0_u64, 0_u64, 0_u64);
    for _ in 0..100_000 {
        // A pc, the place of its record, and damage in it, in its CIE, in the header or anywhere.
        let pc = module.base + random.below(text);
        let before = rule_for(Image { base: from, bytes: &bytes }, hdr, pc);
        let span = match random.below(4) {
            0 => ((hdr - from) as usize, 12),
            1 => ((module.eh_frame.start - from) as usize, 64),
            _ => (0, bytes.len()),
        };
        let at: Vec<usize> = (0..1 + random.below(4))
            .map(|_| (span.0 + random.below(span.1 as u64) as usize).min(bytes.len() - 1))
            .collect();
        for &at in &at {
            bytes[at] = match random.below(3) {
                0 => 0xff,
                1 => bytes[at] ^ (1 << random.below(8)),
                _ => random.next() as u8,
            };
        }
        let keep = if random.below(50) == 0 { random.below(bytes.len() as u64) as usize } else { bytes.len() };
        let rule = rule_for(Image { base: from, bytes: &bytes[..keep] }, hdr, pc);
        queried += 1;
        changed += u64::from(rule != before);
        unknown += u64::from(rule == Rule::UNKNOWN);
        assert_eq!(Rule::from_bits(rule.to_bits()), rule);
        for &at in &at {
            bytes[at] = clean[at];
        }
    }
    println!("{queried} damaged tables: {changed} other rules, {unknown} unknown");
    assert!(changed > 1000 && unknown > 1000);

    // Random bytes only.
    for _ in 0..20_000 {
        let noise: Vec<u8> = (0..256).map(|_| random.next() as u8).collect();
        let mut noise = noise;
        noise[..4].copy_from_slice(&[1, 0x1b, 0x03, if random.below(2) == 0 { 0x3b } else { 0xff }]);
        noise[4..8].copy_from_slice(&8_i32.to_le_bytes());
        rule_for(Image { base: 0x1000, bytes: &noise }, 0x1000, 0x1000 + random.below(1 << 20));
    }
}
