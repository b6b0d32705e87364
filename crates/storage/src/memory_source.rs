//! A source in memory, for simulated engines and header tests.

use std::sync::Arc;

use super::Source;
use crate::error::Result;
use crate::options::Location;

/// Bytes with a location.
#[derive(Clone, Debug)]
pub struct MemorySource {
    location: Location,
    bytes: Arc<[u8]>,
}

impl MemorySource {
    /// Creates a source named `name` with these bytes.
    pub fn new(name: &str, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self {
            location: Location::from_path(name),
            bytes: bytes.into(),
        }
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Source for MemorySource {
    fn location(&self) -> &Location {
        &self.location
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let start = usize::try_from(offset).map_or(self.bytes.len(), |at| at.min(self.bytes.len()));
        let end = start.saturating_add(len).min(self.bytes.len());
        Ok(self.bytes[start..end].to_vec())
    }
}
