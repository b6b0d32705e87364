//! Availability of checksums for a checkpoint.
//!
//! The core looks them up; this module only shows them.

use std::path::Path;

use rustix::fs::Access;
use tload::verify::{self, Expectation};
use tload::{Checkpoint, Error, Verify};

use super::{Finding, Level, Urgency};
use tload_config::flag;
use tload_quantity::format_count;

const ID: &str = "verify";
const TITLE: &str = "checksums";

/// Source of the digests of one shard, or the reason why there are none.
type Authority = Result<String, String>;

/// Looks up checksums as a load with `verify=auto` does.
pub(crate) fn finding(checkpoint: &Checkpoint) -> Finding {
    if checkpoint.is_sealed() {
        let value = "of every part of what is sealed, compared as it is opened";
        return Finding::ok(ID, TITLE, value);
    }
    let expectations = match verify::find(checkpoint, &Verify::Auto) {
        Ok(expectations) => expectations,
        Err(error) => return unknown(&error),
    };
    let authorities: Vec<Authority> = expectations
        .into_iter()
        .map(|expectation| match expectation {
            Expectation::Of(expected) => Ok(expected.by),
            Expectation::Nothing { why } => Err(why),
        })
        .collect();
    let location = checkpoint.location();
    // A manifest is a local file, wherever the checkpoint is.
    let refusal = match location.as_path() {
        Some(path) => refusal_to_write_beside(path),
        None => Some("not in a store".to_owned()),
    };
    let command = match refusal {
        None => format!("tload verify {location} --write"),
        Some(_) => format!("tload verify {location} --write manifest.json"),
    };
    shown(&command, refusal.as_deref(), &authorities)
}

/// Returns the reason why no manifest can be written beside `path`. Writes nothing.
fn refusal_to_write_beside(path: &Path) -> Option<String> {
    let folder = if path.is_dir() {
        path
    } else {
        path.parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
    };
    let refused = rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!("not in {}: {refused}", folder.display()))
}

/// Returns the finding for checksums that cannot be read. Only loads that verify fail then.
fn unknown(error: &Error) -> Finding {
    let finding = Finding::ok(ID, TITLE, format!("unknown: {error}"));
    match error.hint_with(flag) {
        Some(hint) => finding.advise(Level::Note, hint),
        None => Finding {
            level: Level::Note,
            ..finding
        },
    }
}

/// Returns the finding for all shards. `command` writes a manifest, beside the shards unless there
/// is a refusal.
fn shown(command: &str, refusal: Option<&str>, authorities: &[Authority]) -> Finding {
    let of_shards = |count: usize| format_count(count as u64, "shard");
    let mut by: Vec<&str> = authorities.iter().flatten().map(String::as_str).collect();
    let covered = by.len();
    by.sort_unstable();
    by.dedup();
    let missing = authorities.iter().find_map(|it| it.as_ref().err());
    let Some(why) = missing else {
        let value = format!("{}, by {}", of_shards(covered), by.join("; "));
        return Finding::ok(ID, TITLE, value);
    };
    let value = if covered == 0 {
        format!("none: {why}")
    } else {
        format!(
            "{} of {}, by {}; none for the others: {why}",
            covered,
            of_shards(authorities.len()),
            by.join("; ")
        )
    };
    let advice = match refusal {
        None => format!("corruption would go undetected; if you trust the files: {command}"),
        Some(refusal) => format!(
            "corruption would go undetected; a manifest can be written, but {refusal}; if you trust the \
             files: {command}, and give loads --verify=manifest.json"
        ),
    };
    Finding::ok(ID, TITLE, value)
        .advise(Level::Note, advice)
        .change(Urgency::Little, command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_checksums_give_reason_and_write_command() {
        let manifest = || Ok("manifest /m/tload-manifest.json".to_owned());
        let none = || Err("no manifest, and not from a hub".to_owned());
        let command = "tload verify /m --write";
        let all = shown(command, None, &[manifest(), manifest()]);
        assert_eq!((all.level, all.advice), (Level::Ok, None));
        assert_eq!(all.value, "2 shards, by manifest /m/tload-manifest.json");
        let nothing = shown(command, None, &[none()]);
        assert_eq!(nothing.value, "none: no manifest, and not from a hub");
        assert_eq!(nothing.level, Level::Note);
        let advice = nothing.advice.expect("says what to do");
        assert!(advice.ends_with(command), "{advice}");
        let change = nothing.change.expect("says what to do");
        assert_eq!(
            (change.urgency, change.command.as_str()),
            (Urgency::Little, command)
        );
        let elsewhere = shown(command, Some("not in /m: read-only"), &[none()]);
        let advice = elsewhere.advice.expect("says what to do");
        assert!(advice.contains("not in /m: read-only"), "{advice}");
        let some = shown(command, None, &[manifest(), none(), none()]);
        assert_eq!(
            some.value,
            "1 of 3 shards, by manifest /m/tload-manifest.json; none for the others: no manifest, and not from a hub"
        );
    }
}
