//! `TLOAD_*` variables that have no effect, because no such variable exists.

use super::{Finding, Level, Urgency};

/// Returns a finding for each unknown variable among `names`.
pub(crate) fn findings<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Finding> {
    let unknown = tload::unknown_variables(names).into_iter();
    let finding = |(name, warning): (String, String)| {
        Finding::ok("variables", "variables", &*name)
            .advise(Level::Warn, warning)
            .change(Urgency::Little, format!("unset {name}"))
    };
    unknown.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variables_are_findings_with_the_nearest_name() {
        let [finding] = &findings(["HOME", "TLOAD_DEPTH", "TLOAD_DEPTHH"])[..] else {
            panic!("one is unknown");
        };
        assert_eq!(
            (finding.level, &*finding.value),
            (Level::Warn, "TLOAD_DEPTHH")
        );
        let advice = finding.advice.as_deref().expect("advice");
        assert!(advice.ends_with("did you mean TLOAD_DEPTH?"), "{advice}");
    }
}
