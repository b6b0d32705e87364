//! Requests that write one object in parts, of which all or none become the object. They also
//! succeed if only an answer was lost.

use std::sync::Arc;

use object_store::PutPayload;
use object_store::multipart::PartId;
use object_store::path::Path;
use tload_storage::object::Writable;

use super::client::{Client, unless_missing};
use crate::error::{Error, ErrorKind, Result};
use crate::step;
use crate::target::BUFFER_BYTES;

/// Most parts of an upload to S3 and Google Cloud Storage. Azure allows 50,000.
pub(super) const PIECES_MAX: u64 = 10_000;

/// Returns the length of the parts of an object of `len` bytes: a multiple of a buffer's, so that
/// there are few enough of them.
pub fn piece_bytes(len: u64) -> usize {
    let buffers = len.div_ceil(PIECES_MAX * BUFFER_BYTES as u64);
    BUFFER_BYTES * usize::try_from(buffers.max(1)).expect("no file has as many bytes")
}

impl Client {
    /// Begins an object in parts, and returns the identifier of the upload.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn begin(&self, path: &Path) -> Result<String> {
        let ask = |store: Arc<dyn Writable>| async move { store.create_multipart(path).await };
        let begun = self.send("CreateMultipartUpload", ask).await;
        step::reach();
        begun
    }

    /// Sends the part with this index.
    ///
    /// # Errors
    ///
    /// Those of the store; [`ErrorKind::NotFound`] if there is no such upload.
    pub async fn send_piece(
        &self,
        path: &Path,
        id: &str,
        index: usize,
        payload: PutPayload,
    ) -> Result<PartId> {
        let ask = |store: Arc<dyn Writable>| {
            let payload = payload.clone();
            async move { store.put_part(path, &id.to_owned(), index, payload).await }
        };
        step::reach();
        let sent = self.send("UploadPart", ask).await;
        step::reach();
        sent
    }

    /// Makes the parts an object of `len` bytes.
    ///
    /// # Errors
    ///
    /// Those of the store; [`ErrorKind::Remote`] if the object has another length then.
    pub async fn complete(
        &self,
        path: &Path,
        id: &str,
        parts: Vec<PartId>,
        len: u64,
    ) -> Result<()> {
        let ask = |store: Arc<dyn Writable>| {
            let parts = parts.clone();
            async move { store.complete_multipart(path, &id.to_owned(), parts).await }
        };
        step::reach();
        let completed = self.send("CompleteMultipartUpload", ask).await;
        step::reach();
        // An answer may have been lost: the upload is complete, and unknown, at the next attempt.
        // No other writer writes to a name with this write's identifier, or beside its claim.
        let stored = match self.state(path).await {
            Ok(state) => state.map(|it| it.len),
            Err(error) => return Err(completed.err().unwrap_or(error)),
        };
        match completed {
            _ if stored == Some(len) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => {
                let found = stored.map_or("none".to_owned(), |bytes| bytes.to_string());
                let message = format!("the store has {found} of the {len} bytes of an object");
                let hint = "write again; see whether anything else writes to this prefix";
                Err(Error::new(ErrorKind::Remote, message).with_hint(hint))
            }
        }
    }

    /// Gives up an upload, which may have been completed or aborted.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn abort(&self, path: &Path, id: &str) -> Result<()> {
        let id = &id.to_owned();
        let ask = |store: Arc<dyn Writable>| async move { store.abort_multipart(path, id).await };
        unless_missing(self.send("AbortMultipartUpload", ask).await).map(drop)
    }
}
