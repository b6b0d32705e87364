//! Names of options as the command's flags.

use tload::Options;

/// Returns the flag of an option that an error or a hint names, and the value behind it:
/// `--extent`, `--cache auto`.
pub(crate) fn flag(option: &str, value: Option<&str>) -> String {
    let flag = match Options::key(option).and_then(|key| key.flag) {
        Some(flag) => flag.to_owned(),
        // Copies read ranges, and their flag is that of loads.
        None if option == "range_bytes" => "extent".to_owned(),
        None => option.replace('_', "-"),
    };
    match value {
        Some(value) => format!("--{flag} {value}"),
        None => format!("--{flag}"),
    }
}
