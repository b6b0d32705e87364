//! The checkpoint of the crate's interface: opens a model with everything that the crate can read
//! from, and is the start of its loads.
//!
//! `tload-checkpoint` decides what is opened, and how.

use super::Loader;
use super::on_thread::run_on_thread;
use crate::checkpoint::{OpenOptions, OpenedCheckpoint, Shard};
use crate::error::{Error, Result};
use crate::format::TensorInfo;
use crate::options::Location;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::ops::Deref;

/// Headers of one model, read and checked. Cheap to clone; the files stay open while a clone lives.
///
/// # Examples
///
/// ```
/// # let model = tload_testing::ExampleModel::new(); let path = model.path();
/// let checkpoint = tload::Checkpoint::open(path)?;
/// for tensor in checkpoint.tensors() {
///     println!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
/// }
/// let embed = checkpoint.get("embed.weight").expect("the example has it");
/// assert_eq!(embed.shape(), [8, 4]);
/// for tensor in checkpoint.load().stream()? {
///     assert_eq!(tensor?.bytes().len() % 2, 0);
/// }
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoint(pub(crate) OpenedCheckpoint);

/// Opens models.
impl Checkpoint {
    /// Opens a file, a directory or an index file, on a file system or in an object store.
    ///
    /// A directory (or the prefix of objects that stands for one) is read by its
    /// `model.safetensors.index.json`, or else by its only `*.safetensors.index.json`. An index
    /// decides which shards are opened and which of their tensors exist, also beside a
    /// `model.safetensors`, unless [`OpenOptions::precedence`] says otherwise. Without an index,
    /// its `*.safetensors` are read in natural order: `model.safetensors` alone if it exists, else
    /// the shards `model-*-of-*`, else those of `diffusion_pytorch_model`, else all files but
    /// `consolidated*` and `adapter_model*`, else `consolidated*`, else `adapter_model*`. Over
    /// HTTP, which has no listing, a directory is read by its `model.safetensors.index.json` or
    /// else its `model.safetensors`. [`Self::notes`] names files that were left out.
    ///
    /// A model on a hub (`hf://org/name`) is read from the cache of `huggingface_hub`, if its
    /// weights are complete there: then no request goes to the hub, not even to check whether a
    /// branch has moved on. Else the revision is resolved to a commit, and only that commit is read
    /// from the hub.
    ///
    /// Files of a directory, and those that an index names, must resolve to paths inside the
    /// directory: see [`OpenOptions::follow_symlinks`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] and [`ErrorKind::PermissionDenied`] for locations (the latter also
    /// for links that lead out of the directory), [`ErrorKind::InvalidFormat`] for headers, indexes
    /// and shards that do not fit together, [`ErrorKind::Remote`] and [`ErrorKind::TimedOut`] for
    /// stores that do not respond, and errors of parsing the location.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    /// use tload::{Checkpoint, ErrorKind};
    ///
    /// // A path, or text: a path or a URL such as `s3://bucket/model`.
    /// let checkpoint = Checkpoint::open(path)?;
    /// assert_eq!(checkpoint.tensors().len(), 3);
    /// let error = Checkpoint::open("no/such/model").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// # Ok::<(), tload::Error>(())
    /// ```
    ///
    /// [`ErrorKind::NotFound`]: crate::ErrorKind::NotFound
    /// [`ErrorKind::PermissionDenied`]: crate::ErrorKind::PermissionDenied
    /// [`ErrorKind::InvalidFormat`]: crate::ErrorKind::InvalidFormat
    /// [`ErrorKind::Remote`]: crate::ErrorKind::Remote
    /// [`ErrorKind::TimedOut`]: crate::ErrorKind::TimedOut
    pub fn open(location: impl TryInto<Location, Error: Into<BoxError>>) -> Result<Self> {
        Self::open_with(location, OpenOptions::default())
    }

    /// Like [`Self::open`], with [`OpenOptions`], or with [`StoreOptions`](crate::StoreOptions)
    /// alone.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tload::{Checkpoint, StoreOptions};
    ///
    /// let store = StoreOptions::new()
    ///     .with("endpoint", "http://localhost:9000")?
    ///     .with("region", "us-east-1")?;
    /// let checkpoint = Checkpoint::open_with("s3://bucket/model", store)?;
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn open_with(
        location: impl TryInto<Location, Error: Into<BoxError>>,
        options: impl Into<OpenOptions>,
    ) -> Result<Self> {
        OpenedCheckpoint::open_with(&located(location)?, options).map(Self)
    }

    /// Like [`Self::open_with`], without blocking the calling thread: the opening runs on a thread
    /// of its own, which begins when the future is polled first. Needs no runtime. If the future is
    /// dropped, the opening ends by itself, and its result is dropped.
    ///
    /// The stream of a load is asynchronous already: see [`TensorStream`](crate::TensorStream).
    ///
    /// # Errors
    ///
    /// As [`Self::open`]; [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if no thread
    /// can be started.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// use tload::{Checkpoint, OpenOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tload::Result<()> {
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    /// let checkpoint = Checkpoint::open_async(path, OpenOptions::default()).await?;
    /// let mut stream = checkpoint.load().stream()?;
    /// // The stream is an iterator as well, which would block.
    /// while let Some(tensor) = StreamExt::next(&mut stream).await {
    ///     println!("{}", tensor?.name());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open_async(
        location: impl TryInto<Location, Error: Into<BoxError>>,
        options: impl Into<OpenOptions>,
    ) -> Result<Self> {
        let (location, options) = (located(location)?, options.into());
        let open = move || OpenedCheckpoint::open_with(&location, options).map(Self);
        run_on_thread("tload-open", open).await
    }

    /// Opens a list of files as one checkpoint, in this order. Some may be on file systems and some
    /// in object stores. Of a tensor that two of them hold, the copy counts that the index of their
    /// directory names, if there is one.
    ///
    /// # Errors
    ///
    /// As [`Self::open`]; [`ErrorKind::InvalidRequest`](crate::ErrorKind::InvalidRequest) for an
    /// empty list.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    /// let file = path.join("model.safetensors");
    /// let checkpoint = tload::Checkpoint::open_all([&file])?;
    /// assert_eq!(checkpoint.shards().len(), 1);
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn open_all<L>(locations: impl IntoIterator<Item = L>) -> Result<Self>
    where
        L: TryInto<Location, Error: Into<BoxError>>,
    {
        Self::open_all_with(locations, OpenOptions::default())
    }

    /// Like [`Self::open_all`], with [`OpenOptions`], or with [`StoreOptions`](crate::StoreOptions)
    /// alone. Listed files may be symbolic links.
    ///
    /// # Errors
    ///
    /// As [`Self::open_all`].
    pub fn open_all_with<L>(
        locations: impl IntoIterator<Item = L>,
        options: impl Into<OpenOptions>,
    ) -> Result<Self>
    where
        L: TryInto<Location, Error: Into<BoxError>>,
    {
        let locations = locations
            .into_iter()
            .map(located)
            .collect::<Result<Vec<_>>>();
        OpenedCheckpoint::open_all_with(&locations?, options).map(Self)
    }
}

/// Tensors and files, as the headers describe them.
impl Checkpoint {
    /// Returns the location that it was opened from.
    pub fn location(&self) -> &Location {
        self.0.location()
    }

    /// Returns all tensors: by shard, then by offset in the shard.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.0.tensors()
    }

    /// Returns the tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.0.get(name)
    }

    /// Returns the shards, in the order in which tensors are numbered.
    pub fn shards(&self) -> &[Shard] {
        self.0.shards()
    }

    /// Returns the merged `__metadata__` of all shards; where two differ, the first shard's value.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    /// let checkpoint = tload::Checkpoint::open(path)?;
    /// assert_eq!(checkpoint.metadata().get("format").map(String::as_str), Some("pt"));
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        self.0.metadata()
    }

    /// Returns the total size of all tensors, bytes.
    pub fn total_bytes(&self) -> u64 {
        self.0.total_bytes()
    }

    /// Returns whether files are encrypted: their bytes are not those of the tensors, and no memory
    /// can be a view of them.
    pub fn is_sealed(&self) -> bool {
        let mut shards = self.0.shards().iter();
        shards.any(|shard| shard.source().stored().is_some())
    }

    /// Returns notes on the choice of files in a directory: names of files that were left out,
    /// since they are of another model, or that may not belong together.
    pub fn notes(&self) -> &[String] {
        self.0.notes()
    }

    /// Returns a load of all tensors, into host memory, with default options: to be configured, and
    /// started by [`Loader::stream`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    /// use tload::{Checkpoint, LoadOptions, Selection};
    ///
    /// let checkpoint = Checkpoint::open(path)?;
    /// let stream = checkpoint
    ///     .load()
    ///     .select(Selection::glob("*.weight")?)
    ///     .options(LoadOptions::new().memory_limit(1 << 30))
    ///     .stream()?;
    /// assert_eq!(stream.tensors().len(), 2);
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn load(&self) -> Loader {
        Loader::new(self.clone())
    }
}

/// For the parts of tload that work on opened files.
#[doc(hidden)]
impl Deref for Checkpoint {
    type Target = OpenedCheckpoint;

    fn deref(&self) -> &OpenedCheckpoint {
        &self.0
    }
}

/// Error of any conversion to a location.
pub(super) type BoxError = Box<dyn StdError + Send + Sync>;

/// Converts to a location. Errors of parsing one are the crate's own.
fn located(location: impl TryInto<Location, Error: Into<BoxError>>) -> Result<Location> {
    location.try_into().map_err(|error| {
        let own = error.into().downcast::<Error>();
        own.map_or_else(
            |other| Error::invalid_request("is no location").with_source(other),
            |own| *own,
        )
    })
}
