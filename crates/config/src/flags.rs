//! Names of options in errors: as flags of the command, and with the place in the configuration
//! file that sets them.

use std::borrow::Cow;

use tload::LoadOptions;
use tload::internal::{OptionKey, OptionKind};

use crate::{Config, Setting};

/// Returns the flag of an option that an error or a hint names, and the value behind it:
/// `--extent`, `--cache auto`. For `list_names`, whose value is a location, returns the command.
pub fn flag(option: &str, value: Option<&str>) -> String {
    if option == "list_names" {
        let location = value.map_or("LOCATION".into(), quoted);
        return format!("tload ls {location}");
    }
    let key = LoadOptions::key(option);
    // `--verify` may stand alone, so that its value must follow in the same word.
    let separator = match key {
        Some(key) if key.kind == OptionKind::Verify => '=',
        _ => ' ',
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

/// Returns `name` of an option of loads, followed by what the configuration file sets it to where
/// it does and the option's variable does not: the user may not know of the file.
pub fn with_origin(option: &str, name: String) -> String {
    let config = Config::current().unwrap_or_default();
    let setting = config.load.iter().find(|setting| setting.option == option);
    let variable = LoadOptions::key(option).and_then(OptionKey::variable);
    match (setting, config.file(), variable.and_then(std::env::var_os)) {
        (Some(Setting { value, line, .. }), Some(file), None) => {
            format!("{name} ({}:{line} sets {value})", file.display())
        }
        _ => name,
    }
}

/// Returns `text` as one word of a POSIX shell.
fn quoted(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', r"'\''")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_quoted_for_the_shell() {
        for (location, command) in [
            ("models/a-1.safetensors", "tload ls models/a-1.safetensors"),
            ("s3://bucket/key", "tload ls s3://bucket/key"),
            ("my model", "tload ls 'my model'"),
            ("it's;$HOME", r"tload ls 'it'\''s;$HOME'"),
            ("", "tload ls ''"),
        ] {
            assert_eq!(flag("list_names", Some(location)), command);
        }
        assert_eq!(flag("list_names", None), "tload ls LOCATION");
    }
}
