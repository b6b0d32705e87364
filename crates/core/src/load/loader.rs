//! Request for a load: which tensors of a checkpoint, to which devices, within which limits.
//!
//! Only collects: `request.rs` resolves the request against the checkpoint.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::checkpoint::{BoxError, Checkpoint};
use super::destinations::DeviceRules;
use super::device_map::DeviceMap;
use super::early::EarlyStart;
use super::stream::Canceller;
use super::watch::Watcher;
use crate::checkpoint::OpenOptions;
use crate::error::Result;
use crate::memory::{RegionCache, Target};
use crate::options::{Device, LoadOptions, Location};
use crate::plan::{Selection, Slice};
use crate::ranks::Group;
use crate::tensor::TensorInfo;
use crate::verify::Expectation;

/// Configuration of a load: which tensors of a checkpoint, to which devices, within which limits.
///
/// Between two loads, a loader keeps the memory of tensors that the caller has dropped, up to the
/// budget, so that the next load need not touch fresh memory. Dropping the loader and its clones
/// frees it.
///
/// # Examples
///
/// ```
/// # let model = tload_testing::ExampleModel::new(); let path = model.path();
///
/// use tload::{Checkpoint, Selection};
///
/// let loader = Checkpoint::open(path)?.load().select(Selection::glob("*.weight")?);
/// for tensor in loader.stream()? {
///     let tensor = tensor?;
///     println!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
/// }
/// // Loads again, into the same memory, as far as the first tensors have been dropped.
/// assert_eq!(loader.stream()?.count(), 2);
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Loader {
    pub(super) checkpoint: Checkpoint,
    pub(super) selection: Selection,
    pub(super) devices: DeviceRules,
    pub(super) targets: Arc<HashMap<String, Target>>,
    pub(super) slices: Arc<HashMap<String, Slice>>,
    pub(crate) options: LoadOptions,
    /// Expectations by shard, which replace those that would be discovered.
    pub(super) expectations: Option<Arc<[Expectation]>>,
    /// True if the caller selected tensors by name alone.
    pub(super) by_name: bool,
    /// True for a load of one tensor, which cannot mix shards: even if the index changes, the
    /// tensor is consistent.
    pub(super) is_one_tensor: bool,
    /// The caller keeps all tensors.
    pub(super) keeps_all: bool,
    pub(super) region_cache: RegionCache,
    pub(super) group: Option<Arc<dyn Group>>,
    pub(super) canceller: Canceller,
    pub(super) early: Option<EarlyStart>,
    pub(super) watcher: Option<Arc<dyn Watcher>>,
}

impl Loader {
    /// Opens the checkpoint at `location`: short for [`Checkpoint::open`] and [`Checkpoint::load`].
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`].
    pub fn open(location: impl TryInto<Location, Error: Into<BoxError>>) -> Result<Self> {
        Checkpoint::open(location).map(Self::new)
    }

    /// Opens the checkpoint at `location` with [`OpenOptions`], or
    /// [`StoreOptions`](crate::StoreOptions) alone.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open_with`].
    pub fn open_with(
        location: impl TryInto<Location, Error: Into<BoxError>>,
        options: impl Into<OpenOptions>,
    ) -> Result<Self> {
        Checkpoint::open_with(location, options).map(Self::new)
    }

    /// Creates a loader for an open checkpoint: all tensors, into host memory, with default
    /// options. The same as [`Checkpoint::load`].
    pub fn new(checkpoint: Checkpoint) -> Self {
        Self {
            checkpoint,
            selection: Selection::all(),
            devices: DeviceRules::default(),
            targets: Arc::default(),
            slices: Arc::default(),
            options: LoadOptions::default(),
            expectations: None,
            by_name: false,
            is_one_tensor: false,
            keeps_all: false,
            region_cache: RegionCache::default(),
            group: None,
            canceller: Canceller::default(),
            early: None,
            watcher: None,
        }
    }

    /// Returns the checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Sets the tensors to load. Default: all.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use tload::{Checkpoint, ErrorKind, Selection};
    ///
    /// let checkpoint = Checkpoint::open(path)?;
    /// let loader = checkpoint.load().select(Selection::names(["layer.0.bias"]));
    /// assert_eq!(loader.selected()?[0].shape(), [4]);
    /// let error = checkpoint.load().select(Selection::names(["bais"])).selected().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NoSuchTensor);
    /// # Ok::<(), tload::Error>(())
    /// ```
    #[must_use]
    pub fn select(mut self, selection: Selection) -> Self {
        self.by_name = selection.is_by_name();
        self.selection = selection;
        self
    }

    /// Restricts the selection to tensors with these names, such as a rank's share of a model.
    /// Other names are ignored. A later call of [`Self::select`] replaces the restriction.
    ///
    /// Unlike [`Selection::names`], this is not the caller's own choice of tensors: verification
    /// requires every file that a manifest lists unless it was not required before.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::NoSuchTensor`] for a rule of the selection that selects nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// let checkpoint = tload::Checkpoint::open(path)?;
    /// let loader = checkpoint.load().within(["layer.0.bias", "of.another.model"])?;
    /// assert_eq!(loader.selected()?.len(), 1);
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn within<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Result<Self> {
        let names: Vec<N> = names.into_iter().collect();
        let names: HashSet<&str> = names.iter().map(AsRef::as_ref).collect();
        let selected = self.selected()?;
        let selected = selected.iter().map(TensorInfo::name);
        let within = Selection::names(selected.filter(|name| names.contains(name)));
        Ok(self.narrowed(within))
    }

    /// Replaces the selection by a part of it.
    pub(super) fn narrowed(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    /// Marks the load as one of a single tensor.
    #[must_use]
    pub(crate) fn of_one_tensor(mut self) -> Self {
        self.is_one_tensor = true;
        self
    }

    /// Declares that the caller keeps all tensors, so that GPU memory may be allocated in larger
    /// regions.
    #[doc(hidden)]
    #[must_use]
    pub fn keeping_all(mut self) -> Self {
        self.keeps_all = true;
        self
    }

    /// Sets the device of all tensors.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.devices.otherwise = device;
        self
    }

    /// Sets devices by name; [`Self::device`] is the default for tensors that no key matches.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use tload::{Checkpoint, Device, DeviceMap};
    ///
    /// let map = DeviceMap::new([("layer.0", Device::Cuda(0))])?;
    /// let loader = Checkpoint::open(path)?.load().device_map(map);
    /// // In the order of the file: the weights and the bias of the layer, and the embedding.
    /// let devices = loader.selected_devices()?;
    /// assert_eq!(devices.iter().filter(|it| **it == Device::Cuda(0)).count(), 2);
    /// # Ok::<(), tload::Error>(())
    /// ```
    #[must_use]
    pub fn device_map(mut self, map: DeviceMap) -> Self {
        self.devices.map = map;
        self
    }

    /// Sets caller memory for tensors, by name. The bytes are copied there from staging memory, and
    /// the tensors that the stream yields only report completion. Tensors without a target get
    /// memory that the load allocates.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use std::ptr::NonNull;
    /// use tload::{Checkpoint, Selection, Target};
    ///
    /// let mut bias = vec![0_u8; 16];
    /// let start = NonNull::new(bias.as_mut_ptr()).expect("not null");
    /// // SAFETY: `bias` outlives the load and is not used before its end.
    /// let target = unsafe { Target::host(start, bias.len(), None) };
    /// let loader = Checkpoint::open(path)?
    ///     .load()
    ///     .select(Selection::names(["layer.0.bias"]))
    ///     .targets([("layer.0.bias".to_owned(), target)]);
    /// for tensor in loader.stream()? {
    ///     assert!(tensor?.target().is_some());
    /// }
    /// assert_eq!(bias[4..8], 1_f32.to_le_bytes());
    /// # Ok::<(), tload::Error>(())
    /// ```
    #[must_use]
    pub fn targets(mut self, targets: impl IntoIterator<Item = (String, Target)>) -> Self {
        self.targets = Arc::new(targets.into_iter().collect());
        self
    }

    /// Sets slices of tensors, by name. Only the slice is read, and it is yielded as a tensor with
    /// the slice's shape. Gaps that are cheaper to read than to skip are read and discarded;
    /// compare [`crate::Report::read_bytes`] with [`crate::Report::tensor_bytes`] for the amount.
    /// A slice does not select its tensor.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use tload::{Checkpoint, Indices, Selection, Slice};
    ///
    /// let last_column = Slice::new([Indices::from(0..4), Indices::at(3)]);
    /// let mut stream = Checkpoint::open(path)?
    ///     .load()
    ///     .select(Selection::names(["layer.0.weight"]))
    ///     .slices([("layer.0.weight".to_owned(), last_column)])
    ///     .stream()?;
    /// let column = stream.next().expect("one tensor")?;
    /// assert_eq!(column.shape(), [4]);
    /// assert_eq!(column.bytes()[..4], 3_f32.to_le_bytes());
    /// # Ok::<(), tload::Error>(())
    /// ```
    #[must_use]
    pub fn slices(mut self, slices: impl IntoIterator<Item = (String, Slice)>) -> Self {
        self.slices = Arc::new(slices.into_iter().collect());
        self
    }

    /// Sets the limits and preferences of the load.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use tload::{Checkpoint, LoadOptions, Order};
    ///
    /// let options = LoadOptions::new().order(Order::File).memory_limit(1 << 30);
    /// let stream = Checkpoint::open(path)?.load().options(options).stream()?;
    /// let mut offsets = Vec::new();
    /// for tensor in stream {
    ///     offsets.push(tensor?.info().file_range().start);
    /// }
    /// assert!(offsets.is_sorted());
    /// # Ok::<(), tload::Error>(())
    /// ```
    #[must_use]
    pub fn options(mut self, options: LoadOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the group that loads together. Every rank of the group must start a load of the same
    /// files; selections, slices and destinations may differ.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tload::{Checkpoint, LocalGroup};
    ///
    /// // Each of 8 processes of this machine, with its own rank.
    /// let (rank, timeout) = (3, Duration::from_secs(30));
    /// let group = LocalGroup::join("/run/model.sock".as_ref(), rank, 8, timeout)?;
    /// let stream = Checkpoint::open("model_dir")?.load().group(Arc::new(group)).stream()?;
    /// # Ok::<(), tload::Error>(())
    /// ```
    #[must_use]
    pub fn group(mut self, group: Arc<dyn Group>) -> Self {
        self.group = Some(group);
        self
    }

    /// Sets the handle that cancels one load from another thread, also before [`Self::stream`]
    /// returns it. Set a new handle for each load: of several, it cancels the last, and it refuses
    /// every load that begins after [`Canceller::cancel`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use tload::{Canceller, Checkpoint, ErrorKind};
    ///
    /// let canceller = Canceller::default();
    /// let loader = Checkpoint::open(path)?.load().cancelled_by(canceller.clone());
    /// // On any thread.
    /// canceller.cancel();
    /// assert_eq!(loader.stream().unwrap_err().kind(), ErrorKind::Cancelled);
    /// # Ok::<(), tload::Error>(())
    /// ```
    #[must_use]
    pub fn cancelled_by(mut self, canceller: Canceller) -> Self {
        self.canceller = canceller;
        self
    }

    /// Sets what has been prepared for this load since before its checkpoint was opened.
    #[doc(hidden)]
    #[must_use]
    pub fn prepared_by(mut self, early: EarlyStart) -> Self {
        self.early = Some(early);
        self
    }

    /// Sets the watcher of the loads, which sees their jobs and completions. In a group, it does
    /// not see the reads of the leader for other ranks.
    #[doc(hidden)]
    #[must_use]
    pub fn watched_by(mut self, watcher: Arc<dyn Watcher>) -> Self {
        self.watcher = Some(watcher);
        self
    }

    /// Sets the expectations of the files, one for each of [`Checkpoint::shards`]. They replace
    /// those that [`LoadOptions::verify`] would discover and are enforced as strictly as it says;
    /// with [`crate::Verify::Off`] they are ignored. In a group, the rank that reads for the others
    /// compares with its own: pass equal expectations to all ranks.
    #[must_use]
    pub fn expectations(mut self, expectations: impl IntoIterator<Item = Expectation>) -> Self {
        self.expectations = Some(expectations.into_iter().collect());
        self
    }
}
