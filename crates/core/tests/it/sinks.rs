//! Every sink keeps the contract.

use std::sync::Arc;

use tload::buffer::{Bell, Slab};
use tload::engine::Wait;
use tload::plan::Extent;
use tload::sink::{DiscardSink, HostSink, Sink};
use tload::testing::conformance::sink_suite;

#[test]
fn the_host_sink_keeps_the_contract() {
    sink_suite(
        "host",
        &|request, lanes| {
            let sink = HostSink::new(Arc::clone(&request.plan), Arc::clone(&request.tensors));
            vec![sink; lanes]
        },
        &|(index, tensor)| (*index, tensor.bytes().to_vec()),
    );
}

#[test]
fn the_discard_sink_gives_windows_back_at_once_or_at_the_end() {
    let extent = Extent {
        source: 0,
        region: 0,
        offset: 0,
        window: 10,
        needed: 10,
        pieces: 0..0,
    };
    for (mut sink, kept) in [(DiscardSink::recycling(), 0), (DiscardSink::keeping(), 2)] {
        let slab = Slab::new(10, 2, Arc::<Bell>::default()).expect("maps");
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
