//! Directory to copy, and what is in a store.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tload_base::error::Result;
use tload_base::options::{Location, StoreOptions};
use tload_copy::{CopyOptions, CopyReport};
use tload_upload::UploadJob;

use crate::sites::Site;

pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Files by their path.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Writes files below a directory: two shards of several parts, a small one, an index, and others.
/// The bytes are of no format: a copy does not look at them.
pub(crate) fn write_model(folder: &Path, seed: u8) -> Files {
    let large = |len: usize, salt: u8| -> Vec<u8> {
        let byte = |run: usize| u8::try_from((run ^ (run >> 10)) & 0xff).expect("a byte");
        let runs = (0..len.div_ceil(8)).map(|run| [byte(run) ^ seed ^ salt; 8]);
        let mut bytes = runs.collect::<Vec<_>>().concat();
        bytes.truncate(len);
        bytes
    };
    let files = BTreeMap::from([
        ("model-1.safetensors".to_owned(), large((20 << 20) + 5, 1)),
        ("model-2.safetensors".to_owned(), large(9 << 20, 2)),
        ("model-3.safetensors".to_owned(), large(70_000, 3)),
        (INDEX.to_owned(), large(2_000, 4)),
        ("config.json".to_owned(), large(300, 5)),
        ("deep/er/a b#c.txt".to_owned(), large(10, 6)),
        ("empty".to_owned(), Vec::new()),
    ]);
    for (name, bytes) in &files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("has one")).expect("is made");
        fs::write(path, bytes).expect("is written");
    }
    files
}

pub(crate) fn total(files: &Files) -> u64 {
    files.values().map(|bytes| bytes.len() as u64).sum()
}

/// Returns the objects below a prefix, without hidden ones.
pub(crate) fn stored(site: &Site, prefix: &str) -> Files {
    let mut found = Files::new();
    for folder in ["", "/deep/er"] {
        for (name, bytes) in site.objects(&format!("{prefix}{folder}")) {
            if !name.starts_with('.') {
                let name = format!("{folder}/{name}");
                found.insert(name.trim_start_matches('/').to_owned(), bytes);
            }
        }
    }
    found
}

/// Returns the bytes that the journal below a prefix, and complete objects, have of the files.
pub(crate) fn known_bytes(site: &Site, prefix: &str, files: &Files) -> u64 {
    let objects = site.objects(prefix);
    let Some(text) = objects.get(".tload-write") else {
        return 0;
    };
    let journal: serde_json::Value = serde_json::from_slice(text).expect("is JSON");
    let begun = journal["files"].as_object().expect("a map");
    let of = |(name, begun): (&String, &serde_json::Value)| {
        let len = files[name].len() as u64;
        let is_there = objects.get(name) == Some(&files[name]);
        if begun["is_done"] == true || (is_there && begun["upload"].is_string()) {
            return len;
        }
        let piece = begun["piece_bytes"].as_u64().expect("a length");
        let parts = begun["parts"].as_object().expect("a map");
        let indexes = parts
            .keys()
            .map(|key| key.parse::<u64>().expect("an index"));
        indexes.map(|index| piece.min(len - index * piece)).sum()
    };
    begun.iter().map(of).sum()
}

pub(crate) fn copy(source: impl Into<Location>, site: &Site, prefix: &str) -> Result<CopyReport> {
    copy_with(source, site, prefix, site.options(), CopyOptions::default())
}

pub(crate) fn copy_with(
    source: impl Into<Location>,
    site: &Site,
    prefix: &str,
    store: StoreOptions,
    options: CopyOptions,
) -> Result<CopyReport> {
    let job = UploadJob::new(source, site.location(prefix));
    job.store(store).options(options).run()
}
