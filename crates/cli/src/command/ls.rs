//! `tload ls`: lists the contents of checkpoints from their headers.

mod listing;
mod text;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use tload::internal::printable;
use tload::{Checkpoint, Error, ErrorKind, Loader, Result, TensorInfo};

use self::listing::Listing;
use super::open::open;
use crate::args::LsArgs;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{note, standard_output};

pub(crate) use self::listing::Order;

pub(crate) fn run(args: &LsArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let started = Instant::now();
    let mut listings = Vec::with_capacity(args.locations.len());
    for location in &args.locations {
        let timeout = args.time.timeout;
        let left = timeout
            .map(|timeout| time_left(location, timeout, started.elapsed()))
            .transpose()?;
        let listing = list(location, args, left, interrupt)?;
        if args.json {
            listings.push(listing);
        } else {
            write_text(out, &listing, args).map_err(standard_output)?;
        }
    }
    match listings.as_slice() {
        [] => Ok(()),
        [listing] => interrupt.answer().give(out, listing),
        listings => interrupt.answer().give(out, &listings),
    }
}

/// Returns the time left for a location: the timeout is one for all of them.
fn time_left(location: &OsStr, timeout: Duration, elapsed: Duration) -> Result<Duration> {
    let left = timeout.saturating_sub(elapsed);
    // A timeout of zero has another error.
    if left.is_zero() && !timeout.is_zero() {
        let message =
            format!("no time was left to open it: the timeout of {timeout:?} is for all locations");
        return Err(Error::new(ErrorKind::TimedOut, message)
            .with_location(options::location(location)?)
            .with_hint("raise ‹timeout›, or list fewer locations at once"));
    }
    Ok(left)
}

fn list(
    location: &OsStr,
    args: &LsArgs,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
) -> Result<Listing> {
    let checkpoint = open(location, &args.opening, timeout, interrupt)?;
    for text in checkpoint.notes() {
        note(text);
    }
    let mut listing = Listing::new(&checkpoint, &selected(&checkpoint, args)?);
    if args.summary {
        listing.summarise();
    } else {
        listing.sort(options::order(args.sort), args.reverse);
    }
    Ok(listing)
}

/// Returns the selected tensors, in file order.
fn selected(checkpoint: &Checkpoint, args: &LsArgs) -> Result<Vec<TensorInfo>> {
    Loader::new(checkpoint.clone())
        .select(options::selection(&args.select)?)
        .selected()
}

/// Writes the tables, below the location if there are several.
fn write_text(out: &mut dyn Write, listing: &Listing, args: &LsArgs) -> io::Result<()> {
    if args.locations.len() > 1 {
        writeln!(out, "{}:", printable(&listing.location))?;
    }
    text::write(out, listing)?;
    if args.locations.len() > 1 {
        writeln!(out)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_left_is_error_with_timeout_and_location() {
        let second = Duration::from_secs(1);
        let left = |timeout, elapsed| time_left(OsStr::new("model"), timeout, elapsed);
        assert_eq!(left(second * 3, second).unwrap(), second * 2);
        assert_eq!(left(Duration::ZERO, second).unwrap(), Duration::ZERO);
        let error = left(second, second).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.location(), Some("model"));
        assert!(error.message().contains("timeout of 1s"), "{error}");
    }
}
