//! Takes the tensors of a checkpoint one after another, and writes them.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;

use tload_verify::{MANIFEST_NAME, Manifest};

use crate::digests::{Digests, of_text};
use crate::error::{Error, ErrorKind, Result, shortened};
use crate::format::{Dtype, INDEX_NAME};
use crate::header;
use crate::index::{self, TOTAL_SIZE};
use crate::options::Location;
use crate::plan::{PlannedFile, plan};
use crate::report::WriteReport;
use crate::stream::Stream;
use crate::target::{self, Target};
use crate::tensor_spec::TensorSpec;
use crate::write_options::WriteOptions;

/// Bytes for the header of a file whose tensors are not known when it is begun: those of some
/// thousand tensors. Once they are used up, the next file begins.
const ROOM_BYTES: usize = 1 << 20;

/// Writer of a checkpoint: of all of its files, or of none.
///
/// Nothing is at the destination until [`Self::finish`] has returned; dropping the writer before
/// leaves what was there.
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::options::Location;
/// #     pub use tload_format::Dtype;
/// #     pub mod write { pub use tload_write::{WriteOptions, Writer}; }
/// # }
/// use tload::write::{WriteOptions, Writer};
/// use tload::{Dtype, Location};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model");
/// let mut writer = Writer::create(&Location::from_path(path), WriteOptions::new())?;
/// writer.tensor("norm.weight", Dtype::F32, &[2], &[0; 8])?;
/// let report = writer.finish()?;
/// assert_eq!(report.files, ["model.safetensors"]);
/// # Ok::<(), tload_base::error::Error>(())
/// ```
pub struct Writer {
    /// Before the target: an upload ends before the claim of its name does.
    file: Option<File>,
    target: Box<dyn Target>,
    options: WriteOptions,
    location: String,
    /// Files that follow, if their tensors are known.
    planned: Option<VecDeque<PlannedFile>>,
    /// Names and tensors of the finished files.
    files: Vec<(String, Vec<String>)>,
    names: HashSet<String>,
    manifest: Manifest,
    tensors: u64,
    tensor_bytes: u64,
    file_bytes: u64,
    failure: Option<Error>,
}

/// File that is being written.
struct File {
    name: String,
    stream: Stream,
    /// Tensors that follow, if they are known.
    expected: VecDeque<TensorSpec>,
    /// Tensors in the order of their bytes, if they were not known.
    specs: Vec<TensorSpec>,
    /// Names for the index.
    listed: Vec<String>,
    room_left: usize,
    bytes: u64,
    tensor: Option<TensorSpec>,
    /// Bytes of the tensor that have not come yet.
    left: u64,
    digests: Option<Digests>,
}

impl Writer {
    /// Begins a checkpoint whose tensors are not known yet: they are stored in the order in which
    /// they come.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a destination that must not be replaced and for options
    /// that need to know the tensors; the kinds of I/O.
    pub fn create(location: &Location, options: WriteOptions) -> Result<Self> {
        for (is_set, what) in [
            (options.manifest, "a manifest"),
            (options.sealing.is_some(), "sealing"),
        ] {
            if is_set {
                let message = format!("{what} needs the names and shapes of all tensors first");
                return Err(Error::invalid_request(message)
                    .with_hint("pass a dict of tensors instead of an iterator"));
            }
        }
        Self::open(location, options)
    }

    /// Begins a checkpoint of these tensors. Each file has the bytes that `safetensors` writes, and
    /// the tensors are distributed over files as `huggingface_hub` does it. They have to come in
    /// the order of [`Self::order`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a destination that must not be replaced, and for tensors
    /// that cannot be in one checkpoint; the kinds of I/O.
    pub fn planned(
        location: &Location,
        tensors: Vec<TensorSpec>,
        options: WriteOptions,
    ) -> Result<Self> {
        let mut writer = Self::open(location, options)?;
        let planned = plan(tensors, &writer.options, writer.target.naming())?;
        writer.planned = Some(planned.into());
        Ok(writer)
    }

    fn open(location: &Location, options: WriteOptions) -> Result<Self> {
        let is_taken = |name: &&String| *name == TOTAL_SIZE || options.metadata.contains_key(*name);
        if let Some(name) = options.aliases.keys().find(is_taken) {
            let message = "the name of an alias is a key of the metadata";
            return Err(Error::invalid_request(message)
                .with_tensor(name)
                .with_hint("store that tensor under its own name"));
        }
        let target = target::open(location, &options)?;
        if options.sealing.is_some() && (options.manifest || target.naming().only.is_some()) {
            let message = "a sealed checkpoint is a directory, with a manifest of its own";
            return Err(Error::invalid_request(message)
                .with_location(location)
                .with_hint("name a directory, and leave the manifest out"));
        }
        Ok(Self {
            target,
            options,
            location: location.to_string(),
            planned: None,
            file: None,
            files: Vec::new(),
            names: HashSet::new(),
            manifest: Manifest::default(),
            tensors: 0,
            tensor_bytes: 0,
            file_bytes: 0,
            failure: None,
        })
    }

    /// Returns the names of the tensors in the order in which they have to come; none if the
    /// tensors are not known yet.
    pub fn order(&self) -> impl Iterator<Item = &str> {
        let file = self.file.iter().flat_map(|file| &file.expected);
        let planned = self.planned.iter().flatten();
        let following = planned.flat_map(|file| &file.specs);
        file.chain(following).map(TensorSpec::name)
    }

    /// Writes a tensor whose bytes are there.
    ///
    /// # Errors
    ///
    /// Those of [`Self::begin`] and [`Self::write`].
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        dtype: Dtype,
        shape: &[u64],
        bytes: &[u8],
    ) -> Result<()> {
        self.begin(TensorSpec::new(name, dtype, shape)?)?;
        self.write(bytes)
    }

    /// Begins a tensor. Its bytes follow, in any number of pieces.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if the last tensor is not complete or another one has to come;
    /// the kinds of I/O.
    pub fn begin(&mut self, spec: TensorSpec) -> Result<()> {
        self.unless_failed(|writer| writer.begin_tensor(spec))
    }

    /// Writes the next bytes of the tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for more bytes than the tensor has; the kinds of I/O.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.unless_failed(|writer| {
            let len = bytes.len() as u64;
            let left = writer.file.as_ref().map_or(0, |file| file.left);
            let Some(file) = writer.file.as_mut().filter(|_| len <= left) else {
                let message = format!("{len} bytes came, and the tensor lacks {left}");
                return Err(Error::invalid_request(message));
            };
            file.left -= len;
            file.bytes += len;
            if let Some(digests) = &mut file.digests {
                digests.take(bytes);
            }
            file.stream.push(bytes)
        })
    }

    /// Completes the checkpoint, and makes it the one at the destination.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if tensors are missing, [`ErrorKind::Changed`] if another
    /// writer was faster; the kinds of I/O. The destination is as it was, unless the hint says that
    /// the new files are in place.
    pub fn finish(mut self) -> Result<WriteReport> {
        self.unless_failed(Self::complete)
    }

    /// Calls `work`, unless an earlier call has failed: a file may lack bytes then.
    fn unless_failed<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(failure) = &self.failure {
            return Err(failure.again());
        }
        let result = work(self).map_err(|error| {
            let tensor = self.file.as_ref().and_then(|file| file.tensor.as_ref());
            let error = match (error.tensor(), tensor) {
                (None, Some(tensor)) => error.with_tensor(tensor.name()),
                _ => error,
            };
            error.or_location(&self.location)
        });
        if let Err(error) = &result {
            self.failure = Some(error.again());
        }
        result
    }

    fn begin_tensor(&mut self, spec: TensorSpec) -> Result<()> {
        self.end_tensor()?;
        if self.planned.is_some() {
            self.expect(&spec)?;
        } else {
            self.make_room(&spec)?;
        }
        self.tensors += 1;
        self.tensor_bytes += spec.byte_len();
        let file = self.file.as_mut().expect("opened for this tensor");
        if let Some(digests) = &mut file.digests {
            digests.begin(spec.name());
        }
        file.left = spec.byte_len();
        file.tensor = Some(spec);
        Ok(())
    }

    /// Requires that `spec` is the planned tensor, and opens its file.
    fn expect(&mut self, spec: &TensorSpec) -> Result<()> {
        while self.file.as_ref().is_none_or(|it| it.expected.is_empty()) {
            if !self.next_planned()? {
                let message = format!(
                    "{:?} is none of the planned tensors, or came before",
                    shortened(spec.name())
                );
                return Err(Error::invalid_request(message).with_tensor(spec.name()));
            }
        }
        let file = self.file.as_mut().expect("opened above");
        let wanted = file.expected.pop_front().expect("looked at above");
        if wanted == *spec {
            return Ok(());
        }
        let shown = |it: &TensorSpec| {
            let name = shortened(it.name());
            format!("{name:?} ({} {:?})", it.dtype(), it.shape())
        };
        let message = format!("found {}, wanted {}", shown(spec), shown(&wanted));
        Err(Error::invalid_request(message).with_tensor(spec.name()))
    }

    /// Opens the next planned file, and returns whether there is one.
    fn next_planned(&mut self) -> Result<bool> {
        self.end_file()?;
        let Some(next) = self.planned.as_mut().and_then(VecDeque::pop_front) else {
            return Ok(false);
        };
        let len = next.byte_len();
        let mut stream = self.stream(&next.name, Some(len), 0)?;
        stream.push(&next.header)?;
        let digests = self.options.manifest.then(|| Digests::new(&next.header));
        self.file = Some(File {
            name: next.name,
            stream,
            expected: next.specs.into(),
            specs: Vec::new(),
            listed: next.listed,
            room_left: 0,
            bytes: next.header.len() as u64,
            tensor: None,
            left: 0,
            digests,
        });
        Ok(true)
    }

    /// Opens the file for a tensor that was not known: the next one if this one is full.
    fn make_room(&mut self, spec: &TensorSpec) -> Result<()> {
        if !self.names.insert(spec.name().to_owned()) {
            return Err(spec.is_twice());
        }
        let room = header::bytes_max(spec);
        let is_single = self.target.naming().only.is_some();
        if let Some(file) = &self.file {
            let bytes = (file.bytes - ROOM_BYTES as u64).saturating_add(spec.byte_len());
            let is_full = bytes > self.options.shard_bytes_max && !file.specs.is_empty();
            let is_crowded = file.room_left < room;
            if is_single && is_crowded {
                let message = "the header of one file has no room for as many tensors";
                return Err(Error::invalid_request(message)
                    .with_hint("pass a dict of tensors, or write to a directory"));
            }
            if !is_single && (is_full || is_crowded) {
                self.end_file()?;
            }
        }
        if self.file.is_none() {
            self.open_unplanned()?;
        }
        let file = self.file.as_mut().expect("opened above");
        if file.room_left < room {
            let message = "its name and shape do not fit into the header";
            return Err(Error::invalid_request(message).with_tensor(spec.name()));
        }
        file.room_left -= room;
        file.specs.push(spec.clone());
        file.listed.push(spec.name().to_owned());
        Ok(())
    }

    fn open_unplanned(&mut self) -> Result<()> {
        let naming = self.target.naming();
        let only = naming.only.clone();
        let name = only.unwrap_or_else(|| naming.shard(self.files.len(), None));
        let stream = self.stream(&name, None, ROOM_BYTES)?;
        let empty = header::render(&[], &self.metadata(), None)?;
        self.file = Some(File {
            name,
            stream,
            expected: VecDeque::new(),
            specs: Vec::new(),
            listed: Vec::new(),
            room_left: ROOM_BYTES.saturating_sub(empty.len()),
            bytes: ROOM_BYTES as u64,
            tensor: None,
            left: 0,
            digests: None,
        });
        Ok(())
    }

    /// Returns the metadata of a file whose tensors were not known.
    fn metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = self.options.metadata.clone();
        if self.target.naming().only.is_some() {
            metadata.extend(self.options.aliases.clone());
        }
        metadata
    }

    fn stream(&mut self, name: &str, len: Option<u64>, room: usize) -> Result<Stream> {
        let transform = self.options.sealing.as_ref().map(|it| it.file(name));
        let stored = |len| transform.as_ref().map_or(len, |it| it.stored_len(len));
        let output = self.target.create(name, len.map(stored))?;
        Stream::new(output, transform, room)
    }

    /// Requires that the last tensor is complete.
    fn end_tensor(&mut self) -> Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        if file.left > 0 {
            let message = format!("{} bytes of the tensor are missing", file.left);
            return Err(Error::invalid_request(message));
        }
        file.tensor = None;
        Ok(())
    }

    fn end_file(&mut self) -> Result<()> {
        self.end_tensor()?;
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        let head = match self.planned {
            Some(_) => Vec::new(),
            None => header::render(&file.specs, &self.metadata(), Some(ROOM_BYTES))?,
        };
        self.file_bytes += file.stream.finish(&head)?;
        if let Some(digests) = file.digests {
            let said = digests.finish();
            self.manifest.files.insert(file.name.clone(), said);
        }
        self.files.push((file.name, file.listed));
        Ok(())
    }

    fn complete(&mut self) -> Result<WriteReport> {
        self.end_tensor()?;
        if let Some(missing) = self.order().next() {
            let message = format!("the tensor {:?} has not come", shortened(missing));
            return Err(Error::new(ErrorKind::InvalidRequest, message));
        }
        if self.planned.is_none() && self.files.is_empty() && self.file.is_none() {
            self.open_unplanned()?;
        }
        // A planned file without tensors has not been opened.
        while self.next_planned()? {}
        self.end_file()?;
        self.name_unplanned()?;
        let naming = self.target.naming();
        let is_indexed = naming.single().is_none() || self.files.len() > 1;
        let aliases = &self.options.aliases;
        let mut index = is_indexed.then(|| index::render(self.tensor_bytes, aliases, &self.files));
        if self.options.manifest {
            if let Some(index) = &index {
                let said = of_text(index);
                self.manifest.files.insert(INDEX_NAME.to_owned(), said);
            }
            let text = self.manifest.render();
            self.target.write_small(MANIFEST_NAME, &text)?;
        }
        if let Some(sealing) = &self.options.sealing {
            let seal = |text: Vec<u8>| sealing.small_file(INDEX_NAME, &text);
            index = index.map(seal).transpose()?;
            for (name, text) in sealing.complete()? {
                self.target.write_small(&name, &text)?;
            }
        }
        let replaced = self.target.commit(index.as_deref())?;
        Ok(WriteReport {
            location: self.location.clone(),
            id: self.target.naming().id.to_string(),
            files: self.files.iter().map(|(name, _)| name.clone()).collect(),
            tensors: self.tensors,
            tensor_bytes: self.tensor_bytes,
            file_bytes: self.file_bytes,
            replaced,
            direct: self.target.is_direct(),
        })
    }

    /// Gives files the names that they have now that their number is known.
    fn name_unplanned(&mut self) -> Result<()> {
        if self.planned.is_some() {
            return Ok(());
        }
        let count = self.files.len();
        for index in 0..count {
            let naming = self.target.naming();
            let single = naming.single().filter(|_| count == 1).map(str::to_owned);
            let wanted = single.unwrap_or_else(|| naming.shard(index, Some(count)));
            let name = std::mem::take(&mut self.files[index].0);
            self.files[index].0 = if name == wanted {
                name
            } else {
                self.target.rename(name, wanted)?
            };
        }
        Ok(())
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("location", &self.location)
            .field("options", &self.options)
            .field("files", &self.files.len())
            .finish_non_exhaustive()
    }
}
