//! What a program is called.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::harness;
use crate::harness::read_report;
use crate::{Tracked, functions, native, report_of, scratch};

/// A program is called by the link that was started (redis-server, a link to redis-check-rdb), unless the link only
/// shortens the file's name (python3, a link to python3.11).
#[test]
fn a_program_is_called_as_it_was_started() {
    for (link, expected) in [("server", "server"), ("nat", "native")] {
        let name = format!("called-{link}");
        let path = scratch(&format!("{name}-bin")).join(link);
        std::os::unix::fs::symlink(native(), &path).expect("a link");
        let shown = if link == expected { path.clone() } else { native().to_path_buf() };
        let shown = shown.to_str().expect("a path");
        let rules = path.with_extension("rules");
        fs::write(&rules, format!("category Thrown: x\n{expected}: thrower -> Thrown\n")).expect("rules");
        let mode = ["--sites", "exact", "--rules", rules.to_str().expect("a path")];
        let (tracked, _) = Tracked::start(&name, &mode, Command::new(&path).arg("exceptions"));
        let check = |report: &Value| {
            assert_eq!(report["process"]["executable"], shown);
            let categories = report["categories"].as_array().expect("categories");
            let named = categories.iter().map(|of| of["name"].as_str().expect("a name"));
            let of_program = named.filter(|name| ["Thrown", "server", "nat", "native"].contains(name));
            assert_eq!(of_program.collect::<BTreeSet<_>>(), BTreeSet::from(["Thrown", expected]));
            let sites = report["sites"].as_array().expect("sites");
            let leaf = sites.iter().find(|site| functions(site).iter().any(|function| function == "thrower"));
            assert_eq!(leaf.expect("its symbols are found")["frames"][0]["module"], shown);
        };
        check(&tracked.json());
        let explained = harness::output_of(&["explain", &tracked.child.id().to_string(), "--format", "json"]);
        let explained: Value = serde_json::from_str(&explained).expect("JSON");
        let lines = explained["lines"].as_array().expect("lines");
        let files = lines.iter().find(|line| line["id"] == "libraries").expect("libraries")["children"].as_array();
        let is_there = |path: &str| files.expect("files").iter().any(|file| file["name"] == path);
        let native = native().to_str().expect("a path");
        assert!(is_there(shown) && is_there(native) == (shown == native), "{files:?}");
        check(&read_report(&report_of(&tracked.end(), &["--by", "site", "--format", "json"])));
    }
}
