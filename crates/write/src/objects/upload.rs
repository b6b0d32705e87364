//! One object that is uploaded in parts, several at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use object_store::PutPayload;
use object_store::multipart::PartId;
use object_store::path::Path;
use tload_storage::object::Writable;

use super::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::step;
use crate::target::{BUFFER_BYTES, Buffer, Output};

/// Parts in flight: as many as loads have requests in flight by default.
const IN_FLIGHT: usize = 8;

/// Buffers of an upload: those in flight, one that is being filled, and one for the first bytes of
/// the file.
const BUFFERS: usize = IN_FLIGHT + 2;

/// Most parts of an upload to S3 and Google Cloud Storage. Azure allows 50,000.
const PIECES_MAX: u64 = 10_000;

/// Most that an upload waits for its parts before it is aborted: those in flight take as long on
/// a slow connection.
const DRAIN_MAX: Duration = Duration::from_secs(15);

/// Upload of one object. Dropping it aborts it.
pub(super) struct Upload {
    client: Arc<Client>,
    path: Path,
    id: Option<String>,
    piece_bytes: usize,
    unallocated: usize,
    free: Receiver<Buffer>,
    freed: Sender<Buffer>,
    sent: usize,
    parts: Vec<(usize, PartId)>,
    done: Receiver<Result<(usize, PartId)>>,
    ended: Sender<Result<(usize, PartId)>>,
}

/// Bytes in a buffer, which is free again when the last request has ended.
struct Lent {
    buffer: Option<Buffer>,
    len: usize,
    freed: Sender<Buffer>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        let buffer = self.buffer.as_ref();
        buffer.expect("taken only in drop").bytes(self.len)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // The upload may have ended.
            let _ = self.freed.send(buffer);
        }
    }
}

impl Upload {
    /// Begins an upload of `len` bytes, if they are known.
    pub(super) fn begin(client: &Arc<Client>, path: Path, len: Option<u64>) -> Result<Self> {
        step::reach();
        let (target, wanted) = (path.clone(), client.location().clone());
        let id = client.wait(|client| async move {
            let ask = |store: Arc<dyn Writable>| {
                let path = target.clone();
                async move { store.create_multipart(&path).await }
            };
            client.send("CreateMultipartUpload", ask).await
        });
        let id = id.map_err(|error| error.or_location(&wanted))?;
        step::reach();
        let (freed, free) = unbounded();
        let (ended, done) = unbounded();
        Ok(Self {
            client: Arc::clone(client),
            path,
            id: Some(id),
            piece_bytes: piece_bytes(len),
            unallocated: BUFFERS,
            free,
            freed,
            sent: 0,
            parts: Vec::new(),
            done,
            ended,
        })
    }

    /// Takes the result of a part.
    fn take(&mut self, result: Result<(usize, PartId)>) -> Result<()> {
        self.parts.push(result?);
        Ok(())
    }
}

/// Returns the length of the parts of an object: a multiple of a buffer's, so that there are few
/// enough of them.
fn piece_bytes(len: Option<u64>) -> usize {
    let buffers = len.unwrap_or(0).div_ceil(PIECES_MAX * BUFFER_BYTES as u64);
    BUFFER_BYTES * usize::try_from(buffers.max(1)).expect("no file has as many bytes")
}

impl Output for Upload {
    fn buffer(&mut self) -> Result<Buffer> {
        while let Ok(result) = self.done.try_recv() {
            self.take(result)?;
        }
        if let Ok(buffer) = self.free.try_recv() {
            return Ok(buffer);
        }
        if self.unallocated > 0 {
            self.unallocated -= 1;
            return Ok(Buffer::new(self.piece_bytes));
        }
        Ok(self.free.recv().expect("both ends are in self"))
    }

    fn put(&mut self, offset: u64, buffer: Buffer, len: usize) -> Result<()> {
        let index = offset / self.piece_bytes as u64;
        if index >= PIECES_MAX {
            let message =
                format!("the file has more than {PIECES_MAX} parts of {BUFFER_BYTES} bytes");
            return Err(Error::new(ErrorKind::InvalidRequest, message)
                .with_hint("pass a smaller max_shard_size, or a dict of tensors"));
        }
        let index = usize::try_from(index).expect("checked above");
        let lent = Lent {
            buffer: Some(buffer),
            len,
            freed: self.freed.clone(),
        };
        let payload = PutPayload::from(Bytes::from_owner(lent));
        let (client, ended) = (Arc::clone(&self.client), self.ended.clone());
        let (path, id) = (self.path.clone(), self.id.clone().unwrap_or_default());
        self.sent += 1;
        self.client.spawn(async move {
            let ask = |store: Arc<dyn Writable>| {
                let (path, id, payload) = (path.clone(), id.clone(), payload.clone());
                async move { store.put_part(&path, &id, index, payload).await }
            };
            step::reach();
            let sent = client.send("UploadPart", ask).await;
            step::reach();
            drop(payload);
            let sent = sent.map(|part| (index, part));
            // The upload may have been dropped.
            let _ = ended.send(sent.map_err(|error| error.with_range(offset..offset + len as u64)));
        });
        Ok(())
    }

    fn finish(mut self: Box<Self>, len: u64) -> Result<()> {
        while self.parts.len() < self.sent {
            let result = self.done.recv().expect("both ends are in self");
            self.take(result)?;
        }
        self.parts.sort_by_key(|(index, _)| *index);
        let parts: Vec<_> = self.parts.drain(..).map(|(_, part)| part).collect();
        let (path, id) = (self.path.clone(), self.id.clone().unwrap_or_default());
        self.client.wait(|client| async move {
            let ask = |store: Arc<dyn Writable>| {
                let (path, id, parts) = (path.clone(), id.clone(), parts.clone());
                async move { store.complete_multipart(&path, &id, parts).await }
            };
            step::reach();
            let completed = client.send("CompleteMultipartUpload", ask).await;
            step::reach();
            // An answer may have been lost: the upload is complete, and unknown, at the next
            // attempt. No other writer writes to a name with this write's identifier.
            let stored = match client.state(&path).await {
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
        })?;
        self.id = None;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else {
            return;
        };
        // Parts that are under way would be stored after the upload is gone, and no list shows
        // them. When the last one has ended, nothing sends any more.
        self.ended = unbounded().0;
        let until = Instant::now() + DRAIN_MAX;
        while self.done.recv_deadline(until).is_ok() {}
        let path = self.path.clone();
        let aborted = self.client.wait(|client| async move {
            let ask = |store: Arc<dyn Writable>| {
                let (path, id) = (path.clone(), id.clone());
                async move { store.abort_multipart(&path, &id).await }
            };
            client.send("AbortMultipartUpload", ask).await
        });
        if let Err(error) = aborted {
            tracing::warn!(%error, "cannot abort an upload; a rule of the bucket should do it");
        }
    }
}
