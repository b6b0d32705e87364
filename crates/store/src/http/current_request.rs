//! Current request of a task: where its facts are recorded, and what the HTTP clients below need to
//! know of it.
//!
//! `object_store` and `reqwest` call back without the request that they call for: for credentials,
//! for addresses, for connections, and for each page of a list. So the request is in a task-local
//! slot while a task sends it. Outside of one, nothing is recorded.

use std::cell::RefCell;
use std::time::Instant;

use super::pages::Pages;
use super::response_capture::ResponseCapture;
use super::signing::Signer;
use crate::sync::timeline::Timeline;

/// One request of a store, with all HTTP requests that it takes.
pub(crate) struct CurrentRequest {
    /// Timeline of the opening that the request is part of. Clients are shared by openings.
    pub(crate) timeline: Timeline,
    /// Signs requests whose headers of options `object_store` does not sign: all but S3's requests
    /// for an object.
    pub(crate) signer: Option<Signer>,
    /// Facts of the last HTTP request.
    pub(crate) captured: RefCell<ResponseCapture>,
    /// Pages so far, if the request is for a list.
    pub(crate) pages: RefCell<Option<Pages>>,
}

tokio::task_local! {
    static CURRENT: CurrentRequest;
}

impl CurrentRequest {
    pub(crate) fn new(timeline: Timeline, signer: Option<Signer>) -> Self {
        Self {
            timeline,
            signer,
            captured: RefCell::default(),
            pages: RefCell::default(),
        }
    }

    /// Sends the request, and returns its result with the facts of the last HTTP request.
    pub(crate) async fn send<T>(self, request: impl Future<Output = T>) -> (T, ResponseCapture) {
        let request = async {
            let result = request.await;
            (result, CURRENT.with(|current| current.captured.take()))
        };
        CURRENT.scope(self, request).await
    }
}

/// Applies `look` to the current request; `None` if there is none.
pub(crate) fn current<T>(look: impl FnOnce(&CurrentRequest) -> T) -> Option<T> {
    CURRENT.try_with(look).ok()
}

/// Records a phase of the current request.
pub(crate) fn record(phase: &'static str, started: Instant) {
    current(|it| it.timeline.record(phase, started));
}
