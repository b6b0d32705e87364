//! The user's configuration file, as this command reads it.

use std::sync::Arc;

use tload::Result;
use tload_config::Config;

/// Returns what the file says; nothing in unit tests, which do not depend on who runs them.
pub(crate) fn current() -> Result<Arc<Config>> {
    if cfg!(test) {
        return Ok(Arc::default());
    }
    Config::current()
}
