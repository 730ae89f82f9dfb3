//! Calls a function that writes, and returns its text.

pub fn text_of(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    let mut out = vec![];
    write(&mut out).expect("a vector takes all");
    String::from_utf8(out).expect("UTF-8")
}
