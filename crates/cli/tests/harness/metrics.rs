//! Reads Prometheus's text format.

use std::collections::BTreeMap;

/// The samples of a family, by their labels. A series that appears twice fails the test.
pub fn samples<'t>(text: &'t str, family: &str) -> BTreeMap<&'t str, f64> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
    let mut samples = BTreeMap::new();
    for (labels, value) in lines.filter_map(|line| line.rsplit_once("} ")) {
        let before = samples.insert(labels, value.parse().expect("a number"));
        assert_eq!(before, None, "{family}{{{labels}}} appears twice");
    }
    samples
}
