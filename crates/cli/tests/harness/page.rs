//! A table of a page in docs/ that a test makes.

use std::fs;
use std::path::Path;

/// Compares the text between `begin` and `end` of docs/NAME with the table. BLESS=1 writes the table there.
pub fn check_table(name: &str, [begin, end]: [&str; 2], table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let page = fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(begin).expect("where the table begins");
    let (old, after) = rest.split_once(end).expect("where the table ends");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, [before, begin, table, end, after].concat()).expect("own file");
        return;
    }
    assert!(old == table, "docs/{name} has another table; read it, then BLESS=1\n{table}");
}
