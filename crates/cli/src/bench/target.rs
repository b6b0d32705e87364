//! Checkpoint to measure: the user's, or a synthetic one that is removed when the benchmark ends.

use std::path::Path;

use tload::internal::{format_bytes, probe};
use tload::{Checkpoint, Error, ErrorKind, Location, OpenOptions, Result};
use tload_synth::{Model, Preset, Synth};

use super::place::Place;
use super::results::{CheckpointRecord, SyntheticRecord};
use super::warnings::Warning;
use super::{Gpu, Mode, Plan};
use crate::interrupt::{Interrupt, Temporary};
use crate::output::error::file as file_error;
use crate::output::progress::Progress;
use crate::synth_host::SynthHost;
use tload_doctor::host::{System, memory};

/// Memory that a load in mode keep needs in addition to the tensors: its budget, page cache and the
/// process itself.
const SPARE_BYTES: u64 = 1 << 30;

/// Parameters of a synthetic checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Recipe<'a> {
    pub(crate) preset: Preset,
    pub(crate) size: u64,
    pub(crate) shards: Option<u32>,
    pub(crate) seed: u64,
    pub(crate) directory: Option<&'a Path>,
}

/// Opened checkpoint, and the guard of its files if they are temporary.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) warnings: Vec<Warning>,
    synthetic: Option<SyntheticRecord>,
    _guard: Option<Temporary<'a>>,
}

impl<'a> Target<'a> {
    /// Opens the user's checkpoint.
    pub(crate) fn open(location: &Location, opening: &OpenOptions) -> Result<Self> {
        let checkpoint = Checkpoint::open_with(location, opening)?;
        let warnings = storage_warnings(&checkpoint);
        Ok(Self {
            checkpoint,
            warnings,
            synthetic: None,
            _guard: None,
        })
    }

    /// Writes a synthetic checkpoint and opens it.
    pub(crate) fn make(recipe: &Recipe<'_>, interrupt: &'a Interrupt) -> Result<Self> {
        let least = recipe.preset.smallest_bytes();
        let mut place = Place::find(recipe.directory, recipe.size, least)?;
        let directory = tempfile::Builder::new()
            .prefix("tload-bench-")
            .tempdir_in(&place.directory)
            .map_err(|error| file_error("cannot create a directory in", &place.directory, error))?
            .keep();
        let guard = interrupt.temporary(&directory);
        let model = Model::new(recipe.preset, place.size)?;
        let progress = Progress::for_bytes(model.bytes(), "writing a checkpoint");
        let host = SynthHost {
            interrupt,
            progress: &progress,
        };
        Synth::new(&model, recipe.shards, recipe.seed)?.write(&directory, false, &host)?;
        drop(progress);
        let checkpoint = Checkpoint::open(Location::from_path(directory))?;
        for warning in storage_warnings(&checkpoint) {
            if !place.warnings.contains(&warning) {
                place.warnings.push(warning);
            }
        }
        let synthetic = SyntheticRecord {
            preset: recipe.preset.name(),
            seed: recipe.seed,
        };
        let warnings = place.warnings;
        Ok(Self {
            checkpoint,
            warnings,
            synthetic: Some(synthetic),
            _guard: Some(guard),
        })
    }

    /// Returns the path of the first shard on a file system.
    pub(crate) fn path(&self) -> Option<&Path> {
        let mut shards = self.checkpoint.shards().iter();
        shards.find_map(|shard| shard.location().as_path())
    }

    /// Returns the location of the first shard in an object store.
    pub(crate) fn remote(&self) -> Option<&Location> {
        let mut shards = self.checkpoint.shards().iter().map(tload::Shard::location);
        shards.find(|location| location.as_path().is_none())
    }

    pub(crate) fn record(&self) -> CheckpointRecord {
        let shards = self.checkpoint.shards();
        CheckpointRecord {
            location: self.checkpoint.location().to_string(),
            tensors: self.checkpoint.tensors().len() as u64,
            tensor_bytes: self.checkpoint.total_bytes(),
            shards: shards.len() as u64,
            file_bytes: shards.iter().map(tload::Shard::file_bytes).sum(),
            synthetic: self.synthetic.clone(),
        }
    }

    /// Returns an error if mode keep, or another loader, needs more memory than is available: the
    /// OOM killer would end some process, perhaps another one.
    pub(crate) fn fits(&self, plan: &Plan, gpu: Option<&Gpu>, system: &System) -> Result<()> {
        let keeps = plan.cells.iter().any(|cell| cell.mode == Mode::Keep);
        if let (Some(gpu), true) = (gpu, keeps) {
            return gpu.has_room_for(self.checkpoint.total_bytes());
        }
        if keeps || plan.contenders.iter().any(|it| it.is_peer()) {
            self.fits_in_memory(1, system)?;
        }
        Ok(())
    }

    /// Returns an error if so many copies of the tensors need more memory than is available.
    pub(crate) fn fits_in_memory(&self, copies: u64, system: &System) -> Result<()> {
        let wanted = copies * self.checkpoint.total_bytes() + SPARE_BYTES;
        match memory::available(system) {
            Some(available) if available < wanted => Err(Error::new(
                ErrorKind::OutOfMemory,
                format!(
                    "holding all tensors needs {} of memory, {} are available",
                    format_bytes(wanted),
                    format_bytes(available)
                ),
            )
            .with_hint("use --mode stream without --against, or a smaller checkpoint (--size)")),
            _ => Ok(()),
        }
    }
}

fn storage_warnings(checkpoint: &Checkpoint) -> Vec<Warning> {
    let path = checkpoint
        .shards()
        .iter()
        .find_map(|shard| shard.location().as_path());
    let Some(Ok(found)) = path.map(probe::file_system) else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    if found.in_memory {
        warnings.push(Warning::InMemory {
            file_system: found.name.clone(),
        });
    }
    if found.network {
        warnings.push(Warning::Network {
            file_system: found.name,
        });
    }
    warnings
}
