//! Client of a build without object stores.

/// Threads, connections and credentials that openings in object stores share. A build without
/// object stores has none.
#[derive(Clone, Debug, Default)]
pub struct StoreClient;

impl StoreClient {
    /// Creates a client that shares nothing with others.
    #[must_use]
    pub fn new() -> Self {
        Self
    }

    /// Ends threads and closes connections that no checkpoint uses.
    pub fn close_idle(&self) {}
}
