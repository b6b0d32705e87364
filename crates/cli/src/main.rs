//! The binary `tload`. Passes its arguments to the library, which the console script of the Python
//! wheel calls too.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tload_cli::main(std::env::args_os()))
}
