//! Loads some tensors within a budget, in file order, and keeps them:
//! `cargo run --release --example select -- model_dir 'model.layers.0.*'`.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::collections::BTreeMap;

use tload::internal::format_bytes;
use tload::{LoadOptions, Loader, Location, Order, Result, Selection, Tensor};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let location = args.next().unwrap_or_else(|| ".".to_owned());
    let pattern = args.next().unwrap_or_else(|| "*".to_owned());

    let mut options = LoadOptions::default();
    options.order = Order::File;
    options.memory_limit = Some(1 << 30);
    let loader = Loader::open(&Location::parse(&location)?)?
        .select(Selection::glob(&pattern)?)
        .options(options);

    let kept: BTreeMap<String, Tensor> = loader
        .stream()?
        .map(|tensor| tensor.map(|tensor| (tensor.name().to_owned(), tensor)))
        .collect::<Result<_>>()?;
    for (name, tensor) in &kept {
        let size = format_bytes(tensor.byte_len());
        println!("{name:?} {} {:?} {size}", tensor.dtype(), tensor.shape());
    }
    Ok(())
}
