//! Outside the target: sources → snapshot → ledger → verdict.
