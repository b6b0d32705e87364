//! `tload doctor`: prints the findings with the advice below each, their counts, and the most
//! urgent change.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::Serialize;
use tload::internal::printable;
use tload::internal::probe::StoreProbe;
use tload::{Checkpoint, Error, ErrorKind, Result, StoreOptions};
use tload_config::Config;

use crate::args::DoctorArgs;
use crate::bench::results::RunRecord;
use crate::configuration;
use crate::deadline::{ERROR_GRACE, Watch};
use crate::export;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::standard_output;
use crate::output::failure::Outcome;
use crate::output::style;
use tload_doctor::host::System;
use tload_doctor::host::limits::Limits;
use tload_doctor::host::record::HostRecord;
use tload_doctor::{
    Change, Finding, Level, Settings, Storage, Urgency, examine, examine_configuration,
    examine_storage, examine_variables, first, no_answer,
};
use tload_quantity::format_count;

/// Longest measurement of a store if the user's timeout is beyond the clock's range.
const MEASURING_MAX: Duration = Duration::from_secs(3600);

/// Runs the subcommand. `limits` are those that the command was started with.
pub(crate) fn run(
    args: &DoctorArgs,
    arguments: &[OsString],
    interrupt: &Interrupt,
    limits: &Limits,
    out: &mut dyn Write,
) -> Result<()> {
    let config = configuration::current();
    let variable = |name: &str| std::env::var_os(name).map(|it| it.to_string_lossy().into_owned());
    let opening = options::arguments(&args.opening);
    let settings = Settings::new(config.as_deref().ok(), variable).with_arguments(&opening);
    let location = args.location.as_deref();
    let location = location.and_then(|text| options::location(text).ok());
    // An error in these options is reported even without a location.
    let nothing = Config::default();
    let configured = config.as_deref().unwrap_or(&nothing);
    let store = options::store_over(configured, &args.opening.store, location.as_ref())?;
    let store = options::within(Some(args.timeout), store)?;
    export::create(&args.html.iter().collect::<Vec<_>>())?;
    let examined = args
        .location
        .as_deref()
        .map(|location| examine_location(location, store, args, &settings, interrupt))
        .transpose()?;
    let checkpoint = examined
        .as_ref()
        .and_then(|examined| examined.checkpoint.get());
    let mut findings = examine(&System::real(), limits, &settings, checkpoint);
    let is_set = |name: &str| variable(name).is_some_and(|text| !text.trim().is_empty());
    findings.push(examine_configuration(
        &config,
        &opening,
        location.as_ref(),
        is_set,
    ));
    let variables = options::variables();
    findings.extend(examine_variables(variables.iter().map(String::as_str)));
    let (mut outcome, mut measured) = (Ok(()), None);
    if let Some(examined) = examined {
        findings.extend(examined.storage.findings);
        measured = examined.storage.store;
        outcome = examined.outcome;
    }
    let page = write_page(
        args,
        arguments,
        &findings,
        outcome.as_ref().err(),
        interrupt,
    );
    let written = if args.json {
        let failure = outcome.as_ref().err().map(|error| interrupt.failure(error));
        let diagnosis = Diagnosis::new(&findings, measured.as_ref());
        let outcome = Outcome::new(&diagnosis, failure);
        interrupt.answer().give(out, &outcome)
    } else {
        let written = write_text(out, &findings)
            .and_then(|()| out.flush())
            .map_err(standard_output);
        if written.is_ok() && outcome.is_err() {
            // The finding has told it.
            interrupt.answer().holds_failure();
        }
        written
    };
    // The error of the location, even if the findings cannot be written.
    outcome.and(written).and(page)
}

/// Writes the page, if the user wants one.
fn write_page(
    args: &DoctorArgs,
    arguments: &[OsString],
    findings: &[Finding],
    error: Option<&Error>,
    interrupt: &Interrupt,
) -> Result<()> {
    let Some(path) = &args.html else {
        return Ok(());
    };
    let failure = error.map(|error| interrupt.failure(error));
    let diagnosis = Diagnosis::new(findings, None);
    let location = args.location.clone();
    let shown = location.and_then(|location| tload_config::redact::arguments(&[location]).pop());
    let record = RunRecord::new(tload_config::redact::arguments(arguments));
    let host = HostRecord::collect(&System::real(), None, None, None);
    let doctor = tload_html::Doctor {
        diagnosis: serde_json::to_value(Outcome::new(&diagnosis, failure)).unwrap_or_default(),
        location: shown,
        run: export::run(&record, Some(&host)),
    };
    export::write_text(path, &tload_html::doctor_page(&doctor))
}

/// Result of checking a location.
struct Examined {
    /// Set once the headers have been read.
    checkpoint: Arc<OnceLock<Checkpoint>>,
    storage: Storage,
    outcome: Result<()>,
}

/// Opens the checkpoint and checks its storage, on a thread that is orphaned if the storage does
/// not answer.
fn examine_location(
    location: &OsStr,
    store: StoreOptions,
    args: &DoctorArgs,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<Examined> {
    let timeout = args.timeout;
    let started = Instant::now();
    let opening = options::opening(store, &args.opening)?;
    let checkpoint = Arc::<OnceLock<Checkpoint>>::default();
    let outcome = options::location(location).and_then(|location| {
        let late = |_| late(timeout).with_location(&location);
        let watch = Watch {
            interrupt,
            // The core names the file that does not answer, so its timeout comes first.
            timeout: Some(timeout + ERROR_GRACE),
            cancel: None,
            redraw: &|| (),
            late: &late,
        };
        let (from, opened, settings) =
            (location.clone(), Arc::clone(&checkpoint), settings.clone());
        watch.run(move || {
            let checkpoint = Checkpoint::open_with(&from, opening)?;
            let checkpoint = opened.get_or_init(|| checkpoint);
            let deadline = started
                .checked_add(timeout)
                .unwrap_or(started + MEASURING_MAX);
            Ok(examine_storage(
                &System::real(),
                &settings,
                checkpoint,
                deadline,
            ))
        })
    });
    let (storage, outcome) = match outcome {
        Ok(storage) => (storage, Ok(())),
        // The user interrupted the command.
        Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
        Err(error) => {
            let shown = location.to_string_lossy();
            let shown =
                options::location(location).map_or_else(|_| shown.into(), |it| it.to_string());
            let findings = vec![no_answer(&shown, timeout, &error)];
            let store = None;
            (Storage { findings, store }, Err(error))
        }
    };
    Ok(Examined {
        checkpoint,
        storage,
        outcome,
    })
}

fn late(timeout: Duration) -> Error {
    let message = format!("the check took longer than its timeout of {timeout:?}");
    Error::new(ErrorKind::TimedOut, message)
        .with_hint("raise ‹timeout›, or check the storage, which does not respond")
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Diagnosis<'a> {
    worst: Level,
    change_first: Option<First<'a>>,
    findings: &'a [Finding],
    /// Measurements of the object store.
    store: Option<&'a StoreProbe>,
}

/// The most urgent change.
#[derive(Debug, Serialize)]
struct First<'a> {
    id: &'static str,
    urgency: Urgency,
    command: &'a str,
}

impl<'a> Diagnosis<'a> {
    fn new(findings: &'a [Finding], store: Option<&'a StoreProbe>) -> Self {
        Self {
            worst: worst(findings),
            change_first: first(findings).map(|(finding, change)| First {
                id: finding.id,
                urgency: change.urgency,
                command: &change.command,
            }),
            findings,
            store,
        }
    }
}

fn worst(findings: &[Finding]) -> Level {
    findings
        .iter()
        .map(|finding| finding.level)
        .max()
        .unwrap_or(Level::Ok)
}

fn write_text(out: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    let width = findings
        .iter()
        .map(|finding| finding.title.len())
        .max()
        .unwrap_or(0);
    for finding in findings {
        writeln!(
            out,
            "{}  {:<width$}  {}",
            style::level(finding.level),
            finding.title,
            printable(&finding.value)
        )?;
        if let Some(advice) = &finding.advice {
            let advice = printable(advice);
            writeln!(out, "{:<4}  {:<width$}  → {advice}", "", "")?;
        }
    }
    let count = |level| {
        findings
            .iter()
            .filter(|finding| finding.level == level)
            .count() as u64
    };
    let failures = match count(Level::Fail) {
        0 => String::new(),
        failures => format!("{failures} failed, "),
    };
    writeln!(
        out,
        "\n{failures}{}, {}, {} ok",
        format_count(count(Level::Warn), "warning"),
        format_count(count(Level::Note), "note"),
        count(Level::Ok)
    )?;
    let is_minor = |finding: &Finding, change: &Change| {
        finding.level < Level::Warn && change.urgency == Urgency::Little
    };
    match first(findings) {
        Some((finding, change)) if is_minor(finding, change) => {
            writeln!(out, "Nothing needs fixing.")
        }
        // The advice above says what to do.
        Some((finding, _)) if finding.level == Level::Fail => {
            writeln!(out, "Fix first: {}", finding.title)
        }
        Some((finding, change)) => {
            let command = printable(&change.command);
            writeln!(out, "Fix first: {}: {command}", finding.title)
        }
        None if count(Level::Warn) == 0 => writeln!(out, "Nothing needs fixing."),
        None => Ok(()),
    }
}
