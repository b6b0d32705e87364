//! Differences between protocols once a store is open: how objects and lists are requested, and
//! what the server says about them.
//!
//! Each protocol implements [`StoreBackend`] beside its code: `objects.rs` for the stores that
//! `object_store` knows, `hub/` and `oci/`. [`Store`](crate::Store) calls it, and all of its
//! requests go through [`Requests`]. What differs in errors is in
//! [`Hints`](crate::explain::context::Hints).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore};

use crate::answers::Answers;
use crate::explain::failure::Fault;
use crate::http::response_capture::ResponseCapture;
use crate::lists::tree::{Level, Listed};
use crate::requests::Requests;

/// Protocol of one opened store. Every request is one attempt.
#[async_trait]
pub(crate) trait StoreBackend: Send + Sync {
    /// Returns the backend as another opening has it: with the same clients, and with nothing that
    /// the server has said.
    fn for_opening(self: Arc<Self>, answers: &Answers) -> Arc<dyn StoreBackend>;

    /// Requests an object or a range of it.
    async fn get(
        &self,
        requests: &Requests,
        path: &Path,
        options: GetOptions,
    ) -> Result<(GetResult, ResponseCapture), Fault>;

    /// Lists the direct children of a prefix.
    async fn list(&self, requests: &Requests, prefix: Option<&Path>) -> Result<Level, Fault>;

    /// Requests a range of an object from where the server keeps contents apart; `None` if it is to
    /// be requested by [`Self::get`].
    async fn by_content_store<'a>(
        &'a self,
        _requests: &'a Requests,
        _path: &Path,
        _range: Range<u64>,
        _attempt: Attempt,
    ) -> Result<Option<(ObjectMeta, Pieces<'a>)>, Fault> {
        Ok(None)
    }

    /// Requests the list of all files that the server fixes for an opening, if it has one and it is
    /// not known yet. `file` is one of them.
    async fn find_list(&self, _requests: &Requests, _file: &Path) -> Result<(), Fault> {
        Ok(())
    }

    /// Returns all files of the list that the server fixes for an opening.
    async fn all_files(&self, _requests: &Requests) -> Result<Vec<Listed>, Fault> {
        Ok(Vec::new())
    }

    /// Returns the metadata of an object as the list states it; `None` if that contradicts it.
    fn described(&self, _path: &Path, meta: ObjectMeta) -> Option<ObjectMeta> {
        Some(meta)
    }

    /// Returns the list's name for the contents of a file.
    fn contents_name(&self, _file: &Path) -> Option<&str> {
        None
    }

    /// Returns the name of the version that the opening is fixed to, if it is known.
    fn commit_name(&self) -> Option<&str> {
        None
    }

    /// Returns the store that objects are written to, if there is one.
    fn writable(&self) -> Option<&Arc<dyn Writable>> {
        None
    }

    /// Returns whether the server states checksums of objects.
    fn states_checksums(&self) -> bool {
        false
    }
}

/// Store of `object_store` that takes objects, also in several parts.
pub trait Writable: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Writable for T {}

/// Limits of one attempt to read a range.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Time in which the range's first bytes must arrive.
    pub patience: Duration,
    /// True if no other attempt follows.
    pub is_last: bool,
}

/// Part of a response.
#[derive(Debug)]
pub enum Arrived {
    /// The next bytes of the range.
    Bytes(Bytes),
    /// As many bytes as count as progress, from which no byte of the range can be made yet.
    Unusable,
}

/// Range of a file as it arrives: all of its bytes or a failure, and never one more.
pub(crate) type Pieces<'a> = BoxStream<'a, Result<Arrived, Fault>>;
