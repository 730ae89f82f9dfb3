//! `plimsoll serve`: what it answers, what it refuses, which rights its two processes have, and how they end.

mod answers;
mod ends;
mod history;
mod hostile;
mod kit;
mod rights;
