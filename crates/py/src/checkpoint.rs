//! Open checkpoints for Python: their headers, as plain values.
//!
//! `python/tload/_checkpoint/` makes a mapping of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use tload::verify::require_files;
use tload::{Canceller, Location, OpenOptions, Precedence, Slice, TensorInfo};
use tload_pymemory::error::exception;
pub(crate) use tload_pymemory::location::LocationArgument;

use crate::forked::Owned;
use crate::group::{Group, duration};
use crate::index::slice;
use crate::interrupt;
use crate::key::KeyArgument;
use crate::options;
use crate::raised::Raised;
use crate::store::StoreArgument;
use crate::tensor::{Empties, Tensor};

/// Description of a tensor: name, dtype, shape, bytes, index of its shard, range in that file.
pub(crate) type Described<'py> = (
    Bound<'py, PyString>,
    &'static str,
    Bound<'py, PyTuple>,
    u64,
    usize,
    (u64, u64),
);

/// Description of a shard: location, bytes of the file and of its header, number of tensors, its
/// `__metadata__`.
type ShardDescribed = (String, u64, u64, usize, BTreeMap<String, String>);

/// The headers of a checkpoint.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Checkpoint {
    inner: Owned<tload::Checkpoint>,
}

impl Checkpoint {
    fn new(inner: tload::Checkpoint) -> Self {
        let inner = Owned::new(inner);
        Self { inner }
    }

    /// Returns the checkpoint to load from. `_sources/opened.py` opens one that
    /// [`Self::is_cut_off`] again first.
    pub(crate) fn share(&self) -> tload::Checkpoint {
        self.inner.clone()
    }
}

#[pymethods]
impl Checkpoint {
    /// Opens one location: a file, a directory, or an index file; together with the other ranks of
    /// `group`, if there is one, which begin within the `join_timeout` of a load. In a directory,
    /// an index comes before `model.safetensors` unless `single_file_first`.
    #[staticmethod]
    #[pyo3(signature = (location, *, store, follow_symlinks, key=None, single_file_first=false, group=None, join_timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn open(
        py: Python<'_>,
        location: LocationArgument,
        store: StoreArgument,
        follow_symlinks: bool,
        key: Option<KeyArgument>,
        single_file_first: bool,
        group: Option<&Bound<'_, Group>>,
        join_timeout: Option<f64>,
    ) -> PyResult<Self> {
        let open = move |mut options: OpenOptions| {
            options.store = store.read()?;
            options.follow_symlinks = follow_symlinks;
            options.key = key.map(KeyArgument::read).transpose()?;
            if single_file_first {
                options.precedence = Precedence::SingleFile;
            }
            tload::Checkpoint::open_with(&location.parse()?, options)
        };
        run_as_rank(py, group, join_timeout, open)
    }

    /// Opens a list of files as one checkpoint; `group` and `join_timeout` as for [`Self::open`].
    #[staticmethod]
    #[pyo3(signature = (locations, *, store, key=None, group=None, join_timeout=None))]
    fn open_all(
        py: Python<'_>,
        locations: Vec<LocationArgument>,
        store: StoreArgument,
        key: Option<KeyArgument>,
        group: Option<&Bound<'_, Group>>,
        join_timeout: Option<f64>,
    ) -> PyResult<Self> {
        let open = move |mut options: OpenOptions| {
            options.store = store.read()?;
            options.key = key.map(KeyArgument::read).transpose()?;
            let locations = locations.into_iter().map(LocationArgument::parse);
            let locations: Vec<Location> = locations.collect::<Result<_, _>>()?;
            tload::Checkpoint::open_all_with(&locations, options)
        };
        run_as_rank(py, group, join_timeout, open)
    }

    /// Location that was opened, as the caller wrote it.
    #[getter]
    fn location(&self) -> String {
        self.inner.location().to_string()
    }

    /// All tensors, by shard, then by offset in the shard.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Described<'py>>> {
        let tensors = self.inner.tensors().iter();
        tensors.map(|info| describe(py, info)).collect()
    }

    /// All shards.
    fn shards(&self) -> Vec<ShardDescribed> {
        self.inner
            .shards()
            .iter()
            .map(|shard| {
                (
                    shard.location().to_string(),
                    shard.file_bytes(),
                    shard.header_bytes(),
                    shard.tensor_count(),
                    shard.metadata().clone(),
                )
            })
            .collect()
    }

    /// Merged `__metadata__` of all shards; for a key in several shards, the first shard's value.
    fn metadata(&self) -> BTreeMap<String, String> {
        self.inner.metadata().clone()
    }

    /// Returns whether this process is a fork that inherited it without the threads that send its
    /// requests to object stores. Headers and files can be read after a fork.
    fn is_cut_off(&self) -> bool {
        let mut shards = self.inner.shards().iter();
        self.inner.is_inherited() && shards.any(|shard| shard.location().protocol().is_some())
    }

    /// Returns the state of the index and of each shard, as text.
    fn state(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.inner.state())
    }

    /// Fails if the files are in another state.
    fn require_state(&self, py: Python<'_>, expected: Vec<String>) -> PyResult<()> {
        py.detach(move || self.inner.require_state(&expected))
            .map_err(|error| exception(py, &error))
    }

    /// Returns the locations that it was opened from, as another process can open them; none for a
    /// URL that contains a secret.
    fn locations_elsewhere(
        &self,
        py: Python<'_>,
        locations: Vec<LocationArgument>,
    ) -> PyResult<Vec<Option<OsString>>> {
        let locations = locations.into_iter().map(LocationArgument::parse);
        let elsewhere = locations
            .collect::<tload::Result<Vec<_>>>()
            .and_then(|locations| self.inner.locations_elsewhere(&locations))
            .map_err(|error| exception(py, &error))?;
        let text = |location: &Location| match location.as_path() {
            Some(path) => Some(path.as_os_str().to_owned()),
            None => location.url().map(OsString::from),
        };
        Ok(elsewhere.iter().map(text).collect())
    }

    /// Reads one tensor, or the slice of it that `index` selects, into host memory, synchronously.
    fn read(
        &self,
        py: Python<'_>,
        name: String,
        index: &Bound<'_, PyAny>,
        options: &Bound<'_, PyAny>,
    ) -> PyResult<Tensor> {
        let checkpoint = self.share();
        let info = checkpoint.get(&name);
        let slice = info.map_or_else(|| Ok(Slice::default()), |info| slice(index, info.shape()))?;
        let options = options::read(options)?;
        // Reads that may take long run on a thread, so that they can be interrupted.
        let at_once = checkpoint.reads_at_once(&name, &slice);
        let canceller = Canceller::default();
        let cancelled_by = canceller.clone();
        let read = move || checkpoint.read_cancellable(&name, &slice, &options, cancelled_by);
        let tensor = if at_once {
            py.detach(read).map_err(|error| exception(py, &error))?
        } else {
            // After Ctrl-C, the thread would read the whole tensor.
            interrupt::run(py, read).inspect_err(|_| py.detach(|| canceller.cancel()))?
        };
        Ok(Tensor::new(tensor, &Empties::default()))
    }

    /// Requires that the checkpoint has the files that a manifest lists, if the options name one to
    /// verify with.
    fn require_files(&self, py: Python<'_>, options: &Bound<'_, PyAny>) -> PyResult<()> {
        let checkpoint = self.share();
        let verify = options::read(options)?.verify;
        interrupt::run(py, move || require_files(&checkpoint, &verify))
    }

    /// True if files are sealed, so that nothing may map them.
    #[getter]
    fn is_sealed(&self) -> bool {
        self.inner.is_sealed()
    }

    /// Total size of all tensors, bytes.
    #[getter]
    fn total_bytes(&self) -> u64 {
        self.inner.total_bytes()
    }
}

/// Calls `open` with options that name the group, if there is one.
fn run_as_rank(
    py: Python<'_>,
    group: Option<&Bound<'_, Group>>,
    join_timeout: Option<f64>,
    open: impl FnOnce(OpenOptions) -> tload::Result<tload::Checkpoint> + Send + 'static,
) -> PyResult<Checkpoint> {
    let mut options = OpenOptions::default();
    let Some(group) = group else {
        return interrupt::run(py, move || open(options)).map(Checkpoint::new);
    };
    let raised = Raised::default();
    let joining = group.get().join(py, &raised)?;
    options.group = Some(Arc::clone(&joining.group));
    options.join_timeout = join_timeout.map(duration).transpose()?;
    let opened = joining
        .run(py, move |_| Ok(open(options)))?
        .map_err(|error| raised.exception(py, &error))?;
    raised.check(py)?;
    Ok(Checkpoint::new(opened))
}

pub(crate) fn describe<'py>(py: Python<'py>, info: &TensorInfo) -> PyResult<Described<'py>> {
    let range = info.file_range();
    Ok((
        PyString::new(py, info.name()),
        info.dtype().name(),
        PyTuple::new(py, info.shape())?,
        info.byte_len(),
        info.shard(),
        (range.start, range.end),
    ))
}
