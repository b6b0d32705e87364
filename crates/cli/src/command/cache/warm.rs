//! `tload cache warm`: reads a checkpoint into the cache.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use tload::cache::{CacheDirectory, finish_caching};
use tload::internal::format_bytes;
use tload::{Error, ErrorKind, Loader, Location, Report, Result};

use super::super::load::receive;
use super::super::open::open;
use crate::args::{CacheWarmArgs, OpenArgs};
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{note, standard_output};
use tload_quantity::format_seconds;

/// Interval between looks for a signal while the disk is written.
const LOOK: Duration = Duration::from_millis(100);

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Warmed {
    location: String,
    tensor_bytes: u64,
    fetched_bytes: u64,
    cached_bytes: u64,
    seconds: f64,
}

pub(super) fn run(args: &CacheWarmArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let location = options::location(&args.location)?;
    if location.as_path().is_some() {
        return Err(
            invalid("is a local path: only objects of stores are cached").with_location(&location),
        );
    }
    let started = Instant::now();
    let mut opening = waiting(&args.opening, &location)?;
    // A value for all commands would fill the cache of the hub in place of this one.
    opening.store.store.push("hf_cache=false".into());
    let before = cached_bytes(&opening, &location)?;
    let checkpoint = open(&args.location, &opening, args.tuning.0.timeout, interrupt)?;
    let loader = Loader::new(checkpoint)
        .select(options::selection(&args.select)?)
        .options(args.tuning.0.clone());
    let mut stream = loader.stream()?;
    interrupt.watch(stream.canceller());
    receive(&mut stream, "warming", &mut drop).and_then(|()| interrupt.check())?;
    let deadline = args.tuning.0.timeout.and_then(|it| started.checked_add(it));
    while !finish_caching(LOOK) {
        interrupt.check()?;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let cache = stream.report().cache.unwrap_or_default();
            let written = format_bytes(cache.written_bytes);
            let message = format!("timed out writing to the cache: {written} written so far");
            return Err(Error::new(ErrorKind::TimedOut, message)
                .with_location(&location)
                .with_hint("raise --timeout; the next run adds what is missing"));
        }
    }
    let report = stream.report();
    for text in &report.notes {
        note(text);
    }
    require_cached(&report, &location)?;
    // The headers came into the cache when the checkpoint was opened.
    let added = cached_bytes(&opening, &location)?.saturating_sub(before);
    let warmed = Warmed {
        location: location.to_string(),
        tensor_bytes: report.tensor_bytes,
        fetched_bytes: report.remote_bytes.max(added),
        cached_bytes: report.cached_bytes.min(before),
        seconds: started.elapsed().as_secs_f64(),
    };
    if args.json {
        return interrupt.answer().give(out, &warmed);
    }
    write_text(out, &warmed).map_err(standard_output)
}

/// Returns the options with that of waiting for the cache's disk.
pub(in crate::command) fn waiting(args: &OpenArgs, location: &Location) -> Result<OpenArgs> {
    let options = options::store(&args.store, Some(location))?;
    options.get("cache_dir").ok_or_else(super::no_directory)?;
    let mut args = args.clone();
    args.store.store.push("cache_wait=true".into());
    Ok(args)
}

/// Returns how much of what is at and below `location` is in the cache, which need not exist yet.
fn cached_bytes(args: &OpenArgs, location: &Location) -> Result<u64> {
    let options = options::store(&args.store, Some(location))?;
    let directory = options.get("cache_dir").unwrap_or_default();
    let Ok(cache) = CacheDirectory::open(directory) else {
        return Ok(0);
    };
    let mut bytes = 0;
    for entry in cache.entries() {
        if entry.is_within(location)? {
            bytes += entry.cached_bytes;
        }
    }
    Ok(bytes)
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidRequest, message)
}

/// Returns an error unless all that was read is in the cache.
fn require_cached(report: &Report, location: &Location) -> Result<()> {
    let Some(cache) = &report.cache else {
        return Ok(());
    };
    cache.shortfall().map_or(Ok(()), |reason| {
        let message = format!("is not completely cached in {}: {reason}", cache.directory);
        Err(Error::new(ErrorKind::Io, message)
            .with_location(location)
            .with_hint("the next run adds what is missing, once the reason is removed"))
    })
}

fn write_text(out: &mut dyn Write, warmed: &Warmed) -> io::Result<()> {
    writeln!(
        out,
        "{}: {} fetched, {} were in the cache, {}",
        warmed.location,
        format_bytes(warmed.fetched_bytes),
        format_bytes(warmed.cached_bytes),
        format_seconds(warmed.seconds),
    )
}
