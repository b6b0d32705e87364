//! The binary `tensorload`: the command `tload` under a second name, for machines on which another
//! program is called `tload` (that of procps).

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tload_cli::main(std::env::args_os()))
}
