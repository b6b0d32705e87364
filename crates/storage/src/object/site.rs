//! Objects below a location, opened again and again: for a server that passes them on.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use percent_encoding::percent_decode_str;

use super::cache::{CacheDirectory, CachedObject, trust};
use super::folder::Folder;
use super::remote::Remote;
use super::store::object_path;
use super::{ObjectSource, Opened};
use crate::error::{Error, ErrorKind, Result};
use crate::options::location::Protocol;
use crate::options::{Location, StoreOptions};
use crate::sync::lock::Mutex;

/// Time that the state of an object, and the list of a cache, is taken for its present one.
const FRESH: Duration = Duration::from_secs(1);

/// Name of a folder that no bucket has: its list is empty, or an error of the bucket.
const NOTHING: &str = ".tload-serve";

/// Most objects whose state is remembered.
const OBJECTS_MAX: usize = 10_000;

/// Objects below a location, or all objects of a cache.
#[derive(Debug)]
pub struct ObjectSite {
    options: StoreOptions,
    /// `None` for a cache: names then begin with a scheme and an authority.
    root: Option<Location>,
    opening: Mutex<Opening>,
    /// Locked while the cache is read: no two clients cause it at the same time.
    remembered: Mutex<Remembered>,
}

/// Objects of a cache as of a moment.
#[derive(Debug, Default)]
struct Remembered {
    /// Time until which the list counts as current.
    until: Option<Instant>,
    objects: Arc<Vec<CachedObject>>,
}

/// Stores as of a moment, and the objects opened since. All of it is opened anew when it is not
/// fresh any more: a branch of a hub or a tag of a registry has moved by then, credentials have
/// been renewed, a disk has space again, and clients may have named any number of stores.
#[derive(Debug)]
struct Opening {
    remote: Arc<Remote>,
    begun: Instant,
    known: HashMap<Location, ObjectSource>,
}

impl ObjectSite {
    /// Opens the objects at and below `location`. Sends no request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the system starts no threads.
    pub fn below(location: &Location, options: &StoreOptions) -> Result<Self> {
        let mut options = options.clone();
        if options.get("cache_wait").is_none() {
            // Bytes that the cache drops would be requested again for the next client.
            options.set("cache_wait", "true")?;
        }
        Self::new(Some(location.clone()), &options)
    }

    /// Opens the objects of the cache that `options` name. Nothing but the cache is read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] without a cache, and those of [`Self::below`].
    pub fn cached(options: &StoreOptions) -> Result<Self> {
        if options.get("cache_dir").is_none() {
            return Err(Error::invalid_request("there is no cache")
                .with_hint("set the store option cache_dir (TLOAD_CACHE_DIR, --cache-dir)"));
        }
        let options = options.clone().with("cache_check", "offline")?;
        Self::new(None, &options)
    }

    fn new(root: Option<Location>, options: &StoreOptions) -> Result<Self> {
        Ok(Self {
            options: options.clone(),
            root,
            opening: Mutex::new(Opening::begin(options)?),
            remembered: Mutex::default(),
        })
    }

    /// Returns the fresh stores, and the object at `location` if it has been opened in them.
    fn fresh(&self, location: &Location) -> Result<(Arc<Remote>, Option<ObjectSource>)> {
        let mut opening = self.opening.lock();
        if opening.begun.elapsed() >= FRESH {
            *opening = Opening::begin(&self.options)?;
        }
        let known = opening.known.get(location).cloned();
        let remote = Arc::clone(&opening.remote);
        // Release the lock first: opening an entry of the cache may take long.
        drop(opening);
        Ok((remote, known.as_ref().map(ObjectSource::again)))
    }

    /// Opens the object that `names` lead to: below the location, or from the scheme on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] also for names that lead to no object of any store, and the errors
    /// of [`ObjectSource::at`], or of the cache's file system.
    pub fn open(&self, names: &[&str]) -> Result<ObjectSource> {
        let not_found = || Error::new(ErrorKind::NotFound, "not found");
        let location = self.locate(names).ok_or_else(not_found)?;
        let (remote, known) = self.fresh(&location)?;
        if let Some(object) = known {
            return Ok(object);
        }
        if self.root.is_none() {
            return ObjectSource::open_cached(&remote, &location);
        }
        let (object, _) = ObjectSource::open(&remote, &location, 1, remote.open_deadline())?;
        object.require_validator()?;
        let mut opening = self.opening.lock();
        if Arc::ptr_eq(&opening.remote, &remote) && opening.known.len() < OBJECTS_MAX {
            // Objects are remembered without their cache entry, because an open entry is not
            // evicted.
            let object = object.without_entry();
            opening.known.insert(location, object);
        }
        Ok(object)
    }

    /// Lists one level below the location, or below the names that lead to a part of it: the names
    /// of directories and of files. Of a cache, those of complete objects.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where there is nothing, and for stores that have no lists; errors of
    /// the store.
    pub fn list(&self, names: &[&str]) -> Result<(Vec<String>, Vec<String>)> {
        let not_found = || Error::new(ErrorKind::NotFound, "not found");
        let Some(root) = &self.root else {
            let directory = self.options.get("cache_dir").unwrap_or_default();
            let cache = CacheDirectory::trusting(Path::new(directory), trust(&self.options))?;
            let objects = self
                .remembered
                .lock()
                .get(Instant::now, || cache.objects())?;
            let objects = objects
                .iter()
                .map(|it| (&*it.location, || it.is_complete()));
            let failed = |error| Error::from_io("cannot read from the cache", error);
            let found = one_level(objects, names).map_err(failed)?;
            return found.ok_or_else(not_found);
        };
        if is_file(root) {
            return Err(not_found());
        }
        let location = match names {
            [] => root.clone(),
            _ => root.join(&names.join("/")),
        };
        let (remote, _) = self.fresh(&location)?;
        let deadline = remote.open_deadline();
        let Folder { names, below, note } = match Folder::list(&remote, &location, deadline) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(not_found()),
            listed => listed?,
        };
        if let Some(note) = note {
            tracing::info!(target: "tload::notes", %location, "{note}");
        }
        if names.is_empty() && below.is_empty() {
            return Err(not_found());
        }
        Ok((below, names))
    }

    /// Asks the store for the bucket, repository or artifact of the location, or for the one object
    /// that it names, until `deadline`. Where stores have no lists, any answer will do. Of a cache,
    /// looks at the directory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if it is not there, and errors of the store and of the cache.
    pub fn require_existing(&self, deadline: Instant) -> Result<()> {
        let Some(root) = &self.root else {
            return match self.list(&[]) {
                Err(error) if error.location().is_some() => Err(error),
                // An empty cache.
                _ => Ok(()),
            };
        };
        let (remote, _) = self.fresh(root)?;
        let deadline = Some(deadline);
        let protocol = root.protocol();
        let is_bucket = matches!(
            protocol,
            Some(Protocol::S3 | Protocol::Gcs | Protocol::Azure)
        );
        let has_lists = protocol != Some(Protocol::Http);
        let looked = if is_file(root) || !has_lists {
            ObjectSource::open(&remote, root, 1, deadline).map(drop)
        } else if is_bucket {
            // List a prefix that does not exist: the list of a large bucket has many pages.
            Folder::list(&remote, &root.join(NOTHING), deadline).map(drop)
        } else {
            Folder::list(&remote, root, deadline).map(drop)
        };
        let Err(error) = looked else {
            return Ok(());
        };
        let has_status = error.request().is_some_and(|it| it.status.is_some());
        // The cache lacks the object, the store lists nothing, or a web server has no page for a
        // directory.
        let is_folder = !is_file(root);
        let is_fine = error.kind() == ErrorKind::NotFound && !has_status
            || error.kind() == ErrorKind::Unsupported && is_folder
            || error.kind() != ErrorKind::Remote && has_status && !has_lists && is_folder;
        if is_fine {
            return Ok(());
        }
        Err(error.with_location(root))
    }

    /// Returns the location that `names` lead to, if it can be addressed.
    fn locate(&self, names: &[&str]) -> Option<Location> {
        let located = self.named(names);
        located.filter(|it| it.remote().is_some_and(|url| object_path(url).is_ok()))
    }

    fn named(&self, names: &[&str]) -> Option<Location> {
        if let Some(root) = &self.root {
            return match names {
                [] => None,
                [name] if is_file(root) => (*name == root.file_name()).then(|| root.clone()),
                _ if is_file(root) => None,
                _ => Some(root.join(&names.join("/"))),
            };
        }
        in_cache(names)
    }
}

impl Remembered {
    /// Returns the objects; calls `read` unless they are fresh. They stay fresh for at least as
    /// long as reading them took, by `clock`.
    fn get(
        &mut self,
        clock: impl Fn() -> Instant,
        read: impl FnOnce() -> Result<Vec<CachedObject>>,
    ) -> Result<Arc<Vec<CachedObject>>> {
        let begun = clock();
        if self.until.is_none_or(|until| begun >= until) {
            self.objects = Arc::new(read()?);
            let read = clock();
            self.until = Some(read + FRESH.max(read - begun));
        }
        Ok(Arc::clone(&self.objects))
    }
}

impl Opening {
    fn begin(options: &StoreOptions) -> Result<Self> {
        Ok(Self {
            remote: Remote::start(options)?,
            begun: Instant::now(),
            known: HashMap::new(),
        })
    }
}

/// Returns the location of the object of a cache that names lead to: scheme, authority and key.
fn in_cache(names: &[&str]) -> Option<Location> {
    let (scheme, names) = names.split_first()?;
    let of_root = match (*scheme, names) {
        ("hf", [owner, model, _, ..]) => format!("hf://{owner}/{model}"),
        (_, [authority, _, ..]) => format!("{scheme}://{authority}"),
        _ => return None,
    };
    let root = Location::parse(&of_root).ok()?;
    let is_known = !matches!(root.protocol()?, Protocol::Custom) && !root.has_secret();
    let skipped = if *scheme == "hf" { 2 } else { 1 };
    is_known.then(|| root.join(&names[skipped..].join("/")))
}

/// Returns the names that lead to an object of a cache; `None` if none do: to an object with a
/// query, or with a name that is empty or begins with a dot, which no server takes.
fn names_of(location: &str) -> Option<Vec<String>> {
    let (scheme, rest) = location
        .split_once("://")
        .filter(|_| !location.contains('?'))?;
    let is_encoded = matches!(scheme, "http" | "https");
    let mut names = vec![scheme.to_owned()];
    for name in rest.split('/') {
        let name = if is_encoded {
            percent_decode_str(name).decode_utf8().ok()?.into_owned()
        } else {
            name.to_owned()
        };
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return None;
        }
        names.push(name);
    }
    let found = in_cache(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    (found.to_string() == location).then_some(names)
}

/// Returns the directories and files directly below `names`, of the names that lead to complete
/// objects of a cache; `None` if there is nothing. Each object has a location, and a function that
/// says whether it is complete, which is called only if the list depends on it.
fn one_level<'o>(
    objects: impl Iterator<Item = (&'o str, impl Fn() -> io::Result<bool>)>,
    names: &[&str],
) -> io::Result<Option<(Vec<String>, Vec<String>)>> {
    let (mut directories, mut files) = (BTreeSet::new(), BTreeSet::new());
    for (location, is_complete) in objects {
        let Some(path) = names_of(location) else {
            continue;
        };
        if !path.iter().zip(names).all(|(one, other)| one == other) {
            continue;
        }
        let (list, name) = match path.get(names.len()..) {
            Some([file]) => (&mut files, file),
            Some([directory, _, ..]) => (&mut directories, directory),
            Some([]) | None => continue,
        };
        if !list.contains(name) && is_complete()? {
            list.insert(name.clone());
        }
    }
    let is_something = names.is_empty() || !directories.is_empty() || !files.is_empty();
    let list = |set: BTreeSet<String>| set.into_iter().collect();
    Ok(is_something.then(|| (list(directories), list(files))))
}

/// Returns whether a location is one file, by its name.
fn is_file(location: &Location) -> bool {
    location.has_extension("safetensors") || location.has_extension("json")
}

impl ObjectSource {
    /// Returns the same state of the object, opened anew in the cache: its requests and those of
    /// others in this process exclude each other like those of other processes.
    fn again(&self) -> Self {
        let object = self.place();
        let (location, identity) = (self.0.location.clone(), self.0.identity.clone());
        let mut again =
            Self::with_identity(&self.0.remote, object, location, identity, self.0.seen);
        // Share what is known about permission to read versions, or the first request of each
        // object would be refused.
        let opened = Arc::get_mut(&mut again.0).expect("is not shared yet");
        opened.by_version = Arc::clone(&self.0.by_version);
        again
    }

    /// Returns the same state of the object, without its bytes in the cache.
    fn without_entry(&self) -> Self {
        Self(Arc::new(Opened {
            entry: None,
            replicas: Arc::default(),
            ends: Arc::default(),
            ..Opened::clone(&self.0)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn names_lead_below_the_location_or_from_the_scheme_on() {
        let located = |root: Option<&str>, names: &[&str]| {
            let root = root.map(|root| Location::parse(root).expect("a URL"));
            let site = ObjectSite::new(root, &StoreOptions::new()).expect("starts");
            site.locate(names).map(|location| location.to_string())
        };
        let found = |root, names: &[&str]| located(root, names).unwrap_or_default();
        assert_eq!(
            found(Some("s3://b/m"), &["a", "x.json"]),
            "s3://b/m/a/x.json"
        );
        let file = Some("s3://b/m/x.safetensors");
        assert_eq!(found(file, &["x.safetensors"]), "s3://b/m/x.safetensors");
        assert_eq!(located(file, &["y.safetensors"]), None);
        assert_eq!(located(Some("s3://b/m"), &[]), None);
        assert_eq!(found(None, &["s3", "b", "m", "x"]), "s3://b/m/x");
        assert_eq!(found(None, &["hf", "o", "m@v1", "x"]), "hf://o/m@v1/x");
        assert_eq!(found(None, &["http", "h:80", "a b"]), "http://h:80/a%20b");
        for names in [
            &["s3", "b"][..],
            &["file", "etc", "x"],
            &["store", "b", "x"],
            &["hf", "o", "m"],
            &[],
        ] {
            assert_eq!(located(None, names), None, "{names:?}");
        }
        // Neither a user nor a way out of the bucket.
        for names in [&["http", "u:p@h", "x"][..], &["s3", "", "x"]] {
            assert_eq!(located(None, names), None, "{names:?}");
        }
    }

    #[test]
    fn listed_names_of_a_cache_lead_back_to_its_objects() {
        for (location, wanted) in [
            ("s3://b/m/x y", Some(&["s3", "b", "m", "x y"][..])),
            ("s3://b/m/a%20b", Some(&["s3", "b", "m", "a%20b"])),
            ("hf://o/m@v1/x", Some(&["hf", "o", "m@v1", "x"])),
            (
                "https://h:80/a%20b/%C3%BC",
                Some(&["https", "h:80", "a b", "ü"]),
            ),
            // Names that no server takes.
            ("s3://b/m//x", None),
            ("s3://b/.m/x", None),
            ("https://h/%2Em/x", None),
            ("https://h/a%2Fb", None),
            ("https://h/a%FF", None),
            // Others lead elsewhere.
            ("https://h/%61", None),
            ("https://h/x?…", None),
            ("s3://b/x?…", None),
            ("oci://h/r:v1/x", None),
            ("hf://buckets/o/b/x", None),
            ("no URL", None),
        ] {
            let names = names_of(location);
            let names = names.as_ref();
            let names = names.map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(names.as_deref(), wanted, "{location}");
            let back = names.map(|names| in_cache(&names).map(|it| it.to_string()));
            assert!(back.is_none_or(|back| back.as_deref() == Some(location)));
        }
    }

    #[test]
    fn list_of_a_cache_looks_at_few_objects() {
        let looked = Cell::new(0);
        let list = |names: &[&str]| {
            looked.set(0);
            let objects = ["s3://b/m/x", "s3://b/m/y", "s3://b/n/x", "gs://b/m/x"];
            let objects = objects.map(|location| {
                let looked = &looked;
                let is_complete = move || {
                    looked.set(looked.get() + 1);
                    Ok(location != "s3://b/m/y")
                };
                (location, is_complete)
            });
            one_level(objects.into_iter(), names).expect("no failure")
        };
        let names = |names: &[&str]| names.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
        assert_eq!(list(&[]), Some((names(&["gs", "s3"]), vec![])));
        assert_eq!(looked.get(), 2);
        assert_eq!(list(&["s3", "b"]), Some((names(&["m", "n"]), vec![])));
        assert_eq!(looked.get(), 2);
        assert_eq!(list(&["s3", "b", "m"]), Some((vec![], names(&["x"]))));
        assert_eq!(looked.get(), 2);
        assert_eq!(list(&["s3", "b", "m", "x"]), None);
        assert_eq!(list(&["s3", "c"]), None);
        assert_eq!(looked.get(), 0);
    }

    #[test]
    fn cache_is_read_once_for_all_clients_of_a_second() {
        let (begun, passed, reads) = (Instant::now(), Cell::new(0), Cell::new(0));
        let at = |millis| begun + Duration::from_millis(millis);
        let mut remembered = Remembered::default();
        let mut ask = |millis: u64, takes: u64| {
            passed.set(millis);
            let read = || {
                reads.set(reads.get() + 1);
                passed.set(millis + takes);
                Ok(Vec::new())
            };
            let got = remembered.get(|| at(passed.get()), read);
            got.expect("is read");
            reads.get()
        };
        assert_eq!([0, 0, 999].map(|millis| ask(millis, 0)), [1; 3]);
        assert_eq!(ask(1000, 5000), 2);
        // No more than half of the time is spent on it.
        assert_eq!(
            [6000, 10_999, 11_000].map(|millis| ask(millis, 0)),
            [2, 2, 3]
        );
    }
}
