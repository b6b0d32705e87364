//! Destination of each tensor of a load, and the devices that this needs.
//!
//! Opens the devices; decides nothing about reads. Tensors of one destination share a budget and a
//! sink.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::device_map::DeviceMap;
use crate::cuda::{Context, MemoryKind};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Target;
use crate::options::Device;
use crate::plan::{Arrangement, Packing};
use crate::tensor::TensorInfo;

/// Kind of memory that tensors of a load go to.
#[derive(Clone, Debug)]
pub(crate) enum Destination {
    /// Host memory that the load allocates.
    Host,
    /// GPU memory from the load or from the caller's allocator.
    Cuda(Context),
    /// Host memory of the caller.
    HostTargets,
    /// GPU memory of the caller.
    CudaTargets(Context),
}

impl Destination {
    /// Returns the name of the device: `cpu`, `cuda:0`.
    pub(crate) fn device(&self) -> String {
        match self {
            Self::Host | Self::HostTargets => "cpu".to_owned(),
            Self::Cuda(context) | Self::CudaTargets(context) => {
                format!("cuda:{}", context.ordinal())
            }
        }
    }
}

/// Destinations of all tensors of a load.
#[derive(Debug)]
pub(crate) struct Destinations {
    list: Vec<Destination>,
    /// By tensor: an index into the list.
    of: Vec<usize>,
    /// By tensor.
    targets: Arc<[Option<Target>]>,
    /// Bytes pass through staging memory.
    staged: bool,
    /// Other processes map the memory.
    published: bool,
    /// Free bytes of each GPU, by destination, once they are known.
    free: Vec<Option<u64>>,
    /// The caller keeps all tensors.
    keeps_all: bool,
    /// GPU that the tensors in host memory are for: it reads them there.
    in_place: Option<Context>,
}

/// Use of memory that a GPU shares with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// No GPU shares the host's memory.
    Nothing,
    /// Tensors are copied within it, into memory of the GPU.
    Copied,
    /// Tensors stay where they were read to.
    InPlace,
}

/// Identity of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    device: Device,
    of_the_caller: bool,
}

/// Device of each tensor.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceRules {
    /// Those of single tensors.
    pub(crate) by_name: HashMap<String, Device>,
    pub(crate) map: DeviceMap,
    pub(crate) otherwise: Device,
}

impl DeviceRules {
    pub(crate) fn new(otherwise: Device) -> Self {
        Self {
            otherwise,
            ..Self::default()
        }
    }

    /// Returns the device of each name selected by index from `names`.
    ///
    /// # Errors
    ///
    /// Those of [`DeviceMap::devices`].
    pub(crate) fn devices(&self, names: &[&str], selected: &[usize]) -> Result<Vec<Device>> {
        let mapped = self.map.devices(names)?;
        let device = |&index: &usize| {
            let explicit = self.by_name.get(names[index]).copied();
            let mapped = || mapped.get(index).copied().flatten();
            explicit.or_else(mapped).unwrap_or(self.otherwise)
        };
        Ok(selected.iter().map(device).collect())
    }
}

impl Destination {
    /// Returns whether tensors go to the memory of a GPU.
    pub(crate) fn is_gpu(&self) -> bool {
        self.context().is_some()
    }

    /// Returns the GPU whose memory they go to, if it is one.
    pub(crate) fn context(&self) -> Option<&Context> {
        match self {
            Self::Cuda(context) | Self::CudaTargets(context) => Some(context),
            Self::Host | Self::HostTargets => None,
        }
    }
}

impl Destinations {
    /// Creates destinations with everything in host memory of the load, for measuring reads.
    pub(crate) fn host(tensors: &[TensorInfo]) -> Self {
        Self {
            list: vec![Destination::Host],
            of: vec![0; tensors.len()],
            targets: tensors.iter().map(|_| None).collect(),
            staged: has_gaps(tensors),
            published: false,
            free: Vec::new(),
            keeps_all: false,
            in_place: None,
        }
    }

    /// Marks host memory as mapped by other processes.
    pub(crate) fn published(self) -> Self {
        Self {
            published: true,
            ..self
        }
    }

    /// Returns whether other processes map the memory.
    pub(crate) fn are_published(&self) -> bool {
        self.published
    }

    /// Sets whether any tensor arrives with gaps, which need not be as in its file.
    pub(crate) fn gather(&mut self, has_gaps: bool) {
        let in_place = |destination: &Destination| matches!(destination, Destination::Host);
        self.staged = !self.list.iter().all(in_place) || has_gaps;
    }

    /// Assigns tensors with a target to it and the others to their device. Opens every device that
    /// is needed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a target whose length differs from its tensor's; the
    /// errors of [`Context::open`].
    pub(crate) fn new(
        tensors: &[TensorInfo],
        devices: &[Device],
        targets: &HashMap<String, Target>,
    ) -> Result<Self> {
        let mut keys: Vec<Key> = Vec::new();
        let mut of = Vec::with_capacity(tensors.len());
        let mut by_tensor = Vec::with_capacity(tensors.len());
        for (info, device) in tensors.iter().zip(devices) {
            let target = targets.get(info.name());
            if let Some(target) = target {
                check(info, target)?;
            }
            let key = Key {
                device: target.map_or(*device, |target| {
                    target.ordinal().map_or(Device::Cpu, Device::Cuda)
                }),
                of_the_caller: target.is_some(),
            };
            let index = keys.iter().position(|known| *known == key);
            of.push(index.unwrap_or_else(|| {
                keys.push(key);
                keys.len() - 1
            }));
            by_tensor.push(target.cloned());
        }
        refuse_unknown(tensors, targets)?;
        let mut contexts: Vec<Context> = Vec::new();
        let mut open = |ordinal: usize| -> Result<Context> {
            if let Some(known) = contexts.iter().find(|known| known.ordinal() == ordinal) {
                return Ok(known.clone());
            }
            let context = Context::open(ordinal)?;
            contexts.push(context.clone());
            Ok(context)
        };
        let list = keys.iter().map(|key| {
            Ok(match (key.device, key.of_the_caller) {
                (Device::Cpu, false) => Destination::Host,
                (Device::Cpu, true) => Destination::HostTargets,
                (Device::Cuda(ordinal), false) => Destination::Cuda(open(ordinal)?),
                (Device::Cuda(ordinal), true) => Destination::CudaTargets(open(ordinal)?),
            })
        });
        let list = list.collect::<Result<Vec<_>>>()?;
        let mut destinations = Self {
            staged: false,
            published: false,
            in_place: None,
            list,
            of,
            targets: by_tensor.into(),
            free: Vec::new(),
            keeps_all: false,
        };
        destinations.gather(has_gaps(tensors));
        Ok(destinations)
    }

    /// Declares whether the caller keeps all tensors.
    pub(crate) fn kept(self, keeps_all: bool) -> Self {
        Self { keeps_all, ..self }
    }

    /// Sets the free bytes of each GPU, by destination.
    pub(crate) fn measured(self, free: Vec<Option<u64>>) -> Self {
        Self { free, ..self }
    }

    /// Returns the free bytes of a destination's GPU when they were measured.
    pub(crate) fn free(&self, destination: usize) -> Option<u64> {
        self.free.get(destination).copied().flatten()
    }

    /// Returns whether the caller keeps all tensors.
    pub(crate) fn keeps_all(&self) -> bool {
        self.keeps_all
    }

    /// Lets the tensors of a GPU stay in the host memory that they are read to, if they all are for
    /// one that can use them there.
    pub(crate) fn in_place(mut self, tensors: &[TensorInfo]) -> Self {
        if let [Destination::Cuda(context)] = self.list.as_slice()
            && context.memory().reads_in_place()
        {
            self.in_place = Some(context.clone());
            self.staged = has_gaps(tensors);
            self.list = vec![Destination::Host];
        }
        self
    }

    /// Returns the GPU that the tensors in host memory are for.
    pub(crate) fn gpu_in_place(&self) -> Option<&Context> {
        self.in_place.as_ref()
    }

    /// Returns a GPU that shares the host's memory.
    pub(crate) fn shared_with(&self) -> Option<&Context> {
        let mut contexts = self.in_place.iter().chain(self.contexts());
        contexts.find(|context| context.memory().kind() == MemoryKind::Shared)
    }

    /// Returns the destinations in memory that a GPU shares with the host and that the load
    /// allocates for it.
    pub(crate) fn indices_shared(&self) -> impl Iterator<Item = usize> {
        let is_shared = |destination: &Destination| matches!(destination, Destination::Cuda(context) if context.memory().kind() == MemoryKind::Shared);
        let list = self.list.iter().enumerate();
        list.filter(move |(_, destination)| is_shared(destination))
            .map(|(index, _)| index)
    }

    pub(crate) fn sharing(&self) -> Sharing {
        match self.shared_with() {
            None => Sharing::Nothing,
            Some(_) if self.in_place.is_some() => Sharing::InPlace,
            Some(_) => Sharing::Copied,
        }
    }

    pub(crate) fn list(&self) -> &[Destination] {
        &self.list
    }

    pub(crate) fn index_for(&self, tensor: usize) -> usize {
        self.of[tensor]
    }

    pub(crate) fn targets(&self) -> &Arc<[Option<Target>]> {
        &self.targets
    }

    /// Returns the arrangement of each destination; `packing` is that for a GPU with this many free
    /// bytes.
    pub(crate) fn arrangements(
        &self,
        packing: impl Fn(Option<u64>) -> Packing,
    ) -> Vec<Arrangement> {
        let arrangement = |(index, destination): (usize, &Destination)| match destination {
            Destination::Host if self.published => Arrangement::Published,
            Destination::Host => Arrangement::InPlace,
            Destination::Cuda(_) => Arrangement::Packed(packing(self.free(index))),
            Destination::HostTargets | Destination::CudaTargets(_) => Arrangement::Scattered,
        };
        self.list.iter().enumerate().map(arrangement).collect()
    }

    /// Returns whether bytes pass through staging memory.
    pub(crate) fn staged(&self) -> bool {
        self.staged
    }

    /// Returns whether all bytes are read to private memory of this load, where they stay.
    pub(crate) fn fills_own_memory(&self) -> bool {
        !self.staged && !self.published
    }

    /// Returns a GPU that reads from staging memory, if there is one.
    pub(crate) fn gpu(&self) -> Option<&Context> {
        self.contexts().next()
    }

    /// Returns the number of GPUs.
    pub(crate) fn gpus(&self) -> usize {
        self.contexts()
            .map(Context::ordinal)
            .collect::<BTreeSet<_>>()
            .len()
    }

    /// Returns the GPUs, one for each destination in their memory.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = &Context> {
        self.list.iter().filter_map(Destination::context)
    }
}

/// Returns whether any tensor is a slice with gaps.
fn has_gaps(tensors: &[TensorInfo]) -> bool {
    tensors.iter().any(|tensor| tensor.strides().is_some())
}

/// Rejects targets for tensors that are not loaded.
fn refuse_unknown(tensors: &[TensorInfo], targets: &HashMap<String, Target>) -> Result<()> {
    let loaded: HashSet<&str> = tensors.iter().map(TensorInfo::name).collect();
    let mut unknown: Vec<_> = targets
        .keys()
        .filter(|name| !loaded.contains(name.as_str()))
        .map(|name| format!("{name:?}"))
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    unknown.sort_unstable();
    let message = format!(
        "targets for tensors that are not loaded: {}",
        unknown.join(", ")
    );
    Err(Error::new(ErrorKind::InvalidRequest, message)
        .with_hint("pass targets for selected tensors only"))
}

fn check(info: &TensorInfo, target: &Target) -> Result<()> {
    if target.len() as u64 == info.byte_len() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidRequest,
        format!(
            "its target has {} bytes; the tensor has {}",
            target.len(),
            info.byte_len()
        ),
    )
    .with_tensor(info.name()))
}
