//! `tload load`: streams a checkpoint into memory, shows how far it is, and prints the report.

use std::io::{self, Write};
use std::task::Poll;
use std::time::Duration;

use serde::Serialize;
use tload::{Checkpoint, Loader, Report, Result};

use crate::args::LoadArgs;
use crate::digest::Digest;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{standard_output, warn};
use crate::output::progress::Progress;

/// How often the bar moves while no tensor arrives.
const REDRAW: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &LoadArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let checkpoint = Checkpoint::open(&options::location(&args.location)?)?;
    let loader = Loader::new(checkpoint)
        .tensors(options::selection(&args.select)?)
        .options(options::options(&args.tuning));
    let mut digest = args.digest.then(Digest::default);
    let report = stream(&loader, args, interrupt, digest.as_mut())?;
    let digest = digest.map(Digest::finish);
    if args.json {
        for note in &report.notes {
            warn(&format!("note: {note}"));
        }
        write_json(out, &report, digest.as_deref())
    } else {
        write_text(out, &report, digest.as_deref())
    }
    .map_err(standard_output)
}

/// Receives every tensor. What the caller sees of a failure is its error; the report of a failed load is not printed.
fn stream(
    loader: &Loader,
    args: &LoadArgs,
    interrupt: &Interrupt,
    mut digest: Option<&mut Digest>,
) -> Result<Report> {
    let mut stream = loader.stream()?;
    interrupt.watch(stream.canceller());
    let progress = Progress::of_bytes(stream.progress().bytes_total, "loading");
    let mut kept = Vec::new();
    let mut received_bytes = 0;
    loop {
        match stream.wait(REDRAW) {
            Poll::Pending => {}
            Poll::Ready(None) => break,
            Poll::Ready(Some(tensor)) => {
                let tensor = tensor?;
                received_bytes += tensor.byte_len();
                if let Some(digest) = &mut digest {
                    digest.add(&tensor);
                }
                if args.keep {
                    kept.push(tensor);
                }
            }
        }
        progress.set(received_bytes);
    }
    interrupt.check()?;
    Ok(stream.report())
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Loaded<'a> {
    gigabytes_per_second: f64,
    digest: Option<&'a str>,
    report: &'a Report,
}

fn write_text(out: &mut dyn Write, report: &Report, digest: Option<&str>) -> io::Result<()> {
    writeln!(out, "{}", report.to_string().trim_end())?;
    match digest {
        Some(digest) => writeln!(out, "digest: {digest}"),
        None => Ok(()),
    }
}

fn write_json(out: &mut dyn Write, report: &Report, digest: Option<&str>) -> io::Result<()> {
    let gigabytes_per_second = report.bytes_per_second() / 1e9;
    let loaded = Loaded {
        gigabytes_per_second,
        digest,
        report,
    };
    serde_json::to_writer_pretty(&mut *out, &loaded)?;
    writeln!(out)
}
