//! `tload man`: writes the manual pages.

use std::ffi::OsStr;
use std::fs;

use tload::Result;

use super::local_path::require_local;
use crate::args::{ManArgs, manual};
use crate::output::error::file;

pub(crate) fn run(args: &ManArgs, program: &OsStr) -> Result<()> {
    let directory = &args.directory;
    require_local(directory)?;
    fs::create_dir_all(directory)
        .and_then(|()| manual(program, directory))
        .map_err(|error| file("cannot write the manual pages", directory, error))
}
