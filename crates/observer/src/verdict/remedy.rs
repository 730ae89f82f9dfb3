//! The constructor of remedies.

use super::{Effect, Effort, Remedy};

/// `how` must be pasteable unchanged. [`Remedy::saves`] adds the expected saving.
pub(crate) fn remedy(
    effort: Effort,
    what: impl Into<String>,
    how: impl Into<String>,
    trade_off: impl Into<String>,
) -> Remedy {
    Remedy { what: what.into(), how: how.into(), effort, trade_off: trade_off.into(), effect: Effect::Unknown }
}
