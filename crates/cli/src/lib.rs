//! The command `tload`: list, load, copy, synthesise, benchmark and diagnose checkpoints of LLM
//! weights.
//!
//! A thin layer over the public API of the crate `tload`. It is a library so that the binary and
//! the console script of the Python wheel are the same command. A call passes through `args`
//! (parsed by clap) → `options` (types of the core) → `command` (one file per subcommand) →
//! `output` and `export`. Nothing below `command` sees clap, and only this file decides the exit
//! status.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod command;
mod configuration;
mod deadline;
mod digest;
mod exit;
mod export;
mod interrupt;
mod options;
mod output;
mod synth_host;

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, Write};

use anstream::AutoStream;
use tload_doctor::host::System;
use tload_doctor::host::limits::Limits;

use crate::args::{Args, CacheCommand, Command, Refusal};
use crate::interrupt::Interrupt;
use crate::output::answer::Answer;
use crate::output::verbosity;

/// Runs the command with `arguments`, of which the first is the program's name, and returns the
/// exit status.
///
/// Prints results on standard output, and progress, warnings and errors on standard error. With
/// `--json`, a failure is printed on standard output too, as an object with the key `error`. The
/// end of `tload --help` lists the statuses. Listens for Ctrl-C and termination from the first call
/// on; a caller with handlers of its own (Python) resets them to the default before, or runs them
/// too.
///
/// ```
/// let status = tload_cli::main(["tload", "--version"].map(Into::into));
/// assert_eq!(status, 0);
/// ```
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(status) = command::rank(&arguments) {
        return status;
    }
    let is_reader = tload_prefetch::is_reader(&mut arguments);
    let args = match args::parse(&arguments) {
        Ok(args) => args,
        Err(Refusal::Usage(error)) => return usage(&error),
        Err(Refusal::Variable {
            error,
            answers_in_json,
        }) => {
            let status = exit::status(&error);
            Answer::new(answers_in_json).fail(&mut io::stdout(), &error, status);
            output::error::print(&error);
            return status;
        }
    };

    args.display.color.apply();
    let log = std::env::var_os("TLOAD_LOG");
    verbosity::set(
        &args.display,
        log.as_deref().map(OsStr::to_string_lossy).as_deref(),
    );
    if let Command::Exec(args) = &args.command {
        return command::exec::run(args, &arguments, is_reader);
    }
    let answer = Answer::new(args.command.answers_in_json());
    if let (true, Err(error)) = (args.command.is_configured(), configuration::current()) {
        let status = exit::status(&error);
        answer.fail(&mut io::stdout(), &error, status);
        output::error::print(&error);
        return status;
    }
    // The doctor reports them as findings.
    if !matches!(args.command, Command::Doctor(_)) {
        let variables = options::variables();
        for (_, warning) in tload::internal::unknown_variables(variables.iter().map(String::as_str))
        {
            output::error::warn(&format!("warning: {warning}"));
        }
    }

    let limits = Limits::current();
    limits.raise_files();
    tload::internal::reserve_descriptors();
    Interrupt::install(&System::real(), answer)
        .attend(|interrupt| attended(args, &arguments, interrupt, &limits))
}

/// Prints help and versions on standard output, mistakes on standard error, and returns the exit
/// status.
fn usage(said: &clap::Error) -> u8 {
    let printed = said.print().and_then(|()| io::stdout().flush());
    match printed.map_err(output::error::standard_output) {
        // If standard error cannot be written, only the status reports the mistake.
        Err(error) if !said.use_stderr() && !output::error::is_closed_pipe(&error) => {
            output::error::print(&error);
            exit::status(&error)
        }
        _ => u8::try_from(said.exit_code()).unwrap_or(exit::USAGE),
    }
}

/// Runs the command and returns the exit status, on a thread that does not take signals.
fn attended(args: Args, arguments: &[OsString], interrupt: &Interrupt, limits: &Limits) -> u8 {
    let is_warming = matches!(
        &args.command,
        Command::Cache(cache) if matches!(cache.command, CacheCommand::Warm(_))
    );
    let status = answered(args, arguments, interrupt, limits);
    // Warming waits for the disk itself, within its timeout.
    let is_late = is_warming && status == exit::TIMED_OUT;
    if !is_late {
        finish_caching(interrupt);
    }
    status
}

/// Most time that a process waits for the disk of the cache: the buffers hold 64 MiB.
const CACHING_GRACE: std::time::Duration = std::time::Duration::from_secs(10);

/// Waits until the disk of the cache of object stores has what was read. A signal ends the wait.
fn finish_caching(interrupt: &Interrupt) {
    use std::time::{Duration, Instant};

    /// Most time after a signal.
    const STEP: Duration = Duration::from_millis(500);
    let deadline = Instant::now() + CACHING_GRACE;
    while !tload::cache::finish_caching(STEP) {
        if interrupt.check().is_err() || Instant::now() >= deadline {
            return;
        }
    }
}

/// Runs the command, gives its answer and returns the exit status.
fn answered(args: Args, arguments: &[OsString], interrupt: &Interrupt, limits: &Limits) -> u8 {
    let mut out = BufWriter::new(AutoStream::auto(io::stdout().lock()));
    let outcome = command::run(args, arguments, interrupt, limits, &mut out)
        .and_then(|()| out.flush().map_err(output::error::standard_output));
    match outcome {
        Ok(()) => exit::SUCCESS,
        // The reader closed the pipe (`tload ls … | head`): not a failure.
        Err(error) if output::error::is_closed_pipe(&error) => exit::SUCCESS,
        Err(error) => {
            let status = interrupt.exit_status(&error);
            interrupt.answer().fail(&mut out, &error, status);
            if !interrupt.answer().has_failure() {
                output::error::print(&error);
            }
            status
        }
    }
}
