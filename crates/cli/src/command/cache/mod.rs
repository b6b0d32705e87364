//! `tload cache`: lists, fills and shrinks the cache of objects.

mod warm;

pub(super) use self::warm::waiting;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tload::cache::{CacheDirectory, CacheEntry, CacheRemoval, Pruning};
use tload::internal::format_bytes;
use tload::{Error, ErrorKind, Location, Result};

use crate::args::{
    CacheCommand, CacheDirArgs, CacheLsArgs, CachePruneArgs, CacheRmArgs, CacheStatArgs,
    RemovalArgs,
};
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{note, standard_output};
use crate::output::table::{Align, render};
use tload_quantity::{float, format_age, format_count, format_share};

pub(crate) fn run(
    command: &CacheCommand,
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<()> {
    match command {
        CacheCommand::Ls(args) => ls(args, interrupt, out),
        CacheCommand::Stat(args) => stat(args, interrupt, out),
        CacheCommand::Rm(args) => rm(args, interrupt, out),
        CacheCommand::Prune(args) => prune(args, interrupt, out),
        CacheCommand::Warm(args) => warm::run(args, interrupt, out),
    }
}

fn open(args: &CacheDirArgs) -> Result<CacheDirectory> {
    CacheDirectory::open(directory(args)?)
}

fn directory(args: &CacheDirArgs) -> Result<&Path> {
    args.cache_dir.as_deref().ok_or_else(no_directory)
}

fn no_directory() -> Error {
    Error::new(
        ErrorKind::InvalidRequest,
        "no directory for the cache is set",
    )
    .with_hint(
        "pass --cache-dir, or set TLOAD_CACHE_DIR, or dir in [cache] of the configuration file",
    )
}

/// Returns the objects at and below `location`, or all.
fn entries(cache: &CacheDirArgs, location: Option<&OsStr>) -> Result<Vec<CacheEntry>> {
    let location = location.map(options::location).transpose()?;
    let mut chosen = Vec::new();
    let directory = directory(cache)?;
    if !directory.exists() {
        let directory = directory.display();
        note(&format!(
            "{directory} does not exist yet: the first load with this cache creates it"
        ));
        return Ok(chosen);
    }
    for entry in open(cache)?.entries() {
        if location
            .as_ref()
            .map_or(Ok(true), |it| entry.is_within(it))?
        {
            chosen.push(entry);
        }
    }
    Ok(chosen)
}

fn ls(args: &CacheLsArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let entries = entries(&args.cache, args.location.as_deref())?;
    if args.cache.json {
        return interrupt.answer().give(out, &entries);
    }
    let header = [
        ("size", Align::Right),
        ("cached", Align::Right),
        ("on disk", Align::Right),
        ("last used", Align::Right),
        ("location", Align::Left),
    ];
    let rows = entries.iter().map(|entry| {
        vec![
            format_bytes(entry.object_bytes),
            share(entry),
            format_bytes(entry.disk_bytes),
            format_age(age(entry.last_used)),
            entry.location.as_deref().unwrap_or("unknown").to_owned(),
        ]
    });
    write!(out, "{}", render(&header, rows)).map_err(standard_output)
}

/// Returns the share of an object that is in the cache; never 100 % if anything is missing.
fn share(entry: &CacheEntry) -> String {
    if entry.is_complete() {
        return format_share(1.0);
    }
    format_share((float(entry.cached_bytes) / float(entry.object_bytes.max(1))).min(0.99))
}

fn age(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

/// Totals of objects in a cache.
#[derive(Debug, Serialize)]
struct Totals {
    objects: u64,
    complete_objects: u64,
    object_bytes: u64,
    cached_bytes: u64,
    disk_bytes: u64,
    free_bytes: Option<u64>,
    first_used: Option<u64>,
    last_used: Option<u64>,
}

fn stat(args: &CacheStatArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let entries = entries(&args.cache, args.location.as_deref())?;
    let sum = |bytes: fn(&CacheEntry) -> u64| entries.iter().map(bytes).sum();
    let seconds = |entry: &CacheEntry| {
        let since = entry.last_used.duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs())
    };
    let totals = Totals {
        objects: entries.len() as u64,
        complete_objects: entries.iter().filter(|entry| entry.is_complete()).count() as u64,
        object_bytes: sum(|entry| entry.object_bytes),
        cached_bytes: sum(|entry| entry.cached_bytes),
        disk_bytes: sum(|entry| entry.disk_bytes),
        free_bytes: open(&args.cache)?.free_bytes(),
        first_used: entries.first().map(seconds),
        last_used: entries.last().map(seconds),
    };
    if args.cache.json {
        return interrupt.answer().give(out, &totals);
    }
    write_totals(out, &totals, &entries).map_err(standard_output)
}

fn write_totals(out: &mut dyn Write, totals: &Totals, entries: &[CacheEntry]) -> io::Result<()> {
    writeln!(
        out,
        "{}, {} of them complete: {} of {}; {} on disk",
        format_count(totals.objects, "object"),
        totals.complete_objects,
        format_bytes(totals.cached_bytes),
        format_bytes(totals.object_bytes),
        format_bytes(totals.disk_bytes),
    )?;
    if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
        let [first, last] = [first, last].map(|entry| format_age(age(entry.last_used)));
        writeln!(out, "last used {last} ago; the oldest one {first} ago")?;
    }
    match totals.free_bytes {
        Some(free) => writeln!(out, "{} are free on its file system", format_bytes(free)),
        None => Ok(()),
    }
}

fn rm(args: &CacheRmArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let location: Option<Location> = (args.location.as_deref())
        .map(options::location)
        .transpose()?;
    let cache = open(&args.removal.cache)?;
    let removal = if args.removal.dry_run {
        cache.removable(location.as_ref())?
    } else {
        cache.remove(location.as_ref())?
    };
    if let Some(location) = &location
        && removal.removed.is_empty()
        && removal.in_use.is_empty()
        && removal.removed_answers == 0
    {
        let message = "no object in the cache is at or below it";
        return Err(Error::new(ErrorKind::NotFound, message)
            .with_location(location)
            .with_hint("tload cache ls shows the objects in the cache"));
    }
    answer(&removal, &args.removal, interrupt, out)
}

fn prune(args: &CachePruneArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let mut rules = Pruning::default();
    rules.max_bytes = args.max_size;
    rules.unused_for = args.unused_for;
    rules.dry_run = args.removal.dry_run;
    let removal = open(&args.removal.cache)?.prune(&rules)?;
    answer(&removal, &args.removal, interrupt, out)
}

fn answer(
    removal: &CacheRemoval,
    args: &RemovalArgs,
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<()> {
    let in_use = removal.in_use.len() as u64;
    if in_use > 0 {
        let objects = format_count(in_use, "object");
        note(&format!(
            "not removed because a process has them open: {objects}"
        ));
    }
    if args.cache.json {
        return interrupt.answer().give(out, removal);
    }
    let bytes = removal.removed.iter().map(|entry| entry.disk_bytes).sum();
    let objects = format_count(removal.removed.len() as u64, "object");
    let verb = if args.dry_run {
        "would remove"
    } else {
        "removed"
    };
    let answers = match removal.removed_answers {
        0 => String::new(),
        count => format!(", and {}", format_count(count, "cached answer")),
    };
    let bytes = format_bytes(bytes);
    writeln!(out, "{verb} {objects}, {bytes} on disk{answers}").map_err(standard_output)
}
