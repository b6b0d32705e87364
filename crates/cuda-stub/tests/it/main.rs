//! The stub's tests: they drive the opened library through its C functions, as a user of the driver
//! would.
//!
//! One process, so one test at a time: `driver::session` sees to it.

mod batches;
mod driver;
mod faults;
mod machine;
mod memory;
mod order;
mod rows;
mod streams;
