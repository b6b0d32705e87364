//! `--ranks` where processes cannot share what they read.

use std::ffi::OsString;
use std::io::Write;

use tload::{Error, ErrorKind, Result};

use crate::args::{BenchArgs, LoadArgs};
use crate::bench::target::Target;
use crate::interrupt::Interrupt;

/// Returns `None`: no process is a rank.
pub(crate) fn rank(_arguments: &[OsString]) -> Option<u8> {
    None
}

pub(super) fn load(
    _args: &LoadArgs,
    _size: usize,
    _arguments: &[OsString],
    _interrupt: &Interrupt,
    _out: &mut dyn Write,
) -> Result<()> {
    Err(linux_only())
}

pub(super) fn bench(
    _args: &BenchArgs,
    _size: usize,
    _target: &Target<'_>,
    _arguments: &[OsString],
    _interrupt: &Interrupt,
    _out: &mut dyn Write,
) -> Result<()> {
    Err(linux_only())
}

fn linux_only() -> Error {
    Error::new(ErrorKind::InvalidRequest, "--ranks works on Linux only")
}
