//! What screens call a process: its command, and the runtime or allocator that it has.

use plimsoll_facts::shell::one_line;
use plimsoll_facts::snapshot::{AllocatorKind, Snapshot};
use plimsoll_trial::launcher::WITH_VALUE;

use crate::words::cut;

/// The command of the process. For a JVM, the part that names the Java program comes first.
pub fn title(snapshot: &Snapshot) -> String {
    let process = &snapshot.process;
    match process.command.is_empty() {
        true => format!("({})", process.name),
        false if snapshot.hotspot.is_some() => java_first(&process.command),
        false => one_line(&process.command),
    }
}

/// A JVM's command, reordered: first what it runs (main class, jar or module, with arguments), then the VM's own part:
/// `shop.Shop 8080   (/usr/bin/java -Xmx1g -cp …)`.
pub fn java_first(command: &[String]) -> String {
    let mut main = None;
    let mut at = 1;
    while let Some(word) = command.get(at) {
        match word.as_str() {
            "-jar" | "-m" | "--module" => {
                main = Some(at + 1);
                break;
            }
            option if WITH_VALUE.contains(&option) => at += 2,
            option if option.starts_with('-') || option.starts_with('@') => at += 1,
            _ => {
                main = Some(at);
                break;
            }
        }
    }
    match main.filter(|main| *main < command.len()) {
        Some(main) => {
            let (vm, what) = command.split_at(main);
            format!("{}   ({})", one_line(what), vm.join(" "))
        }
        // The program has its own launcher, which loads the VM: people know the process by that command.
        None => one_line(command),
    }
}

/// The runtime and its version; without one, the allocator that serves malloc.
pub fn runtime(snapshot: &Snapshot) -> Option<String> {
    if let Some(vm) = &snapshot.hotspot {
        return Some(cut(format!("HotSpot {}", vm.version).trim(), 40));
    }
    if let Some(image) = &snapshot.native_image {
        return Some(cut(format!("native image {}", image.version).trim(), 40));
    }
    let language = match snapshot.allocators.iter().find(|known| known.kind.is_runtime()) {
        Some(known) if known.kind == AllocatorKind::Go => Some("Go".to_owned()),
        Some(known) => Some(known.kind.to_string()),
        None => snapshot.pymalloc.as_ref().map(|_| "CPython".to_owned()),
    };
    let serving = snapshot.allocators.iter().find(|known| known.serves_malloc);
    let version = snapshot.glibc.as_ref().map(|glibc| glibc.version.as_str()).unwrap_or_default();
    let malloc = serving.map(|serving| match serving.kind {
        AllocatorKind::Glibc => format!("glibc {version}").trim_end().to_owned(),
        other => other.to_string(),
    });
    let both: Vec<String> = [language, malloc].into_iter().flatten().collect();
    (!both.is_empty()).then(|| cut(&both.join(", "), 40))
}
