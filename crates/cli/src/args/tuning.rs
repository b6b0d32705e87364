//! Arguments that select tensors, and those that set options of a load. The latter are made from
//! the core's table: each has a `TLOAD_*` variable.

use std::ffi::OsStr;
use std::path::Path;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use serde::{Deserialize, Serialize};
use tload::internal::{OptionKey, OptionKind, nearest_name};
use tload::{LoadOptions, Verify};

use super::configured;

#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
#[command(next_help_heading = "Tensor selection (any matching filter selects a tensor)")]
pub(crate) struct SelectArgs {
    /// Select the tensor with this name
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Select tensors whose whole name matches this glob
    #[arg(long = "glob", value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
    /// Select tensors whose name contains a match of this regular expression
    #[arg(long = "regex", value_name = "REGEX")]
    pub(crate) regexes: Vec<String>,
}

/// Options of one load; if it `WARMS` a cache, those that have a use there.
#[derive(Debug)]
pub(crate) struct TuningArgs<const WARMS: bool = false>(pub(crate) LoadOptions);

/// Options without a use where tensors are dropped in host memory, and no other rank loads.
const USELESS_TO_WARM: [&str; 8] = [
    "align",
    "dtype",
    "device_memory_limit",
    "region_bytes",
    "order",
    "share",
    "join_timeout",
    "on_peer_loss",
];

/// Heading of [`SweepArgs`] and `--sweep`.
pub(super) const SWEEP_HEADING: &str = "Tuning (lists are swept over every combination)";

/// Options of which a benchmark takes lists: its table and its plot show how runs differ in them.
const LISTS: [&str; 4] = ["engine", "depth", "extent_bytes", "lanes"];

/// Values of each option of a benchmark, by the option's name; no values leave the default.
#[derive(Debug)]
pub(crate) struct SweepArgs(pub(crate) Vec<(&'static str, Vec<String>)>);

impl<const WARMS: bool> TuningArgs<WARMS> {
    fn keys() -> impl Iterator<Item = &'static OptionKey> {
        keys().filter(|key| !WARMS || !USELESS_TO_WARM.contains(&key.name))
    }
}

impl<const WARMS: bool> clap::Args for TuningArgs<WARMS> {
    fn augment_args(command: Command) -> Command {
        let args = Self::keys().map(arg);
        command.next_help_heading("Tuning").args(args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const WARMS: bool> FromArgMatches for TuningArgs<WARMS> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = LoadOptions::default();
        options.trial = crate::options::trial().map_err(|error| invalid(&error))?;
        for key in Self::keys() {
            for text in values(matches, key) {
                options
                    .set(key.name, &text)
                    .map_err(|error| invalid(&error))?;
            }
        }
        Ok(Self(options))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for SweepArgs {
    fn augment_args(command: Command) -> Command {
        let lists = bench_keys().map(|key| {
            if LISTS.contains(&key.name) {
                let values = format!("{},…", value_name(key));
                arg(key)
                    .value_name(values)
                    .value_delimiter(',')
                    .action(ArgAction::Append)
            } else {
                arg(key)
            }
        });
        command.next_help_heading(SWEEP_HEADING).args(lists)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SweepArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(
            bench_keys()
                .map(|key| (key.name, values(matches, key)))
                .collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the options that have a flag.
fn keys() -> impl Iterator<Item = &'static OptionKey> {
    LoadOptions::KEYS.iter().filter(|key| key.flag.is_some())
}

/// Returns the options of a benchmark. Whole loads are measured, and nothing limits the ceiling.
fn bench_keys() -> impl Iterator<Item = &'static OptionKey> {
    keys().filter(|key| key.kind != OptionKind::Duration)
}

fn id(key: &OptionKey) -> &'static str {
    key.flag.unwrap_or(key.name)
}

fn values(matches: &ArgMatches, key: &OptionKey) -> Vec<String> {
    let values = matches.get_many::<String>(id(key));
    values.into_iter().flatten().cloned().collect()
}

/// Returns the argument of an option, which takes text that the option accepts.
fn arg(key: &'static OptionKey) -> Arg {
    let arg = Arg::new(id(key))
        .long(id(key))
        .value_name(value_name(key))
        .help(format!("{} [default: {}]", key.summary, key.default))
        .default_value(configured::option(key.name))
        .hide_default_value(true)
        .value_parser(ValueOf(key))
        .hide_possible_values(true);
    let arg = match key.variable() {
        Some(variable) => arg.env(variable).hide_env_values(true),
        None => arg,
    };
    if key.kind == OptionKind::Verify {
        arg.num_args(0..=1)
            .require_equals(true)
            .default_missing_value("auto")
    } else {
        arg
    }
}

/// Parser of an option's text. Completions offer the values that it knows; help has them already.
#[derive(Clone)]
struct ValueOf(&'static OptionKey);

impl TypedValueParser for ValueOf {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        let key = self.0;
        (move |text: &str| parse(key, text)).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = match self.0.kind {
            OptionKind::Choice(names) => names,
            OptionKind::Flag => &["true", "false"],
            OptionKind::Count(..)
            | OptionKind::Bytes(..)
            | OptionKind::Duration
            | OptionKind::Verify => return None,
        };
        Some(Box::new(names.iter().map(PossibleValue::new)))
    }
}

fn value_name(key: &OptionKey) -> String {
    match key.kind {
        OptionKind::Flag => "BOOL".to_owned(),
        OptionKind::Count(..) => "N".to_owned(),
        OptionKind::Bytes(..) => "SIZE".to_owned(),
        OptionKind::Duration => "TIME".to_owned(),
        OptionKind::Verify => "auto|require|sha256|off|MANIFEST".to_owned(),
        OptionKind::Choice(_) => id(key).to_uppercase(),
    }
}

/// Checks `text` for clap, whose message names the flag and the text.
pub(super) fn parse(key: &OptionKey, text: &str) -> Result<String, String> {
    if let Err(error) = key.parse(text) {
        let hint = error.hint().map(|hint| format!("; {hint}"));
        return Err(format!(
            "it {}{}",
            key.valid_values(),
            hint.unwrap_or_default()
        ));
    }
    // A plain word that is neither a mode nor a file is taken for a typing error.
    let is_manifest = matches!(text.parse(), Ok(Verify::Manifest(_)));
    let is_word = !text.contains(['/', '.']);
    if key.kind == OptionKind::Verify && is_manifest && is_word && !Path::new(text).exists() {
        let modes = ["off", "auto", "require", "sha256"];
        let near = nearest_name(text, modes).map(|mode| format!("; did you mean {mode:?}?"));
        let refused = "neither off, auto, require, sha256 nor an existing manifest";
        return Err(format!("{refused}{}", near.unwrap_or_default()));
    }
    Ok(text.to_owned())
}

fn invalid(error: &tload::Error) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, error.chain())
}
