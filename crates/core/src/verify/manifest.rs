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
//!       "tensors": {
//!         "norm.weight": {"begin": 80, "end": 96, "crc64nvme": "…", "sha256": "…"}
//!       }
//!     }
//!   }
//! }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::digest::{Algorithm, Digest};
use super::json_error::wrong_json;
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Files by path below the directory of the manifest, with `/`.
    pub files: BTreeMap<String, ManifestFile>,
}

/// Entry of a file in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFile {
    /// Length, bytes.
    pub bytes: u64,
    /// CRC-64/NVME of all its bytes.
    pub crc64nvme: Digest,
    /// SHA-256 of all its bytes.
    pub sha256: Digest,
    /// Tensors of the file, by name; empty unless the file is a shard.
    pub tensors: BTreeMap<String, ManifestTensor>,
}

/// Entry of a tensor in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestTensor {
    /// Bytes of the tensor, from the start of the file.
    pub range: Range<u64>,
    /// CRC-64/NVME of these bytes.
    pub crc64nvme: Digest,
    /// SHA-256 of these bytes.
    pub sha256: Digest,
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
        // Checked here because serde would also take the fields of an object as an array.
        if first != Some(&b'{') {
            return Err(invalid("it does not begin with '{'"));
        }
        let failed = |error: serde_json::Error| invalid(cut(&wrong_json(&error), TEXT_MAX));
        let marked: Marked = serde_json::from_slice(text).map_err(failed)?;
        if marked.tload_manifest != VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "is a manifest of version {}, and this release reads version {VERSION}",
                    marked.tload_manifest
                ),
            )
            .with_hint(
                "use a newer tload, or write a new manifest: tload verify --write --force",
            ));
        }
        let whole: Document = serde_json::from_slice(text).map_err(failed)?;
        let manifest = Self {
            files: whole.files.0,
        };
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
            files: Distinct(self.files.clone()),
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
    for (tensor, said) in tensors {
        let Range { start, end } = said.range.clone();
        let wrong = if start > end || end > file.bytes {
            format!(
                "has the range {start}..{end} in a file of {} bytes",
                file.bytes
            )
        } else if start < at {
            format!("begins at {start}, inside the previous tensor, which ends at {at}")
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

fn invalid(message: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidFormat,
        format!("is not a tload manifest: {message}"),
    )
    .with_hint("download the manifest again, or write a new one: tload verify --write --force")
}

/// Returns the digits of a digest, without the name of its algorithm.
fn hex(digest: &Digest) -> String {
    let text = digest.to_string();
    text.split_once(':')
        .map_or("", |(_, digits)| digits)
        .to_owned()
}

/// Fields of every version.
#[derive(serde::Deserialize)]
struct Marked {
    tload_manifest: u64,
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    tload_manifest: u64,
    files: Distinct<ManifestFile>,
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFields {
    bytes: u64,
    crc64nvme: Hex<Crc64Nvme>,
    sha256: Hex<Sha256>,
    #[serde(default, skip_serializing_if = "Distinct::is_empty")]
    tensors: Distinct<ManifestTensor>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorFields {
    begin: u64,
    end: u64,
    crc64nvme: Hex<Crc64Nvme>,
    sha256: Hex<Sha256>,
}

impl<'de> Deserialize<'de> for ManifestFile {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let fields = FileFields::deserialize(json)?;
        Ok(Self {
            bytes: fields.bytes,
            crc64nvme: fields.crc64nvme.digest,
            sha256: fields.sha256.digest,
            tensors: fields.tensors.0,
        })
    }
}

impl Serialize for ManifestFile {
    fn serialize<S: Serializer>(&self, json: S) -> Result<S::Ok, S::Error> {
        FileFields {
            bytes: self.bytes,
            crc64nvme: Hex::of(self.crc64nvme),
            sha256: Hex::of(self.sha256),
            tensors: Distinct(self.tensors.clone()),
        }
        .serialize(json)
    }
}

impl<'de> Deserialize<'de> for ManifestTensor {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let fields = TensorFields::deserialize(json)?;
        Ok(Self {
            range: fields.begin..fields.end,
            crc64nvme: fields.crc64nvme.digest,
            sha256: fields.sha256.digest,
        })
    }
}

impl Serialize for ManifestTensor {
    fn serialize<S: Serializer>(&self, json: S) -> Result<S::Ok, S::Error> {
        let mut fields = json.serialize_struct("tensor", 4)?;
        fields.serialize_field("begin", &self.range.start)?;
        fields.serialize_field("end", &self.range.end)?;
        fields.serialize_field("crc64nvme", &hex(&self.crc64nvme))?;
        fields.serialize_field("sha256", &hex(&self.sha256))?;
        fields.end()
    }
}

/// Algorithm of a field.
trait Field {
    const ALGORITHM: Algorithm;
}

struct Crc64Nvme;
struct Sha256;

impl Field for Crc64Nvme {
    const ALGORITHM: Algorithm = Algorithm::Crc64Nvme;
}

impl Field for Sha256 {
    const ALGORITHM: Algorithm = Algorithm::Sha256;
}

/// A digest in hexadecimal.
struct Hex<A> {
    digest: Digest,
    of: PhantomData<A>,
}

impl<A> Hex<A> {
    fn of(digest: Digest) -> Self {
        Self {
            digest,
            of: PhantomData,
        }
    }
}

impl<A> Serialize for Hex<A> {
    fn serialize<S: Serializer>(&self, json: S) -> Result<S::Ok, S::Error> {
        json.serialize_str(&hex(&self.digest))
    }
}

impl<'de, A: Field> Deserialize<'de> for Hex<A> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct HexVisitor<A>(PhantomData<A>);

        impl<A: Field> Visitor<'_> for HexVisitor<A> {
            type Value = Digest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let digits = 2 * A::ALGORITHM.len();
                write!(f, "{digits} hexadecimal digits as {}", A::ALGORITHM)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Digest, E> {
                Digest::from_hex(A::ALGORITHM, text)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(""), &self))
            }
        }

        json.deserialize_str(HexVisitor::<A>(PhantomData))
            .map(Self::of)
    }
}

/// JSON object whose keys are all different.
#[derive(Clone, serde::Serialize)]
#[serde(transparent)]
struct Distinct<V>(BTreeMap<String, V>);

impl<V> Distinct<V> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<V> Default for Distinct<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Distinct<V> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct DistinctVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for DistinctVisitor<V> {
            type Value = BTreeMap<String, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut values = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    let value = map.next_value::<V>()?;
                    let shown = clipped(&name);
                    if values.insert(name, value).is_some() {
                        return Err(de::Error::custom(format!(
                            "the name {shown:?} appears twice"
                        )));
                    }
                }
                Ok(values)
            }
        }

        json.deserialize_map(DistinctVisitor(PhantomData)).map(Self)
    }
}

#[cfg(test)]
mod tests;
