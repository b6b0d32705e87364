//! Keys of sealed checkpoints, as `python/tload/_sources/keys.py` reads them.

use std::sync::Arc;

use pyo3::prelude::*;
use tload::Key;
use tload::sealed::{Recipients, Sealing};

/// Kind of a key, and its value.
#[derive(FromPyObject)]
pub(crate) struct KeyArgument(String, String);

impl KeyArgument {
    pub(crate) fn read(self) -> tload::Result<Key> {
        Key::of_kind(&self.0, self.1)
    }
}

/// Recipients and key of a checkpoint to seal.
#[derive(FromPyObject)]
pub(crate) struct SealingArgument(Vec<String>, Option<KeyArgument>);

impl SealingArgument {
    pub(crate) fn read(self) -> tload::Result<Arc<Sealing>> {
        let key = self.1.map(KeyArgument::read).transpose()?;
        let sealing = Sealing::new(&Recipients::parse(&self.0)?, key.as_ref())?;
        Ok(Arc::new(sealing))
    }
}
