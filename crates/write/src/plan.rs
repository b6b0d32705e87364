//! Files of a write whose tensors are known before the first of them: names, order, headers. Pure.

use std::collections::HashSet;

use crate::error::Result;
use crate::format::SINGLE_NAME;
use crate::header;
use crate::split::split;
use crate::tensor_spec::TensorSpec;
use crate::write_id::WriteId;
use crate::write_options::WriteOptions;

/// Names of the files at a destination.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    pub(crate) id: WriteId,
    /// Name of the file, if the destination is a file.
    pub(crate) only: Option<String>,
    /// True if shards have no identifier in their names.
    pub(crate) is_plain: bool,
    /// True if one file needs an index too.
    pub(crate) indexes_one: bool,
}

impl Naming {
    /// Returns the name of the file that has all tensors; `None` if it needs an index.
    pub(crate) fn single(&self) -> Option<&str> {
        let name = self.only.as_deref();
        name.or((!self.indexes_one).then_some(SINGLE_NAME))
    }

    /// Returns the name of a file of several. Without their number, if that is not known yet.
    pub(crate) fn shard(&self, index: usize, count: Option<usize>) -> String {
        let id = (!self.is_plain).then(|| format!("{}-", self.id));
        let id = id.unwrap_or_default();
        let count = count.map_or(String::new(), |count| format!("-of-{count:05}"));
        format!("model-{id}{:05}{count}.safetensors", index + 1)
    }
}

/// File whose tensors are known.
#[derive(Debug)]
pub(crate) struct PlannedFile {
    pub(crate) name: String,
    /// Tensors in the order of their bytes.
    pub(crate) specs: Vec<TensorSpec>,
    /// Names of the tensors in the order of the index.
    pub(crate) listed: Vec<String>,
    pub(crate) header: Vec<u8>,
}

impl PlannedFile {
    /// Returns the length of the file.
    pub(crate) fn byte_len(&self) -> u64 {
        let tensors: u64 = self.specs.iter().map(TensorSpec::byte_len).sum();
        self.header.len() as u64 + tensors
    }
}

/// Returns the files of a write.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`](crate::error::ErrorKind::InvalidRequest) for a name that comes
/// twice, and for headers that the format forbids.
pub(crate) fn plan(
    specs: Vec<TensorSpec>,
    options: &WriteOptions,
    naming: &Naming,
) -> Result<Vec<PlannedFile>> {
    let mut names = HashSet::new();
    if let Some(twice) = specs.iter().find(|spec| !names.insert(spec.name())) {
        return Err(twice.is_twice());
    }
    let files = match naming.only {
        Some(_) => vec![specs],
        None => split(specs, options.shard_bytes_max),
    };
    let (count, single) = (files.len(), naming.single());
    let planned = files.into_iter().enumerate().map(|(index, mut specs)| {
        let listed = specs.iter().map(|spec| spec.name().to_owned()).collect();
        header::sort(&mut specs);
        let mut metadata = options.metadata.clone();
        let single = single.filter(|_| count == 1);
        if single.is_some() {
            metadata.extend(options.aliases.clone());
        }
        Ok(PlannedFile {
            name: single.map_or_else(|| naming.shard(index, Some(count)), str::to_owned),
            header: header::render(&specs, &metadata, None)?,
            specs,
            listed,
        })
    });
    planned.collect()
}
