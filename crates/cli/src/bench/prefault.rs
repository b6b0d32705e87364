//! Makes the machine give us the memory that a run is about to ask for, before its clock starts.
//!
//! A virtual machine hands freed memory back to its host; touching it again costs seconds per GiB, far more than any disk,
//! and none of it has to do with loading. Whoever runs first in a round would pay for all. So every contender alike is
//! preceded by faulting in, and freeing, as much as it may take: the guest then has the pages, and what is timed is the
//! guest's own page faults.

use std::hint::black_box;

/// Faults in and frees `bytes` of memory; less, silently, if there is not so much.
pub(crate) fn prefault(bytes: u64) {
    let Ok(len) = usize::try_from(bytes) else {
        return;
    };
    let mut memory = Vec::<u8>::new();
    if memory.try_reserve_exact(len).is_ok() {
        // A value other than zero: the allocator's fresh pages read as zero without being there.
        memory.resize(len, 1);
        black_box(&memory);
    }
}
