//! A sealed checkpoint that a key has opened: its manifest, and what opens each of its files.

use std::ops::Range;
use std::sync::Arc;

use tload_base::error::{Error, ErrorKind, Result, shortened};
use tload_base::options::Location;
use tload_base::options::location::hexadecimal;
use tload_memory::{Transform, Unit};
use tload_storage::Source;

use crate::key::Key;
use crate::key_file::{KEY_FILE_BYTES_MAX, KEY_FILE_NAME, KeyFile};
use crate::keyset::MainKey;
use crate::manifest::{MANIFEST_BYTES_MAX, MANIFEST_NAME, Manifest, ManifestEntry, associated};
use crate::source::SealedSource;
use crate::stream::{FileKey, Header, Layout, SEGMENT_BYTES, Segment};

/// Bytes of a sealed file that opening it needs: all of its first segment.
pub const FIRST_BYTES: usize = 1 << 20;

/// Opened file or object, and its first bytes.
pub type OpenedSource = (Arc<dyn Source>, Vec<u8>);

/// Opens a file of the checkpoint as it is stored, and returns up to so many of its first bytes.
pub type OpenStored<'a> = dyn Fn(&Location, usize) -> Result<OpenedSource> + 'a;

/// Opened sealed checkpoint.
#[derive(Debug)]
pub struct SealedCheckpoint {
    folder: Location,
    id: String,
    key: MainKey,
    manifest: Manifest,
}

/// Key and lengths of one file, which open it.
#[derive(Debug)]
pub(crate) struct SealedFile {
    location: Location,
    key: FileKey,
    layout: Layout,
    /// Digest of the opened file, as the manifest states it.
    sha256: String,
}

impl SealedCheckpoint {
    /// Opens the checkpoint in `folder`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] for another key; [`ErrorKind::Corrupt`] for a manifest that
    /// is not of this checkpoint; [`ErrorKind::Unsupported`] for another version of the format;
    /// [`ErrorKind::InvalidRequest`] if the checkpoint is not sealed; those of reading.
    pub fn open(key: &Key, folder: &Location, open: &OpenStored<'_>) -> Result<Self> {
        let at = folder.join(KEY_FILE_NAME);
        let opened = open(&at, 64 << 10);
        let (source, text) = opened.map_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                return error;
            }
            let message =
                format!("a key was given, but the checkpoint is not sealed: it has no {KEY_FILE_NAME}");
            let hint = "leave the key out (TLOAD_KEY, TLOAD_KEY_FILE, TLOAD_KEY_COMMAND), or check the location";
            Error::invalid_request(message)
                .with_location(folder)
                .with_hint(hint)
        })?;
        let text = whole(&*source, text, KEY_FILE_BYTES_MAX)?;
        let located = |error: Error| error.or_location(&at);
        let file = KeyFile::parse(&text).map_err(located)?;
        let key = file.main_key(key).map_err(located)?;
        let opened = open(&folder.join(MANIFEST_NAME), FIRST_BYTES);
        let (source, sealed) = opened.map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                missing(MANIFEST_NAME).with_location(folder)
            } else {
                error
            }
        })?;
        let sealed = whole(&*source, sealed, MANIFEST_BYTES_MAX)?;
        let manifest = open_manifest(&key, file.id(), &sealed);
        let manifest = manifest.map_err(|error| error.or_location(source.location()))?;
        Ok(Self {
            folder: folder.clone(),
            id: file.id().to_owned(),
            key,
            manifest,
        })
    }

    /// Returns the directory that it is in.
    pub fn folder(&self) -> &Location {
        &self.folder
    }

    /// Returns its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Requires every file of the manifest that is not in a directory below to be in `names`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`], which names the first file that is missing.
    pub fn require_files(&self, names: &[String]) -> Result<()> {
        let mut files = self.manifest.files().iter().map(|file| &file.name);
        // Listings leave out hidden files.
        let is_missing =
            |name: &&String| !name.contains('/') && !name.starts_with('.') && !names.contains(name);
        match files.find(is_missing) {
            Some(name) => Err(missing(name).with_location(&self.folder)),
            None => Ok(()),
        }
    }

    /// Returns the file or object at a location of the checkpoint, as it was before it was sealed,
    /// and up to `first` of its first bytes. `open` opens what is stored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for a file that is not the one of the manifest; those of opening.
    pub fn open_file(
        &self,
        location: &Location,
        first: usize,
        open: &OpenStored<'_>,
    ) -> Result<OpenedSource> {
        let name = location.below(&self.folder).unwrap_or_default();
        let Some(entry) = self.manifest.get(&name) else {
            let message = format!("the sealed checkpoint has no file {:?}", shortened(&name));
            return Err(Error::new(ErrorKind::NotFound, message).with_location(location));
        };
        let opened = open(location, first.max(FIRST_BYTES)).map_err(|error| {
            let is_denied = matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::PermissionDenied
            );
            // Web servers list nothing: a caller may only be trying whether there is such a file.
            if is_denied && location.as_path().is_none() {
                return missing(&name)
                    .with_location(&self.folder)
                    .with_source(error);
            }
            error
        });
        let (source, sealed) = opened?;
        if entry.header.is_none() {
            if source.len() != entry.bytes {
                let wanted = entry.bytes;
                return Err(other_length(source.len(), wanted).with_location(source.location()));
            }
            let mut bytes = sealed;
            bytes.truncate(first);
            return Ok((source, bytes));
        }
        let file = self.file(entry, source.location(), source.len(), &sealed);
        let file = file.map_err(|error| error.or_location(source.location()))?;
        let source = SealedSource::new(source, file);
        let bytes = source.first(sealed, first)?;
        Ok((Arc::new(source), bytes))
    }

    /// Returns the key and the lengths of a file, of which the first bytes are given.
    fn file(
        &self,
        entry: &ManifestEntry,
        location: &Location,
        sealed_len: u64,
        first: &[u8],
    ) -> Result<SealedFile> {
        let algorithm = self.key.algorithm();
        let layout = Layout::of_opened(algorithm, entry.bytes);
        let layout = layout.map_err(|error| corrupt(error.to_string()))?;
        let header = Header::parse(algorithm, first).map_err(|error| corrupt(error.to_string()))?;
        if entry.header.as_deref() != Some(&*hexadecimal(header.as_bytes())) {
            let message = "is another file than the sealed manifest lists: older, newer, or of another checkpoint";
            return Err(corrupt(message)
                .with_hint("get the file and the manifest from the same place again"));
        }
        if sealed_len != layout.sealed_len() {
            return Err(other_length(sealed_len, layout.sealed_len()));
        }
        let associated = associated(&self.id, &entry.name);
        Ok(SealedFile {
            location: location.clone(),
            key: self.key.file_key(&header, &associated),
            layout,
            sha256: entry.sha256.clone(),
        })
    }
}

impl SealedFile {
    /// Returns the length of the file, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.layout.len()
    }

    fn damaged(&self, segment: &Segment) -> Error {
        let message = format!(
            "segment {} is damaged, or of another file: its tag does not match",
            segment.number
        );
        corrupt(message)
            .with_location(&self.location)
            .with_range(segment.sealed.clone())
            .with_hint("get the sealed file again")
    }
}

impl Transform for SealedFile {
    fn units(&self, range: &Range<u64>) -> Range<u32> {
        self.layout.segments_of(range)
    }

    fn unit(&self, number: u32) -> Unit {
        let Segment { opened, sealed, .. } = self.layout.segment(number);
        Unit {
            bytes: opened,
            stored: sealed,
        }
    }

    fn unit_bytes_max(&self) -> u64 {
        SEGMENT_BYTES
    }

    fn sha256(&self) -> Option<&str> {
        Some(&self.sha256)
    }

    fn apply(&self, number: u32, stored: &[u8], to: &mut [u8]) -> Result<()> {
        let segment = self.layout.segment(number);
        let opened = self.key.open(&segment, stored, to);
        opened.map_err(|_| self.damaged(&segment))
    }

    fn apply_in_place<'a>(&self, number: u32, stored: &'a mut [u8]) -> Result<&'a [u8]> {
        let segment = self.layout.segment(number);
        let opened = self.key.open_in_place(&segment, stored);
        opened.map_err(|_| self.damaged(&segment))
    }
}

/// Opens a whole manifest.
fn open_manifest(key: &MainKey, id: &str, sealed: &[u8]) -> Result<Manifest> {
    let algorithm = key.algorithm();
    let layout = Layout::of_sealed(algorithm, sealed.len() as u64);
    let layout = layout.map_err(|error| corrupt(error.to_string()))?;
    let header = Header::parse(algorithm, sealed).map_err(|error| corrupt(error.to_string()))?;
    let file_key = key.file_key(&header, &associated(id, MANIFEST_NAME));
    let mut text = Vec::new();
    for number in 0..=layout.last() {
        let segment = layout.segment(number);
        let range = index(segment.sealed.start)..index(segment.sealed.end);
        let mut bytes = sealed[range].to_vec();
        let opened = file_key.open_in_place(&segment, &mut bytes);
        text.extend_from_slice(opened.map_err(|_| {
            corrupt(format!(
                "segment {number} is damaged, or of another checkpoint: its tag does not match"
            ))
            .with_range(segment.sealed.clone())
        })?);
    }
    Manifest::parse(&text)
}

/// Reads the rest of a small file.
fn whole(source: &dyn Source, mut first: Vec<u8>, bytes_max: u64) -> Result<Vec<u8>> {
    if source.len() > bytes_max {
        let message = format!("has {} bytes, more than {bytes_max}", source.len());
        return Err(Error::new(ErrorKind::InvalidFormat, message).with_location(source.location()));
    }
    let len = index(source.len());
    if first.len() < len {
        first.extend(source.fetch(first.len() as u64, len - first.len())?);
    }
    first.truncate(len);
    Ok(first)
}

pub(crate) fn index(at: u64) -> usize {
    usize::try_from(at).expect("in memory")
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

fn other_length(found: u64, wanted: u64) -> Error {
    corrupt(format!(
        "has {found} bytes, and the sealed manifest says {wanted}"
    ))
    .with_hint("get the sealed file again")
}

fn missing(name: &str) -> Error {
    let message = format!("the sealed checkpoint lacks its file {:?}", shortened(name));
    Error::new(ErrorKind::NotFound, message).with_hint("get the checkpoint again")
}
