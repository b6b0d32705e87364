//! The sink contract for every sink.

#![expect(unsafe_code, reason = "lends memory to a load")]

use std::sync::Arc;

use tload::engine::Wait;
use tload::memory::{EventCount, KeepAlive, Slab, Target};
use tload::plan::{Arrangement, Extent};
use tload::sink::{DiscardSink, HostSink, Sink, TargetSink};
use tload::testing::conformance::sink_suite;

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
