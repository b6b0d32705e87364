//! Names of the environment variables that begin with `TLOAD_`, for warnings of misspelt ones.
//! Pure: the command and the Python package pass the names that are set.

use super::{LoadOptions, OptionKey, TRIAL_VARIABLE};
use crate::error::{nearest_name, shortened};

const PREFIX: &str = "TLOAD_";

/// Variables that set no option of a load.
const OTHERS: [&str; 16] = [
    "TLOAD_CACHE_DIR",
    "TLOAD_CACHE_CHECK",
    "TLOAD_CACHE_LIMIT",
    "TLOAD_CONFIG",
    "TLOAD_HF_CACHE",
    "TLOAD_KEY",
    "TLOAD_KEY_COMMAND",
    "TLOAD_KEY_FILE",
    "TLOAD_STORE",
    "TLOAD_FOLLOW_SYMLINKS",
    "TLOAD_LOG",
    "TLOAD_LORA_DIR",
    "TLOAD_LORA_LIMIT",
    "TLOAD_LORA_SOURCE",
    "TLOAD_PREFETCH",
    "TLOAD_REPLACE_RUNAI",
];

/// Variables of tload's own tests and benchmarks, and prefixes of such. They cause no warning, and
/// are not suggested.
const OF_TESTS: [&str; 12] = [
    "TLOAD_BLESS",
    "TLOAD_COMMAND",
    "TLOAD_CUDA_STUB_",
    "TLOAD_DEATHS",
    "TLOAD_LOADS",
    "TLOAD_REQUIRE",
    "TLOAD_SEED",
    "TLOAD_SHOW",
    "TLOAD_SOAK_",
    "TLOAD_SUITE_",
    "TLOAD_TESTBED_",
    "TLOAD_TEST_",
];

/// Returns a warning for each of `names` that begins with `TLOAD_` and is no variable that tload
/// reads, sorted by name, each with the name and the warning. Other names do not count.
///
/// ```
/// # mod tload { pub mod internal { pub use tload_options::*; } }
/// let warnings = tload::internal::unknown_variables(["PATH", "TLOAD_DEPTH", "TLOAD_DEPTHH"]);
/// let [(name, warning)] = warnings.as_slice() else { panic!("one is unknown") };
/// assert_eq!(name, "TLOAD_DEPTHH");
/// assert!(warning.ends_with("did you mean TLOAD_DEPTH?"));
/// ```
pub fn unknown_variables<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<(String, String)> {
    let known: Vec<String> = LoadOptions::KEYS
        .iter()
        .filter_map(OptionKey::variable)
        .chain(OTHERS.map(str::to_owned))
        .collect();
    let is_unknown = |name: &&str| {
        name.starts_with(PREFIX)
            && !known.iter().any(|other| other == name)
            && !OF_TESTS.iter().any(|other| name.starts_with(other))
    };
    let mut unknown: Vec<&str> = names.into_iter().filter(is_unknown).collect();
    unknown.sort_unstable();
    let warning = |name: &str| {
        // All names have the prefix, so compare without it.
        let candidates = known.iter().filter_map(|other| other.strip_prefix(PREFIX));
        let nearest = nearest_name(&name[PREFIX.len()..], candidates);
        let advice = nearest.map_or_else(String::new, |nearest| {
            format!("; did you mean {PREFIX}{nearest}?")
        });
        if name == TRIAL_VARIABLE {
            return format!("{name} selects variants of loads that are only being measured");
        }
        let name = shortened(name);
        format!("environment variable {name} is unknown and has no effect{advice}")
    };
    unknown
        .into_iter()
        .map(|name| (name.to_owned(), warning(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variables_get_the_nearest_name() {
        for (name, nearest) in [
            ("TLOAD_DEPTHH", Some("TLOAD_DEPTH")),
            ("TLOAD_CACHEE", Some("TLOAD_CACHE")),
            ("TLOAD_MEMROY_LIMIT", Some("TLOAD_MEMORY_LIMIT")),
            ("TLOAD_EXTENT_BYTES", Some("TLOAD_EXTENT")),
            ("TLOAD_STORES", Some("TLOAD_STORE")),
            ("TLOAD_REPLACE_RUNIA", Some("TLOAD_REPLACE_RUNAI")),
            ("TLOAD_XYZ", None),
            ("TLOAD_", None),
        ] {
            let warnings = unknown_variables([name]);
            let [(found, warning)] = warnings.as_slice() else {
                panic!("{name}: {warnings:?}")
            };
            assert_eq!(found, name);
            let start = format!("environment variable {name} is unknown and has no effect");
            let end = nearest.map_or_else(String::new, |it| format!("; did you mean {it}?"));
            assert_eq!(*warning, start + &end);
        }
    }

    #[test]
    fn trials_cause_a_warning() {
        let warnings = unknown_variables(["TLOAD_TRY"]);
        let text = "TLOAD_TRY selects variants of loads that are only being measured";
        assert_eq!(warnings, [("TLOAD_TRY".to_owned(), text.to_owned())]);
    }

    #[test]
    fn known_variables_and_those_of_tests_cause_no_warning() {
        let known = LoadOptions::KEYS.iter().filter_map(OptionKey::variable);
        let known: Vec<_> = known.collect();
        let known = known.iter().map(String::as_str);
        let others = ["PATH", "tload_depth", "TLOAD_CUDA_STUB_FAIL", "TLOAD_SEEDS"];
        let all = known.chain(OTHERS).chain(OF_TESTS).chain(others);
        assert_eq!(unknown_variables(all), []);
    }
}
