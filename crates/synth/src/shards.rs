//! Distribution of a model's tensors over files: in order, with about equally many bytes each, as
//! model hubs do it.

use tload::{Error, ErrorKind, Result};

use super::Entry;

/// Bytes per file by default.
const SHARD_BYTES: u64 = 1 << 30;
const SHARDS_MAX: u64 = 64;

/// Returns the default number of files for `bytes` of tensors.
pub(super) fn default_count(bytes: u64) -> u32 {
    // Rounded to the nearest: sizes are accurate to 2 %, and about 4 GiB are to be four files.
    let nearest = bytes.saturating_add(SHARD_BYTES / 2) / SHARD_BYTES;
    u32::try_from(nearest.clamp(1, SHARDS_MAX)).unwrap_or(1)
}

/// Splits `entries` into `count` runs, none of them empty.
pub(super) fn deal(entries: &[Entry], count: u32) -> Result<Vec<&[Entry]>> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count == 0 || count > entries.len() {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            format!("cannot put {} tensors into {count} shards", entries.len()),
        ));
    }
    let mut shards = Vec::with_capacity(count);
    let mut rest = entries;
    for left in (1..=count).rev() {
        let (shard, after) = rest.split_at(take(rest, left));
        shards.push(shard);
        rest = after;
    }
    Ok(shards)
}

/// Returns the number of `entries` for the first of `left` shards: its share of the bytes, to the
/// nearest tensor.
fn take(entries: &[Entry], left: usize) -> usize {
    let most = entries.len() - left;
    if left == 1 {
        return entries.len();
    }
    let share = super::total(entries) / left as u64;
    let (mut taken, mut bytes) = (0, 0);
    for entry in entries {
        let more = entry.byte_len();
        if taken > most || (taken > 0 && bytes + more / 2 > share) {
            break;
        }
        taken += 1;
        bytes += more;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, Preset};

    #[test]
    fn every_tensor_is_in_one_shard_and_no_shard_is_empty() {
        let model = Model::new(Preset::Llama, 4 << 30).unwrap();
        for count in [1, 2, 4, 64, u32::try_from(model.entries.len()).unwrap()] {
            let shards = deal(&model.entries, count).unwrap();
            assert_eq!(shards.len(), usize::try_from(count).unwrap());
            assert!(shards.iter().all(|shard| !shard.is_empty()));
            assert_eq!(shards.concat(), model.entries);
        }
    }

    #[test]
    fn four_gibibytes_are_four_files_by_default() {
        for (bytes, count) in [
            (1, 1),
            (1 << 30, 1),
            (4_250_000_000, 4),
            (4 << 30, 4),
            (1 << 40, 64),
        ] {
            assert_eq!(default_count(bytes), count, "{bytes}");
        }
    }

    #[test]
    fn shards_are_about_equal() {
        let model = Model::new(Preset::Llama, 4 << 30).unwrap();
        for shard in deal(&model.entries, 4).unwrap() {
            let bytes = super::super::total(shard);
            assert!((900 << 20..=1150 << 20).contains(&bytes), "{bytes}");
        }
    }

    #[test]
    fn more_shards_than_tensors_is_a_wrong_request() {
        let model = Model::new(Preset::Llama, 1 << 20).unwrap();
        let error = deal(&model.entries, 9999).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    }
}
