//! Writers of checkpoints for Python. `python/tload/_files/save.py` is their public interface.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tload::write::{self, TensorSpec, WriteOptions};
use tload::{Dtype, Error};
use tload_pymemory::bytes::with_bytes;
use tload_pymemory::error::{exception, invalid_request};

use crate::checkpoint::LocationArgument;
use crate::forked::Owned;
use crate::interrupt::{self, attend};
use crate::key::SealingArgument;
use crate::store::StoreArgument;

/// Writes a checkpoint, tensor by tensor.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Writer {
    /// `None` once it has ended.
    inner: Owned<Mutex<Option<write::Writer>>>,
}

impl Writer {
    fn lock(&self) -> MutexGuard<'_, Option<write::Writer>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the writer, which no forked child may use.
    fn with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut write::Writer) -> PyResult<tload::Result<T>>,
    ) -> PyResult<T> {
        attend(py)?;
        let mut inner = self.lock();
        match inner.as_mut().filter(|_| !self.inner.is_inherited()) {
            Some(writer) => work(writer)?.map_err(|error| exception(py, &error)),
            None => Err(invalid_request(py, "this writer has ended".to_owned())),
        }
    }
}

/// Name, dtype and shape of a tensor.
type Described = (String, String, Vec<u64>);

fn spec((name, dtype, shape): Described) -> tload::Result<TensorSpec> {
    let dtype = Dtype::from_name(&dtype).ok_or_else(|| {
        let message = format!("safetensors files have no dtype {dtype:?}");
        Error::unsupported(message).with_tensor(&*name)
    })?;
    TensorSpec::new(name, dtype, shape)
}

#[pymethods]
impl Writer {
    /// Begins a checkpoint of these tensors; `None` if they are not known yet.
    #[new]
    #[pyo3(signature = (location, tensors, *, max_shard_size, metadata, aliases, replace, manifest, plain_names, fragment, sealing, store))]
    #[expect(
        clippy::fn_params_excessive_bools,
        clippy::too_many_arguments,
        reason = "keywords; Python gives each by its name"
    )]
    fn new(
        py: Python<'_>,
        location: LocationArgument,
        tensors: Option<Vec<Described>>,
        max_shard_size: u64,
        metadata: BTreeMap<String, String>,
        aliases: BTreeMap<String, String>,
        replace: bool,
        manifest: bool,
        plain_names: bool,
        fragment: bool,
        sealing: Option<SealingArgument>,
        store: StoreArgument,
    ) -> PyResult<Self> {
        let options = WriteOptions::new()
            .max_shard_bytes(max_shard_size)
            .metadata(metadata)
            .aliases(aliases)
            .replace(replace)
            .manifest(manifest)
            .plain_names(plain_names)
            .fragment(fragment);
        let inner = interrupt::run(py, move || {
            let mut options = options.store(store.read()?);
            if let Some(sealing) = sealing {
                options = options.sealing(sealing.read()?);
            }
            let location = location.parse()?;
            let specs: Option<Vec<_>> = tensors
                .map(|tensors| tensors.into_iter().map(spec).collect::<Result<_, _>>())
                .transpose()?;
            match specs {
                Some(specs) => write::Writer::planned(&location, specs, options),
                None => write::Writer::create(&location, options),
            }
        })?;
        Ok(Self {
            inner: Owned::new(Mutex::new(Some(inner))),
        })
    }

    /// Returns the names in the order in which the tensors have to come.
    fn order(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |writer| {
            Ok(Ok(writer.order().map(str::to_owned).collect()))
        })
    }

    /// Begins a tensor.
    fn begin(&self, py: Python<'_>, name: String, dtype: String, shape: Vec<u64>) -> PyResult<()> {
        self.with(py, |writer| {
            Ok(spec((name, dtype, shape)).and_then(|spec| writer.begin(spec)))
        })
    }

    /// Writes the next bytes of the tensor.
    fn write(&self, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.with(buffer.py(), |writer| {
            with_bytes(buffer, |bytes| writer.write(bytes))
        })
    }

    /// Completes the checkpoint. Returns the report as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |_| Ok(Ok(())))?;
        let writer = self.lock().take().expect("looked at above");
        // Not on a thread that could outlive the call: afterwards it is known which checkpoint is
        // there.
        let report = py.detach(|| writer.finish());
        let report = report.map_err(|error| exception(py, &error))?;
        Ok(serde_json::to_string(&report).unwrap_or_default())
    }

    /// Leaves the destination as it is. A forked child leaves the files to its parent.
    fn abort(&self, py: Python<'_>) {
        if !self.inner.is_inherited() {
            let writer = self.lock().take();
            py.detach(|| drop(writer));
        }
    }
}

/// Removes what writes have left. Returns locations, and whether each was removed.
#[pyfunction]
#[pyo3(signature = (location, *, store))]
pub(crate) fn remove_incomplete(
    py: Python<'_>,
    location: LocationArgument,
    store: StoreArgument,
) -> PyResult<Vec<(String, bool)>> {
    let remove = move || write::remove_incomplete(&location.parse()?, &store.read()?);
    let rows = interrupt::run(py, remove)?.into_iter();
    Ok(rows.map(|it| (it.location, it.removed)).collect())
}

/// Makes the files of several writers a checkpoint in a store, by a list of them.
#[pyfunction]
#[pyo3(signature = (location, list, *, store))]
pub(crate) fn publish_fragments(
    py: Python<'_>,
    location: LocationArgument,
    list: Vec<u8>,
    store: StoreArgument,
) -> PyResult<()> {
    let publish = move || tload::copy::publish_fragments(&location.parse()?, &list, &store.read()?);
    interrupt::run(py, publish)
}
