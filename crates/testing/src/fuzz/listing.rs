//! Listings: whatever names a directory or a store has, a missing shard is found, and a copy stays
//! in its directory.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use tload_copy::components;

use super::assert_fit_to_print;
use tload_format::{SUFFIX, missing_shard, natural_cmp};

/// Maximum number of names: more would make the count one by one slow.
const NAMES_MAX: usize = 40;

/// Checks `input` as one name per line, and as a hub's answer about a model.
pub(super) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut names: Vec<&str> = text.lines().take(NAMES_MAX).collect();
    names.sort_by(|a, b| natural_cmp(a, b));
    assert_no_shard_is_missed(&names);
    for name in names {
        match components(name) {
            Ok(components) => {
                let plain = |one: &&str| {
                    let mut parsed = Path::new(one).components();
                    matches!(parsed.next(), Some(Component::Normal(_))) && parsed.next().is_none()
                };
                assert!(components.iter().all(plain), "{name:?} leads elsewhere");
                assert_eq!(components.join("/"), name);
            }
            Err(error) => assert_fit_to_print(&error.with_location("folder")),
        }
    }
    tload_storage::object::assert_levels_are_whole(input);
}

/// Parses each name in another way, and counts the set of each name.
fn assert_no_shard_is_missed(names: &[&str]) {
    let numbered = |name: &str| -> Option<(String, u64, u64)> {
        let stem = name.strip_suffix(SUFFIX)?;
        let at = stem.rfind("-of-")?;
        let (front, count) = (&stem[..at], &stem[at + "-of-".len()..]);
        let digits = front.chars().rev().take_while(char::is_ascii_digit).count();
        let (prefix, number) = front.split_at(front.len() - digits);
        Some((prefix.to_owned(), number.parse().ok()?, count.parse().ok()?))
    };
    let there = |prefix: &str, count: u64| -> BTreeSet<u64> {
        let all = names.iter().filter_map(|name| numbered(name));
        let of_set = all.filter(|(other, _, of)| (other.as_str(), *of) == (prefix, count));
        of_set.map(|(_, number, _)| number).collect()
    };
    let lacks = |&name| {
        let (prefix, _, count) = numbered(name)?;
        let there = there(&prefix, count);
        let missing = (1..=count).find(|number| !there.contains(number))?;
        let present = there.len() as u64;
        (present < count).then_some((missing, count, present, name))
    };
    let found = missing_shard(names.iter().copied())
        .map(|gap| (gap.number, gap.count, gap.present, gap.beside));
    assert_eq!(found, names.iter().find_map(lacks), "{names:?}");
}
