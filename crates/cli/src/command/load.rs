//! `tload load`: streams a checkpoint into CPU or GPU memory, shows progress and prints the report.

use std::ffi::OsString;
use std::io::{self, Write};
use std::task::Poll;
use std::time::Duration;

use serde::Serialize;
use tload::internal::{EarlyStart, format_bytes};
use tload::{Device, Error, ErrorKind, Loader, Report, Result, Tensor, TensorStream};

use super::open::open;
use super::ranks;
use crate::args::LoadArgs;
use crate::digest::Digest;
use crate::export::load::LoadFiles;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{note as print_note, standard_output, warn};
use crate::output::failure::Outcome;
use crate::output::progress::Progress;

/// Interval between updates of the progress bar while no tensor arrives.
const REDRAW: Duration = Duration::from_millis(100);

pub(crate) fn run(
    args: &LoadArgs,
    arguments: &[OsString],
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<()> {
    tload_prefetch::load_begins();
    if let Some(size) = args.ranks.ranks {
        return ranks::load(args, size.into(), arguments, interrupt, out);
    }
    let mut files = LoadFiles::create(args, arguments)?;
    let outcome = load(args, &mut files, interrupt, out);
    if let Err(error) = &outcome {
        files.write_failure(error);
    }
    outcome
}

fn load(
    args: &LoadArgs,
    files: &mut LoadFiles<'_>,
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<()> {
    let device = options::device(&args.device)?;
    let rules = options::device_map(&args.device_map)?;
    let timeout = args.tuning.0.timeout;
    let ordinals: &[usize] = match &device {
        Device::Cuda(ordinal) if args.device_map.is_empty() => std::slice::from_ref(ordinal),
        Device::Cuda(_) | Device::Cpu | _ => &[],
    };
    let locations = options::location(&args.location).into_iter().collect();
    let early = EarlyStart::begin(ordinals, locations, &args.tuning.0);
    files.opening();
    let checkpoint = open(&args.location, &args.opening, timeout, interrupt)?;
    files.opened(&checkpoint);
    let loader = Loader::new(checkpoint);
    let loader = match early {
        Some(early) => loader.prepared_by(early),
        None => loader,
    };
    let loader = loader
        .select(options::selection(&args.select)?)
        .device(device)
        .device_map(rules)
        .options(args.tuning.0.clone());
    let loader = files.watched(loader);
    if args.digest {
        in_sight(&loader)?;
    }
    let mut digest = args.digest.then(Digest::default);
    let (report, outcome) = stream(&loader, args, files, interrupt, digest.as_mut())?;
    let written = files.write(&report, outcome.as_ref().err());
    if let Err(error) = outcome {
        if args.json {
            let result = Loaded::new(&report, None);
            let outcome = Outcome::new(&result, Some(interrupt.failure(&error)));
            // If the report cannot be written, the error of the load is still the one to return.
            drop(interrupt.answer().give(out, &outcome));
        } else if interrupt.check().is_ok() {
            warn(report.to_string().trim_end());
        } else {
            // Memory that is still held, and where the time went, do not matter to the user.
            let (received, seconds) = (format_bytes(report.tensor_bytes), report.seconds);
            warn(&format!("received {received} in {seconds:.1} s"));
        }
        return Err(error);
    }
    written?;
    let digest = digest.map(Digest::finish);
    if args.json {
        for note in &report.notes {
            print_note(note);
        }
        let result = Loaded::new(&report, digest.as_deref());
        return interrupt.answer().give(out, &result);
    }
    write_text(out, &report, digest.as_deref()).map_err(standard_output)
}

/// Refuses a digest if any tensor goes to a GPU.
fn in_sight(loader: &Loader) -> Result<()> {
    let mut devices = loader.selected_devices()?.into_iter();
    let Some(device) = devices.find(|device| *device != Device::Cpu) else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::InvalidRequest,
        format!("--digest needs tensors in CPU memory; some are to go to {device}"),
    )
    .with_hint("leave out --digest, or use ‹device=cpu›"))
}

/// Receives every tensor. Returns an error if the load cannot start; once it has started, returns
/// its report together with its outcome.
fn stream(
    loader: &Loader,
    args: &LoadArgs,
    files: &mut LoadFiles<'_>,
    interrupt: &Interrupt,
    mut digest: Option<&mut Digest>,
) -> Result<(Report, Result<()>)> {
    let mut stream = loader.stream()?;
    interrupt.watch(stream.canceller());
    files.begun(&stream);
    let mut kept = Vec::new();
    let mut keep = |tensor| {
        if let Some(digest) = &mut digest {
            digest.add(&tensor);
        }
        if args.keep {
            kept.push(tensor);
        }
    };
    let step = files.step().unwrap_or(REDRAW);
    let outcome = receive_watched(&mut stream, "loading", step, &mut keep, &mut |stream| {
        files.look(stream);
    });
    Ok((stream.report(), outcome.and_then(|()| interrupt.check())))
}

/// Passes every tensor to `to`, and shows progress with `message`.
pub(super) fn receive(
    stream: &mut TensorStream,
    message: &'static str,
    to: &mut dyn FnMut(Tensor),
) -> Result<()> {
    receive_watched(stream, message, REDRAW, to, &mut |_| ())
}

/// Like [`receive`], and lets `watch` look at the stream at least once per `step`.
fn receive_watched(
    stream: &mut TensorStream,
    message: &'static str,
    step: Duration,
    to: &mut dyn FnMut(Tensor),
    watch: &mut dyn FnMut(&TensorStream),
) -> Result<()> {
    let progress = Progress::for_bytes(stream.progress().bytes_total, message);
    loop {
        match stream.wait(step) {
            Poll::Pending => {}
            Poll::Ready(None) => return Ok(()),
            Poll::Ready(Some(tensor)) => to(tensor?),
        }
        progress.show(stream);
        watch(stream);
    }
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Loaded<'a> {
    gigabytes_per_second: f64,
    digest: Option<&'a str>,
    report: &'a Report,
}

impl<'a> Loaded<'a> {
    fn new(report: &'a Report, digest: Option<&'a str>) -> Self {
        Self {
            gigabytes_per_second: report.bytes_per_second() / 1e9,
            digest,
            report,
        }
    }
}

fn write_text(out: &mut dyn Write, report: &Report, digest: Option<&str>) -> io::Result<()> {
    writeln!(out, "{}", report.to_string().trim_end())?;
    match digest {
        Some(digest) => writeln!(out, "digest: {digest}"),
        None => Ok(()),
    }
}
