//! `tload synth`: writes a checkpoint of random numbers.

use std::io::Write;
use std::time::Instant;

use tload::Result;
use tload::internal::{format_bytes, format_rate, printable};
use tload_synth::{Model, Synth, check_room};

use super::local_path::require_local;
use crate::args::SynthArgs;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::standard_output;
use crate::output::progress::Progress;
use crate::output::verbosity;
use crate::synth_host::SynthHost;
use tload_quantity::{format_count, format_duration, rate};

pub(crate) fn run(args: &SynthArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let target = options::upload_target(&args.directory)?;
    let store = options::store(&args.store, target.as_ref())?;
    if target.is_none() {
        require_local(&args.directory)?;
    }
    let preset = options::preset(args.model.preset);
    let size = args.model.size.unwrap_or(preset.default_bytes());
    // First, because for an absurd size even the list of tensors would not fit in memory.
    if target.is_none() {
        check_room(&args.directory, size)?;
    }
    let model = Model::new(preset, size)?;
    let synth = Synth::new(&model, args.model.shards, args.model.seed)?;
    let started = Instant::now();
    let progress = Progress::for_bytes(model.bytes(), "writing");
    let host = SynthHost {
        interrupt,
        progress: &progress,
    };
    let (place, shards) = if let Some(target) = target {
        let shards = synth.write_to(&target, &store, args.force, &host)?;
        (target.to_string(), shards)
    } else {
        synth.write(&args.directory, args.force, &host)?;
        (args.directory.display().to_string(), synth.shard_count())
    };
    drop(progress);
    let elapsed = started.elapsed();
    if !verbosity::shows_notes() {
        return Ok(());
    }
    writeln!(
        out,
        "{}: {}, {} ({} bytes), {} in {} ({})",
        printable(&place),
        format_count(model.tensor_count(), "tensor"),
        format_bytes(model.bytes()),
        model.bytes(),
        format_count(shards, "shard"),
        format_duration(elapsed),
        format_rate(rate(model.bytes(), elapsed.as_secs_f64())),
    )
    .map_err(standard_output)
}
