//! Opens a patch, and checks all that its record says against its tensors.

use std::collections::{HashMap, HashSet};

use tload::{Checkpoint, Dtype, Error, ErrorKind, Result, TensorInfo};

use crate::pieces::{Pieces, element_bytes};
use crate::record::{Change, FORMAT, Record, TensorRecord, VERSION, indices_name, values_name};

/// A patch whose record has been checked.
#[derive(Debug)]
pub struct Patch {
    pub(crate) pieces: Pieces,
    pub(crate) record: Record,
}

impl Patch {
    /// Opens the patch in the file that `checkpoint` was opened from.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidFormat`] if it is no patch or contradicts itself;
    /// [`ErrorKind::Unsupported`] for patches of another version; any error of opening its file.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self> {
        let metadata = checkpoint.metadata();
        let value = |key: &str| metadata.get(key).map(String::as_str);
        let error =
            |kind, message: String| Error::new(kind, message).with_location(checkpoint.location());
        let invalid = |message: &str| error(ErrorKind::InvalidFormat, message.to_owned());
        if value("format") != Some(FORMAT) {
            return Err(invalid("is no patch: its metadata does not say so")
                .with_hint("make one with tload diff"));
        }
        let version = value("version").unwrap_or_default();
        if version != VERSION {
            let message = format!("is a patch of version {version:?}, wanted {VERSION:?}");
            let hint = "a newer tload may know it";
            return Err(error(ErrorKind::Unsupported, message).with_hint(hint));
        }
        let text = value("delta").ok_or_else(|| invalid("the patch has no record"))?;
        let record: Record = serde_json::from_str(text)
            .map_err(|error| invalid("the record of the patch is invalid").with_source(error))?;
        let patch = Self {
            pieces: Pieces::new(checkpoint)?,
            record,
        };
        let mut names = HashSet::new();
        for tensor in &patch.record.tensors {
            if !names.insert(tensor.name.as_str()) {
                return Err(patch.invalid(&tensor.name, "the record has the tensor twice"));
            }
            patch.check(tensor)?;
        }
        Ok(patch)
    }

    /// Returns the names of the tensors of the new checkpoint.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.record.tensors.iter().map(|it| it.name.as_str())
    }

    /// Returns the records of the tensors by name.
    pub(crate) fn by_name(&self) -> HashMap<&str, &TensorRecord> {
        let records = self.record.tensors.iter();
        records.map(|it| (it.name.as_str(), it)).collect()
    }

    /// Returns the error of a tensor of the patch.
    pub(crate) fn invalid(&self, tensor: &str, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidFormat, message.into())
            .with_location(self.pieces.checkpoint().location())
            .with_tensor(tensor)
            .with_hint("fetch the patch again, or make it again: tload diff")
    }

    /// Returns the error of a tensor whose changes lead elsewhere.
    pub(crate) fn misleads(&self, tensor: &str) -> Error {
        let message = "the patch does not lead to the digest that it says: its values are damaged";
        Error::new(ErrorKind::Corrupt, message)
            .with_location(self.pieces.checkpoint().location())
            .with_tensor(tensor)
            .with_hint("fetch the patch again")
    }

    pub(crate) fn own(&self, name: &str) -> Result<&TensorInfo> {
        let own = self.pieces.checkpoint().get(name);
        own.ok_or_else(|| self.invalid(name, "the patch lacks this tensor, which its record needs"))
    }

    /// Returns indices and values of a sparse tensor.
    pub(crate) fn sparse(&self, tensor: &str) -> Result<(&TensorInfo, &TensorInfo)> {
        let indices = self.own(&indices_name(tensor))?;
        Ok((indices, self.own(&values_name(tensor))?))
    }

    /// Checks a tensor of the record against those of the patch.
    fn check(&self, tensor: &TensorRecord) -> Result<()> {
        let name = &tensor.name;
        let is_digest = |text: &String| text.len() == 64;
        if !is_digest(&tensor.sha256) || !tensor.base_sha256.as_ref().is_none_or(is_digest) {
            return Err(self.invalid(name, "a digest in the record has not 64 digits"));
        }
        if tensor.byte_len().is_none() {
            return Err(self.invalid(
                name,
                "the record has an unknown dtype, or a shape too large",
            ));
        }
        match tensor.change {
            Change::None => Ok(()),
            Change::Whole => self.check_whole(tensor, self.own(name)?),
            Change::Sparse => {
                let (indices, values) = self.sparse(name)?;
                self.check_sparse(tensor, indices, values)
            }
        }
    }

    fn check_whole(&self, tensor: &TensorRecord, own: &TensorInfo) -> Result<()> {
        let shape = own.shape().iter().map(|dim| *dim as u64);
        if own.dtype().name() != tensor.dtype || !shape.eq(tensor.shape.iter().copied()) {
            let message = "its dtype or shape is not that of the record";
            return Err(self.invalid(&tensor.name, message));
        }
        Ok(())
    }

    fn check_sparse(
        &self,
        tensor: &TensorRecord,
        indices: &TensorInfo,
        values: &TensorInfo,
    ) -> Result<()> {
        let invalid = |message: String| Err(self.invalid(&tensor.name, message));
        let found = indices.dtype();
        if !matches!(found, Dtype::I32 | Dtype::I64) {
            return invalid(format!("its indices are {found}, not I32 or I64"));
        }
        if tensor.base_sha256.is_none() {
            return invalid("the record has no digest of its base".to_owned());
        }
        let (found, wanted) = (values.dtype(), &tensor.dtype);
        if found.name() != wanted || element_bytes(values).is_none() {
            return invalid(format!(
                "its values are {found}, and the tensor is {wanted}"
            ));
        }
        let (&[found], &[wanted]) = (values.shape(), indices.shape()) else {
            return invalid("its indices and values are no rows".to_owned());
        };
        if found != wanted {
            return invalid(format!("has {wanted} indices and {found} values"));
        }
        Ok(())
    }
}

impl TensorRecord {
    /// Returns its bytes, `None` if there is no such tensor.
    pub(crate) fn byte_len(&self) -> Option<u64> {
        let dtype = Dtype::ALL.into_iter().find(|it| it.name() == self.dtype)?;
        let mut dims = self.shape.iter();
        let elements = dims.try_fold(1_u64, |all, dim| all.checked_mul(*dim))?;
        Some(elements.checked_mul(dtype.bits() as u64)? / 8)
    }
}

/// Returns the error of a tensor that is not the base of a patch.
pub(crate) fn not_base(tensor: &str, reason: &str) -> Error {
    let message = format!("the tensor is not that of the patch's base: {reason}");
    Error::new(ErrorKind::Corrupt, message)
        .with_tensor(tensor)
        .with_hint("apply the patches of all versions between, in order, or start from the base")
}

/// Returns the error of a tensor whose digest is not `wanted`.
pub(crate) fn other_digest(record: &TensorRecord, found: &str, wanted: &str) -> Error {
    if found == record.sha256 {
        return not_base(&record.name, "it has the digest after the patch already");
    }
    not_base(
        &record.name,
        &format!("its SHA-256 is {found}, wanted {wanted}"),
    )
}
