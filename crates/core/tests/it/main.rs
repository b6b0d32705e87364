//! The crate's tests from outside: real files, real engines, simulated storage.

mod hostile;
