//! One object that is uploaded in parts, several at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use object_store::PutPayload;
use object_store::multipart::PartId;
use object_store::path::Path;

use super::client::Client;
use super::requests::{PIECES_MAX, piece_bytes};
use crate::error::{Error, ErrorKind, Result};
use crate::target::{BUFFER_BYTES, Buffer, Output};

/// Parts in flight: as many as loads have requests in flight by default.
const IN_FLIGHT: usize = 8;

/// Buffers of an upload: those in flight, one that is being filled, and one for the first bytes of
/// the file.
const BUFFERS: usize = IN_FLIGHT + 2;

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
        let target = path.clone();
        let id = client.wait(|client| async move { client.begin(&target).await })?;
        let (freed, free) = unbounded();
        let (ended, done) = unbounded();
        Ok(Self {
            client: Arc::clone(client),
            path,
            id: Some(id),
            piece_bytes: piece_bytes(len.unwrap_or(0)),
            unallocated: BUFFERS,
            free,
            freed,
            sent: 0,
            parts: Vec::new(),
            done,
            ended,
        })
    }
}

impl Output for Upload {
    fn buffer(&mut self) -> Result<Buffer> {
        while let Ok(result) = self.done.try_recv() {
            self.parts.push(result?);
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
            let sent = client.send_piece(&path, &id, index, payload).await;
            let sent = sent.map(|part| (index, part));
            // The upload may have been dropped.
            let _ = ended.send(sent.map_err(|error| error.with_range(offset..offset + len as u64)));
        });
        Ok(())
    }

    fn finish(mut self: Box<Self>, len: u64) -> Result<()> {
        while self.parts.len() < self.sent {
            let result = self.done.recv().expect("both ends are in self");
            self.parts.push(result?);
        }
        self.parts.sort_by_key(|(index, _)| *index);
        let parts: Vec<_> = self.parts.drain(..).map(|(_, part)| part).collect();
        let (path, id) = (self.path.clone(), self.id.clone().unwrap_or_default());
        self.client
            .wait(|client| async move { client.complete(&path, &id, parts, len).await })?;
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
        let aborted = self
            .client
            .wait(|client| async move { client.abort(&path, &id).await });
        if let Err(error) = aborted {
            tracing::warn!(%error, "cannot abort an upload; a rule of the bucket should do it");
        }
    }
}
