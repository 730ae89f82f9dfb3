//! Class metadata: many class loaders, or simply many classes.

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Remedy, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::units::{Bytes, count, counted};

const FLOOR: Bytes = Bytes::mib(64);
const PERCENT: f64 = 20.0;
/// A server has tens to a few hundred loaders; a leak has one per redeployment, proxy or script.
const MANY_LOADERS: u64 = 1000;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let metaspace = case.vm()?.metaspace.as_ref()?;
    let resident = case.resident(LineId::Class);
    let many_loaders = metaspace.loaders.is_some_and(|loaders| loaders >= MANY_LOADERS) && resident >= Bytes::mib(32);
    if !case.matters(resident, PERCENT, FLOOR) && !many_loaders {
        return None;
    }
    let mut evidence = vec![format!("metaspace: {} occupied of {} committed", metaspace.occupied, metaspace.committed)];
    if let (Some(loaders), Some(classes)) = (metaspace.loaders, metaspace.classes) {
        evidence.push(format!("{} classes of {}", count(classes), counted(loaders, "class loader")));
    }
    let twice = Bytes::mib((metaspace.committed.0 >> 20).next_power_of_two() * 2);
    let in_force = case.flag("MaxMetaspaceSize").and_then(|value| value.parse().ok()).map(Bytes);
    let limit = in_force.is_none_or(|limit| twice < limit).then(|| {
        remedy(
            Effort::Restart,
            "limit it, so that a leak ends early, in an error that names it",
            format!("-XX:MaxMetaspaceSize={}m", twice.0 >> 20),
            "a program that needs more dies with OutOfMemoryError: Metaspace",
        )
    });
    Some(Verdict {
        id: VerdictId::ClassGrowth,
        severity: if many_loaders { Severity::Warning } else { Severity::Note },
        bytes: resident,
        summary: format!("class metadata holds {resident}: {:.0} % of RSS", resident.percent_of(case.rss())),
        evidence,
        remedies: [
            Some(by_loader(case, "see which class loaders there are, and how many classes each has")),
            limit,
            Some(remedy(
                Effort::Code,
                "reuse what generates classes: proxies, scripts, serializers",
                "keep one instance of each generator (ObjectMapper, JAXBContext, ScriptEngine, ByteBuddy type cache) for the whole program",
                "",
            )),
        ]
        .into_iter()
        .flatten()
        .collect(),
    })
}

/// From this JDK on jcmd has VM.classloaders (JDK-8203682).
const TREE_OF_LOADERS: u32 = 11;

/// Where VM.classloader_stats has the bytes of a loader's classes, and of its hidden classes in a line of their own
/// (ClassLoaderStatsClosure::print, classfile/classLoaderStats.cpp).
const BYTES: u32 = 67;

/// The commands that each VM has for its class loaders.
pub(crate) fn by_loader(case: Case<'_>, what: &str) -> Remedy {
    let pid = case.pid();
    match case.vm().and_then(|vm| vm.jdk()) {
        Some(8) => remedy(
            Effort::Now,
            what,
            format!("jcmd {pid} GC.class_histogram | grep ClassLoader"),
            "counts loaders as objects; a full collection pauses the program",
        ),
        Some(jdk) if jdk < TREE_OF_LOADERS => remedy(Effort::Now, what, format!("jcmd {pid} VM.classloader_stats"), ""),
        _ => remedy(
            Effort::Now,
            what,
            format!(
                "jcmd {pid} VM.classloaders show-classes=false fold=true\n\
                 jcmd {pid} VM.classloader_stats | sort -n -r -k1.{BYTES} | head -n 20"
            ),
            "",
        ),
    }
}
