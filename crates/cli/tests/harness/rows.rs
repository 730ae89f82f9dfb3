//! What a script prints of its commands, one row each:
//! `@@ NAME`, the command's stdout, `@@!` on a line, its stderr, `@@= STATUS`.

use std::collections::BTreeMap;

#[derive(Debug)]
pub struct Row {
    pub out: String,
    pub err: String,
    pub status: i32,
}

pub fn rows(printed: &str) -> BTreeMap<String, Row> {
    let parts = printed.split("@@ ").skip(1);
    let row = |part: &str| {
        let (name, rest) = part.split_once('\n')?;
        let (out, rest) = rest.split_once("@@!\n")?;
        let (err, rest) = rest.split_once("@@= ")?;
        let status = rest.lines().next()?.parse().ok()?;
        Some((name.to_owned(), Row { out: out.to_owned(), err: err.to_owned(), status }))
    };
    parts.filter_map(row).collect()
}
