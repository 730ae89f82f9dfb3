//! Reads the full names of Java threads from the VM's memory. Thread.print reports them too, but walks each thread's
//! stack in a safepoint (docs/decisions/asking-a-vm.md).
//!
//! ```text
//! ThreadsSMRSupport::_java_thread_list ─▶ ThreadsList::_length, _threads ─▶ JavaThread …
//!     _osthread ─▶ OSThread::_thread_id
//!     _threadObj ─▶ OopHandle::_obj ─▶ java.lang.Thread, whose one String is its name
//!         String: value, coder ─▶ byte[]
//! ```
//!
//! No table gives the offset of `name` in a Thread: it is the offset at which most threads refer to a String. The
//! target keeps running, so a list that changed meanwhile is read again, and an object of an unexpected class isn't
//! used.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::field_table::FieldTable;
use super::objects::{self, Encoding, words};
use plimsoll_facts::snapshot::JavaThread;
use plimsoll_facts::units::Avma;
use plimsoll_process::proc::memory::{Memory, Paged, Untouched, half_at, word_at};

/// More threads than any VM has; each costs the observer 200 bytes.
const MOST_THREADS: usize = 100_000;
const LONGEST_NAME: usize = 1024;
/// Number of threads from which the offset of the name is learnt.
const SAMPLE: usize = 16;
/// Size of a java.lang.Thread, without fields of subclasses.
const THREAD_OBJECT: usize = 192;
const TRIES: usize = 3;

/// Offsets of fields and addresses of static fields, from the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadFields {
    pub objects: objects::ObjectFields,
    pub list: u64,
    pub length: u64,
    pub threads: u64,
    pub os_thread: u64,
    pub thread_id: u64,
    pub object: u64,
    pub string: u64,
    pub layout: u64,
}

impl ThreadFields {
    /// None if the table lacks one.
    pub fn of(fields: &FieldTable) -> Option<ThreadFields> {
        const STRING: &str = "_klasses[static_cast<int>(vmClassID::String_klass_knum)]";
        Some(ThreadFields {
            objects: objects::ObjectFields::of(fields)?,
            list: fields.address("ThreadsSMRSupport", "_java_thread_list")?,
            length: fields.offset("ThreadsList", "_length")?,
            threads: fields.offset("ThreadsList", "_threads")?,
            // Up to JDK 21, a field of JavaThread.
            os_thread: fields.offset("JavaThread", "_osthread").or_else(|| fields.offset("Thread", "_osthread"))?,
            thread_id: fields.offset("OSThread", "_thread_id")?,
            object: fields.offset("JavaThread", "_threadObj")?,
            string: fields.address("vmClasses", STRING)?,
            layout: fields.offset("Klass", "_layout_helper")?,
        })
    }
}

/// None if the path ends elsewhere: then most threads would have no name.
pub fn threads(memory: &impl Memory, fields: &ThreadFields) -> Option<Vec<JavaThread>> {
    threads_by(memory, fields, &mut None)
}

/// Like `threads`, for a VM whose name field is known. The field is learnt again if most threads have no name in it.
pub(super) fn threads_by(
    memory: &impl Memory,
    fields: &ThreadFields,
    known: &mut Option<NameField>,
) -> Option<Vec<JavaThread>> {
    let encoding = Encoding::read(memory, &fields.objects)?;
    let string = memory.word(Avma(fields.string))?;
    (0..TRIES).find_map(|_| {
        let list = memory.word(Avma(fields.list))?;
        // Many candidates aren't references, so read only pages that are present.
        let untouched = Untouched::new(memory);
        let vm = Vm { memory: &Paged::new(&untouched), fields, encoding, string, known: Cell::default() };
        let (threads, field) = vm.threads(list, *known)?;
        (memory.word(Avma(fields.list)) == Some(list)).then_some(())?;
        *known = Some(field);
        Some(threads)
    })
}

struct Vm<'m, M> {
    memory: &'m M,
    fields: &'m ThreadFields,
    encoding: Encoding,
    string: u64,
    /// Class and layout of the last lookup.
    known: Cell<(u64, u32)>,
}

/// Where a Thread refers to its name: the width of the reference, and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NameField {
    width: usize,
    offset: usize,
}

impl<M: Memory> Vm<'_, M> {
    /// The threads, and the field by which most of them have a name.
    fn threads(&self, list: u64, known: Option<NameField>) -> Option<(Vec<JavaThread>, NameField)> {
        let length = self.memory.half(Avma(list.checked_add(self.fields.length)?))? as usize;
        let first = self.memory.word(Avma(list.checked_add(self.fields.threads)?))?;
        let mut pointers = vec![0; length.min(MOST_THREADS) * 8];
        self.memory.read(Avma(first), &mut pointers).then_some(())?;
        let pointers = pointers.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let objects: Vec<(u32, Vec<u8>)> = pointers.filter_map(|thread| self.object(thread)).collect();
        let named = |field: NameField| {
            let named: Vec<JavaThread> = objects
                .iter()
                .filter_map(|(tid, object)| {
                    let name = self.text(self.reference(object, field)?, field.width)?;
                    Some(JavaThread { name, tid: *tid })
                })
                .collect();
            (named.len() * 2 > length).then_some((named, field))
        };
        known
            .and_then(named)
            .or_else(|| named(self.name_field(objects.iter().take(SAMPLE).map(|(_, object)| object.as_slice()))?))
    }

    /// The kernel's id of a JavaThread, and the bytes of its Thread. None while the thread is starting.
    fn object(&self, thread: u64) -> Option<(u32, Vec<u8>)> {
        let [os_thread, handle] = words(self.memory, thread, [self.fields.os_thread, self.fields.object])?;
        let tid = self.memory.half(Avma(os_thread.checked_add(self.fields.thread_id)?))?;
        let object = self.encoding.wide(self.memory.word(Avma(handle))?);
        let mut bytes = vec![0; THREAD_OBJECT];
        (object != 0 && self.memory.read(Avma(object), &mut bytes)).then_some((tid, bytes))
    }

    fn reference(&self, object: &[u8], field: NameField) -> Option<u64> {
        match field.width {
            4 => half_at(object, field.offset).map(|narrow| self.encoding.narrow(narrow)),
            _ => word_at(object, field.offset).map(|wide| self.encoding.wide(wide)),
        }
    }

    /// The offset at which most of these objects refer to a String.
    fn name_field<'o>(&self, objects: impl Iterator<Item = &'o [u8]>) -> Option<NameField> {
        let mut found = BTreeMap::<NameField, usize>::new();
        for object in objects {
            let fields = [4, 8]
                .into_iter()
                .flat_map(|width| (8..object.len()).step_by(width).map(move |offset| NameField { width, offset }));
            for field in fields {
                if self.reference(object, field).and_then(|string| self.string(string)).is_some() {
                    *found.entry(field).or_default() += 1;
                }
            }
        }
        // If several offsets are equally frequent, take the first: a subclass's own fields lie after it.
        found.into_iter().rev().max_by_key(|(_, count)| *count).map(|(field, _)| field)
    }

    /// Reads as many bytes as possible: the whole buffer, or at least `least`. Returns their number.
    fn some(&self, at: u64, into: &mut [u8], least: usize) -> Option<usize> {
        let aligned = at != 0 && at.is_multiple_of(8);
        [into.len(), least].into_iter().find(|length| aligned && self.memory.read(Avma(at), &mut into[..*length]))
    }

    /// The String's first bytes and the length of its header. The shortest String has 24 bytes.
    fn string(&self, at: u64) -> Option<([u8; 32], usize)> {
        let mut bytes = [0; 32];
        let read = self.some(at, &mut bytes, 24)?;
        bytes[read..].fill(0);
        Some((bytes, self.encoding.header(&bytes, self.string)?))
    }

    /// The String's text. Its fields in order: hash, coder, hashIsZero, value.
    fn text(&self, at: u64, width: usize) -> Option<String> {
        let (string, header) = self.string(at)?;
        let is_utf16 = match string.get(header + 4)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let value = NameField { width, offset: (header + 8).next_multiple_of(width) };
        let bytes = self.bytes(self.reference(&string, value)?)?;
        Some(if is_utf16 {
            let units: Vec<u16> = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
            String::from_utf16_lossy(&units)
        } else {
            bytes.iter().map(|byte| char::from(*byte)).collect()
        })
    }

    /// A byte[], recognised by its class's layout: array of non-references, header, T_BYTE (klass.hpp).
    fn bytes(&self, at: u64) -> Option<Vec<u8>> {
        const ARRAY_OF_BYTES: u32 = 0xc000_0800;
        let mut start = [0; 64];
        let read = self.some(at, &mut start, 16)?;
        let header = self.encoding.classes(&start).find_map(|(class, header)| {
            let layout = self.layout(class)?;
            let data = (layout >> 16 & 0xff) as usize;
            (layout & 0xff00_ffff == ARRAY_OF_BYTES && data >= header + 4).then_some((header, data))
        });
        let (length_at, data_at) = header?;
        let length = match length_at + 4 <= read {
            true => half_at(&start, length_at)?,
            false => self.memory.half(Avma(at.checked_add(length_at as u64)?))?,
        };
        let length = (length as usize).min(LONGEST_NAME);
        if let Some(bytes) = start[..read].get(data_at..data_at + length) {
            return Some(bytes.to_vec());
        }
        let mut bytes = vec![0; length];
        self.memory.read(Avma(at.checked_add(data_at as u64)?), &mut bytes).then_some(bytes)
    }

    fn layout(&self, class: u64) -> Option<u32> {
        match self.known.get() {
            (known, layout) if known == class => Some(layout),
            _ => {
                let layout = self.memory.half(Avma(class.checked_add(self.fields.layout)?))?;
                self.known.set((class, layout));
                Some(layout)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::image::{BASE, Image};
    use super::*;
    use crate::mutated::mutated;

    const FIELDS: ThreadFields = ThreadFields {
        objects: objects::ObjectFields {
            oop_base: BASE,
            oop_shift: BASE + 8,
            klass_base: BASE + 16,
            klass_shift: BASE + 24,
            z_globals: BASE + 32,
            z_load_shift: 24,
        },
        list: BASE + 40,
        length: 4,
        threads: 16,
        os_thread: 8,
        thread_id: 12,
        object: 40,
        string: BASE + 48,
        layout: 8,
    };
    const STRING: u64 = BASE + 0x180;
    const ARRAY: u64 = BASE + 0x190;
    const COMPACT: u32 = 42;
    const LIST: u64 = BASE + 0x140;
    const THREADS: u64 = BASE + 0x200;
    const EACH: u64 = 0x300;

    /// A way in which a VM may lay out its objects.
    #[derive(Clone, Copy, Debug)]
    struct Form {
        header: usize,
        narrow: bool,
        coloured: bool,
    }

    const FORMS: [Form; 6] = [
        Form { header: 12, narrow: true, coloured: false },
        Form { header: 8, narrow: true, coloured: false },
        Form { header: 12, narrow: false, coloured: false },
        Form { header: 16, narrow: false, coloured: false },
        Form { header: 12, narrow: false, coloured: true },
        Form { header: 8, narrow: false, coloured: true },
    ];

    struct Written(Vec<u8>, Form);

    impl Written {
        fn put(&mut self, at: u64, bytes: &[u8]) {
            self.0[(at - BASE) as usize..][..bytes.len()].copy_from_slice(bytes);
        }

        fn word(&mut self, at: u64, word: u64) {
            self.put(at, &word.to_le_bytes());
        }

        fn wide(&self, object: u64) -> u64 {
            if self.1.coloured { object << 15 | 1 << 14 | 0x555 } else { object }
        }

        fn refer(&mut self, at: u64, to: u64) {
            match self.1.narrow {
                true => self.put(at, &((to / 8) as u32).to_le_bytes()),
                false => self.word(at, self.wide(to)),
            }
        }

        fn class(&mut self, object: u64, class: u64) {
            match self.1.header {
                8 => self.word(object, (class - BASE) << COMPACT | 1),
                12 => self.put(object + 8, &((class - BASE) as u32).to_le_bytes()),
                _ => self.word(object + 8, class),
            }
        }
    }

    /// A list of threads with these names in this form. Each also refers to another String, after that of its name.
    fn image(form: Form, names: &[&str]) -> Vec<u8> {
        let mut vm = Written(vec![0; 0x200 + names.len() * EACH as usize], form);
        vm.put(BASE + 8, &3u32.to_le_bytes());
        vm.word(BASE + 16, BASE);
        vm.word(BASE + 32, BASE + 0x100);
        vm.word(BASE + 0x100 + 24, BASE + 0x120);
        vm.word(BASE + 0x120, if form.coloured { 15 } else { 0 });
        vm.word(BASE + 40, LIST);
        vm.put(LIST + 4, &(names.len() as u32).to_le_bytes());
        vm.word(LIST + 16, BASE + 0x1c0);
        vm.word(BASE + 48, STRING);
        let data = if form.header == 16 { 24 } else { form.header + 4 };
        vm.put(ARRAY + 8, &(0xc000_0800 | (data as u32) << 16).to_le_bytes());
        for (n, name) in names.iter().enumerate() {
            let at = THREADS + n as u64 * EACH;
            vm.word(BASE + 0x1c0 + n as u64 * 8, at);
            vm.word(at + 8, at + 0x40);
            vm.put(at + 0x40 + 12, &(1000 + n as u32).to_le_bytes());
            vm.word(at + 40, at + 0x80);
            vm.word(at + 0x80, vm.wide(at + 0x100));
            for (field, string) in [(24, at + 0x1c0), (48, at + 0x240)].into_iter().take(1 + n % 2) {
                vm.refer(at + 0x100 + field, string);
                vm.class(string, STRING);
                let wide: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
                let (coder, bytes) = if name.is_ascii() { (0, name.as_bytes()) } else { (1, wide.as_slice()) };
                vm.put(string + form.header as u64 + 4, &[coder]);
                let width = if form.narrow { 4 } else { 8 };
                vm.refer(string + (form.header + 8).next_multiple_of(width) as u64, string + 0x40);
                vm.class(string + 0x40, ARRAY);
                vm.put(string + 0x40 + form.header as u64, &(bytes.len() as u32).to_le_bytes());
                vm.put(string + 0x40 + data as u64, bytes);
            }
        }
        vm.0
    }

    const NAMES: [&str; 4] = ["main", "lettuce-nioEventLoop-4-1", "Straße №7 \"пул\"", ""];

    #[test]
    fn names_in_each_form_of_references_and_headers() {
        for form in FORMS {
            let threads = threads(&Image(image(form, &NAMES)), &FIELDS).unwrap_or_default();
            let named: Vec<_> = threads.iter().map(|thread| (thread.tid, thread.name.as_str())).collect();
            let expected: Vec<_> = (1000..).zip(NAMES).collect();
            assert_eq!(named, expected, "{form:?}");
        }
        assert_eq!(threads(&Image(Vec::new()), &FIELDS), None);
        assert_eq!(threads(&Image(vec![0; 0x4000]), &FIELDS), None);
    }

    #[test]
    fn a_known_field_is_used_as_long_as_most_threads_have_a_name_in_it() {
        for form in FORMS {
            let mut known = None;
            let mut read = |bytes: Vec<u8>| {
                let named = threads_by(&Image(bytes), &FIELDS, &mut known).unwrap_or_default();
                (named.into_iter().map(|thread| thread.name).collect::<Vec<_>>(), known)
            };
            let (names, learnt) = read(image(form, &NAMES));
            assert_eq!((names, learnt.is_some()), (NAMES.map(str::to_owned).to_vec(), true), "{form:?}");
            // By its names alone, the one thread could have either of two fields.
            assert_eq!(read(image(form, &["renamed"])), (vec!["renamed".to_owned()], learnt), "{form:?}");
            assert_eq!(read(Vec::new()), (Vec::new(), learnt), "{form:?}");
            let mut wrong = Some(NameField { width: 8, offset: 8 });
            let named = threads_by(&Image(image(form, &NAMES)), &FIELDS, &mut wrong);
            assert_eq!((named.map(|named| named.len()), wrong), (Some(NAMES.len()), learnt), "{form:?}");
        }
    }

    #[test]
    fn mutated_memory_never_panics() {
        let (mut whole, mut others) = (0, 0);
        for form in FORMS {
            for bytes in mutated(&image(form, &NAMES), 3000) {
                let named = threads(&Image(bytes), &FIELDS).map_or(0, |threads| threads.len());
                *(if named == NAMES.len() { &mut whole } else { &mut others }) += 1;
            }
        }
        assert!(whole > 1000 && others > 1000, "{whole} {others}");
    }
}
