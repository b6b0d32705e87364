//! Streams a checkpoint and prints its tensors:
//! `cargo run --release --example stream -- model_dir`.

#![expect(clippy::print_stdout, reason = "an example prints")]

use tload::{Checkpoint, Result};

fn main() -> Result<()> {
    let location = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let mut stream = Checkpoint::open(location)?.load().stream()?;
    let mut largest = None;
    for tensor in &mut stream {
        let tensor = tensor?;
        // Do your work here: `tensor.bytes()` stays valid for as long as you keep `tensor`.
        largest = largest.max(Some((tensor.byte_len(), tensor.name().to_owned())));
    }
    println!("{}", stream.report());
    if let Some((bytes, name)) = largest {
        println!("largest  {name:?}, {bytes} bytes");
    }
    Ok(())
}
