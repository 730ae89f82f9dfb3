//! Slow paths counted as heap chunks, and names as VMs write them.

use super::*;
use crate::profile::{ChangeKind, ProfileDiff};
use crate::random::Random;
use plimsoll_facts::units::{Avma, Bytes};

fn vm(name: &str, version: &str) -> Vm {
    Vm { name: name.into(), version: version.into(), pid: None }
}

fn taken(of: &[(u64, Option<u64>)]) -> TakenMemory {
    let mut taken = TakenMemory::default();
    of.iter().for_each(|(object, buffer)| taken.add(SlowPath { object: *object, buffer: *buffer }));
    taken
}

#[test]
fn versions_are_read_as_vms_write_them() {
    for (version, feature) in [
        ("25.0.3+9-LTS", Some(25)),
        ("17.0.8+7-jvmci-23.0-b15", Some(17)),
        ("OpenJDK 64-Bit Server VM (17.0.18+8-Debian-1deb12u1) for linux-amd64 JRE (17.0.18+8)", Some(17)),
        ("OpenJDK 64-Bit Server VM (25.0.3+9-LTS) for linux-amd64 JRE", Some(25)),
        ("", None),
        ("unknown", None),
    ] {
        assert_eq!(vm("", version).feature(), feature, "{version}");
    }
}

#[test]
fn a_slow_path_is_a_chunk_where_buffers_are_chunks() {
    const MIB: u64 = 1 << 20;
    let chunks = |vm: &Vm, of: &[(u64, Option<u64>)]| {
        let taken = taken(of);
        Rule::of(vm, &taken).map(|rule| Chunks::of_all(&rule, &taken))
    };
    let (old, newer, newest) =
        (vm("Substrate VM", "17.0.8+7"), vm("Substrate VM", "21.0.1+12"), vm("Substrate VM", "25.0.3+9-LTS"));
    // Five slow paths of small objects: about 5 MiB. A large array has its own chunk in addition.
    let five = [(32, Some(MIB)), (48, Some(MIB)), (24, Some(MIB)), (1000, Some(MIB)), (16, Some(MIB))];
    let of = chunks(&old, &[&five[..], &[(3 * MIB, Some(3 * MIB + 64))]].concat()).expect("an estimate");
    assert_eq!((of.aligned, of.aligned_size, of.own, of.own_bytes), (5, Bytes::mib(1), 1, Bytes(3 * MIB + 64)));
    assert_eq!(of.bytes(), Bytes(8 * MIB + 64));
    assert_eq!(
        of.why,
        "Substrate VM 17.0.8+7: a thread's buffer is a whole heap chunk of 1.00 MiB; buffers taken are of 1.00 MiB"
    );
    // The size excludes the header.
    let of = chunks(&newer, &[(32, Some(MIB / 2 - 72)), (32, Some(MIB / 2 - 72))]).expect("an estimate");
    assert_eq!((of.aligned, of.aligned_size), (2, Bytes::kib(512)));
    // Slices: 600 of 8 KiB are 4,800 KiB, ten chunks; objects allocated outside the buffer lie in the same chunks.
    let slices: Vec<_> = (0..600).map(|_| (32, Some(8192))).chain([(1040, None)]).collect();
    let of = chunks(&newest, &slices).expect("an estimate");
    assert_eq!((of.aligned, of.aligned_size, of.own), (10, Bytes::kib(512), 0));
    assert!(of.why.contains("slices of heap chunks of 512 KiB that threads share"), "{}", of.why);
    // Sizes take precedence over the version, and the text says so.
    let of = chunks(&newest, &five).expect("an estimate");
    assert_eq!((of.aligned, of.aligned_size), (5, Bytes::mib(1)));
    assert!(of.why.ends_with(", unlike that version's default"), "{}", of.why);
    // Without a buffer, the version decides.
    let of = chunks(&newer, &[(32, None)]).expect("an estimate");
    assert_eq!((of.aligned, of.aligned_size), (1, Bytes::kib(512)));
    assert_eq!(chunks(&vm("OpenJDK 64-Bit Server VM", "25"), &five), None);
    chunks(&newest, &[(u64::MAX, Some(u64::MAX)), (u64::MAX, None), (0, Some(u64::MAX)), (0, Some(0))])
        .expect("no panic");
}

#[test]
fn merging_equals_adding() {
    let of: Vec<(u64, Option<u64>)> =
        (0..200u64).map(|i| (i * 7919 % 300_000, (i % 3 > 0).then_some(i * 104_729 % 2_000_000))).collect();
    for at in [0, 1, 77, 199, 200] {
        let (left, right) = of.split_at(at);
        let mut merged = taken(left);
        merged.merge(&taken(right));
        assert_eq!(merged, taken(&of), "{at}");
    }
}

#[test]
fn array_classes_are_readable() {
    for (name, readable) in [
        ("[B", "byte[]"),
        ("[[J", "long[][]"),
        ("[Ljava.lang.String;", "java.lang.String[]"),
        ("[[Lorg.acme.A$B;", "org.acme.A$B[][]"),
        ("java.lang.String", "java.lang.String"),
        ("[", "[]"),
        ("", ""),
    ] {
        assert_eq!(readable_class(name), readable);
    }
}

/// Only exported C functions have names in a stripped image.
#[test]
fn a_stripped_image_names_no_java_method() {
    let mut profile = Profile::new(vec![Column::count("mapped", "call")]);
    let mut add = |kind, function: Option<&str>, address| {
        let function = function.map(str::to_owned);
        let frame = profile.frame(Frame { function, kind, address: Avma(address), ..Frame::default() });
        let stack = profile.stack(&[frame]);
        profile.add(stack, Labels::default(), &[Value::exact(1)]);
        has_java_names(&profile)
    };
    assert!(!add(FrameOrigin::Native, Some("graal_attach_thread"), 1));
    assert!(!add(FrameOrigin::Java, None, 2));
    assert!(add(FrameOrigin::Java, Some("ThreadLocalAllocation.slowPathNewArray"), 3));
}

/// Two recordings of one program: 200 samples, on average four of each of 50 stacks.
#[test]
fn samples_of_equal_programs_show_no_difference() {
    let mut dice = Random(0x5eed_0007);
    let mut recording = |weight: u64| {
        let mut of = Allocations { profile: Profile::new(columns()), ..Allocations::default() };
        for _ in 0..200 {
            let function = Some(format!("Shop.f{}", dice.below(50)));
            let frame = of.profile.frame(Frame { function, kind: FrameOrigin::Java, ..Frame::default() });
            let stack = of.profile.stack(&[frame]);
            of.profile.add(stack, Labels::default(), &of_sample(weight));
        }
        of
    };
    const MIB: u64 = 1 << 20;
    let (mut differing, mut noise) = (0, 0);
    for _ in 0..100 {
        let [before, after] = [recording(MIB), recording(MIB)].map(|of| comparable(&of));
        for column in [SAMPLED_BYTES, SAMPLES] {
            let diff = ProfileDiff::new((&before, column), (&after, column));
            let of = |kind: ChangeKind| diff.sites.iter().filter(|site| site.change == kind).count();
            noise += of(ChangeKind::Noise);
            differing += usize::from(of(ChangeKind::Noise) + of(ChangeKind::Same) < diff.sites.len());
        }
    }
    assert!(noise > 5_000 && differing <= 10, "{noise} sites of noise, {differing} of 200 differ");
    // A stack with ten times the samples is a difference.
    let (before, mut after) = (recording(MIB), recording(MIB));
    let frame = Frame { function: Some("Shop.f7".into()), kind: FrameOrigin::Java, ..Frame::default() };
    let frame = after.profile.frame(frame);
    let stack = after.profile.stack(&[frame]);
    (0..60).for_each(|_| after.profile.add(stack, Labels::default(), &of_sample(MIB)));
    let diff = ProfileDiff::new((&comparable(&before), SAMPLED_BYTES), (&comparable(&after), SAMPLED_BYTES));
    assert!(diff.sites.iter().any(|site| matches!(site.change, ChangeKind::Grew | ChangeKind::New)));
    // In a report, the samples themselves were counted.
    assert_eq!(before.profile.total()[SAMPLES], Value::exact(200));
}
