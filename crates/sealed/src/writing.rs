//! Sealing a checkpoint into a new directory, and the reverse. All or nothing: files are written to
//! a directory beside the target, which takes its name at the end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use globset::{Glob, GlobSet, GlobSetBuilder};
use tload_base::error::{Error, ErrorKind, Result};
use tload_base::options::location::hexadecimal;
use tload_base::options::{Location, StoreOptions};
use tload_base::sync::cancel::CancelFlag;
use tload_base::sync::parallel::parallel_map;
use tload_copy::{ListedFile, components, list_files_or};
use tload_partial::Partial;
use tload_storage::{FileSource, ObjectSource, Source};

use crate::key::Key;
use crate::key_file::{KEY_FILE_NAME, KeyFile};
use crate::keyset::MainKey;
use crate::manifest::{MANIFEST_NAME, ManifestEntry};
use crate::new_checkpoint::NewCheckpoint;
use crate::opened::{OpenedSource, SealedCheckpoint};
use crate::recipients::Recipients;
use crate::stream::{Algorithm, Sealer};

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
/// source that is sealed already; [`ErrorKind::Cancelled`] soon after `cancel` was set; those of
/// reading and writing. The target is not there then.
pub fn seal(
    from: &Location,
    store: &StoreOptions,
    to: &Path,
    options: &SealOptions,
    cancel: &CancelFlag,
) -> Result<WrittenCheckpoint> {
    let new = NewCheckpoint::new(options.algorithm, &options.recipients, options.key.as_ref())?;
    let plain = globs(&options.plain)?;
    let listed = list_files_or(from, store, Err)?;
    require_unsealed(&listed, from)?;
    // A source that is a file is listed under its own name.
    let is_object = || matches!(&*listed, [file] if file.name == from.file_name());
    let is_file = from.as_path().map_or_else(is_object, Path::is_file);
    let target = Target::new(to)?;
    let write = |file: &ListedFile| -> Result<ManifestEntry> {
        let location = if is_file {
            from.clone()
        } else {
            from.join(&file.name)
        };
        let source = open_stored(&location, store)?;
        let sealer = (!plain.is_match(&file.name)).then(|| new.sealer(&file.name));
        let header = sealer
            .as_ref()
            .map(|it| hexadecimal(it.header().as_bytes()));
        let mut writer = target.create(&file.name)?;
        let sha256 = write_file(&*source, sealer, &mut writer, cancel)?;
        writer.finish()?;
        source.verify_unchanged()?;
        Ok(ManifestEntry {
            name: file.name.clone(),
            bytes: source.len(),
            sha256,
            header,
        })
    };
    let entries = parallel_map(&listed, THREADS, write).into_iter();
    let entries: Vec<_> = entries.collect::<Result<_>>()?;
    let written = WrittenCheckpoint {
        files: entries.len(),
        bytes: entries.iter().map(|entry| entry.bytes).sum(),
    };
    for (name, bytes) in new.complete(entries)? {
        let mut writer = target.create(name)?;
        writer.write(&bytes)?;
        writer.finish()?;
    }
    target.finish(cancel)?;
    Ok(written)
}

/// Writes the files of the sealed checkpoint at `from`, as they were before, into the new directory
/// `to`, and compares each with the manifest.
///
/// # Errors
///
/// Those of opening the checkpoint and its files, and of writing; [`ErrorKind::InvalidRequest`] for
/// a target that exists; [`ErrorKind::Cancelled`] soon after `cancel` was set. The target is not
/// there then.
pub fn unseal(
    from: &Location,
    store: &StoreOptions,
    key: &Key,
    to: &Path,
    cancel: &CancelFlag,
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
        let mut writer = target.create(&entry.name)?;
        let found = write_file(&*source, None, &mut writer, cancel)?;
        source.verify_unchanged()?;
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
    target.finish(cancel)?;
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
    let source = FileSource::open(&Location::from_path(&path)).map_err(|error| {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        Error::invalid_request(format!("is not sealed: it has no {KEY_FILE_NAME}"))
            .with_location(folder.display())
            .with_hint("pass the directory of a sealed checkpoint, as tload seal writes it")
    })?;
    let text = source.fetch(0, READ_BYTES)?;
    let file = KeyFile::parse(&text).map_err(located)?;
    let file = file.rekeyed(key, recipients).map_err(located)?;
    let mut partial = Partial::new(&path)?;
    let mut writer = Writer::new(partial.create_file()?, &path.display());
    writer.write(file.to_text().as_bytes())?;
    partial.complete(true)
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
            Error::from_write("cannot write the key file", error)
        };
        error.with_location(to.display())
    })
}

/// Writes a file, sealed if there is a sealer, and returns the SHA-256 of what it was before.
fn write_file(
    source: &dyn Source,
    mut sealer: Option<Sealer>,
    writer: &mut Writer,
    cancel: &CancelFlag,
) -> Result<String> {
    let (mut digest, mut stored, mut at) = (Context::new(&SHA256), Vec::new(), 0);
    while at < source.len() {
        unless_cancelled(cancel).map_err(|error| error.with_location(&writer.location))?;
        let bytes = source.fetch(at, READ_BYTES)?;
        if bytes.is_empty() {
            return Err(ended(source, at));
        }
        at += bytes.len() as u64;
        digest.update(&bytes);
        let Some(sealer) = &mut sealer else {
            writer.write(&bytes)?;
            continue;
        };
        let pushed = sealer.push(&bytes, &mut stored);
        pushed.map_err(|error| {
            Error::unsupported(error.to_string()).with_location(source.location())
        })?;
        writer.write(&stored)?;
        stored.clear();
    }
    if let Some(sealer) = sealer {
        sealer.finish(&mut stored);
        writer.write(&stored)?;
    }
    Ok(hexadecimal(digest.finish().as_ref()))
}

/// Opens a file or an object as it is stored.
fn open_stored(location: &Location, store: &StoreOptions) -> Result<Arc<dyn Source>> {
    if location.as_path().is_some() {
        return Ok(Arc::new(FileSource::open(location)?));
    }
    Ok(Arc::new(ObjectSource::at(location, store)?))
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

/// Directory that is being written.
struct Target(Partial);

impl Target {
    fn new(to: &Path) -> Result<Self> {
        let mut partial = Partial::new(to)?;
        partial.refuse_existing()?;
        partial.create_folder()?;
        Ok(Self(partial))
    }

    /// Creates a file, and the directories that it is in.
    fn create(&self, name: &str) -> Result<Writer> {
        let mut path = self.0.beside().to_owned();
        path.extend(components(name)?);
        let create = || {
            fs::create_dir_all(path.parent().expect("below the target"))?;
            File::create_new(&path)
        };
        let file = create().map_err(|error| {
            Error::from_write("cannot create the file", error).with_location(path.display())
        })?;
        Ok(Writer::new(file, &path.display()))
    }

    /// Gives the directory its name, once all is on the disk. A caller that has cancelled may be
    /// removing it.
    fn finish(self, cancel: &CancelFlag) -> Result<()> {
        sync_folders(self.0.beside()).map_err(|error| {
            let location = self.0.path().display();
            Error::from_write("cannot finish the directory", error).with_location(location)
        })?;
        unless_cancelled(cancel)?;
        self.0.complete(false)
    }
}

fn unless_cancelled(cancel: &CancelFlag) -> Result<()> {
    if cancel.is_cancelled() {
        return Err(Error::new(ErrorKind::Cancelled, "was cancelled"));
    }
    Ok(())
}

/// Waits until storage has the names in the directories below.
#[expect(clippy::disallowed_methods, reason = "a directory, to be written out")]
fn sync_folders(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
            File::open(entry.path())?.sync_all()?;
        }
    }
    Ok(())
}

/// File that is being written.
struct Writer {
    file: File,
    location: String,
}

impl Writer {
    fn new(file: File, location: &impl ToString) -> Self {
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
        Error::from_write("cannot write", error).with_location(&self.location)
    }
}
