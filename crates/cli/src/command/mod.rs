//! Subcommands, one per file; dispatch to them.

mod bench;
mod cache;
mod completions;
mod convert;
mod cp;
mod delta;
mod doctor;
pub(crate) mod exec;
mod harness;
mod load;
mod local_path;
mod ls;
mod man;
mod open;
#[cfg(target_os = "linux")]
mod ranks;
#[cfg(not(target_os = "linux"))]
#[path = "ranks/elsewhere.rs"]
mod ranks;
mod rm;
mod seal;
mod serve;
mod startup;
mod synth;
mod verify;

use std::ffi::OsString;
use std::io::Write;

use tload::Result;

pub(crate) use self::ls::Order;
pub(crate) use self::ranks::rank;

use crate::args::{Args, Command, program};
use crate::interrupt::Interrupt;
use tload_doctor::host::limits::Limits;

/// Runs the subcommand. `arguments` are as the user wrote them, for the record of a benchmark;
/// `limits` are those that the command was started with.
pub(crate) fn run(
    args: Args,
    arguments: &[OsString],
    interrupt: &Interrupt,
    limits: &Limits,
    out: &mut dyn Write,
) -> Result<()> {
    match args.command {
        Command::Ls(args) => ls::run(&args, interrupt, out),
        Command::Load(args) => load::run(&args, arguments, interrupt, out),
        Command::Synth(args) => synth::run(&args, interrupt, out),
        Command::Bench(args) => bench::run(&args, arguments, interrupt, out),
        Command::Cp(args) => cp::run(&args, interrupt, out),
        Command::Convert(args) => convert::run(&args, interrupt, out),
        Command::Verify(args) => verify::run(&args, interrupt, out),
        Command::Rm(args) => rm::run(&args, out),
        Command::Diff(args) => delta::diff(&args, interrupt, out),
        Command::Apply(args) => delta::apply(&args, interrupt, out),
        Command::Seal(args) => seal::seal(&args, interrupt, out),
        Command::Unseal(args) => seal::unseal(&args, interrupt, out),
        Command::Rekey(args) => seal::rekey(&args, out),
        Command::Cache(args) => cache::run(&args.command, interrupt, out),
        Command::Serve(args) => serve::run(&args, interrupt, out),
        Command::Doctor(args) => doctor::run(&args, arguments, interrupt, limits, out),
        // It has taken the place of this process before signals were attended to.
        Command::Exec(_) => Ok(()),
        Command::Completions(args) => completions::run(&args, program(arguments), out),
        Command::Man(args) => man::run(&args, program(arguments)),
    }
}
