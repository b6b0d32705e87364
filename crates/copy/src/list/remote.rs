//! Lists the files to copy below a prefix of an object store, at all depths. Web servers list
//! nothing: there, the files that an index names and those that usually lie beside it.

use std::sync::Arc;

use object_store::path::Path as Key;

use super::{Entry, Found, Listing, below, local};
use crate::cancel::unless_stopped;
use crate::control::Ongoing;
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::Sources;
use crate::format::{INDEX_BYTES_MAX, parse_index};
use crate::journal::Origin;
use crate::options::{Location, Protocol};
use crate::paths::Filter;
use crate::storage::Remote;
use crate::storage::object::{Level, cached_copy, level, snapshot};

const INDEX: &str = "model.safetensors.index.json";
/// Suffixes of files: a directory with such a name is not expected, which saves a request.
const FILES: [&str; 2] = [".safetensors", ".json"];
const SINGLE: &str = "model.safetensors";

/// Files beside the weights of a checkpoint that have the same name everywhere.
const BESIDE: [&str; 12] = [
    "tload-manifest.json",
    "model.sig",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
];

/// Returns the files below `source`, some of which the filter may not select.
pub(super) fn remote(
    source: &Location,
    filter: &Filter,
    sources: &Sources,
    ongoing: &Arc<Ongoing>,
) -> Result<Listing> {
    if source.protocol() == Some(Protocol::Hub) {
        let url = source.remote().expect("a model of a hub");
        let is_selected = |name: &str| filter.takes(name);
        if let Some(path) = cached_copy(url, sources.options(), &is_selected)? {
            return local(&Location::from_path(&path), &path, filter, ongoing);
        }
    }
    let name = source.file_name();
    if FILES.iter().any(|end| name.ends_with(end)) {
        return Ok(Listing::from_file(unopened(source, name)));
    }
    if source.protocol() == Some(Protocol::Http) {
        return web_folder(source, filter, sources, ongoing);
    }
    let Found {
        entries, unusable, ..
    } = list(sources.remote()?, source, filter, ongoing)?;
    if entries.is_empty() && unusable.is_empty() && !name.is_empty() {
        // A file may have any name; opening it tells whether it exists.
        return Ok(Listing::from_file(unopened(source, name)));
    }
    Ok(Listing::from_folder(entries, unusable))
}

/// Replaces entries that a hub listed by files in the cache of its tools, if everything selected is
/// there, for the very commit that would be read from the hub.
pub(super) fn take_from_cache(
    source: &Location,
    entries: &mut [Entry],
    sources: &Sources,
) -> Result<()> {
    let is_local = |entry: &Entry| entry.location.as_path().is_some();
    if source.protocol() != Some(Protocol::Hub) || entries.iter().all(is_local) {
        return Ok(());
    }
    let url = source.remote().expect("a model of a hub");
    let (store, _) = sources.remote()?.store(url)?;
    let commit = store.commit_name();
    let Some(folder) = commit.and_then(|commit| snapshot(url, commit, sources.options())) else {
        return Ok(());
    };
    let in_cache = |entry: &Entry| {
        let path = folder.join(&entry.name);
        let found = std::fs::metadata(&path).ok()?;
        let listed = entry.listed.as_ref();
        let same = listed.is_none_or(|listed| listed.len == found.len());
        let location = Location::from_path(path);
        let origin = Origin::from_metadata(&location, &found);
        (found.is_file() && same).then_some((location, origin))
    };
    let found: Option<Vec<_>> = entries.iter().map(in_cache).collect();
    for (entry, (location, origin)) in entries.iter_mut().zip(found.into_iter().flatten()) {
        (entry.location, entry.listed) = (location, Some(origin));
    }
    Ok(())
}

fn unopened(location: &Location, name: &str) -> Entry {
    Entry {
        name: name.to_owned(),
        location: location.clone(),
        listed: None,
        opened: None,
    }
}

/// Lists all levels of an object store below `source`.
fn list(
    remote: &Arc<Remote>,
    source: &Location,
    filter: &Filter,
    ongoing: &Arc<Ongoing>,
) -> Result<Found> {
    let mut found = Found::default();
    let url = source.remote().expect("a location in an object store");
    let (store, _) = remote.store(url)?;
    let mut folders = vec![(source.clone(), String::new())];
    while let Some((folder, name)) = folders.pop() {
        let (prefix, level) = children(remote, &folder, ongoing)?;
        // An object with the directory's own key only marks that the directory exists.
        let objects = level.objects.iter();
        for object in objects.filter(|object| object.location != prefix) {
            let last = last_of(&object.location, &prefix, &folder)?;
            if !filter.sees(last.as_bytes()) {
                continue;
            }
            let name = below(&name, last);
            found.count(source, &name)?;
            let location = folder.join(last);
            let listed = object.len.map(|len| Origin {
                source: location.digest(store.origin()),
                len,
                e_tag: object.e_tag.clone(),
                version: object.version.clone(),
                modified: (object.modified, 0),
                is_settled: false,
                file: None,
            });
            found.entries.push(Entry {
                name,
                location,
                listed,
                opened: None,
            });
        }
        for child in &level.prefixes {
            let last = last_of(child, &prefix, &folder)?;
            if filter.sees(last.as_bytes()) {
                let name = below(&name, last);
                found.count(source, &name)?;
                folders.push((folder.join(last), name));
            }
        }
        for key in level.unusable {
            let rest = key.strip_prefix(prefix.as_ref()).unwrap_or(&key);
            let last = rest.strip_prefix('/').unwrap_or(rest);
            let is_folder = last.ends_with('/');
            let last = last.strip_suffix('/').unwrap_or(last);
            // `.` and `..` lead somewhere else than to a hidden name.
            if !matches!(last, "." | "..") && !filter.sees(last.as_bytes()) {
                continue;
            }
            found.count(source, &name)?;
            if filter.may_take(&below(&name, last), is_folder) {
                found.unusable.push(key);
            }
        }
    }
    Ok(found)
}

/// Returns the prefix of `folder` in the store, and what is directly below it.
fn children(
    remote: &Arc<Remote>,
    folder: &Location,
    ongoing: &Arc<Ongoing>,
) -> Result<(Key, Level)> {
    let url = folder.remote().expect("a location in an object store");
    let failed = |error: Error| error.or_location(folder);
    let (store, prefix) = remote.store(url).map_err(failed)?;
    let (on, of) = (Arc::clone(remote), folder.clone());
    let (asked, ongoing) = (prefix.clone(), Arc::clone(ongoing));
    let listing = async move {
        let level = Box::pin(level(&on, &store, &asked, &of));
        unless_stopped(&ongoing, level).await
    };
    let level = remote
        .run_until(remote.open_deadline(), "listing it", listing)
        .map_err(failed)?;
    Ok((prefix, level))
}

/// Returns the last component of a key, which must be directly below the listed prefix: otherwise
/// the listing might never end.
fn last_of<'a>(key: &'a Key, prefix: &Key, folder: &Location) -> Result<&'a str> {
    let components = key.prefix_match(prefix).map_or(0, Iterator::count);
    key.filename().filter(|_| components == 1).ok_or_else(|| {
        let message = format!("the store lists {key:?}, which is not directly below this prefix");
        Error::new(ErrorKind::Remote, message)
            .with_location(folder)
            .with_hint("the store's listings are invalid: copy single files")
    })
}

/// Lists a directory of a web server. A location with neither an index nor the single file of a
/// small model is a file.
fn web_folder(
    folder: &Location,
    filter: &Filter,
    sources: &Sources,
    ongoing: &Arc<Ongoing>,
) -> Result<Listing> {
    let open = |name: &str| -> Result<Entry> {
        let location = folder.join(name);
        let opened = sources.open(&location, ongoing)?;
        Ok(Entry {
            listed: Some(opened.origin()?),
            opened: Some(opened),
            ..unopened(&location, name)
        })
    };
    let mut entries = match open(INDEX) {
        Ok(index) => {
            let shards = shards_of(&index, ongoing)?;
            let shards = shards.iter().map(|name| unopened(&folder.join(name), name));
            let mut entries: Vec<_> = shards.collect();
            entries.push(index);
            entries
        }
        Err(error) if is_absent(&error) => match open(SINGLE) {
            Ok(single) => vec![single],
            Err(error) if is_absent(&error) && !folder.file_name().is_empty() => {
                return Ok(Listing::from_file(unopened(folder, folder.file_name())));
            }
            Err(error) => return Err(error),
        },
        Err(error) => return Err(error),
    };
    for name in BESIDE.into_iter().filter(|name| filter.takes(name)) {
        match open(name) {
            Ok(entry) => entries.push(entry),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(error.with_hint(format!(
                    "supply credentials; or, if the server answers 403 for missing files, leave {name} out with an exclude pattern"
                )));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Listing::from_folder(entries, Vec::new()))
}

/// Returns whether a file is missing, counting a 403: servers that forbid listing answer so for
/// missing files. For files beside the weights only a 404 counts: otherwise a copy could lack its
/// tokenizer and look complete.
fn is_absent(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::PermissionDenied
    )
}

fn shards_of(index: &Entry, ongoing: &Arc<Ongoing>) -> Result<Vec<String>> {
    let opened = index.opened.as_ref().expect("an index that was opened");
    let located = |error: Error| error.with_location(&index.location);
    if opened.origin()?.len > INDEX_BYTES_MAX {
        return Err(located(Error::new(
            ErrorKind::InvalidFormat,
            format!("an index has at most {INDEX_BYTES_MAX} bytes"),
        )));
    }
    parse_index(&opened.bytes(ongoing)?)
        .map(|index| index.shards)
        .map_err(located)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_keys_are_directly_below() {
        let folder = Location::parse("s3://b/m").expect("a location");
        for (key, prefix, wanted) in [
            ("m/a", "m", Some("a")),
            ("a", "", Some("a")),
            ("m", "m", None),
            ("", "", None),
            ("m/a/b", "m", None),
            ("ma", "m", None),
            ("n/a", "m", None),
        ] {
            let (key, prefix) = (Key::from(key), Key::from(prefix));
            match (last_of(&key, &prefix, &folder), wanted) {
                (Ok(last), Some(wanted)) => assert_eq!(last, wanted),
                (Err(error), None) => assert_eq!(error.kind(), ErrorKind::Remote),
                (found, _) => panic!("{key}: {found:?}"),
            }
        }
    }
}
