//! Seam for programs that watch a load, as `tload load --trace` does: wrappers around the engines
//! and the sinks of its lanes. The pipeline does not know of them, and a load that is not watched
//! has none.

use std::fmt;
use std::sync::Arc;

use super::destinations::Destination;
use super::lane::{LaneSetup, OpenSink};
use super::prepare::Prepared;
use crate::engine::{Engine, OpenedEngine};
use crate::error::Result;
use crate::groups::OpenEngine;
use crate::plan::Plan;
use crate::sink::{RouteSink, Sink};
use crate::tensor::{Tensor, TensorInfo};

/// Sink of one destination: yields tensors with their index among those of the load.
pub type TensorSink = dyn Sink<Tensor = (usize, Tensor)>;

/// Watches the loads of a loader.
pub trait Watcher: fmt::Debug + Send + Sync {
    /// Called when a load has been planned, before its lanes start.
    fn begin(&self, load: WatchedLoad) -> Arc<dyn Layer>;
}

/// Load that has been planned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WatchedLoad {
    /// Reads, and their places in tensors. The index of a job is that of an extent.
    pub plan: Arc<Plan>,
    /// Tensors of the load.
    pub tensors: Arc<[TensorInfo]>,
    /// Locations of the sources of the plan.
    pub sources: Vec<String>,
    /// Devices of the destinations of the plan: `cpu`, `cuda:0`.
    pub destinations: Vec<String>,
}

impl WatchedLoad {
    fn new(prepared: &Prepared) -> Self {
        let destinations = prepared.destinations.list().iter();
        Self {
            plan: Arc::clone(&prepared.plan),
            tensors: Arc::clone(&prepared.tensors),
            sources: prepared.sources.names(),
            destinations: destinations.map(Destination::device).collect(),
        }
    }
}

/// Wraps engines and sinks. Called on the thread of the lane that uses them, which has the name
/// `tload-lane-N`.
pub trait Layer: fmt::Debug + Send + Sync {
    /// Wraps the engine of a lane.
    fn engine(&self, engine: Box<dyn Engine>) -> Box<dyn Engine>;

    /// Wraps the sink of one destination of a lane.
    fn sink(&self, destination: usize, sink: Box<TensorSink>) -> Box<TensorSink>;
}

/// Opens engines with a layer around them.
#[derive(Debug)]
struct Layered {
    inner: Arc<dyn OpenEngine>,
    layer: Arc<dyn Layer>,
}

impl OpenEngine for Layered {
    fn open(&self, lanes: usize) -> Result<OpenedEngine> {
        let opened = self.inner.open(lanes)?;
        Ok(OpenedEngine {
            engine: self.layer.engine(opened.engine),
            ..opened
        })
    }

    fn reason(&self) -> String {
        self.inner.reason()
    }
}

/// Puts the layer of `watcher`, if there is one, around the engines of all lanes and around the
/// sinks that the returned function opens.
pub(super) fn around(
    watcher: Option<&dyn Watcher>,
    prepared: &Prepared,
    lanes: &mut [LaneSetup],
    open_sink: Arc<OpenSink<RouteSink>>,
) -> Arc<OpenSink<RouteSink>> {
    let Some(watcher) = watcher else {
        return open_sink;
    };
    let layer = watcher.begin(WatchedLoad::new(prepared));
    for lane in lanes {
        lane.engine = Arc::new(Layered {
            inner: Arc::clone(&lane.engine),
            layer: Arc::clone(&layer),
        });
    }
    Arc::new(move || Ok(open_sink()?.wrapped(|index, sink| layer.sink(index, sink))))
}
