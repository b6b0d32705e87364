//! Names of options as the command's flags.

use tload::{OptionKind, Options};

/// Returns the flag of an option that an error or a hint names, and the value behind it:
/// `--extent`, `--cache auto`.
pub(crate) fn flag(option: &str, value: Option<&str>) -> String {
    let key = Options::key(option);
    // `--verify` may stand alone, so that its value must follow in the same word.
    let separator = if key.is_some_and(|key| key.kind == OptionKind::Verify) {
        '='
    } else {
        ' '
    };
    let flag = match key.and_then(|key| key.flag) {
        Some(flag) => flag.to_owned(),
        // Copies read ranges, and their flag is that of loads.
        None if option == "range_bytes" => "extent".to_owned(),
        None => option.replace('_', "-"),
    };
    match value {
        Some(value) => format!("--{flag}{separator}{value}"),
        None => format!("--{flag}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
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
