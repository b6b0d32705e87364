//! Files of `tload load`: the page of `--html`, for which the thread that receives the tensors
//! samples the load, and the trace of `--trace`. Nothing is recorded that the user does not want.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json, to_value};
use tload::{Checkpoint, Error, Loader, Report, Result, Shard, TensorInfo, TensorStream};
use tload_html::{Load, Moment, ShardRow, TensorRow};
use tload_trace::Recorder;

use super::{create, run, write_text, write_trace};
use crate::args::LoadArgs;
use crate::bench::results::RunRecord;
use crate::output::error::chain;
use tload_doctor::host::System;
use tload_doctor::host::record::HostRecord;

/// Time between two looks at a load that is sampled.
const LOOK: Duration = Duration::from_millis(10);

/// Files that the user wants of a load.
#[derive(Debug)]
pub(crate) struct LoadFiles<'a> {
    args: &'a LoadArgs,
    page: Load,
    /// When the load began.
    began: Instant,
    record: RunRecord,
    trace: Option<Trace<'a>>,
    is_written: bool,
}

/// Trace of the load.
#[derive(Debug)]
struct Trace<'a> {
    path: &'a Path,
    recorder: Arc<Recorder>,
    opening: Instant,
}

impl<'a> LoadFiles<'a> {
    /// Creates the files as [`create`] does.
    pub(crate) fn create(args: &'a LoadArgs, arguments: &[OsString]) -> Result<Self> {
        let paths: Vec<_> = args.html.iter().chain(&args.trace).collect();
        create(&paths)?;
        let trace = args.trace.as_deref().map(|path| Trace {
            path,
            recorder: Recorder::start(),
            opening: Instant::now(),
        });
        Ok(Self {
            args,
            page: Load::default(),
            began: Instant::now(),
            record: RunRecord::new(tload_config::redact::arguments(arguments)),
            trace,
            is_written: false,
        })
    }

    /// Returns `loader` with what records it.
    pub(crate) fn watched(&self, loader: Loader) -> Loader {
        match &self.trace {
            Some(trace) => {
                let location = loader.checkpoint().location().to_string();
                loader.watched_by(trace.recorder.watcher(location))
            }
            None => loader,
        }
    }

    /// Returns the longest time between two calls of [`Self::look`], if they matter.
    pub(crate) fn step(&self) -> Option<Duration> {
        self.args.html.as_ref().map(|_| LOOK)
    }

    /// Begins the opening of the checkpoint, whose time is the first of the trace.
    pub(crate) fn opening(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.opening = Instant::now();
        }
    }

    /// Takes what the page says of a checkpoint and its place.
    pub(crate) fn opened(&mut self, checkpoint: &Checkpoint) {
        if self.args.html.is_none() {
            return;
        }
        let shards = checkpoint.shards();
        let row = |shard: &Shard| ShardRow {
            location: shard.location().to_string(),
            tensors: shard.tensors().len() as u64,
            bytes: shard.file_bytes(),
        };
        self.page.shards = shards.iter().map(row).collect();
        let path = shards.iter().find_map(|shard| shard.location().as_path());
        let store = path.is_none().then(|| checkpoint.location().to_string());
        let device = &self.args.device.device;
        let gpu = (device != "cpu").then(|| device.clone());
        let host = HostRecord::collect(&System::real(), path, store, gpu);
        self.page.run = Some(tload_html::Run {
            options: tload_html::options(&to_value(&self.args.tuning.0).unwrap_or_default()),
            ..run(&self.record, Some(&host))
        });
    }

    /// Takes the tensors of a load that has begun.
    pub(crate) fn begun(&mut self, stream: &TensorStream) {
        if self.args.html.is_none() {
            return;
        }
        let before = Duration::from_secs_f64(stream.report().seconds);
        self.began = Instant::now().checked_sub(before).unwrap_or(self.began);
        let row = |info: &TensorInfo| TensorRow {
            name: info.name().to_owned(),
            dtype: info.dtype().to_string(),
            shape: info.shape().iter().map(|length| *length as u64).collect(),
            bytes: info.byte_len(),
            shard: info.shard(),
        };
        self.page.tensors = stream.tensors().map(row).collect();
        (self.page.tensors).sort_by_key(|tensor| std::cmp::Reverse(tensor.bytes));
        self.sample(stream);
    }

    /// Samples a running load, if a sample is due.
    pub(crate) fn look(&mut self, stream: &TensorStream) {
        let seconds = self.began.elapsed().as_secs_f64();
        if self.args.html.is_some() && self.page.samples.is_due(seconds) {
            self.sample(stream);
        }
    }

    fn sample(&mut self, stream: &TensorStream) {
        let progress = stream.progress();
        self.page.samples.add(Moment {
            seconds: self.began.elapsed().as_secs_f64(),
            read_bytes: progress.bytes_read,
            received_bytes: progress.bytes_received,
            in_flight_bytes: stream.report().in_flight_bytes,
        });
    }

    /// Writes the files of a load that has ended, with the error that ended it.
    pub(crate) fn write(&mut self, report: &Report, error: Option<&Error>) -> Result<()> {
        self.page.report = to_value(report).unwrap_or_default();
        self.page.text = report.to_string();
        self.page.failure = error.map(chain);
        self.is_written = true;
        if let Some(trace) = &self.trace {
            let phases = report.phases.iter();
            let phases = phases.map(|it| (it.phase.as_str(), it.start_seconds, it.seconds));
            trace.recorder.add_phases(trace.opening, phases);
            write_trace(trace.path, &trace.recorder)?;
        }
        let Some(path) = &self.args.html else {
            return Ok(());
        };
        self.page.samples.add(Moment {
            seconds: report.seconds,
            read_bytes: report.read_bytes,
            received_bytes: report.tensor_bytes,
            in_flight_bytes: report.in_flight_bytes,
        });
        write_text(path, &tload_html::load_page(&self.page))
    }

    /// Writes the files of a load that did not begin.
    pub(crate) fn write_failure(&mut self, error: &Error) {
        if self.is_written {
            return;
        }
        // If this fails too, standard error and the exit status still report the failure.
        if let Some(trace) = &self.trace {
            drop(write_trace(trace.path, &trace.recorder));
        }
        let Some(path) = &self.args.html else {
            return;
        };
        self.page.report = failed(error);
        (self.page.run).get_or_insert_with(|| run(&self.record, None));
        self.page.failure = Some(chain(error));
        drop(write_text(path, &tload_html::load_page(&self.page)));
    }
}

/// Returns the report of a load that did not begin.
fn failed(error: &Error) -> Value {
    json!({
        "location": error.location().unwrap_or("a load"),
        "outcome": error.kind().name(),
    })
}
