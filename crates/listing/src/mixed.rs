//! Error for a copy into a directory with other weights, if a load of the directory would read
//! those too, or instead.

use std::collections::BTreeSet;

use tload_base::error::{Error, Result};
use tload_format::{Choice, INDEX_SUFFIX, KEY_FILE_NAME, Precedence, SUFFIX, choose_files, listed};

/// Requires that a load of a directory with the files `present` reads the same files as without
/// them, once the files `copied` are there too.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`](tload_base::error::ErrorKind::InvalidRequest) that names those of
/// `present` that are weights and not among `copied`; or if `present` is sealed, and `copied` is
/// not.
pub fn require_one_model(copied: &[&str], present: &[String]) -> Result<()> {
    let copied: BTreeSet<_> = copied.iter().copied().collect();
    let present: BTreeSet<_> = present.iter().map(String::as_str).collect();
    let is_read_alone = |precedence| {
        let alone = read(copied.clone(), precedence);
        alone.is_empty() || alone == read(&present | &copied, precedence)
    };
    let mut precedences = [Precedence::Index, Precedence::SingleFile].into_iter();
    let others = &present - &copied;
    if !others.contains(KEY_FILE_NAME) && precedences.all(is_read_alone) {
        return Ok(());
    }
    let ends = [SUFFIX, INDEX_SUFFIX, KEY_FILE_NAME];
    let is_weights = |name: &str| ends.iter().any(|end| name.ends_with(end));
    let others: Vec<_> = others.into_iter().filter(|name| is_weights(name)).collect();
    let message = "the directory has weights that the source lacks, and a load would read them";
    let hint = "copy into another directory, or remove them; to copy all the same, select the files with ‹include›";
    Err(Error::invalid_request(format!("{message}: {}", listed(&others))).with_hint(hint))
}

/// Returns the files that a load reads first.
fn read(names: BTreeSet<&str>, precedence: Precedence) -> Vec<&str> {
    match choose_files(names, precedence) {
        Choice::Index(name) => vec![name],
        Choice::Indexes(one, other) => vec![one, other],
        Choice::Files(files) => files.chosen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "model.safetensors.index.json";
    const SINGLE: &str = "model.safetensors";
    const ADAPTER: &str = "adapter_model.safetensors";
    const HALVES: [&str; 2] = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    const OTHER: &str = "model-00001-of-00001.safetensors";

    #[test]
    fn copy_that_a_load_would_not_read_is_refused() {
        let [first, second] = HALVES;
        for (copied, present) in [
            (&[SINGLE][..], &[INDEX, first, second][..]),
            // Read by transformers, to which the single file comes first.
            (&[INDEX, first, second], &[SINGLE]),
            (&[first, second], &[OTHER]),
            (&[first, second], &[INDEX, OTHER]),
            (&["a.safetensors"], &["b.safetensors"]),
            (&["a.safetensors"], &[SINGLE]),
            (&[ADAPTER], &[SINGLE]),
        ] {
            let here: Vec<_> = present.iter().map(ToString::to_string).collect();
            let error = require_one_model(copied, &here).expect_err("another model");
            assert!(error.message().contains(present[0]), "{error}");
        }
    }

    #[test]
    fn nothing_is_added_to_sealed_files_but_others_that_replace_them() {
        let sealed: Vec<_> = [KEY_FILE_NAME, "sealed.manifest", SINGLE]
            .map(str::to_owned)
            .into();
        for copied in [&[SINGLE][..], &["config.json"]] {
            require_one_model(copied, &sealed).expect_err("would be unreadable");
        }
        require_one_model(&[KEY_FILE_NAME, SINGLE], &sealed).expect("another sealed checkpoint");
    }

    #[test]
    fn files_that_a_load_passes_over_may_stay() {
        let [first, second] = HALVES;
        for (copied, present) in [
            (&[SINGLE, "config.json"][..], &[][..]),
            (&[SINGLE], &[SINGLE, "config.json", ".other.safetensors"]),
            (&[SINGLE], &[OTHER, ADAPTER, "consolidated.safetensors"]),
            // Another state of a source that was sharded again.
            (&[INDEX, first, second], &[INDEX, OTHER]),
            (&["config.json"], &[SINGLE]),
        ] {
            let here: Vec<_> = present.iter().map(ToString::to_string).collect();
            require_one_model(copied, &here).expect("reads what is copied");
        }
    }

    #[test]
    fn error_names_a_few_files() {
        let present: Vec<_> = (0..10).map(|at| format!("{at}.safetensors")).collect();
        let error = require_one_model(&["x.safetensors"], &present).expect_err("others");
        assert!(
            error
                .message()
                .ends_with("2.safetensors, 3.safetensors and 6 more"),
            "{error}"
        );
    }
}
