//! `tload doctor`: prints the findings, with the advice under each, counts them, and says what to change first.

use std::io::{self, Write};

use serde::Serialize;
use tload::{Checkpoint, Result, printable};

use crate::args::DoctorArgs;
use crate::doctor::{Finding, Level, Urgency, examine, first};
use crate::host::System;
use crate::host::limits::Limits;
use crate::options;
use crate::output::error::standard_output;
use crate::output::json;

/// `limits`: as the command was started with.
pub(crate) fn run(args: &DoctorArgs, limits: &Limits, out: &mut dyn Write) -> Result<()> {
    let opening = options::opening(options::store(&args.store)?, &args.links);
    let checkpoint = args.location.as_ref().map(|location| {
        options::location(location).and_then(|location| Checkpoint::open_with(&location, &opening))
    });
    let opened = checkpoint.as_ref().map(Result::as_ref);
    let findings = examine(&System::real(), limits, opened);
    let written = if args.json {
        write_json(out, &findings)
    } else {
        write_text(out, &findings)
    };
    written
        .and_then(|()| out.flush())
        .map_err(standard_output)?;
    checkpoint.map_or(Ok(()), |checkpoint| checkpoint.map(drop))
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Diagnosis<'a> {
    worst: Level,
    change_first: Option<First<'a>>,
    findings: &'a [Finding],
}

/// The one thing to change first.
#[derive(Debug, Serialize)]
struct First<'a> {
    id: &'static str,
    urgency: Urgency,
    command: &'a str,
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
            "{:<4}  {:<width$}  {}",
            finding.level,
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
            .count()
    };
    let (failures, warnings, notes) = (count(Level::Fail), count(Level::Warn), count(Level::Note));
    let failed = if failures > 0 {
        format!("{failures} failed (fail), ")
    } else {
        String::new()
    };
    writeln!(
        out,
        "\n{failed}{warnings} to fix (warn), {notes} worth knowing (note), {} ok",
        count(Level::Ok)
    )?;
    match first(findings) {
        Some((finding, change)) => {
            writeln!(out, "Change first: {}: {}", finding.title, change.command)
        }
        None => Ok(()),
    }
}

fn write_json(out: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    let diagnosis = Diagnosis {
        worst: worst(findings),
        change_first: first(findings).map(|(finding, change)| First {
            id: finding.id,
            urgency: change.urgency,
            command: &change.command,
        }),
        findings,
    };
    json::write(out, &diagnosis)
}
