//! The manifest, `tload-manifest.json`: length and checksums of every file of a checkpoint and of
//! every tensor in it.
//!
//! Pure: converts text to a manifest or an exact error, and back. A manifest is untrusted, so names
//! must stay below its directory and every number is checked. Errors carry no location: the caller
//! knows which file it read and adds it. The text is canonical: the same files always give the same
//! bytes.
//!
//! ```json
//! {
//!   "tload_manifest": 1,
//!   "files": {
//!     "model.safetensors": {
//!       "bytes": 96,
//!       "crc64nvme": "…",
//!       "sha256": "…",
//!       "header": {"bytes": 80, "blake3": "…"},
//!       "tensors": {
//!         "norm.weight": {"begin": 80, "end": 96, "crc64nvme": "…", "sha256": "…", "blake3": "…"}
//!       }
//!     }
//!   }
//! }
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::digest::{Algorithm, Digest};
use crate::error::{Error, ErrorKind, Result, printable};

/// File name of a manifest, beside the checkpoint.
pub const MANIFEST_NAME: &str = "tload-manifest.json";

/// Maximum length of a manifest, bytes. Its line for a tensor is about twice as long as a header's,
/// and headers have at most 100 MB.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// Version that this release writes, and the only one that it reads.
const VERSION: u64 = 1;

/// Maximum length of a name quoted in an error, characters, and of a description of what is wrong.
const NAME_MAX: usize = 80;
const TEXT_MAX: usize = 240;

/// Checksums of the files of a checkpoint.
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::{error::*, options::*};
/// #     pub mod verify { pub use tload_verify::*; }
/// # }
/// use tload::ErrorKind;
/// use tload::verify::Manifest;
///
/// let text = Manifest::default().render();
/// assert!(Manifest::parse(&text)?.files.is_empty());
/// assert_eq!(Manifest::parse(b"{").unwrap_err().kind(), ErrorKind::InvalidFormat);
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Files by path below the directory of the manifest, with `/`.
    pub files: BTreeMap<String, ManifestFile>,
}

/// Entry of a file in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Length, bytes.
    pub bytes: u64,
    /// CRC-64/NVME of all its bytes.
    #[serde(deserialize_with = "crc64nvme", serialize_with = "digits")]
    pub crc64nvme: Digest,
    /// SHA-256 of all its bytes.
    #[serde(deserialize_with = "sha256", serialize_with = "digits")]
    pub sha256: Digest,
    /// Header of the file; `None` unless the file is a shard, and in manifests of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<ManifestHeader>,
    /// Tensors of the file, by name; empty unless the file is a shard.
    #[serde(
        default,
        deserialize_with = "distinct",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub tensors: BTreeMap<String, ManifestTensor>,
}

/// Entry of a file's header in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestHeader {
    /// Length, with the field that states it: offset of the first tensor, bytes.
    pub bytes: u64,
    /// BLAKE3 of these bytes.
    #[serde(deserialize_with = "blake3", serialize_with = "digits")]
    pub blake3: Digest,
}

/// Entry of a tensor in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "TensorFields", into = "TensorFields")]
pub struct ManifestTensor {
    /// Bytes of the tensor, from the start of the file.
    pub range: Range<u64>,
    /// CRC-64/NVME of these bytes.
    pub crc64nvme: Digest,
    /// SHA-256 of these bytes.
    pub sha256: Digest,
    /// BLAKE3 of these bytes; `None` in manifests of older releases.
    pub blake3: Option<Digest>,
}

impl Manifest {
    /// Parses the text of a manifest.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidFormat`] if the text is not a manifest, [`ErrorKind::Unsupported`] for
    /// another version.
    pub fn parse(text: &[u8]) -> Result<Self> {
        if text.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(invalid(format!(
                "found a manifest of {} bytes, wanted at most {MANIFEST_BYTES_MAX}",
                text.len()
            )));
        }
        let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
        // The first character is checked because serde would also accept an array in place of an
        // object.
        if first != Some(&b'{') {
            return Err(invalid("it does not begin with '{'"));
        }
        let failed = |error: serde_json::Error| invalid(cut(&wrong_json(&error), TEXT_MAX));
        let whole = serde_json::from_slice::<Document>(text);
        // The text of another version may not parse as a document of this one.
        let marked = match &whole {
            Ok(whole) => Ok(whole.tload_manifest),
            Err(_) => serde_json::from_slice(text).map(|it: Marked| it.tload_manifest),
        };
        let version = marked.map_err(failed)?;
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "is a manifest of version {version}, and this release reads version {VERSION}"
            ))
            .with_hint(
                "use a newer tload, or write a new manifest: tload verify LOCATION --write --force",
            ));
        }
        let whole = whole.map_err(failed)?;
        let manifest = Self { files: whole.files };
        manifest
            .files
            .iter()
            .try_for_each(|(name, file)| check(name, file))?;
        Ok(manifest)
    }

    /// Returns the text, with a line feed at the end. The same files always give the same text.
    pub fn render(&self) -> Vec<u8> {
        let document = Document {
            tload_manifest: VERSION,
            files: self.files.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&document).expect("strings and numbers are JSON");
        text.push(b'\n');
        text
    }
}

/// Rejects names that lead out of the directory, and impossible numbers.
fn check(name: &str, file: &ManifestFile) -> Result<()> {
    if let Some(wrong) = wrong_name(name) {
        return Err(invalid(format!(
            "the file name {:?} {wrong}, wanted a path below the directory of the manifest",
            clipped(name)
        )));
    }
    let mut tensors: Vec<_> = file.tensors.iter().collect();
    tensors.sort_by_key(|(_, tensor)| (tensor.range.start, tensor.range.end));
    let mut at = 0;
    if let Some(header) = &file.header {
        at = header.bytes;
        if at > file.bytes {
            return Err(invalid(format!(
                "{:?}: its header has {at} bytes, and the file {}",
                clipped(name),
                file.bytes
            )));
        }
    }
    for (tensor, said) in tensors {
        let Range { start, end } = said.range.clone();
        let wrong = if start > end || end > file.bytes {
            format!(
                "has the range {start}..{end} in a file of {} bytes",
                file.bytes
            )
        } else if start < at {
            format!(
                "begins at {start}, inside the header or the previous tensor, which ends at {at}"
            )
        } else {
            at = end;
            continue;
        };
        return Err(
            invalid(format!("{:?}: it {wrong}", clipped(name))).with_tensor(clipped(tensor))
        );
    }
    Ok(())
}

/// Describes the error in a name that does not stay below a directory. Both slashes separate, so
/// that a name that is harmless on one system does not climb out of the directory on another.
pub(super) fn wrong_name(name: &str) -> Option<&'static str> {
    let mut components = name.split(['/', '\\']);
    if name.is_empty() {
        Some("is empty")
    } else if name.contains('\0') {
        Some("contains a zero byte")
    } else if name.starts_with(['/', '\\']) {
        Some("is an absolute path")
    } else if components.clone().any(|component| component == "..") {
        Some("leaves the directory")
    } else if components.any(|component| component.is_empty() || component == ".") {
        Some("is not a plain path")
    } else {
        None
    }
}

/// Truncates an untrusted name to the length that errors quote.
pub(super) fn clipped(name: &str) -> String {
    cut(name, NAME_MAX)
}

fn cut(text: &str, most: usize) -> String {
    let mut shown: String = text.chars().take(most).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    printable(&shown)
}

/// Returns the position of an error and the value wanted there, never the text at that position: a
/// file that is not a manifest may be anyone's, and errors are displayed and logged.
pub(super) fn wrong_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if !error.is_data() {
        // Syntax errors contain only the parser's text.
        return text;
    }
    let quoted = ["invalid type: ", "invalid value: ", "invalid length "];
    if quoted.iter().any(|start| text.starts_with(start)) {
        // The last occurrence is the parser's, whatever the text holds.
        let wanted = text.rsplit_once(", expected ").map(|(_, wanted)| wanted);
        return wanted.map_or_else(|| place(error), |wanted| format!("wanted {wanted}"));
    }
    if text.starts_with("unknown ") {
        return format!("unknown field{}", place(error));
    }
    // The text contains only our field names and texts.
    text
}

fn place(error: &serde_json::Error) -> String {
    format!(" at line {} column {}", error.line(), error.column())
}

fn invalid(message: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidFormat,
        format!("is not a tload manifest: {message}"),
    )
    .with_hint(
        "download the manifest again, or write a new one: tload verify LOCATION --write --force",
    )
}

/// Fields of every version.
#[derive(Deserialize)]
struct Marked {
    tload_manifest: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    tload_manifest: u64,
    #[serde(deserialize_with = "distinct")]
    files: BTreeMap<String, ManifestFile>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TensorFields {
    begin: u64,
    end: u64,
    #[serde(deserialize_with = "crc64nvme", serialize_with = "digits")]
    crc64nvme: Digest,
    #[serde(deserialize_with = "sha256", serialize_with = "digits")]
    sha256: Digest,
    #[serde(
        default,
        deserialize_with = "some_blake3",
        serialize_with = "some_digits",
        skip_serializing_if = "Option::is_none"
    )]
    blake3: Option<Digest>,
}

#[doc(hidden)]
impl From<TensorFields> for ManifestTensor {
    fn from(fields: TensorFields) -> Self {
        Self {
            range: fields.begin..fields.end,
            crc64nvme: fields.crc64nvme,
            sha256: fields.sha256,
            blake3: fields.blake3,
        }
    }
}

impl From<ManifestTensor> for TensorFields {
    fn from(tensor: ManifestTensor) -> Self {
        Self {
            begin: tensor.range.start,
            end: tensor.range.end,
            crc64nvme: tensor.crc64nvme,
            sha256: tensor.sha256,
            blake3: tensor.blake3,
        }
    }
}

/// Writes the digits of a digest, without the name of its algorithm.
fn digits<S: Serializer>(digest: &Digest, json: S) -> Result<S::Ok, S::Error> {
    let text = digest.to_string();
    json.serialize_str(text.split_once(':').map_or("", |(_, digits)| digits))
}

#[expect(clippy::ref_option, reason = "serde's signature")]
fn some_digits<S: Serializer>(digest: &Option<Digest>, json: S) -> Result<S::Ok, S::Error> {
    match digest {
        Some(digest) => digits(digest, json),
        None => json.serialize_none(),
    }
}

fn crc64nvme<'de, D: Deserializer<'de>>(json: D) -> Result<Digest, D::Error> {
    json.deserialize_str(Digits(Algorithm::Crc64Nvme))
}

fn sha256<'de, D: Deserializer<'de>>(json: D) -> Result<Digest, D::Error> {
    json.deserialize_str(Digits(Algorithm::Sha256))
}

fn blake3<'de, D: Deserializer<'de>>(json: D) -> Result<Digest, D::Error> {
    json.deserialize_str(Digits(Algorithm::Blake3))
}

fn some_blake3<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Digest>, D::Error> {
    blake3(json).map(Some)
}

/// Reads the digits of a digest of an algorithm.
struct Digits(Algorithm);

impl Visitor<'_> for Digits {
    type Value = Digest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hexadecimal digits as {}", 2 * self.0.len(), self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Digest, E> {
        Digest::from_hex(self.0, text)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Str(""), &self))
    }
}

/// Reads a JSON object whose keys are all different.
fn distinct<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
    json: D,
) -> Result<BTreeMap<String, V>, D::Error> {
    struct Distinct<V>(PhantomData<V>);

    impl<'de, V: Deserialize<'de>> Visitor<'de> for Distinct<V> {
        type Value = BTreeMap<String, V>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of names")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut values = BTreeMap::new();
            while let Some(name) = map.next_key::<String>()? {
                let value = map.next_value::<V>()?;
                match values.entry(name) {
                    Entry::Vacant(entry) => {
                        entry.insert(value);
                    }
                    Entry::Occupied(entry) => {
                        let message = format!("the name {:?} appears twice", clipped(entry.key()));
                        return Err(de::Error::custom(message));
                    }
                }
            }
            Ok(values)
        }
    }

    json.deserialize_map(Distinct(PhantomData))
}

#[cfg(test)]
mod tests;
