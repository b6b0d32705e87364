//! Names of shards: their natural order, and the sets that they count.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

/// Suffix of a shard's name.
pub const SUFFIX: &str = ".safetensors";

/// Compares names in natural order: `model-2` comes before `model-10`. Runs of ASCII digits compare
/// by their value, however long, all else by bytes. The order is total: names that differ only in
/// leading zeros (`m-2`, `m-02`) are compared by their bytes.
pub fn natural_cmp(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (&[first, ref left_rest @ ..], &[second, ref right_rest @ ..]) = (left, right) {
        let order = if first.is_ascii_digit() && second.is_ascii_digit() {
            let (left_number, right_number);
            (left_number, left) = split_number(left);
            (right_number, right) = split_number(right);
            // Leading zeros were removed, so the longer number is the larger one.
            left_number
                .len()
                .cmp(&right_number.len())
                .then_with(|| left_number.cmp(right_number))
        } else {
            (left, right) = (left_rest, right_rest);
            first.cmp(&second)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Splits the leading digits off `text`, and drops leading zeros.
fn split_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
    (&digits[zeros..], rest)
}

/// Gap in a set of shards whose names state how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap<'a> {
    /// Lowest number that is missing.
    pub number: u64,
    /// Number of shards that the names state.
    pub count: u64,
    /// Number of shards of the set that exist.
    pub present: u64,
    /// First name of the set.
    pub beside: &'a str,
}

/// Returns the gap of the first set that has one, sets being in the order of their first names.
///
/// Files named `…-00002-of-00004.safetensors` belong to a set of four. One pass: a directory may
/// hold any number of names, in any number of sets.
pub fn missing_shard<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Gap<'a>> {
    let mut places: HashMap<(&str, u64), usize> = HashMap::new();
    let mut sets: Vec<(&str, u64, BTreeSet<u64>)> = Vec::new();
    for name in names {
        let Some((prefix, number, count)) = numbered(name) else {
            continue;
        };
        let place = *places.entry((prefix, count)).or_insert_with(|| {
            sets.push((name, count, BTreeSet::new()));
            sets.len() - 1
        });
        sets[place].2.insert(number);
    }
    sets.into_iter().find_map(|(beside, count, numbers)| {
        let present = numbers.len() as u64;
        // Some writers count from 0, so only the number of shards tells whether one is missing.
        (present < count).then(|| {
            let follow = (1..=count).zip(numbers.range(1..));
            let before = follow.take_while(|(wanted, there)| wanted == *there);
            Gap {
                number: before.last().map_or(1, |(last, _)| last + 1),
                count,
                present,
                beside,
            }
        })
    })
}

/// Splits `"model-00002-of-00004.safetensors"` into `("model-", 2, 4)`.
pub(super) fn numbered(name: &str) -> Option<(&str, u64, u64)> {
    let stem = name.strip_suffix(SUFFIX)?;
    let (front, count) = stem.rsplit_once("-of-")?;
    let prefix = front.trim_end_matches(|c: char| c.is_ascii_digit());
    let (prefix, number) = front.split_at(prefix.len());
    Some((prefix, number.parse().ok()?, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn natural_cmp_compares_digit_runs_by_value() {
        let sorted = [
            "",
            "0",
            "001",
            "01",
            "1",
            "2",
            "10",
            "18446744073709551616",
            "a",
            "a1b2",
            "a1b10",
            "a2",
            "a02b",
            "model-2-of-10",
            "model-10-of-10",
            "model-x",
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(natural_cmp(a, b), i.cmp(&j), "{a:?} and {b:?}");
            }
        }
    }

    #[test]
    fn numbered_parses_shard_names() {
        assert_eq!(
            numbered("model-00002-of-00004.safetensors"),
            Some(("model-", 2, 4))
        );
        assert_eq!(numbered("2-of-4.safetensors"), Some(("", 2, 4)));
        assert_eq!(numbered("model.safetensors"), None);
        assert_eq!(numbered("a-of-b.safetensors"), None);
        assert_eq!(numbered("é2-of-4.safetensors"), Some(("é", 2, 4)));
        assert_eq!(numbered("é-of-4.safetensors"), None);
    }

    #[test]
    fn missing_shard_finds_first_gap() {
        let gap = |names: &[&'static str]| {
            let names: Vec<_> = names.iter().map(|it| format!("{it}{SUFFIX}")).collect();
            let found = missing_shard(names.iter().map(String::as_str));
            found.map(|gap| (gap.number, gap.count, gap.present, gap.beside.to_owned()))
        };
        let missing = |number, count, present, beside: &str| {
            Some((number, count, present, format!("{beside}{SUFFIX}")))
        };
        for whole in [
            &["model"][..],
            &["m-1-of-2", "m-2-of-2"],
            &["m-2-of-2", "m-1-of-2", "n-1-of-1"],
            // Counted from 0.
            &["m-0-of-2", "m-1-of-2"],
            &["m-0-of-0"],
        ] {
            assert_eq!(gap(whole), None, "{whole:?}");
        }
        assert_eq!(gap(&["m-2-of-2"]), missing(1, 2, 1, "m-2-of-2"));
        let set = ["a-1-of-1", "m-1-of-4", "m-2-of-4", "m-4-of-4", "z-1-of-9"];
        assert_eq!(gap(&set), missing(3, 4, 3, "m-1-of-4"));
        // One number in two spellings is one shard.
        assert_eq!(
            gap(&["m-1-of-2", "m-01-of-2"]),
            missing(2, 2, 1, "m-1-of-2")
        );
        let most = "m-18446744073709551615-of-18446744073709551615";
        assert_eq!(gap(&[most]), missing(1, u64::MAX, 1, most));
    }

    /// Pairwise comparison would take 10^11 steps: hours, where one pass takes a second.
    #[test]
    fn missing_shard_is_linear() {
        const NAMES: u64 = 500_000;
        let one_set: Vec<_> = (1..NAMES)
            .map(|number| format!("m-{number}-of-{NAMES}{SUFFIX}"))
            .collect();
        let gap = missing_shard(one_set.iter().map(String::as_str)).expect("the last is missing");
        assert_eq!((gap.number, gap.present), (NAMES, NAMES - 1));
        let sets: Vec<_> = (0..NAMES)
            .map(|set| format!("m{set}-{}-of-1{SUFFIX}", set % 2))
            .collect();
        assert_eq!(missing_shard(sets.iter().map(String::as_str)), None);
    }
}
