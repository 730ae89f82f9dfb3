//! Where options of a VM belong in a command line.
//!
//! ```text
//! java -Xms1g -cp a.jar:b.jar  ▲  com.example.Main serve
//! java @options -Dkey=value    ▲  -jar shop.jar serve
//! ```
//! The launcher takes the last of two contradicting options. So the options of a remedy come after the user's own ones,
//! and before the main class, `-jar` or `-m`.

use std::ffi::{OsStr, OsString};

/// Options whose value is the next argument (`java --help`; `--name=value` is one argument).
pub const WITH_VALUE: [&str; 16] = [
    "-cp",
    "-classpath",
    "--class-path",
    "-p",
    "--module-path",
    "--upgrade-module-path",
    "--add-modules",
    "--limit-modules",
    "--add-reads",
    "--add-exports",
    "--add-opens",
    "--patch-module",
    "--enable-native-access",
    "--describe-module",
    "-d",
    "--source",
];

/// Whether the command starts a VM itself. A script that starts one does not count.
pub fn is_java(command: &[OsString]) -> bool {
    let program = command.first().map(OsString::as_os_str).unwrap_or_default().as_encoded_bytes();
    program.rsplit(|byte| *byte == b'/').next() == Some(b"java")
}

/// The command with these options in front of the main class.
pub(crate) fn with_options(command: &[OsString], options: &[String]) -> Vec<OsString> {
    let mut at = 1;
    while let Some(argument) = command.get(at).map(OsString::as_os_str) {
        let is = |list: &[&str]| list.iter().any(|one| argument == OsStr::new(one));
        let first = argument.as_encoded_bytes().first();
        if is(&["-jar", "-m", "--module"]) || !matches!(first, Some(b'-' | b'@')) {
            break;
        }
        at += if is(&WITH_VALUE) { 2 } else { 1 };
    }
    let at = at.min(command.len());
    let options = options.iter().map(OsString::from);
    command[..at].iter().cloned().chain(options).chain(command[at..].iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        let command: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let with = with_options(&command, &["-XX:+X".to_owned()]);
        with.iter().map(|word| word.to_str().expect("UTF-8")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn options_come_after_those_of_the_user() {
        assert_eq!(shown("java -Xms1g -cp a.jar Main -x"), "java -Xms1g -cp a.jar -XX:+X Main -x");
        assert_eq!(shown("/opt/jdk/bin/java -jar shop.jar serve"), "/opt/jdk/bin/java -XX:+X -jar shop.jar serve");
        assert_eq!(shown("java @o --add-opens=a/b=C -m m/M"), "java @o --add-opens=a/b=C -XX:+X -m m/M");
        assert_eq!(shown("java --add-opens a/b=C Main"), "java --add-opens a/b=C -XX:+X Main");
        assert_eq!(shown("java -version"), "java -version -XX:+X");
        assert_eq!(shown("java -cp"), "java -cp -XX:+X");
    }

    #[test]
    fn a_script_is_not_a_launcher() {
        let is = |word: &str| is_java(&[OsString::from(word)]);
        assert!(is("java") && is("/usr/bin/java") && !is("./gradlew") && !is("javac") && !is_java(&[]));
    }
}
