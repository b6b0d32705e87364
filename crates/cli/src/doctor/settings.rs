//! Environment variables that apply to every load: timeout, retries, hedging and verification.
//! Shown as loads interpret them, without secrets.

use std::str::FromStr;
use std::time::Duration;

use tload::Verify;

use super::{Finding, Level, Urgency};
use crate::args::duration;

const ID: &str = "settings";
const TITLE: &str = "settings";

/// Values of the variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) timeout: Option<Duration>,
    retries: Option<u32>,
    hedge: Option<bool>,
    verify: Option<Verify>,
    /// Variables whose values loads reject.
    refused: Vec<&'static str>,
}

impl Settings {
    /// Reads the settings through `variable`. A blank variable counts as unset.
    pub(crate) fn new(variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut refused = Vec::new();
        let mut value = |name: &'static str| variable(name).filter(|text| !text.trim().is_empty());
        let timeout = parsed(&mut value, &mut refused, "TLOAD_TIMEOUT", |text| {
            duration(text).ok()
        });
        let retries = parsed(&mut value, &mut refused, "TLOAD_RETRIES", of_text);
        let hedge = parsed(&mut value, &mut refused, "TLOAD_HEDGE", of_text);
        let verify = parsed(&mut value, &mut refused, "TLOAD_VERIFY", of_text);
        Self {
            timeout,
            retries,
            hedge,
            verify,
            refused,
        }
    }

    pub(super) fn finding(&self) -> Finding {
        let or = |value: Option<String>, default: &str| {
            value.unwrap_or_else(|| format!("{default} (default)"))
        };
        let value = format!(
            "timeout {}, retries {}, hedge {}, verify {}",
            or(self.timeout.map(|it| format!("{it:?}")), "none"),
            or(
                self.retries.map(|it| it.to_string()),
                "8, 0 for files on disks"
            ),
            or(self.hedge.map(|it| it.to_string()), "true"),
            or(self.verify.as_ref().map(ToString::to_string), "off"),
        );
        let finding = Finding::ok(ID, TITLE, value);
        if self.refused.is_empty() {
            return finding;
        }
        let command = format!("unset {}", self.refused.join(" "));
        finding
            .advise(
                Level::Warn,
                format!(
                    "loads reject the value of {}: correct it, or {command}",
                    self.refused.join(" and ")
                ),
            )
            .change(Urgency::Failure, command)
    }
}

fn of_text<T: FromStr>(text: &str) -> Option<T> {
    text.trim().parse().ok()
}

fn parsed<T>(
    value: &mut impl FnMut(&'static str) -> Option<String>,
    refused: &mut Vec<&'static str>,
    name: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let parsed = parse(&value(name)?);
    if parsed.is_none() {
        refused.push(name);
    }
    parsed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Finding {
        let value = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::new(value).finding()
    }

    #[test]
    fn settings_show_values_and_defaults() {
        let none = of(&[("TLOAD_TIMEOUT", " ")]);
        assert_eq!((none.level, none.change), (Level::Ok, None));
        assert_eq!(
            none.value,
            "timeout none (default), retries 8, 0 for files on disks (default), hedge true (default), verify off (default)"
        );
        let all = of(&[
            ("TLOAD_TIMEOUT", "10m"),
            ("TLOAD_RETRIES", "2"),
            ("TLOAD_HEDGE", "false"),
            (
                "TLOAD_VERIFY",
                "https://user:hunter2@host/m.json?sig=hunter2",
            ),
        ]);
        assert!(
            all.value
                .starts_with("timeout 600s, retries 2, hedge false, verify https://"),
            "{}",
            all.value
        );
        assert!(!all.value.contains("hunter2"), "{}", all.value);
        let wrong = of(&[("TLOAD_RETRIES", "many")]);
        assert_eq!(wrong.level, Level::Warn);
        assert_eq!(
            wrong.change.expect("what to do").command,
            "unset TLOAD_RETRIES"
        );
    }
}
