//! Limits and preferences of one load.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Verify;
use crate::error::{Error, ErrorKind, Result};
use crate::source::Cache;

/// Where the tensors are to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of a GPU, by its number in this process.
    Cuda(usize),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let kind = text.split_once(':').map_or(text, |(kind, _)| kind);
        if matches!(text, "cpu" | "cpu:0") {
            return Ok(Self::Cpu);
        }
        if text == "cuda" {
            return Ok(Self::Cuda(0));
        }
        let ordinal = text.strip_prefix("cuda:").filter(|number| {
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            digits && number.len() < 6
        });
        if let Some(ordinal) = ordinal.and_then(|number| number.parse().ok()) {
            return Ok(Self::Cuda(ordinal));
        }
        // What PyTorch calls its other devices.
        if ["hip", "mps", "xpu", "hpu", "npu", "mtia", "meta"].contains(&kind) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("device {text:?}: tload loads into CPU memory and into that of CUDA GPUs"),
            )
            .with_hint("use device=cpu and copy"));
        }
        Err(Error::unknown_name(
            "device",
            text,
            &["cpu", "cuda", "cuda:N"],
        ))
    }
}

/// Which engine fills memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineChoice {
    /// `uring` where a ring can be set up and files are not on a file system in memory, else `pread`.
    #[default]
    Auto,
    /// `io_uring` for files, or fail. Objects have an engine of their own, whatever is chosen.
    Uring,
    /// Threads that call `pread` for files.
    Pread,
    /// `io_uring` through the crate `tokio-uring` for files, or fail. Only used when asked for; needs the feature `tokio-uring`.
    TokioUring,
}

impl EngineChoice {
    /// The name that options and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Pread => "pread",
            Self::TokioUring => "tokio-uring",
        }
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "pread" => Ok(Self::Pread),
            "tokio-uring" => Ok(Self::TokioUring),
            _ => Err(Error::unknown_name(
                "engine",
                text,
                &["auto", "uring", "pread", "tokio-uring"],
            )),
        }
    }
}

/// In which order tensors are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// As they become complete.
    #[default]
    Ready,
    /// By shard, then by offset in the shard. Shards are then read one after another.
    File,
}

impl Order {
    /// The name that options and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::File => "file",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "ready" => Ok(Self::Ready),
            "file" => Ok(Self::File),
            _ => Err(Error::unknown_name("order", text, &["ready", "file"])),
        }
    }
}

/// Limits and preferences; `None` and the defaults let the load choose.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Which engine fills memory. Default: [`EngineChoice::Auto`].
    pub engine: EngineChoice,
    /// Whether reads go through the page cache. Default: [`Cache::Auto`].
    pub cache: Cache,
    /// With [`Cache::Map`]: whether tensors may be written to. The process then gets a page of its own for each that it writes to;
    /// the file stays as it is. If not, writing to a tensor kills the process (`SIGSEGV`). Other tensors may always be written to.
    /// Default: no.
    pub writable: bool,
    /// In which order tensors are handed out. Default: [`Order::Ready`].
    pub order: Order,
    /// Reads in flight, over all lanes, for each file system; requests in flight for each object store. Default: found while the load
    /// runs, beginning with the source's hint; a given `in_flight_bytes` alone leaves it at that.
    pub depth: Option<usize>,
    /// Bytes in flight, over all lanes, for each file system and each object store; one read is always allowed. Default: found while
    /// the load runs, beginning with the source's hint; or `depth` times `extent_bytes` when `depth` is given.
    pub in_flight_bytes: Option<u64>,
    /// Largest read of a file, bytes, rounded up to the alignment of direct I/O; longest request to an object store. Default: the
    /// source's hint.
    pub extent_bytes: Option<u64>,
    /// Threads that each run an engine of their own, for the files of each file system. Default: as many as cores where cores are
    /// the limit, as with files that are in memory already; else 1, and more when that one has no time left.
    pub lanes: Option<usize>,
    /// Most bytes that the load may hold which the caller has not received yet. Default: 512 MiB; or the largest tensor and
    /// beside it a quarter of it or what may be in flight, if that is more. In a control group with little memory less: half of what
    /// it leaves, or what the load cannot do without.
    pub memory_limit: Option<u64>,
    /// Most bytes of each GPU that the load may hold which the caller has not received yet. Default: as for `memory_limit`, and no
    /// more than is free. When anything goes to a GPU, `memory_limit` is what the staging memory on the way may take.
    pub device_memory_limit: Option<u64>,
    /// Whether what is read is compared with digests that somebody has made of it, while it passes; a difference is
    /// [`ErrorKind::Corrupt`]. A tensor that is wrong is not handed over if it has a digest of its own; memory of the caller's may hold
    /// earlier pieces of it by then. Default: [`Verify::Off`].
    pub verify: Verify,
    /// How often what failed is tried again before the load fails, a request to an object store or a read of a file; only what is
    /// missing is asked for. 0 tries nothing again. Default: what the options of the store say; without any 8 for requests and for
    /// files on network file systems, where failures may pass, and 0 for other files.
    pub retries: Option<u32>,
    /// Whether a request to an object store that takes much longer than others is sent a second time, for what is missing; the
    /// first answer counts. At most one in 20 requests is, and each once. Default: yes.
    pub hedge: Option<bool>,
    /// The load fails with [`ErrorKind::TimedOut`] when it takes longer, opening its files included. Storage that does not answer
    /// keeps nobody waiting longer than half a second beyond that; the memory of reads that cannot be taken back is freed when it
    /// answers ([`crate::parked_bytes`]). Default: no limit.
    pub timeout: Option<Duration>,
}

/// Largest extent: one kernel read moves less than 2 GiB (`MAX_RW_COUNT`).
const EXTENT_BYTES_MAX: u64 = 1 << 30;
/// Largest depth: the size of the largest ring that every kernel with `io_uring` makes.
const DEPTH_MAX: usize = 4096;
/// Most lanes.
const LANES_MAX: usize = 256;

impl Options {
    /// Refuses what cannot work whatever the checkpoint is. Starting a load does the same.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] that names the field, its value and what it may be.
    pub fn validate(&self) -> Result<()> {
        within("depth", self.depth, 1, DEPTH_MAX)?;
        within("lanes", self.lanes, 1, LANES_MAX)?;
        within("extent_bytes", self.extent_bytes, 4096, EXTENT_BYTES_MAX)?;
        within("in_flight_bytes", self.in_flight_bytes, 1, u64::MAX)?;
        within("memory_limit", self.memory_limit, 1, u64::MAX)?;
        within("device_memory_limit", self.device_memory_limit, 1, u64::MAX)?;
        if self.timeout == Some(Duration::ZERO) {
            return Err(Error::new(ErrorKind::InvalidRequest, "timeout is zero"));
        }
        Ok(())
    }
}

fn within<T: Copy + PartialOrd + fmt::Display>(
    name: &str,
    value: Option<T>,
    min: T,
    max: T,
) -> Result<()> {
    match value {
        Some(value) if value < min || value > max => Err(Error::new(
            ErrorKind::InvalidRequest,
            format!("{name} is {value}; it must lie between {min} and {max}"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
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
            Cache::Auto,
            Cache::Direct,
            Cache::Buffered,
            Cache::Drop,
            Cache::Map,
        ] {
            assert_eq!(cache.to_string().parse::<Cache>().expect("a name"), cache);
        }
        let error = "aio".parse::<EngineChoice>().expect_err("unknown");
        assert_eq!(
            error.message(),
            "engine \"aio\" is unknown; it can be auto, uring, pread, tokio-uring"
        );
    }

    #[test]
    fn devices_are_read_back_others_are_unsupported_and_nonsense_is_invalid() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(15)] {
            assert_eq!(
                device.to_string().parse::<Device>().expect("a name"),
                device
            );
        }
        assert_eq!("cuda".parse::<Device>().expect("a name"), Device::Cuda(0));
        let error = "mps:0".parse::<Device>().expect_err("not ours");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for nonsense in [
            "tpu",
            "cuda:",
            "cuda:x",
            "cuda:+1",
            "cuda:-1",
            "cuda:123456",
        ] {
            let error = nonsense.parse::<Device>().expect_err("unknown");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        }
    }

    #[test]
    fn limits_are_checked_and_named() {
        let options = Options {
            depth: Some(0),
            ..Options::default()
        };
        let error = options.validate().expect_err("zero depth");
        assert_eq!(
            error.message(),
            "depth is 0; it must lie between 1 and 4096"
        );
        let options = Options {
            timeout: Some(Duration::ZERO),
            ..Options::default()
        };
        assert!(options.validate().is_err());
        Options::default().validate().expect("defaults are valid");
    }
}
