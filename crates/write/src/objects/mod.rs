//! Objects of a store: shards under names of their own, and an index that is switched by one
//! conditional request.
//!
//! `client` sends requests, `requests` are those that write one object, `upload` is one object in
//! parts, `claim` keeps others off plain names, and `leftovers` finds what no index names.

mod claim;
mod client;
pub(crate) mod leftovers;
mod requests;
mod upload;

use std::sync::Arc;

use bytes::Bytes;
use object_store::PutMode;
use object_store::path::Path;
use tload_storage::object::Level;
use tload_verify::MANIFEST_NAME;

pub use self::claim::CLAIM;
pub use self::client::{Client, State};
pub use self::leftovers::{FRAGMENTS_NAME, shards};
pub use self::requests::piece_bytes;
use self::upload::Upload;
use crate::error::{Error, Result};
use crate::format::{INDEX_NAME, SUFFIX};
use crate::options::Location;
use crate::plan::Naming;
use crate::step;
use crate::target::{Output, Target};
use crate::write_id::WriteId;
use crate::write_options::WriteOptions;

/// Prefix that is being written.
pub(crate) struct ObjectTarget {
    client: Arc<Client>,
    naming: Naming,
    /// Index that is replaced.
    old: Option<State>,
    /// Objects that are removed if the write fails.
    written: Vec<Path>,
}

impl ObjectTarget {
    /// Looks at what is below the prefix.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a checkpoint that must not be replaced.
    pub(crate) fn open(location: &Location, options: &WriteOptions) -> Result<Self> {
        let refused = |message: String, hint: &str| {
            let error = Error::invalid_request(message).with_location(location);
            Err(error.with_hint(hint))
        };
        let is_object = location.has_extension(&SUFFIX[1..]);
        if is_object && options.is_fragment {
            return Ok(Self {
                client: Client::open(&location.parent(), &options.store)?,
                naming: Naming {
                    id: WriteId::draw(),
                    only: Some(location.file_name().to_owned()),
                    is_plain: true,
                    indexes_one: false,
                },
                old: None,
                written: Vec::new(),
            });
        }
        if is_object {
            let message = "a single object cannot be replaced all or nothing".to_owned();
            return refused(message, "name the prefix of a checkpoint");
        }
        let client = Client::open(location, &options.store)?;
        let index = client.path(INDEX_NAME);
        let (old, level) = client.wait(|client| async move {
            Ok((client.state(&index).await?, client.list().await?))
        })?;
        if options.plain_names
            && let Some(found) = plain(&level).next()
        {
            let message = format!("plain names are for an empty prefix, and {found:?} is there");
            let hint = "write to another prefix: only sealed checkpoints and plain_names need an empty one";
            return refused(message, hint);
        }
        if let Some(found) = foreign(&level) {
            if found == CLAIM {
                return Err(client.conflict(CLAIM));
            }
            let message =
                format!("{found:?} is there, which readers would load beside the new checkpoint");
            return refused(message, "write to another prefix, or remove it first");
        }
        if old.is_some() && !options.replace {
            let hint = "write to another prefix, or set the option replace";
            return refused("there is a checkpoint".to_owned(), hint);
        }
        let has_manifest = plain(&level).any(|name| name == MANIFEST_NAME);
        if has_manifest || options.manifest && old.is_some() {
            let message = "index and manifest in a store cannot be replaced together: one would not be that of the other for a moment".to_owned();
            return refused(
                message,
                "write to another prefix; or without a manifest, once none is there",
            );
        }
        let mut target = Self {
            client,
            naming: Naming {
                id: WriteId::draw(),
                only: None,
                is_plain: options.plain_names,
                indexes_one: !options.plain_names || options.sealing.is_some(),
            },
            old,
            written: Vec::new(),
        };
        if options.plain_names {
            target.claim()?;
        }
        Ok(target)
    }

    /// Claims the plain names, until the write ends.
    fn claim(&mut self) -> Result<()> {
        let text = self.naming.id.to_string();
        let path = self.client.path(CLAIM);
        if !self.put(CLAIM, text.as_bytes(), PutMode::Create)? {
            return Err(self.client.conflict(CLAIM));
        }
        self.written.push(path);
        // Another writer may have had the claim since the prefix was found empty.
        match plain(&self.list()?).next() {
            Some(_) => Err(self.client.conflict(INDEX_NAME)),
            None => Ok(()),
        }
    }

    fn list(&self) -> Result<Level> {
        let list = |client: Arc<Client>| async move { client.list().await };
        self.client.wait(list)
    }

    /// Writes a small object on a condition. Returns `false` if another one is there.
    fn put(&self, name: &str, text: &[u8], mode: PutMode) -> Result<bool> {
        let (path, text) = (self.client.path(name), Bytes::copy_from_slice(text));
        let put = |client: Arc<Client>| async move { client.put(&path, &text, mode).await };
        Ok(self.client.wait(put)?.is_some())
    }
}

/// Returns the names below a prefix that are not hidden.
fn plain(level: &Level) -> impl Iterator<Item = &str> {
    let names = level.objects.iter().filter_map(|it| it.location.filename());
    names.filter(|name| !name.starts_with('.'))
}

/// Returns the name of a claim, or of weights that no write with an identifier has written.
fn foreign(level: &Level) -> Option<&str> {
    let is_foreign = |name: &&str| name.ends_with(SUFFIX) && WriteId::of_shard(name).is_none();
    let mut names = level.objects.iter().filter_map(|it| it.location.filename());
    let claim = names.find(|name| *name == CLAIM);
    claim.or_else(|| plain(level).find(is_foreign))
}

impl Target for ObjectTarget {
    fn naming(&self) -> &Naming {
        &self.naming
    }

    fn create(&mut self, name: &str, len: Option<u64>) -> Result<Box<dyn Output>> {
        let path = self.client.path(name);
        let upload = Upload::begin(&self.client, path.clone(), len)?;
        self.written.push(path);
        Ok(Box::new(upload))
    }

    fn rename(&mut self, name: String, _: String) -> Result<String> {
        Ok(name)
    }

    fn write_small(&mut self, name: &str, text: &[u8]) -> Result<()> {
        if !self.put(name, text, PutMode::Create)? {
            return Err(self.client.conflict(INDEX_NAME));
        }
        self.written.push(self.client.path(name));
        Ok(())
    }

    fn commit(&mut self, index: Option<&[u8]>) -> Result<Option<String>> {
        step::reach();
        let claim = self.client.path(CLAIM);
        if let Some(text) = index {
            // A writer of plain names lists after its claim, and finds these shards.
            if !self.naming.is_plain && foreign(&self.list()?).is_some() {
                return Err(self.client.conflict(CLAIM));
            }
            let mode = match &self.old {
                Some(old) => PutMode::Update(old.version.clone()),
                None => PutMode::Create,
            };
            // Unless the index has become another one, no shards are removed: a request that has
            // failed may still arrive.
            let written = std::mem::take(&mut self.written);
            let is_there = self.put(INDEX_NAME, text, mode)?;
            step::reach();
            self.written = written;
            if !is_there {
                return Err(self.client.conflict(INDEX_NAME));
            }
        }
        // All but the claim stays.
        self.written.retain(|path| *path == claim);
        let old = self.old.as_ref();
        Ok(old.map(|_| self.client.location().to_string()))
    }

    fn is_direct(&self) -> bool {
        false
    }
}

impl Drop for ObjectTarget {
    fn drop(&mut self) {
        let written = std::mem::take(&mut self.written);
        if let Err(error) = self.client.delete(written) {
            tracing::warn!(%error, "cannot remove objects of an unfinished checkpoint");
        }
    }
}
