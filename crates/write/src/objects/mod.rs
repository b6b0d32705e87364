//! Objects of a store: shards under names of their own, and an index that is switched by one
//! conditional request.
//!
//! `client` sends requests, `upload` is one object in parts, and `leftovers` finds what no index
//! names.

pub(crate) mod client;
pub(crate) mod leftovers;
mod upload;

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error as StoreError, PutMode, PutOptions, PutPayload};
use tload_storage::object::Writable;
use tload_verify::MANIFEST_NAME;

use self::client::{Client, State};
use self::upload::Upload;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{INDEX_NAME, SUFFIX};
use crate::options::Location;
use crate::plan::Naming;
use crate::step;
use crate::target::{Output, Target};
use crate::write_id::WriteId;
use crate::write_options::WriteOptions;

/// Object that a writer of plain names puts first: no other may write the same names meanwhile.
const CLAIM: &str = ".tload-write";

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
        if location.has_extension(&SUFFIX[1..]) {
            let message = "a single object cannot be replaced all or nothing".to_owned();
            return refused(message, "name the prefix of a checkpoint");
        }
        let client = Client::open(location, &options.store)?;
        let index = client.path(INDEX_NAME);
        let (old, level) = client.wait(|client| async move {
            Ok((client.state(&index).await?, client.list().await?))
        })?;
        let names = level.objects.iter().filter_map(|it| it.location.filename());
        let mut names = names.filter(|name| !name.starts_with('.'));
        if options.plain_names
            && let Some(found) = names.clone().next()
        {
            let message = format!("plain names are for an empty prefix, and {found:?} is there");
            return refused(message, "leave plain_names out, or write to another prefix");
        }
        let is_foreign = |name: &&str| name.ends_with(SUFFIX) && WriteId::of_shard(name).is_none();
        if let Some(found) = names.clone().find(is_foreign) {
            let message =
                format!("{found:?} is there, which readers would load beside the new checkpoint");
            return refused(message, "write to another prefix, or remove it first");
        }
        if old.is_some() && !options.replace {
            let message = "there is a checkpoint".to_owned();
            return refused(
                message,
                "write to another prefix, or set the option replace",
            );
        }
        if options.manifest && names.any(|name| name == MANIFEST_NAME) {
            let message = "the manifest of a checkpoint in a store cannot be replaced: it would not be that of the index for a moment".to_owned();
            return refused(
                message,
                "remove the manifest first, or write to another prefix",
            );
        }
        let mut target = Self {
            client,
            naming: Naming {
                id: WriteId::draw(),
                only: None,
                is_plain: options.plain_names,
                indexes_one: !options.plain_names,
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
        if !self.put(CLAIM, text.as_bytes(), PutMode::Create)? {
            return Err(self.conflict());
        }
        self.written.push(self.client.path(CLAIM));
        Ok(())
    }

    /// Writes a small object on a condition. Returns `false` if another one is there.
    fn put(&self, name: &str, text: &[u8], mode: PutMode) -> Result<bool> {
        let (path, text) = (self.client.path(name), Bytes::copy_from_slice(text));
        self.client.wait(|client| async move {
            let ask = |store: Arc<dyn Writable>| {
                let (path, payload) = (path.clone(), PutPayload::from(text.clone()));
                let options = PutOptions::from(mode.clone());
                async move {
                    match store.put_opts(&path, payload, options).await {
                        Ok(_) => Ok(true),
                        Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                            Ok(false)
                        }
                        Err(error) => Err(error),
                    }
                }
            };
            let put = client.send("PUT", ask).await;
            step::reach();
            match put {
                Ok(true) => Ok(true),
                // An answer may have been lost: then what is there is this text.
                Ok(false) => Ok(client.text(&path).await?.as_ref() == Some(&text)),
                Err(error) => match client.text(&path).await {
                    Ok(found) if found.as_ref() == Some(&text) => Ok(true),
                    Ok(_) | Err(_) => Err(error),
                },
            }
        })
    }

    /// Returns the error for a prefix that another writer was faster at.
    fn conflict(&self) -> Error {
        let index = self.client.path(INDEX_NAME);
        let found = self
            .client
            .wait(|client| async move { client.text(&index).await });
        let text = found.ok().flatten().unwrap_or_default();
        let by = match leftovers::named(&text) {
            Some(id) => format!("write {id}"),
            None => "another program".to_owned(),
        };
        let message = format!("{by} was faster: it has written the index that is there now");
        Error::new(ErrorKind::Changed, message)
            .with_location(self.client.location())
            .with_hint("see that no two programs write to the same place, and write again")
    }
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
        self.written.push(self.client.path(name));
        self.put(name, text, PutMode::Overwrite).map(drop)
    }

    fn commit(&mut self, index: Option<&[u8]>) -> Result<Option<String>> {
        step::reach();
        let claim = self.client.path(CLAIM);
        if let Some(text) = index {
            let mode = match &self.old {
                Some(old) => PutMode::Update(old.version.clone()),
                None => PutMode::Create,
            };
            // If the request fails in a way that leaves open whether it has arrived, no shards are
            // removed: the index may name them.
            let written = std::mem::take(&mut self.written);
            let is_there = self.put(INDEX_NAME, text, mode)?;
            step::reach();
            self.written = written;
            if !is_there {
                return Err(self.conflict());
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
