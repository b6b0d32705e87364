//! Loads a checkpoint as one of several processes of a node, which read it once together:
//! `cargo run --example ranks LOCATION SOCKET RANK SIZE`.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tload::{Checkpoint, Error, ErrorKind, LocalGroup, Result};

const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [location, socket, rank, size] = &arguments[..] else {
        return Err(usage());
    };
    let number = |text: &String| text.parse::<usize>().map_err(|_| usage());
    let (rank, size) = (number(rank)?, number(size)?);

    let group = LocalGroup::join(Path::new(socket), rank, size, TIMEOUT)?;
    let checkpoint = Checkpoint::open(location)?;
    let mut stream = checkpoint.load().group(Arc::new(group)).stream()?;
    for tensor in &mut stream {
        let tensor = tensor?;
        println!("{} {:?}", tensor.name(), tensor.shape());
    }
    let report = stream.report();
    if let Some(group) = report.group {
        println!(
            "read {}, received {}",
            group.read_bytes, report.received_bytes
        );
    }
    // Other ranks may still receive what this process reads.
    #[cfg(target_os = "linux")]
    tload::ranks::finish_serving(TIMEOUT);
    Ok(())
}

fn usage() -> Error {
    Error::new(
        ErrorKind::InvalidRequest,
        "usage: ranks LOCATION SOCKET RANK SIZE",
    )
}
