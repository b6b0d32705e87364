//! Lists the files to copy below a source: local directories and prefixes of object stores at all
//! depths. Web servers list nothing: there, the files that an index names and those that usually
//! lie beside it.

use std::fs::{DirEntry, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "object")]
use object_store::path::Path as Key;

#[cfg(feature = "object")]
use super::cancel::unless_stopped;
#[cfg(not(feature = "object"))]
use super::fetch::unsupported;
use super::fetch::{Opened, Sources};
use super::journal::Origin;
use super::paths::Filter;
use super::{Shared, cancelled};
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "object")]
use crate::format::{INDEX_BYTES_MAX, parse_index};
use crate::options::Location;
#[cfg(feature = "object")]
use crate::options::Protocol;
use crate::storage::cannot_open;
#[cfg(feature = "object")]
use crate::storage::{Listed, Remote, cached, is_offline, snapshot, with_retries};

/// Maximum number of files and directories below a source.
const NAMES_MAX: usize = 1_000_000;

/// Maximum nesting depth of directories, counting the files in them.
const DEPTH_MAX: usize = 64;

#[cfg(feature = "object")]
const INDEX: &str = "model.safetensors.index.json";
/// Suffixes of files: a directory with such a name is not expected, which saves a request.
#[cfg(feature = "object")]
const FILES: [&str; 2] = [".safetensors", ".json"];
#[cfg(feature = "object")]
const SINGLE: &str = "model.safetensors";

/// Files beside the weights of a checkpoint that have the same name everywhere.
#[cfg(feature = "object")]
const BESIDE: [&str; 10] = [
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

/// File to copy.
#[derive(Debug)]
pub(super) struct Entry {
    /// Path below the source and below the target, with `/`. Not validated yet.
    pub(super) name: String,
    pub(super) location: Location,
    /// State of the source as it was listed; `None` if only opening it tells.
    pub(super) listed: Option<Origin>,
    /// Open source, if finding the file required opening it.
    pub(super) opened: Option<Opened>,
}

/// Files found so far. Their number is limited: more is a mistake, a store that invents listings,
/// or links that form a cycle.
#[derive(Debug, Default)]
struct Found {
    entries: Vec<Entry>,
    /// Number of files and directories, selected or not.
    names: usize,
}

impl Found {
    /// Counts the file or directory `name` below `source`.
    fn count(&mut self, source: &Location, name: &str) -> Result<()> {
        self.names += 1;
        let message = if self.names > NAMES_MAX {
            format!("it contains more than {NAMES_MAX} files and directories")
        } else if name.split('/').count() > DEPTH_MAX {
            format!("directories are nested more than {DEPTH_MAX} deep")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidRequest, message)
            .with_location(source)
            .with_hint("copy one of its subdirectories"))
    }
}

/// Returns all selected files, sorted by name. A source that is a file is selected whatever its
/// name.
pub(super) fn entries(
    source: &Location,
    filter: &Filter,
    sources: &Sources,
    shared: &Arc<Shared>,
) -> Result<Vec<Entry>> {
    let mut entries = match source.as_path() {
        Some(path) => local(source, path, filter, shared)?,
        None => remote(source, filter, sources, shared)?,
    };
    if !matches!(&entries[..], [only] if only.location == *source) {
        entries.retain(|entry| filter.takes(&entry.name));
    }
    #[cfg(feature = "object")]
    if source.protocol() == Some(Protocol::Hub) {
        take_from_cache(source, &mut entries, sources)?;
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

fn local(source: &Location, path: &Path, filter: &Filter, shared: &Shared) -> Result<Vec<Entry>> {
    let metadata = std::fs::metadata(path).map_err(|error| cannot_open(error, source))?;
    if !metadata.is_dir() {
        return Ok(vec![Entry {
            name: source.file_name().to_owned(),
            location: source.clone(),
            listed: Some(Origin::of_file(source, &metadata)),
            opened: None,
        }]);
    }
    let mut walk = Walk {
        source,
        filter,
        shared,
        above: Vec::new(),
        found: Found::default(),
    };
    walk.folder(source, "", &metadata)?;
    Ok(walk.found.entries)
}

/// Walk through local directories. Follows symbolic links, since caches of model hubs consist of
/// them, except to a directory that contains the link.
struct Walk<'a> {
    source: &'a Location,
    filter: &'a Filter,
    shared: &'a Shared,
    /// Device and inode of the directory that is being listed, and of all its ancestors.
    above: Vec<(u64, u64)>,
    found: Found,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &Location, name: &str, metadata: &Metadata) -> Result<()> {
        let identity = (metadata.dev(), metadata.ino());
        if self.above.contains(&identity) {
            return Ok(());
        }
        self.above.push(identity);
        let unreadable =
            |error| Error::from_io("cannot list the directory", error).with_location(folder);
        let path = folder.as_path().expect("a local directory");
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            if self.shared.stop.is_cancelled() {
                return Err(cancelled());
            }
            self.entry(&entry.map_err(unreadable)?, name)?;
        }
        self.above.pop();
        Ok(())
    }

    /// Examines only selected entries: others may be inaccessible.
    fn entry(&mut self, entry: &DirEntry, folder: &str) -> Result<()> {
        let last = entry.file_name();
        if !self.filter.sees(last.as_bytes()) {
            return Ok(());
        }
        let Ok(last) = last.into_string() else {
            return Err(
                Error::new(ErrorKind::InvalidRequest, "the name is not UTF-8")
                    .with_location(entry.path().display())
                    .with_hint("rename it"),
            );
        };
        let (location, name) = (Location::from_path(entry.path()), below(folder, &last));
        self.found.count(self.source, &name)?;
        let unreadable = |error| cannot_open(error, &location);
        let kind = entry.file_type().map_err(unreadable)?;
        let wanted = self.filter.takes(&name);
        if !wanted && !kind.is_dir() && !kind.is_symlink() {
            return Ok(());
        }
        let metadata = match std::fs::metadata(entry.path()) {
            Ok(metadata) => metadata,
            // A dangling link. Only its target would tell whether it is a directory.
            Err(_) if !wanted => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        if metadata.is_dir() {
            return self.folder(&location, &name, &metadata);
        }
        if wanted && metadata.is_file() {
            self.found.entries.push(Entry {
                name,
                listed: Some(Origin::of_file(&location, &metadata)),
                location,
                opened: None,
            });
        }
        Ok(())
    }
}

fn below(folder: &str, last: &str) -> String {
    if folder.is_empty() {
        last.to_owned()
    } else {
        format!("{folder}/{last}")
    }
}

#[cfg(not(feature = "object"))]
fn remote(
    source: &Location,
    _filter: &Filter,
    _sources: &Sources,
    _shared: &Arc<Shared>,
) -> Result<Vec<Entry>> {
    Err(unsupported(source))
}

#[cfg(feature = "object")]
fn remote(
    source: &Location,
    filter: &Filter,
    sources: &Sources,
    shared: &Arc<Shared>,
) -> Result<Vec<Entry>> {
    if source.protocol() == Some(Protocol::Hub) && is_offline(sources.options()) {
        let url = source.remote().expect("a model of a hub");
        let path = cached(url, sources.options())?.expect("else it is an error");
        return local(&Location::from_path(&path), &path, filter, shared);
    }
    let name = source.file_name();
    if FILES.iter().any(|end| name.ends_with(end)) {
        return Ok(vec![unopened(source, name)]);
    }
    if source.protocol() == Some(Protocol::Http) {
        return web_folder(source, filter, sources, shared);
    }
    let mut entries = list(sources.remote()?, source, filter, shared)?;
    if entries.is_empty() && !name.is_empty() {
        // A file may have any name; opening it tells whether it exists.
        entries.push(unopened(source, name));
    }
    Ok(entries)
}

/// Replaces entries by files in the cache of a hub's tools, if everything selected is there, for
/// the very commit that would be read from the hub.
#[cfg(feature = "object")]
fn take_from_cache(source: &Location, entries: &mut [Entry], sources: &Sources) -> Result<()> {
    if entries
        .iter()
        .all(|entry| entry.location.as_path().is_some())
    {
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
        let origin = Origin::of_file(&location, &found);
        (found.is_file() && same).then_some((location, origin))
    };
    let found: Option<Vec<_>> = entries.iter().map(in_cache).collect();
    for (entry, (location, origin)) in entries.iter_mut().zip(found.into_iter().flatten()) {
        (entry.location, entry.listed) = (location, Some(origin));
    }
    Ok(())
}

#[cfg(feature = "object")]
fn unopened(location: &Location, name: &str) -> Entry {
    Entry {
        name: name.to_owned(),
        location: location.clone(),
        listed: None,
        opened: None,
    }
}

/// Lists all levels of an object store below `source`.
#[cfg(feature = "object")]
fn list(
    remote: &Arc<Remote>,
    source: &Location,
    filter: &Filter,
    shared: &Arc<Shared>,
) -> Result<Vec<Entry>> {
    let mut found = Found::default();
    let mut folders = vec![(source.clone(), String::new())];
    while let Some((folder, name)) = folders.pop() {
        let (prefix, objects, prefixes) = level(remote, &folder, shared)?;
        // An object with the directory's own key only marks that the directory exists.
        for object in objects.iter().filter(|object| object.location != prefix) {
            let last = last_of(&object.location, &prefix, &folder)?;
            if !filter.sees(last.as_bytes()) {
                continue;
            }
            let name = below(&name, last);
            found.count(source, &name)?;
            let location = folder.join(last);
            let listed = object.len.map(|len| Origin {
                source: location.to_string(),
                len,
                e_tag: object.e_tag.clone(),
                version: object.version.clone(),
                modified: (object.modified, 0),
                file: None,
            });
            found.entries.push(Entry {
                name,
                location,
                listed,
                opened: None,
            });
        }
        for child in &prefixes {
            let last = last_of(child, &prefix, &folder)?;
            if filter.sees(last.as_bytes()) {
                let name = below(&name, last);
                found.count(source, &name)?;
                folders.push((folder.join(last), name));
            }
        }
    }
    Ok(found.entries)
}

/// Returns the prefix of `folder` in the store, and the objects and prefixes directly below it.
#[cfg(feature = "object")]
fn level(
    remote: &Arc<Remote>,
    folder: &Location,
    shared: &Arc<Shared>,
) -> Result<(Key, Vec<Listed>, Vec<Key>)> {
    let url = folder.remote().expect("a location in an object store");
    let failed = |error: Error| error.or_location(folder);
    let (store, prefix) = remote.store(url).map_err(failed)?;
    let (retries, retry_counter) = (remote.options().retries(), remote.retry_counter().clone());
    let (asked, shared) = (prefix.clone(), Arc::clone(shared));
    let listing = async move {
        let prefix = Some(&asked).filter(|prefix| !prefix.as_ref().is_empty());
        unless_stopped(
            &shared,
            with_retries(retries, &retry_counter, || store.list(prefix)),
        )
        .await
    };
    let level = remote
        .run(remote.open_deadline(), listing)
        .map_err(failed)?;
    Ok((prefix, level.objects, level.prefixes))
}

/// Returns the last component of a key, which must be directly below the listed prefix: otherwise
/// the listing might never end.
#[cfg(feature = "object")]
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
#[cfg(feature = "object")]
fn web_folder(
    folder: &Location,
    filter: &Filter,
    sources: &Sources,
    shared: &Arc<Shared>,
) -> Result<Vec<Entry>> {
    let open = |name: &str| -> Result<Entry> {
        let location = folder.join(name);
        let opened = sources.open(&location, shared)?;
        Ok(Entry {
            listed: Some(opened.origin()?),
            opened: Some(opened),
            ..unopened(&location, name)
        })
    };
    let mut entries = match open(INDEX) {
        Ok(index) => {
            let shards = shards_of(&index, shared)?;
            let shards = shards.iter().map(|name| unopened(&folder.join(name), name));
            let mut entries: Vec<_> = shards.collect();
            entries.push(index);
            entries
        }
        Err(error) if is_absent(&error) => match open(SINGLE) {
            Ok(single) => vec![single],
            Err(error) if is_absent(&error) && !folder.file_name().is_empty() => {
                return Ok(vec![unopened(folder, folder.file_name())]);
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
    Ok(entries)
}

/// Returns whether a file is missing, counting a 403: servers that forbid listing answer so for
/// missing files. For files beside the weights only a 404 counts: otherwise a copy could lack its
/// tokenizer and look complete.
#[cfg(feature = "object")]
fn is_absent(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::PermissionDenied
    )
}

#[cfg(feature = "object")]
fn shards_of(index: &Entry, shared: &Arc<Shared>) -> Result<Vec<String>> {
    let opened = index.opened.as_ref().expect("an index that was opened");
    let located = |error: Error| error.with_location(&index.location);
    if opened.origin()?.len > INDEX_BYTES_MAX {
        return Err(located(Error::new(
            ErrorKind::InvalidFormat,
            format!("an index has at most {INDEX_BYTES_MAX} bytes"),
        )));
    }
    parse_index(&opened.bytes(shared)?)
        .map(|index| index.shards)
        .map_err(located)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_limits_count_and_depth() {
        let source = Location::from_path("model");
        let mut found = Found::default();
        let deep = ["a"; DEPTH_MAX].join("/");
        found.count(&source, &deep).expect("at the maximum depth");
        let error = found
            .count(&source, &below(&deep, "a"))
            .expect_err("deeper");
        assert!(error.message().contains("64 deep"), "{error}");
        found.names = NAMES_MAX - 1;
        found.count(&source, "a").expect("at the maximum number");
        let error = found.count(&source, "a").expect_err("more");
        assert!(error.message().contains("1000000"), "{error}");
        assert!(error.hint().is_some() && error.location().is_some());
    }

    #[cfg(feature = "object")]
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
