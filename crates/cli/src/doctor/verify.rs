//! Whether the bytes of a checkpoint can be compared with what somebody says of them.
//!
//! What there is to compare with is the core's to find; here is only how it is shown.

use tload::Checkpoint;

use super::{Finding, Level};
use crate::output::quantity::format_count;

/// Of one shard: who says what its bytes should be, or why nobody does.
type Authority = Result<String, String>;

/// Nothing, until the core looks for checksums.
pub(super) fn findings(_checkpoint: &Checkpoint) -> Option<Finding> {
    None
}

/// All shards together.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "until the core looks for checksums")
)]
fn finding(location: &str, authorities: &[Authority]) -> Finding {
    let (id, title) = ("verify", "checksums");
    let of_shards = |count: usize| format_count(count as u64, "shard");
    let mut by: Vec<&str> = authorities.iter().flatten().map(String::as_str).collect();
    let covered = by.len();
    by.sort_unstable();
    by.dedup();
    let missing = authorities.iter().find_map(|it| it.as_ref().err());
    let Some(why) = missing else {
        let value = format!("{}, by {}", of_shards(covered), by.join("; "));
        return Finding::ok(id, title, value);
    };
    let value = if covered == 0 {
        format!("none: {why}")
    } else {
        format!(
            "{} of {}, by {}; not the others: {why}",
            covered,
            of_shards(authorities.len()),
            by.join("; ")
        )
    };
    Finding::ok(id, title, value).advise(
        Level::Note,
        format!(
            "damaged bytes are not noticed; where you trust them: tload verify --write {location}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_compared_says_why_and_how_it_could_be() {
        let manifest = || Ok("manifest /m/tload-manifest.json".to_owned());
        let none = || Err("no manifest, and not from a hub".to_owned());
        let all = finding("/m", &[manifest(), manifest()]);
        assert_eq!((all.level, all.advice), (Level::Ok, None));
        assert_eq!(all.value, "2 shards, by manifest /m/tload-manifest.json");
        let nothing = finding("/m", &[none()]);
        assert_eq!(nothing.value, "none: no manifest, and not from a hub");
        assert_eq!(nothing.level, Level::Note);
        let advice = nothing.advice.expect("says what to do");
        assert!(advice.ends_with("tload verify --write /m"), "{advice}");
        let some = finding("/m", &[manifest(), none(), none()]);
        assert_eq!(
            some.value,
            "1 of 3 shards, by manifest /m/tload-manifest.json; not the others: no manifest, and not from a hub"
        );
    }
}
