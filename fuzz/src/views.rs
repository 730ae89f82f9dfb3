//! Every output format of a profile, with what must hold for each.

use plimsoll_profiles::profile::{GroupBy, Profile, ProfileDiff, Tree};
use plimsoll_report::page::{self, Page};
use plimsoll_report::profile::{View, diff, folded, html, json, pprof, svg, text};

/// A format for programs must be well formed.
pub fn is_json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("not JSON: {error}"))
}

pub fn is_xml(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).expect("UTF-8");
    let options = roxmltree::ParsingOptions { nodes_limit: 1 << 20, allow_dtd: false };
    if let Err(error) = roxmltree::Document::parse_with_options(text, options) {
        panic!("not XML: {error}");
    }
}

/// A page is XML outside its script and style, has no script but its own, and its data is JSON.
pub fn is_page(page: &Page) {
    let html = String::from_utf8(written(|out| page::write(out, page))).expect("UTF-8");
    let mut rest = String::new();
    for (index, part) in html.split("<style>").flat_map(|part| part.split("<script")).enumerate() {
        let after =
            ["</style>", "</script>"].iter().find_map(|end| part.split_once(end)).map_or(part, |(_, after)| after);
        rest += if index == 0 { part } else { after };
        if let Some(data) = part.strip_prefix(" type=\"application/json\" id=\"data\">") {
            is_json(data.split("</script>").next().unwrap_or_default().as_bytes());
        }
    }
    assert_eq!(html.matches("<script").count(), 2, "a script that is not the page's own");
    let options = roxmltree::ParsingOptions { nodes_limit: 1 << 20, allow_dtd: true };
    if let Err(error) = roxmltree::Document::parse_with_options(&rest, options) {
        panic!("not XML: {error}");
    }
}

/// Text for a terminal: nothing in it moves the cursor.
pub fn is_plain(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).expect("UTF-8");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "a control character reaches the terminal");
}

pub fn written(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).expect("memory takes everything");
    out
}

/// Each format, by the first and the last column.
pub fn all(profile: &Profile) {
    if profile.columns.is_empty() {
        return;
    }
    let total = profile.total();
    for column in [0, profile.columns.len() - 1] {
        // Sums saturate at i64, and each order of addition saturates elsewhere. So a file that claims 8 EiB is not
        // checked for its sum.
        let claimed: i128 = profile.entries().map(|(_, values)| i128::from(values[column].amount).abs()).sum();
        let adds_up = claimed <= i128::from(i64::MAX);
        let view = View { profile, column, focus: None };
        for by in GroupBy::ALL {
            is_plain(&written(|out| text::write(out, &view, by, true)));
            is_plain(&written(|out| text::write(out, &view, by, false)));
            let sum = profile.group(by, column).iter().fold(0i64, |sum, g| sum.saturating_add(g.values[column].amount));
            assert!(!adds_up || sum == total[column].amount, "the groups by {by:?} don't sum to the total");
        }
        let tree = Tree::of_column(profile, column);
        let root = tree.values(0).first().map(|v| v.amount);
        assert!(!adds_up || root == Some(total[column].amount), "the tree's root isn't the total");
        written(|out| folded::write(out, &view));
        is_json(&written(|out| json::write(out, &view)));
        is_xml(&written(|out| svg::write(out, &view)));
        written(|out| html::write(out, &view));
        written(|out| pprof::write(out, &view));
        let same = ProfileDiff::new((profile, column), (profile, column));
        let (before, after) = same.total();
        assert_eq!(before.amount, after.amount, "a profile differs from itself");
        is_plain(&written(|out| diff::write(out, &same, true)));
        is_json(&written(|out| json::diff(out, &same)));
        is_xml(&written(|out| svg::diff(out, &same)));
    }
}
