//! Opening by the ranks of a group: one rank of each node sends the requests, and the others get
//! its opening.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::OpenOptions;
use super::backend::Backend;
use super::copies::StaleCopies;
use super::headers::OpenedShard;
use super::index::Placement;
use super::names::Names;
use super::opening::OpenedFiles;
use super::shards::ShardSet;
use crate::error::Result;
use crate::format::parse_index;
use crate::options::Location;
use crate::options::location::hexadecimal;
use crate::storage::{OpenedState, Source};
use tload_ranks::join_timeout_or_default;
use tload_ranks::{Opened, Opener, OpeningRole, meet};

/// Time beyond that of an opening in which the rank that opens answers.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// Limit of the wait for another rank's opening if no option limits openings: its own requests have
/// timeouts, and the end of its process ends the wait.
const OPENING_MAX: Duration = Duration::from_secs(600);

/// Task of a rank in the opening of a group.
pub(super) enum Together {
    /// It opens, for itself only.
    Alone,
    /// It opens and passes this on, if there is something to pass on.
    Opens(Opener, Passed),
    /// Another rank opens.
    Receives(Opened, Instant),
}

/// Opening that is passed on: none of one that has other files than objects.
pub(super) type Passed = Arc<OnceLock<Option<Opening>>>;

/// Opened checkpoint, for ranks that open the same locations.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Opening {
    /// Index of a directory, or the one beside listed files that decides between copies.
    index: Option<OpenedFile>,
    shards: Vec<OpenedFile>,
    is_whole: bool,
    /// Notes on the choice of files, and on what listings left out.
    notes: Vec<String>,
    /// Paths.
    left_out: Vec<String>,
}

/// Opened object, and the text that was read of it: a header, or a whole index.
#[derive(Debug, Serialize, Deserialize)]
struct OpenedFile {
    object: OpenedState,
    text: String,
}

impl Together {
    /// Meets the other ranks of the group that `options` name, if there is one. Only locations in
    /// object stores are opened together: the ranks of a node share the page cache.
    ///
    /// # Errors
    ///
    /// [`crate::error::ErrorKind::Peer`] for missing ranks, and for those that do not begin the
    /// load.
    pub(super) fn find(locations: &[Location], options: &OpenOptions) -> Result<Self> {
        let started = Instant::now();
        let Some(group) = options.group.as_ref().filter(|group| group.size() > 1) else {
            return Ok(Self::Alone);
        };
        let is_remote = |location: &Location| location.remote().is_some();
        if !locations.iter().all(is_remote) {
            return Ok(Self::Alone);
        }
        let timeout = join_timeout_or_default(options.join_timeout);
        let role = meet(&**group, load(locations, options), started + timeout)?;
        Ok(match role {
            OpeningRole::Alone => Self::Alone,
            OpeningRole::Leader(opener) => Self::Opens(opener, Passed::default()),
            OpeningRole::Follower(opened) => {
                let opening = options
                    .store
                    .seconds("open_timeout")
                    .unwrap_or(OPENING_MAX)
                    .min(OPENING_MAX)
                    + ANSWER_GRACE;
                let deadline = Instant::now() + timeout.max(opening);
                Self::Receives(opened, deadline)
            }
        })
    }

    /// Returns where the opening is kept that is to be passed on.
    pub(super) fn passed(&self) -> Option<Passed> {
        match self {
            Self::Opens(_, passed) => Some(Arc::clone(passed)),
            Self::Alone | Self::Receives(..) => None,
        }
    }

    /// Waits for the opening of another rank, if one opens for this one. It may have none that
    /// suffices: this rank then opens for itself.
    ///
    /// # Errors
    ///
    /// The error of that rank; [`crate::error::ErrorKind::Peer`] if it is gone or does not answer.
    pub(super) fn receive(self) -> Result<(Self, Option<Opening>)> {
        match self {
            Self::Receives(opened, deadline) => Ok((Self::Alone, opened.receive(deadline)?)),
            Self::Alone | Self::Opens(..) => Ok((self, None)),
        }
    }

    /// Passes the outcome of the opening on, if this rank opens for others.
    ///
    /// # Errors
    ///
    /// That of the opening; [`crate::error::ErrorKind::Peer`] for ranks that are gone.
    pub(super) fn finish<T>(self, opened: Result<T>) -> Result<T> {
        let Self::Opens(ranks, passed) = self else {
            return opened;
        };
        match &opened {
            Ok(_) => ranks.pass_on(&passed.get().and_then(Option::as_ref))?,
            Err(error) => ranks.failed(error),
        }
        opened
    }
}

/// Returns a digest of what is opened: the locations, and the options that choose a store. Ranks
/// may have their own credentials.
fn load(locations: &[Location], options: &OpenOptions) -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    };
    for url in locations.iter().filter_map(Location::remote) {
        let query = url.query.as_deref().unwrap_or_default();
        for text in [&url.scheme, &url.authority, &url.path] {
            add(text);
        }
        add(query);
    }
    add(&format!("{:?}", options.precedence));
    for key in ["endpoint", "region", "account"] {
        add(options.store.get(key).unwrap_or_default());
    }
    hexadecimal(&digest.finalize()[..16])
}

impl Opening {
    /// Describes an opening; `None` if another process cannot have the same without requests.
    pub(super) fn describe(files: &OpenedFiles, notes: Vec<String>) -> Option<Self> {
        let OpenedFiles {
            set, shards, stale, ..
        } = files;
        let file = |source: &dyn Source, text: &[u8]| {
            Some(OpenedFile {
                object: source.as_object()?.opened_state()?,
                text: String::from_utf8(text.to_vec()).ok()?,
            })
        };
        let index = set.index.as_ref().map(|placement| &placement.file);
        let index = match index.or(stale.as_ref().map(|stale| &stale.index)) {
            Some(index) => Some(file(&*index.source, index.bytes())?),
            None => None,
        };
        let shards = shards.iter().map(|shard| file(&*shard.source, &shard.text));
        let left_out = set.left_out.iter();
        Some(Self {
            index,
            shards: shards.collect::<Option<_>>()?,
            is_whole: set.is_whole,
            notes: set.note.iter().cloned().chain(notes).collect(),
            left_out: (left_out.filter_map(Location::remote))
                .map(|url| url.path.clone())
                .collect(),
        })
    }

    /// Opens the same objects without reading them again; `None` if that is not possible.
    ///
    /// # Errors
    ///
    /// Errors in the options of the store, and those of requests for the lists of hubs.
    pub(super) fn open(
        self,
        locations: &[Location],
        backend: &Backend,
    ) -> Result<Option<OpenedFiles>> {
        // Listed files are shards in this order; others are of one location.
        let base = |at: usize| locations.get(at).unwrap_or(&locations[0]);
        let mut shards = Vec::with_capacity(self.shards.len());
        for (at, file) in self.shards.into_iter().enumerate() {
            let Some(object) = backend.open_in_state(base(at), file.object)? else {
                return Ok(None);
            };
            object.require_versioned()?;
            shards.push(OpenedShard::from_text(object, file.text.as_bytes())?);
        }
        let mut index = match self.index {
            None => None,
            Some(file) => {
                let Some(object) = backend.open_in_state(base(0), file.object)? else {
                    return Ok(None);
                };
                let bytes = file.text.into_bytes();
                let index =
                    parse_index(&bytes).map_err(|error| error.with_location(object.location()))?;
                Some(Placement::new(object, index, bytes))
            }
        };
        // That of listed files is beside them.
        let beside = index.take_if(|_| !self.is_whole);
        let mut set = ShardSet {
            files: (shards.iter())
                .map(|shard| shard.source.location().clone())
                .collect(),
            index,
            root: None,
            is_whole: self.is_whole,
            note: None,
            left_out: (self.left_out.iter())
                .map(|path| base(0).at_path(path))
                .collect(),
        };
        for note in self.notes {
            backend.add_note(base(0), note);
        }
        let stale = beside.map(|placement| StaleCopies::by_index(&set, &shards, placement));
        let listed = set.index.as_mut().map(Placement::take_tensors);
        let names = listed.map(Names::indexed).transpose()?;
        Ok(Some(OpenedFiles {
            set,
            shards,
            names,
            stale: stale.transpose()?,
        }))
    }
}
