//! What a JVM's recording says about the VM itself, once per chunk: jdk.JVMInformation, jdk.GCConfiguration,
//! jdk.GCHeapConfiguration.

use plimsoll_facts::snapshot::jdk_of;
use plimsoll_facts::units::Bytes;
use plimsoll_jfr::reader::Event;

pub(super) const EVENTS: [&str; 2] = ["jdk.GCConfiguration", "jdk.GCHeapConfiguration"];

#[derive(Clone, Debug, Default)]
pub(super) struct RecordedVm {
    /// The JDK's feature version.
    pub jdk: Option<u32>,
    /// As the VM names it elsewhere: `G1`, `Serial`, `Parallel`, `Z`, `Shenandoah`.
    pub collector: Option<&'static str>,
    /// MinHeapSize, InitialHeapSize, MaxHeapSize.
    pub min: Option<Bytes>,
    pub initial: Option<Bytes>,
    pub max: Option<Bytes>,
}

impl RecordedVm {
    pub(super) fn enter(&mut self, event: &Event<'_>) {
        let size = |name: &str| event.u64(name).filter(|size| *size > 0).map(Bytes);
        match event.name() {
            "jdk.GCConfiguration" => self.collector = collector(&event.string("oldCollector").unwrap_or_default()),
            "jdk.GCHeapConfiguration" => {
                (self.min, self.initial, self.max) = (size("minSize"), size("initialSize"), size("maxSize"));
            }
            _ => self.jdk = jdk(&event.string("jvmVersion").unwrap_or_default()),
        }
    }
}

/// `OpenJDK 64-Bit Server VM (25.0.1+8-LTS) for linux-amd64 JRE (25.0.1+8-LTS), built on …`; of JDK 8
/// `… VM (25.402-b06) for linux-amd64 JRE (1.8.0_402-b06), …`.
fn jdk(version: &str) -> Option<u32> {
    jdk_of(version.split_once('(').map_or(version, |(_, rest)| rest.split(')').next().unwrap_or_default()))
}

/// The names of jdk.types.GCName (gcName.hpp) for collectors of the old generation, and of heaps without one.
fn collector(old: &str) -> Option<&'static str> {
    const MARKS: [(&str, &str); 5] =
        [("G1", "G1"), ("Serial", "Serial"), ("Parallel", "Parallel"), ("Z", "Z"), ("Shenandoah", "Shenandoah")];
    MARKS.iter().find(|(mark, _)| old.starts_with(mark)).map(|(_, name)| *name)
}
