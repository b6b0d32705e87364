//! Sealing a checkpoint into a new directory, and the reverse. All or nothing: files are written to
//! a directory beside the target, which takes its name at the end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use globset::{Glob, GlobSet, GlobSetBuilder};
use tload_base::error::{Error, ErrorKind, Result};
use tload_base::options::location::hexadecimal;
use tload_base::options::{Location, StoreOptions};
use tload_base::sync::parallel::parallel_map;
use tload_copy::{ListedFile, components, list_files};
use tload_storage::{FileSource, ObjectSource, Source};

use crate::key::Key;
use crate::key_file::{KEY_FILE_NAME, KeyFile};
use crate::keyset::MainKey;
use crate::manifest::{MANIFEST_NAME, Manifest, ManifestEntry, associated};
use crate::opened::{OpenedSource, SealedCheckpoint, index};
use crate::recipients::Recipients;
use crate::stream::{Algorithm, Header, Layout};

/// Bytes that are read at a time from a sealed file, some segments.
const READ_BYTES: usize = 8 << 20;

/// Files that are written at a time.
const THREADS: usize = 4;

/// Options of sealing.
#[derive(Debug)]
pub struct SealOptions {
    /// Algorithm, for a new data key.
    pub algorithm: Algorithm,
    /// Recipients of the data key. Without any, the key must be a keyset.
    pub recipients: Recipients,
    /// Data key to use, as a keyset; without it, a new one.
    pub key: Option<Key>,
    /// Globs of files that stay readable, for programs that read them themselves.
    pub plain: Vec<String>,
}

/// Result of sealing or of the reverse.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrittenCheckpoint {
    /// Number of files, without the two that sealing adds.
    pub files: usize,
    /// Length of all files, not sealed, bytes.
    pub bytes: u64,
}

/// Seals the checkpoint at `from`, with all files of its directory, into the new directory `to`.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] without recipients and key, for a target that exists, and for a
/// source that is sealed already; those of reading and writing.
pub fn seal(
    from: &Location,
    store: &StoreOptions,
    to: &Path,
    options: &SealOptions,
) -> Result<WrittenCheckpoint> {
    let key = match &options.key {
        Some(key) => key.main_key(None)?,
        None if options.recipients.is_empty() => {
            return Err(Error::invalid_request("there is no recipient, and no key")
                .with_hint("name recipients of age, or pass a keyset of Tink as the key"));
        }
        None => MainKey::random(options.algorithm),
    };
    let recipients = Some(&options.recipients).filter(|it| !it.is_empty());
    let key_file = KeyFile::new(&key, recipients)?;
    let plain = globs(&options.plain)?;
    let listed = list_files(from.clone(), store)?;
    require_unsealed(&listed, from)?;
    let target = Target::new(to)?;
    let write = |file: &ListedFile| -> Result<ManifestEntry> {
        let source = open_stored(&place(from, &file.name), store)?;
        let header = (!plain.is_match(&file.name)).then(|| Header::random(key.algorithm()));
        let mut writer = Writer::new(target.create(&file.name)?, source.location());
        let sealed = write_file(
            &*source,
            header.as_ref(),
            |header| {
                let key = key.file_key(header, &associated(key_file.id(), &file.name));
                move |segment: &_, bytes: &mut [u8]| key.seal_in_place(segment, bytes)
            },
            &mut writer,
        );
        let sha256 = sealed?;
        writer.finish()?;
        source.verify_unchanged()?;
        Ok(ManifestEntry {
            name: file.name.clone(),
            bytes: source.len(),
            sha256,
            header: header.map(|header| hexadecimal(header.as_bytes())),
        })
    };
    let entries = parallel_map(&listed, THREADS, write).into_iter();
    let entries: Vec<_> = entries.collect::<Result<_>>()?;
    let written = WrittenCheckpoint {
        files: entries.len(),
        bytes: entries.iter().map(|entry| entry.bytes).sum(),
    };
    let manifest = seal_bytes(&key, &key_file, &Manifest::new(entries).to_text())?;
    target.write(MANIFEST_NAME, &manifest)?;
    target.write(KEY_FILE_NAME, key_file.to_text().as_bytes())?;
    target.finish()?;
    Ok(written)
}

/// Writes the files of the sealed checkpoint at `from`, as they were before, into the new directory
/// `to`, and compares each with the manifest.
///
/// # Errors
///
/// Those of opening the checkpoint and its files, and of writing; [`ErrorKind::InvalidRequest`] for
/// a target that exists.
pub fn unseal(
    from: &Location,
    store: &StoreOptions,
    key: &Key,
    to: &Path,
) -> Result<WrittenCheckpoint> {
    let open = |location: &Location, first: usize| -> Result<OpenedSource> {
        let source = open_stored(location, store)?;
        let bytes = source.fetch(0, first)?;
        Ok((source, bytes))
    };
    let checkpoint = SealedCheckpoint::open(key, from, &open)?;
    let target = Target::new(to)?;
    let entries = checkpoint.manifest().files();
    let write = |entry: &ManifestEntry| -> Result<()> {
        components(&entry.name)?;
        let (source, _) = checkpoint.open_file(&from.join(&entry.name), 0, &open)?;
        let mut writer = Writer::new(target.create(&entry.name)?, source.location());
        let mut digest = Context::new(&SHA256);
        let mut at = 0;
        while at < source.len() {
            let bytes = source.fetch(at, READ_BYTES)?;
            if bytes.is_empty() {
                return Err(ended(&*source, at));
            }
            digest.update(&bytes);
            writer.write(&bytes)?;
            at += bytes.len() as u64;
        }
        source.verify_unchanged()?;
        let found = hexadecimal(digest.finish().as_ref());
        if found != entry.sha256 {
            let message = format!(
                "has the SHA-256 {found}, and the sealed manifest says {}",
                entry.sha256
            );
            return Err(Error::new(ErrorKind::Corrupt, message).with_location(source.location()));
        }
        writer.finish()
    };
    let written = parallel_map(entries, THREADS, write).into_iter();
    written.collect::<Result<()>>()?;
    target.finish()?;
    Ok(WrittenCheckpoint {
        files: entries.len(),
        bytes: entries.iter().map(|entry| entry.bytes).sum(),
    })
}

/// Wraps the data key of the checkpoint in `folder` to other recipients. Its files stay as they
/// are, and readers of before may have kept the data key.
///
/// # Errors
///
/// Those of opening the checkpoint with `key`, of wrapping and of writing.
pub fn rekey(folder: &Path, key: &Key, recipients: &Recipients) -> Result<()> {
    if recipients.is_empty() {
        return Err(Error::invalid_request("there is no recipient"));
    }
    let path = folder.join(KEY_FILE_NAME);
    let located = |error: Error| error.or_location(Location::from_path(&path));
    let source = FileSource::open(&Location::from_path(&path))?;
    let text = source.fetch(0, READ_BYTES)?;
    let file = KeyFile::parse(&text).map_err(located)?;
    let file = file.rekeyed(key, recipients).map_err(located)?;
    let partial = folder.join(format!(".{KEY_FILE_NAME}.tload-partial"));
    let failed =
        |error| Error::from_io("cannot write the file", error).with_location(path.display());
    let write = || {
        let mut new = File::create(&partial)?;
        new.write_all(file.to_text().as_bytes())?;
        new.sync_all()?;
        fs::rename(&partial, &path)?;
        sync_folder(folder)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&partial);
        failed(error)
    })
}

/// Writes a new data key as a keyset of Tink, to a file that only its owner may read.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for a file that exists; those of writing.
pub fn write_new_key(algorithm: Algorithm, to: &Path) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;

    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(to)?;
        file.write_all(MainKey::random(algorithm).to_keyset().as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| {
        let error = if error.kind() == io::ErrorKind::AlreadyExists {
            Error::invalid_request("the key file exists already")
        } else {
            Error::from_io("cannot write the key file", error)
        };
        error.with_location(to.display())
    })
}

/// Writes a file, in segments if it has a header, and returns the SHA-256 of what it was before.
fn write_file<S>(
    source: &dyn Source,
    header: Option<&Header>,
    sealing: impl FnOnce(&Header) -> S,
    writer: &mut Writer,
) -> Result<String>
where
    S: Fn(&crate::stream::Segment, &mut [u8]) -> [u8; crate::stream::TAG_BYTES],
{
    let mut digest = Context::new(&SHA256);
    let len = source.len();
    let mut next = |start: u64, end: u64| -> Result<Vec<u8>> {
        let bytes = source.fetch(start, index(end - start))?;
        if bytes.len() as u64 != end - start {
            return Err(ended(source, start + bytes.len() as u64));
        }
        digest.update(&bytes);
        Ok(bytes)
    };
    if let Some(header) = header {
        let too_long = |error| {
            let message = format!("{error}");
            Error::unsupported(message).with_location(source.location())
        };
        let layout = Layout::of_opened(header.algorithm(), len).map_err(too_long)?;
        let seal = sealing(header);
        writer.write(header.as_bytes())?;
        for number in 0..=layout.last() {
            let segment = layout.segment(number);
            let mut bytes = next(segment.opened.start, segment.opened.end)?;
            let tag = seal(&segment, &mut bytes);
            writer.write(&bytes)?;
            writer.write(&tag)?;
        }
    } else {
        let mut at = 0;
        while at < len {
            let end = len.min(at + READ_BYTES as u64);
            writer.write(&next(at, end)?)?;
            at = end;
        }
    }
    Ok(hexadecimal(digest.finish().as_ref()))
}

/// Seals a short file in memory.
fn seal_bytes(key: &MainKey, key_file: &KeyFile, text: &[u8]) -> Result<Vec<u8>> {
    let header = Header::random(key.algorithm());
    let layout = Layout::of_opened(key.algorithm(), text.len() as u64);
    let layout = layout.map_err(|error| Error::unsupported(error.to_string()))?;
    let file_key = key.file_key(&header, &associated(key_file.id(), MANIFEST_NAME));
    let mut sealed = header.as_bytes().to_vec();
    for number in 0..=layout.last() {
        let segment = layout.segment(number);
        let mut bytes = text[index(segment.opened.start)..index(segment.opened.end)].to_vec();
        let tag = file_key.seal_in_place(&segment, &mut bytes);
        sealed.extend(bytes);
        sealed.extend(tag);
    }
    Ok(sealed)
}

/// Opens a file or an object as it is stored.
fn open_stored(location: &Location, store: &StoreOptions) -> Result<Arc<dyn Source>> {
    if location.as_path().is_some() {
        return Ok(Arc::new(FileSource::open(location)?));
    }
    Ok(Arc::new(ObjectSource::at(location, store)?))
}

/// Returns the location of a listed file: a source that is a file is listed under its own name.
fn place(from: &Location, name: &str) -> Location {
    if from.as_path().is_some_and(Path::is_file) || from.file_name() == name {
        return from.clone();
    }
    from.join(name)
}

fn require_unsealed(listed: &[ListedFile], from: &Location) -> Result<()> {
    if listed.is_empty() {
        let message = "there is no file to seal";
        return Err(Error::new(ErrorKind::NotFound, message).with_location(from));
    }
    let is_ours = |file: &&ListedFile| [KEY_FILE_NAME, MANIFEST_NAME].contains(&&*file.name);
    match listed.iter().find(is_ours) {
        Some(file) => {
            let message = format!("is sealed already: it has a file {}", file.name);
            Err(Error::invalid_request(message).with_location(from))
        }
        None => Ok(()),
    }
}

fn globs(patterns: &[String]) -> Result<GlobSet> {
    let malformed =
        |error: globset::Error| Error::invalid_request(format!("a glob is malformed: {error}"));
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern).map_err(malformed)?);
    }
    set.build().map_err(malformed)
}

fn ended(source: &dyn Source, at: u64) -> Error {
    let message = format!("ended at byte {at} of {}", source.len());
    Error::new(ErrorKind::Changed, message).with_location(source.location())
}

/// Directory that is being written, under another name until it is complete.
struct Target {
    partial: PathBuf,
    to: PathBuf,
}

impl Target {
    fn new(to: &Path) -> Result<Self> {
        let failed = |error| {
            Error::from_io("cannot create the directory", error).with_location(to.display())
        };
        if to.symlink_metadata().is_ok() {
            return Err(Error::invalid_request("the target exists already")
                .with_location(to.display())
                .with_hint("name a new directory"));
        }
        let name = to.file_name().unwrap_or_default().to_string_lossy();
        let partial = to.with_file_name(format!(".{name}.tload-partial-{}", std::process::id()));
        fs::create_dir(&partial).map_err(failed)?;
        let to = to.to_owned();
        Ok(Self { partial, to })
    }

    /// Creates a file, and the directories that it is in.
    fn create(&self, name: &str) -> Result<File> {
        let mut path = self.partial.clone();
        path.extend(components(name)?);
        let create = || {
            fs::create_dir_all(path.parent().expect("below the target"))?;
            File::create_new(&path)
        };
        create().map_err(|error| {
            Error::from_io("cannot create the file", error).with_location(path.display())
        })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut writer = Writer::new(self.create(name)?, name);
        writer.write(bytes)?;
        writer.finish()
    }

    /// Gives the directory its name, once all is on the disk.
    fn finish(self) -> Result<()> {
        let finish = || {
            sync_folders(&self.partial)?;
            fs::rename(&self.partial, &self.to)?;
            match self.to.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
                Some(_) | None => sync_folder(Path::new(".")),
            }
        };
        finish().map_err(|error| {
            let location = self.to.display();
            Error::from_io("cannot finish the directory", error).with_location(location)
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Nothing has this name if the directory was finished.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

fn sync_folders(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    sync_folder(folder)
}

#[expect(clippy::disallowed_methods, reason = "a directory, to be written out")]
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// File that is being written.
struct Writer {
    file: File,
    location: String,
}

impl Writer {
    fn new(file: File, location: &(impl ToString + ?Sized)) -> Self {
        let location = location.to_string();
        Self { file, location }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| self.failed(error))
    }

    fn finish(self) -> Result<()> {
        self.file.sync_all().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::from_io("cannot write the copy", error).with_location(&self.location)
    }
}
