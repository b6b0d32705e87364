//! Measures openings of one small checkpoint by URL, again and again in one process:
//! `cargo run --release -p tload --example again`, or `... -- LOCATION KEY=VALUE…` for your own.
//!
//! Without a location, starts versitygw (`tools/servers`) with one of 50 MiB in 448 tensors, as a
//! `LoRA` adapter of 32 layers has.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::{Duration, Instant};

use tload::{Checkpoint, Dtype, Loader, Location, Result, StoreOptions};
use tload_testbed::Versitygw;
use tload_testing::fixtures::{FileBuilder, Rng};

const TENSORS: usize = 448;
const TENSOR_BYTES: usize = (50 << 20) / TENSORS;
const OPENINGS: usize = 21;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    if let Some(location) = arguments.next() {
        let pairs = arguments.map(|pair| StoreOptions::parse(&pair));
        let options = StoreOptions::from_pairs(pairs.collect::<Result<Vec<_>>>()?)?;
        return Ok(measure(&Location::parse(&location)?, &options)?);
    }
    let server = Versitygw::start()?;
    server.put("models", "lora/adapter_model.safetensors", &adapter())?;
    let options = StoreOptions::new()
        .with("endpoint", server.endpoint())?
        .with("region", server.region())?
        .with("access_key_id", server.access_key())?
        .with("secret_access_key", server.secret_key())?;
    for location in [
        "s3://models/lora",
        "s3://models/lora/adapter_model.safetensors",
    ] {
        measure(&Location::parse(location)?, &options)?;
    }
    Ok(())
}

/// Opens and loads a checkpoint [`OPENINGS`] times, and prints the times in milliseconds.
fn measure(location: &Location, options: &StoreOptions) -> Result<()> {
    println!("{location}");
    let mut times = Vec::new();
    for _ in 0..OPENINGS {
        let started = Instant::now();
        let checkpoint = Checkpoint::open_with(location, options)?;
        let opened = started.elapsed();
        let mut stream = Loader::new(checkpoint).stream()?;
        let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
        let both = started.elapsed();
        times.push([both, opened, both.saturating_sub(opened)]);
        drop((tensors, stream));
    }
    for (index, name) in ["both", "open", "load"].into_iter().enumerate() {
        let (first, mut later) = (times[0][index], Vec::new());
        later.extend(times[1..].iter().map(|times| times[index]));
        later.sort();
        println!(
            "  {name}  first {:.1}  later: median {:.1}, from {:.1} to {:.1} ms",
            milliseconds(first),
            milliseconds(later[later.len() / 2]),
            milliseconds(later[0]),
            milliseconds(later[later.len() - 1]),
        );
    }
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns a file of [`TENSORS`] tensors of BF16.
fn adapter() -> Vec<u8> {
    let mut rng = Rng::new(1);
    let file = (0..TENSORS).fold(FileBuilder::new(), |file, index| {
        let bytes = rng.bytes(TENSOR_BYTES / 2 * 2);
        file.tensor(
            &format!("lora.{index}"),
            Dtype::Bf16,
            &[bytes.len() / 2],
            &bytes,
        )
    });
    file.build()
}
