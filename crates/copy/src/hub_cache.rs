//! Writes models of a hub into the cache of `huggingface_hub` (store option `hf_cache`), where
//! that package finds them. Openings and copies call it before they look into that cache.
//!
//! ```text
//!  CACHE/models--org--name/blobs/ETAG                 bytes of a file
//!                         /snapshots/COMMIT/FILE      link to them
//!                         /refs/REVISION              the commit
//!                         /.tload/COMMIT/FILE         being copied
//! ```
//!
//! A blob appears by renaming a complete file, and the reference once all links are there. Other
//! processes wait; a copy that was interrupted is resumed. Nothing below the cache's directory is
//! written or removed through a link, and `.tload` has to be this user's: other users may write to
//! a cache that a group shares.

mod lock;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use self::lock::{CacheLock, LOCK_PATIENCE};
use super::cancel::{Stop, unless_stopped};
use super::list::Found;
use super::paths::{self, components};
use crate::control::Ongoing;
use crate::copy_options::{CopyOptions, DEPTH, RANGE_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    Choice, INDEX_BYTES_MAX, INDEX_SUFFIX, Precedence, SUFFIX, choose_files, parse_index,
};
use crate::job::CopyJob;
use crate::options::{HubId, Location, Protocol, StoreOptions};
use crate::storage::guarded_dir::{DEPTH_MAX, GuardedDir, Trust};
use crate::storage::object::cache::trust;
use crate::storage::object::{
    Listed, is_hub_offline, object_path, repository_folder, with_retries,
};
use crate::storage::{FileSource, Remote, Source, StoreClient};

/// Longest file that counts as one beside the weights, bytes: the largest tokenizers take half.
const BESIDE_BYTES_MAX: u64 = 64 << 20;

/// Suffixes of weights in other formats, which are left on the hub.
const OTHER_WEIGHTS: [&str; 12] = [
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".onnx_data",
    ".ot",
    ".npz",
    ".tflite",
];

/// Directory of files that are being copied.
const STAGING: &str = ".tload";

/// Commit of a repository, as far as it is cached.
struct Commit {
    name: String,
    files: Vec<Listed>,
}

/// Limits and state of the copies into the cache.
pub(super) struct Download {
    pub(super) depth: usize,
    pub(super) range_bytes: u64,
    /// Which of two models in a directory is wanted.
    pub(super) precedence: Precedence,
    pub(super) client: StoreClient,
    pub(super) ongoing: Arc<Ongoing>,
}

/// Puts the named files below `source` into the cache of `huggingface_hub` if the options say so.
/// If that fails, the reason is logged, and the bytes are read from the hub.
///
/// # Errors
///
/// Those of the request for the list of files; [`ErrorKind::Cancelled`].
pub(super) fn fill(
    source: &Location,
    store: &StoreOptions,
    names: &[String],
    download: Download,
) -> Result<()> {
    fill_places(&[source], store, Some(names), download).map(drop)
}

/// Puts the models at all locations of a repository into the cache of `huggingface_hub`, and
/// returns their places there, which are of one commit. Gives up at `deadline`.
///
/// # Errors
///
/// Errors of requests and of the disk; [`ErrorKind::TimedOut`].
pub fn fill_all(
    sources: &[&Location],
    store: &StoreOptions,
    client: &StoreClient,
    precedence: Precedence,
    deadline: Option<Instant>,
) -> Result<Option<Vec<PathBuf>>> {
    let ongoing = Ongoing {
        stop: Stop::at(deadline),
        ..Ongoing::default()
    };
    let download = Download {
        depth: DEPTH,
        range_bytes: RANGE_BYTES,
        precedence,
        client: client.clone(),
        ongoing: Arc::new(ongoing),
    };
    fill_places(sources, store, None, download).map_err(|error| {
        if error.kind() != ErrorKind::Cancelled {
            return error;
        }
        let message = "the download into the hub's cache took longer than the timeout of opening";
        let late = Error::new(ErrorKind::TimedOut, message).with_hint(
            "open again to resume it; or raise the shorter one of ‹timeout› and open_timeout",
        );
        match sources.first() {
            Some(source) => late.with_location(source),
            None => late,
        }
    })
}

fn fill_places(
    sources: &[&Location],
    store: &StoreOptions,
    names: Option<&[String]>,
    download: Download,
) -> Result<Option<Vec<PathBuf>>> {
    let is_wanted = store.flag("hf_cache") == Some(true) && !is_hub_offline(store);
    let urls: Vec<_> = sources
        .iter()
        .filter_map(|source| source.remote())
        .filter(|url| url.protocol == Protocol::Hub)
        .collect();
    let (Some(source), Some(url)) = (sources.first(), urls.first().filter(|_| is_wanted)) else {
        return Ok(None);
    };
    let id = HubId::from_authority(&url.authority);
    if id.is_bucket() {
        return Ok(None);
    }
    let mut plain = store.clone();
    plain.set("hf_cache", "false")?;
    let commit = list(source, &plain, &download)?;
    let paths: Vec<_> = urls
        .iter()
        .map(|url| object_path(url))
        .collect::<Result<_>>()?;
    let put = || {
        let folder = repository_folder(url, store)
            .ok_or_else(|| Error::unsupported("the hub's cache is unknown"))?;
        let mut found = Found::default();
        for file in &commit.files {
            found.count(source, file.location.as_ref())?;
        }
        let opened = open(&folder).map_err(|error| cannot(&folder, error))?;
        let own = opened
            .trusting(trust(store))
            .map_err(|error| cannot(&folder, error))?;
        let _locked = CacheLock::take(&own, &download.ongoing.stop, LOCK_PATIENCE)?;
        let mode = trust(store).permissions();
        let staging = own.make_with(STAGING, mode);
        let cache = Cache {
            staging: staging.map_err(|error| cannot(&folder, error))?,
            source: source.at_commit(&commit.name).root(),
            opened,
            folder,
            store: plain,
            commit,
            download,
        };
        let paths: Vec<_> = paths.iter().map(AsRef::as_ref).collect();
        cache.fill(&paths, names, &id.revision)?;
        let places: Vec<_> = paths.iter().map(|path| cache.snapshot(path)).collect();
        let all_exist = places.iter().all(|place| place.exists());
        Ok(all_exist.then_some(places))
    };
    put().or_else(|error: Error| {
        if error.kind() == ErrorKind::Cancelled {
            return Err(error);
        }
        let error = error.or_location(source).chain();
        tracing::warn!(error, "the model is not written to the hub's cache");
        Ok(None)
    })
}

/// Opens the directory of a repository in the hub's cache, and creates it if necessary.
fn open(folder: &Path) -> io::Result<GuardedDir> {
    let (Some(cache), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let cache = GuardedDir::create(cache, Trust::All)?;
    cache.make_with(&name.to_string_lossy(), Trust::All.permissions())
}

/// Cache of one repository.
struct Cache {
    folder: PathBuf,
    opened: GuardedDir,
    /// Directory of files that are being copied, of all commits.
    staging: GuardedDir,
    /// Root of the repository at the commit.
    source: Location,
    store: StoreOptions,
    commit: Commit,
    download: Download,
}

impl Cache {
    fn snapshot(&self, path: &str) -> PathBuf {
        self.folder
            .join("snapshots")
            .join(&self.commit.name)
            .join(path)
    }

    /// Brings the named files below each path, or those that a load from there needs.
    fn fill(&self, paths: &[&str], names: Option<&[String]>, revision: &str) -> Result<()> {
        let mut found = 0;
        for path in paths {
            found += match names {
                // The name of a single file is relative to its directory.
                Some(_) if self.has(path) => self.bring(&HashSet::from([(*path).to_owned()]))?,
                Some(names) => self.bring(&names.iter().map(|name| below(path, name)).collect())?,
                None => self.bring(&self.beside(path))? + self.bring(&self.weights(path)?)?,
            };
        }
        // A reference to a commit without files would hide an earlier one that has some.
        if found > 0 && revision != self.commit.name {
            self.refer(revision)?;
        }
        // Files that remain belong to interrupted downloads, which are resumed.
        remove_empty(&self.opened, STAGING, DEPTH_MAX);
        Ok(())
    }

    /// Returns whether a path is a file of the commit.
    fn has(&self, path: &str) -> bool {
        let mut files = self.commit.files.iter();
        files.any(|file| file.location.as_ref() == path)
    }

    /// Returns the small files at or below a path that are no weights.
    fn beside(&self, path: &str) -> HashSet<String> {
        let files = self.commit.files.iter();
        let is_beside = |file: &&Listed| {
            let name = file.location.as_ref();
            let is_small = file.len.is_none_or(|len| len <= BESIDE_BYTES_MAX);
            let is_other = OTHER_WEIGHTS.iter().any(|suffix| name.ends_with(suffix));
            let is_weights = name.ends_with(SUFFIX) || is_other;
            is_in(path, name) && is_small && !is_weights
        };
        let names = files
            .filter(is_beside)
            .map(|file| file.location.to_string());
        names.collect()
    }

    /// Returns the weights that would be loaded from a path, whose index is already in the cache.
    fn weights(&self, path: &str) -> Result<HashSet<String>> {
        if path.ends_with(SUFFIX) {
            return Ok(HashSet::from([path.to_owned()]));
        }
        if path.ends_with(INDEX_SUFFIX) {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let shards = self.shards(path)?;
            return Ok(shards.iter().map(|name| below(folder, name)).collect());
        }
        let folder = path;
        let names =
            (self.commit.files.iter()).filter_map(|file| name_in(folder, file.location.as_ref()));
        let chosen = match choose_files(names, self.download.precedence) {
            Choice::Index(index) => self.shards(&below(folder, index))?,
            Choice::Files(files) => files.chosen.into_iter().map(str::to_owned).collect(),
            // No file is chosen, so that opening the directory fails with its own error.
            Choice::Indexes(..) => Vec::new(),
        };
        Ok(chosen.iter().map(|name| below(folder, name)).collect())
    }

    fn shards(&self, index: &str) -> Result<Vec<String>> {
        let file = FileSource::open(&Location::from_path(self.snapshot(index)))?;
        let len = file.len().min(INDEX_BYTES_MAX);
        let text = file.fetch(0, usize::try_from(len).unwrap_or(usize::MAX))?;
        Ok(parse_index(&text)?.shards)
    }

    /// Brings files of the commit that are not in the cache. Returns how many of the names are
    /// files of the commit.
    fn bring(&self, names: &HashSet<String>) -> Result<usize> {
        let (mut absent, mut found) = (Vec::new(), 0);
        for file in &self.commit.files {
            let path = file.location.as_ref();
            if !names.contains(path) {
                continue;
            }
            found += 1;
            if self.snapshot(path).exists() {
                continue;
            }
            components(path)?;
            absent.push((path, self.blob(file)?));
        }
        let staged: Vec<_> = absent
            .iter()
            .filter(|(_, blob)| !blob.exists())
            .map(|(path, _)| (*path).to_owned())
            .collect();
        if !staged.is_empty() {
            let options = CopyOptions {
                names: Some(staged),
                depth: self.download.depth,
                range_bytes: self.download.range_bytes,
                ..CopyOptions::default()
            };
            let staging =
                (self.staged(&[], true)).map_err(|error| cannot(self.staging.path(), error))?;
            let mut copy = CopyJob::new(&self.source, staging.path()).options(options);
            copy.opened = Some(staging);
            copy.ongoing = Arc::clone(&self.download.ongoing);
            copy.store(self.store.clone())
                .client(self.download.client.clone())
                .run()?;
        }
        for (path, blob) in absent {
            self.publish(path, &blob)?;
        }
        Ok(found)
    }

    /// Returns the place of the contents of a file.
    fn blob(&self, file: &Listed) -> Result<PathBuf> {
        let tag = file.e_tag.as_deref().unwrap_or_default().trim_matches('"');
        if tag.is_empty() || !tag.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            let message = format!("the hub does not name the contents of {:?}", file.location);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(self.folder.join("blobs").join(tag))
    }

    /// Makes a file that was copied visible.
    fn publish(&self, path: &str, blob: &Path) -> Result<()> {
        let tag = blob.file_name().unwrap_or_default().to_string_lossy();
        let (folders, name) = split(path);
        let publish = || {
            let mut above = vec!["snapshots", &self.commit.name];
            above.extend(&folders);
            let (links, blobs) = (self.make(&above)?, self.make(&["blobs"])?);
            let mut staged = self.staged(&folders, false);
            if !blob.exists() {
                let folder = staged?;
                folder.rename(name, &blobs, &tag)?;
                staged = Ok(folder);
            }
            if let Ok(staged) = staged {
                // Remove a second file of equal contents, and what an interrupted copy left of it:
                // the contents may have come another way since.
                for left in paths::left_by_copy(name) {
                    let _ = staged.remove_file(&left);
                }
                let _ = staged.remove_file(name);
            }
            let up = "../".repeat(2 + folders.len());
            // Remove a link whose blob is missing, so that a new one can take its place.
            let _ = links.remove_file(name);
            links.symlink(&Path::new(&up).join("blobs").join(&*tag), name)
        };
        publish().map_err(|error| cannot(&self.snapshot(path), error))
    }

    /// Lets a revision name the commit.
    fn refer(&self, revision: &str) -> Result<()> {
        let (folders, name) = split(revision);
        let refer = || {
            let mut above = vec!["refs"];
            above.extend(&folders);
            let refs = self.make(&above)?;
            let next = format!("ref.{:016x}", fastrand::u64(..));
            self.staging.write_new(&next, self.commit.name.as_bytes())?;
            let named = self.staging.rename(&next, &refs, name);
            if named.is_err() {
                let _ = self.staging.remove_file(&next);
            }
            named
        };
        refer().map_err(|error| cannot(&self.folder.join("refs").join(revision), error))
    }

    /// Opens a directory of the repository, and creates it if necessary.
    fn make(&self, names: &[&str]) -> io::Result<GuardedDir> {
        self.opened.deep(names, true)
    }

    /// Opens the directory of files of the commit that are being copied, or one below it. What is
    /// below that of the commit has the permissions of a copy; others do not reach it.
    fn staged(&self, names: &[&str], make: bool) -> io::Result<GuardedDir> {
        let of_commit = self.staging.deep(&[&self.commit.name], make)?;
        of_commit.trusting(Trust::All)?.deep(names, make)
    }
}

/// Splits a path of the repository into its directories and its last component.
fn split(path: &str) -> (Vec<&str>, &str) {
    let mut names: Vec<_> = path.split('/').collect();
    let last = names.pop().unwrap_or_default();
    (names, last)
}

/// Requests the commit of a location and its files.
fn list(source: &Location, options: &StoreOptions, download: &Download) -> Result<Commit> {
    let remote = Remote::start_in(&download.client, options, &[])?;
    let (store, _) = remote.store(source.remote().expect("a location of a hub"))?;
    let (retries, retry_counter) = (options.retries(), remote.retry_counter().clone());
    let listing = async move {
        let ask = || store.files_of_commit();
        let files = with_retries(retries, &retry_counter, ask).await?;
        let name = store.commit_name().expect("was listed").to_owned();
        Ok(Commit { name, files })
    };
    let ongoing = Arc::clone(&download.ongoing);
    let listing = async move { unless_stopped(&ongoing, listing).await };
    let listed = remote.run_until(remote.open_deadline(), "listing it", listing);
    listed.map_err(|error| error.or_location(source))
}

fn cannot(path: &Path, error: io::Error) -> Error {
    Error::from_io("cannot write to the hub's cache", error).with_location(path.display())
}

/// Removes the empty directories at and below a directory of this name, up to this depth.
fn remove_empty(folder: &GuardedDir, name: &str, depth: usize) {
    if let Some(depth) = depth.checked_sub(1)
        && let Ok(below) = folder.below(name)
    {
        for name in below.names().unwrap_or_default() {
            remove_empty(&below, &name, depth);
        }
    }
    // Removal fails if the directory is not empty, or is not a directory.
    let _ = folder.remove_dir(name);
}

/// Returns the path of a name below a directory of the repository.
fn below(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    }
}

/// Returns whether a path of the repository is at or below another one.
fn is_in(folder: &str, path: &str) -> bool {
    let rest = path.strip_prefix(folder);
    folder.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the name of a file directly in a directory of the repository.
fn name_in<'a>(folder: &str, path: &'a str) -> Option<&'a str> {
    let name = match folder {
        "" => path,
        folder => path.strip_prefix(folder)?.strip_prefix('/')?,
    };
    (!name.contains('/') && !name.starts_with('.')).then_some(name)
}
