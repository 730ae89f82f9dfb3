//! `plimsoll serve`: what it answers, what it refuses, which rights its processes have, what it sends, and how they
//! end.

mod answers;
mod browser;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../../fixtures/child.rs"]
mod child;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../../fixtures/browser.rs"]
mod chromium;
mod ends;
mod exports;
mod history;
mod hostile;
mod kit;
#[path = "../harness/metrics.rs"]
mod metrics;
mod rights;
