//! Lists the files to copy below a source: local directories, at all depths, and with `remote`
//! object stores.

mod remote;

use std::fs::{DirEntry, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use self::remote::{remote, take_from_cache};
use super::fetch::{Opened, Sources};
use super::journal::Origin;
use super::paths::Filter;
use crate::cancel::cancelled;
use crate::control::Ongoing;
use crate::error::{Error, Result};
use crate::options::Location;
use crate::storage::cannot_open;

/// Maximum number of files and directories below a source.
const NAMES_MAX: usize = 1_000_000;

/// Maximum nesting depth of directories, counting the files in them.
const DEPTH_MAX: usize = 64;

/// File to copy.
#[derive(Debug)]
pub struct Entry {
    /// Path below the source and below the target, with `/`. Not validated yet.
    pub name: String,
    /// Location of the source.
    pub location: Location,
    /// State of the source as it was listed; `None` if only opening it tells.
    pub listed: Option<Origin>,
    /// Open source, if finding the file required opening it.
    pub opened: Option<Opened>,
}

/// Result of listing a source.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) entries: Vec<Entry>,
    /// Selected names of which no entry can be made; of a store, whole keys.
    pub(super) unusable: Vec<String>,
    /// True if the source is a file, and the only entry.
    is_file: bool,
}

impl Listing {
    fn from_file(entry: Entry) -> Self {
        Self {
            entries: vec![entry],
            unusable: Vec::new(),
            is_file: true,
        }
    }

    fn from_folder(entries: Vec<Entry>, unusable: Vec<String>) -> Self {
        Self {
            entries,
            unusable,
            is_file: false,
        }
    }
}

/// Files found so far. Their number is limited: more is a mistake, a store that invents listings,
/// or links that form a cycle.
#[derive(Debug, Default)]
pub(super) struct Found {
    entries: Vec<Entry>,
    unusable: Vec<String>,
    /// Number of files and directories, selected or not.
    names: usize,
}

impl Found {
    /// Counts the file or directory `name` below `source`.
    pub(super) fn count(&mut self, source: &Location, name: &str) -> Result<()> {
        self.names += 1;
        let message = if self.names > NAMES_MAX {
            format!("it contains more than {NAMES_MAX} files and directories")
        } else if name.split('/').count() > DEPTH_MAX {
            format!("directories are nested more than {DEPTH_MAX} deep")
        } else {
            return Ok(());
        };
        Err(Error::invalid_request(message)
            .with_location(source)
            .with_hint("copy one of its subdirectories"))
    }
}

/// Returns all selected files, sorted by name. A source that is a file is selected whatever its
/// name.
pub(super) fn find(
    source: &Location,
    filter: &Filter,
    sources: &Sources,
    ongoing: &Arc<Ongoing>,
) -> Result<Listing> {
    let mut listing = match source.as_path() {
        Some(path) => local(source, path, filter, ongoing)?,
        None => remote(source, filter, sources, ongoing)?,
    };
    let entries = &mut listing.entries;
    if !listing.is_file {
        entries.retain(|entry| filter.takes(&entry.name));
    }
    take_from_cache(source, entries, sources)?;
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(listing)
}

fn local(source: &Location, path: &Path, filter: &Filter, ongoing: &Ongoing) -> Result<Listing> {
    let metadata = std::fs::metadata(path).map_err(|error| cannot_open(error, source))?;
    if !metadata.is_dir() {
        return Ok(Listing::from_file(Entry {
            name: source.file_name().to_owned(),
            location: source.clone(),
            listed: Some(Origin::from_metadata(source, &metadata)),
            opened: None,
        }));
    }
    let mut walk = Walk {
        source,
        filter,
        ongoing,
        above: Vec::new(),
        found: Found::default(),
    };
    walk.folder(source, "", &metadata)?;
    let Found {
        entries, unusable, ..
    } = walk.found;
    Ok(Listing::from_folder(entries, unusable))
}

/// Walk through local directories. Follows symbolic links, since caches of model hubs consist of
/// them, except to a directory that contains the link.
struct Walk<'a> {
    source: &'a Location,
    filter: &'a Filter,
    ongoing: &'a Ongoing,
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
            if self.ongoing.stop.is_cancelled() {
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
        let last = match last.into_string() {
            Ok(last) => last,
            Err(last) => {
                // The name is not UTF-8.
                let name = below(folder, &last.to_string_lossy());
                self.found.count(self.source, &name)?;
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if self.filter.may_take(&name, is_folder) {
                    self.found.unusable.push(name);
                }
                return Ok(());
            }
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
            // The status of a dangling link cannot be read, and only its target would tell whether
            // it is a directory.
            Err(_) if !wanted => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        if metadata.is_dir() {
            return self.folder(&location, &name, &metadata);
        }
        if wanted && metadata.is_file() {
            self.found.entries.push(Entry {
                name,
                listed: Some(Origin::from_metadata(&location, &metadata)),
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
}
