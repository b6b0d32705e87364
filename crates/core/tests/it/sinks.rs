//! The sink contract for every sink.

#![expect(unsafe_code, reason = "lends memory to a load")]

use std::sync::{Arc, Mutex};

use tload::internal::engine::Wait;
use tload::internal::memory::{EventCount, Filled, KeepAlive, Region, Slab, Target};
use tload::internal::plan::{Arrangement, Extent};
use tload::internal::sink::{DiscardSink, HostSink, PublishSink, Publisher, Sink, TargetSink};
use tload_testing::conformance::{SinkRequest, sink_suite};

#[test]
fn host_sink_keeps_contract() {
    sink_suite(
        "host",
        Arrangement::InPlace,
        &|request, lanes| {
            let sink = HostSink::new(Arc::clone(&request.plan), Arc::clone(&request.tensors));
            vec![sink; lanes]
        },
        &|(index, tensor)| (*index, tensor.bytes().to_vec()),
    );
}

/// Allocates memory that a test lends to a load and reads afterwards.
pub(crate) fn lend(bytes: usize) -> Target {
    let memory: &'static mut [u8] = vec![0xEE; bytes].leak();
    let start = std::ptr::NonNull::from(&mut *memory).cast();
    let owner: KeepAlive = Arc::new(());
    // SAFETY: leaked, so valid forever; the test reads only tensors that were handed out.
    unsafe { Target::host(start, bytes, Some(owner)) }
}

#[test]
fn target_sink_keeps_contract() {
    sink_suite(
        "target",
        Arrangement::Scattered,
        &|request, lanes| {
            let tensors = request.tensors.iter();
            let targets =
                tensors.map(|info| Some(lend(usize::try_from(info.byte_len()).expect("small"))));
            let sink = TargetSink::new(
                Arc::clone(&request.plan),
                Arc::clone(&request.tensors),
                targets.collect(),
                Arc::default(),
            );
            vec![sink; lanes]
        },
        &|(index, tensor)| {
            let target = tensor.target().expect("memory of the caller");
            let start: *const u8 = tensor.as_ptr();
            // SAFETY: leaked by `lend`; handed out, so the load no longer writes to it.
            let bytes = unsafe { std::slice::from_raw_parts(start, target.len()) };
            (*index, bytes.to_vec())
        },
    );
}

#[test]
fn discard_sink_returns_windows_immediately_or_at_end() {
    let extent = Extent {
        source: 0,
        region: 0,
        offset: 0,
        window: 10,
        needed: 10,
        pieces: 0..0,
    };
    for (mut sink, kept) in [(DiscardSink::recycling(), 0), (DiscardSink::keeping(), 2)] {
        let slab = Slab::new(10, 2, Arc::<EventCount>::default()).expect("maps");
        for _ in 0..2 {
            let filled = slab.try_lease(10).expect("free").fill_from(&[1; 10]);
            sink.submit(&extent, filled).expect("takes everything");
            sink.reap(Wait::ForOne, &mut Vec::new())
                .expect("never fails");
        }
        let out = || {
            2 - (0..2)
                .map_while(|_| slab.try_lease(10))
                .collect::<Vec<_>>()
                .len()
        };
        assert_eq!(out(), kept);
        drop(sink);
        assert_eq!(out(), 0);
    }
}

/// Bytes that a publish sink has announced, and what is complete of them.
struct Announced {
    request: SinkRequest,
    state: Mutex<State>,
}

struct State {
    /// Bytes of the extent that is being submitted.
    submitted: Vec<u8>,
    /// By region: its announced bytes.
    regions: Vec<Vec<u8>>,
    /// Memory that was announced, kept for other processes.
    memory: Vec<Arc<Region>>,
    /// By tensor: pieces that have not been announced.
    missing: Vec<u32>,
}

impl Announced {
    fn new(request: &SinkRequest) -> Self {
        let plan = &request.plan;
        let regions = plan.regions.iter().map(|region| vec![0xEE; region.bytes]);
        let state = State {
            submitted: Vec::new(),
            regions: regions.collect(),
            memory: Vec::new(),
            missing: plan.targets.iter().map(|target| target.pieces).collect(),
        };
        Self {
            request: request.clone(),
            state: Mutex::new(state),
        }
    }
}

impl Publisher for Announced {
    fn filled(&self, region: usize, memory: &Arc<Region>, from: u64, to: u64) {
        let place = |at| usize::try_from(at).expect("small");
        let state = &mut *self.state.lock().expect("no panic");
        let submitted = std::mem::take(&mut state.submitted);
        state.regions[region][place(from)..place(to)].copy_from_slice(&submitted);
        state.memory.push(Arc::clone(memory));
    }
}

/// A publish sink, which completes no tensors; this one completes those whose pieces it has
/// announced, with the bytes of their places in the regions, as ranks see them.
struct Completing {
    sink: PublishSink,
    announced: Arc<Announced>,
    ready: Vec<(usize, Vec<u8>)>,
}

impl Sink for Completing {
    type Tensor = (usize, Vec<u8>);

    fn in_flight(&self) -> usize {
        self.sink.in_flight()
    }

    fn submit(&mut self, extent: &Extent, filled: Filled) -> tload::Result<()> {
        let SinkRequest { plan, tensors } = &self.announced.request;
        let bytes = filled.bytes()[..extent.needed].to_vec();
        self.announced.state.lock().expect("no panic").submitted = bytes;
        self.sink.submit(extent, filled)?;
        let state = &mut *self.announced.state.lock().expect("no panic");
        assert!(state.submitted.is_empty(), "every extent is announced");
        for piece in &plan.pieces[extent.pieces.clone()] {
            state.missing[piece.tensor] -= 1;
            if state.missing[piece.tensor] == 0 {
                let (region, start) = plan.targets[piece.tensor].place.expect("has bytes");
                let len = usize::try_from(tensors[piece.tensor].byte_len()).expect("small");
                let bytes = state.regions[region][start..start + len].to_vec();
                self.ready.push((piece.tensor, bytes));
            }
        }
        Ok(())
    }

    fn reap(&mut self, wait: Wait, ready: &mut Vec<Self::Tensor>) -> tload::Result<()> {
        self.sink.reap(wait, &mut Vec::new())?;
        ready.append(&mut self.ready);
        Ok(())
    }
}

#[test]
fn publish_sink_keeps_contract() {
    sink_suite(
        "publish",
        Arrangement::Published,
        &|request, lanes| {
            let announced = Arc::new(Announced::new(request));
            let sink = |_| {
                let publisher: Arc<dyn Publisher> = Arc::clone(&announced) as _;
                Completing {
                    sink: PublishSink::new(Arc::clone(&request.plan), Arc::default(), publisher),
                    announced: Arc::clone(&announced),
                    ready: Vec::new(),
                }
            };
            (0..lanes).map(sink).collect()
        },
        &|(index, bytes)| (*index, bytes.clone()),
    );
}
