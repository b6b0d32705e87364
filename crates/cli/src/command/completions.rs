//! `tload completions`: prints the completions of a shell.

use std::ffi::OsStr;
use std::io::Write;

use tload::Result;

use crate::args::{CompletionsArgs, completions};
use crate::output::error::standard_output;

pub(crate) fn run(args: &CompletionsArgs, program: &OsStr, out: &mut dyn Write) -> Result<()> {
    completions(args, program, out).map_err(standard_output)
}
