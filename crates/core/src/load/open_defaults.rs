//! Defaults of openings, with the parts of the crate that are built on checkpoints and that an
//! opening calls.

use crate::checkpoint::OpenOptions;
use crate::format::Precedence;
use crate::options::StoreOptions;
use crate::storage::StoreClient;
#[cfg(feature = "object")]
use tload_copy::fill_all;

#[cfg_attr(
    not(feature = "object"),
    expect(clippy::derivable_impls, reason = "models of hubs are objects")
)]
impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            store: StoreOptions::default(),
            follow_symlinks: false,
            group: None,
            join_timeout: None,
            precedence: Precedence::default(),
            client: StoreClient::default(),
            #[cfg(feature = "object")]
            prefetch: Some(fill_all),
        }
    }
}
