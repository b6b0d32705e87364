//! Page of the findings about a machine.

use serde::Deserialize;
use serde_json::Value;

use crate::facts::Run;
use crate::page::{Badge, Finding, Item, Page, text};
use crate::quantity::format_count;

/// Findings about a machine.
#[derive(Debug, Default)]
pub struct Doctor {
    /// JSON that the command prints.
    pub diagnosis: Value,
    /// Location that was checked, without secrets.
    pub location: Option<String>,
    /// Circumstances.
    pub run: Run,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Diagnosis {
    change_first: Option<First>,
    findings: Vec<Found>,
    error: Option<Failure>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct First {
    id: String,
    urgency: String,
    command: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Found {
    id: String,
    level: String,
    title: String,
    value: String,
    advice: Option<String>,
    change: Option<Change>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Change {
    command: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Failure {
    message: String,
}

impl Diagnosis {
    /// Returns the sentence about the most urgent change, as the command ends its text with it.
    fn first(&self) -> Option<String> {
        let first = self.change_first.as_ref()?;
        let found = self.findings.iter().find(|it| it.id == first.id)?;
        let title = text(&found.title);
        match (&*found.level, &*first.urgency) {
            // The advice below says what to do.
            ("fail", _) => Some(format!("Fix first: {title}")),
            ("note" | "ok", "little") => None,
            _ => Some(format!("Fix first: {title}: {}", text(&first.command))),
        }
    }
}

/// Levels from the worst to the best, with the headings of their findings.
const LEVELS: [(&str, &str); 4] = [
    ("fail", "Failed"),
    ("warn", "Warnings"),
    ("note", "Worth knowing"),
    ("ok", "In order"),
];

/// Returns the page of the findings, the worst first.
#[must_use]
pub fn doctor_page(doctor: &Doctor) -> String {
    let diagnosis: Diagnosis = serde_json::from_value(doctor.diagnosis.clone()).unwrap_or_default();
    let of = |level: &'static str| {
        diagnosis
            .findings
            .iter()
            .filter(move |it| it.level == level)
    };
    let [failures, warnings, notes, fine] = LEVELS.map(|(level, _)| of(level).count() as u64);
    let heading = match &doctor.location {
        Some(location) => format!("This machine, for loads of {}", text(location)),
        None => "This machine, for loads".to_owned(),
    };
    let first = diagnosis.first();
    let (level, badge) = match (failures, warnings) {
        (0, 0) if first.is_some() => ("note", format_count(notes, "note")),
        (0, 0) => ("ok", "nothing needs fixing".to_owned()),
        (0, _) => ("warn", format_count(warnings, "warning")),
        (_, _) => ("fail", format!("{failures} failed")),
    };
    let mut page = Page {
        title: "tload doctor".to_owned(),
        kind: "doctor",
        heading,
        badge: Some(Badge { text: badge, level }),
        ..Page::default()
    };
    page.lead.extend(first);
    let failure = diagnosis.error.as_ref().map(|error| text(&error.message));
    page.lead.extend(failure.filter(|_| failures == 0));
    page.figure("Failed", Some(failures.to_string()));
    page.figure("Warnings", Some(warnings.to_string()));
    page.figure("Worth knowing", Some(notes.to_string()));
    page.figure("In order", Some(fine.to_string()));
    for (level, heading) in LEVELS {
        let findings: Vec<_> = of(level).map(|it| finding(it, level)).collect();
        if !findings.is_empty() {
            page.section(heading, "", vec![Item::Findings(findings)]);
        }
    }
    doctor.run.add_to(&mut page);
    page.document()
}

fn finding(found: &Found, level: &'static str) -> Finding {
    let command = found.change.as_ref().map(|change| text(&change.command));
    let advice = found.advice.as_deref().map(text);
    // The command has a line of its own.
    let advice = advice.map(|advice| {
        let without = command
            .as_ref()
            .and_then(|it| advice.strip_suffix(it.as_str()));
        without.map_or_else(
            || advice.clone(),
            |it| it.trim_end_matches([':', ' ', ',']).to_owned(),
        )
    });
    Finding {
        level,
        title: text(&found.title),
        value: text(&found.value),
        advice: advice.filter(|advice| !advice.is_empty()),
        command,
    }
}
