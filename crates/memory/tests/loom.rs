//! Hand-over of memory between threads, in every interleaving of their steps: no window has two
//! owners, no byte of the budget is lost or counted twice, and no wake-up is lost.
//!
//! A step is an operation on a lock or a counter ([loom](https://docs.rs/loom)). Every interleaving
//! is tried, or, where there would be too many, every one with a bounded number of preemptions
//! (`LOOM_MAX_PREEMPTIONS` sets the bound). Needs a build with `--cfg loom`.

#![cfg(loom)]

use std::sync::Arc as Plain;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use tload_memory::{EventCount, Pool, Slab, WriteGate};

/// Size of a page in bytes.
const PAGE: usize = 4096;

/// Tries every interleaving with at most `preemptions` preemptions.
fn model(preemptions: usize, steps: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(steps);
}

/// Memory tracked by loom, which reports an access that overlaps with another, or is not ordered
/// behind it.
#[derive(Default)]
struct Watched(UnsafeCell<u32>, AtomicBool);

impl Watched {
    /// Lets other threads run: loom switches threads only at operations on shared objects.
    fn turn(&self) {
        self.1.load(Ordering::Relaxed);
    }

    fn write(&self) {
        self.turn();
        #[expect(unsafe_code, reason = "loom checks that the access is exclusive")]
        self.0.with_mut(|it| {
            // SAFETY: if the access is not exclusive, loom ends the test before.
            unsafe { *it += 1 }
        });
    }

    fn read(&self) {
        self.turn();
        #[expect(unsafe_code, reason = "loom checks that no write overlaps")]
        self.0.with(|it| {
            // SAFETY: if another thread writes, loom ends the test before.
            std::hint::black_box(unsafe { *it })
        });
    }
}

// SAFETY: loom checks every access, which is what is tested.
#[expect(unsafe_code, reason = "loom checks what the compiler cannot")]
unsafe impl Sync for Watched {}

#[test]
fn event_count_waiters_are_never_lost() {
    model(3, || {
        let (events, free) = (
            Arc::new(EventCount::default()),
            Arc::new(AtomicBool::new(false)),
        );
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let (events, free) = (Arc::clone(&events), Arc::clone(&free));
                thread::spawn(move || {
                    loop {
                        let rung = events.count();
                        if free.load(Ordering::Acquire) {
                            return;
                        }
                        events.wait_past(rung);
                    }
                })
            })
            .collect();
        free.store(true, Ordering::Release);
        events.notify();
        // A sleeper that is never woken is a deadlock, which loom detects.
        for waiter in waiters {
            waiter.join().expect("ends");
        }
    });
}

/// Two tensors of a region, on two threads, each received and dropped or only dropped; meanwhile a
/// lane waits for their memory.
#[test]
fn dropped_tensors_memory_reused_by_one_region() {
    for [first, second] in [[true, true], [true, false], [false, false]] {
        model(2, move || {
            let events = Plain::new(EventCount::default());
            let pool = Plain::new(Pool::new(PAGE as u64, Plain::clone(&events)));
            let memory = Arc::new(Watched::default());
            let mut writer = pool.try_region(PAGE, 2).expect("maps").expect("fits");
            let tensors = [writer.carve(PAGE / 2), writer.carve(PAGE / 2)];
            drop(writer);
            let owners: Vec<_> = tensors
                .into_iter()
                .zip([first, second])
                .map(|(lease, is_received)| {
                    let filled = lease.fill_from(&[7; PAGE / 2]);
                    let region = filled.region().expect("a region's").0.clone();
                    drop(filled);
                    let memory = Arc::clone(&memory);
                    thread::spawn(move || {
                        if is_received {
                            region.tensor_received();
                        }
                        memory.read();
                        drop(region);
                    })
                })
                .collect();
            // A lane, whose new region must belong to it alone.
            let next = loop {
                let rung = events.count();
                match pool.try_region(PAGE, 1).expect("maps") {
                    Some(region) => break region,
                    None => events.wait_past(rung),
                }
            };
            // After the caller has received both, the memory is the caller's, and the pool may map
            // other memory.
            if !(first && second) {
                memory.write();
            }
            for owner in owners {
                owner.join().expect("ends");
            }
            drop(next);
            pool.close();
            assert_eq!(pool.usage().charged, 0);
            assert!(pool.usage().peak <= PAGE as u64);
        });
    }
}

/// The last tensor is received while its load is given up, and the memory of another one comes
/// back.
#[test]
fn pool_closed_concurrently_keeps_and_leaks_nothing() {
    model(3, || {
        let pool = Plain::new(Pool::new(2 * PAGE as u64, Plain::default()));
        let mut writer = pool.try_region(PAGE, 1).expect("maps").expect("fits");
        let region = {
            let filled = writer.carve(PAGE).fill_from(&[7; PAGE]);
            filled.region().expect("a region's").0.clone()
        };
        drop(writer);
        let other = pool.try_region(PAGE, 1).expect("maps").expect("fits");
        let caller = thread::spawn(move || {
            region.tensor_received();
            drop(region);
        });
        let lane = thread::spawn(move || drop(other));
        pool.close();
        caller.join().expect("ends");
        lane.join().expect("ends");
        assert_eq!(pool.usage().charged, 0);
    });
}

#[test]
fn slot_has_single_owner() {
    model(2, || {
        let events = Plain::new(EventCount::default());
        let slab = Slab::new(PAGE, 1, Plain::clone(&events)).expect("maps");
        let memory = Arc::new(Watched::default());
        let owners: Vec<_> = (0..2)
            .map(|_| {
                let (slab, events) = (Plain::clone(&slab), Plain::clone(&events));
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    let lease = loop {
                        let rung = events.count();
                        match slab.try_lease(PAGE) {
                            Some(lease) => break lease,
                            None => events.wait_past(rung),
                        }
                    };
                    memory.write();
                    drop(lease);
                })
            })
            .collect();
        for owner in owners {
            owner.join().expect("ends");
        }
        assert!(slab.has_free_slot());
    });
}

/// The caller may use its memory freely once the write gate is closed, by either of two threads: a
/// load that orphans its reads, and a caller that cancels.
#[test]
fn closed_gate_blocks_writes() {
    model(2, || {
        let gate = Arc::new(WriteGate::default());
        let memory = Arc::new(Watched::default());
        {
            // Writes queued inside the gate happen until it is drained.
            let memory = Arc::clone(&memory);
            gate.on_close(move || memory.write());
        }
        let lane = {
            let (gate, memory) = (Arc::clone(&gate), Arc::clone(&memory));
            thread::spawn(move || {
                if let Some(_inside) = gate.enter() {
                    memory.write();
                }
            })
        };
        let other = {
            let (gate, memory) = (Arc::clone(&gate), Arc::clone(&memory));
            thread::spawn(move || {
                gate.close();
                memory.read();
            })
        };
        gate.close();
        memory.read();
        assert!(gate.enter().is_none());
        other.join().expect("ends");
        memory.write();
        lane.join().expect("ends");
    });
}

/// Closing the gate waits for work queued inside it.
#[test]
fn gate_close_drains_queued_work() {
    model(3, || {
        let gate = Arc::new(WriteGate::default());
        let queued = Arc::new(AtomicBool::new(false));
        let drained = Arc::new(AtomicBool::new(false));
        {
            let (queued, drained) = (Arc::clone(&queued), Arc::clone(&drained));
            gate.on_close(move || {
                drained.store(queued.load(Ordering::Acquire), Ordering::Release);
            });
        }
        let lane = {
            let (gate, queued) = (Arc::clone(&gate), Arc::clone(&queued));
            thread::spawn(move || {
                if let Some(_inside) = gate.enter() {
                    queued.store(true, Ordering::Release);
                }
            })
        };
        gate.close();
        let was_drained = drained.load(Ordering::Acquire);
        lane.join().expect("ends");
        assert_eq!(
            was_drained,
            queued.load(Ordering::Acquire),
            "queued behind the gate, or not waited for"
        );
    });
}
