//! Resolves the request of a loader against its checkpoint: tensors, devices and targets.

use super::Loader;
use super::conversions;
use super::destinations::Destinations;
use super::load_target::{self, LoadTarget, LoadTargetRules};
use crate::checkpoint;
use crate::error::{Error, Result};
use crate::memory::Target;
use crate::options::{CacheMode, Device};
use crate::plan::Selection;
use crate::tensor::TensorInfo;

impl Loader {
    /// Returns the tensors that the load will yield, in file order.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::NoSuchTensor`] for a name or pattern that selects nothing, and for a
    /// slice of a tensor that does not exist; [`crate::ErrorKind::InvalidRequest`] for a slice
    /// outside the tensor's shape.
    pub fn selected(&self) -> Result<Vec<TensorInfo>> {
        let (all, names) = (self.checkpoint.tensors(), self.names());
        let selected = self.selected_indices()?;
        if !self.slices.is_empty() {
            self.resolve(&Selection::names(self.slices.keys().cloned()), &names)?;
        }
        let mut tensors = Vec::with_capacity(selected.len());
        for index in selected {
            let info = &all[index];
            tensors.push(match self.slices.get(info.name()) {
                Some(slice) => info.sliced(slice).map_err(|error| self.located(error))?,
                None => info.clone(),
            });
        }
        Ok(tensors)
    }

    /// Returns the indices of the selected tensors in the checkpoint.
    pub(super) fn selected_indices(&self) -> Result<Vec<usize>> {
        self.resolve(&self.selection, &self.names())
    }

    /// Returns the device of each selected tensor; for a tensor with a target, that of the target.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::NoSuchTensor`] for a name or pattern that selects nothing.
    pub fn selected_devices(&self) -> Result<Vec<Device>> {
        let names = self.names();
        let selected = self.resolve(&self.selection, &names)?;
        let mut devices = self.devices_of(&names, &selected)?;
        for (device, index) in devices.iter_mut().zip(selected) {
            if let Some(target) = self.targets.get(names[index]) {
                *device = target.ordinal().map_or(Device::Cpu, Device::Cuda);
            }
        }
        Ok(devices)
    }

    /// Configures the load to fill existing tensors: each tensor goes into the load target of
    /// its name. Sets selection, devices and targets. A tensor whose load target has no memory is
    /// yielded in memory of the load on the load target's device, for the caller to copy.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::InvalidRequest`] that lists every mismatch; nothing has been written in
    /// that case.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use tload::{Checkpoint, Device, Dtype, LoadTarget, LoadTargetRules};
    ///
    /// let weight = LoadTarget {
    ///     name: "layer.0.weight".to_owned(),
    ///     dtype: Some(Dtype::F32),
    ///     shape: vec![4, 4],
    ///     device: Device::Cpu,
    ///     memory: None,
    ///     layout: None,
    /// };
    /// let rules = LoadTargetRules { strict: false, ..LoadTargetRules::default() };
    /// let loader = Checkpoint::open(path)?.load().into_targets(vec![weight], rules)?;
    /// assert_eq!(loader.selected()?.len(), 1);
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn into_targets(
        self,
        load_targets: Vec<LoadTarget>,
        rules: LoadTargetRules,
    ) -> Result<Self> {
        if self.options.dtype.is_some() {
            return Err(self.located(conversions::into_targets(&self.options)));
        }
        let selected = self.selected()?;
        let whole = |name: &str| self.checkpoint.get(name);
        let matched = load_target::matched(&selected, whole, load_targets, rules)
            .map_err(|error| self.located(error))?;
        let mut loader = self.narrowed(matched.selection).targets(matched.targets);
        loader.devices = matched.devices;
        Ok(loader)
    }

    /// Returns the caller's memory that the load writes the tensor to, if it does so directly.
    pub fn target_of(&self, name: &str) -> Option<&Target> {
        self.targets.get(name)
    }

    fn names(&self) -> Vec<&str> {
        let tensors = self.checkpoint.tensors().iter();
        tensors.map(TensorInfo::name).collect()
    }

    /// Returns the indices of the names that `selection` selects.
    fn resolve(&self, selection: &Selection, names: &[&str]) -> Result<Vec<usize>> {
        let resolved = selection.resolve(names);
        resolved.map_err(|error| self.located(error))
    }

    /// Returns the device of each selected tensor, without targets.
    fn devices_of(&self, names: &[&str], selected: &[usize]) -> Result<Vec<Device>> {
        let devices = self.devices.devices(names, selected);
        devices.map_err(|error| self.located(error))
    }

    fn located(&self, error: Error) -> Error {
        self.checkpoint.located(error)
    }

    /// Returns the tensors to load, and where they go.
    ///
    /// # Errors
    ///
    /// Those of the options, the selection and the devices.
    pub(super) fn requested(&self) -> Result<(Vec<TensorInfo>, Destinations)> {
        self.options.validate()?;
        let selected = self.selected()?;
        let destinations = self.destinations(&selected)?;
        Ok((selected, destinations))
    }

    /// Maps the selected tensors to destinations.
    pub(super) fn destinations(&self, tensors: &[TensorInfo]) -> Result<Destinations> {
        let names = self.names();
        let selected = self.resolve(&self.selection, &names)?;
        let devices = self.devices_of(&names, &selected)?;
        let destinations = Destinations::new(tensors, &devices, &self.targets)?;
        let destinations = destinations.kept(self.keeps_all);
        // Memory that ranks share, and views of files, are not for GPUs to read.
        let is_own = self.group.is_none() && self.options.cache != CacheMode::Map;
        if self.options.trial.unified && is_own {
            return Ok(destinations.in_place(tensors));
        }
        Ok(destinations)
    }

    /// Returns the checkpoint, if the load could mix shards of two states of it.
    pub(super) fn indexed(&self) -> Option<&checkpoint::OpenedCheckpoint> {
        (!self.is_one_tensor).then_some(&*self.checkpoint)
    }
}
