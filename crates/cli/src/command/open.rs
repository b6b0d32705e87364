//! Opening a checkpoint for a command, with a timeout and until a signal.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use tload::{Checkpoint, Error, ErrorKind, OpenOptions, Result};

use crate::args::OpenArgs;
use crate::deadline::{ERROR_GRACE, Watch};
use crate::interrupt::Interrupt;
use crate::options;
use tload_quantity::{format_count, format_duration};

pub(super) fn open(
    location: &OsStr,
    args: &OpenArgs,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
) -> Result<Checkpoint> {
    open_with(location, args, timeout, interrupt, |_| ())
}

/// Like [`open`], with options that `set` adds.
pub(super) fn open_with(
    location: &OsStr,
    args: &OpenArgs,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
    set: impl FnOnce(&mut OpenOptions),
) -> Result<Checkpoint> {
    let location = options::location(location)?;
    let store = options::within(timeout, options::store(&args.store, Some(&location))?)?;
    let mut opening = options::opening(store, args)?;
    set(&mut opening);
    let watch = Watch {
        interrupt,
        // The core names the file that does not answer, so its timeout comes first.
        timeout: timeout.map(|timeout| timeout + ERROR_GRACE),
        cancel: None,
        redraw: &|| (),
        late: &|_| {
            let timeout = timeout.unwrap_or_default();
            let message = format!("opening took longer than its timeout of {timeout:?}");
            Error::new(ErrorKind::TimedOut, message)
                .with_location(&location)
                .with_hint("raise ‹timeout›, or check the storage: tload doctor LOCATION")
        },
    };
    let from = location.clone();
    let started = Instant::now();
    let checkpoint = watch.run(move || Checkpoint::open_with(&from, opening))?;
    tracing::info!(
        "opened {location} in {}: {}, {}",
        format_duration(started.elapsed()),
        format_count(checkpoint.tensors().len() as u64, "tensor"),
        format_count(checkpoint.shards().len() as u64, "shard"),
    );
    Ok(checkpoint)
}
