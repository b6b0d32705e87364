//! Checks of jobs in flight when the load is over, or when the engine is dropped.

use super::{Bench, Open, SLOT_BYTES, SLOTS, random};
use tload::internal::engine::Wait;
use tload_base::error::ErrorKind;
use tload_base::sync::cancel::CancelFlag;

/// Whatever is in flight: once the engine is dropped, its memory is no longer written to, and all
/// of it is free.
pub(super) fn drop_in_flight(open: Open<'_>) {
    for reaps in 0..4 {
        let contents = random(12, SLOTS * SLOT_BYTES);
        let mut bench = Bench::open(open, vec![contents.clone()], SLOTS);
        for index in 0..SLOTS {
            bench.submit(index, 0, index * SLOT_BYTES, SLOT_BYTES, SLOT_BYTES);
        }
        let mut done = Vec::new();
        for _ in 0..reaps {
            bench.engine().reap(Wait::No, &mut done);
        }
        let out = done.iter().filter(|done| done.result.is_ok()).count();
        let Bench {
            slab, under_test, ..
        } = bench;
        drop(under_test);
        // Immediately, and little of each: reads that still continue must not end before this
        // writes.
        let leases: Vec<_> = (0..SLOTS)
            .map_while(|_| slab.try_lease(SLOT_BYTES))
            .collect();
        let filled: Vec<_> = leases
            .into_iter()
            .map(|lease| lease.fill_from(&[0xC3; 64]))
            .collect();
        assert_eq!(filled.len(), SLOTS - out, "slots back after the drop");
        // Takes as long as the reads of the dropped engine would have taken.
        let mut other = Bench::open(open, vec![contents], SLOTS);
        other.read(0, 0, SLOT_BYTES, SLOT_BYTES);
        assert!(
            filled.iter().all(|filled| filled.bytes() == [0xC3; 64]),
            "written to after the engine was gone"
        );
    }
}

/// When the load is over, every job is returned, completed or cancelled, and none is lost.
pub(super) fn stopped(open: Open<'_>) {
    for reaps in 0..4 {
        let contents = vec![random(14, SLOTS * SLOT_BYTES)];
        let mut bench = Bench::open(open, contents, SLOTS);
        let cancel = CancelFlag::default();
        bench.engine().stop_when(&cancel);
        let mut done = Vec::new();
        for index in 0..SLOTS {
            bench.submit(index, 0, index * SLOT_BYTES, SLOT_BYTES, SLOT_BYTES);
        }
        for _ in 0..reaps {
            bench.engine().reap(Wait::No, &mut done);
        }
        cancel.cancel();
        done.extend(bench.reap_all());
        done.sort_by_key(|done| done.extent);
        let extents: Vec<_> = done.iter().map(|done| done.extent).collect();
        assert_eq!(extents, (0..SLOTS).collect::<Vec<_>>(), "each once");
        for done in &done {
            match &done.result {
                Ok(_) => bench.compare(done, 0, done.extent * SLOT_BYTES, SLOT_BYTES),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", error.chain()),
            }
        }
        drop(done);
        bench.assert_all_slots_free();
    }
}

/// A successful result holds its window; a failed job's window is free, or handed back.
pub(super) fn memory_comes_back(open: Open<'_>) {
    let mut bench = Bench::open(open, vec![random(13, 1 << 20)], SLOTS);
    let step = bench.up(4096);
    for index in 0..SLOTS {
        let beyond = (index % 2) << 21;
        bench.submit(index, 0, index * step + beyond, step, step);
    }
    let mut done = bench.reap_all();
    for one in &mut done {
        assert!(one.window.take().is_none() || one.result.is_err());
    }
    let good = done.iter().filter(|done| done.result.is_ok()).count();
    assert_eq!(good, SLOTS / 2);
    let free: Vec<_> = (0..SLOTS).map_while(|_| bench.slab.try_lease(1)).collect();
    assert_eq!(free.len(), SLOTS / 2, "windows of failed jobs");
    drop((done, free));
    bench.assert_all_slots_free();
}
