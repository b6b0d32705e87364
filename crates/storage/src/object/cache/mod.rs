//! Read-through cache of objects on a local disk: a second load reads what the first one received.
//!
//! Off unless the option `cache_dir` is set. Every byte of an object that is read passes through
//! [`ObjectSource::read`](super::ObjectSource), which is in `through.rs`: it takes verified bytes
//! from the object's entry and requests the others, which a thread writes during the load. Nothing
//! that happens to the cache fails a load: the bytes then come from the store.
//!
//! An entry stands for one state of one object (`key.rs`); its files are described in `entry.rs`,
//! and in `docs/reference/cache.md` for users.

mod answers;
mod arriving;
mod buffers;
mod claims;
mod directory;
mod disk;
mod entry;
mod files;
mod key;
mod open_entries;
mod room;
mod stamp;
mod through;
mod waiting;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) use self::answers::{Question, State};
pub(crate) use self::directory::CachedObject;
use self::directory::Description;
pub use self::directory::{CacheDirectory, CacheEntry, CacheRemoval, Pruning};
use self::disk::Disk;
pub use self::entry::Entry;
use self::files::{Place, Root};
pub(in crate::object) use self::key::is_settled;
use self::room::Room;
pub use self::stamp::{TILE_BYTES, TILE_CRC};
pub use self::writer::finish_caching;
use super::ObjectIdentity;
use super::store::{Check, check, is_hub_offline};
use crate::cache_report::{CACHE_TOTALS as TOTALS, CacheReport};
use crate::guarded_dir::Trust;
use crate::options::location::{Protocol, RemoteUrl};
use crate::options::{Location, StoreOptions, parse_bytes};
use crate::sync::lock::Mutex;
use tload_format::SUFFIX;

/// Directory of the layout's version, below the cache's directory.
const VERSION: &str = "v1";

/// Name of the file of an object's bytes, if it is named like a checkpoint's file.
const CONTENTS: &str = "contents.safetensors";

/// Name of the file of any other object's bytes.
const CONTENTS_PLAIN: &str = "contents";

/// Cache of one opened checkpoint.
#[derive(Debug)]
pub(crate) struct Cache {
    /// As the caller wrote it.
    directory: PathBuf,
    root: Arc<Root>,
    /// True if known answers are used instead of requests.
    is_trusted: bool,
    /// True if known answers of hubs are.
    is_hub_trusted: bool,
    shared: Arc<Shared>,
}

/// Returns whose files count in caches of these options.
pub fn trust(options: &StoreOptions) -> Trust {
    match options.flag("cache_shared") {
        Some(true) => Trust::All,
        Some(false) | None => Trust::Own,
    }
}

/// State that entries share with their cache.
#[derive(Debug)]
pub(crate) struct Shared {
    disk: Arc<Disk>,
    room: Room,
    written: AtomicU64,
    dropped: AtomicU64,
    damaged: AtomicU64,
    is_stopped: AtomicBool,
    /// True if reads wait for the disk instead of leaving out what it is too slow for.
    waits: bool,
    /// First reason why nothing more is written, or why an object has no entry.
    reason: Mutex<Option<String>>,
}

impl Shared {
    fn count_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.disk.has_written();
        TOTALS.lock().written_bytes += bytes;
    }

    fn count_dropped(&self, bytes: u64) {
        self.dropped.fetch_add(bytes, Ordering::Relaxed);
        TOTALS.lock().dropped_bytes += bytes;
    }

    fn count_damaged_tile(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        TOTALS.lock().damaged_bytes += TILE_BYTES;
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Stops writing. The first reason is kept.
    fn stop(&self, reason: &str) {
        if !self.is_stopped.swap(true, Ordering::Relaxed) {
            if self.disk.tell() {
                tracing::warn!(reason, "nothing more is written to the cache");
            }
            *self.reason.lock() = Some(reason.to_owned());
        }
    }

    /// Notes why an object is not cached.
    fn note(&self, reason: &str) {
        let mut noted = self.reason.lock();
        if noted.is_none() {
            *noted = Some(reason.to_owned());
        }
    }
}

impl Cache {
    /// Opens the cache that the options name, if they do. Never fails: a cache that cannot be used
    /// has the reason in its statistics.
    pub(crate) fn from_options(options: &StoreOptions) -> Option<Arc<Self>> {
        let directory = PathBuf::from(options.get("cache_dir")?);
        let limit = options
            .get("cache_limit")
            .and_then(|limit| parse_bytes(limit).ok());
        let root = Arc::new(Root::new(&directory, trust(options)));
        let shared = Arc::new(Shared {
            disk: Disk::share(&root.path()),
            room: Room::new(&root, limit),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            waits: options.flag("cache_wait") == Some(true),
            reason: Mutex::default(),
        });
        Some(Arc::new(Self {
            directory,
            root,
            is_trusted: check(options) != Check::Always,
            is_hub_trusted: check(options) != Check::Always || is_hub_offline(options),
            shared,
        }))
    }

    /// Returns whether nothing is requested of the store of `url` that the cache knows.
    pub(crate) fn is_trusted(&self, url: &RemoteUrl) -> bool {
        if url.protocol == Protocol::Hub {
            self.is_hub_trusted
        } else {
            self.is_trusted
        }
    }

    /// Returns the place of the answer to a question of this `kind` about `url`; `None` if its
    /// answer is not kept.
    pub(crate) fn question(&self, kind: &str, url: &RemoteUrl, origin: &str) -> Option<Question> {
        Question::new(&self.root, kind, url, origin, self.is_trusted(url))
    }

    /// Returns the place of the list of what is directly below `url`; `None` if it is not kept.
    pub(crate) fn listing(&self, url: &RemoteUrl, origin: &str) -> Option<Question> {
        let path = url.path.trim_end_matches('/').to_owned();
        let folder = RemoteUrl {
            path,
            ..url.clone()
        };
        self.question("listing", &folder, origin)
    }

    /// Opens the entry of an object in this state; `None` if it cannot have one. `is_settled` says
    /// whether the time of its last modification tells its states apart.
    pub(crate) fn entry(
        &self,
        location: &Location,
        origin: &str,
        identity: &ObjectIdentity,
        is_settled: bool,
    ) -> Option<Arc<Entry>> {
        let url = location.remote()?;
        let place = self.place_of(location, origin, identity, is_settled)?;
        let opened = self.open_entry(&place, url, identity);
        let noted = opened.inspect_err(|error| {
            self.shared.stop(&format!("it cannot be used: {error}"));
        });
        noted.ok()
    }

    /// Opens the entry of an object in this state, if there is one.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub(crate) fn find_entry(
        &self,
        location: &Location,
        origin: &str,
        identity: &ObjectIdentity,
    ) -> io::Result<Option<Arc<Entry>>> {
        let place = self.place_of(location, origin, identity, true);
        let (Some(place), Some(url)) = (place, location.remote()) else {
            return Ok(None);
        };
        match place.open(false).and_then(|it| it.stat(entry::STAMPS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            there => there?,
        };
        self.open_entry(&place, url, identity).map(Some)
    }

    /// Returns the place of the entry of an object in this state; `None` if it cannot have one.
    fn place_of(
        &self,
        location: &Location,
        origin: &str,
        identity: &ObjectIdentity,
        is_settled: bool,
    ) -> Option<Place> {
        if identity.len == 0 {
            return None;
        }
        let url = location.remote()?;
        let name = key::entry_name(url, origin, identity, is_settled);
        let noted = name.inspect_err(|reason| {
            self.shared
                .note(&format!("{location} is not cached: {reason}"));
        });
        Some(Place {
            root: Arc::clone(&self.root),
            name: noted.ok()?,
        })
    }

    fn open_entry(
        &self,
        place: &Place,
        url: &RemoteUrl,
        identity: &ObjectIdentity,
    ) -> io::Result<Arc<Entry>> {
        let description = Description {
            format: key::FORMAT,
            location: url.shown(),
            len: identity.len,
            e_tag: identity.e_tag.clone(),
            version: identity.version.clone(),
            modified: identity.modified,
            tile_bytes: TILE_BYTES,
        };
        let description = serde_json::to_string_pretty(&description).unwrap_or_default();
        let description = format!("{description}\n");
        let contents = if has_suffix(&url.path) {
            CONTENTS
        } else {
            CONTENTS_PLAIN
        };
        Entry::open(&self.shared, place, contents, identity.len, &description).map(Arc::new)
    }

    /// Returns the report so far.
    pub(crate) fn report(&self) -> CacheReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheReport {
            directory: self.directory.display().to_string(),
            written_bytes: count(&self.shared.written),
            dropped_bytes: count(&self.shared.dropped),
            damaged_bytes: count(&self.shared.damaged) * TILE_BYTES,
            reason: self.shared.reason.lock().clone(),
        }
    }
}

fn has_suffix(path: &str) -> bool {
    Path::new(path).file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.ends_with(SUFFIX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a cache in a folder, and the entry of an object of this length.
    pub(super) fn opened(folder: &Path, len: u64) -> (Arc<Cache>, Arc<Entry>) {
        opened_with(folder, len, &[])
    }

    /// Like [`opened`], with further options.
    pub(super) fn opened_with(
        folder: &Path,
        len: u64,
        others: &[(&str, &str)],
    ) -> (Arc<Cache>, Arc<Entry>) {
        let directory = folder.display().to_string();
        let pairs = [("cache_dir", &*directory)].into_iter();
        let options = StoreOptions::from_pairs(pairs.chain(others.iter().copied()));
        let cache = Cache::from_options(&options.expect("options")).expect("a cache");
        let entry = open(&cache, len);
        (cache, entry)
    }

    /// Opens the entry in the cache in a folder once more.
    pub(super) fn open(cache: &Cache, len: u64) -> Arc<Entry> {
        open_numbered(cache, 0, len)
    }

    /// Opens the entry with this number in a cache.
    pub(super) fn open_numbered(cache: &Cache, number: usize, len: u64) -> Arc<Entry> {
        let place = Place {
            root: Arc::clone(&cache.root),
            name: format!("{number:064x}"),
        };
        let entry = Entry::open(&cache.shared, &place, CONTENTS_PLAIN, len, "");
        Arc::new(entry.expect("opens"))
    }
}
