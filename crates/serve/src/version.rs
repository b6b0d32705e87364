//! Version of a file: its identity on the file system, and the entity tag made of it. Pure.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use tload::internal::storage::object::ObjectIdentity;
use tload::verify::{Algorithm, Digest};

/// Digits of a tag: 128 bits.
const DIGITS: usize = 32;

/// Last second of the year 9999, since 1970.
const LAST_SECOND: u64 = 253_402_300_799;

/// State of a file that is served. Every write to it, and every replacement, results in another.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    state: [u64; 5],
    /// Time of the last change of the inode, in seconds and nanoseconds. Unlike that of the last
    /// write, no program can set it. Zero for an object.
    inode_changed: [i64; 2],
    links: u64,
    tag: Option<String>,
    changed: Option<SystemTime>,
}

impl Version {
    pub(crate) fn new(metadata: &Metadata) -> Self {
        let (state, inode_changed) = (state(metadata), inode_changed(metadata));
        Self {
            state,
            inode_changed,
            links: metadata.nlink(),
            tag: Some(derived(state, &format!("{inode_changed:?}"))),
            changed: expressible(state[3].cast_signed()),
        }
    }

    #[cfg(test)]
    pub(crate) fn for_test(len: u64, modified: (i64, i64), tag: Option<&str>) -> Self {
        let (seconds, nanos) = modified;
        Self {
            state: [1, 2, len, seconds.cast_unsigned(), nanos.cast_unsigned()],
            inode_changed: [0; 2],
            links: 1,
            tag: tag.map(str::to_owned),
            changed: expressible(seconds),
        }
    }

    /// Returns the version of an object.
    ///
    /// Its strong entity tag is passed on, so that a client can compare it with its own store's. A
    /// tag that cannot be passed on, or a version, is part of a strong one; of less than that, a
    /// weak one is made.
    pub(crate) fn of_object(identity: &ObjectIdentity) -> Self {
        let (e_tag, version) = (identity.e_tag.as_deref(), identity.version.as_deref());
        let state = [0, 0, identity.len, identity.modified.cast_unsigned(), 0];
        // `object_store` says 1970 if there is no time.
        let changed = expressible(identity.modified).filter(|_| identity.modified > 0);
        let derived = || derived(state, &format!("{e_tag:?} {version:?}"));
        let is_strong = e_tag.is_some_and(|tag| !tag.starts_with("W/"));
        let tag = match identity.relayed_tag() {
            Some(tag) => Some(tag.to_owned()),
            None if is_strong || version.is_some() => Some(derived()),
            None if e_tag.is_some() || changed.is_some() => Some(format!("W/{}", derived())),
            None => None,
        };
        Self {
            state,
            inode_changed: [0; 2],
            links: 0,
            tag,
            changed,
        }
    }

    /// Returns whether the file still has this version, by what the file system records now.
    ///
    /// A file that is replaced or removed while it is open loses a link: this changes its inode,
    /// and no byte of it.
    pub(crate) fn is_of(&self, metadata: &Metadata) -> bool {
        let is_unlinked = metadata.nlink() < self.links;
        let is_same = is_unlinked || self.inode_changed == inode_changed(metadata);
        is_same && self.state == state(metadata)
    }

    /// Returns the entity tag, with its quotes; `None` for an object that nothing tells apart.
    pub(crate) fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the entity tag if it is a strong one.
    pub(crate) fn strong_tag(&self) -> Option<&str> {
        self.tag().filter(|tag| !tag.starts_with("W/"))
    }

    /// Returns the time of the last change, in whole seconds; `None` if it is unknown, or none that
    /// HTTP can express.
    pub(crate) fn changed(&self) -> Option<SystemTime> {
        self.changed
    }

    /// Returns the length of the file, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.state[2]
    }
}

/// Returns a time as HTTP writes it; `None` for one before 1970 or after 9999, which it cannot
/// express.
pub(crate) fn http_date(time: SystemTime) -> Option<String> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let time = expressible(i64::try_from(since.as_secs()).ok()?)?;
    Some(httpdate::fmt_http_date(time))
}

fn expressible(seconds: i64) -> Option<SystemTime> {
    let seconds = u64::try_from(seconds)
        .ok()
        .filter(|it| *it <= LAST_SECOND)?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Returns a strong entity tag: a digest, so that clients do not learn inode numbers.
fn derived(state: [u64; 5], identity: &str) -> String {
    let mut text: Vec<u8> = state.into_iter().flat_map(u64::to_le_bytes).collect();
    text.extend_from_slice(identity.as_bytes());
    let digest = Digest::compute(Algorithm::Sha256, &text).to_hex();
    format!("\"{}\"", &digest[..DIGITS])
}

/// Returns the device, inode, length, and time of the last write in seconds and nanoseconds.
fn state(metadata: &Metadata) -> [u64; 5] {
    [
        metadata.dev(),
        metadata.ino(),
        metadata.len(),
        metadata.mtime().cast_unsigned(),
        metadata.mtime_nsec().cast_unsigned(),
    ]
}

fn inode_changed(metadata: &Metadata) -> [i64; 2] {
    [metadata.ctime(), metadata.ctime_nsec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `rsync --inplace --times` does.
    #[test]
    fn write_with_its_time_set_back_is_another_version() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one").unwrap();
        let before = file.as_file().metadata().unwrap();
        let version = Version::new(&before);
        // The clock of the file system moves on by ticks.
        let after = loop {
            std::fs::write(file.path(), "two").unwrap();
            file.as_file()
                .set_modified(before.modified().unwrap())
                .unwrap();
            let after = file.as_file().metadata().unwrap();
            if inode_changed(&after) != inode_changed(&before) {
                break after;
            }
        };
        assert_eq!(state(&after), state(&before));
        assert!(version.is_of(&before) && !version.is_of(&after));
        assert_ne!(Version::new(&after).tag(), version.tag());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a file of the test")]
    fn replaced_file_has_its_version_until_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["a", "b"].map(|name| folder.path().join(name));
        std::fs::write(&path, "one").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let version = Version::new(&file.metadata().unwrap());
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(version.is_of(&file.metadata().unwrap()));
    }

    #[test]
    fn every_change_has_another_tag() {
        let states = [
            [1, 2, 3, 4, 5],
            [9, 2, 3, 4, 5],
            [1, 9, 3, 4, 5],
            [1, 2, 9, 4, 5],
            [1, 2, 3, 9, 5],
            [1, 2, 3, 4, 9],
        ];
        let tags: std::collections::BTreeSet<_> =
            states.iter().map(|state| derived(*state, "")).collect();
        assert_eq!(tags.len(), states.len());
        assert_eq!(derived(states[0], ""), derived([1, 2, 3, 4, 5], ""));
        assert_eq!(derived(states[0], "").len(), DIGITS + 2);
    }

    #[test]
    fn tag_of_object_is_as_strong_as_its_validator() {
        let of = |e_tag: Option<&str>, version: Option<&str>, modified: i64| {
            Version::of_object(&ObjectIdentity {
                len: 7,
                e_tag: e_tag.map(str::to_owned),
                version: version.map(str::to_owned),
                modified,
            })
        };
        assert_eq!(of(Some("\"a\""), None, 5).strong_tag(), Some("\"a\""));
        let strong = |e_tag, version| of(e_tag, version, 5).strong_tag().map(str::to_owned);
        for (one, other) in [
            ((Some("\"a,b\""), None), (Some("\"a,c\""), None)),
            ((Some("\"a\r\nb: c\""), None), (Some("\"a\r\nb: d\""), None)),
            ((None, Some("1")), (None, Some("2"))),
            ((Some("W/\"a\""), Some("1")), (Some("W/\"b\""), Some("1"))),
        ] {
            let (one, other) = (strong(one.0, one.1), strong(other.0, other.1));
            assert!(one.is_some() && other.is_some() && one != other);
            assert!(one.is_some_and(|tag| !tag.contains(char::is_control)));
        }
        let weak = [
            (Some("W/\"a\""), 0),
            (Some("W/\"b\""), 0),
            (None, 5),
            (None, 6),
        ];
        let weak = weak.map(|(e_tag, modified)| of(e_tag, None, modified));
        let tags: std::collections::BTreeSet<_> = weak.iter().filter_map(Version::tag).collect();
        assert_eq!(tags.len(), 4);
        assert!(weak.iter().all(|it| it.strong_tag().is_none()));
        let unknown = of(None, None, 0);
        assert_eq!((unknown.tag(), unknown.changed()), (None, None));
    }

    #[test]
    fn dates_that_http_lacks_are_left_out() {
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(http_date(at(0)).unwrap(), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert!(http_date(at(LAST_SECOND)).is_some());
        assert_eq!(http_date(at(LAST_SECOND + 1)), None);
        assert_eq!(http_date(at(0) - Duration::from_secs(1)), None);
        assert_eq!(expressible(-1), None);
    }
}
