//! `tload ls`: lists the contents of checkpoints from their headers.

mod listing;
mod text;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use tload::{Checkpoint, Loader, Result, TensorInfo, printable};

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
        // The time limit is one for all of them.
        let left = args
            .time
            .timeout
            .map(|it| it.saturating_sub(started.elapsed()));
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

fn list(
    location: &OsStr,
    args: &LsArgs,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
) -> Result<Listing> {
    let checkpoint = open(location, (&args.store, &args.links), timeout, interrupt)?;
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
        .tensors(options::selection(&args.select)?)
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
