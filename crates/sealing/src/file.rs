//! One file on its way: sealed, and entered into the manifest once it is complete.

use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use tload_base::error::{Error, Result};
use tload_base::options::location::hexadecimal;
use tload_base::sync::lock::Mutex;
use tload_sealed::ManifestEntry;
use tload_sealed::stream::{Layout, Sealer};
use tload_write::Transform;

/// File that is being sealed.
pub(crate) struct SealedFile {
    name: String,
    /// `None` once the file is complete.
    sealer: Option<Sealer>,
    digest: Context,
    len: u64,
    files: Arc<Mutex<Vec<ManifestEntry>>>,
}

impl SealedFile {
    /// Begins a file, which is added to `files` when it is complete.
    pub(crate) fn new(name: &str, sealer: Sealer, files: Arc<Mutex<Vec<ManifestEntry>>>) -> Self {
        Self {
            name: name.to_owned(),
            sealer: Some(sealer),
            digest: Context::new(&SHA256),
            len: 0,
            files,
        }
    }
}

impl Transform for SealedFile {
    fn push(&mut self, bytes: &[u8], stored: &mut Vec<u8>) -> Result<()> {
        self.digest.update(bytes);
        self.len += bytes.len() as u64;
        let sealer = self.sealer.as_mut().expect("not complete");
        let pushed = sealer.push(bytes, stored);
        pushed.map_err(|error| Error::unsupported(format!("{} {error}", self.name)))
    }

    fn finish(&mut self, stored: &mut Vec<u8>) -> Result<()> {
        let sealer = self.sealer.take().expect("not complete");
        let entry = ManifestEntry {
            name: self.name.clone(),
            bytes: self.len,
            sha256: hexadecimal(self.digest.clone().finish().as_ref()),
            header: Some(hexadecimal(sealer.header().as_bytes())),
        };
        sealer.finish(stored);
        self.files.lock().push(entry);
        Ok(())
    }

    fn stored_len(&self, bytes: u64) -> u64 {
        let algorithm = self
            .sealer
            .as_ref()
            .expect("not complete")
            .header()
            .algorithm();
        // A file that is too long fails when its bytes come.
        Layout::of_opened(algorithm, bytes).map_or(bytes, |layout| layout.sealed_len())
    }
}
