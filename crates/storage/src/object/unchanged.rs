//! Checks that an object is still in the state in which it was opened; its checksums in that state.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use object_store::GetOptions;

use super::asking::{GONE, changed_error, judge};
use super::opening::{allows_unversioned, look, unversioned};
use super::store::Fault;
use super::{ObjectSource, Source, with_retries};
use crate::error::{ErrorKind, Result};

impl ObjectSource {
    /// Requires that the object may be read with more than one response: it has a validator, or the
    /// options allow it to lack one. An object that came whole with one response needs none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] otherwise.
    pub(super) fn require_validator(&self) -> Result<()> {
        if self.0.seen.sample.is_none() || allows_unversioned(self.0.remote.options()) {
            return Ok(());
        }
        Err(unversioned().with_location(self.location()))
    }

    /// Requires that all bytes read are of one state of the object, where the responses do not
    /// tell. For an object without a validator, its length, beginning and end are compared once
    /// more. Sends no request for other objects.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`], and any other error of the store, translated.
    pub(super) fn verify_sample(&self) -> Result<()> {
        let Some(sample) = self.0.seen.sample else {
            return Ok(());
        };
        let (source, remote) = (self.clone(), Arc::clone(&self.0.remote));
        let looked = self
            .0
            .remote
            .run(async move { look(&remote, &source.place(), sample.first).await });
        let what = match looked {
            Ok((meta, ..)) if meta.size != self.len() => {
                let (seen, found) = (self.len(), meta.size);
                format!("its length changed from {seen} to {found} bytes")
            }
            // The server's text is not repeated, because it may hold anything.
            Ok((_, _, found)) if found.sample != Some(sample) => {
                "its first or last bytes differ".to_owned()
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => GONE.to_owned(),
            // A small object is opened with one response. If the store refuses that now, the object
            // has grown.
            Err(error) if error.kind() == ErrorKind::Unsupported => "it is longer now".to_owned(),
            Err(error) => return Err(error.or_location(self.location())),
        };
        Err(changed_error(&what).with_location(self.location()))
    }

    /// Requires that the object at this path is still the one that was opened, with one small
    /// request; with none if `cache_check` says so. A commit of a hub
    /// and a manifest of a registry do not change, so these are not asked.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`], and any other error of the store, translated.
    pub(super) fn verify_path(&self) -> Result<()> {
        let cache = self.0.remote.cache().zip(self.0.location.remote());
        let is_trusted = cache.is_some_and(|(cache, url)| cache.is_trusted(url));
        let is_fixed = is_trusted || self.is_empty() || self.commit_name().is_some();
        if self.0.seen.sample.is_some() || is_fixed {
            return self.verify_sample();
        }
        let source = self.clone();
        let (retries, retry_counter) = (self.retries(), self.0.remote.retry_counter().clone());
        let asked = self.0.remote.run(async move {
            with_retries(retries, &retry_counter, || source.ask_in_place()).await
        });
        asked.map_err(|error| error.or_location(self.location()))
    }

    /// Requests the object regardless of its version.
    async fn ask_in_place(&self) -> Result<(), Fault> {
        let options = self.conditions(false, 0..1);
        let asked = self.0.store.get(&self.0.path, options).await;
        let (result, captured) = asked.map_err(judge)?;
        self.require_same(&result.meta, &captured)
    }

    /// Returns the object's own checksums as the store states them: header names in lower case, and
    /// their values. Sends one small request under the object's identity; none where stores state
    /// no checksums.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] for an object that was replaced, and any other error of the store,
    /// translated.
    pub fn checksums(&self) -> Result<Vec<(&'static str, String)>> {
        if !self.0.store.states_checksums() {
            return Ok(Vec::new());
        }
        let source = self.clone();
        let (retries, retry_counter) = (self.retries(), self.0.remote.retry_counter().clone());
        let asked = self.0.remote.run(async move {
            with_retries(retries, &retry_counter, || source.ask_checksums()).await
        });
        asked.map_err(|error| error.or_location(self.location()))
    }

    async fn ask_checksums(&self) -> Result<Vec<(&'static str, String)>, Fault> {
        let ask = |by_version| {
            let options = GetOptions {
                range: None,
                ..self.conditions(by_version, 0..1)
            };
            self.0.store.checksums(&self.0.path, options)
        };
        let by_version = self.0.by_version.load(Ordering::Relaxed);
        let (meta, captured) = match ask(by_version).await {
            // Naming a version takes a separate permission, here as for reads.
            Err(fault) if by_version && fault.error.status() == Some(403) => {
                ask(false).await.map_err(judge)?
            }
            answer => answer.map_err(judge)?,
        };
        self.require_same(&meta, &captured)?;
        Ok(captured.stated)
    }
}
