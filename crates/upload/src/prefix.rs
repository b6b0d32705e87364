//! The target: what is there, who has claimed it, and objects that are taken back.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{PutMode, UpdateVersion};
use tload_copy::{Ongoing, unless_stopped};
use tload_format::{INDEX_NAME, SUFFIX};
use tload_write::objects::{CLAIM, Client};

use crate::error::{Error, ErrorKind, Result};
use crate::ledger::{Copied, Ledger, Record, Stored};
use crate::options::{Location, StoreOptions};

/// Name of the record of a complete copy.
const RECORD: &str = ".tload-copied";

/// Prefix of a store.
#[derive(Debug)]
pub(crate) struct Prefix {
    pub(crate) client: Arc<Client>,
    ongoing: Arc<Ongoing>,
}

/// State of the prefix before the copy.
#[derive(Debug)]
pub(crate) enum State {
    /// Nothing is there.
    Empty,
    /// A copy has begun, and its claim is in this state.
    Begun(Box<Ledger>, UpdateVersion, BTreeMap<String, Stored>),
    /// A copy is complete.
    Complete(Record, BTreeMap<String, Stored>),
}

impl Prefix {
    pub(crate) fn open(
        target: &Location,
        store: &StoreOptions,
        ongoing: &Arc<Ongoing>,
    ) -> Result<Self> {
        if target.has_extension(&SUFFIX[1..]) {
            let message = "is the name of an object; checkpoints are copied below a prefix";
            return Err(Error::invalid_request(message)
                .with_location(target)
                .with_hint("name the prefix; files keep their names below it"));
        }
        Ok(Self {
            client: Client::open(target, store)?,
            ongoing: Arc::clone(ongoing),
        })
    }

    /// Waits for an answer, unless the copy is cancelled first.
    pub(crate) fn ask<T: Send + 'static, F>(
        &self,
        ask: impl FnOnce(Arc<Client>) -> F + Send + 'static,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let ongoing = Arc::clone(&self.ongoing);
        let asked = |client| async move { unless_stopped(&ongoing, ask(client)).await };
        self.client.wait(asked)
    }

    /// Like [`Self::ask`], for a request about one file.
    pub(crate) fn ask_about<T: Send + 'static, F>(
        &self,
        name: &str,
        ask: impl FnOnce(Arc<Client>) -> F + Send + 'static,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let location = self.client.location().join(name);
        self.ask(|client| async move {
            let asked = ask(client).await;
            asked.map_err(|error| error.or_location(location))
        })
    }

    /// Looks at what is there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for anything that no copy has left, and
    /// [`ErrorKind::Changed`] for a claim of another program.
    pub(crate) fn look(&self, source: &str, force: bool) -> Result<State> {
        let (claim, record) = (self.client.path(CLAIM), self.client.path(RECORD));
        let (claim, record) = self.ask(|client| async move {
            let before = client.state(&claim).await?;
            let text = client.text(&claim).await?;
            Ok((before.zip(text), client.text(&record).await?))
        })?;
        if let Some((state, text)) = claim {
            let Some(ledger) = Ledger::parse(&text) else {
                return Err(self.client.conflict(CLAIM));
            };
            if ledger.is_of(source) {
                return Ok(State::Begun(Box::new(ledger), state.version, self.list()?));
            }
            if !force {
                let message = format!("copy {} of other files has begun here", ledger.write);
                return Err(Error::new(ErrorKind::Changed, message)
                    .with_location(self.client.location())
                    .with_hint("let it end, or pass ‹force› to discard it"));
            }
            self.take_back(&ledger)?;
        } else if let Some(record) = record.and_then(|text| Record::parse(&text)) {
            return Ok(State::Complete(record, self.list()?));
        }
        match self.first_name()? {
            None => Ok(State::Empty),
            Some(name) => Err(self.taken(&format!("{name:?} is there"))),
        }
    }

    /// Returns a name below the prefix that is not hidden.
    fn first_name(&self) -> Result<Option<String>> {
        let level = self.ask(|client| async move { client.list().await })?;
        let names = level.objects.iter().filter_map(|it| it.location.filename());
        let folders = level.prefixes.iter().filter_map(|it| it.filename());
        let mut names = names.chain(folders).filter(|name| !name.starts_with('.'));
        Ok(names.next().map(str::to_owned))
    }

    /// Returns the error for a prefix that is not empty.
    pub(crate) fn taken(&self, why: &str) -> Error {
        Error::invalid_request(format!("files are copied to an empty prefix, and {why}"))
            .with_location(self.client.location())
            .with_hint("copy to another prefix, or remove what is there first")
    }

    /// Returns the error for a prefix that another program was faster at: it names it.
    pub(crate) fn conflict(&self, name: &str) -> Error {
        let path = self.client.path(RECORD);
        let found = self
            .client
            .wait(|client| async move { client.text(&path).await });
        let record = found.ok().flatten().and_then(|text| Record::parse(&text));
        let Some(record) = record else {
            return self.client.conflict(name);
        };
        let message = format!("copy {} was faster: it is complete", record.write);
        Error::new(ErrorKind::Changed, message).with_location(self.client.location())
    }

    /// Returns all objects below the prefix, by name.
    pub(crate) fn list(&self) -> Result<BTreeMap<String, Stored>> {
        let root = self.client.prefix.clone();
        let (mut found, mut folders) = (BTreeMap::new(), vec![root.clone()]);
        while let Some(folder) = folders.pop() {
            let asked = folder.clone();
            let level = self.ask(|client| async move { client.level(&asked).await })?;
            let is_below =
                |path: &Path| path.prefix_match(&folder).is_some_and(|it| it.count() == 1);
            folders.extend(level.prefixes.into_iter().filter(|it| is_below(it)));
            for object in level.objects {
                let Some(len) = object.len else { continue };
                let key = object.location.as_ref();
                let below = key.strip_prefix(root.as_ref()).unwrap_or(key);
                let name = below.trim_start_matches('/').to_owned();
                let stored = Stored {
                    len,
                    e_tag: object.e_tag,
                    version: object.version,
                    modified: object.modified,
                };
                found.insert(name, stored);
            }
        }
        Ok(found)
    }

    /// Removes what a copy with this journal has written, and the journal; if the checkpoint is
    /// complete, only the journal.
    fn take_back(&self, ledger: &Ledger) -> Result<()> {
        let found = self.list()?;
        if !ledger.is_complete(&found) {
            for (name, begun) in &ledger.files {
                self.discard(name, begun.upload.as_deref(), found.contains_key(name))?;
            }
        }
        self.client.delete(vec![self.client.path(CLAIM)])
    }

    /// Writes a journal where none is, or the one in this state. The answer is its new state.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] if another program was faster.
    pub(crate) fn claim(
        &self,
        ledger: &Ledger,
        before: Option<UpdateVersion>,
    ) -> Result<UpdateVersion> {
        let is_first = before.is_none();
        let mode = before.map_or(PutMode::Create, PutMode::Update);
        let (path, text) = (self.client.path(CLAIM), Bytes::from(ledger.text()));
        // Not cancelled: the next copy goes on from here.
        let put = |client: Arc<Client>| async move { client.put(&path, &text, mode).await };
        let claimed = self.client.wait(put)?;
        let version = claimed.ok_or_else(|| self.conflict(CLAIM))?;
        // Another writer may have had the claim since the prefix was found empty.
        if is_first && self.first_name()?.is_some() {
            self.client.delete(vec![self.client.path(CLAIM)])?;
            return Err(self.conflict(INDEX_NAME));
        }
        Ok(version)
    }

    /// Removes what is in the store of a file that has another source now.
    pub(crate) fn discard(&self, name: &str, upload: Option<&str>, is_there: bool) -> Result<()> {
        let path = self.client.path_below(name)?;
        // With an object, the upload is complete.
        if let Some(id) = upload.filter(|_| !is_there).map(str::to_owned) {
            let path = path.clone();
            let abort = |client: Arc<Client>| async move { client.abort(&path, &id).await };
            self.client.wait(abort)?;
        }
        let objects = if is_there { vec![path] } else { Vec::new() };
        self.client.delete(objects)
    }

    /// Notes that the copy is complete, and gives the claim back.
    pub(crate) fn finish(&self, ledger: &Ledger) -> Result<()> {
        let found = self.list()?;
        if let Some(name) = ledger.lacking(&found) {
            let message = "another program has removed or replaced the file since it was sent";
            return Err(Error::new(ErrorKind::Changed, message)
                .with_location(self.client.location().join(name))
                .with_hint("copy again: it is sent again then"));
        }
        let copied = ledger.files.iter().filter_map(|(name, begun)| {
            let (origin, object) = (begun.origin.clone(), found.get(name)?.clone());
            Some((name.clone(), Copied { origin, object }))
        });
        let text = Bytes::from(Record::new(ledger.write.clone(), copied.collect()).text());
        let path = self.client.path(RECORD);
        self.ask(|client| async move { client.put(&path, &text, PutMode::Overwrite).await })?;
        self.client.delete(vec![self.client.path(CLAIM)])
    }
}
