//! `TLOAD_*` variables that have no effect, because no such variable exists.

use super::{Finding, Level, Urgency};

/// Returns a finding for each unknown variable among `names`.
pub fn findings<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Finding> {
    let unknown = tload::internal::unknown_variables(names).into_iter();
    let finding = |(name, warning): (String, String)| {
        let finding = Finding::ok("variables", "variables", &*name).advise(Level::Warn, warning);
        // A shell may take other names for more than a word.
        let is_plain = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_';
        if !name.bytes().all(is_plain) {
            return finding;
        }
        finding.change(Urgency::Little, format!("unset {name}"))
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
        let change = finding.change.as_ref().expect("a change");
        assert_eq!(change.command, "unset TLOAD_DEPTHH");
    }

    #[test]
    fn no_command_contains_the_name_of_a_variable_that_is_no_word() {
        let [finding] = &findings(["TLOAD_X;reboot"])[..] else {
            panic!("it is unknown");
        };
        assert_eq!((finding.level, &finding.change), (Level::Warn, &None));
    }
}
