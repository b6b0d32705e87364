//! Access control, and the endpoint that issues keys.
//!
//! Owns the check of access keys and the container credentials protocol of AWS (`GET
//! /credentials`), from which clients refresh. Called by `state` under its lock.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::dates;
use super::reply::Reply;

/// Path of the endpoint, without the leading slash.
pub(super) const PATH: &str = "credentials";

/// Response of the credentials endpoint.
#[derive(Clone)]
pub enum Issue {
    /// Valid keys.
    Keys {
        /// `AccessKeyId`
        access_key_id: String,
        /// `SecretAccessKey`
        secret_access_key: String,
        /// `Token`
        token: String,
        /// Time from the response to `Expiration`, in whole seconds. Zero has expired on arrival.
        lifetime: Duration,
    },
    /// Error with this status.
    Failure(u16),
}

impl Issue {
    /// Creates keys with a secret and a token derived from the name.
    pub fn keys(access_key_id: &str, lifetime: Duration) -> Self {
        Self::Keys {
            access_key_id: access_key_id.to_owned(),
            secret_access_key: format!("secret-of-{access_key_id}"),
            token: format!("token-of-{access_key_id}"),
            lifetime,
        }
    }
}

impl fmt::Debug for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys {
                access_key_id,
                lifetime,
                ..
            } => f
                .debug_struct("Keys")
                .field("access_key_id", access_key_id)
                .field("lifetime", lifetime)
                .finish_non_exhaustive(),
            Self::Failure(status) => f.debug_tuple("Failure").field(status).finish(),
        }
    }
}

/// Returns the next response; the last one stays.
pub(super) fn answer(issues: &mut VecDeque<Issue>, id: &str) -> Reply {
    let issue = if issues.len() > 1 {
        issues.pop_front()
    } else {
        issues.front().cloned()
    };
    match issue {
        None => Reply::error(404, "NoSuchKey", id),
        Some(Issue::Failure(status)) => Reply::error(status, "InternalError", id),
        Some(Issue::Keys {
            access_key_id,
            secret_access_key,
            token,
            lifetime,
        }) => {
            let keys = serde_json::json!({
                "AccessKeyId": access_key_id,
                "SecretAccessKey": secret_access_key,
                "Token": token,
                "Expiration": dates::iso(dates::now() + lifetime.as_secs()),
            });
            Reply::text(200, "application/json", keys.to_string())
        }
    }
}

/// Check for one access key.
pub(super) struct Gatekeeper {
    key: String,
    status: u16,
    code: String,
}

impl Gatekeeper {
    pub(super) fn new(key: &str, status: u16, code: &str) -> Self {
        Self {
            key: key.to_owned(),
            status,
            code: code.to_owned(),
        }
    }

    pub(super) fn refusal(&self, authorization: Option<&str>, id: &str) -> Option<Reply> {
        let shown = authorization.and_then(|value| {
            let (_, credential) = value
                .split_once("Credential=")
                .or(value.split_once("Bearer "))?;
            Some(credential)
        });
        let known = shown.is_some_and(|shown| shown.starts_with(&self.key));
        (!known).then(|| Reply::error(self.status, &self.code, id))
    }
}
