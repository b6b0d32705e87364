//! Streams a checkpoint in a tokio program, which does other things meanwhile:
//! `cargo run --release --example tokio -- model_dir`.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use futures_util::StreamExt;
use tload::{Checkpoint, OpenOptions, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let location = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let checkpoint = Checkpoint::open_async(location, OpenOptions::default()).await?;
    let mut stream = checkpoint.load().stream()?;
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let mut count = 0;
    loop {
        tokio::select! {
            // The stream is an iterator as well, which would block.
            tensor = StreamExt::next(&mut stream) => match tensor {
                // Do your work here; dropping the stream would end the load.
                Some(tensor) => drop(tensor?),
                None => break,
            },
            _ = ticks.tick() => count += 1,
        }
    }
    println!("{}", stream.report());
    println!("meanwhile: {count} ticks of 10 ms");
    Ok(())
}
