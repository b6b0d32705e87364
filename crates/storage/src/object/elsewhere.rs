//! State of an opened object, for another process that opens the object without a request.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::cache::State;
use super::opening::Seen;
use super::remote::Remote;
use super::{ObjectPath, ObjectSource, Source, with_retries};
use crate::error::Result;
use crate::options::Location;

/// State in which an object was opened, and its place in the store.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpenedState {
    /// Key or path.
    path: String,
    state: State,
    is_settled: bool,
    /// Commit of a hub, or digest of a registry's manifest.
    commit: Option<String>,
}

impl ObjectSource {
    /// Returns the state for another process; `None` for an object without a validator, of which
    /// other bytes are compared.
    pub fn opened_state(&self) -> Option<OpenedState> {
        if self.0.seen.sample.is_some() {
            return None;
        }
        Some(OpenedState {
            path: self.0.location.remote()?.path.clone(),
            state: State::of(self.identity(), self.0.seen.sha256),
            is_settled: self.0.seen.is_settled,
            commit: self.commit_name().map(str::to_owned),
        })
    }

    /// Opens an object of the store of `base` in the state that another process has found. Sends no
    /// request; to hubs and registries, that for the list of their files. Returns `None` if they
    /// have another list now.
    ///
    /// # Errors
    ///
    /// Errors in the options of the store; for hubs and registries the translated error of the
    /// store.
    pub fn in_state(
        remote: &Arc<Remote>,
        base: &Location,
        opened: OpenedState,
        deadline: Option<Instant>,
    ) -> Result<Option<Self>> {
        let location = base.at_path(&opened.path);
        let located = |error: crate::error::Error| error.or_location(&location);
        let sha256 = opened.state.sha256();
        let (Some(url), Some(identity)) = (location.remote(), opened.state.identity()) else {
            return Ok(None);
        };
        let (store, path) = remote.store(url).map_err(located)?;
        if let Some(commit) = &opened.commit {
            let (listing, file) = (Arc::clone(&store), path.clone());
            let retries = remote.options().retries();
            let retry_counter = remote.retry_counter().clone();
            let listed = remote.run_until(deadline, "listing its repository", async move {
                with_retries(retries, &retry_counter, || listing.find_list(&file)).await
            });
            listed.map_err(located)?;
            if store.commit_name() != Some(commit) {
                return Ok(None);
            }
        }
        let seen = Seen {
            is_settled: opened.is_settled,
            ..Seen::known(sha256)
        };
        let object = ObjectPath { store, path };
        let opened = Self::with_identity(remote, object, location.clone(), identity, seen);
        Ok(Some(opened))
    }
}
