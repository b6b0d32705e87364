//! Limits and preferences of one load.

use std::time::Duration;

use super::share::{OnPeerLoss, Share};
use super::trial::Trial;
use super::{CacheMode, Order, with_setters};
use crate::error::named;
use crate::format::Dtype;
use crate::verify::Verify;

named! {
    /// Engine that performs the reads.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum EngineChoice {
        /// `uring` where a ring can be created and files are not on an in-memory file system, else
        /// `pread`.
        #[default]
        Auto = "auto",
        /// `io_uring` for files, or fail. Objects have their own engine in any case.
        Uring = "uring",
        /// Threads that call `pread` for files.
        Pread = "pread",
        /// `io_uring` through the crate `tokio-uring` for files, or fail. Never chosen
        /// automatically; needs the feature `tokio-uring`.
        TokioUring = "tokio-uring",
    }
    /// Every choice.
    pub const ALL;
    /// Returns the name that options and reports use.
    pub fn name;
    impl FromStr as "engine";
}

with_setters! {
/// Limits and preferences of a load; with `None` and the defaults the load chooses.
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::error::*;
/// #     pub use tload_options::*;
/// # }
/// use std::time::Duration;
/// use tload::{LoadOptions, Order};
///
/// let options = LoadOptions::new()
///     .memory_limit(1 << 30)
///     .order(Order::File)
///     .timeout(Duration::from_secs(60));
/// assert_eq!(options.memory_limit, Some(1 << 30));
/// assert_eq!(options.depth, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Engine that performs the reads. Default: [`EngineChoice::Auto`].
    pub engine: EngineChoice,
    /// Page cache mode of file reads. Default: [`CacheMode::Auto`].
    pub cache: CacheMode,
    /// With [`CacheMode::Map`], makes tensors writable: the process gets a private copy of each
    /// page that it writes to; the file is not changed. Otherwise writing to a tensor kills the
    /// process (`SIGSEGV`). Other tensors are writable, unless [`Self::private`] is false. Default:
    /// no.
    pub writable: bool,
    /// Order in which tensors are handed out. Default: [`Order::Ready`].
    pub order: Order,
    /// Reads in flight, over all lanes, for each file system; requests in flight for each object
    /// store. Default: adjusted during the load, starting from the source's hint; fixed at the hint
    /// if only `in_flight_bytes` is set.
    pub depth: Option<usize>,
    /// Bytes in flight, over all lanes, for each file system and each object store; one read is
    /// always allowed. Default: `depth` times `extent_bytes` if `depth` is set; else adjusted
    /// during the load, starting from the source's hint.
    pub in_flight_bytes: Option<u64>,
    /// Largest read of a file, bytes, rounded up to the alignment of direct I/O; longest request to
    /// an object store. Default: the source's hint.
    pub extent_bytes: Option<u64>,
    /// Alignment of tensors in host memory, bytes, rounded up to a power of two of at most 64. A
    /// tensor that cannot be read to such an address is moved there, which takes a copy, and with
    /// many small ones more reads; tensors of 1 MiB and more that come from object stores or
    /// through the page cache begin on a page in any case. Some CPU kernels are slower with other
    /// addresses or round differently. Default: the size of the dtype's elements.
    pub align: Option<u64>,
    /// Converts floating-point tensors to this dtype (F64, F32, F16 or BF16) in host memory, when
    /// their bytes have arrived and before they are handed out: rounded to nearest, ties to even;
    /// out of range, infinite. Integers stay, and quantised tensors: packed floats, scales, and
    /// 8-bit floats with a tensor beside them whose name says that it is a scale. A tensor that is
    /// converted has memory of its own, for its bytes before and after, whichever are more, which
    /// `memory_limit` counts; with [`CacheMode::Map`] it is no view. Not for tensors on a GPU or in
    /// the caller's memory. Default: as in the file.
    pub dtype: Option<Dtype>,
    /// Threads for the files of each file system, each with its own engine. Default: one per
    /// core, up to 8, for files in the page cache, unless they are loaded to a GPU without
    /// verification; else 1, growing while it is saturated.
    pub lanes: Option<usize>,
    /// Most bytes that the load may hold and the caller has not received yet. Default: max(512 MiB,
    /// largest tensor + max(a quarter of it, the most bytes in flight)); those are 1.25 GiB for
    /// object stores, unless [`Self::depth`] or [`Self::in_flight_bytes`] is given. In a cgroup
    /// with little memory less: half of what it leaves, or the minimum that the load needs.
    pub memory_limit: Option<u64>,
    /// Most bytes of each GPU that the load may hold and the caller has not received yet. Default:
    /// as for `memory_limit`, or eight regions if they are larger (see `region_bytes`), and at most
    /// the free memory. A region counts until all of its tensors have been received. When any
    /// tensor goes to a GPU, `memory_limit` bounds the staging memory.
    pub device_memory_limit: Option<u64>,
    /// Largest region of GPU memory that several tensors share, bytes, and so the most that a
    /// kept tensor retains besides its own memory. Larger regions take less time to allocate; a
    /// tensor of this size or more has memory of its own, and with 1 every tensor has. Never more
    /// than an eighth of [`Self::device_memory_limit`], nor than a tenth of the free memory; less
    /// if more than four files are read at once. Default: 64 MiB; 256 MiB for Python's
    /// `tload.load`, which keeps all tensors.
    pub region_bytes: Option<u64>,
    /// Compares the bytes read with known digests during the load; a mismatch is
    /// [`ErrorKind::Corrupt`]. A tensor that does not match is not handed over if it has a digest
    /// of its own; caller-provided memory may hold earlier pieces of it by then. Default:
    /// [`Verify::Off`].
    pub verify: Verify,
    /// Retries of a failed request to an object store or a failed read of a file before the load
    /// fails; only missing bytes are requested again. 0 disables retries. Default: the value in the
    /// store options; without one, 8 for requests and for files on network file systems, where
    /// errors may be transient, and 0 for other files.
    pub retries: Option<u32>,
    /// Hedges requests to object stores: one that takes much longer than others is sent a second
    /// time, for the missing bytes; the first response wins. At most one in 20 requests is hedged,
    /// and each once. Default: yes.
    pub hedge: Option<bool>,
    /// Timeout of the load, including opening its files; when exceeded, the load fails with
    /// [`ErrorKind::TimedOut`]. Storage that does not respond delays the caller by at most half a
    /// second beyond that; memory of reads that cannot be cancelled is freed when the storage
    /// responds ([`crate::orphaned_bytes`]). Default: no limit.
    pub timeout: Option<Duration>,
    /// Ranks that share what is read, in a load with a [`Group`](crate::Group). Default:
    /// [`Share::Node`].
    pub share: Share,
    /// Time that the ranks of a group have to begin the load together; when exceeded, it fails with
    /// [`ErrorKind::Peer`]. With verification, also the time that a rank may keep the others
    /// waiting. Default: 30 seconds.
    pub join_timeout: Option<Duration>,
    /// Reaction to the loss of the rank that reads for this one. Default: [`OnPeerLoss::Error`].
    pub on_peer_loss: OnPeerLoss,
    /// With a group, makes tensors in host memory private and writable: those that several ranks of
    /// a node load are views of memory that the ranks share, one copy for the node, and the kernel
    /// copies each page that is written to. Otherwise writing to them kills the process
    /// (`SIGSEGV`). Default: yes.
    pub private: Option<bool>,
    ;
    /// Variants that are being measured.
    #[doc(hidden)]
    pub trial: Trial,
}
}

impl LoadOptions {
    /// Creates options with their defaults.
    pub fn new() -> Self {
        Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_names_round_trip() {
        for engine in [EngineChoice::Auto, EngineChoice::Uring, EngineChoice::Pread] {
            assert_eq!(
                engine.to_string().parse::<EngineChoice>().expect("a name"),
                engine
            );
        }
        for order in [Order::Ready, Order::File] {
            assert_eq!(order.to_string().parse::<Order>().expect("a name"), order);
        }
        for cache in [
            CacheMode::Auto,
            CacheMode::Direct,
            CacheMode::Buffered,
            CacheMode::Drop,
            CacheMode::Map,
        ] {
            assert_eq!(
                cache.to_string().parse::<CacheMode>().expect("a name"),
                cache
            );
        }
        let error = "random".parse::<Order>().expect_err("unknown");
        assert_eq!(
            error.message(),
            "order \"random\" is unknown; it can be ready, file"
        );
    }
}
