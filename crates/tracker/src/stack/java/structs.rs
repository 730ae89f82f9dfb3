//! Field offsets of this VM's objects, from the tables that libjvm exports for the serviceability agent.
//!
//! ```text
//! gHotSpotVMStructs ─▶ { type, field, …, static?, offset, address } … up to a null type
//! gHotSpotVMTypes   ─▶ { type, superclass, …, size }
//! gHotSpotVM…Entry…Offset, …ArrayStride: where the fields of an entry lie
//! ```
//! (hotspot, share/runtime/vmStructs.hpp.) Versions 8 to 27 have every field below, except those that are marked.
//! Versions without a marked field have it in another form.

use super::memory::{self, c_string, load};
use crate::segment::Segment;
use crate::stack::module;
use crate::sys::{elf, os};

/// The VM's own numbers. A field that this VM lacks is `NONE`.
pub const NONE: u32 = u32::MAX;

/// `Type::field` as type and field. A type's name may contain `::`, a field's doesn't.
const fn split(path: &str) -> (&[u8], &[u8]) {
    let bytes = path.as_bytes();
    let mut at = bytes.len();
    while bytes[at - 1] != b':' {
        at -= 1;
    }
    (bytes.split_at(at - 2).0, bytes.split_at(at).1)
}

macro_rules! layout {
    (offsets { $($(#[doc = $doc:literal])* $offset:ident: $($of:literal)|+;)* }
     statics { $($(#[doc = $sdoc:literal])* $static:ident: $sof:literal;)* }
     sizes { $($(#[doc = $tdoc:literal])* $size:ident: $tof:literal;)* }) => {
        /// Offsets in bytes, addresses of static fields, sizes of types.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Layout {
            $($(#[doc = $doc])* pub $offset: u32,)*
            $($(#[doc = $sdoc])* pub $static: u64,)*
            $($(#[doc = $tdoc])* pub $size: u32,)*
        }

        impl Layout {
            pub const EMPTY: Self = Self { $($offset: NONE,)* $($static: 0,)* $($size: NONE,)* };

            /// Whether a field of this type is needed.
            fn wants(kind: &[u8]) -> bool {
                $($(kind == const { split($of).0 })||+ ||)* $(kind == const { split($sof).0 })||*
            }

            fn field(&mut self, kind: &[u8], name: &[u8], offset: u64, address: u64) {
                let is = |(of, field): (&[u8], &[u8])| name == field && kind == of;
                $(if address == 0 && ($(is(const { split($of) }))||+) {
                    self.$offset = offset as u32;
                })*
                $(if address != 0 && is(const { split($sof) }) {
                    self.$static = address;
                })*
            }

            fn size(&mut self, kind: &[u8], bytes: u64) {
                $(if kind == $tof.as_bytes() {
                    self.$size = bytes as u32;
                })*
            }
        }
    };
}

layout! {
    offsets {
        array_length: "GrowableArrayBase::_len" | "GenericGrowableArray::_len";
        array_data: "GrowableArray<int>::_data";
        heap_memory: "CodeHeap::_memory";
        heap_map: "CodeHeap::_segmap";
        heap_log2: "CodeHeap::_log2_segment_size";
        space_low: "VirtualSpace::_low";
        space_high: "VirtualSpace::_high";
        space_low_boundary: "VirtualSpace::_low_boundary";
        space_high_boundary: "VirtualSpace::_high_boundary";
        used: "HeapBlock::Header::_used";
        stubs_at: "StubQueue::_stub_buffer";
        stubs_bytes: "StubQueue::_buffer_limit";
        blob_name: "CodeBlob::_name";
        /// From 23 on.
        blob_kind: "CodeBlob::_kind";
        blob_size: "CodeBlob::_size";
        /// In words.
        blob_frame: "CodeBlob::_frame_size";
        /// 9 to 22, an address.
        blob_code: "CodeBlob::_code_begin";
        /// Up to 8 and from 23 on, an offset.
        blob_code_offset: "CodeBlob::_code_offset";
        /// From 24 on: relocations, then metadata, on the C heap.
        blob_mutable: "CodeBlob::_mutable_data";
        blob_relocations: "CodeBlob::_relocation_size";
        method: "CompiledMethod::_method" | "nmethod::_method";
        compile_id: "nmethod::_compile_id";
        level: "nmethod::_comp_level";
        original_pc: "nmethod::_orig_pc_offset";
        /// From the blob's begin, or of the immutable data.
        scope_pcs: "nmethod::_scopes_pcs_offset";
        /// Up to 22: where the pcs end.
        dependencies: "nmethod::_dependencies_offset";
        /// 9 to 22, an address.
        scopes: "CompiledMethod::_scopes_data_begin";
        /// Up to 8: from the blob's begin. From 23 on: of the immutable data; where the pcs end.
        scopes_offset: "nmethod::_scopes_data_offset";
        /// From 23 on, on the C heap.
        immutable: "nmethod::_immutable_data";
        immutable_size: "nmethod::_immutable_data_size";
        /// Up to 23.
        metadata: "nmethod::_metadata_offset";
        /// 9 to 22, addresses.
        deopt: "CompiledMethod::_deopt_handler_begin";
        deopt_mh: "CompiledMethod::_deopt_mh_handler_begin";
        /// Up to 8 and from 23 on, offsets. From 26 on there is only the first.
        deopt_offset: "nmethod::_deoptimize_offset" | "nmethod::_deopt_handler_offset" | "nmethod::_deopt_handler_entry_offset";
        deopt_mh_offset: "nmethod::_deoptimize_mh_offset" | "nmethod::_deopt_mh_handler_offset";
        const_method: "Method::_constMethod";
        access: "Method::_access_flags";
        pool: "ConstMethod::_constants";
        method_flags: "ConstMethod::_flags" | "ConstMethod::_flags._flags";
        code_size: "ConstMethod::_code_size";
        name_index: "ConstMethod::_name_index";
        signature_index: "ConstMethod::_signature_index";
        holder: "ConstantPool::_pool_holder";
        pool_length: "ConstantPool::_length";
        /// From 12 on (JDK-8209138).
        source_index: "ConstantPool::_source_file_name_index";
        /// Up to 11.
        class_source_index: "InstanceKlass::_source_file_name_index";
        class_name: "Klass::_name";
        symbol_length: "Symbol::_length";
        symbol_body: "Symbol::_body";
    }
    statics {
        /// From 9 on, as are the bounds.
        heaps: "CodeCache::_heaps";
        code_low: "CodeCache::_low_bound";
        code_high: "CodeCache::_high_bound";
        /// Up to 8.
        only_heap: "CodeCache::_heap";
        interpreter: "AbstractInterpreter::_code";
        call_stub_return: "StubRoutines::_call_stub_return_address";
        major: "Abstract_VM_Version::_vm_major_version";
        /// From 22 on.
        continuation_return: "ContinuationEntry::_return_pc";
        /// The counters of jstat.
        perf_memory: "PerfMemory::_start";
    }
    sizes {
        block_header: "HeapBlock";
        pc_desc: "PcDesc";
        const_method_size: "ConstMethod";
        pool_size: "ConstantPool";
        /// From 22 on.
        continuation_size: "ContinuationEntry";
    }
}

/// In any VM, each table has fewer entries than this.
const ENTRIES: u64 = 20_000;

impl Layout {
    /// Reads the tables of the loaded libjvm. `None` if there is none, or if a field is missing that every version has.
    pub fn find() -> Option<Self> {
        let known = Segment::current().and_then(|segment| module::loaded(segment, b"libjvm.so"));
        let listed = || elf::objects_checked(os::readable).find(|o| o.name().ends_with(b"/libjvm.so"));
        let vm = known.or_else(listed)?;
        memory::trusting(vm.readable_segments(os::readable), || Self::read(vm))
    }

    fn read(vm: elf::Object) -> Option<Self> {
        let word = |name| load::<u64>(vm.symbol(name)? as u64);
        let mut layout = Self::EMPTY;

        let (at, stride) = (word(c"gHotSpotVMStructs")?, word(c"gHotSpotVMStructEntryArrayStride")?);
        let kind = word(c"gHotSpotVMStructEntryTypeNameOffset")?;
        let name = word(c"gHotSpotVMStructEntryFieldNameOffset")?;
        let fixed = word(c"gHotSpotVMStructEntryIsStaticOffset")?;
        let offset = word(c"gHotSpotVMStructEntryOffsetOffset")?;
        let address = word(c"gHotSpotVMStructEntryAddressOffset")?;
        // Entries of one type follow one another. For most types, no field is needed, and the fields' names aren't
        // read.
        let mut last = (0, None);
        for entry in (0..ENTRIES).map(|i| at.wrapping_add(i.wrapping_mul(stride))) {
            let Some(kind) = load::<u64>(entry.wrapping_add(kind)).filter(|k| *k != 0) else { break };
            if kind != last.0 {
                last = (kind, Some(c_string(kind)?).filter(|kind| Self::wants(kind)));
            }
            let Some(kind) = last.1 else { continue };
            let is_static = load::<u32>(entry.wrapping_add(fixed))? != 0;
            let address = if is_static { load::<u64>(entry.wrapping_add(address))? } else { 0 };
            layout.field(
                &kind,
                &c_string(load(entry.wrapping_add(name))?)?,
                load(entry.wrapping_add(offset))?,
                address,
            );
        }

        let (at, stride) = (word(c"gHotSpotVMTypes")?, word(c"gHotSpotVMTypeEntryArrayStride")?);
        let name = word(c"gHotSpotVMTypeEntryTypeNameOffset")?;
        let size = word(c"gHotSpotVMTypeEntrySizeOffset")?;
        for entry in (0..ENTRIES).map(|i| at.wrapping_add(i.wrapping_mul(stride))) {
            let Some(kind) = load::<u64>(entry.wrapping_add(name)).filter(|k| *k != 0) else { break };
            layout.size(&c_string(kind)?, load(entry.wrapping_add(size))?);
        }
        layout.is_whole().then_some(layout)
    }

    /// Whether this is HotSpot 25, the VM of JDK 8. JDK 25 also calls its VM 25, so the version's number doesn't
    /// distinguish them.
    pub fn is_version_8(&self) -> bool {
        self.only_heap != 0
    }

    /// Whether every field that is needed to read frames is known, in one form or the other.
    fn is_whole(&self) -> bool {
        let one = |a: u32, b: u32| (a != NONE) != (b != NONE);
        let all = [
            self.array_length,
            self.array_data,
            self.heap_memory,
            self.heap_map,
            self.heap_log2,
            self.space_low,
            self.space_high,
            self.space_low_boundary,
            self.space_high_boundary,
            self.used,
            self.stubs_at,
            self.stubs_bytes,
            self.blob_name,
            self.blob_size,
            self.blob_frame,
            self.method,
            self.compile_id,
            self.level,
            self.original_pc,
            self.scope_pcs,
            self.const_method,
            self.access,
            self.pool,
            self.method_flags,
            self.code_size,
            self.name_index,
            self.signature_index,
            self.holder,
            self.pool_length,
            self.class_name,
            self.symbol_length,
            self.symbol_body,
            self.block_header,
            self.const_method_size,
            self.pool_size,
        ];
        let heaps = [self.heaps, self.code_low, self.code_high].iter().all(|a| *a != 0);
        all.iter().all(|o| *o < 1 << 16)
            && [self.interpreter, self.call_stub_return, self.major].iter().all(|a| *a != 0)
            && heaps != self.is_version_8()
            && self.pc_desc == 16
            && one(self.source_index, self.class_source_index)
            && one(self.blob_code, self.blob_code_offset)
            && one(self.scopes, self.scopes_offset)
            && one(self.deopt, self.deopt_offset)
            && (self.metadata != NONE || (self.blob_mutable != NONE && self.blob_relocations != NONE))
    }
}

#[cfg(test)]
#[test]
fn the_last_colons_divide_a_path() {
    assert_eq!(split("HeapBlock::Header::_used"), (&b"HeapBlock::Header"[..], &b"_used"[..]));
    assert_eq!(split("ConstMethod::_flags._flags"), (&b"ConstMethod"[..], &b"_flags._flags"[..]));
    assert!(Layout::wants(b"HeapBlock::Header") && Layout::wants(b"CodeCache") && !Layout::wants(b"HeapBlock::"));
}
