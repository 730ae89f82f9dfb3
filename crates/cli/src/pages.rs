//! Man pages and completions, made from the table of options. `make dist` runs the test that writes them: so the
//! program carries neither them nor the crates that make them.
//!
//! ```text
//! PLIMSOLL_PAGES=DIR cargo test -p plimsoll --bins -- --exact pages::tests::they_are_written
//!     DIR/man1/plimsoll.1, DIR/man1/plimsoll-VERB.1
//!     DIR/completions/plimsoll.bash, _plimsoll, plimsoll.fish
//! ```

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::exit::Exit;
use crate::{Cli, examples};

/// Path below the folder of the pages, and text.
type Page = (String, String);

/// The table of options. Its version is the package's: that of the program may contain a commit (`make dist`).
fn table() -> Command {
    Cli::command().version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true)
}

fn all() -> Vec<Page> {
    let mut program = table();
    program.build();
    let mut pages = vec![(String::from("man1/plimsoll.1"), of_program(&program))];
    for verb in program.get_subcommands() {
        pages.push((format!("man1/plimsoll-{}.1", verb.get_name()), of_verb(&program, verb)));
    }
    for (shell, name) in [(Shell::Bash, "plimsoll.bash"), (Shell::Zsh, "_plimsoll"), (Shell::Fish, "plimsoll.fish")] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut table(), "plimsoll", &mut text);
        pages.push((format!("completions/{name}"), utf8(text)));
    }
    pages
}

fn utf8(text: Vec<u8>) -> String {
    String::from_utf8(text).expect("pages are UTF-8")
}

type Part = fn(&Man, &mut dyn std::io::Write) -> std::io::Result<()>;

fn parts(man: &Man, parts: &[Part]) -> String {
    let mut text = Vec::new();
    for part in parts {
        part(man, &mut text).expect("a vector takes all");
    }
    utf8(text)
}

fn man(command: &Command) -> Man {
    let source = format!("plimsoll {}", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone().subcommand_help_heading("COMMANDS")).source(source).manual("User Commands")
}

fn of_program(program: &Command) -> String {
    let head: &[Part] = &[Man::render_title, Man::render_name_section, Man::render_synopsis_section];
    let head = parts(&man(program), head);
    let rest: &[Part] =
        &[Man::render_description_section, Man::render_options_section, Man::render_subcommands_section];
    let rest = parts(&man(program), rest);
    let verbs = program.get_subcommands().map(|verb| format!("plimsoll-{}", verb.get_name()));
    let mut end = Roff::new();
    exit_statuses(&mut end);
    environment(&mut end);
    see_also(&mut end, &verbs.collect::<Vec<_>>());
    head + &rest + &end.to_roff()
}

fn of_verb(program: &Command, verb: &Command) -> String {
    let head: &[Part] = &[
        Man::render_title,
        Man::render_name_section,
        Man::render_synopsis_section,
        Man::render_description_section,
        Man::render_options_section,
    ];
    let usage = verb.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let head = parts(&man(&verb.clone().override_usage(usage)), head);
    let mut end = Roff::new();
    let (_, given) = examples::ALL.iter().find(|(name, _)| *name == verb.get_name()).expect("each verb has examples");
    end.control("SH", ["EXAMPLES"]);
    for (command, does) in *given {
        end.control("TP", []);
        end.text([bold(*command)]);
        end.text([roman(*does)]);
    }
    exit_statuses(&mut end);
    let others = program.get_subcommands().filter(|other| other.get_name() != verb.get_name());
    let others = others.map(|other| format!("plimsoll-{}", other.get_name()));
    see_also(&mut end, &["plimsoll".to_owned()].into_iter().chain(others).collect::<Vec<_>>());
    head + &end.to_roff()
}

fn exit_statuses(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in Exit::ALL {
        roff.control("TP", []);
        roff.text([bold(code.to_string())]);
        roff.text([roman(meaning.replace('`', ""))]);
    }
}

/// The variables that concern every command. docs/options.md has those of the tracker.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("PLIMSOLL_DIR", "Directory of the segments, the files with the books of tracked processes."),
    ("XDG_CACHE_HOME", "Its directory plimsoll has the unpacked tracker, compiled rules and names of symbols."),
    ("XDG_STATE_HOME", "Its directory plimsoll/history has the recordings of serve --keep. Not used by root."),
    ("PLIMSOLL_HOST", "Name of the machine in what serve --otlp and --pyroscope send, in place of the kernel's."),
    ("NO_COLOR", "If set and not empty, no colours are used, unless --color always is given."),
    ("PAGER", "Command that shows text higher than the terminal, in place of less. Not used by root."),
    ("COLUMNS", "Width of the text, in place of the terminal's."),
];

fn environment(roff: &mut Roff) {
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, meaning) in ENVIRONMENT {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*meaning)]);
    }
}

fn see_also(roff: &mut Roff, pages: &[String]) {
    roff.control("SH", ["SEE ALSO"]);
    let all = pages.iter().enumerate().flat_map(|(i, page)| {
        let comma = if i + 1 < pages.len() { "(1), " } else { "(1)" };
        [bold(page.as_str()), roman(comma)]
    });
    roff.text(all.collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::{env, fs};

    use clap::Parser;

    use super::*;

    /// A folder with all pages, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn written(name: &str) -> Folder {
            let folder = env::temp_dir().join(format!("plimsoll-pages-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            write(&folder);
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn write(folder: &Path) {
        for (name, text) in all() {
            let file = folder.join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        }
    }

    fn printed(command: &mut Command) -> (String, String) {
        let output = command.stdin(Stdio::null()).output().expect("the program is installed");
        assert!(output.status.success(), "{command:?}: {output:?}");
        (utf8(output.stdout), utf8(output.stderr))
    }

    /// `make dist` calls this test with PLIMSOLL_PAGES.
    #[test]
    fn they_are_written() {
        if let Some(folder) = env::var_os("PLIMSOLL_PAGES") {
            write(Path::new(&folder));
        }
        let names: Vec<String> = all().into_iter().map(|(name, _)| name).collect();
        let verbs: Vec<String> = table().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        assert!(verbs.len() >= 13 && verbs.iter().all(|verb| names.contains(&format!("man1/plimsoll-{verb}.1"))));
        assert_eq!(names.len(), verbs.len() + 4, "{names:?}");
    }

    #[test]
    fn each_command_has_examples_that_the_table_of_options_accepts() {
        for verb in table().get_subcommands() {
            let (_, given) = examples::ALL.iter().find(|(name, _)| *name == verb.get_name()).expect("examples");
            for (command, does) in *given {
                let words = plimsoll_trial::remedy::words(command).expect("balanced quotes");
                assert!(!does.is_empty() && words[0] == "plimsoll", "{command}");
                if let Err(error) = Cli::try_parse_from(&words) {
                    panic!("{command}: {error}");
                }
            }
            assert!(given.iter().any(|(command, _)| command.starts_with(&format!("plimsoll {}", verb.get_name()))));
        }
    }

    #[test]
    fn man_pages_are_formatted_without_a_warning_and_have_every_option() {
        let folder = Folder::written("man");
        let mut options = 0;
        let mut program = table();
        program.build();
        for verb in program.get_subcommands() {
            let file = folder.0.join(format!("man1/plimsoll-{}.1", verb.get_name()));
            let (page, warnings) = printed(
                Command::new("groff").args(["-man", "-Kutf8", "-Tutf8", "-P-cbou", "-ww", "-rLL=200n"]).arg(&file),
            );
            assert_eq!(warnings, "", "{}", file.display());
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"] {
                assert!(page.lines().any(|line| line.trim_end() == section), "{}: {section}:\n{page}", file.display());
            }
            for long in verb.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(|of| of.get_long()) {
                assert!(page.contains(&format!("--{long}")), "{}: --{long}:\n{page}", file.display());
                options += 1;
            }
        }
        assert!(options > 80, "only {options} options");
        let (page, warnings) = printed(
            Command::new("groff")
                .args(["-man", "-Kutf8", "-Tutf8", "-P-cbou", "-ww"])
                .arg(folder.0.join("man1/plimsoll.1")),
        );
        assert_eq!(warnings, "");
        assert!(page.contains("plimsoll-explain(1)") && page.contains("127"), "{page}");
    }

    /// Users of the program may not have its sources.
    #[test]
    fn no_help_names_a_page_of_the_sources() {
        for verb in table().get_subcommands() {
            let help = verb.clone().render_long_help().to_string();
            assert!(!help.contains("docs/") && !help.contains(".md"), "{help}");
        }
    }

    #[test]
    fn the_synopsis_is_the_usage_of_the_help() {
        let try_ = all().into_iter().find(|(name, _)| name == "man1/plimsoll-try.1").expect("a page").1;
        assert!(try_.contains("[OPTIONS] \\-\\- <CMD>..."), "{try_}");
    }

    #[test]
    fn bash_completes_commands_options_and_values() {
        let folder = Folder::written("bash");
        let script = folder.0.join("completions/plimsoll.bash");
        let complete = |words: &[&str]| {
            let complete = r#"
                source "$1"; shift
                COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
                _plimsoll "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
                printf '%s\n' "${COMPREPLY[@]}""#;
            let (replies, errors) = printed(
                Command::new("bash").args(["-c", complete, "bash"]).arg(&script).args(words).current_dir(&folder.0),
            );
            assert_eq!(errors, "");
            replies.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(complete(&["plimsoll", "expl"]), ["explain"]);
        assert_eq!(complete(&["plimsoll", "d"]), ["detach", "diff", "doctor"]);
        assert_eq!(complete(&["plimsoll", "explain", "--ma"]), ["--maps"]);
        assert_eq!(complete(&["plimsoll", "explain", "--format", ""]), ["text", "json", "html", "prometheus"]);
        assert_eq!(complete(&["plimsoll", "report", "--by", "ca"]), ["category", "caller"]);
        // A value that is a file.
        assert_eq!(complete(&["plimsoll", "explain", "-o", "comp"]), ["completions"]);
    }

    /// Searches the text of the scripts, because zsh and fish may not be installed.
    #[test]
    fn zsh_and_fish_get_every_option() {
        for (name, text) in all().into_iter().filter(|(name, _)| name.ends_with("_plimsoll") || name.ends_with(".fish"))
        {
            for verb in table().get_subcommands() {
                assert!(text.contains(verb.get_name()), "{name}: {}", verb.get_name());
                for long in verb.get_arguments().filter_map(|argument| argument.get_long()) {
                    let forms = [format!("--{long}"), format!("-l {long}")];
                    assert!(forms.iter().any(|form| text.contains(form)), "{name}: --{long}");
                }
            }
        }
    }
}
