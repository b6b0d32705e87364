//! Retry policy: whether and when a failed request, or a failed read of a file, is retried. Pure.
//!
//! Reads no clock and draws no random numbers: both are arguments. Used for every request to an
//! object store, for headers and lists as well as extents, and for every read of a file.

use std::time::Duration;

/// Bytes that count as progress: a failure after at least this many resets the count of failures. A
/// server that sends less on each attempt is not worth retrying indefinitely.
pub const PROGRESS_BYTES: u32 = 64 << 10;

/// Category of a transient error. Errors that a retry cannot fix (403, 404, a changed object) have
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transient {
    /// No connection: refused, unknown host, no route.
    Unreachable,
    /// The server asked to back off: 408, 429, 503.
    Busy,
    /// The server or the connection broke: 500, 502, 504, reset, closed in the middle of a body.
    Broken,
    /// Nothing arrived within the read timeout.
    Stalled,
}

impl Transient {
    /// Returns the category of an `errno` that a network file system returns for a read or an open;
    /// none for permanent errors.
    ///
    /// On a local disk none of them is transient: the kernel has already retried, for as long as
    /// the drive and its driver are configured to (`/sys/block/*/device/timeout`), before it
    /// returns `EIO`.
    ///
    /// Sources: `nfs(5)`, `soft` and `softerr` (`EIO`, `ETIMEDOUT` if the server does not respond);
    /// Linux's `fs/nfs_common/common.c`, `nfs_errtbl` (`EREMOTEIO` for a server fault, `ESTALE`);
    /// `fs/smb/client/smb2maperror.c` and `cifs_reconnect` (`EHOSTDOWN`, `EAGAIN`, `ECONNABORTED`
    /// while it reconnects); `fs/fuse/dev.c` (`ENOTCONN` when the server is gone, `ECONNABORTED`);
    /// Lustre (`EIO` and `ENOTCONN` for an evicted client, until it has reconnected).
    pub fn from_errno(errno: i32) -> Option<Self> {
        match errno {
            libc::EAGAIN => Some(Self::Busy),
            libc::EIO | libc::ESTALE | libc::ECONNRESET | libc::ECONNABORTED => Some(Self::Broken),
            #[cfg(target_os = "linux")]
            libc::EREMOTEIO => Some(Self::Broken),
            libc::ETIMEDOUT => Some(Self::Stalled),
            libc::ENOTCONN
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::ENETUNREACH => Some(Self::Unreachable),
            _ => None,
        }
    }

    /// Returns whether the descriptor is unusable, so that only reopening the file can help.
    pub fn wants_reopening(errno: i32) -> bool {
        matches!(errno, libc::ESTALE | libc::ENOTCONN)
    }
}

/// Limits on the retries of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of consecutive retries without progress. Progress resets the count.
    pub max: u32,
    /// Maximum number of consecutive retries while the host cannot be reached at all.
    pub unreachable_max: u32,
}

impl Retries {
    /// No retries.
    pub const NONE: Self = Self {
        max: 0,
        unreachable_max: 0,
    };

    /// Creates limits of `max` retries for every category.
    pub fn up_to(max: u32) -> Self {
        Self {
            max,
            unreachable_max: max,
        }
    }

    /// Returns the limits during a load: unreachable hosts get as many retries as other failures,
    /// because the host was reachable before.
    #[must_use]
    pub fn in_mid_load(self) -> Self {
        Self::up_to(self.max)
    }
}

impl Default for Retries {
    /// Returns limits of eight retries. The waits below sum to 13 seconds on average and 25 at
    /// most, which outlasts the "slow down" of S3.
    fn default() -> Self {
        Self {
            max: 8,
            unreachable_max: UNREACHABLE_MAX,
        }
    }
}

/// Exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS
/// Architecture Blog 2015): each wait is drawn uniformly from zero to `WAIT_BASE` × 2ⁿ, with an
/// upper bound of `WAIT_MAX`.
const WAIT_BASE: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Maximum `Retry-After` that is honoured.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(30);

/// Maximum wait for the renewal of a quota that is honoured. The windows of model hubs are five
/// minutes long.
const RESET_WAIT_MAX: Duration = Duration::from_secs(310);

/// Wait that a server asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedWait {
    /// An estimate (`Retry-After`): an earlier request may succeed.
    Estimate(Duration),
    /// Until a used-up quota is renewed (`RateLimit`): every earlier request is refused.
    Reset(Duration),
}

impl AskedWait {
    fn honoured(self) -> Duration {
        match self {
            Self::Estimate(wait) => wait.min(ASKED_WAIT_MAX),
            Self::Reset(wait) => wait.min(RESET_WAIT_MAX),
        }
    }
}

/// Maximum retries of an unreachable endpoint when a checkpoint is opened: the endpoint is mistyped
/// more often than restarted, so the error should not take long.
const UNREACHABLE_MAX: u32 = 3;

impl Retries {
    /// Returns how long to wait before the next attempt, or `None` to give up.
    ///
    /// `failed` counts the consecutive attempts without progress, including this one; `asked` is
    /// the server's wait; `random` is any number.
    pub fn wait(
        &self,
        what: Transient,
        failed: u32,
        asked: Option<AskedWait>,
        random: u32,
    ) -> Option<Duration> {
        let max = match what {
            Transient::Unreachable => self.unreachable_max,
            Transient::Busy | Transient::Broken | Transient::Stalled => self.max,
        };
        if failed > max {
            return None;
        }
        let doublings = failed.saturating_sub(1).min(16);
        let ceiling = (WAIT_BASE * 2u32.pow(doublings)).min(WAIT_MAX);
        let jittered = ceiling.mul_f64(f64::from(random) / f64::from(u32::MAX));
        Some(jittered.max(asked.map_or(Duration::ZERO, AskedWait::honoured)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_limit_then_gives_up() {
        let retries = Retries::default();
        let longest = |failed| retries.wait(Transient::Broken, failed, None, u32::MAX);
        let millis: Vec<_> = (1..=8)
            .map(|failed| longest(failed).expect("retries").as_millis())
            .collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert_eq!(longest(9), None);
    }

    #[test]
    fn transient_errnos_are_retryable_and_permanent_are_not() {
        for errno in [libc::EIO, libc::ESTALE, libc::ECONNABORTED] {
            assert_eq!(Transient::from_errno(errno), Some(Transient::Broken));
        }
        assert_eq!(
            Transient::from_errno(libc::ETIMEDOUT),
            Some(Transient::Stalled)
        );
        assert_eq!(Transient::from_errno(libc::EAGAIN), Some(Transient::Busy));
        for errno in [
            libc::EINVAL,
            libc::EACCES,
            libc::EISDIR,
            libc::EFAULT,
            libc::EBADF,
        ] {
            assert_eq!(Transient::from_errno(errno), None);
        }
        assert!(Transient::wants_reopening(libc::ESTALE));
        assert!(!Transient::wants_reopening(libc::EIO));
    }

    #[test]
    fn jitter_is_full() {
        let retries = Retries::up_to(4);
        let wait = |random| retries.wait(Transient::Stalled, 4, None, random);
        assert_eq!(wait(0), Some(Duration::ZERO));
        assert_eq!(wait(u32::MAX), Some(Duration::from_millis(800)));
    }

    #[test]
    fn asked_wait_is_honoured_up_to_maximum() {
        let wait = |asked: fn(Duration) -> AskedWait, seconds| {
            let asked = Some(asked(Duration::from_secs(seconds)));
            let wait = Retries::default().wait(Transient::Busy, 1, asked, 0);
            wait.expect("a retry").as_secs()
        };
        assert_eq!(wait(AskedWait::Estimate, 5), 5);
        assert_eq!(wait(AskedWait::Estimate, 3600), 30);
        // The rest of a window of five minutes.
        assert_eq!(wait(AskedWait::Reset, 250), 250);
        assert_eq!(wait(AskedWait::Reset, 3600), 310);
    }

    #[test]
    fn unreachable_host_is_retried_less_when_opening() {
        let retries = Retries::default();
        assert!(retries.wait(Transient::Unreachable, 3, None, 0).is_some());
        assert_eq!(retries.wait(Transient::Unreachable, 4, None, 0), None);
        let patient = retries.in_mid_load();
        assert!(patient.wait(Transient::Unreachable, 8, None, 0).is_some());
        assert_eq!(Retries::up_to(0).wait(Transient::Busy, 1, None, 0), None);
    }
}
