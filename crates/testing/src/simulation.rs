//! Whole load without a disk: feed, schedule, pool, host sink and stream, joined as in `load`, over
//! simulated engines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::sim::{SimConfig, SimEngine};
use tload::Order;
use tload::Report;
use tload::TensorInfo;
use tload::TensorStream;
use tload::internal::Counters;
use tload::internal::check::{Check, LateCheck, SourceFacts};
use tload::internal::engine::Engine;
use tload::internal::pipeline::{Feed, LaneWork, LeaseOrigin, run};
use tload::internal::plan::{Arrangement, Layout, Plan, Wanted, build};
use tload::internal::schedule::{Depth, Groups, InFlight, Schedule};
use tload::internal::sink::HostSink;
use tload::internal::stream::{Conversions, Handover, LastSteps, StreamSetup};
use tload::verify::{Expectation, Verify};
use tload_base::crc::Crcs;
use tload_base::error::Result;
use tload_base::sync::detached::PendingOps;
use tload_base::sync::event_count::EventCount;
use tload_memory::{Pool, PoolUsage};
use tload_storage::{MemorySource, Source};

/// Simulated load.
#[derive(Debug)]
pub struct Simulation {
    /// Storage; a tensor's shard is an index into it.
    pub sources: Vec<MemorySource>,
    /// Read layout of each source.
    pub layouts: Vec<Layout>,
    /// Tensors to load, in file order.
    pub tensors: Vec<TensorInfo>,
    /// Order in which tensors are handed out.
    pub order: Order,
    /// Limits on reads in flight, over all lanes.
    pub depth: Depth,
    /// Memory budget, bytes; at least [`Simulation::limit_min`].
    pub memory_limit: u64,
    /// Configuration of the engines; each engine has one lane.
    pub engines: Vec<SimConfig>,
}

/// Verification of one simulated load.
#[derive(Debug)]
pub struct Comparison(pub Arc<Check>);

/// Observable state of a running simulation.
#[derive(Clone, Debug)]
pub struct Watched {
    feed: Arc<Feed>,
    verifications: Arc<AtomicU32>,
}

/// End of a simulated load.
struct CheckedEnd {
    check: Arc<LateCheck>,
    verifications: Arc<AtomicU32>,
}

impl LastSteps for CheckedEnd {
    fn verify(&self, _is_whole: bool) -> Result<()> {
        self.verifications.fetch_add(1, Ordering::SeqCst);
        self.check.finish()
    }

    fn complete(&self, report: &mut Report) {
        self.check.report(report);
    }
}

impl Watched {
    /// Returns the use of the budget.
    pub fn usage(&self) -> PoolUsage {
        match self.feed.origins() {
            [LeaseOrigin::Regions(pool)] => pool.usage(),
            _ => unreachable!("simulated loads make tensors in place"),
        }
    }

    /// Returns what is in flight.
    pub fn in_flight(&self) -> InFlight {
        self.feed.in_flight()
    }

    /// Returns how often a stream has checked at its end that nothing has changed.
    pub fn verifications(&self) -> u32 {
        self.verifications.load(Ordering::SeqCst)
    }
}

impl Simulation {
    /// Returns the plan of the load.
    pub fn plan(&self) -> Plan {
        let wanted: Vec<_> = self
            .tensors
            .iter()
            .map(|tensor| Wanted {
                source: tensor.shard(),
                range: tensor.file_range(),
                strides: None,
                alignment: tensor.dtype().alignment(),
                destination: 0,
            })
            .collect();
        build(&wanted, &self.layouts, &[Arrangement::InPlace])
    }

    /// Returns the smallest budget that holds the largest region.
    pub fn limit_min(&self) -> u64 {
        tload_memory::Mapping::charge(self.plan().region_bytes_max(0)) as u64
    }

    /// Returns the verification of a load with these expectations, one for each source. A source's
    /// header is the part before its first tensor.
    ///
    /// # Errors
    ///
    /// Returns the error with which a load would fail before its first read.
    pub fn check(&self, expectations: &[Expectation], choice: &Verify) -> Result<Comparison> {
        let mut first = 0;
        let facts = self.sources.iter().enumerate().map(|(index, source)| {
            let of_source = |tensor: &TensorInfo| tensor.shard() == index;
            let tensors = &self.tensors[first..];
            let tensors = &tensors[..tensors.partition_point(of_source)];
            first += tensors.len();
            let start = |tensor: &TensorInfo| tensor.file_range().start;
            let header_bytes = tensors.first().map_or(source.len(), start);
            let header = &source.bytes()[..usize::try_from(header_bytes).expect("small")];
            SourceFacts {
                source,
                header_bytes,
                header: Crcs::new(&[header]),
                tensors,
                is_elsewhere: false,
            }
        });
        let facts: Vec<_> = facts.collect();
        let (plan, tensors) = (Arc::new(self.plan()), self.tensors.clone().into());
        let check = Check::new(
            plan,
            tensors,
            &facts,
            expectations,
            choice,
            &PendingOps::default(),
        )?;
        Ok(Comparison(Arc::new(check)))
    }

    fn feed(&self, plan: &Arc<Plan>, check: Arc<LateCheck>) -> Arc<Feed> {
        let events = Arc::new(EventCount::default());
        let pool = Pool::new(self.memory_limit, Arc::clone(&events));
        let schedule = Schedule::new(plan, self.order, Groups::one(self.depth));
        let origins = vec![LeaseOrigin::Regions(pool)];
        let feed = Feed::new(Arc::clone(plan), schedule, origins, None, events);
        Arc::new(feed.checked(check))
    }

    fn engine(&self, config: &SimConfig) -> SimEngine {
        SimEngine::new(self.sources.clone(), config.clone())
    }

    /// Runs the first engine on the calling thread; `deliver` gets each tensor when it is complete.
    /// There are no threads and no clock: a run is determined by its seed.
    ///
    /// # Errors
    ///
    /// Returns the first failure, after all reads in flight have ended.
    pub fn run_alone(&self, deliver: &dyn Fn(usize, tload::Tensor)) -> (Result<()>, Watched) {
        let plan = Arc::new(self.plan());
        let feed = self.feed(&plan, LateCheck::ready(None));
        let mut sink = HostSink::new(plan, self.tensors.clone().into());
        let mut engine = self.engine(&self.engines[0]);
        let result = crate::run_lane(&feed, &mut engine, &mut sink, &|(index, tensor)| {
            deliver(index, tensor);
        });
        feed.close();
        let verifications = Arc::default();
        (
            result,
            Watched {
                feed,
                verifications,
            },
        )
    }

    /// Starts all lanes, each on its own thread.
    pub fn stream(&self) -> (TensorStream, Watched) {
        self.checked_stream(None)
    }

    /// Starts all lanes and verifies the bytes that are read.
    pub fn checked_stream(&self, compared: Option<Comparison>) -> (TensorStream, Watched) {
        let check = compared.map(|Comparison(check)| check);
        self.late_stream(LateCheck::ready(check))
    }

    /// Starts all lanes with verification that may be ready later.
    pub fn late_stream(&self, check: Arc<LateCheck>) -> (TensorStream, Watched) {
        let engines = self.engines.iter().map(|config| self.engine(config));
        self.start(check, engines)
    }

    /// Starts a lane for each of `engines`, in place of the configured ones.
    pub fn stream_over(
        &self,
        engines: impl IntoIterator<Item = impl Engine + Send + 'static>,
    ) -> TensorStream {
        self.start(LateCheck::ready(None), engines.into_iter()).0
    }

    fn start(
        &self,
        check: Arc<LateCheck>,
        engines: impl Iterator<Item = impl Engine + Send + 'static>,
    ) -> (TensorStream, Watched) {
        let engines: Vec<_> = engines.collect();
        let plan = Arc::new(self.plan());
        let feed = self.feed(&plan, Arc::clone(&check));
        let tensors: Arc<[TensorInfo]> = self.tensors.clone().into();
        let sink = HostSink::new(plan, Arc::clone(&tensors));
        let counters = Arc::<Counters>::default();
        let verifications = Arc::<AtomicU32>::default();
        let handover = Handover::new(StreamSetup {
            started: Instant::now(),
            feed: Arc::clone(&feed),
            gate: Arc::default(),
            counters: Arc::clone(&counters),
            tensors,
            conversions: Conversions::default(),
            order: self.order,
            lanes: engines.len(),
            report: Report::default(),
            end: Box::new(CheckedEnd {
                check,
                verifications: Arc::clone(&verifications),
            }),
        });
        let lanes = engines.into_iter().map(|mut engine| {
            let (feed, handover, counters) = (
                Arc::clone(&feed),
                Arc::clone(&handover),
                Arc::clone(&counters),
            );
            let mut sink = sink.clone();
            std::thread::spawn(move || {
                let work = LaneWork {
                    index: 0,
                    deliver: &|ready| handover.push(ready),
                    failing: &|error| handover.lane_failing(error),
                    counters: &counters,
                };
                let result = run(&feed, 0, &mut engine, &mut sink, &work);
                if result.is_err() {
                    feed.stop();
                }
                drop((engine, sink, feed));
                handover.lane_ended(result);
            })
        });
        let threads = lanes.collect();
        let stream = TensorStream::new(handover, threads);
        (
            stream,
            Watched {
                feed,
                verifications,
            },
        )
    }
}
