//! Options that are set, by `TLOAD_*` variables for every load or by arguments of `doctor`. Shown
//! as loads interpret them, without secrets.

use tload::LoadOptions;
use tload::internal::{OptionValue, format_bytes};
use tload_config::Config;

use super::{Arguments, Finding, Level, Urgency};

const ID: &str = "settings";
const TITLE: &str = "settings";
const LINKS: &str = "TLOAD_FOLLOW_SYMLINKS";
/// Level of the Python package's log.
const LOG: &str = "TLOAD_LOG";

/// Values of the variables.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Options of loads, over those of the configuration file.
    pub options: LoadOptions,
    /// Options that are set, and the variables that set them, in the order of the table.
    set: Vec<(&'static str, String)>,
    /// Settings that are no options of a load, as they are shown.
    others: Vec<String>,
    /// True if a variable allows links.
    has_links_variable: bool,
    /// Variables whose values loads reject.
    rejected: Vec<String>,
}

impl Settings {
    /// Reads the settings through `variable`, over those of the configuration file. A blank
    /// variable counts as unset.
    pub fn new(config: Option<&Config>, variable: impl Fn(&str) -> Option<String>) -> Self {
        let configured = config.and_then(|config| config.load_options().ok());
        let mut settings = Self {
            options: configured.unwrap_or_default(),
            ..Self::default()
        };
        for key in LoadOptions::KEYS {
            let Some(name) = key.variable() else { continue };
            let text = variable(&name).filter(|text| !text.trim().is_empty());
            match text.map(|text| settings.options.set(key.name, text.trim())) {
                None => {}
                Some(Ok(())) => settings.set.push((key.name, name)),
                Some(Err(_)) => settings.rejected.push(name),
            }
        }
        let set = |name| variable(name).filter(|text| !text.trim().is_empty());
        settings
            .others
            .extend(set(LOG).map(|level| format!("log {} ({LOG})", level.trim())));
        settings.has_links_variable = set(LINKS).is_some();
        settings
    }

    /// Adds the options of stores and links, from variables and arguments.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &Arguments) -> Self {
        for (origin, options) in arguments.lists().into_iter().rev() {
            let options = options.iter().map(|option| option.to_string_lossy());
            let shown: Vec<_> = options
                .filter(|option| !option.trim().is_empty())
                .map(|option| tload_config::redact::store_option(option.trim()))
                .collect();
            if !shown.is_empty() {
                self.others
                    .push(format!("store {} ({origin})", shown.join(" ")));
            }
        }
        for (key, value) in &arguments.own {
            let value = value.to_string_lossy();
            self.others
                .push(format!("{} {value}", key.replace('_', "-")));
        }
        if arguments.follow_symlinks {
            let origin = if self.has_links_variable {
                LINKS
            } else {
                "--follow-symlinks"
            };
            self.others.push(format!("follow-symlinks true ({origin})"));
        }
        self
    }

    pub(crate) fn finding(&self) -> Finding {
        let shown = LoadOptions::KEYS.iter().filter_map(|key| {
            let (_, variable) = self.set.iter().find(|(name, _)| *name == key.name)?;
            let flag = key.flag?;
            let value = key.value(&self.options)?;
            Some(if let OptionValue::Bytes(bytes) = value {
                format!("{flag} {} ({variable})", format_bytes(bytes))
            } else {
                format!("{flag} {value} ({variable})")
            })
        });
        let shown = shown.chain(self.others.iter().cloned());
        let rejected = self
            .rejected
            .iter()
            .map(|name| format!("{name} is invalid"));
        let shown: Vec<_> = shown.chain(rejected).collect();
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
        Settings::new(None, value).finding()
    }

    #[test]
    fn store_and_links_are_shown_without_secrets() {
        let arguments = Arguments {
            store: vec!["region=eu-west-1".into(), "session_token=hunter2".into()],
            environment: vec![
                "endpoint=https://me:hunter2@host:9".into(),
                " ".into(),
                "odd hunter2".into(),
            ],
            own: Vec::new(),
            follow_symlinks: true,
        };
        let found = Settings::default().with_arguments(&arguments).finding();
        assert_eq!(
            found.value,
            "store endpoint=https://host:9 *** (TLOAD_STORE), store region=eu-west-1 session_token=*** (--store), \
             follow-symlinks true (--follow-symlinks)"
        );
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
            all.value
                .starts_with("in-flight 1.0 MiB (TLOAD_IN_FLIGHT), verify https://"),
            "{}",
            all.value
        );
        assert!(
            all.value
                .ends_with("hedge false (TLOAD_HEDGE), timeout 600s (TLOAD_TIMEOUT)"),
            "{}",
            all.value
        );
        assert!(!all.value.contains("hunter2"), "{}", all.value);
        let others = finding(&[
            ("TLOAD_ENGINE", "pread"),
            ("TLOAD_CACHE", "drop"),
            ("TLOAD_DEPTH", "4"),
            ("TLOAD_LOG", "debug"),
        ]);
        assert_eq!(
            others.value,
            "engine pread (TLOAD_ENGINE), depth 4 (TLOAD_DEPTH), cache drop (TLOAD_CACHE), log debug (TLOAD_LOG)"
        );
        let wrong = finding(&[("TLOAD_RETRIES", "many")]);
        assert_eq!(wrong.level, Level::Warn);
        assert_eq!(
            wrong.change.expect("a command").command,
            "unset TLOAD_RETRIES"
        );
    }

    #[test]
    fn rejected_variable_is_shown_as_invalid() {
        let found = finding(&[("TLOAD_CACHE", "directly")]);
        assert_eq!(found.value, "TLOAD_CACHE is invalid");
        let found = finding(&[("TLOAD_CACHE", "directly"), ("TLOAD_DEPTH", "4")]);
        assert_eq!(found.value, "depth 4 (TLOAD_DEPTH), TLOAD_CACHE is invalid");
    }
}
