//! Loads for Python that have not started: selection, destinations, and the start.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use pyo3::prelude::*;
use tload::{Canceller, Device, DeviceMap, LoadTargetRules};
use tload_pymemory::error::exception;
use tload_pymemory::load_targets::{Boxes, LoadTargets, into_boxes};

use crate::allocator::PythonAllocator;
use crate::checkpoint::{Checkpoint, Described, describe};
use crate::early::EarlyStart;
use crate::forked::Owned;
use crate::group::Group;
use crate::index::slice;
use crate::interrupt;
use crate::options::{self, selection};
use crate::raised::Raised;
use crate::sharding::Sharding;
use crate::stream::Stream;
use crate::tensor::Empties;

/// A load that has not started.
#[pyclass(frozen, module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct Loader {
    inner: Owned<tload::Loader>,
}

#[pymethods]
impl Loader {
    /// Loads the tensors that any name, glob or regular expression selects; without any, all
    /// tensors. `found` lists names that a rule of the caller selects.
    ///
    /// `slices` maps names to indices: only these elements are loaded. With `sharding`, the rank's
    /// share of the selected tensors is loaded; no tensor may be divided by both. `device_map`
    /// lists the keys of a [`DeviceMap`]. With `targets`, a mapping of names to torch tensors and
    /// numpy arrays, tensors are loaded into these, on their devices; with `boxes`, those of
    /// `names` into boxes of memory.
    #[new]
    #[pyo3(signature = (
        checkpoint, *, names, found, globs, regexes, device, options, device_map=Vec::new(),
        slices=Vec::new(), sharding=None, targets=None, strict=true, cast=false, boxes=None
    ))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keywords; Python gives each by its name"
    )]
    fn new(
        py: Python<'_>,
        checkpoint: &Bound<'_, Checkpoint>,
        names: Vec<String>,
        found: Vec<String>,
        globs: Vec<String>,
        regexes: Vec<String>,
        device: &str,
        options: &Bound<'_, PyAny>,
        device_map: Vec<(String, String)>,
        slices: Vec<(String, Bound<'_, PyAny>)>,
        sharding: Option<&Bound<'_, Sharding>>,
        targets: Option<&Bound<'_, PyAny>>,
        strict: bool,
        cast: bool,
        boxes: Option<Boxes<'_>>,
    ) -> PyResult<Self> {
        let failed = |error| exception(py, &error);
        let keys = device_map
            .into_iter()
            .map(|(key, device)| Ok((key, device.parse::<Device>()?)))
            .collect::<tload::Result<Vec<_>>>()
            .map_err(failed)?;
        let checkpoint = checkpoint.get().share();
        let slices = slices.into_iter().map(|(name, index)| {
            let info = checkpoint.get(&name);
            // The load reports a name that does not exist.
            let wanted = info.map(|info| slice(&index, info.shape())).transpose()?;
            Ok((name, wanted.unwrap_or_default()))
        });
        let mut slices = slices.collect::<PyResult<Vec<_>>>()?;
        let of_boxes = (boxes.as_ref()).map_or_else(Vec::new, |_| names.clone());
        let mut inner = tload::Loader::new(checkpoint)
            .select(selection(py, names, found, globs, regexes)?)
            .device(device.parse().map_err(failed)?)
            .device_map(DeviceMap::new(keys).map_err(failed)?)
            .options(options::read(options)?);
        if let Some(sharding) = sharding {
            let mine = sharding.get().apply(inner.checkpoint()).map_err(failed)?;
            inner = inner.within(mine.names).map_err(failed)?;
            slices.extend(mine.slices);
        }
        inner = inner.slices(slices);
        if let Some(targets) = targets {
            let targets = LoadTargets::read(targets)?;
            if strict {
                targets.check(py, None)?;
            } else if targets.has_invalid() {
                let selected = inner.selected().map_err(failed)?;
                let names: HashSet<&str> = selected.iter().map(tload::TensorInfo::name).collect();
                targets.check(py, Some(&names))?;
            }
            let rules = LoadTargetRules { strict, cast };
            let matched = py.detach(|| inner.into_targets(targets.valid, rules));
            inner = matched.map_err(failed)?;
        }
        if let Some(boxes) = boxes {
            inner = into_boxes(py, inner, &of_boxes, boxes)?;
        }
        Ok(Self {
            inner: Owned::new(inner),
        })
    }

    /// Returns the selected tensors, in file order.
    fn selected<'py>(&self, py: Python<'py>) -> PyResult<Vec<Described<'py>>> {
        let selected = self.tensors(py)?;
        selected.iter().map(|info| describe(py, info)).collect()
    }

    /// Returns the selected tensors that the caller has to copy to their targets: all that have
    /// bytes and that the load does not write to a target itself.
    fn copied<'py>(&self, py: Python<'py>) -> PyResult<Vec<Described<'py>>> {
        let selected = self.tensors(py)?;
        let is_copied = |info: &&tload::TensorInfo| {
            info.byte_len() > 0 && self.inner.target_of(info.name()).is_none()
        };
        let copied = selected.iter().filter(is_copied);
        copied.map(|info| describe(py, info)).collect()
    }

    /// Returns the caller's tensors and arrays that the load writes to itself.
    fn written(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let selected = self.tensors(py)?;
        let targets = selected
            .iter()
            .filter_map(|info| self.inner.target_of(info.name())?.owner());
        let owners = targets.filter_map(|owner| Arc::clone(owner).downcast::<Py<PyAny>>().ok());
        Ok(owners.map(|owner| owner.clone_ref(py)).collect())
    }

    /// Returns the dtypes of the selected tensors, sorted by name.
    fn dtypes(&self, py: Python<'_>) -> PyResult<Vec<&'static str>> {
        let selected = self.tensors(py)?;
        let names: BTreeSet<_> = selected.iter().map(|info| info.dtype().name()).collect();
        Ok(names.into_iter().collect())
    }

    /// Returns the devices of the selected tensors, each once.
    fn devices(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let devices: BTreeSet<String> = self
            .inner
            .selected_devices()
            .map_err(|error| exception(py, &error))?
            .iter()
            .map(Device::to_string)
            .collect();
        Ok(devices.into_iter().collect())
    }

    /// Starts to read, together with the other ranks of `group`, if there is one. GPU memory comes
    /// from `allocator`, if there is one: it is called on the calling thread, here and in
    /// `Stream.receive`. `early` has prepared the load. If the caller `keeps_all` tensors, GPU
    /// memory has larger regions.
    #[pyo3(signature = (allocator=None, group=None, early=None, *, keeps_all=false))]
    fn stream(
        &self,
        py: Python<'_>,
        allocator: Option<Py<PyAny>>,
        group: Option<&Bound<'_, Group>>,
        early: Option<&Bound<'_, EarlyStart>>,
        keeps_all: bool,
    ) -> PyResult<Stream> {
        let canceller = Canceller::default();
        let mut loader = self.inner.clone().cancelled_by(canceller.clone());
        if let Some(early) = early {
            loader = loader.prepared_by(early.get().inner.clone());
        }
        if keeps_all {
            loader = loader.keeping_all();
        }
        let empties = Empties::for_loader(&loader).map_err(|error| exception(py, &error))?;
        let raised = Raised::default();
        let join = |group: &Bound<'_, Group>| group.get().join(py, &raised);
        let joining = group.map(join).transpose()?;
        if let Some(joining) = &joining {
            loader = loader.group(Arc::clone(&joining.group));
        }
        let exceptions = raised.clone();
        let start = move |caller| {
            Ok(match allocator {
                None => loader.stream(),
                Some(allocator) => {
                    let allocator = PythonAllocator::new(allocator, exceptions, caller);
                    loader.stream_with(Box::new(allocator))
                }
            })
        };
        let started = match &joining {
            Some(joining) => joining.run(py, start),
            None => interrupt::run_calling(py, start),
        };
        // After Ctrl-C, the thread still starts the load: it must not write to the caller's memory.
        let started = started
            .inspect_err(|_| py.detach(|| canceller.cancel()))?
            .map_err(|error| raised.exception(py, &error))?;
        let stream = Stream::new(started, empties, raised.clone());
        raised.check(py)?;
        Ok(stream)
    }
}

impl Loader {
    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<tload::TensorInfo>> {
        let selected = self.inner.selected();
        selected.map_err(|error| exception(py, &error))
    }
}
