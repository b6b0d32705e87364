//! Messages beside the results: notes, progress, and a log of what the crate does. Set once, at the
//! start of the command, for the whole process, as the colours of `anstream` are.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tload::LoadOptions;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

use super::error::warn;
use crate::args::DisplayArgs;

/// Variable with the level of the log, as in Python.
const VARIABLE: &str = "TLOAD_LOG";
const LEVELS: [(&str, LevelFilter); 5] = [
    ("debug", LevelFilter::DEBUG),
    ("info", LevelFilter::INFO),
    ("warning", LevelFilter::WARN),
    ("error", LevelFilter::ERROR),
    ("off", LevelFilter::OFF),
];

static NOTES: AtomicBool = AtomicBool::new(true);
static PROGRESS: AtomicBool = AtomicBool::new(true);

/// Applies the flags of the command and `variable`, the value of `TLOAD_LOG`.
pub(crate) fn set(args: &DisplayArgs, variable: Option<&str>) {
    let level = level(args, variable);
    NOTES.store(!args.quiet, Ordering::Relaxed);
    // Lines of a log would tear the bar.
    let with_progress = !args.quiet && !args.no_progress && level < LevelFilter::INFO;
    PROGRESS.store(with_progress, Ordering::Relaxed);
    if level > LevelFilter::OFF {
        start_log(level);
    }
}

/// Returns whether notes and summaries are printed.
pub(crate) fn shows_notes() -> bool {
    NOTES.load(Ordering::Relaxed)
}

/// Returns whether a progress bar is drawn, if there is a terminal.
pub(crate) fn shows_progress() -> bool {
    PROGRESS.load(Ordering::Relaxed)
}

/// Returns the level of the log. Flags take precedence over the variable.
fn level(args: &DisplayArgs, variable: Option<&str>) -> LevelFilter {
    match (args.quiet, args.verbose) {
        (true, _) => return LevelFilter::OFF,
        (false, 0) => {}
        (false, 1) => return LevelFilter::INFO,
        (false, _) => return LevelFilter::DEBUG,
    }
    let Some(text) = variable.map(str::trim).filter(|text| !text.is_empty()) else {
        return LevelFilter::OFF;
    };
    let mut known = LEVELS.iter();
    let found = known.find(|(name, _)| name.eq_ignore_ascii_case(text));
    found.map_or_else(
        || {
            // No command should fail because of a log level.
            let names = LEVELS.map(|(name, _)| name).join(", ");
            warn(&format!(
                "warning: {VARIABLE}={text:?} is ignored; it can be {names}"
            ));
            LevelFilter::OFF
        },
        |(_, level)| *level,
    )
}

/// Logs events of this crate and the core on standard error. Others, such as those of HTTP clients,
/// may contain secrets.
fn start_log(level: LevelFilter) {
    let lines = fmt::layer()
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .with_writer(|| Lines);
    let subscriber = tracing_subscriber::registry()
        .with(Targets::new().with_target("tload", level))
        .with(lines);
    // Fails if this process has a subscriber already: that of an earlier call.
    drop(tracing::subscriber::set_global_default(subscriber));
    for line in variables(|name| std::env::var_os(name).map(|it| it.to_string_lossy().into_owned()))
    {
        tracing::info!("{line}");
    }
}

/// Returns a line for each variable that sets an option, without secrets.
fn variables(value: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let set = LoadOptions::KEYS.iter().filter_map(|key| {
        let name = key.variable()?;
        let text = value(&name).filter(|text| !text.trim().is_empty())?;
        let mut options = LoadOptions::default();
        let is_valid = options.set(key.name, text.trim()).is_ok();
        let shown = key.value(&options).filter(|_| is_valid);
        Some(shown.map_or_else(
            || format!("{name} is set"),
            |shown| format!("{name}={shown}"),
        ))
    });
    let store = value("TLOAD_STORE").map(|_| "TLOAD_STORE is set".to_owned());
    set.chain(store).collect()
}

/// Writer of the log: printable lines on standard error.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        warn(String::from_utf8_lossy(bytes).trim_start());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn level_of(flags: &[&str], variable: Option<&str>) -> LevelFilter {
        let arguments = ["tload", "ls", "model"].iter().chain(flags);
        let args = Args::try_parse_from(arguments).expect("valid arguments");
        level(&args.display, variable)
    }

    #[test]
    fn flags_precede_variable() {
        assert_eq!(level_of(&[], None), LevelFilter::OFF);
        assert_eq!(level_of(&["-v"], None), LevelFilter::INFO);
        assert_eq!(level_of(&["-vv"], Some("error")), LevelFilter::DEBUG);
        assert_eq!(level_of(&["-q"], Some("debug")), LevelFilter::OFF);
        assert_eq!(level_of(&[], Some(" Warning ")), LevelFilter::WARN);
        assert_eq!(level_of(&[], Some(" ")), LevelFilter::OFF);
        assert_eq!(level_of(&[], Some("loud")), LevelFilter::OFF);
    }

    #[test]
    fn variables_are_shown_without_secrets() {
        let lines = variables(|name| match name {
            "TLOAD_CACHE" => Some("drop".to_owned()),
            "TLOAD_DEPTH" => Some(" ".to_owned()),
            "TLOAD_ENGINE" => Some("topsecret".to_owned()),
            "TLOAD_VERIFY" => Some("https://host/m.json?sig=topsecret".to_owned()),
            "TLOAD_STORE" => Some("secret_access_key=topsecret".to_owned()),
            _ => None,
        });
        for line in [
            "TLOAD_CACHE=drop",
            "TLOAD_ENGINE is set",
            "TLOAD_STORE is set",
        ] {
            assert!(lines.iter().any(|it| it == line), "{lines:?}");
        }
        assert_eq!(lines.len(), 4);
        assert!(!lines.concat().contains("topsecret"), "{lines:?}");
    }
}
