//! The most urgent change among all findings. Pure.

use serde::Serialize;

use super::Finding;

/// Problem that a change solves, in ascending order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// A few percent of speed, or missing information.
    Little,
    /// Loads at a fraction of the machine's speed.
    Speed,
    /// Loads that hang.
    Hang,
    /// Loads that fail, or are killed.
    Failure,
}

/// Advised change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Harm that the change ends.
    pub urgency: Urgency,
    /// Command to run, or an instruction if no command can do it.
    pub command: String,
}

/// Returns the finding with the most urgent change, the first one if several are equally urgent;
/// `None` if no change is advised.
pub fn first(findings: &[Finding]) -> Option<(&Finding, &Change)> {
    let changes = findings
        .iter()
        .filter_map(|finding| Some((finding, finding.change.as_ref()?)));
    // `max_by_key` returns the last of equal elements, hence the reversal.
    changes.rev().max_by_key(|(_, change)| change.urgency)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(id: &'static str, urgency: Option<Urgency>) -> Finding {
        let finding = Finding::ok(id, id, "x");
        match urgency {
            Some(urgency) => finding.change(urgency, format!("fix {id}")),
            None => finding,
        }
    }

    #[test]
    fn first_change_is_ordered_failure_hang_speed() {
        let mut findings = Vec::new();
        assert_eq!(first(&findings), None);
        findings.push(finding("fine", None));
        assert_eq!(first(&findings), None);
        for (id, urgency) in [
            ("little", Urgency::Little),
            ("slow", Urgency::Speed),
            ("slow too", Urgency::Speed),
            ("hangs", Urgency::Hang),
            ("fails", Urgency::Failure),
            ("fails too", Urgency::Failure),
        ] {
            findings.push(finding(id, Some(urgency)));
            let (found, change) = first(&findings).unwrap();
            assert_eq!(found.id, id.trim_end_matches(" too"));
            assert_eq!(change.command, format!("fix {}", found.id));
        }
        // Regardless of its position.
        findings.reverse();
        assert_eq!(first(&findings).unwrap().0.id, "fails too");
    }
}
