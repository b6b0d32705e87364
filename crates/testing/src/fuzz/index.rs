//! Index files: whatever they contain, shards stay below the directory of the index, and natural
//! order is a total order.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::{Component, Path};

use super::assert_fit_to_print;
use tload::Location;
use tload_format::{Index, natural_cmp, parse_index};

/// Checks `input` as an index file, and its lines as names.
pub(super) fn check(input: &[u8]) {
    match parse_index(input) {
        Ok(index) => assert_sound(&index),
        Err(error) => assert_fit_to_print(&error.with_location("index")),
    }
    let text = String::from_utf8_lossy(input);
    let names: Vec<&str> = text.lines().take(5).collect();
    for [a, b, c] in triples(&names) {
        assert_eq!(natural_cmp(a, b), natural_cmp(b, a).reverse());
        assert_eq!(natural_cmp(a, b) == Ordering::Equal, a == b);
        if natural_cmp(a, b).is_le() && natural_cmp(b, c).is_le() {
            assert!(natural_cmp(a, c).is_le(), "{a:?}, {b:?}, {c:?}: no order");
        }
    }
}

fn assert_sound(index: &Index) {
    let root = Location::from_path("/root");
    let shard = |(_, shard): &(String, usize)| &*index.shards[*shard];
    let named: BTreeSet<&str> = index.weight_map.iter().map(shard).collect();
    assert_eq!(
        named.len(),
        index.shards.len(),
        "a shard twice, or not at all"
    );
    for shard in &index.shards {
        assert!(named.contains(&**shard), "{shard:?} comes from nowhere");
        let joined = root.join(shard);
        let path = joined.as_path().expect("below a path");
        assert!(!shard.contains('\0'), "{shard:?}: NUL");
        let below = path.strip_prefix("/root").expect("below the root");
        let is_plain = |path: &Path| {
            let mut components = path.components();
            path.components().next().is_some()
                && components.all(|one| matches!(one, Component::Normal(_)))
        };
        assert!(is_plain(below), "{shard:?} leaves the directory");
        // Systems with `\` as a separator must agree.
        assert!(is_plain(Path::new(&shard.replace('\\', "/"))), "{shard:?}");
        let drive = shard.as_bytes().first_chunk::<2>();
        let is_drive =
            drive.is_some_and(|[letter, colon]| letter.is_ascii_alphabetic() && *colon == b':');
        assert!(!is_drive, "{shard:?}: a drive");
    }
    let mut tensors: Vec<&str> = index.weight_map.iter().map(|(name, _)| &**name).collect();
    tensors.sort_unstable();
    assert!(
        tensors.windows(2).all(|pair| pair[0] != pair[1]),
        "a name twice"
    );
}

fn triples<'a>(names: &'a [&'a str]) -> impl Iterator<Item = [&'a str; 3]> {
    names.iter().flat_map(move |a| {
        let with = move |b: &&'a str| {
            let b = *b;
            names.iter().map(move |c| [*a, b, *c]).collect::<Vec<_>>()
        };
        names.iter().flat_map(with)
    })
}
