//! Whether a failed request, or a failed read of a file, is tried again, and when. Pure.
//!
//! Reads no clock and draws no random numbers: both come in as arguments. Used wherever something is asked of an object store,
//! for headers and lists as for extents, and wherever a file is read.

use std::time::Duration;

/// Whoever fails after so many bytes has got somewhere: the count of failures begins anew. A server that sends less each time is
/// not worth its patience.
pub(crate) const PROGRESS_BYTES: u32 = 64 << 10;

/// What failed, as far as trying again is concerned. What trying again cannot help (403, 404, a changed object) is none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transient {
    /// No connection: refused, no such host, no route.
    Unreachable,
    /// The server asked for patience: 408, 429, 503.
    Busy,
    /// The server or the connection broke: 500, 502, 504, reset, closed in the middle of a body.
    Broken,
    /// Nothing came for the time that a read may take.
    Stalled,
}

impl Transient {
    /// What an error number means that a file system on a network gives for a read or an open; none for those that stay.
    ///
    /// On a disk none of them passes: there the kernel has tried again itself, for as long as the drive and its driver are told to
    /// (`/sys/block/*/device/timeout`), before it says `EIO`.
    ///
    /// Sources: `nfs(5)`, `soft` and `softerr` (`EIO`, `ETIMEDOUT` when the server does not answer); Linux's
    /// `fs/nfs_common/common.c`, `nfs_errtbl` (`EREMOTEIO` for a fault of the server's, `ESTALE`); `fs/smb/client/smb2maperror.c`
    /// and `cifs_reconnect` (`EHOSTDOWN`, `EAGAIN`, `ECONNABORTED` while it connects again); `fs/fuse/dev.c` (`ENOTCONN` when
    /// the server is gone, `ECONNABORTED`); Lustre (`EIO` and `ENOTCONN` for a client that was evicted, until it is back).
    pub(crate) fn of_errno(errno: i32) -> Option<Self> {
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

    /// Whether the descriptor is of no use any more, and only opening the file again can help.
    pub(crate) fn wants_reopening(errno: i32) -> bool {
        matches!(errno, libc::ESTALE | libc::ENOTCONN)
    }
}

/// How often and how patiently a request is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Tries after the first one that brought nothing. Progress starts the count anew.
    pub max: u32,
    /// The same when the host cannot be reached at all.
    pub unreachable_max: u32,
}

impl Retries {
    /// Not once.
    pub const NONE: Self = Self {
        max: 0,
        unreachable_max: 0,
    };

    /// At most `max` tries after the first, whatever the failure.
    pub fn up_to(max: u32) -> Self {
        Self {
            max,
            unreachable_max: max,
        }
    }

    /// As patient with a host that cannot be reached as with everything else: it was there before.
    #[must_use]
    pub fn in_mid_load(self) -> Self {
        Self::up_to(self.max)
    }
}

impl Default for Retries {
    /// Eight: with the waits below 13 seconds on average, 25 at most, which outlasts the "slow down" of S3.
    fn default() -> Self {
        Self {
            max: 8,
            unreachable_max: UNREACHABLE_MAX,
        }
    }
}

/// Exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015): a wait is drawn
/// evenly from zero to `WAIT_BASE` × 2ⁿ, and never from more than `WAIT_MAX`.
const WAIT_BASE: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A server's `Retry-After` is obeyed up to this.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(30);

/// When a checkpoint is opened, an endpoint that cannot be reached is mistyped more often than restarted: the answer should not
/// take long.
const UNREACHABLE_MAX: u32 = 3;

impl Retries {
    /// How long to wait before the next try, or `None` to give up.
    ///
    /// `failed` counts the tries in a row that brought no byte, this one included; `asked` is what the server wants
    /// (`Retry-After`); `random` is any number.
    pub fn wait(
        &self,
        what: Transient,
        failed: u32,
        asked: Option<Duration>,
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
        Some(jittered.max(asked.unwrap_or_default().min(ASKED_WAIT_MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_then_it_gives_up() {
        let retries = Retries::default();
        let longest = |failed| retries.wait(Transient::Broken, failed, None, u32::MAX);
        let millis: Vec<_> = (1..=8)
            .map(|failed| longest(failed).expect("tries again").as_millis())
            .collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert_eq!(longest(9), None);
    }

    #[test]
    fn what_may_pass_on_a_network_is_tried_again_and_what_stays_is_not() {
        for errno in [libc::EIO, libc::ESTALE, libc::ECONNABORTED] {
            assert_eq!(Transient::of_errno(errno), Some(Transient::Broken));
        }
        assert_eq!(
            Transient::of_errno(libc::ETIMEDOUT),
            Some(Transient::Stalled)
        );
        assert_eq!(Transient::of_errno(libc::EAGAIN), Some(Transient::Busy));
        for errno in [
            libc::EINVAL,
            libc::EACCES,
            libc::EISDIR,
            libc::EFAULT,
            libc::EBADF,
        ] {
            assert_eq!(Transient::of_errno(errno), None);
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
    fn a_server_is_obeyed_within_reason() {
        let wait = |asked| {
            let asked = Some(Duration::from_secs(asked));
            Retries::default().wait(Transient::Busy, 1, asked, 0)
        };
        assert_eq!(wait(5), Some(Duration::from_secs(5)));
        assert_eq!(wait(3600), Some(ASKED_WAIT_MAX));
    }

    #[test]
    fn nobody_waits_long_for_a_host_that_is_not_there() {
        let retries = Retries::default();
        assert!(retries.wait(Transient::Unreachable, 3, None, 0).is_some());
        assert_eq!(retries.wait(Transient::Unreachable, 4, None, 0), None);
        let patient = retries.in_mid_load();
        assert!(patient.wait(Transient::Unreachable, 8, None, 0).is_some());
        assert_eq!(Retries::up_to(0).wait(Transient::Busy, 1, None, 0), None);
    }
}
