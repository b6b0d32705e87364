//! Puts and deletes objects through `object_store`, for callers without async.
//!
//! Used for servers whose requests are signed. `http` handles those without signatures.

use std::future::Future;
use std::io::Read;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::mpsc::channel;

use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use tokio::runtime::{Builder, Runtime};

/// Length of an upload's pieces, and the memory that it takes. A file of up to this many bytes is
/// one request, within a factor of two of the default of SDKs; a larger one is uploaded in pieces.
const PIECE_BYTES: usize = 16 << 20;

/// Never dropped, so that its end does not depend on a caller's context.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tload-testbed")
        .enable_all()
        .build()
        .expect("a thread can be started")
});

/// Puts an object, or replaces it.
pub(super) fn put(store: impl ObjectStore, key: &str, bytes: &[u8]) -> Result<(), String> {
    let path = path(key)?;
    let payload = PutPayload::from(bytes.to_vec());
    wait(async move { store.put(&path, payload).await })
        .map(|_| ())
        .map_err(|error| format!("cannot put {key}: {}", chain(&error)))
}

/// Puts a file's contents. They need not fit into memory.
pub(super) fn put_file(store: impl ObjectStore, key: &str, file: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot put {}: {error}", file.display());
    let mut source = open(file).map_err(failed)?;
    let mut first = Vec::new();
    let piece_len = u64::try_from(PIECE_BYTES).expect("it is small");
    (&mut source)
        .take(piece_len)
        .read_to_end(&mut first)
        .map_err(failed)?;
    if first.len() < PIECE_BYTES {
        return put(store, key, &first);
    }
    let path = path(key)?;
    let sent = wait(async move {
        let upload = store.put_multipart(&path).await.map_err(|e| chain(&e))?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PIECE_BYTES);
        let mut piece = first;
        while !piece.is_empty() {
            upload.write(&piece);
            // At most four pieces in flight.
            upload.wait_for_capacity(3).await.map_err(|e| chain(&e))?;
            piece.clear();
            (&mut source)
                .take(piece_len)
                .read_to_end(&mut piece)
                .map_err(|e| e.to_string())?;
        }
        upload.finish().await.map_err(|e| chain(&e))
    });
    sent.map(|_| ())
        .map_err(|error| format!("cannot put {key}: {error}"))
}

/// Deletes an object.
pub(super) fn delete(store: impl ObjectStore, key: &str) -> Result<(), String> {
    let path = path(key)?;
    wait(async move { store.delete(&path).await })
        .map_err(|error| format!("cannot delete {key}: {}", chain(&error)))
}

/// A file to upload.
#[expect(
    clippy::disallowed_methods,
    reason = "not one of the files that are loaded"
)]
pub(super) fn open(file: &Path) -> std::io::Result<std::fs::File> {
    std::fs::File::open(file)
}

fn path(key: &str) -> Result<object_store::path::Path, String> {
    object_store::path::Path::parse(key).map_err(|error| format!("no key: {error}"))
}

/// Blocks on a channel and not in a runtime, which would panic below a caller's own.
fn wait<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, output) = channel();
    RUNTIME.spawn(async move {
        // The caller waits for it.
        let _ = sender.send(future.await);
    });
    output.recv().expect("the task does not panic")
}

/// Formats an error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
