//! Tensors to write.

use std::collections::BTreeMap;

use tload_base::error::Result;
use tload_base::options::Location;
use tload_format::Dtype;
use tload_write::{TensorSpec, WriteOptions, WriteReport, Writer};

/// Tensors by name, with their bytes.
pub(crate) type Tensors = BTreeMap<String, (Dtype, Vec<u64>, Vec<u8>)>;

/// Returns `count` tensors of several dtypes; the largest have `len` bytes, and `seed` is in all.
pub(crate) fn tensors(count: usize, len: usize, seed: u8) -> Tensors {
    let dtypes = [
        Dtype::F32,
        Dtype::Bf16,
        Dtype::U8,
        Dtype::F64,
        Dtype::I64,
        Dtype::Bool,
    ];
    let tensor = |index: usize| {
        let dtype = dtypes[index % dtypes.len()];
        let elements = match index {
            0 => 1,
            1 => 0,
            _ => len / (dtype.bits() / 8) / (1 + index % 3) + index,
        };
        let bytes = (0..elements * dtype.bits() / 8).map(|at| {
            let byte = at.wrapping_mul(31) ^ (at >> 11) ^ index.wrapping_mul(7);
            u8::try_from(byte & 0xff).expect("a byte") ^ seed
        });
        let shape = if index == 0 {
            vec![]
        } else {
            vec![elements as u64]
        };
        (format!("layer.{index}"), (dtype, shape, bytes.collect()))
    };
    (0..count).map(tensor).collect()
}

pub(crate) fn specs(tensors: &Tensors) -> Vec<TensorSpec> {
    let spec = |(name, (dtype, shape, _)): (&String, &(Dtype, Vec<u64>, Vec<u8>))| {
        TensorSpec::new(name, *dtype, shape.clone()).expect("a good shape")
    };
    tensors.iter().map(spec).collect()
}

/// Writes tensors whose names are known, in pieces of odd lengths.
pub(crate) fn write_to(
    location: &Location,
    tensors: &Tensors,
    options: WriteOptions,
) -> Result<WriteReport> {
    let mut writer = Writer::planned(location, specs(tensors), options)?;
    fill(&mut writer, tensors)?;
    writer.finish()
}

/// Hands all tensors over.
pub(crate) fn fill(writer: &mut Writer, tensors: &Tensors) -> Result<()> {
    let order: Vec<_> = writer.order().map(str::to_owned).collect();
    for name in order {
        let (dtype, shape, bytes) = &tensors[&name];
        writer.begin(TensorSpec::new(name, *dtype, shape.clone())?)?;
        for piece in bytes.chunks(777_777) {
            writer.write(piece)?;
        }
    }
    Ok(())
}
