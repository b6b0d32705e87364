//! Retries of small requests.

use std::time::Duration;

use super::store::Fault;
use crate::error::Result;
use crate::sync::retry::Retries;
use crate::sync::retry_counter::RetryCounter;

/// Calls `once` and retries transient errors.
pub async fn with_retries<T, F: Future<Output = Result<T, Fault>>>(
    retries: Retries,
    retry_counter: &RetryCounter,
    mut once: impl FnMut() -> F,
) -> Result<T> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match once().await {
            Ok(found) => return Ok(found),
            Err(fault) => match wait(retries, &fault, attempts) {
                Some(wait) => {
                    tracing::debug!(error = %fault.error, ?wait, "retried");
                    retry_counter.count(&fault.error);
                    tokio::time::sleep(wait).await;
                }
                None => return Err(fault.into_error(attempts)),
            },
        }
    }
}

/// Returns the pause before the next attempt; `None` if there is none.
pub(super) fn wait(retries: Retries, fault: &Fault, failed: u32) -> Option<Duration> {
    retries.wait(fault.transient?, failed, fault.asked, fastrand::u32(..))
}
