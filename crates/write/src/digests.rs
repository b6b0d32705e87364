//! Checksums for the manifest, computed while a file is written.

use std::ops::Range;

use crc_fast::CrcAlgorithm;
use sha2::{Digest as _, Sha256};
use tload_verify::{Algorithm, Digest, ManifestFile, ManifestHeader, ManifestTensor};

/// Checksums of one file, whose bytes come in order: the header, then the tensors.
pub(crate) struct Digests {
    crc: crc_fast::Digest,
    sha256: Sha256,
    tensor: Option<Tensor>,
    file: ManifestFile,
}

struct Tensor {
    name: String,
    start: u64,
    crc: crc_fast::Digest,
    sha256: Sha256,
    blake3: Box<blake3::Hasher>,
}

impl Digests {
    /// Begins a file with its header.
    pub(crate) fn new(header: &[u8]) -> Self {
        let nothing = Digest::compute(Algorithm::Sha256, &[]);
        let mut digests = Self {
            crc: crc64(),
            sha256: Sha256::new(),
            tensor: None,
            file: ManifestFile {
                bytes: 0,
                crc64nvme: Digest::compute(Algorithm::Crc64Nvme, &[]),
                sha256: nothing,
                header: Some(ManifestHeader {
                    bytes: header.len() as u64,
                    blake3: Digest::compute(Algorithm::Blake3, header),
                }),
                tensors: std::collections::BTreeMap::new(),
            },
        };
        digests.whole(header);
        digests
    }

    fn whole(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
        self.sha256.update(bytes);
        self.file.bytes += bytes.len() as u64;
    }

    /// Begins the next tensor.
    pub(crate) fn begin(&mut self, name: &str) {
        self.end();
        self.tensor = Some(Tensor {
            name: name.to_owned(),
            start: self.file.bytes,
            crc: crc64(),
            sha256: Sha256::new(),
            blake3: Box::default(),
        });
    }

    /// Takes the next bytes of the tensor.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        if let Some(tensor) = &mut self.tensor {
            tensor.crc.update(bytes);
            tensor.sha256.update(bytes);
            tensor.blake3.update(bytes);
        }
        self.whole(bytes);
    }

    fn end(&mut self) {
        let Some(tensor) = self.tensor.take() else {
            return;
        };
        let range = Range {
            start: tensor.start,
            end: self.file.bytes,
        };
        let blake3 = digest(Algorithm::Blake3, tensor.blake3.finalize().as_bytes());
        let said = ManifestTensor {
            range,
            crc64nvme: digest(Algorithm::Crc64Nvme, &tensor.crc.finalize().to_be_bytes()),
            sha256: digest(Algorithm::Sha256, &tensor.sha256.finalize()),
            blake3: Some(blake3),
        };
        self.file.tensors.insert(tensor.name, said);
    }

    /// Returns the file's entry in the manifest.
    pub(crate) fn finish(mut self) -> ManifestFile {
        self.end();
        self.file.crc64nvme = digest(Algorithm::Crc64Nvme, &self.crc.finalize().to_be_bytes());
        self.file.sha256 = digest(Algorithm::Sha256, &self.sha256.finalize());
        self.file
    }
}

/// Returns the entry of a small file in the manifest.
pub(crate) fn of_text(text: &[u8]) -> ManifestFile {
    ManifestFile {
        bytes: text.len() as u64,
        crc64nvme: Digest::compute(Algorithm::Crc64Nvme, text),
        sha256: Digest::compute(Algorithm::Sha256, text),
        header: None,
        tensors: std::collections::BTreeMap::new(),
    }
}

fn crc64() -> crc_fast::Digest {
    crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme)
}

fn digest(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    Digest::new(algorithm, bytes).expect("as many bytes as the algorithm has")
}
