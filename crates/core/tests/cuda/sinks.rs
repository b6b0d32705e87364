//! The CUDA sink fulfils the contract of sinks, whatever the duration of copies.

#![expect(unsafe_code, reason = "lends memory to a load")]

use std::cell::RefCell;
use std::sync::Arc;

use tload::Target;
use tload::internal::cuda::Context;
use tload::internal::memory::DeviceBudget;
use tload::internal::plan::{Arrangement, Packing};
use tload::internal::sink::{
    CudaLoad, CudaPlaces, CudaSink, DeviceRegions, DeviceStart, TargetPlaces,
};
use tload_testing::conformance::{SinkRequest, sink_suite};
use tload_testing::fixtures::Rng;

use crate::stub::{Cuda, bytes, cuda};

/// Returns the sinks of one load for this many lanes.
fn sinks(
    request: &SinkRequest,
    context: Context,
    places: CudaPlaces,
    batches: bool,
    lanes: usize,
) -> Vec<CudaSink> {
    let (plan, tensors) = (Arc::clone(&request.plan), Arc::clone(&request.tensors));
    let load = CudaLoad::new(plan, tensors, context, places, batches);
    let sink = |_| CudaSink::new(Arc::clone(&load)).expect("a stream");
    (0..lanes).map(sink).collect()
}

fn delay(cuda: &Cuda, rng: &RefCell<Rng>) {
    let delay = rng.borrow_mut().pick(&["0", "0", "20", "100", "400"]);
    cuda.stub.set("copy_delay_us", delay);
}

#[test]
fn sink_keeps_contract_in_own_memory() {
    for batches in [false, true] {
        keeps_contract_in_own_memory(batches);
    }
}

fn keeps_contract_in_own_memory(batches: bool) {
    let cuda = cuda();
    let rng = RefCell::new(Rng::new(1));
    sink_suite(
        "cuda",
        Arrangement::Packed(Packing::default()),
        &|request, lanes| {
            delay(&cuda, &rng);
            let context = Context::open(rng.borrow_mut().index(2)).expect("the stub has two GPUs");
            let budget = DeviceBudget::new(context.ordinal(), u64::MAX, Arc::default());
            let (plan, tensors) = (Arc::clone(&request.plan), Arc::clone(&request.tensors));
            let regions = DeviceRegions::own(plan, tensors, context.clone(), budget);
            let regions = Arc::new(regions.expect("a stream"));
            for region in 0..request.plan.regions.len() {
                let begun = regions
                    .try_begin(region, None)
                    .expect("memory is available");
                assert_eq!(begun, DeviceStart::Begun);
            }
            sinks(
                request,
                context,
                CudaPlaces::Regions(regions),
                batches,
                lanes,
            )
        },
        &|(index, tensor)| (*index, bytes(tensor)),
    );
    assert_eq!(cuda.stub.count("cuMemcpyBatchAsync") > 0, batches);
}

#[test]
fn sink_keeps_contract_in_caller_memory() {
    for batches in [false, true] {
        keeps_contract_in_caller_memory(batches);
    }
}

fn keeps_contract_in_caller_memory(batches: bool) {
    let cuda = cuda();
    let rng = RefCell::new(Rng::new(2));
    sink_suite(
        "cuda targets",
        Arrangement::Scattered,
        &|request, lanes| {
            delay(&cuda, &rng);
            let context = Context::open(1).expect("the stub has two GPUs");
            let targets = request.tensors.iter().map(|info| {
                let len = usize::try_from(info.byte_len()).expect("small");
                (len > 0).then(|| lend(&cuda, len))
            });
            let places =
                TargetPlaces::new(&context, targets.collect(), Arc::default()).expect("events");
            sinks(
                request,
                context,
                CudaPlaces::Targets(places),
                batches,
                lanes,
            )
        },
        &|(index, tensor)| (*index, bytes(tensor)),
    );
    assert_eq!(cuda.stub.count("cuMemcpyBatchAsync") > 0, batches);
}

/// Leaks memory that stands for another library's on device 1.
fn lend(cuda: &Cuda, len: usize) -> Target {
    let memory: &'static mut [u8] = vec![0xEE; len].leak();
    let start = memory.as_mut_ptr();
    cuda.stub.adopt(start, len, 1);
    let address = start.expose_provenance() as u64;
    // SAFETY: leaked, so valid forever; the test reads only what has been delivered; the default
    // stream lives.
    unsafe { Target::cuda(1, address, len, 0, None) }
}
