//! One self-contained HTML page for a ticket: what happened and what to type first, then the ledger, curves, stacks and
//! tables. It loads nothing, and its Content-Security-Policy forbids the browser to load anything.
//!
//! ```text
//! ledger (live, saved) ─┐             ┌─► html    head, first screen, tables: readable without script
//! books (live, saved) ──┼─► model ────┤
//! recording ────────────┘             └─► data    curves and stacks, packed, as JSON for the script
//! ```
//! A target chooses names, so every text passes `markup::text` or JSON; the script writes text nodes only. Styles and
//! scripts are constants, allowed by their hash: nothing else can run, whatever a name contains.

mod bars;
mod curves;
mod data;
mod html;
mod list;
pub(crate) mod markup;
mod model;
mod of_books;
mod of_ledger;
mod of_recording;
mod stacks;

pub use html::{policy, write, write_live};
pub use list::write_list;
pub use model::Page;
pub use of_books::{add, of_books};
pub use of_ledger::of_ledger;
pub use of_recording::{add_curves, add_sites, of_recording};
