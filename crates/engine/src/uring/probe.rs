//! Probe of the features of a ring on this machine, for `tload doctor`.

use std::sync::Arc;

use super::ring::Ring;
use crate::memory::Slab;
use crate::setup::RingProbe;
use crate::sync::event_count::EventCount;

/// Sizes of registered memory to try, bytes: the default limit of locked memory is 8 MiB, and the
/// largest single entry 1 GiB. Staging for one load needs 64 MiB.
const REGISTERED_BYTES_TRIED: [usize; 3] = [64 << 20, 4 << 20, 64 << 10];

/// Sets up a ring as a load would, and closes it again.
pub fn probe_ring() -> RingProbe {
    match Ring::open(32) {
        Ok(ring) => {
            let features = ring.features();
            drop(ring);
            RingProbe {
                refusal: None,
                features,
                registered_bytes_max: largest_registered(),
            }
        }
        Err(refusal) => RingProbe {
            refusal: Some(refusal),
            ..RingProbe::default()
        },
    }
}

fn largest_registered() -> Option<u64> {
    REGISTERED_BYTES_TRIED
        .into_iter()
        .find(|&bytes| registers(bytes))
        .map(|bytes| bytes as u64)
}

fn registers(bytes: usize) -> bool {
    let Ok(mut ring) = Ring::open(1) else {
        return false;
    };
    let Ok(slab) = Slab::new(bytes, 1, Arc::<EventCount>::default()) else {
        return false;
    };
    ring.register_slab(slab);
    let features = ring.features();
    ring.unregister_slab();
    features.iter().any(|it| it == "registered_buffers")
}
