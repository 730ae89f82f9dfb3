//! What every remedy is made with.

use super::{Effect, Effort, Remedy};

/// `how` can be pasted as it stands; what it saves is added with [`Remedy::saves`].
pub fn remedy(effort: Effort, what: impl Into<String>, how: impl Into<String>, trade_off: impl Into<String>) -> Remedy {
    Remedy { what: what.into(), how: how.into(), effort, trade_off: trade_off.into(), effect: Effect::Unknown }
}
