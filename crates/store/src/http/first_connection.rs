//! Limits how long the first connection to a hub may take, so that a machine without a network
//! learns it in two seconds. Later connections have `connect_timeout` each, and retries.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use tokio::time::{Instant, sleep_until};

/// Longest time until the first connection: looking up the name, connecting, and TLS, of all
/// attempts together. A satellite link needs three round trips of 0.6 s.
const LIMIT: Duration = Duration::from_secs(2);

/// State of the connections to one store.
#[derive(Debug, Default)]
pub(crate) struct FirstConnection {
    is_made: AtomicBool,
    deadline: OnceLock<Instant>,
}

/// Error of a request that could not be sent in time.
#[derive(Debug)]
struct NotMade;

impl fmt::Display for NotMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no connection within {} s", LIMIT.as_secs())
    }
}

impl std::error::Error for NotMade {}

impl FirstConnection {
    /// Records that a connection was made: from now on nothing is limited.
    pub(crate) fn made(&self) {
        self.is_made.store(true, Ordering::Relaxed);
    }

    /// Returns whether a connection was made.
    pub(crate) fn is_made(&self) -> bool {
        self.is_made.load(Ordering::Relaxed)
    }

    /// Returns whether the time is over and no connection was made.
    pub(crate) fn is_too_late(&self) -> bool {
        let is_over = |deadline: &Instant| *deadline <= Instant::now();
        !self.is_made.load(Ordering::Relaxed) && self.deadline.get().is_some_and(is_over)
    }

    /// Runs a request. The time begins with the first one.
    pub(crate) async fn limit<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        let too_late = async {
            let deadline = *self.deadline.get_or_init(|| Instant::now() + LIMIT);
            sleep_until(deadline).await;
            if self.is_made.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            answer = request => answer,
            () = too_late => Err(object_store::Error::Generic {
                store: "hub",
                source: HttpError::new(HttpErrorKind::Connect, NotMade).into(),
            }),
        }
    }
}
