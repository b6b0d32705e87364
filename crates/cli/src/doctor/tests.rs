//! Findings on machines made of files.

use super::*;
use crate::host::testing::system;

fn find<'a>(findings: &'a [Finding], id: &str) -> &'a Finding {
    findings
        .iter()
        .find(|finding| finding.id == id)
        .unwrap_or_else(|| panic!("no finding {id}"))
}

#[test]
fn a_machine_that_shows_nothing_still_gets_findings() {
    let (_folder, system) = system(&[]);
    let findings = examine(&system, None);
    for id in ["kernel", "memlock", "memory", "huge_pages"] {
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
fn a_location_that_cannot_be_opened_is_one_finding_more() {
    let (_folder, system) = system(&[]);
    let error = Error::new(tload::ErrorKind::Io, "cannot open")
        .with_location("a")
        .with_source("broken disk")
        .with_hint("use cache=buffered");
    let findings = examine(&system, Some(Err(&error)));
    assert_eq!(findings.len(), examine(&system, None).len() + 1);
    let finding = find(&findings, "checkpoint");
    assert_eq!(finding.level, Level::Fail);
    assert_eq!(finding.value, "a: cannot open: broken disk");
    assert_eq!(finding.advice.as_deref(), Some("use --cache buffered"));
}

#[test]
fn ids_are_unique() {
    let findings = examine(&System::real(), None);
    let mut ids: Vec<_> = findings.iter().map(|finding| finding.id).collect();
    ids.sort_unstable();
    let count = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[test]
fn a_small_memlock_limit_is_a_note_for_those_it_binds() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
        Max locked memory         8388608              8388608              bytes\n";
    let files = |capabilities| {
        [
            ("proc/self/limits", limits),
            ("proc/self/status", capabilities),
        ]
    };
    let (_folder, user) = system(&files("CapEff:\t0000000000000000\n"));
    let finding = memory::findings(&user)
        .into_iter()
        .find(|f| f.id == "memlock")
        .unwrap();
    assert_eq!(finding.level, Level::Note);
    assert_eq!(finding.value, "8.0 MiB");
    let (_folder, root) = system(&files("CapEff:\t000001ffffffffff\n"));
    let finding = memory::findings(&root)
        .into_iter()
        .find(|f| f.id == "memlock")
        .unwrap();
    assert_eq!(finding.level, Level::Ok);
    assert!(finding.value.contains("CAP_IPC_LOCK"), "{}", finding.value);
}

#[test]
fn a_filter_and_a_sysctl_are_named() {
    let (_folder, system) = system(&[
        ("proc/sys/kernel/io_uring_disabled", "2\n"),
        ("proc/self/status", "Seccomp:\t2\n"),
    ]);
    let findings = ring::findings(&system);
    assert_eq!(find(&findings, "io_uring_disabled").level, Level::Warn);
    assert!(find(&findings, "seccomp").value.contains("filter"));
}
