//! `TLOAD_*` variables that set options of every load. Shown as loads interpret them, without
//! secrets.

use tload::{OptionValue, Options, format_bytes};

use super::{Finding, Level, Urgency};

const ID: &str = "settings";
const TITLE: &str = "settings";

/// Values of the variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) options: Options,
    /// Options that are set, in the order of the table.
    set: Vec<&'static str>,
    /// Variables whose values loads reject.
    rejected: Vec<String>,
}

impl Settings {
    /// Reads the settings through `variable`. A blank variable counts as unset.
    pub(crate) fn new(variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut settings = Self::default();
        for key in Options::KEYS {
            let Some(name) = key.variable() else { continue };
            let text = variable(&name).filter(|text| !text.trim().is_empty());
            match text.map(|text| settings.options.set(key.name, text.trim())) {
                None => {}
                Some(Ok(())) => settings.set.push(key.name),
                Some(Err(_)) => settings.rejected.push(name),
            }
        }
        settings
    }

    pub(super) fn finding(&self) -> Finding {
        let shown = Options::KEYS.iter().filter_map(|key| {
            let flag = key.flag.filter(|_| self.set.contains(&key.name))?;
            let value = key.value(&self.options)?;
            Some(if let OptionValue::Bytes(bytes) = value {
                format!("{flag} {}", format_bytes(bytes))
            } else {
                format!("{flag} {value}")
            })
        });
        let shown: Vec<_> = shown.collect();
        let finding = match shown.as_slice() {
            [] => Finding::ok(ID, TITLE, "no TLOAD_* variable changes loads"),
            shown => Finding::ok(ID, TITLE, shown.join(", ")),
        };
        if self.rejected.is_empty() {
            return finding;
        }
        let command = format!("unset {}", self.rejected.join(" "));
        finding
            .advise(
                Level::Warn,
                format!(
                    "loads reject the value of {}: correct it, or {command}",
                    self.rejected.join(" and ")
                ),
            )
            .change(Urgency::Failure, command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(variables: &[(&str, &str)]) -> Finding {
        let value = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::new(value).finding()
    }

    #[test]
    fn settings_show_variables_that_are_set() {
        let none = finding(&[("TLOAD_TIMEOUT", " ")]);
        assert_eq!((none.level, none.change), (Level::Ok, None));
        assert_eq!(none.value, "no TLOAD_* variable changes loads");
        let all = finding(&[
            ("TLOAD_TIMEOUT", "10m"),
            ("TLOAD_IN_FLIGHT", "1 MiB"),
            ("TLOAD_HEDGE", "false"),
            (
                "TLOAD_VERIFY",
                "https://user:hunter2@host/m.json?sig=hunter2",
            ),
        ]);
        assert!(
            all.value.starts_with("in-flight 1.0 MiB, verify https://"),
            "{}",
            all.value
        );
        assert!(
            all.value.ends_with("hedge false, timeout 600s"),
            "{}",
            all.value
        );
        assert!(!all.value.contains("hunter2"), "{}", all.value);
        let wrong = finding(&[("TLOAD_RETRIES", "many")]);
        assert_eq!(wrong.level, Level::Warn);
        assert_eq!(
            wrong.change.expect("a command").command,
            "unset TLOAD_RETRIES"
        );
    }
}
