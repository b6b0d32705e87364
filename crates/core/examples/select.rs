//! Loads some tensors within a budget, in file order, and keeps them:
//! `cargo run --release --example select -- model_dir 'model.layers.0.*'`.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::collections::BTreeMap;

use tload::{Checkpoint, LoadOptions, Order, Result, Selection, Tensor};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let location = args.next().unwrap_or_else(|| ".".to_owned());
    let pattern = args.next().unwrap_or_else(|| "*".to_owned());

    let stream = Checkpoint::open(location)?
        .load()
        .select(Selection::glob(&pattern)?)
        .options(LoadOptions::new().order(Order::File).memory_limit(1 << 30))
        .stream()?;
    let kept: BTreeMap<String, Tensor> = stream
        .map(|tensor| tensor.map(|tensor| (tensor.name().to_owned(), tensor)))
        .collect::<Result<_>>()?;
    for (name, tensor) in &kept {
        let (dtype, shape, bytes) = (tensor.dtype(), tensor.shape(), tensor.byte_len());
        println!("{name:?} {dtype} {shape:?} {bytes} bytes");
    }
    Ok(())
}
