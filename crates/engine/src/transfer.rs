//! Statistics of reads. Reports of loads repeat the counters.

use std::ops::AddAssign;

/// Calls the macro `$declare` with the counters of [`Transfer`] and their docs in brackets, and
/// `$rest` behind them.
#[doc(hidden)]
#[macro_export]
macro_rules! with_transfer_counters {
    ($declare:ident => $($rest:tt)*) => {
        $declare! {
            [
                /// Bytes read past the page cache.
                direct_bytes,
                /// Bytes copied from the page cache.
                buffered_bytes,
                /// Bytes of files that were mapped and not copied (`cache=map`).
                mapped_bytes,
                /// Bytes received from object stores.
                remote_bytes,
                /// Bytes of objects that were read from the cache (store option `cache_dir`).
                cached_bytes,
                /// Bytes received from another rank, in shared memory. Not included in
                /// `read_bytes`.
                received_bytes,
                /// Requests to object stores for the bytes of tensors.
                requests,
                /// Reads that came back short and were continued.
                short_reads,
                /// Reads and requests that were repeated for any reason: `read_retries`,
                /// `request_retries`, and reads that the system interrupted (`EINTR`, `EAGAIN`) or
                /// refused to do with direct I/O.
                retries,
                /// Reads of files that were retried after a transient error.
                read_retries,
                /// Requests to object stores that were retried.
                request_retries,
                /// Reads of files and requests that took much longer than others of this load.
                stalls,
                /// Requests sent a second time because the first one stalled.
                hedges,
                /// Hedged requests whose second request was the faster one.
                hedges_won,
            ]
            $($rest)*
        }
    };
}

macro_rules! declare_transfer {
    ([$($(#[$of_counter:meta])* $counter:ident,)*] $(#[$of_transfer:meta])* pub struct Transfer;) => {
        $(#[$of_transfer])*
        pub struct Transfer {
            $($(#[$of_counter])* pub $counter: u64,)*
            /// Description of the last retry, and its cause.
            pub last_retry: Option<String>,
        }

        impl AddAssign for Transfer {
            fn add_assign(&mut self, next: Self) {
                $(self.$counter += next.$counter;)*
                self.last_retry = next.last_retry.or(self.last_retry.take());
            }
        }
    };
}

with_transfer_counters! {
    declare_transfer =>

    /// Statistics of reads: of one extent, or of all extents of a load.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Transfer;
}

impl Transfer {
    /// Returns the bytes that have arrived from storage.
    #[doc(hidden)]
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.direct_bytes
            + self.buffered_bytes
            + self.mapped_bytes
            + self.remote_bytes
            + self.cached_bytes
    }
}
