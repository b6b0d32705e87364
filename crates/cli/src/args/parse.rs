//! Parser of the command line and the `TLOAD_*` variables. Tells in which of the two a mistake is,
//! and treats an empty variable as unset.

use std::ffi::{OsStr, OsString};

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, CommandFactory, FromArgMatches};
use tload::{Error, ErrorKind, StoreOptions};

use super::Args;
use super::display::ColorArg;

/// Reason why parsing returned no [`Args`].
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Help, the version, or a mistake on the command line, which clap prints.
    Usage(clap::Error),
    /// A variable with a value that its option rejects.
    Variable { error: Error, answers_in_json: bool },
}

/// Reads the command line twice: first without the variables, so that an error then is an error on
/// the command line, and then with them.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Args, Refusal> {
    ColorArg::of_arguments(arguments).apply();
    let bare = every_arg(Args::command(), |arg| arg.env(Resettable::Reset));
    let answers_in_json = match bare.try_get_matches_from(arguments) {
        Err(error) if error.use_stderr() => return Err(Refusal::Usage(with_tip(error, arguments))),
        // Help shows the variables, so the second reading prints it.
        Err(_) => false,
        Ok(matches) => {
            Args::from_arg_matches(&matches).is_ok_and(|args| args.command.answers_in_json())
        }
    };
    let full = every_arg(Args::command(), without_empty_variable);
    let matches = match full.clone().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => {
            return Err(match variable_error(&error, &full) {
                Some(error) => Refusal::Variable {
                    error,
                    answers_in_json,
                },
                None => Refusal::Usage(error),
            });
        }
        Err(error) => return Err(Refusal::Usage(error)),
    };
    Args::from_arg_matches(&matches).map_err(Refusal::Usage)
}

/// Adds a tip to the error for an unexpected argument, if it is known what it stands for.
fn with_tip(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(unwanted)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let is_unknown = error.kind() == clap::error::ErrorKind::UnknownArgument;
    if let Some(tip) = tip(unwanted, arguments).filter(|_| is_unknown) {
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

/// Returns a tip for the value in `--verify VALUE`, since `--verify` may stand alone, and for an
/// option of stores.
fn tip(unwanted: &str, arguments: &[OsString]) -> Option<String> {
    let is_text = |text: &str| !text.starts_with('-');
    if is_text(unwanted) {
        let value = arguments.windows(2).find_map(|pair| {
            let value = pair[1].to_str().filter(|value| is_text(value))?;
            (pair[0] == "--verify").then_some(value)
        })?;
        return Some(format!(
            "to give --verify a value, write '--verify={value}'"
        ));
    }
    let name = unwanted.trim_start_matches('-').replace('-', "_");
    // Other tools have this name for it.
    let name = if name == "endpoint_url" {
        "endpoint"
    } else {
        &name
    };
    let is_of_stores = StoreOptions::KEYS.iter().any(|key| key.name == name);
    is_of_stores.then(|| format!("it is an option of stores: '--store {name}=VALUE'"))
}

fn every_arg(command: clap::Command, change: fn(Arg) -> Arg) -> clap::Command {
    command.mut_subcommands(|subcommand| every_arg(subcommand.mut_args(change), change))
}

/// Ignores the variable of `arg` if it is set but empty, as in Python.
fn without_empty_variable(arg: Arg) -> Arg {
    let is_empty = |name: &OsStr| {
        std::env::var_os(name).is_some_and(|value| value.to_string_lossy().trim().is_empty())
    };
    if arg.get_env().is_some_and(is_empty) {
        arg.env(Resettable::Reset)
    } else {
        arg
    }
}

/// Returns an error that names the variable that `error` is about. `error` must come from the
/// second reading only.
fn variable_error(error: &clap::Error, command: &clap::Command) -> Option<Error> {
    let variable = variable_of(error, command)?;
    let value = std::env::var_os(&variable).unwrap_or_default();
    let reason = match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None if value.to_str().is_none() => "is not UTF-8".to_owned(),
        None => error.kind().to_string(),
    };
    Some(Error::new(
        ErrorKind::InvalidRequest,
        format!(
            "{}={}: {reason}",
            variable.to_string_lossy(),
            value.to_string_lossy()
        ),
    ))
}

fn variable_of(error: &clap::Error, command: &clap::Command) -> Option<OsString> {
    // One flag has the same variable in every subcommand.
    let subcommands = command.get_subcommands();
    let below = subcommands.flat_map(|it| it.get_subcommands().chain([it]));
    let mut options = below
        .flat_map(clap::Command::get_arguments)
        .filter_map(|arg| Some((arg.get_long()?, arg.get_env()?)));
    let found = if let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) {
        // clap names the argument as its usage does: `--engine <ENGINE>`.
        let long = shown.split([' ', '=', '[']).next()?.strip_prefix("--")?;
        options.find(|(name, _)| *name == long)
    } else {
        // For a value that is not UTF-8, clap does not name the argument.
        let is_text =
            |name: &OsStr| std::env::var_os(name).is_none_or(|value| value.to_str().is_some());
        options.find(|(_, variable)| !is_text(variable))
    };
    found.map(|(_, variable)| variable.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tload_config::flag;

    use crate::args::Args;

    #[test]
    fn flags_with_values_are_accepted() {
        for (option, value) in [
            ("cache", "auto"),
            ("device", "cpu"),
            ("engine", "pread"),
            ("verify", "require"),
        ] {
            let shown = flag(option, Some(value));
            let arguments = ["tload", "load"].into_iter().chain(shown.split(' '));
            let args = Args::try_parse_from(arguments.chain(["location"]));
            assert!(args.is_ok(), "{shown}");
        }
    }
}
