//! The object that claims the plain names of a prefix, until they are all written: no other program
//! may write them meanwhile. It has the identifier of the write, and a copy's also its journal.

use std::sync::Arc;

use super::client::Client;
use super::leftovers;
use crate::error::{Error, ErrorKind};

/// Name of the object.
pub const CLAIM: &str = ".tload-write";

impl Client {
    /// Returns the error for a prefix whose index, claim or other object another writer has
    /// written: it names that write.
    pub fn conflict(self: &Arc<Self>, name: &str) -> Error {
        let path = self.path(name);
        let found = self.wait(|client| async move {
            Ok(client.text(&path).await?.zip(client.state(&path).await?))
        });
        let message = match found.ok().flatten() {
            Some((text, state)) => {
                let id = leftovers::named(&text);
                let by = id.map_or("another program".to_owned(), |id| format!("write {id}"));
                let minutes = (leftovers::now() - state.modified) / 60;
                format!("{by} was faster: it has written {name}, {minutes} minutes ago")
            }
            None => "another program was faster: it has written what is there now".to_owned(),
        };
        let hint = "see that no two programs write to the same place, and write again; tload rm --incomplete removes the claim of a killed writer when it is a day old, and a killed copy is resumed, or started over with force";
        Error::new(ErrorKind::Changed, message)
            .with_location(self.location())
            .with_hint(hint)
    }
}
