//! Threads of a load on the CPUs near its GPUs. A variant that is being measured.
//!
//! GPUs that are near the same CPUs have a place together. Where lanes can be divided, those of a
//! place feed its GPUs only, from staging memory of its own on that NUMA node: the kernel takes
//! other memory if that node has none left.

use std::sync::Arc;

use tload_engine::numa::{Binding, Cpus, Placement, Places, allowed, near, places, sysfs};

use super::destinations::{Destination, Destinations};
use crate::cuda::Context;
use crate::engine;

/// Places for the threads of one load.
#[derive(Debug)]
pub(crate) struct GpuPlaces {
    list: Vec<Arc<NearGpu>>,
    /// By destination. Host memory belongs to the first place.
    of_destination: Vec<usize>,
}

/// CPUs near some GPUs of a load, for threads that feed these.
#[derive(Debug)]
pub(crate) struct NearGpu {
    binding: Binding,
    copiers: usize,
    /// Name of the GPUs in notes and reports.
    gpu: String,
}

impl GpuPlaces {
    /// Chooses the CPUs near the GPUs of a load; `copiers` is the number of threads that copy for a
    /// rank of a group. Unless it `is_divisible`, the load has one place. Returns `None` for a load
    /// to no GPU.
    pub(crate) fn new(
        destinations: &Destinations,
        copiers: Option<usize>,
        is_divisible: bool,
    ) -> Option<Self> {
        let contexts: Vec<&Context> = destinations.contexts().collect();
        if contexts.is_empty() {
            return None;
        }
        let surroundings = contexts.iter().map(|context| {
            let unknown = || format!("cuda:{} has no PCI address", context.ordinal());
            near(sysfs(), &context.pci_address().ok_or_else(unknown)?)
        });
        let surroundings: Vec<_> = surroundings.collect();
        let (allowed, found) = match allowed() {
            Ok(allowed) => (allowed.len(), places(&surroundings, &allowed)),
            Err(error) => (1, together(error.to_string(), contexts.len())),
        };
        let found = if is_divisible || found.placements.len() == 1 {
            found
        } else {
            let reason =
                "its GPUs are near different CPUs, and lanes that verify serve all of them";
            together(reason.to_owned(), contexts.len())
        };
        let copiers = copiers.unwrap_or_else(|| engine::copiers_for(destinations.gpus()));
        let mut of_gpu = found.of_device.iter().copied();
        let is_gpu = destinations.list().iter().map(Destination::is_gpu);
        let of_destination = is_gpu.map(|is_gpu| {
            let place = if is_gpu { of_gpu.next() } else { None };
            place.unwrap_or(0)
        });
        let of_destination = of_destination.collect();
        let count = found.placements.len();
        let list = found.placements.into_iter().enumerate();
        let list = list.map(|(place, placement)| {
            let here = found.of_device.iter().position(|it| *it == place);
            let gpu = match here.map(|first| contexts[first].ordinal()) {
                Some(ordinal) if count > 1 => format!("cuda:{ordinal}"),
                _ => "the GPU".to_owned(),
            };
            let copiers = share(&placement, copiers, allowed, count);
            Arc::new(NearGpu::at(placement, copiers, gpu))
        });
        Some(Self {
            list: list.collect(),
            of_destination,
        })
    }

    /// Returns a place, or the only one.
    pub(crate) fn get(&self, place: usize) -> Option<&Arc<NearGpu>> {
        self.list.get(place)
    }

    /// Returns the place of each destination.
    pub(crate) fn of_destination(&self) -> &[usize] {
        &self.of_destination
    }

    /// Returns notes for the user on threads that run anywhere although some CPUs may be nearer.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        self.list.iter().filter_map(|it| it.note())
    }
}

/// Returns one place for all devices, whose CPUs are not chosen for this reason.
fn together(reason: String, devices: usize) -> Places {
    Places {
        placements: vec![Placement::Unknown(reason)],
        of_device: vec![0; devices],
    }
}

/// Returns the number of `copiers` that one of several places has: as many as it has of the
/// `allowed` CPUs, or an equal part if its CPUs are not known.
fn share(placement: &Placement, copiers: usize, allowed: usize, places: usize) -> usize {
    match placement {
        Placement::At(cpus) if places > 1 => copiers * cpus.len() / allowed.max(1),
        Placement::At(_) | Placement::Anywhere | Placement::Unknown(_) => copiers / places,
    }
}

impl NearGpu {
    fn at(placement: Placement, copiers: usize, gpu: String) -> Self {
        let binding = Binding::new(placement);
        let most = binding.cpus().map_or(usize::MAX, Cpus::len);
        Self {
            copiers: copiers.min(most).max(1),
            binding,
            gpu,
        }
    }

    /// Number of threads that copy for these GPUs.
    pub(crate) fn copiers(&self) -> usize {
        self.copiers
    }

    /// Name of the GPUs.
    pub(crate) fn gpu(&self) -> &str {
        &self.gpu
    }

    /// Binds the calling thread, and those that it starts from then on.
    pub(crate) fn bind(&self) {
        self.binding.apply();
    }

    /// Returns a note for the user if threads run anywhere although some CPUs may be nearer.
    fn note(&self) -> Option<String> {
        let reason = self.binding.refusal()?;
        Some(format!(
            "threads are not bound to the CPUs near {}: {reason}",
            self.gpu
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(placement: Placement, copiers: usize) -> NearGpu {
        NearGpu::at(placement, copiers, "the GPU".to_owned())
    }

    #[test]
    fn copiers_fit_on_the_near_cpus() {
        let cpus = (0..6).collect();
        let near = at(Placement::At(cpus), 9);
        assert_eq!((near.copiers(), near.note()), (6, None));
        assert_eq!(at(Placement::Anywhere, 9).copiers(), 9);
        let unknown = at(Placement::Unknown("why".to_owned()), 9);
        assert_eq!(unknown.copiers(), 9);
        let note = unknown.note().expect("a reason");
        assert!(note.ends_with("near the GPU: why"), "{note}");
    }

    #[test]
    fn places_divide_copiers_by_their_cpus() {
        let near = |cpus: usize| Placement::At((0..cpus).collect());
        let unknown = || Placement::Unknown(String::new());
        for (placement, copiers, allowed, places, expected) in [
            (near(16), 24, 32, 2, 12),
            (near(8), 24, 32, 2, 6),
            (near(1), 2, 2, 2, 1),
            // A single place is not divided.
            (near(16), 24, 32, 1, 24),
            (unknown(), 24, 32, 2, 12),
            (unknown(), 24, 32, 1, 24),
            (Placement::Anywhere, 24, 32, 1, 24),
        ] {
            let found = share(&placement, copiers, allowed, places);
            assert_eq!(found, expected, "{placement:?}, {places} places");
        }
    }
}
