//! What there is to compare each source with: a manifest beside the checkpoint.

use serde_json::Value;

use super::{Algorithm, Digest, Expectation, Expected, Verify};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::source::{FileSource, Location, Source};

/// What a manifest is called, beside the checkpoint.
const MANIFEST_NAME: &str = "tload-manifest.json";

/// What is expected of each shard of the checkpoint, in its order.
///
/// # Errors
///
/// [`ErrorKind::InvalidFormat`] for a manifest that is none; what opening and reading it runs into.
pub(crate) fn find(checkpoint: &Checkpoint, choice: &Verify) -> Result<Vec<Expectation>> {
    let beside = |location: &Location| location.parent().join(MANIFEST_NAME);
    let location = match choice {
        Verify::Manifest(manifest) => Some(Location::parse(manifest)?),
        Verify::Off | Verify::Auto | Verify::Require => checkpoint
            .shards()
            .first()
            .map(|shard| beside(shard.location())),
    };
    let manifest = match location.as_ref().map(FileSource::open) {
        Some(Ok(file)) => {
            let len = usize::try_from(file.len()).unwrap_or(usize::MAX);
            let text = file.fetch(0, len)?;
            let invalid =
                |error| Error::new(ErrorKind::InvalidFormat, "is no manifest").with_source(error);
            Some(serde_json::from_slice::<Value>(&text).map_err(invalid)?)
        }
        Some(Err(error)) if matches!(choice, Verify::Manifest(_)) => return Err(error),
        Some(Err(_)) | None => None,
    };
    let by = location.map_or_else(String::new, |location| format!("manifest {location}"));
    let expectation = |location: &Location| {
        let name = location.file_name();
        let file = manifest.as_ref().map(|manifest| &manifest["files"][name]);
        match file.filter(|file| file.is_object()) {
            Some(file) => Expectation::Of(expected(&by, file)),
            None => Expectation::Nothing {
                why: "there is nothing to compare it with".to_owned(),
            },
        }
    };
    let shards = checkpoint.shards().iter();
    Ok(shards.map(|shard| expectation(shard.location())).collect())
}

fn expected(by: &str, file: &Value) -> Expected {
    let digest =
        |value: &Value| Digest::from_hex(Algorithm::Crc64Nvme, value["crc64nvme"].as_str()?);
    let tensors = file["tensors"].as_object().into_iter().flatten();
    Expected {
        by: by.to_owned(),
        len: file["bytes"].as_u64(),
        whole: digest(file),
        tensors: tensors
            .filter_map(|(name, tensor)| Some((name.clone(), digest(tensor)?)))
            .collect(),
    }
}
