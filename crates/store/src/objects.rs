//! Stores that `object_store` knows, with a list that tload parses: S3, Google and Azure. Web
//! servers and stores that the caller opened have a list of `object_store`, if any.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectStore};

use crate::answers::Answers;
use crate::backend::{StoreBackend, Writable};
use crate::explain::failure::Fault;
use crate::http::pages::{self, Format, Gathered};
use crate::http::response_capture::ResponseCapture;
use crate::lists::tree::{Level, Listed};
use crate::requests::Requests;

/// Objects that are requested by their paths.
pub(crate) struct Objects {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The store again, if objects can be written to it.
    pub(crate) writable: Option<Arc<dyn Writable>>,
    /// Form of the pages of its lists; `None` if `object_store` parses them.
    pub(crate) lists: Option<Format>,
}

impl Objects {
    /// Creates a store that nothing is written to, with a list of `object_store`.
    pub(crate) fn read_only(store: Arc<dyn ObjectStore>) -> Self {
        let (writable, lists) = (None, None);
        Self {
            store,
            writable,
            lists,
        }
    }

    /// Lists by `object_store`: a store that the caller opened, or a web server, which refuses it.
    async fn parsed_list(
        &self,
        requests: &Requests,
        prefix: Option<&Path>,
    ) -> Result<Level, Fault> {
        let listing = || self.store.list_with_delimiter(prefix);
        let (listing, _) = requests.send("LIST", listing).await?;
        // Consoles mark a directory by an empty object of the same name.
        let objects = listing
            .objects
            .into_iter()
            .filter(|object| Some(&object.location) != prefix);
        let objects = objects.map(|object| Listed {
            location: object.location,
            len: Some(object.size),
            modified: object.last_modified.timestamp(),
            e_tag: object.e_tag,
            version: object.version,
        });
        Ok(Level {
            objects: objects.collect(),
            prefixes: listing.common_prefixes,
            unusable: Vec::new(),
        }
        .without_folder_markers())
    }
}

#[async_trait]
impl StoreBackend for Objects {
    fn for_opening(self: Arc<Self>, _: &Answers) -> Arc<dyn StoreBackend> {
        self
    }

    async fn get(
        &self,
        requests: &Requests,
        path: &Path,
        options: GetOptions,
    ) -> Result<(GetResult, ResponseCapture), Fault> {
        requests.get(&*self.store, path, options).await
    }

    async fn list(&self, requests: &Requests, prefix: Option<&Path>) -> Result<Level, Fault> {
        let Some(format) = self.lists else {
            return self.parsed_list(requests, prefix).await;
        };
        let listing = || {
            let gathered = Gathered::new(format, prefix);
            pages::gathered(gathered, self.store.list_with_delimiter(prefix))
        };
        let (gathered, _) = requests.send("LIST", listing).await?;
        Ok(gathered.into_level())
    }

    fn writable(&self) -> Option<&Arc<dyn Writable>> {
        self.writable.as_ref()
    }

    /// S3 and Google do, whose lists have the same form.
    fn states_checksums(&self) -> bool {
        self.lists == Some(Format::Objects)
    }
}
