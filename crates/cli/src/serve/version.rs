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
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        let file = (metadata.dev(), metadata.ino());
        Self::from_state(file, metadata.len(), modified)
    }

    #[cfg(test)]
    pub(super) fn for_test(len: u64, modified: (i64, i64)) -> Self {
        Self::from_state((1, 2), len, modified)
    }

    fn from_state(file: (u64, u64), len: u64, (seconds, nanos): (i64, i64)) -> Self {
        let state = [
            file.0,
            file.1,
            len,
            seconds.cast_unsigned(),
            nanos.cast_unsigned(),
        ];
        let mut digest = Sha256::new();
        for number in state {
            digest.update(number.to_le_bytes());
        }
        // A digest, so that clients do not learn inode numbers.
        let tag = hex(&digest.finalize());
        let since = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Self {
            state,
            tag: format!("\"{}\"", &tag[..DIGITS]),
            seconds: SystemTime::UNIX_EPOCH + since,
        }
    }

    /// Returns whether the file still has this version, by what the file system records now.
    pub(super) fn is_of(&self, metadata: &Metadata) -> bool {
        self.state == Self::new(metadata).state
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_has_another_tag() {
        let versions = [
            Version::from_state((1, 2), 3, (4, 5)),
            Version::from_state((9, 2), 3, (4, 5)),
            Version::from_state((1, 9), 3, (4, 5)),
            Version::from_state((1, 2), 9, (4, 5)),
            Version::from_state((1, 2), 3, (9, 5)),
            Version::from_state((1, 2), 3, (4, 9)),
        ];
        let tags: std::collections::BTreeSet<_> = versions.iter().map(Version::tag).collect();
        assert_eq!(tags.len(), versions.len());
        assert_eq!(
            versions[0].tag(),
            Version::from_state((1, 2), 3, (4, 5)).tag()
        );
        assert_eq!(versions[0].tag().len(), DIGITS + 2);
    }
}
