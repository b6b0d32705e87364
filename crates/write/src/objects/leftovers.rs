//! Shards that no index names: of killed writers, and of replaced checkpoints.
//!
//! A writer that runs has shards too. It cannot succeed any more once an index has been written
//! after it began, so shards that are older than the index are never named by a later one. Others
//! may be of a writer that runs, unless they are a day old, and so may a claim of plain names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use object_store::path::Path;

use super::claim::CLAIM;
use super::client::Client;
use crate::error::Result;
use crate::format::INDEX_NAME;
use crate::leftovers::Leftover;
use crate::options::{Location, StoreOptions};
use crate::write_id::WriteId;

/// Name of the list of files that several processes have written, which is their index.
pub const FRAGMENTS_NAME: &str = "tload-dcp.json";

/// Age in seconds from which shards that no index names are taken for those of a killed writer.
const AGE: i64 = 24 * 60 * 60;

/// Removes the shards that no index names, and returns them by write.
pub(crate) fn remove(location: &Location, options: &StoreOptions) -> Result<Vec<Leftover>> {
    let client = Client::open(location, options)?;
    let (index, list) = (client.path(INDEX_NAME), client.path(FRAGMENTS_NAME));
    // The index first: shards that a new index names may be listed, and then are newer than it.
    let (state, text, list, level) = client.wait(|client| async move {
        let state = client.state(&index).await?;
        let text = client.text(&index).await?;
        let list = client.text(&list).await?;
        Ok((state, text, list, client.list().await?))
    })?;
    let mut used = text.as_deref().map_or_else(BTreeSet::new, shards);
    used.extend(list.as_deref().into_iter().flat_map(shards));
    let mut found = Vec::new();
    let mut writes: BTreeMap<String, (i64, Vec<Path>)> = BTreeMap::new();
    for object in level.objects {
        let name = object.location.filename().unwrap_or_default();
        if name == CLAIM {
            // That of a copy is its journal too: it goes with a copy that starts over.
            let removed = object.modified < now() - AGE && object.len == Some(12);
            if removed {
                client.delete(vec![object.location])?;
            }
            found.push(Leftover {
                location: location.join(CLAIM).to_string(),
                removed,
            });
        } else if let Some(id) = WriteId::of_shard(name).filter(|_| !used.contains(name)) {
            let entry = writes.entry(id.to_string());
            let (oldest, paths) = entry.or_insert((i64::MAX, Vec::new()));
            *oldest = object.modified.min(*oldest);
            paths.push(object.location);
        }
    }
    for (id, (oldest, paths)) in writes {
        let is_overtaken = state.as_ref().is_some_and(|index| oldest < index.modified);
        let removed = is_overtaken || oldest < now() - AGE;
        if removed {
            client.delete(paths)?;
        }
        found.push(Leftover {
            location: location.join(&format!("model-{id}-*")).to_string(),
            removed,
        });
    }
    Ok(found)
}

/// Returns the time, seconds since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

/// Returns the names of the shards of an index, or of a list of fragments.
pub fn shards(text: &[u8]) -> BTreeSet<String> {
    let index: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let map = index["weight_map"].as_object().into_iter().flatten();
    let listed = index["files"].as_array().into_iter().flatten();
    let names = map.map(|(_, file)| file).chain(listed);
    let names = names.filter_map(|name| name.as_str().map(str::to_owned));
    names.collect()
}

/// Returns the identifier of the write that made an index, a claim or a list of fragments.
pub(super) fn named(text: &[u8]) -> Option<WriteId> {
    let object: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let told = object["write"].as_str().or(std::str::from_utf8(text).ok());
    let of_shard = || shards(text).iter().find_map(|name| WriteId::of_shard(name));
    told.and_then(WriteId::parse).or_else(of_shard)
}
