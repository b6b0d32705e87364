//! Threads of a load on the CPUs near its GPUs, and their number where several ranks of a machine
//! load at the same time. A variant that is being measured.

use std::path::Path;
use std::sync::Arc;

use tload_numa::{Binding, Placement, SYSFS, allowed, near, placement};

use super::destinations::Destinations;
use crate::engine;

/// CPUs for the threads of one load.
#[derive(Debug)]
pub(crate) struct NearGpu {
    binding: Binding,
    copiers: usize,
}

impl NearGpu {
    /// Chooses the CPUs near the GPUs of a load; `copiers` is the number of threads that copy for a
    /// rank of a group. Returns `None` for a load to no GPU.
    pub(crate) fn new(destinations: &Destinations, copiers: Option<usize>) -> Option<Arc<Self>> {
        let surroundings = destinations.contexts().map(|context| {
            let unknown = || format!("cuda:{} has no PCI address", context.ordinal());
            near(
                Path::new(SYSFS),
                &context.pci_address().ok_or_else(unknown)?,
            )
        });
        let surroundings: Vec<_> = surroundings.collect();
        if surroundings.is_empty() {
            return None;
        }
        let chosen = match allowed() {
            Ok(allowed) => placement(&surroundings, &allowed),
            Err(error) => Placement::Unknown(error.to_string()),
        };
        let copiers = copiers.unwrap_or_else(|| engine::copiers_for(destinations.gpus()));
        Some(Arc::new(Self::at(chosen, copiers)))
    }

    fn at(placement: Placement, copiers: usize) -> Self {
        let binding = Binding::new(placement);
        let most = binding.cpus().map_or(usize::MAX, tload_numa::Cpus::len);
        Self {
            copiers: copiers.min(most).max(1),
            binding,
        }
    }

    /// Number of threads that copy for this load.
    pub(crate) fn copiers(&self) -> usize {
        self.copiers
    }

    /// Binds the calling thread, and those that it starts from then on.
    pub(crate) fn bind(&self) {
        self.binding.apply();
    }

    /// Returns a note for the user if threads run anywhere although some CPUs may be nearer.
    pub(crate) fn note(&self) -> Option<String> {
        let reason = self.binding.refusal()?;
        Some(format!(
            "threads are not bound to the CPUs near the GPU: {reason}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copiers_fit_on_the_near_cpus() {
        let cpus = (0..6).collect();
        let near = NearGpu::at(Placement::At(cpus), 9);
        assert_eq!((near.copiers(), near.note()), (6, None));
        assert_eq!(NearGpu::at(Placement::Anywhere, 9).copiers(), 9);
        let unknown = NearGpu::at(Placement::Unknown("why".to_owned()), 9);
        assert_eq!(unknown.copiers(), 9);
        let note = unknown.note().expect("a reason");
        assert!(note.ends_with("near the GPU: why"), "{note}");
    }
}
