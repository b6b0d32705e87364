//! What to change first: of everything that was found, the one thing that helps most. Pure.

use serde::Serialize;

use super::Finding;

/// What changing a thing saves the user from. In this order one is changed before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Urgency {
    /// A few percent, or a gap in what can be seen.
    Little,
    /// Loads at a fraction of the speed that the machine has.
    Speed,
    /// Loads that wait for ever.
    Hang,
    /// Loads that fail, or are killed.
    Failure,
}

/// How to change what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    pub(crate) urgency: Urgency,
    /// To be typed, where a command can do it.
    pub(crate) command: String,
}

/// The finding whose change is most urgent; of equals the first. None when nothing is to be changed.
pub(crate) fn first(findings: &[Finding]) -> Option<(&Finding, &Change)> {
    let changes = findings
        .iter()
        .filter_map(|finding| Some((finding, finding.change.as_ref()?)));
    // Of equals this returns the last.
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
    fn what_fails_comes_before_what_hangs_and_that_before_what_is_slow() {
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
        // Wherever it stands.
        findings.reverse();
        assert_eq!(first(&findings).unwrap().0.id, "fails too");
    }
}
