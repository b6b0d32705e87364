//! The binary `tload`: hands its arguments to the library, which the Python wheel's console script shares.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tload_cli::main(std::env::args_os()))
}
