//! Objects of the server.
//!
//! Owns bytes, tags and times; knows nothing of HTTP except the form of a tag. Called by `state`'s
//! owner under its lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// 2026-01-01 00:00:00 UTC: in the past of every client, so that no object is from the future.
const FIRST_WRITE_SECS: u64 = 1_767_225_600;

/// Maximum number of entries of one listing page of S3.
const S3_PAGE_ENTRIES: usize = 1000;

/// Object as it was put.
#[derive(Clone)]
pub(super) struct Object {
    pub(super) bytes: Arc<Vec<u8>>,
    /// Tag with its quotes.
    pub(super) etag: String,
    /// Modification time, seconds since 1970.
    pub(super) modified: u64,
    /// Version, if versions are kept.
    pub(super) version: Option<String>,
}

impl Object {
    pub(super) fn size(&self) -> u64 {
        u64::try_from(self.bytes.len()).expect("a length in memory fits 64 bits")
    }
}

/// All objects, by `bucket/key`.
pub(super) struct Store {
    pub(super) objects: BTreeMap<String, Object>,
    pub(super) page_entries: usize,
    pub(super) versioned: bool,
    /// True if responses do not identify the state of an object.
    pub(super) without_validators: bool,
    /// Headers that state an object's checksums, by path.
    pub(super) checksums: BTreeMap<String, Vec<(String, String)>>,
    buckets: BTreeSet<String>,
    versions: BTreeMap<(String, String), Object>,
    writes: u64,
}

impl Store {
    pub(super) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            page_entries: S3_PAGE_ENTRIES,
            versioned: false,
            without_validators: false,
            checksums: BTreeMap::new(),
            buckets: BTreeSet::new(),
            versions: BTreeMap::new(),
            writes: 0,
        }
    }

    /// Puts or replaces an object, and returns its tag.
    pub(super) fn put(&mut self, path: &str, bytes: Arc<Vec<u8>>) -> String {
        let path = path.trim_start_matches('/');
        self.writes += 1;
        let object = Object {
            bytes,
            etag: format!("\"{:032x}\"", self.writes),
            modified: FIRST_WRITE_SECS + self.writes,
            version: self.versioned.then(|| format!("v{:04}", self.writes)),
        };
        let etag = object.etag.clone();
        self.buckets.insert(bucket_and_key(path).0.to_owned());
        if let Some(version) = &object.version {
            self.versions
                .insert((path.to_owned(), version.clone()), object.clone());
        }
        self.objects.insert(path.to_owned(), object);
        etag
    }

    pub(super) fn remove(&mut self, path: &str) -> bool {
        self.objects.remove(path.trim_start_matches('/')).is_some()
    }

    /// Returns the current object, or this version of it.
    pub(super) fn find(&self, path: &str, version: Option<&str>) -> Option<&Object> {
        match version {
            Some(version) => self.versions.get(&(path.to_owned(), version.to_owned())),
            None => self.objects.get(path),
        }
    }

    pub(super) fn has_bucket(&self, bucket: &str) -> bool {
        self.buckets.contains(bucket)
    }
}

/// Splits `a/b/c` into bucket `a` and key `b/c`.
pub(super) fn bucket_and_key(path: &str) -> (&str, &str) {
    path.split_once('/').unwrap_or((path, ""))
}
