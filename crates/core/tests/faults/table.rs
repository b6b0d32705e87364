//! Runs every row with each of its engines and checks that the outcome is the row's, that nothing
//! hangs and nothing leaks.

use crate::bench::alone;
use crate::requirement::say;
use crate::row::{Ended, Place, Row, Via};
use crate::traces::Traces;
use crate::{in_contents, on_devices, on_files, on_hubs, on_objects};

/// Minimum number of rows; guards against a table that shrinks.
const ROWS_MIN: usize = 80;

/// Minimum number of rows about files, and of rows about objects, that hold for sealed ones.
const SEALED_ROWS_MIN: usize = 40;

/// Returns all rows, in the order of the page.
pub(crate) fn all() -> Vec<Row> {
    let files = on_files::rows().into_iter().map(|fault| fault.row);
    let objects = on_objects::rows().into_iter().map(|fault| fault.row);
    let hubs = on_hubs::rows().into_iter().map(|fault| fault.row);
    let devices = on_devices::rows().into_iter().map(|fault| fault.row);
    let contents = in_contents::rows().into_iter().map(|fault| fault.row);
    files
        .chain(objects)
        .chain(hubs)
        .chain(devices)
        .chain(contents)
        .collect()
}

/// Deviations from the table, row by row.
#[derive(Default)]
struct Findings {
    complaints: Vec<String>,
}

impl Findings {
    /// Runs a row with one engine and records its deviations.
    fn check(&mut self, row: &Row, via: Via, run: impl FnOnce() -> Option<Ended>) {
        let before = Traces::now();
        let started = std::time::Instant::now();
        let ended = run();
        let mut found = match &ended {
            None => vec!["hangs".to_owned()],
            Some(ended) => row.complaints(ended),
        };
        let shown = ended.as_ref().map(ToString::to_string).unwrap_or_default();
        drop(ended);
        found.extend(before.left_since().map(|left| format!("leaves: {left}")));
        let place = format!("{:?}, {}, {}", row.place, row.fault, via.name());
        if verbose() {
            say(&format!("{place}: {:?}: {shown}", started.elapsed()));
        }
        for complaint in found {
            self.complaints
                .push(format!("{place}: {complaint}\n    {shown}"));
        }
    }

    fn assert_none(self) {
        let count = self.complaints.len();
        assert!(
            count == 0,
            "{}\n{count} complaints",
            self.complaints.join("\n")
        );
    }
}

/// Returns whether to print the outcome of every row.
fn verbose() -> bool {
    crate::requirement::variable("TLOAD_SHOW").is_some()
}

#[test]
fn file_faults_end_as_tabled() {
    let _alone = alone();
    if let Some(bench) = on_files::Bench::start() {
        check_files(&bench, on_files::rows());
    }
}

#[test]
fn faults_of_sealed_files_end_as_tabled() {
    let _alone = alone();
    if let Some(bench) = on_files::Bench::sealed() {
        let rows = on_files::rows().into_iter();
        let rows: Vec<_> = rows.filter_map(on_files::when_sealed).collect();
        assert!(
            rows.len() >= SEALED_ROWS_MIN,
            "{} rows are left",
            rows.len()
        );
        check_files(&bench, rows);
    }
}

fn check_files(bench: &on_files::Bench, rows: Vec<on_files::FileFault>) {
    let mut findings = Findings::default();
    for fault in rows {
        let engines = fault.row.engines.iter();
        for &via in engines.filter(|via| on_files::is_there(**via)) {
            findings.check(&fault.row, via, || bench.run(&fault, via));
        }
    }
    findings.assert_none();
}

#[test]
fn object_faults_end_as_tabled() {
    check_objects(on_objects::rows(), on_objects::Bench::start);
}

#[test]
fn faults_of_sealed_objects_end_as_tabled() {
    let rows: Vec<_> = on_objects::rows()
        .into_iter()
        .filter_map(on_objects::ObjectFault::when_sealed)
        .collect();
    assert!(
        rows.len() >= SEALED_ROWS_MIN,
        "{} rows are left",
        rows.len()
    );
    check_objects(rows, on_objects::Bench::sealed);
}

fn check_objects(rows: Vec<on_objects::ObjectFault>, start: fn() -> on_objects::Bench) {
    let _alone = alone();
    // Opens what the process opens once.
    on_objects::warm_up();
    let mut findings = Findings::default();
    for fault in rows {
        findings.check(&fault.row, Via::Object, || fault.run(start));
    }
    findings.assert_none();
}

#[test]
fn hub_faults_end_as_tabled() {
    let _alone = alone();
    on_objects::warm_up();
    let mut findings = Findings::default();
    for fault in on_hubs::rows() {
        findings.check(&fault.row, Via::Object, || fault.run());
    }
    findings.assert_none();
}

#[test]
fn device_faults_end_as_tabled() {
    let _alone = alone();
    let cuda = crate::stub::cuda();
    let mut findings = Findings::default();
    for fault in on_devices::rows() {
        findings.check(&fault.row, Via::Pread, || fault.run(&cuda));
    }
    findings.assert_none();
}

#[test]
fn content_faults_end_as_tabled() {
    let _alone = alone();
    let mut findings = Findings::default();
    for fault in in_contents::rows() {
        for is_sealed in [false, true] {
            findings.check(&fault.row, Via::Pread, || fault.run(is_sealed));
        }
    }
    findings.assert_none();
}

#[test]
fn table_covers_all_places_without_duplicates() {
    let rows = all();
    assert!(
        rows.len() >= ROWS_MIN,
        "it has shrunk to {} rows",
        rows.len()
    );
    for place in [
        Place::Files,
        Place::Objects,
        Place::Hubs,
        Place::Devices,
        Place::Contents,
    ] {
        let here = rows.iter().filter(|row| row.place == place).count();
        assert!(here >= 10, "{place:?}: {here}");
    }
    for (index, row) in rows.iter().enumerate() {
        let twice = rows[..index].iter().any(|other| other.fault == row.fault);
        assert!(!twice, "two rows are called {:?}", row.fault);
    }
}
