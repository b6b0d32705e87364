//! Directory of a cache, for tools that list and shrink it while loads use it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize, Serializer};

use super::answers::{forget_within, trim};
use super::entry::{DESCRIPTION, STAMPS, seed_of};
use super::files::{DESCRIPTION_BYTES_MAX, Place, Root, TEXT_BYTES_MAX};
use super::key::FORMAT;
use super::room::{Occupied, empty_trash, occupied, occupied_in_order, remove, unless_scarce};
use super::stamp::{STAMP_BYTES, TILE_BYTES, bytes_of, stamped, tiles};
use super::{CONTENTS, CONTENTS_PLAIN, VERSION};
use crate::error::{Error, ErrorKind, Result};
use crate::guarded_dir::{GuardedDir, Trust};
use crate::options::Location;
use crate::options::hub_id::HubId;
use crate::options::location::{Protocol, RemoteUrl};
use crate::options::with_setters;

/// Text in place of a query, which is not shown.
const QUERY: &str = "?…";

/// Directory of a cache of objects (store option `cache_dir`).
///
/// Loads may use it at any time: an object that is open is not removed.
///
/// # Examples
///
/// ```no_run
/// # mod tload {
/// #     pub use tload_base::{error::Error, options::Location};
/// #     pub mod cache { pub use tload_storage::object::cache::{CacheDirectory, Pruning}; }
/// # }
/// use std::time::Duration;
/// use tload::Location;
/// use tload::cache::{CacheDirectory, Pruning};
///
/// let cache = CacheDirectory::open("/var/cache/tload")?;
/// for entry in cache.entries() {
///     println!("{:?}: {} of {} bytes", entry.location, entry.cached_bytes, entry.object_bytes);
/// }
/// let month = Duration::from_secs(30 * 24 * 60 * 60);
/// cache.prune(&Pruning::default().unused_for(month).max_bytes(500 << 30))?;
/// let removed = cache.remove(Some(&Location::parse("s3://bucket/old")?))?;
/// println!("removed {} objects", removed.removed.len());
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CacheDirectory {
    root: Arc<Root>,
}

/// Object in a cache, in one state.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CacheEntry {
    /// URL without user, password and query; `None` if its description is missing, damaged or of
    /// another version.
    pub location: Option<String>,
    /// Length of the object, bytes.
    pub object_bytes: u64,
    /// Bytes of the object that are in the cache.
    pub cached_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Time of the last opening; serialized as whole seconds since 1970.
    #[serde(serialize_with = "serialize_seconds")]
    pub last_used: SystemTime,
    /// Entity tag, if the store gives one.
    pub e_tag: Option<String>,
    /// Version or generation, if the store keeps any.
    pub version: Option<String>,
    /// File of its bytes: the object itself if it is complete.
    pub path: PathBuf,
    /// Name of the entry.
    #[serde(skip)]
    name: String,
}

/// Object in a cache, as a list for clients needs it.
#[derive(Debug)]
pub(crate) struct CachedObject {
    /// URL without user, password and query.
    pub(crate) location: String,
    len: u64,
    place: Place,
    is_complete: OnceLock<bool>,
}

impl CachedObject {
    /// Returns whether all bytes of the object were in the cache when this was called first. That
    /// reads all its stamps.
    ///
    /// # Errors
    ///
    /// The process or the system lacks what opens them.
    pub(crate) fn is_complete(&self) -> io::Result<bool> {
        if let Some(known) = self.is_complete.get() {
            return Ok(*known);
        }
        let folder = self.place.open(false);
        let cached = folder.and_then(|it| cached_bytes(&it, &self.place.name, self.len));
        let is_complete = unless_scarce(cached)? == Some(self.len);
        Ok(*self.is_complete.get_or_init(|| is_complete))
    }
}

with_setters! {
/// Rules for [`CacheDirectory::prune`]; without any, nothing is removed.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Pruning {
    /// Removes the least recently used objects until the others take at most this many bytes on
    /// disk. 0 also removes the entries without bytes that killed processes have left.
    pub max_bytes: Option<u64>,
    /// Removes objects that were not opened for this long, and what is known of others.
    pub unused_for: Option<Duration>,
    /// Removes nothing, and returns the objects that would be removed.
    pub dry_run: bool,
}
}

/// Result of a removal from a cache.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct CacheRemoval {
    /// Removed objects.
    pub removed: Vec<CacheEntry>,
    /// Objects that stay because a process has them open.
    pub in_use: Vec<CacheEntry>,
    /// Number of answers of stores that [`CacheDirectory::remove`] removed.
    #[serde(skip)]
    pub removed_answers: u64,
}

/// Description of an entry, for people and for lists.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) format: u32,
    pub(super) location: String,
    pub(super) len: u64,
    pub(super) e_tag: Option<String>,
    pub(super) version: Option<String>,
    pub(super) modified: i64,
    pub(super) tile_bytes: u64,
}

impl CacheDirectory {
    /// Opens the directory of a cache that exists.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if `path` is not the directory of a cache, and errors of the file
    /// system.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        // Lists and removals do not trust the contents, so the owner does not matter.
        Self::trusting(path.as_ref(), Trust::All)
    }

    /// Opens the directory of a cache like [`Self::open`], of which only what these users own is
    /// listed.
    ///
    /// # Errors
    ///
    /// Also [`ErrorKind::PermissionDenied`] if another user owns it or may write to it.
    pub(crate) fn trusting(path: &Path, trust: Trust) -> Result<Self> {
        let root = Arc::new(Root::new(path, trust));
        let Err(error) = root.open() else {
            return Ok(Self { root });
        };
        let message = format!("is not the directory of a cache: it has no directory {VERSION}");
        let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        let failed = if missing.contains(&error.kind()) {
            Error::new(ErrorKind::NotFound, message)
        } else if error.kind() == io::ErrorKind::Other {
            // A link.
            Error::new(ErrorKind::NotFound, message).with_source(error)
        } else {
            let failed = Error::from_io("cannot open the cache", error);
            return Err(failed.with_location(path.display()));
        };
        Err(failed
            .with_location(path.display())
            .with_hint("pass the cache_dir of the loads; the first one creates it"))
    }

    /// Returns the entries, in no order. None if the directory is gone.
    fn occupied(&self) -> io::Result<Vec<(Place, Occupied)>> {
        let root = unless_scarce(self.root.open())?;
        let occupied = root.map_or_else(|| Ok(Vec::new()), |root| occupied(&root))?;
        Ok(self.placed(occupied))
    }

    fn placed(&self, occupied: Vec<Occupied>) -> Vec<(Place, Occupied)> {
        let place = |occupied: Occupied| {
            let place = Place {
                root: Arc::clone(&self.root),
                name: occupied.name.clone(),
            };
            (place, occupied)
        };
        occupied.into_iter().map(place).collect()
    }

    /// Returns the objects in the cache, the least recently used ones first.
    pub fn entries(&self) -> Vec<CacheEntry> {
        self.try_entries().unwrap_or_default()
    }

    fn try_entries(&self) -> io::Result<Vec<CacheEntry>> {
        let occupied = self.occupied()?.into_iter();
        let mut entries: Vec<_> = occupied.map(|(place, it)| describe(&place, it)).collect();
        entries.sort_by_key(|entry| entry.last_used);
        Ok(entries)
    }

    /// Returns the objects in the cache. That reads the description of each.
    ///
    /// # Errors
    ///
    /// The process or the system lacks what opens them.
    pub(crate) fn objects(&self) -> Result<Vec<CachedObject>> {
        let described = |place: Place| {
            let text = place.open(false).and_then(|it| description_text(&it));
            let Some(found) = unless_scarce(text)?.and_then(|it| parse(&it)) else {
                return Ok(None);
            };
            Ok(Some(CachedObject {
                location: found.location,
                len: found.len,
                place,
                is_complete: OnceLock::new(),
            }))
        };
        let occupied = self.occupied().map_err(|error| self.failed(error))?;
        let objects: io::Result<Vec<_>> = occupied
            .into_iter()
            .map(|(place, _)| described(place))
            .filter_map(io::Result::transpose)
            .collect();
        objects.map_err(|error| self.failed(error))
    }

    /// Removes objects at and below `location`, and what is known about them; all if it is `None`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if `location` is a path: only objects of stores are cached.
    /// The first error of the file system, once all objects that can be removed are.
    pub fn remove(&self, location: Option<&Location>) -> Result<CacheRemoval> {
        self.removal(location, false)
    }

    /// Returns what [`Self::remove`] would remove now, and removes nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::remove`].
    pub fn removable(&self, location: Option<&Location>) -> Result<CacheRemoval> {
        self.removal(location, true)
    }

    /// Removes objects, or with `dry_run` only lists them.
    fn removal(&self, location: Option<&Location>, dry_run: bool) -> Result<CacheRemoval> {
        let within = location.map(url).transpose()?;
        let chosen = |entry: &CacheEntry| {
            within.is_none_or(|outer| entry.location.as_deref().is_some_and(|it| holds(outer, it)))
        };
        let root = self.look()?;
        let mut removing = Removing::new(&root, dry_run);
        let entries = self.try_entries().map_err(|error| self.failed(error))?;
        for entry in entries.into_iter().filter(chosen) {
            removing.remove(entry);
        }
        if !dry_run {
            empty_trash(&root);
        }
        removing.removal.removed_answers = forget_within(&root, dry_run, |location| {
            within.is_none_or(|outer| location.is_some_and(|it| holds(outer, it)))
        });
        removing.end()
    }

    /// Returns the free space of its file system, bytes; `None` if that is unknown.
    pub fn free_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::fstatvfs(self.root.look().ok()?.folder()).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Removes objects by rules.
    ///
    /// # Errors
    ///
    /// The first error of the file system, once all objects that can be removed are.
    pub fn prune(&self, rules: &Pruning) -> Result<CacheRemoval> {
        let root = self.look()?;
        let entries = self.placed(occupied_in_order(&root).map_err(|error| self.failed(error))?);
        let mut used = entries.iter().map(|(_, entry)| entry.bytes).sum::<u64>();
        let now = SystemTime::now();
        let mut removing = Removing::new(&root, rules.dry_run);
        for (place, entry) in entries {
            let idle = now.duration_since(entry.used).unwrap_or_default();
            let is_old = rules.unused_for.is_some_and(|limit| idle >= limit);
            let is_beyond = rules.max_bytes.is_some_and(|most| most == 0 || used > most);
            if is_old || is_beyond {
                let bytes = entry.bytes;
                if removing.remove(describe(&place, entry)) {
                    used -= bytes;
                }
            }
        }
        if !rules.dry_run {
            empty_trash(&root);
            trim(&root, rules.unused_for);
        }
        removing.end()
    }

    fn look(&self) -> Result<GuardedDir> {
        self.root.look().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Error {
        let failed = Error::from_io("cannot open the cache", error);
        failed.with_location(self.root.path().display())
    }
}

/// Removal of several objects. Those that cannot be removed keep no other one from it: they may
/// belong to another user.
struct Removing<'a> {
    root: &'a GuardedDir,
    dry_run: bool,
    removal: CacheRemoval,
    /// First failure, and the directory of its object.
    failed: Option<(PathBuf, io::Error)>,
}

impl<'a> Removing<'a> {
    fn new(root: &'a GuardedDir, dry_run: bool) -> Self {
        Self {
            root,
            dry_run,
            removal: CacheRemoval::default(),
            failed: None,
        }
    }

    /// Removes an object. Returns false if it stays.
    fn remove(&mut self, entry: CacheEntry) -> bool {
        let removed = if self.dry_run {
            Ok(true)
        } else {
            remove(self.root, &entry.name)
        };
        match removed {
            Ok(true) => self.removal.removed.push(entry),
            Ok(false) => self.removal.in_use.push(entry),
            Err(error) => {
                let folder = entry.path.parent().unwrap_or(&entry.path);
                self.failed.get_or_insert((folder.to_owned(), error));
                return false;
            }
        }
        matches!(removed, Ok(true))
    }

    fn end(self) -> Result<CacheRemoval> {
        let Some((folder, error)) = self.failed else {
            return Ok(self.removal);
        };
        let message = match self.removal.removed.len() {
            0 => "cannot remove an object from the cache".to_owned(),
            removed => {
                format!("cannot remove an object from the cache (others removed: {removed})")
            }
        };
        Err(Error::from_io(message, error).with_location(folder.display()))
    }
}

impl CacheEntry {
    /// Returns whether all bytes of the object are in the cache.
    pub fn is_complete(&self) -> bool {
        self.cached_bytes == self.object_bytes
    }

    /// Returns whether the object is at or below `location`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if `location` is a path: only objects of stores are cached.
    pub fn is_within(&self, location: &Location) -> Result<bool> {
        let outer = url(location)?;
        Ok(self.location.as_deref().is_some_and(|it| holds(outer, it)))
    }
}

fn url(location: &Location) -> Result<&RemoteUrl> {
    location.remote().ok_or_else(|| {
        Error::invalid_request("is a local path: only objects of stores are cached")
            .with_location(location)
            .with_hint("pass the URL that is loaded, as tload cache ls shows it")
    })
}

/// Returns whether `inner`, a URL as it is shown, is at or below `outer`. Without a revision,
/// `outer` holds every revision of a model.
fn holds(outer: &RemoteUrl, inner: &str) -> bool {
    let parsed = Location::parse(inner.strip_suffix(QUERY).unwrap_or(inner));
    let Some(inner) = parsed.as_ref().ok().and_then(Location::remote) else {
        return false;
    };
    let is_same_scheme = inner.protocol == outer.protocol
        && (outer.protocol != Protocol::Http || inner.scheme == outer.scheme);
    let is_same_place = if outer.protocol == Protocol::Hub {
        let [one, other] = [outer, inner].map(|url| HubId::from_authority(&url.authority));
        let is_any_revision = !outer.authority.contains('@');
        one.repository == other.repository && (is_any_revision || one.revision == other.revision)
    } else {
        inner.host() == outer.host()
    };
    let [above, path] = [outer, inner].map(|url| url.path.trim_end_matches('/'));
    let rest = path.strip_prefix(above);
    let is_below =
        above.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_same_scheme && is_same_place && is_below
}

fn describe(place: &Place, occupied: Occupied) -> CacheEntry {
    let opened = place.open(false).ok();
    let folder = opened.as_ref();
    let text = folder.and_then(|it| description_text(it).ok());
    let description = text.and_then(|it| parse(&it));
    let stat = |name: &str| folder?.stat(name).ok();
    let names = [CONTENTS, CONTENTS_PLAIN].into_iter();
    let contents = { names }.find(|name| stat(name).is_some());
    let contents = contents.unwrap_or(CONTENTS_PLAIN);
    let on_disk = || stat(contents).map_or(0, |it| u64::try_from(it.st_size).unwrap_or(0));
    let object_bytes = description.as_ref().map_or_else(on_disk, |it| it.len);
    let (location, e_tag, version) = description.map_or((None, None, None), |it| {
        (Some(it.location), it.e_tag, it.version)
    });
    CacheEntry {
        location,
        object_bytes,
        cached_bytes: folder.map_or(0, |it| {
            cached_bytes(it, &place.name, object_bytes).unwrap_or(0)
        }),
        disk_bytes: occupied.bytes,
        last_used: occupied.used,
        e_tag,
        version,
        path: place.path().join(contents),
        name: occupied.name,
    }
}

fn description_text(folder: &GuardedDir) -> io::Result<Vec<u8>> {
    folder.read(DESCRIPTION, DESCRIPTION_BYTES_MAX)
}

/// Returns the description of an entry, unless it is damaged or of another version.
fn parse(text: &[u8]) -> Option<Description> {
    let found: Description = serde_json::from_slice(text).ok()?;
    (found.format == FORMAT && found.tile_bytes == TILE_BYTES).then_some(found)
}

/// Returns how many bytes of an object of `len` bytes have a stamp.
fn cached_bytes(folder: &GuardedDir, name: &str, len: u64) -> io::Result<u64> {
    let stamps = folder.read(STAMPS, TEXT_BYTES_MAX)?;
    let seed = seed_of(name);
    let stamps = tiles(&(0..len)).zip(stamps.chunks(STAMP_BYTES));
    let present = stamps.filter(|(tile, stamp)| stamped(seed, *tile, stamp).is_some());
    let bytes = present.map(|(tile, _)| bytes_of(&(tile..tile + 1), len));
    Ok(bytes.map(|bytes| bytes.end - bytes.start).sum())
}

fn serialize_seconds<S: Serializer>(
    time: &SystemTime,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    to.serialize_u64(since.map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount point cannot be moved away, like the directory of another user.
    #[cfg(target_os = "linux")]
    #[test]
    fn object_that_cannot_be_removed_does_not_keep_the_others() {
        let (folder, other) = (tempfile::tempdir(), tempfile::tempdir());
        let (folder, other) = (folder.expect("a folder"), other.expect("a folder"));
        let entry = |digit: &str| {
            let entry = folder.path().join(VERSION).join(digit.repeat(2));
            entry.join(digit.repeat(64))
        };
        std::fs::create_dir_all(entry("a")).expect("a directory");
        let mounted = rustix::mount::mount_bind(other.path(), entry("a"));
        let mounted = mounted.map_err(|errno| format!("cannot mount: {errno}"));
        if tload_testbed::require_named("mount", mounted).is_none() {
            return;
        }
        let cache = CacheDirectory::open(folder.path()).expect("a cache");
        let rules = Pruning {
            max_bytes: Some(0),
            ..Pruning::default()
        };
        let mut errors = Vec::new();
        for is_pruned in [false, true] {
            std::fs::create_dir_all(entry("b")).expect("a directory");
            for name in [STAMPS, CONTENTS] {
                std::fs::write(entry("b").join(name), [1; 4096]).expect("a file");
            }
            // The first one in the order of their last use.
            let _ = std::fs::remove_file(other.path().join(STAMPS));
            std::fs::write(other.path().join(CONTENTS), [1; 4096]).expect("a file");
            let removal = if is_pruned {
                cache.prune(&rules)
            } else {
                cache.remove(None)
            };
            errors.push((
                removal.expect_err("it is mounted").to_string(),
                entry("b").exists(),
            ));
        }
        let _ = rustix::mount::unmount(entry("a"), rustix::mount::UnmountFlags::DETACH);
        for (error, is_left) in errors {
            assert!(
                error.contains("others removed: 1") && error.contains(&"a".repeat(64)),
                "{error}"
            );
            assert!(!is_left, "{error}");
        }
    }

    #[test]
    fn locations_hold_what_is_at_and_below_them() {
        for (outer, inner, wanted) in [
            ("s3://b/m", "s3://b/m", true),
            ("s3://b/m/", "s3://b/m/a.safetensors", true),
            ("s3a://b/m", "s3://b/m/a.safetensors", true),
            ("s3://b", "s3://b/m/a.safetensors", true),
            ("s3://b/m", "s3://b/more", false),
            ("s3://b/m/a", "s3://b/m", false),
            ("s3://b/m", "gs://b/m", false),
            ("s3://b/m", "s3://c/m", false),
            ("http://h/m", "https://h/m", false),
            ("https://user:hunter2@h/m", "https://h/m/a?…", true),
            ("hf://o/m", "hf://o/m@v2/f", true),
            ("hf://o/m@v2", "hf://o/m@v2/f", true),
            ("hf://o/m@v1", "hf://o/m@v2/f", false),
            ("hf://o/m", "hf://o/mm/f", false),
            ("s3://b/m", "no URL", false),
        ] {
            let location = Location::parse(outer).expect(outer);
            let outer = location.remote().expect("a URL");
            assert_eq!(holds(outer, inner), wanted, "{location} and {inner}");
        }
    }
}
