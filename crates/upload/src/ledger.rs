//! Journal of a copy, and the record of one that is complete: which bytes are in the store, and of
//! which state of the source. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tload_copy::Origin;
use tload_format::{INDEX_NAME, SUFFIX};

/// Format version. Raised when the meaning changes: copies with older journals start over.
const FORMAT: u32 = 1;

/// End of the names of indexes.
const INDEX_SUFFIX: &str = ".index.json";

/// Journal of a copy. It is also the claim on the place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ledger {
    format: u32,
    /// Identifier of the copy that goes on with it.
    pub(crate) write: String,
    /// Digest of the location of the source.
    source: String,
    pub(crate) files: BTreeMap<String, Begun>,
    /// Files that appear last, in this order: with all of them, the checkpoint is complete.
    pub(crate) last: Vec<String>,
}

/// File that has been begun.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begun {
    pub(crate) origin: Origin,
    /// Identifier of its upload; `None` if it is sent as a whole.
    pub(crate) upload: Option<String>,
    /// Length of its parts.
    pub(crate) piece_bytes: usize,
    /// Parts that are in the store, by index, with the names that it gave them.
    pub(crate) parts: BTreeMap<usize, String>,
    pub(crate) is_done: bool,
}

impl Begun {
    /// Returns the number of parts of the file.
    pub(crate) fn request_count(&self) -> usize {
        let parts = self.origin.len.div_ceil(self.piece_bytes as u64);
        usize::try_from(parts).expect("at most 50,000")
    }

    /// Returns the range of a part.
    pub(crate) fn range(&self, index: usize) -> std::ops::Range<u64> {
        let start = index as u64 * self.piece_bytes as u64;
        start..(start + self.piece_bytes as u64).min(self.origin.len)
    }

    /// Returns the bytes that are in the store.
    pub(crate) fn bytes(&self) -> u64 {
        if self.is_done {
            return self.origin.len;
        }
        let lens = self.parts.keys().map(|&index| {
            let range = self.range(index);
            range.end - range.start
        });
        lens.sum()
    }

    /// Returns the indexes of the parts that are missing.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let all = 0..self.request_count();
        all.filter(|index| !self.parts.contains_key(index))
            .collect()
    }
}

impl Ledger {
    /// Begins a journal of files with these names, sorted.
    pub(crate) fn new(write: String, source: String, names: &[String]) -> Self {
        Self {
            format: FORMAT,
            write,
            source,
            files: BTreeMap::new(),
            last: last(names),
        }
    }

    /// Reads a journal; `None` if it is anything else.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let ledger: Self = serde_json::from_slice(text).ok()?;
        let is_sound = |begun: &Begun| {
            let indexes = begun.parts.keys();
            begun.piece_bytes > 0 && indexes.max().is_none_or(|&it| it < begun.request_count())
        };
        (ledger.format == FORMAT && ledger.files.values().all(is_sound)).then_some(ledger)
    }

    /// Returns whether the journal is of a copy of this source.
    pub(crate) fn is_of(&self, source: &str) -> bool {
        self.source == source
    }

    /// Returns a file of the journal that the store does not have as it was sent.
    pub(crate) fn lacking(&self, found: &BTreeMap<String, Stored>) -> Option<&str> {
        let lacks = |name: &str, len| found.get(name).is_none_or(|it| it.len != len);
        let mut names = self.files.keys().map(String::as_str);
        names.find(|name| lacks(name, self.files[*name].origin.len))
    }

    /// Returns whether the store has all files of the copy, as they were sent. All others are in
    /// the journal before those that appear last are in the store.
    pub(crate) fn is_complete(&self, found: &BTreeMap<String, Stored>) -> bool {
        let is_begun = |name| self.files.contains_key(name);
        let is_ending = !self.last.is_empty() && self.last.iter().all(is_begun);
        is_ending && self.lacking(found).is_none()
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings are JSON")
    }
}

/// Returns the names that have to appear last: the indexes, that of the whole directory after all
/// others; or, without one, the weights.
fn last(names: &[String]) -> Vec<String> {
    let ending = |end: &str| {
        let found = names.iter().filter(|name| name.ends_with(end));
        found.cloned().collect::<Vec<_>>()
    };
    let mut indexes = ending(INDEX_SUFFIX);
    indexes.sort_by_key(|name| name == INDEX_NAME);
    if !indexes.is_empty() {
        return indexes;
    }
    let weights = ending(SUFFIX);
    // A copy of other files has no order.
    if weights.is_empty() {
        names.last().cloned().into_iter().collect()
    } else {
        weights
    }
}

/// Record of a complete copy: the next copy of the same source need not do anything.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    /// Identifier of the copy.
    pub(crate) write: String,
    files: BTreeMap<String, Copied>,
}

/// File that was copied.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Copied {
    pub(crate) origin: Origin,
    pub(crate) object: Stored,
}

/// State of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) len: u64,
    pub(crate) e_tag: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) modified: i64,
}

impl Record {
    pub(crate) fn new(write: String, files: BTreeMap<String, Copied>) -> Self {
        Self {
            format: FORMAT,
            write,
            files,
        }
    }

    /// Reads a record; `None` if it is anything else.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(text).ok()?;
        (record.format == FORMAT).then_some(record)
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings are JSON")
    }

    /// Returns the state of the source of a file, if the object has not been changed since.
    pub(crate) fn origin(&self, name: &str, found: Option<&Stored>) -> Option<&Origin> {
        let copied = self.files.get(name)?;
        (found == Some(&copied.object)).then_some(&copied.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_or_weights_appear_last() {
        for (names, wanted) in [
            (
                &["a.safetensors", "config.json", INDEX_NAME, "z/x.index.json"][..],
                &["z/x.index.json", INDEX_NAME][..],
            ),
            (
                &["config.json", "model.safetensors", "z.txt"],
                &["model.safetensors"],
            ),
            (&["a", "b"], &["b"]),
            (&[], &[]),
        ] {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(last(&names), wanted, "{names:?}");
        }
    }

    #[test]
    fn copy_is_complete_with_all_files_in_the_store() {
        let names = ["a", INDEX_NAME].map(str::to_owned);
        let origin = r#"{"source": "", "len": 25, "e_tag": null, "version": null, "modified": [1, 0], "file": null}"#;
        let begun = Begun {
            origin: serde_json::from_str(origin).expect("is JSON"),
            upload: None,
            piece_bytes: 10,
            parts: BTreeMap::new(),
            is_done: false,
        };
        let stored = |len| Stored {
            len,
            e_tag: None,
            version: None,
            modified: 0,
        };
        for (begun_count, lens, wanted) in [
            (2, &[25, 25][..], true),
            (2, &[25, 24], false),
            (2, &[25], false),
            (1, &[25, 25], false),
            (0, &[25, 25], false),
        ] {
            let mut ledger = Ledger::new("w".to_owned(), "s".to_owned(), &names);
            let begun = names[..begun_count]
                .iter()
                .map(|name| (name.clone(), begun.clone()));
            ledger.files.extend(begun);
            let found = names
                .iter()
                .cloned()
                .zip(lens.iter().map(|&len| stored(len)));
            let found = found.collect();
            assert_eq!(ledger.is_complete(&found), wanted, "{begun_count} {lens:?}");
        }
        assert!(!Ledger::new("w".to_owned(), "s".to_owned(), &[]).is_complete(&BTreeMap::new()));
    }

    #[test]
    fn parts_are_counted_and_damaged_journals_refused() {
        let origin: Origin = serde_json::from_str(
            r#"{"source": "", "len": 25, "e_tag": null, "version": null, "modified": [1, 0], "file": null}"#,
        )
        .expect("is JSON");
        let mut begun = Begun {
            origin,
            upload: Some("u".to_owned()),
            piece_bytes: 10,
            parts: BTreeMap::from([(2, "c".to_owned())]),
            is_done: false,
        };
        assert_eq!((begun.request_count(), begun.range(2)), (3, 20..25));
        assert_eq!((begun.bytes(), begun.missing()), (5, vec![0, 1]));
        let mut ledger = Ledger::new("w".to_owned(), "s".to_owned(), &["a".to_owned()]);
        ledger.files.insert("a".to_owned(), begun.clone());
        let read = Ledger::parse(&ledger.text()).expect("a journal");
        assert!(read.is_of("s") && !read.is_of("t"));
        begun.parts.insert(3, "d".to_owned());
        ledger.files.insert("a".to_owned(), begun);
        assert!(Ledger::parse(&ledger.text()).is_none());
        assert!(Ledger::parse(b"0123456789ab").is_none());
    }
}
