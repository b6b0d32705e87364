//! Flags of every subcommand about what is shown beside the results: progress, notes, a log, and
//! colours.

use std::ffi::OsString;

use clap::{ArgAction, ValueEnum};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Messages and colours")]
pub(crate) struct DisplayArgs {
    /// Print results, warnings and errors only: no progress, no notes, no summary of cp and synth
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Log on standard error instead of drawing progress: checkpoints that are opened and variables
    /// that apply (-v); also retries and fallbacks (-vv). `TLOAD_LOG` sets the same level: info,
    /// debug
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Draw no progress bar; without a terminal there is none
    #[arg(long, global = true)]
    pub(crate) no_progress: bool,
    /// Colours of messages and tables; auto means on a terminal, unless `NO_COLOR` or
    /// `CLICOLOR_FORCE` say otherwise. JSON is never coloured
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value = "auto"
    )]
    pub(crate) color: ColorArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorArg {
    Auto,
    Always,
    Never,
}

impl ColorArg {
    /// Returns the choice that `arguments` contain, for errors of the parser itself.
    pub(super) fn of_arguments(arguments: &[OsString]) -> Self {
        let texts: Vec<_> = arguments
            .iter()
            .map(|it| it.to_str().unwrap_or_default())
            .collect();
        let mut choices = texts.iter().enumerate().filter_map(|(index, text)| {
            let value = match text.strip_prefix("--color")? {
                "" => texts.get(index + 1)?,
                rest => rest.strip_prefix('=')?,
            };
            Self::from_str(value, false).ok()
        });
        choices.next_back().unwrap_or(Self::Auto)
    }

    /// Applies the choice to everything that this process prints. clap's messages follow it too.
    pub(crate) fn apply(self) {
        match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_valid_choice_counts() {
        let choice = |arguments: &[&str]| {
            let arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
            ColorArg::of_arguments(&arguments)
        };
        assert_eq!(choice(&["tload", "ls"]), ColorArg::Auto);
        assert_eq!(choice(&["tload", "--color=never", "ls"]), ColorArg::Never);
        assert_eq!(
            choice(&["tload", "ls", "--color", "always"]),
            ColorArg::Always
        );
        assert_eq!(
            choice(&["tload", "--color", "always", "--color=never"]),
            ColorArg::Never
        );
        assert_eq!(choice(&["tload", "--color", "pink"]), ColorArg::Auto);
        assert_eq!(
            choice(&["tload", "--colors=never", "--color"]),
            ColorArg::Auto
        );
    }
}
