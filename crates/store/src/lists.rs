//! Lists of a store: one level below a prefix, or all files of a repository, and the commit that
//! they are of.

use object_store::path::Path;

use super::failure::Fault;
use super::hub::bucket::level;
use super::hub::{Commit, commit_of_many, with_tree};
use super::pages::{self, Gathered};
use super::response_capture::ResponseCapture;
use super::{Level, Listed, Store};

impl Store {
    /// Lists the direct children of a prefix, with one request for each page.
    pub async fn list(&self, prefix: Option<&Path>) -> Result<Level, Fault> {
        let mut level = self.list_as_stated(prefix).await?;
        // Keys are shown, and a server may echo secrets of requests in them.
        let nothing = ResponseCapture::default();
        for name in &mut level.unusable {
            *name = self.redacted(name, &nothing);
        }
        Ok(level)
    }

    async fn list_as_stated(&self, prefix: Option<&Path>) -> Result<Level, Fault> {
        if let Some(commit) = self.commit().await? {
            return Ok(commit.level(prefix));
        }
        if let Some(bucket) = &self.bucket {
            let pages = || Box::pin(pages::bounded(bucket.pages(prefix)));
            let (pages, captured) = self.request("LIST", pages).await?;
            return level(&pages, prefix).map_err(|what| self.malformed(&what, &captured));
        }
        if let Some(registry) = &self.registry {
            let (level, _) = self.request("LIST", || registry.level(prefix)).await?;
            return Ok(level);
        }
        let Some(format) = self.protocol.and_then(|protocol| protocol.lists) else {
            return self.list_of_caller(prefix).await;
        };
        let listing = || {
            let gathered = Gathered::new(format, prefix);
            let pages = pages::gathered(gathered, self.inner.list_with_delimiter(prefix));
            Box::pin(pages)
        };
        let (gathered, _) = self.request("LIST", listing).await?;
        Ok(gathered.into_level())
    }

    /// Lists the direct children of a prefix of a store that the caller opened, or of a web server,
    /// which refuses that.
    async fn list_of_caller(&self, prefix: Option<&Path>) -> Result<Level, Fault> {
        let listing = || Box::pin(self.inner.list_with_delimiter(prefix));
        let (listing, _) = self.request("LIST", listing).await?;
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

    /// Lists all files of a hub's repository, which are known with its commit. Names that are no
    /// paths are left out.
    pub async fn files_of_commit(&self) -> Result<Vec<Listed>, Fault> {
        let commit = self.commit().await?;
        Ok(commit.map_or_else(Vec::new, Commit::all))
    }

    /// Returns the commit that is read, if the store is a hub. It is requested once, so that
    /// everything read through this store is of one commit.
    pub(super) async fn commit(&self) -> Result<Option<&Commit>, Fault> {
        let Some(repository) = &self.repository else {
            return Ok(None);
        };
        let known = || self.description.as_ref()?.known();
        let ask = || async {
            if let Some(Ok(commit)) = known().map(|answer| Commit::parse(answer.as_bytes())) {
                return Ok(commit);
            }
            let (mut answer, captured) = self.request("GET", || repository.ask()).await?;
            if let Some(commit) = commit_of_many(&answer) {
                let tree = || Box::pin(pages::bounded(repository.tree(&commit)));
                let (pages, captured) = self.request("LIST", tree).await?;
                let whole = with_tree(&answer, &pages);
                answer = whole.map_err(|what| self.malformed(&what, &captured))?;
            }
            let commit = Commit::parse(&answer).map_err(|what| self.malformed(&what, &captured))?;
            if let Some(place) = &self.description {
                place.keep(&String::from_utf8_lossy(&answer));
            }
            Ok(commit)
        };
        repository.commit.get_or_try_init(ask).await.map(Some)
    }
}
