//! Interface to a store of contents: a hub may keep the files of a repository in one, and name
//! their contents in its responses.

use std::ops::Range;

use async_trait::async_trait;
use object_store::ObjectMeta;
use object_store::path::Path;

use crate::backend::{Attempt, Pieces};
use crate::explain::failure::Fault;
use crate::http::response_capture::ResponseCapture;
use crate::requests::Requests;

/// Content store of one repository, as far as it is known.
#[async_trait]
pub(super) trait ContentStore: Send + Sync {
    /// Returns the content store as another opening has it.
    fn again(&self) -> Box<dyn ContentStore>;

    /// Records the hub's name for the contents of a file, if its response has one.
    fn learn(&self, commit: &str, file: &Path, meta: &ObjectMeta, captured: &ResponseCapture);

    /// Requests a range of a file, and returns the metadata that the hub sent with the file's
    /// hash; `None` if the file is to be read by the hub.
    async fn range<'a>(
        &'a self,
        requests: &'a Requests,
        file: &Path,
        range: Range<u64>,
        attempt: Attempt,
    ) -> Result<Option<(ObjectMeta, Pieces<'a>)>, Fault>;
}
