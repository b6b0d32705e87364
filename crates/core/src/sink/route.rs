//! Sink of a load to several destinations: passes each extent to its destination's sink.

use std::sync::Arc;
use std::time::Duration;

use super::Sink;
use crate::engine::Wait;
use crate::error::Result;
use crate::memory::Filled;
use crate::plan::{Extent, Plan};
use crate::sync::naps;
use crate::tensor::Tensor;

/// Interval at which a lane polls several devices when it has nothing to read: a copy of 1 MiB
/// takes half as long on a GPU of 2026.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// Sinks, by destination of a plan.
pub struct RouteSink {
    plan: Arc<Plan>,
    sinks: Vec<Box<dyn Sink<Tensor = (usize, Tensor)>>>,
}

impl RouteSink {
    /// Creates a sink from one sink for each destination of `plan`, in order.
    pub fn new(plan: Arc<Plan>, sinks: Vec<Box<dyn Sink<Tensor = (usize, Tensor)>>>) -> Self {
        Self { plan, sinks }
    }

    /// Wraps the sink of each destination.
    pub(crate) fn wrapped(
        self,
        wrap: impl Fn(
            usize,
            Box<dyn Sink<Tensor = (usize, Tensor)>>,
        ) -> Box<dyn Sink<Tensor = (usize, Tensor)>>,
    ) -> Self {
        let sinks = self.sinks.into_iter().enumerate();
        Self {
            plan: self.plan,
            sinks: sinks.map(|(index, sink)| wrap(index, sink)).collect(),
        }
    }
}

impl Sink for RouteSink {
    type Tensor = (usize, Tensor);

    fn in_flight(&self) -> usize {
        self.sinks.iter().map(|sink| sink.in_flight()).sum()
    }

    fn submit(&mut self, extent: &Extent, filled: Filled) -> Result<()> {
        let destination = self.plan.regions[extent.region].destination;
        self.sinks[destination].submit(extent, filled)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "there is no event for several devices to wait on"
    )]
    fn reap(&mut self, wait: Wait, ready: &mut Vec<Self::Tensor>) -> Result<()> {
        let (before, in_flight) = (ready.len(), self.in_flight());
        loop {
            for sink in &mut self.sinks {
                sink.reap(Wait::No, ready)?;
            }
            let moved = ready.len() > before || self.in_flight() < in_flight;
            if wait == Wait::No || moved || in_flight == 0 {
                return Ok(());
            }
            let mut busy = self.sinks.iter_mut().filter(|sink| sink.in_flight() > 0);
            match (busy.next(), busy.next()) {
                (Some(only), None) => return only.reap(Wait::ForOne, ready),
                // No event covers several devices, and one may wait for data from another.
                _ => std::thread::sleep(naps::at_most(LOOK_AGAIN)),
            }
        }
    }
}

impl std::fmt::Debug for RouteSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RouteSink({} destinations)", self.sinks.len())
    }
}
