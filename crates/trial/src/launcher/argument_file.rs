//! The words of an argument file of the `java` launcher, by the rules of `nextToken` in the JDK's libjli/args.c.
//!
//! ```text
//! # a comment
//! -cp "a b.jar:c.jar"   -Dkey='x y'     quotes may be a part of a word, and end with the line
//! "C:\\dir \
//!    goes on"                           in quotes only: \n \r \t \f, another character, or the next line
//! ```

/// Where the reader is in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Between,
    Comment,
    Word,
    Quoted,
    /// Behind a backslash in quotes.
    Escape,
    /// At the beginning of a line that goes on with a quoted word.
    Continued,
}

pub(super) fn words(text: &[u8]) -> Vec<Vec<u8>> {
    let (mut all, mut word, mut place, mut quote) = (Vec::new(), None::<Vec<u8>>, Place::Between, b'"');
    for byte in text.iter().copied() {
        let ends_line = matches!(byte, b'\n' | b'\r');
        let is_blank = ends_line || matches!(byte, b' ' | b'\t' | b'\x0c');
        place = match place {
            Place::Between | Place::Continued if is_blank => continue,
            Place::Comment if ends_line => Place::Between,
            Place::Comment => continue,
            Place::Escape if ends_line => Place::Continued,
            Place::Escape => {
                word.get_or_insert_default().push(escaped(byte));
                Place::Quoted
            }
            Place::Quoted | Place::Continued => match byte {
                _ if ends_line => {
                    all.push(word.take().unwrap_or_default());
                    Place::Between
                }
                b'\\' => Place::Escape,
                _ if byte == quote => Place::Word,
                _ => {
                    word.get_or_insert_default().push(byte);
                    Place::Quoted
                }
            },
            Place::Word | Place::Between => match byte {
                _ if is_blank => {
                    all.push(word.take().unwrap_or_default());
                    Place::Between
                }
                b'#' => {
                    word = None;
                    Place::Comment
                }
                b'\'' | b'"' => {
                    quote = byte;
                    Place::Quoted
                }
                _ => {
                    word.get_or_insert_default().push(byte);
                    Place::Word
                }
            },
        };
    }
    all.extend(word.filter(|_| matches!(place, Place::Word | Place::Quoted)));
    all
}

/// What a backslash before this byte stands for.
const fn escaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'f' => b'\x0c',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_launcher() {
        let of = |text: &str| {
            let words = words(text.as_bytes()).into_iter().map(|word| String::from_utf8(word).expect("UTF-8"));
            words.collect::<Vec<_>>()
        };
        assert_eq!(of("shop.Main"), ["shop.Main"]);
        assert_eq!(of(" -Xmx1g\t-cp\n\"a b.jar\":c.jar\r\n\r\nMain"), ["-Xmx1g", "-cp", "a b.jar:c.jar", "Main"]);
        assert_eq!(of("# no 'comment\n-Da='x \"y' # more\n'z"), ["-Da=x \"y", "z"]);
        assert_eq!(of(r#"C:\dir "C:\\dir\t'" '' Main"#), [r"C:\dir", "C:\\dir\t'", "", "Main"]);
        assert_eq!(of("-cp \"a.jar:\\\n   b.jar\" Main"), ["-cp", "a.jar:b.jar", "Main"]);
        // A quotation mark that has no partner ends with its line.
        assert_eq!(of("\"a b\nMain\n"), ["a b", "Main"]);
        assert_eq!((of(""), of(" # x")), (vec![], vec![]));
    }
}
