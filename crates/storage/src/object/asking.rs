//! Requests for one state of an object: their conditions, and the comparison of each response with
//! the state that was opened.

use std::ops::Range;
use std::sync::atomic::Ordering;

use object_store::{GetOptions, GetRange, GetResult, ObjectMeta};

use super::store::{Fault, KnownLen, NoRange, ResponseCapture};
use super::{ObjectIdentity, ObjectSource};
use crate::error::{Error, ErrorKind, FailedRequest, Result};

impl ObjectSource {
    /// Requests `range` and returns the store's response.
    pub(super) async fn ask(
        &self,
        range: Range<u64>,
    ) -> Result<(GetResult, ResponseCapture), Fault> {
        self.require_validator().map_err(Fault::new)?;
        let by_version = self.0.by_version.load(Ordering::Relaxed);
        let options = self.conditions(by_version, range.clone());
        let fault = match self.0.store.get(&self.0.path, options).await {
            Ok(answer) => return Ok(answer),
            Err(fault) => fault,
        };
        if !by_version || fault.error.status() != Some(403) {
            return Err(judge(fault));
        }
        // On S3, `s3:GetObjectVersion` is a separate permission from `s3:GetObject`. The retry
        // without a version still requires the ETag.
        let options = self.conditions(false, range);
        let answer = self
            .0
            .store
            .get(&self.0.path, options)
            .await
            .map_err(judge)?;
        self.0.by_version.store(false, Ordering::Relaxed);
        Ok(answer)
    }

    /// Returns the options of a request for `range` of the same object. The response is compared as
    /// well, because not every server checks conditions. A time of modification is only compared:
    /// servers that keep fractions of a second refuse `If-Unmodified-Since` with the whole second
    /// that they state themselves.
    pub(super) fn conditions(&self, by_version: bool, range: Range<u64>) -> GetOptions {
        let identity = &self.0.identity;
        let mut options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: identity.strong_tag().map(str::to_owned),
            version: identity.version.clone().filter(|_| by_version),
            ..GetOptions::default()
        };
        options.extensions.insert(KnownLen(identity.len));
        options
    }

    pub(super) fn require_same(
        &self,
        meta: &ObjectMeta,
        captured: &ResponseCapture,
    ) -> Result<(), Fault> {
        match self.identity().difference(&ObjectIdentity::from_meta(meta)) {
            Some(what) => {
                let request = self.0.store.failed_request(captured, "GET");
                Err(changed(&self.0.store.redacted(&what, captured), request))
            }
            None => Ok(()),
        }
    }
}

/// Text of the error for an object that was removed.
pub(super) const GONE: &str = "it was removed";

/// Translates a refusal for an object that could be read before.
pub(super) fn judge(fault: Fault) -> Fault {
    let is_empty = matches!(fault.no_range, Some(NoRange::Empty { .. }));
    let what = match (fault.error.kind(), fault.error.status()) {
        (ErrorKind::NotFound, _) => GONE,
        (_, Some(416)) => "it is shorter than it was",
        _ if is_empty => "it is shorter than it was",
        _ => return fault,
    };
    changed(what, fault.error.request().cloned().unwrap_or_default())
}

/// Returns the error for an object that is another one now.
pub(super) fn changed_error(what: &str) -> Error {
    let message = format!("changed while it was read: {what}");
    Error::new(ErrorKind::Changed, message)
        .with_hint("load again when no process is writing to the checkpoint")
}

pub(super) fn changed(what: &str, request: FailedRequest) -> Fault {
    Fault::new(changed_error(what).with_request(request))
}
