//! Variants of loads to GPUs that are being measured, and their text, `TLOAD_TRY`. Temporary: a
//! variant becomes a default or goes once a GPU has decided.

use std::str::FromStr;

use super::parse_bytes;
use crate::error::{Error, ErrorKind, Result};

/// Name of the environment variable, which the command and the Python package read.
pub const VARIABLE: &str = "TLOAD_TRY";

/// Variants to use in a load. `None` and `false` stand for the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a variant that is tried by itself"
)]
pub struct Trial {
    /// Size of the regions of GPU memory that tensors share, bytes.
    pub regions: Option<u64>,
    /// Alignment of tensors in them, bytes; a power of two.
    pub align: Option<u64>,
    /// Part of a read that one thread copies, bytes.
    pub chunk: Option<u64>,
    /// Length of a staging slot, bytes.
    pub slot: Option<u64>,
    /// Most bytes of all staging slots.
    pub ring: Option<u64>,
    /// Copies of a slot are one call of the driver.
    pub batch: bool,
    /// Context, staging and first allocation begin before the headers are read.
    pub early: bool,
    /// Threads that copy yield to lanes.
    pub nice: bool,
    /// Ranks register the leader's memory with the driver.
    pub register: bool,
    /// Lanes, staging and copiers keep to the NUMA node of their GPU.
    pub numa: bool,
    /// Loads to devices that share the host's memory keep out of the page cache, stage little, and
    /// copy nothing where the device can read what was read.
    pub unified: bool,
}

impl FromStr for Trial {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut trial = Self::default();
        for part in text.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name, Some(parse_bytes(value)?)),
                None => (part, None),
            };
            let bytes = match name {
                "regions" => Some(&mut trial.regions),
                "align" => Some(&mut trial.align),
                "chunk" => Some(&mut trial.chunk),
                "slot" => Some(&mut trial.slot),
                "ring" => Some(&mut trial.ring),
                _ => None,
            };
            let flag = match name {
                "batch" => Some(&mut trial.batch),
                "early" => Some(&mut trial.early),
                "nice" => Some(&mut trial.nice),
                "register" => Some(&mut trial.register),
                "numa" => Some(&mut trial.numa),
                "unified" => Some(&mut trial.unified),
                _ => None,
            };
            match (bytes, flag, value) {
                (Some(bytes), _, Some(value)) if value > 0 => *bytes = Some(value),
                (_, Some(flag), None) => *flag = true,
                _ => return Err(invalid(part)),
            }
        }
        if trial.align.is_some_and(|align| !align.is_power_of_two()) {
            return Err(invalid("align"));
        }
        Ok(trial)
    }
}

fn invalid(part: &str) -> Error {
    Error::new(
        ErrorKind::InvalidRequest,
        format!("environment variable {VARIABLE} has an invalid part {part:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_sizes_and_flags() {
        let trial: Trial = "regions=64MiB, align=16,batch,,early"
            .parse()
            .expect("valid");
        let expected = Trial {
            regions: Some(64 << 20),
            align: Some(16),
            batch: true,
            early: true,
            ..Trial::default()
        };
        assert_eq!(trial, expected);
        assert_eq!("".parse::<Trial>().expect("empty"), Trial::default());
        for text in ["regions", "regions=0", "batch=1", "align=48", "streams=2"] {
            let error = text.parse::<Trial>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{text}");
        }
    }
}
