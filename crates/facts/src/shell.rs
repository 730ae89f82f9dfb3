//! Words of another program, quoted for a shell: pasted, they are the same words again, and nothing in them runs.
//!
//! ```text
//!   letters, digits, @%+=:,./_-   /srv/app.jar              as they are
//!   anything printable            'it'\''s $(a)'            between single quotes, where a shell expands nothing
//!   control codes                 "$(printf 'a\033\133')"   in octal: a terminal would act on them, and lines would end
//! ```
//! POSIX: dash, bash, zsh, BusyBox. `$'…'` would be shorter, but dash has it only since 0.5.13.

/// A command line of these words. None if a word ends in a newline: `$( )` removes it.
pub fn command_line<'w>(words: impl IntoIterator<Item = &'w str>) -> Option<String> {
    let mut line = String::new();
    for (at, word) in words.into_iter().enumerate() {
        match at {
            // A first word with `=` would be an assignment.
            0 if word.contains('=') && quoted(word)? == word => line = format!("'{word}'"),
            0 => line = quoted(word)?,
            _ => line = line + " " + &quoted(word)?,
        }
    }
    Some(line)
}

/// A command for a reader. setproctitle pads a title to the length of the arguments that it replaces, with blanks or
/// empty arguments.
pub fn one_line(words: &[String]) -> String {
    words.join(" ").trim_end().to_owned()
}

/// One word, quoted for a shell.
pub fn quoted(word: &str) -> Option<String> {
    // zsh expands a leading `=`.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    if !word.is_empty() && !word.starts_with('=') && word.chars().all(is_plain) {
        return Some(word.to_owned());
    }
    if !word.contains(is_control) {
        return Some(format!("'{}'", word.replace('\'', r"'\''")));
    }
    if word.ends_with('\n') {
        return None;
    }
    // Inside double quotes, an interactive bash expands `!`, and printf has its own `%` and `\`. A leading `-` would be
    // an option of printf.
    let as_it_is = |at: usize, c: char| {
        let is_letter = c.is_ascii_alphanumeric() || "@+=:,./_ ".contains(c) || (c == '-' && at > 0);
        is_letter || (!c.is_ascii() && !is_control(c))
    };
    let mut format = String::new();
    for (at, c) in word.char_indices() {
        match as_it_is(at, c) {
            true => format.push(c),
            false => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| format.push_str(&format!("\\{byte:03o}"))),
        }
    }
    Some(format!("\"$(printf '{format}')\""))
}

/// Whether a terminal may act on it.
fn is_control(c: char) -> bool {
    c.is_control() || turns_text(c)
}

/// Direction marks and line separators: Unicode does not class them as control characters.
pub fn turns_text(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::process::Command;

    #[test]
    fn a_title_has_no_blanks_at_its_end() {
        let of = |words: &[&str]| one_line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["redis-server *:6379      "]), "redis-server *:6379");
        assert_eq!(of(&["redis-server *:6379", "", ""]), "redis-server *:6379");
        assert_eq!(of(&["a", " b", "c"]), "a  b c");
    }

    #[test]
    fn words_are_quoted_only_where_they_must_be() {
        let of = |words: &[&str]| command_line(words.iter().copied());
        let plain = ["/usr/bin/java", "-Xmx1g", "-cp", "a.jar:b@2.jar", "-Da=b%c", "Main"];
        assert_eq!(of(&plain).as_deref(), Some("/usr/bin/java -Xmx1g -cp a.jar:b@2.jar -Da=b%c Main"));
        let odd = ["a=b", "", "~", "=ls", "two words", "it's", "$(reboot)", "`id`", "!x", "{a,b}", "größe", "a\\b"];
        let quoted = r"'a=b' '' '~' '=ls' 'two words' 'it'\''s' '$(reboot)' '`id`' '!x' '{a,b}' 'größe' 'a\b'";
        assert_eq!(of(&odd).as_deref(), Some(quoted));
    }

    #[test]
    fn control_codes_are_octal_and_the_line_stays_one_line() {
        assert_eq!(quoted("a\nb").as_deref(), Some(r#""$(printf 'a\012b')""#));
        assert_eq!(quoted("\u{1b}[2J%s!").as_deref(), Some(r#""$(printf '\033\1332J\045s\041')""#));
        assert_eq!(quoted("-\u{202e}ü").as_deref(), Some(r#""$(printf '\055\342\200\256ü')""#));
        assert_eq!(quoted("gone\n"), None);
    }

    /// The shell itself is the judge: it reads back the words that were quoted.
    #[test]
    fn a_shell_reads_the_same_words() {
        let mut random = Random(7);
        let odd = ["'", "\"", "\\", "$", "`", "\n", "\t", "\u{1b}", "!", "%", "=", "-", " ", "*", "?", "#", "~", ";"];
        let more = ["&", "|", "<", ">", "(", ")", "[", "]", "{", "}", "ü", "\u{9b}", "\u{202e}", "a", "1", "\r", "\\n"];
        let pieces = [&odd[..], &more[..]].concat();
        let mut words: Vec<String> = Vec::new();
        for _ in 0..3000 {
            // Words of few characters, so that some have one special character and no other.
            let of = [0; 2].map(|_| pieces[random.index(pieces.len())]);
            let word = (0..random.below(6)).map(|_| of[random.index(of.len())]).collect::<String>();
            if !word.ends_with('\n') {
                words.push(word);
            }
        }
        let line = command_line(std::iter::once("printf").chain(["%s\\0"]).chain(words.iter().map(String::as_str)));
        let line = line.expect("no word ends in a newline");
        assert!(!line.contains(is_control), "{line}");
        for shell in ["/bin/sh", "/bin/bash"] {
            let run = Command::new(shell).args(["-c", &line]).output().expect("a shell");
            let read = String::from_utf8(run.stdout).expect("UTF-8");
            let read: Vec<&str> = read.strip_suffix('\0').expect("words").split('\0').collect();
            assert_eq!(read, words, "{shell}");
        }
    }
}
