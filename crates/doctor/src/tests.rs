//! Findings on machines made of files.

use std::time::Duration;

use tload::{Error, ErrorKind};

use super::*;
use crate::host::limits::Limit;
use crate::host::testing::system;

/// No limits.
const NONE: Limits = Limits {
    files: NO_LIMIT,
    locked_memory: NO_LIMIT,
    threads: NO_LIMIT,
};
const NO_LIMIT: Limit = Limit {
    now: None,
    most: None,
};

fn find<'a>(findings: &'a [Finding], id: &str) -> &'a Finding {
    findings
        .iter()
        .find(|finding| finding.id == id)
        .unwrap_or_else(|| panic!("no finding {id}"))
}

#[test]
fn bare_machine_gets_notes() {
    let (_folder, system) = system(&[]);
    let findings = examine(&system, &NONE, &Settings::default(), None);
    for id in ["kernel", "memory", "huge_pages"] {
        let finding = find(&findings, id);
        assert_eq!(finding.level, Level::Note, "{id}");
        assert!(
            finding.value.starts_with("unknown: cannot read"),
            "{}",
            finding.value
        );
    }
}

#[test]
fn unopenable_location_adds_finding() {
    let (_folder, system) = system(&[]);
    let error = Error::new(ErrorKind::Io, "cannot open")
        .with_location("a")
        .with_source("broken disk")
        .with_hint("use ‹cache=buffered›");
    let mut findings = examine(&system, &NONE, &Settings::default(), None);
    findings.push(no_answer("a", Duration::from_secs(10), &error));
    let finding = find(&findings, "checkpoint");
    assert_eq!(finding.level, Level::Fail);
    assert_eq!(finding.value, "a: cannot open; caused by: broken disk");
    assert_eq!(finding.advice.as_deref(), Some("use --cache buffered"));
    // Whatever else there is to change: this comes first.
    let (changed, change) = first(&findings).unwrap();
    assert_eq!(changed.id, "checkpoint");
    assert_eq!(change.command, "use --cache buffered");
}

#[test]
fn silent_location_is_reported_as_hang() {
    let error = Error::new(ErrorKind::TimedOut, "opening took longer than its timeout")
        .with_location("/mnt/a/model.safetensors");
    let finding = no_answer("/mnt/a", Duration::from_secs(10), &error);
    assert_eq!(finding.level, Level::Fail);
    assert_eq!(
        finding.value,
        "/mnt/a did not answer within 10s: /mnt/a/model.safetensors: opening took longer than its timeout"
    );
    let change = finding.change.expect("says what to do");
    assert_eq!(change.urgency, Urgency::Hang);
    assert!(change.command.contains("--timeout"), "{}", change.command);
    assert!(change.command.contains("umount -f"), "{}", change.command);
}

#[test]
fn silent_store_gets_advice_on_network() {
    let error = Error::new(ErrorKind::TimedOut, "opening took longer than its timeout");
    let advice = |location| {
        let finding = no_answer(location, Duration::from_secs(10), &error);
        finding.advice.expect("says what to do")
    };
    for url in ["s3://bucket/model", "hf://org/name", "https://host/model"] {
        let advice = advice(url);
        assert!(advice.contains("firewall"), "{url}: {advice}");
        assert!(!advice.contains("umount"), "{url}: {advice}");
    }
    assert!(advice("file:///mnt/model").contains("umount"));
}

#[test]
fn ids_are_unique() {
    let findings = examine(&System::real(), &NONE, &Settings::default(), None);
    let mut ids: Vec<_> = findings.iter().map(|finding| finding.id).collect();
    ids.sort_unstable();
    let count = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[test]
fn io_uring_finding_names_filter_and_sysctl() {
    let (_folder, system) = system(&[
        ("proc/sys/kernel/io_uring_disabled", "2\n"),
        ("proc/self/status", "Seccomp:\t2\n"),
    ]);
    let findings = ring::findings(&system);
    assert_eq!(find(&findings, "io_uring_disabled").level, Level::Warn);
    assert!(find(&findings, "seccomp").value.contains("filter"));
}
