//! Reports: one file for each output format.
