//! Synthetic checkpoints: tensors of a model that does not exist, filled with random numbers.
//!
//! `llama`, `moe` and `tiny` define the tensors ([`Model`], pure); `shards` distributes them over
//! files (pure); `safetensors` lays out a file (pure); `random` generates the numbers; only
//! `writer` ([`Synth`]) accesses the disk, and `store` object stores. The program that runs it
//! implements [`Host`].
//!
//! Programs depend on the crate `tload`; this crate is a part of the command.

#![forbid(unsafe_code)]

mod host;
mod llama;
mod moe;
mod random;
mod safetensors;
mod shards;
mod store;
mod tiny;
mod writer;

use serde_json::Value;
use tload::internal::format_bytes;
use tload::{Dtype, Error, ErrorKind, Result};

pub use host::{Host, Temporary, file_error};
pub use writer::{Synth, check_room, free_bytes};

/// Model to imitate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Dense model in BF16: few tensors, large ones among them.
    Llama,
    /// Mixture of experts in F8_E4M3 with scales: thousands of small tensors.
    Moe,
    /// Every dtype of whole bytes; scalars, empty and odd-sized tensors.
    Tiny,
}

impl Preset {
    /// Returns the name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Moe => "moe",
            Self::Tiny => "tiny",
        }
    }

    /// Returns the default size.
    pub fn default_bytes(self) -> u64 {
        match self {
            Self::Llama | Self::Moe => 4 << 30,
            Self::Tiny => 4 << 20,
        }
    }

    /// Returns the smallest size in which the shape of the model is recognisable.
    pub fn smallest_bytes(self) -> u64 {
        match self {
            Self::Llama => 256 << 10,
            Self::Moe | Self::Tiny => 1 << 20,
        }
    }
}

/// One tensor to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name in the header.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Dimensions; none for a scalar.
    pub shape: Vec<u64>,
}

impl Entry {
    fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u64>>) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape: shape.into(),
        }
    }

    /// Returns the length in bytes. Presets have dtypes of whole bytes only.
    pub fn byte_len(&self) -> u64 {
        self.shape.iter().product::<u64>() * (self.dtype.bits() as u64 / 8)
    }
}

/// Tensors of a synthetic checkpoint in the order of the model, and its `config.json`.
#[derive(Clone, Debug)]
pub struct Model {
    /// Tensors in the order of the model.
    pub entries: Vec<Entry>,
    /// Text of `config.json`.
    pub config: Value,
}

impl Model {
    /// Returns the model of `preset` whose tensors take `size` bytes, within 2 %.
    pub fn new(preset: Preset, size: u64) -> Result<Self> {
        if size < preset.smallest_bytes() {
            let (asked, least) = (format_bytes(size), format_bytes(preset.smallest_bytes()));
            return Err(Error::new(
                ErrorKind::InvalidRequest,
                format!(
                    "size is {asked}; the preset {} needs at least {least}",
                    preset.name()
                ),
            ));
        }
        let (entries, config) = match preset {
            Preset::Llama => llama::model(size),
            Preset::Moe => moe::model(size),
            Preset::Tiny => tiny::model(size),
        };
        Ok(Self { entries, config })
    }

    /// Returns the bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        total(&self.entries)
    }

    /// Returns the number of tensors.
    pub fn tensor_count(&self) -> u64 {
        self.entries.len() as u64
    }
}

fn total(entries: &[Entry]) -> u64 {
    entries.iter().map(Entry::byte_len).sum()
}

/// Returns the largest of `least`, `least + step`, … for which `fits` holds, or `least` if it holds
/// for none. `fits` must be monotonic.
fn largest(least: u64, step: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut fitting, mut steps) = (least, 1);
    // Doubling, then halving: a binary search without an upper bound.
    while fits(fitting + steps * step) {
        fitting += steps * step;
        steps *= 2;
    }
    while steps > 0 {
        if fits(fitting + steps * step) {
            fitting += steps * step;
        }
        steps /= 2;
    }
    fitting
}

#[cfg(test)]
mod tests;
