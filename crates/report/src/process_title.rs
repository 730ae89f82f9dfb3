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
        false if snapshot.hotspot.is_some() => java_first(&process.name, &process.command),
        false => one_line(&process.command),
    }
}

/// A JVM's command, reordered: first what it runs (main class, jar or module, with arguments), then the VM's own part:
/// `shop.Shop 8080   (/usr/bin/java -Xmx1g -cp …)`. A command of another launcher stays as it is. `name`: the name of
/// the process.
pub fn java_first(name: &str, command: &[String]) -> String {
    // The arguments of jshell, of a packaged application or of a program that embeds a VM name no main class.
    if !is_java(name) && !command.first().is_some_and(|first| is_java(first.rsplit('/').next().unwrap_or(first))) {
        return one_line(command);
    }
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
        None => one_line(command),
    }
}

/// Whether a program of this name is the JDK's launcher: java, java17, java-17, but not javac.
fn is_java(program: &str) -> bool {
    program.strip_prefix("java").is_some_and(|rest| !rest.contains(|letter: char| letter.is_alphabetic()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_arguments_of_java_name_a_main_class() {
        let title = |name: &str, line: &str| {
            let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
            java_first(name, &command)
        };
        assert_eq!(title("java", "/opt/jdk/bin/java -cp x shop.Shop 80"), "shop.Shop 80   (/opt/jdk/bin/java -cp x)");
        assert_eq!(title("java-17", "java-17 -jar shop.jar"), "shop.jar   (java-17 -jar)");
        // `exec -a shop java …` and `#!/usr/bin/java --source 25`
        assert_eq!(title("java", "shop -Xmx1g shop.Shop"), "shop.Shop   (shop -Xmx1g)");
        assert_eq!(title("shop", "/usr/bin/java --source 25 ./shop"), "./shop   (/usr/bin/java --source 25)");
        for (name, line) in [
            ("jshell", "jshell --startup JAVASE notes.jsh"),
            ("javac", "/opt/jdk/bin/javac Shop.java"),
            ("shop", "/opt/shop/bin/shop --port 8080 serve"),
            ("embedding", "./embedding /opt/jdk/lib/server/libjvm.so"),
        ] {
            assert_eq!(title(name, line), line);
        }
    }
}
