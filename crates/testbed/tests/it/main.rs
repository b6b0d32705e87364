//! Tests of the storage that other tests rely on.

mod client;
mod processes;
mod servers;
#[cfg(target_os = "linux")]
mod slowfs;
mod xet;
