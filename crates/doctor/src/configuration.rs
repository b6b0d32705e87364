//! The configuration file: which one is read, what it sets, and what overrides it.

use std::path::Path;

use tload::{Error, ErrorKind, LoadOptions, Location, Result};
use tload_config::{Config, Setting};

use super::{Arguments, Finding, Level, Urgency};

const ID: &str = "configuration";
const TITLE: &str = "configuration";

/// Returns the finding about `config`, for loads from `location` if there is one, with these
/// `arguments`.
pub fn finding(
    config: &Result<impl AsRef<Config>>,
    arguments: &Arguments,
    location: Option<&Location>,
    variable: impl Fn(&str) -> bool,
) -> Finding {
    let config = match config {
        Ok(config) => config.as_ref(),
        Err(error) => return unreadable(error),
    };
    let Some(file) = config.file() else {
        return Finding::ok(ID, TITLE, "no configuration file");
    };
    let overrides = |setting: &Setting| overriding(setting, arguments, &variable);
    let mut shown: Vec<_> = config
        .settings()
        .map(|it| show(it, overrides(it)))
        .collect();
    if shown.is_empty() {
        shown.push("sets nothing".to_owned());
    }
    if let Some(location) = location {
        shown.extend(in_force(config, location, &overrides));
    }
    Finding::ok(
        ID,
        TITLE,
        format!("{}: {}", file.display(), shown.join(", ")),
    )
}

fn show(setting: &Setting, overriding: Option<String>) -> String {
    let Setting { table, value, .. } = setting;
    let by = overriding.map_or_else(String::new, |it| format!(" (overridden by {it})"));
    format!("{table} {} = {value}{by}", setting.key())
}

/// Returns the variable or argument that comes before a setting.
fn overriding(
    setting: &Setting,
    arguments: &Arguments,
    is_set: &impl Fn(&str) -> bool,
) -> Option<String> {
    if let Some(key) = LoadOptions::key(setting.option).filter(|_| setting.is_of_loads()) {
        return key.variable().filter(|name| is_set(name));
    }
    if let Some((key, _)) = arguments.own.iter().find(|(key, _)| *key == setting.option) {
        let variable = format!("TLOAD_{}", key.to_ascii_uppercase());
        let flag = format!("--{}", key.replace('_', "-"));
        return Some(if is_set(&variable) { variable } else { flag });
    }
    arguments.origin(setting.option).map(ToOwned::to_owned)
}

/// Returns what prefixes set for `location`.
fn in_force(
    config: &Config,
    location: &Location,
    overriding: &impl Fn(&Setting) -> Option<String>,
) -> Option<String> {
    let options = config.store_options(std::slice::from_ref(location)).ok()?;
    let is_kept = |key: &str| {
        let mut settings = config.settings().filter(|it| !it.is_of_loads());
        settings.any(|it| it.option == key && overriding(it).is_none())
    };
    let kept = options.iter().filter(|(key, _)| is_kept(key));
    let kept: Vec<_> = kept.map(|(key, value)| format!("{key}={value}")).collect();
    (!kept.is_empty()).then(|| format!("in force for {location}: {}", kept.join(" ")))
}

fn unreadable(error: &Error) -> Finding {
    let file = error.location().unwrap_or_default();
    let hint = error.hint().map(|hint| format!("; {hint}"));
    let advice = format!(
        "every load fails until it is corrected{}",
        hint.unwrap_or_default()
    );
    let finding = Finding::ok(ID, TITLE, format!("{file}: {}", error.message()));
    let finding = finding.advise(Level::Fail, advice);
    // Quotes are left to the user where a shell would need them.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if error.kind() == ErrorKind::PermissionDenied && file.chars().all(is_plain) {
        return finding.change(Urgency::Failure, format!("chmod go-w {file}"));
    }
    let shown = Path::new(file).display();
    finding.change(Urgency::Failure, format!("correct {shown}"))
}
