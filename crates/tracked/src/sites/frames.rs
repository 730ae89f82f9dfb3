//! Converts nodes of the segment's frames to frames of a profile: modules, names, inlined functions, Java methods.
//!
//! Each node is converted once, even if many stacks share it. First all used nodes are collected, then all their
//! addresses are resolved together, then stacks are assembled.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use plimsoll_segment::{FrameKind, FrameNodeFacts, frame_flags, sites};

use crate::books::{Books, Frame as ShortFrame, ModuleIndex};
use crate::segment::Segment;
use crate::symbols::Symbols;
use plimsoll_facts::units::{AddressRange, Avma};
use plimsoll_profiles::profile::{Frame, FrameId, FrameOrigin, Module, ModuleId, Profile};

/// A flag of [`plimsoll_segment::MethodFacts`]: a VM stub, which has no class.
const STUB: u64 = 4;

pub(crate) struct Frames<'a> {
    segment: &'a Segment,
    books: &'a Books,
    index: ModuleIndex,
    /// By node: whether it was seen, and the module of its address.
    nodes: Vec<Option<Option<usize>>>,
    wanted: BTreeMap<usize, BTreeSet<u64>>,
    modules: HashMap<usize, ModuleId>,
    /// By node: its range in `frames`, once it was converted.
    converted: Vec<Option<(u32, u32)>>,
    frames: Vec<FrameId>,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(segment: &'a Segment, books: &'a Books) -> Frames<'a> {
        Frames {
            segment,
            books,
            index: ModuleIndex::new(&books.modules),
            nodes: vec![None; segment.frames.len()],
            wanted: BTreeMap::new(),
            modules: HashMap::new(),
            converted: vec![None; segment.frames.len()],
            frames: Vec::new(),
        }
    }

    /// Registers a stack that will be needed; `seen_ns` is when it was first seen.
    pub(crate) fn note(&mut self, stack: u32, seen_ns: u64) {
        let mut at = stack as usize;
        for node in sites::stack(&self.segment.frames, stack) {
            // An earlier stack already registered the outer nodes. (If it was too deep, its outermost stay nameless.)
            if self.nodes.get(at).is_none_or(Option::is_some) {
                return;
            }
            let module = return_address(node).and_then(|address| {
                let module = self.index.at(Avma(address.0.saturating_sub(1)), seen_ns)?;
                let offset = address.0.wrapping_sub(self.books.modules[module].bias);
                self.wanted.entry(module).or_default().insert(offset);
                Some(module)
            });
            self.nodes[at] = Some(module);
            at = node.parent as usize;
        }
    }

    pub(crate) fn note_short(&mut self, frames: &[ShortFrame]) {
        for frame in frames {
            if let Some(module) = frame.module {
                self.wanted.entry(module).or_default().insert(frame.offset);
            }
        }
    }

    /// Resolves the names of all registered frames.
    pub(crate) fn name(&mut self, symbols: &mut Symbols) {
        symbols.resolve(&self.books.modules, &self.wanted);
    }

    /// The frames of a stack, innermost first.
    pub(crate) fn stack(&mut self, profile: &mut Profile, symbols: &mut Symbols, stack: u32) -> Vec<FrameId> {
        let (mut out, mut at) = (Vec::new(), stack as usize);
        let mut nodes = sites::stack(&self.segment.frames, stack);
        for node in nodes.by_ref() {
            if self.converted[at].is_none() {
                let from = self.frames.len() as u32;
                self.convert(profile, symbols, node, self.nodes[at].flatten());
                self.converted[at] = Some((from, self.frames.len() as u32));
            }
            if let Some((from, to)) = self.converted[at] {
                out.extend_from_slice(&self.frames[from as usize..to as usize]);
            }
            at = node.parent as usize;
        }
        if nodes.is_too_deep() {
            out.push(profile.frame(Frame::truncated()));
        }
        out
    }

    pub(crate) fn short(
        &mut self,
        profile: &mut Profile,
        symbols: &mut Symbols,
        frames: &[ShortFrame],
    ) -> Vec<FrameId> {
        let from = self.frames.len();
        for frame in frames {
            self.code(profile, symbols, frame.address, frame.module);
        }
        self.frames.drain(from..).collect()
    }

    fn convert(&mut self, profile: &mut Profile, symbols: &mut Symbols, node: &FrameNodeFacts, module: Option<usize>) {
        match node.kind() {
            FrameKind::Cut => {
                let frame = profile.frame(Frame::truncated());
                self.frames.push(frame);
            }
            FrameKind::Java => {
                let frame = profile.frame(self.java(node));
                self.frames.push(frame);
            }
            _ => {
                if let Some(address) = return_address(node) {
                    self.code(profile, symbols, address, module);
                }
            }
        }
    }

    /// Adds the program as the first module, even without frames: `go tool pprof` names a profile after its first
    /// module.
    pub(crate) fn program(&mut self, profile: &mut Profile) {
        let executable = &self.books.process.executable;
        if let Some(index) = self.books.modules.iter().position(|module| module.path == *executable) {
            self.module(profile, index);
        }
    }

    fn module(&mut self, profile: &mut Profile, index: usize) -> ModuleId {
        let of = &self.books.modules[index];
        *self.modules.entry(index).or_insert_with(|| {
            profile.module(Module {
                path: of.path.clone(),
                build_id: of.build_id.clone(),
                range: AddressRange::new(of.range.0, of.range.1),
                bias: of.bias,
            })
        })
    }

    fn code(&mut self, profile: &mut Profile, symbols: &mut Symbols, address: Avma, module: Option<usize>) {
        let Some(index) = module else {
            let frame = Frame { function: symbols.jit(address), address, kind: FrameOrigin::Jit, ..Frame::default() };
            let frame = profile.frame(frame);
            self.frames.push(frame);
            return;
        };
        let id = self.module(profile, index);
        let offset = address.0.wrapping_sub(self.books.modules[index].bias);
        let plain = Frame { module: Some(id), offset, address, kind: FrameOrigin::Native, ..Frame::default() };
        let Some(location) = symbols.at(index, offset) else {
            let frame = profile.frame(plain);
            self.frames.push(frame);
            return;
        };
        let last = location.functions.len().saturating_sub(1);
        for (i, location) in location.functions.iter().enumerate() {
            let frame = profile.frame(Frame {
                function: Some(location.function.to_string()),
                file: location.file.as_ref().map(|f| f.to_string()),
                line: location.line,
                kind: if location.java { FrameOrigin::Java } else { FrameOrigin::Native },
                inlined: i < last,
                ..plain.clone()
            });
            self.frames.push(frame);
        }
    }

    fn java(&self, node: &FrameNodeFacts) -> Frame {
        let unknown = Frame { kind: FrameOrigin::Java, ..Frame::default() };
        let Some((method, bci)) = node.method() else { return unknown };
        let Some(facts) = self.segment.methods.get(method) else { return unknown };
        let names = facts.names(&self.segment.names);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if facts.flags & STUB != 0 || names.class.is_empty() {
            let function = Some(text(names.name)).filter(|name| !name.is_empty());
            return Frame { function, kind: FrameOrigin::Jit, ..Frame::default() };
        }
        Frame {
            function: Some(format!("{}.{}", class(&text(names.class)), text(names.name))),
            file: Some(text(names.source)).filter(|file| !file.is_empty()),
            line: bci.and_then(|bci| names.line(bci)).map(u32::from),
            kind: FrameOrigin::Java,
            inlined: node.flags & frame_flags::INLINED != 0,
            ..Frame::default()
        }
    }
}

/// The return address of a call in this frame. If a signal interrupted the code, the instruction itself was the last
/// one executed; then one is added, because lookups use the byte before.
fn return_address(node: &FrameNodeFacts) -> Option<Avma> {
    match node.kind() {
        FrameKind::Native | FrameKind::Jit => Some(Avma(node.value)),
        FrameKind::Interrupted => Some(Avma(node.value.saturating_add(1))),
        FrameKind::Java | FrameKind::Cut => None,
    }
}

/// `java/util/zip/Inflater` → `java.util.zip.Inflater`. A hidden class's name contains an address
/// (`Shop$$Lambda+0x0000713f8c0015e8`) that differs between processes. It is removed, so that the same code is the same
/// line.
fn class(name: &str) -> String {
    let plain = name.split_once("+0x").or_else(|| name.split_once("/0x")).map_or(name, |(before, _)| before);
    plain.replace('/', ".")
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn class_names_are_as_in_the_source() {
        assert_eq!(class("java/util/zip/Inflater"), "java.util.zip.Inflater");
        assert_eq!(class("org/acme/Shop$$Lambda+0x0000713f8c0015e8"), "org.acme.Shop$$Lambda");
        assert_eq!(class("Shop$$Lambda$14/0x0000713f8c0015e8"), "Shop$$Lambda$14");
    }
}
