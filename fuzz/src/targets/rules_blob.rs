//! Compiled rules, as the tracker reads them from a file of the cache.

use plimsoll_segment::rules::{FrameRule, RuleTarget, Rules, decide};

pub fn run(bytes: &[u8]) {
    let Some(rules) = Rules::parse(bytes) else { return };
    for category in 0..rules.categories().min(256) {
        rules.category_name(category);
    }
    let id = bytes.get(bytes.len().saturating_sub(20)..).unwrap_or_default();
    for (path, id) in [(&b"/usr/lib/libjvm.so"[..], id), (b"libz.so.1", b""), (b"", b"\x01\x02")] {
        let module = rules.module(path, id);
        for at in [0, 1, 0x1000, u64::from(u32::MAX), u64::MAX] {
            if let RuleTarget::Category(category) = module.lookup(at) {
                assert!(category < rules.categories(), "a category that isn't there");
            }
        }
        rules.classify([(module, 0x1000), (module, 0x2000), (module, u64::MAX)]);
        rules.ranges(id).into_iter().flatten().for_each(drop);
    }
    let frames = [RuleTarget::Weak(0), RuleTarget::Through, RuleTarget::None];
    let frames = frames.map(|symbol| FrameRule { object: 1, symbol, whole: RuleTarget::None });
    decide(frames, |weak, outer| rules.weak(weak, outer));
}
