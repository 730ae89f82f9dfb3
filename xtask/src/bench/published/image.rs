//! Builds the server of bench/published/native as a native image.

use std::path::PathBuf;

use crate::images::Image;
use crate::stage::{Result, repository};

/// The server, built with these monitoring features (`nmt,jfr`; none for a plain image). Its functions keep their
/// names, which sites need.
pub fn server(features: &str) -> Result<PathBuf> {
    let source = repository().join("bench/published/native/Blocks.java");
    let name = ["blocks", features].join("-").replace(',', "-");
    let mut options = vec!["-H:-DeleteLocalSymbols".to_owned()];
    if !features.is_empty() {
        options.push(format!("-H:EnableMonitoringFeatures={features}"));
    }
    Image { source: &source, class: "Blocks", name: name.trim_end_matches('-'), options: &options }.built()
}
