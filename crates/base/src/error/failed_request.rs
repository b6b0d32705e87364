//! The failed request to an object store behind an error.

use std::fmt;

use super::counted;
use super::printable::printable;

/// Details of a failed request to an object store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedRequest {
    /// The operation: `"GET"`, `"LIST"`, …
    pub operation: String,
    /// The HTTP status, if a response arrived.
    pub status: Option<u16>,
    /// The store's own name for the failure, for example `"SlowDown"`.
    pub code: Option<String>,
    /// The store's identifier of the request, by which its operators find it.
    pub request_id: Option<String>,
    /// The number of attempts.
    pub attempts: u32,
    /// The origin of the credentials; never the credentials.
    pub credentials: Option<String>,
}

impl FailedRequest {
    /// Describes a request of this operation after one attempt.
    pub fn new(operation: impl Into<String>) -> Self {
        Self {
            operation: operation.into(),
            attempts: 1,
            ..Self::default()
        }
    }
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        if let Some(status) = self.status {
            write!(f, ", status {status}")?;
        }
        if let Some(code) = &self.code {
            write!(f, ", code {}", printable(code))?;
        }
        if let Some(id) = &self.request_id {
            write!(f, ", request id {}", printable(id))?;
        }
        write!(f, ", {}", counted(u64::from(self.attempts), "attempt"))?;
        if let Some(credentials) = &self.credentials {
            write!(f, ", credentials: {}", printable(credentials))?;
        }
        Ok(())
    }
}
