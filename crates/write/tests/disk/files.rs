//! Directories that tests write and read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tload_base::error::Result;
use tload_base::options::Location;
use tload_format::Dtype;
use tload_write::{WriteOptions, WriteReport, Writer};

use crate::expected::{Tensors, write_to};

/// Writes tensors whose names are known to a path.
pub(crate) fn write(path: &Path, tensors: &Tensors, options: WriteOptions) -> Result<WriteReport> {
    write_to(&Location::from_path(path), tensors, options)
}

/// Writes tensors that come one after another.
pub(crate) fn stream(path: &Path, tensors: &Tensors, options: WriteOptions) -> Result<WriteReport> {
    let mut writer = Writer::create(&Location::from_path(path), options)?;
    for (name, (dtype, shape, bytes)) in tensors {
        writer.tensor(name, *dtype, shape, bytes)?;
    }
    writer.finish()
}

/// Reads a directory by its index or its one file.
pub(crate) fn read(directory: &Path) -> Tensors {
    let index = directory.join("model.safetensors.index.json");
    if !index.exists() {
        return read_file(&directory.join("model.safetensors"));
    }
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(index).expect("is read")).expect("is JSON");
    let map = index["weight_map"].as_object().expect("a map");
    let mut files: BTreeMap<&str, Tensors> = BTreeMap::new();
    let mut found = Tensors::new();
    for (name, file) in map {
        let file = file.as_str().expect("a name");
        let tensors = files
            .entry(file)
            .or_insert_with(|| read_file(&directory.join(file)));
        found.insert(name.clone(), tensors[name].clone());
    }
    found
}

pub(crate) fn read_file(path: &Path) -> Tensors {
    let bytes = fs::read(path).expect("is read");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("is a safetensors file");
    let tensors = file.iter().map(|(name, tensor)| {
        let dtype = Dtype::try_from(tensor.dtype()).expect("known");
        let shape = tensor.shape().iter().map(|&dim| dim as u64).collect();
        (name.to_owned(), (dtype, shape, tensor.data().to_vec()))
    });
    tensors.collect()
}

/// Returns the names in a directory, in alphabetical order.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("is listed");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("is listed").file_name();
        name.into_string().expect("is text")
    };
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}
