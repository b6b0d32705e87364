//! Journal of a file in progress: the ranges that are on disk, and the source they came from. Pure:
//! `target` reads and writes it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::Metadata;
use std::mem::replace;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use crate::options::Location;

/// Format version. Raised when the journal changes its meaning: copies with older journals start
/// over.
const FORMAT: u32 = 3;

/// Source of some bytes, and its state. Bytes from two equal origins may be combined in one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Digest of the whole location, with its query but without user, password and signature.
    pub source: String,
    /// Length, bytes.
    pub len: u64,
    /// Entity tag.
    pub e_tag: Option<String>,
    /// Version of an object.
    pub version: Option<String>,
    /// Modification time, seconds and nanoseconds since 1970; zero for an object if the store gives
    /// no time.
    pub modified: (i64, i64),
    /// True if the modification time of an object tells its states apart: it is not recent. A
    /// listing does not say.
    #[serde(default)]
    pub is_settled: bool,
    /// State of a file on a file system; `None` for an object.
    pub file: Option<FileState>,
}

/// Distinguishes files of the same length and modification time: many tools set that time, some
/// (Nix, reproducible builds) to the same second for all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    inode: u64,
    /// Time of the last change of the file or its attributes (`st_ctime`), which no tool can set.
    /// File systems of images (squashfs, erofs) have none: there it is the modification time, in
    /// seconds.
    changed: (i64, i64),
}

impl Origin {
    /// Origin of the file at `location`.
    pub(super) fn from_metadata(location: &Location, metadata: &Metadata) -> Self {
        Self {
            source: location.digest(""),
            len: metadata.len(),
            e_tag: None,
            version: None,
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            is_settled: true,
            file: Some(FileState {
                inode: metadata.ino(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            }),
        }
    }

    /// Returns whether the origin distinguishes states of the source at all: the time of an object
    /// alone does so if it was not recent, since a second change in the same second would keep it.
    pub fn tells(&self) -> bool {
        if let Some(file) = self.file {
            // Times in whole seconds come from an image, or from a file system that can give two
            // changes the same time.
            return file.changed.1 != 0;
        }
        let is_strong = |tag: &String| !tag.starts_with("W/");
        self.e_tag.as_ref().is_some_and(is_strong)
            || self.version.is_some()
            || (self.is_settled && self.last_change().is_some())
    }

    /// Returns the time of the last change of the source, if it is known.
    pub(super) fn last_change(&self) -> Option<(i64, i64)> {
        (self.file.is_some() || self.modified != (0, 0)).then_some(self.modified)
    }

    /// Returns whether bytes copied from `self` equal those of a source in the state `seen`.
    /// Listings of stores carry less than responses do: a listing without the `ETag` does not
    /// match.
    pub fn is_same_state(&self, seen: &Self) -> bool {
        // A file is identified by its inode, whatever its path.
        let is_file = self.file.is_some() && seen.file.is_some();
        let version = seen.version.is_none() || self.version == seen.version;
        self.tells()
            && seen.tells()
            && (is_file || self.source == seen.source)
            && self.len == seen.len
            && self.modified == seen.modified
            && self.file == seen.file
            && unquoted(self.e_tag.as_ref()) == unquoted(seen.e_tag.as_ref())
            && version
    }

    /// Returns whether the source may still be in this state when a listing shows `seen`: nothing
    /// differs, and opening the source tells what the listing lacks.
    pub fn may_be(&self, seen: &Self) -> bool {
        let is_file = self.file.is_some() || seen.file.is_some();
        let e_tag = unquoted(seen.e_tag.as_ref());
        !is_file
            && self.tells()
            && self.source == seen.source
            && self.len == seen.len
            && (seen.modified == (0, 0) || self.modified == seen.modified)
            && (e_tag.is_none() || unquoted(self.e_tag.as_ref()) == e_tag)
            && (seen.version.is_none() || self.version == seen.version)
    }
}

/// Removes the quotes of an entity tag: Azure's listings omit them.
fn unquoted(tag: Option<&String>) -> Option<&str> {
    tag.map(|tag| tag.trim_matches('"'))
}

/// Journal of a file in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Journal {
    format: u32,
    origin: Origin,
    done: Vec<Range<u64>>,
}

impl Journal {
    pub(super) fn new(origin: Origin, done: &Ranges) -> Self {
        Self {
            format: FORMAT,
            origin,
            done: done.0.iter().map(|(start, end)| *start..*end).collect(),
        }
    }

    /// Returns whether another version of tload wrote the journal, in a form that this one does not
    /// go on from.
    pub(super) fn is_of_other_form(&self) -> bool {
        self.format != FORMAT
    }

    /// Returns the ranges that are on disk, if the journal belongs to `origin` and to a file of
    /// `file_bytes`.
    pub(super) fn resume(self, origin: &Origin, file_bytes: u64) -> Option<Ranges> {
        let mut done = Ranges::default();
        for range in &self.done {
            if range.start >= range.end || range.end > origin.len.min(file_bytes) {
                return None;
            }
            done.add(range.clone());
        }
        let seen = Origin {
            is_settled: self.origin.is_settled,
            ..origin.clone()
        };
        let is_same = self.origin == seen && seen.tells() && origin.tells();
        (self.format == FORMAT && is_same).then_some(done)
    }
}

/// Ranges of a file: end by start, not adjacent, none empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Ranges that the new one touches are merged into it. Each of them was added once.
        while let Some((&other, &other_end)) = self.0.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.0.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.0.insert(start, end);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    pub(super) fn is_whole(&self, len: u64) -> bool {
        self.bytes() == len
    }

    /// Returns the ranges missing of `len` bytes.
    pub(super) fn missing(&self, len: u64) -> Gaps {
        let mut gaps = VecDeque::new();
        let mut at = 0;
        let ends = std::iter::once((&len, &len));
        for (&start, &end) in self.0.iter().chain(ends) {
            if at < start {
                gaps.push_back(at..start);
            }
            at = at.max(end);
        }
        Gaps(gaps)
    }
}

/// Ranges of a file that are missing: ascending, none empty. Requests are cut from them one by one:
/// a list of all requests would grow with the length that a server claims.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gaps(VecDeque<Range<u64>>);

impl Gaps {
    /// Removes and returns the first range up to the next multiple of `step`.
    pub(super) fn cut(&mut self, step: u64) -> Option<Range<u64>> {
        let gap = self.0.front_mut()?;
        let end = (gap.start / step + 1).saturating_mul(step).min(gap.end);
        let cut = replace(&mut gap.start, end)..end;
        if gap.is_empty() {
            self.0.pop_front();
        }
        Some(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin {
            source: "s3://b/k".to_owned(),
            len: 100,
            e_tag: Some("\"x\"".to_owned()),
            version: None,
            modified: (1, 0),
            is_settled: true,
            file: None,
        }
    }

    fn ranges(list: &[Range<u64>]) -> Ranges {
        let mut ranges = Ranges::default();
        for range in list {
            ranges.add(range.clone());
        }
        ranges
    }

    #[test]
    fn ranges_merge_and_report_gaps() {
        let done = ranges(&[50..60, 0..10, 10..20, 55..70, 5..5]);
        assert_eq!(done, ranges(&[0..20, 50..70]));
        assert_eq!((done.bytes(), done.is_whole(40)), (40, true));
        let cuts = |done: &Ranges, len| {
            let mut gaps = done.missing(len);
            std::iter::from_fn(|| gaps.cut(32)).collect::<Vec<_>>()
        };
        assert_eq!(cuts(&done, 100), [20..32, 32..50, 70..96, 96..100]);
        assert_eq!(cuts(&Ranges::default(), 0), []);
        assert_eq!(cuts(&ranges(&[0..50, 50..100]), 100), []);
        // A length that no list of requests could have.
        let mut gaps = done.missing(u64::MAX);
        assert_eq!((gaps.0.len(), gaps.cut(32)), (2, Some(20..32)));
    }

    /// A journal of 16 MiB has several hundred thousand ranges, in any order if it is damaged.
    #[test]
    fn many_ranges_are_added_in_any_order() {
        let all = 300_000;
        for step in [1, all - 1, 7919] {
            let mut ranges = Ranges::default();
            for index in 0..all {
                let at = index * step % all * 4;
                ranges.add(at..at + 3);
            }
            assert_eq!(ranges.0.len() as u64, all, "{step}");
            for index in 0..all {
                let at = index * step % all * 4 + 3;
                ranges.add(at..at + 1);
            }
            assert_eq!(ranges.0.iter().next(), Some((&0, &(4 * all))), "{step}");
            assert!(ranges.is_whole(4 * all) && ranges.0.len() == 1);
        }
    }

    #[test]
    fn journal_of_other_source_is_discarded() {
        let done = ranges(&[0..10, 20..30]);
        let journal = Journal::new(origin(), &done);
        let text = serde_json::to_string(&journal).expect("JSON");
        let read: Journal = serde_json::from_str(&text).expect("read back");
        assert_eq!(read.clone().resume(&origin(), 100), Some(done.clone()));
        // The object was recent when the copy began, but has a tag.
        let recent = Origin {
            is_settled: false,
            ..origin()
        };
        let begun = Journal::new(recent, &done);
        assert_eq!(begun.resume(&origin(), 100), Some(done.clone()));
        let replaced = Origin {
            e_tag: Some("\"y\"".to_owned()),
            ..origin()
        };
        assert_eq!(read.clone().resume(&replaced, 100), None);
        // The file is shorter than the journal claims.
        assert_eq!(read.resume(&origin(), 25), None);
        let vague = Origin {
            e_tag: None,
            modified: (0, 0),
            ..origin()
        };
        assert_eq!(Journal::new(vague.clone(), &done).resume(&vague, 100), None);
        let older = Journal {
            format: FORMAT - 1,
            ..Journal::new(origin(), &done)
        };
        assert!(older.is_of_other_form());
        assert_eq!(older.resume(&origin(), 100), None);
        let damaged = Journal {
            format: FORMAT,
            origin: origin(),
            done: vec![0..3, 9..9],
        };
        assert_eq!(damaged.resume(&origin(), 100), None);
    }

    #[test]
    fn origin_differs_if_state_changed_or_unknown() {
        let copied = Origin {
            version: Some("v1".to_owned()),
            ..origin()
        };
        let changed = |change: fn(&mut Origin)| {
            let mut seen = copied.clone();
            change(&mut seen);
            seen
        };
        for (seen, wanted) in [
            (changed(|_| {}), true),
            (changed(|it| it.version = None), true),
            (changed(|it| it.e_tag = Some("x".to_owned())), true),
            (changed(|it| it.e_tag = Some("\"y\"".to_owned())), false),
            (changed(|it| it.e_tag = None), false),
            (changed(|it| it.version = Some("v2".to_owned())), false),
            (changed(|it| it.modified = (2, 0)), false),
            (changed(|it| it.len = 99), false),
            (changed(|it| it.source = "s3://b/l".to_owned()), false),
        ] {
            assert_eq!(copied.is_same_state(&seen), wanted, "{seen:?}");
        }
        for (e_tag, modified, is_settled, wanted) in [
            (None, (0, 0), true, false),
            (Some("W/\"x\""), (0, 0), true, false),
            (Some("W/\"x\""), (1, 0), true, true),
            (Some("W/\"x\""), (1, 0), false, false),
            (None, (1, 0), true, true),
            (None, (1, 0), false, false),
            (Some("\"x\""), (0, 0), false, true),
        ] {
            let vague = Origin {
                e_tag: e_tag.map(str::to_owned),
                modified,
                is_settled,
                ..origin()
            };
            assert_eq!(vague.is_same_state(&vague), wanted, "{vague:?}");
            let mut done = Ranges::default();
            done.add(0..10);
            let journal = Journal::new(vague.clone(), &done);
            assert_eq!(journal.resume(&vague, 100).is_some(), wanted, "{vague:?}");
        }
        // The object may have changed once more in the second in which it was copied.
        let recent = Origin {
            e_tag: None,
            is_settled: false,
            ..origin()
        };
        let later = Origin {
            is_settled: true,
            ..recent.clone()
        };
        assert!(!recent.is_same_state(&later));
    }

    #[test]
    fn file_origin_is_identified_by_inode_and_times() {
        let of = |source: &str, inode, changed| Origin {
            source: source.to_owned(),
            e_tag: None,
            modified: (0, 0),
            file: Some(FileState { inode, changed }),
            ..origin()
        };
        let copied = of("/m/a", 1, (5, 6));
        assert!(copied.is_same_state(&of("m/a", 1, (5, 6))));
        assert!(!copied.is_same_state(&of("/m/a", 2, (5, 6))));
        assert!(!copied.is_same_state(&of("/m/a", 1, (5, 7))));
        let image = of("/m/a", 1, (5, 0));
        assert!(!image.is_same_state(&image), "a time that images have");
        assert_eq!(copied.last_change(), Some((0, 0)), "a time like any other");
        assert_eq!(
            Origin {
                file: None,
                ..copied
            }
            .last_change(),
            None
        );
    }
}
