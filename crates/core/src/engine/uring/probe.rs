//! What a ring would be like on this machine, for `tload doctor`.

use std::sync::Arc;

use super::super::choose::Refusal;
use super::ring::Ring;
use crate::buffer::{Bell, Slab};

/// Sizes of registered memory to try, bytes: the default limit of locked memory is 8 MiB, and the largest single entry 1 GiB.
/// 64 MiB is what staging for one load needs.
const REGISTERED_BYTES_TRIED: [usize; 3] = [64 << 20, 4 << 20, 64 << 10];

/// What setting up a ring gave.
#[derive(Clone, Debug)]
pub struct RingProbe {
    /// Why there is none.
    pub refusal: Option<Refusal>,
    /// What of the kernel's offers a ring uses.
    pub features: Vec<String>,
    /// The largest buffer, of the sizes tried, that could be registered, bytes.
    pub registered_bytes_max: Option<u64>,
}

/// Sets up a ring as a load would, and takes it down again.
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
            features: Vec::new(),
            registered_bytes_max: None,
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
    let Ok(slab) = Slab::new(bytes, 1, Arc::<Bell>::default()) else {
        return false;
    };
    ring.register_slab(slab);
    ring.features()
        .iter()
        .any(|feature| feature == "registered_buffers")
}
