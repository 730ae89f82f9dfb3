//! Inserts options of a VM into a command line.
//!
//! ```text
//! java -Xms1g -cp a.jar:b.jar  ▲  com.example.Main serve
//! java @options -Dkey=value    ▲  -jar shop.jar serve
//! java -cp @classpath          ▲  @main serve             the file `main` begins with the main class
//! java -Dkey=value       -Xms1g ▲ com.example.Main serve  in place of @all, a file with `-Xms1g com.example.Main`
//! ```
//! The launcher takes the last of two contradicting options. So the options of a remedy come after the user's own ones,
//! and before the main class, `-jar`, `-m` or `--module=`. Behind these, they would be arguments of the Java program.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

mod argument_file;

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

/// A longer argument can't be passed to a program (MAX_ARG_STRLEN, execve(2)).
const LONGEST: usize = (128 << 10) - 1;

/// How the launcher interprets the next word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// An option, or the main class.
    Option,
    /// The value of the option before it.
    Value,
    /// A jar or a module.
    Main,
}

/// What the launcher knows after some words (`checkArg` and `JLI_PreprocessArg` in the JDK's libjli/args.c).
struct Launcher {
    next: Next,
    /// `@file` stands for the words of a file.
    expands: bool,
    has_main: bool,
}

impl Launcher {
    fn take(&mut self, word: &[u8]) {
        let is = |list: &[&str]| list.iter().any(|one| one.as_bytes() == word);
        let is_option = word.starts_with(b"-") && !word.starts_with(b"--module=");
        self.expands &= word != b"--disable-@files";
        self.next = match self.next {
            Next::Value => Next::Option,
            _ if is(&["-jar", "-m", "--module"]) => Next::Main,
            _ if is(&WITH_VALUE) => Next::Value,
            Next::Option if is_option => Next::Option,
            Next::Option | Next::Main => {
                self.has_main = true;
                Next::Option
            }
        };
    }

    /// The argument file that the word names. `@@name` is the word `@name`.
    fn argument_file<'w>(&self, word: &'w OsStr) -> Option<&'w Path> {
        let name = word.as_bytes().strip_prefix(b"@")?;
        let is_file = self.expands && name.first().is_some_and(|first| *first != b'@');
        is_file.then(|| Path::new(OsStr::from_bytes(name)))
    }

    /// Takes the words of an argument file. If it has options and then the main class, returns its words with `options`
    /// between them: before the file, `options` would come before those of the file.
    fn take_file(&mut self, text: &[u8], options: &[OsString]) -> Option<Vec<OsString>> {
        let (mut words, mut between) = (Vec::new(), 0);
        for word in argument_file::words(text) {
            if !self.has_main && self.next == Next::Option {
                between = words.len();
            }
            // A file in a file isn't expanded, and neither is what follows the main class.
            let is_escaped = !self.has_main && self.expands && word.starts_with(b"@");
            if !self.has_main {
                self.take(&word);
            }
            words.push(OsString::from_vec(if is_escaped { [&b"@"[..], &word].concat() } else { word }));
        }
        let has_option = words[..between].iter().any(|word| word.as_bytes().starts_with(b"-"));
        let can_be_passed = words.iter().all(|word| word.len() <= LONGEST);
        (self.has_main && has_option && can_be_passed).then(|| spliced(&words, between..between, options))
    }
}

/// The command with these options in front of the main class. `read` returns the contents of an argument file.
pub(crate) fn with_options(
    command: &[OsString],
    options: &[String],
    read: impl Fn(&Path) -> Option<Vec<u8>>,
) -> Vec<OsString> {
    let options: Vec<OsString> = options.iter().map(OsString::from).collect();
    let mut launcher = Launcher { next: Next::Option, expands: true, has_main: false };
    // The last word before which an option may stand, and the first such word that is a file that can't be read.
    let (mut between, mut unread) = (1, None);
    for (at, word) in command.iter().enumerate().skip(1) {
        if launcher.next == Next::Option {
            between = at;
        }
        match launcher.argument_file(word).map(&read) {
            None => launcher.take(word.as_bytes()),
            Some(Some(text)) => {
                if let Some(words) = launcher.take_file(&text, &options) {
                    return spliced(command, at..at + 1, &words);
                }
            }
            Some(None) => {
                unread = unread.or((launcher.next == Next::Option).then_some(at));
                launcher.has_main = launcher.next == Next::Main;
                launcher.next = Next::Option;
            }
        }
        if launcher.has_main {
            return spliced(command, between..between, &options);
        }
    }
    // Without a main class, the unread file has it.
    let end = if launcher.next == Next::Main { between } else { unread.unwrap_or(command.len()) };
    spliced(command, end..end, &options)
}

/// The words with others in place of those in the range.
fn spliced(all: &[OsString], range: Range<usize>, others: &[OsString]) -> Vec<OsString> {
    [&all[..range.start], others, &all[range.end..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the text of argument files, by their names. Others can't be read.
    fn with_files(line: &str, files: &[(&str, &str)]) -> String {
        let command: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| path == Path::new(name));
            found.map(|(_, text)| text.as_bytes().to_vec())
        };
        let with = with_options(&command, &["-XX:+X".to_owned()], read);
        with.iter().map(|word| word.to_str().expect("UTF-8")).collect::<Vec<_>>().join(" ")
    }

    fn shown(line: &str) -> String {
        with_files(line, &[])
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
    fn options_come_before_a_module_and_its_arguments() {
        assert_eq!(shown("java -p mods --module=shop/Main serve"), "java -p mods -XX:+X --module=shop/Main serve");
        assert_eq!(shown("java -p mods --module shop/Main serve"), "java -p mods -XX:+X --module shop/Main serve");
    }

    /// Jib's entrypoint, and files with options and the main class.
    #[test]
    fn options_come_before_the_main_class_in_a_file() {
        let files = [
            ("cp", "/app/classes:/app/libs/*"),
            ("main", "shop.Main\n"),
            ("jar", "-jar shop.jar"),
            ("all", "-Xmx1g -cp \"a b.jar\"\nshop.Main serve @x\n"),
            ("classes", "a.jar shop.Main"),
            ("options", "-Xmx1g\n# shop.Main\n"),
            ("value", "-cp"),
            ("odd", "-cp @x shop.Main @y"),
        ];
        let of = |line: &str| with_files(line, &files);
        assert_eq!(of("java -cp @cp @main serve"), "java -cp @cp -XX:+X @main serve");
        assert_eq!(of("java -Da=b @jar serve"), "java -Da=b -XX:+X @jar serve");
        assert_eq!(of("java -jar @main serve"), "java -XX:+X -jar @main serve");
        assert_eq!(of("java @options shop.Main @main"), "java @options -XX:+X shop.Main @main");
        assert_eq!(of("java @value a.jar shop.Main"), "java @value a.jar -XX:+X shop.Main");
        assert_eq!(of("java -cp @classes serve"), "java -XX:+X -cp @classes serve");
        // Before the file, the option would come before those of the file.
        assert_eq!(of("java -Da=b @all serve"), "java -Da=b -Xmx1g -cp a b.jar -XX:+X shop.Main serve @x serve");
        assert_eq!(of("java @odd"), "java -cp @@x -XX:+X shop.Main @y");
        assert_eq!(of("java --disable-@files @main serve"), "java --disable-@files -XX:+X @main serve");
        assert_eq!(of("java -Da=b @@main serve"), "java -Da=b -XX:+X @@main serve");
        // A file that can't be read must have options if a main class follows, else the main class.
        assert_eq!(of("java @gone Main"), "java @gone -XX:+X Main");
        assert_eq!(of("java -cp @gone @gone2"), "java -cp @gone -XX:+X @gone2");
        assert_eq!(of("java -jar @gone serve"), "java -XX:+X -jar @gone serve");
        let long = format!("-cp {} Main", "x".repeat(LONGEST + 1));
        assert_eq!(with_files("java @long", &[("long", &long)]), "java -XX:+X @long");
    }

    #[test]
    fn a_script_is_not_a_launcher() {
        let is = |word: &str| is_java(&[OsString::from(word)]);
        assert!(is("java") && is("/usr/bin/java") && !is("./gradlew") && !is("javac") && !is_java(&[]));
    }
}
