//! Version of a file: its identity on the file system, and the entity tag made of it. Pure.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::digest::hex;

/// Digits of a tag: 128 bits.
const DIGITS: usize = 32;

/// State of a file that is served. Every write to it, and every replacement, results in another.
#[derive(Clone, Debug)]
pub(super) struct Version {
    state: [u64; 5],
    tag: String,
    seconds: SystemTime,
}

impl Version {
    pub(super) fn new(metadata: &Metadata) -> Self {
        Self::from_state(state(metadata))
    }

    #[cfg(test)]
    pub(super) fn for_test(len: u64, modified: (i64, i64)) -> Self {
        let (seconds, nanos) = modified;
        Self::from_state([1, 2, len, seconds.cast_unsigned(), nanos.cast_unsigned()])
    }

    /// Returns the version of an object of `len` bytes, with its own entity tag if that is a strong
    /// one. `modified` is in seconds since 1970.
    #[cfg(feature = "object")]
    pub(super) fn of_object(len: u64, tag: Option<&str>, modified: i64) -> Self {
        let version = Self::from_state([0, 0, len, modified.cast_unsigned(), 0]);
        let tag = tag.filter(|tag| tag.starts_with('"') && !tag.contains(','));
        Self {
            // Passed on, so that a client can compare it with its own store's.
            tag: tag.map_or_else(|| version.tag.clone(), str::to_owned),
            ..version
        }
    }

    fn from_state(state: [u64; 5]) -> Self {
        let mut digest = Sha256::new();
        for number in state {
            digest.update(number.to_le_bytes());
        }
        // A digest, so that clients do not learn inode numbers.
        let tag = hex(&digest.finalize());
        // HTTP has no dates before 1970.
        let seconds = u64::try_from(state[3].cast_signed()).unwrap_or(0);
        Self {
            state,
            tag: format!("\"{}\"", &tag[..DIGITS]),
            seconds: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        }
    }

    /// Returns whether the file still has this version, by what the file system records now.
    pub(super) fn is_of(&self, metadata: &Metadata) -> bool {
        self.state == state(metadata)
    }

    /// Returns the strong entity tag, with its quotes.
    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    /// Returns the time of the last change, in whole seconds as HTTP writes it.
    pub(super) fn seconds(&self) -> SystemTime {
        self.seconds
    }

    /// Returns the length of the file, bytes.
    pub(super) fn len(&self) -> u64 {
        self.state[2]
    }
}

/// Returns the device, inode, length, and time of the last change in seconds and nanoseconds.
fn state(metadata: &Metadata) -> [u64; 5] {
    [
        metadata.dev(),
        metadata.ino(),
        metadata.len(),
        metadata.mtime().cast_unsigned(),
        metadata.mtime_nsec().cast_unsigned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_has_another_tag() {
        let versions = [
            Version::from_state([1, 2, 3, 4, 5]),
            Version::from_state([9, 2, 3, 4, 5]),
            Version::from_state([1, 9, 3, 4, 5]),
            Version::from_state([1, 2, 9, 4, 5]),
            Version::from_state([1, 2, 3, 9, 5]),
            Version::from_state([1, 2, 3, 4, 9]),
        ];
        let tags: std::collections::BTreeSet<_> = versions.iter().map(Version::tag).collect();
        assert_eq!(tags.len(), versions.len());
        assert_eq!(
            versions[0].tag(),
            Version::from_state([1, 2, 3, 4, 5]).tag()
        );
        assert_eq!(versions[0].tag().len(), DIGITS + 2);
    }
}
