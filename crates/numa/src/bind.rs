//! Binding threads to CPUs. A thread that cannot be bound runs anywhere, and the reason is kept.

use std::io;
use std::sync::OnceLock;

use crate::{Cpus, Placement};

/// CPUs that the threads of one load are bound to.
#[derive(Debug)]
pub struct Binding {
    cpus: Option<Cpus>,
    /// Reason of the first thread that was not bound.
    refusal: OnceLock<String>,
}

impl Binding {
    /// Creates a binding as chosen.
    #[must_use]
    pub fn new(placement: Placement) -> Self {
        let (cpus, reason) = match placement {
            Placement::Anywhere => (None, None),
            Placement::At(cpus) => (Some(cpus), None),
            Placement::Unknown(reason) => (None, Some(reason)),
        };
        Self {
            cpus,
            refusal: reason.map(OnceLock::from).unwrap_or_default(),
        }
    }

    /// Binds the calling thread, and those that it starts from then on.
    pub fn apply(&self) {
        let Some(cpus) = &self.cpus else { return };
        if let Err(error) = bind(cpus) {
            let reason = format!("CPUs {cpus}: {error}");
            self.refusal.get_or_init(|| reason);
        }
    }

    /// CPUs that threads are bound to; `None` if they are not.
    #[must_use]
    pub fn cpus(&self) -> Option<&Cpus> {
        self.cpus.as_ref()
    }

    /// Reason why threads run anywhere, if that is worth telling.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.get().map(String::as_str)
    }
}

/// Returns the CPUs that the calling thread may use.
///
/// # Errors
///
/// Those of the system.
#[cfg(target_os = "linux")]
pub fn allowed() -> io::Result<Cpus> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None)?;
    let cpus = 0..CpuSet::MAX_CPU;
    Ok(cpus.filter(|cpu| set.is_set(*cpu)).collect())
}

/// Binds the calling thread to `cpus`.
#[cfg(target_os = "linux")]
fn bind(cpus: &Cpus) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the CPUs that the calling thread may use.
///
/// # Errors
///
/// Always: the system does not say.
#[cfg(not(target_os = "linux"))]
pub fn allowed() -> io::Result<Cpus> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn bind(_cpus: &Cpus) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn bound_thread_passes_its_cpus_on() {
        let all = allowed().expect("Linux tells");
        let first: Cpus = all.iter().take(1).collect();
        let binding = Binding::new(Placement::At(first.clone()));
        let inside = thread::spawn(move || {
            binding.apply();
            assert_eq!(binding.refusal(), None);
            let child = thread::spawn(|| allowed().expect("Linux tells"));
            child.join().expect("no panic")
        });
        assert_eq!(inside.join().expect("no panic"), first);
        assert_eq!(allowed().expect("Linux tells"), all);
    }

    #[test]
    fn refusal_is_kept_and_changes_nothing() {
        let all = allowed().expect("Linux tells");
        for cpus in [Cpus::default(), [1023].into_iter().collect()] {
            if !cpus.intersection(&all).is_empty() {
                continue;
            }
            let binding = Binding::new(Placement::At(cpus));
            binding.apply();
            let refusal = binding.refusal().expect("refused");
            assert!(refusal.starts_with("CPUs "), "{refusal}");
        }
        assert_eq!(allowed().expect("Linux tells"), all);
    }

    #[test]
    fn unknown_place_is_a_refusal_from_the_beginning() {
        let binding = Binding::new(Placement::Unknown("why".to_owned()));
        binding.apply();
        assert_eq!((binding.cpus(), binding.refusal()), (None, Some("why")));
        assert_eq!(Binding::new(Placement::Anywhere).refusal(), None);
    }
}
