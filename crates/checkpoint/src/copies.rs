//! Tensors that several listed files hold: an index beside the files says which of them count.
//!
//! Programs that choose files themselves, such as vLLM, pass a list. A directory whose index
//! assigns a tensor to one file may hold an older copy of it in another one; as a list, its files
//! must be read the same way as the directory.

use std::collections::{HashMap, HashSet};

use super::backend::{Backend, Found};
use super::headers::OpenedShard;
use super::index::{IndexFile, Placement};
use super::shards::ShardSet;
use crate::error::{ErrorKind, Result};
use crate::format::{Choice, INDEX_NAME, Precedence, choose_files};
use crate::options::Location;

/// Tensors, with the positions of the files that hold them.
type Holders<'s> = HashMap<&'s str, Vec<usize>>;

/// Copies that do not count, according to an index.
#[derive(Debug)]
pub(super) struct StaleCopies {
    /// Names, with the positions of the files in the list.
    copies: HashSet<(String, usize)>,
    pub(super) index: IndexFile,
}

impl StaleCopies {
    /// Finds the copies among listed files, and reads the index beside them that decides. `None` if
    /// no tensor is in two files, or if there is no index.
    pub(super) fn find(
        set: &ShardSet,
        shards: &[OpenedShard],
        backend: &Backend,
    ) -> Result<Option<Self>> {
        let holders = holders_of_copies(set, shards);
        let Some(first) = holders.values().filter_map(|files| files.first()).min() else {
            return Ok(None);
        };
        let placement = index_in(&set.files[*first].parent(), backend)?;
        let among = |placement| Self::among(&holders, set, placement);
        placement.map(among).transpose()
    }

    /// Finds the copies among listed files by the index that another rank has found.
    pub(super) fn by_index(
        set: &ShardSet,
        shards: &[OpenedShard],
        placement: Placement,
    ) -> Result<Self> {
        Self::among(&holders_of_copies(set, shards), set, placement)
    }

    fn among(holders: &Holders<'_>, set: &ShardSet, placement: Placement) -> Result<Self> {
        let shard_of = placement.by_tensor()?;
        let folder = placement.file.location().parent();
        let names: Vec<_> = set.files.iter().map(|file| file.below(&folder)).collect();
        let mut copies = HashSet::new();
        for (&tensor, files) in holders {
            let counts = |at: &usize| {
                let name = names[*at].as_deref();
                name.is_some() && name == shard_of.get(tensor).copied()
            };
            if files.iter().any(counts) {
                let stale = files.iter().filter(|at| !counts(at));
                copies.extend(stale.map(|at| (tensor.to_owned(), *at)));
            }
        }
        Ok(Self {
            copies,
            index: placement.file,
        })
    }

    /// Returns whether the file at this position of the list holds a copy of `tensor` that does not
    /// count.
    pub(super) fn contains(&self, tensor: &str, file: usize) -> bool {
        self.copies.contains(&(tensor.to_owned(), file))
    }
}

/// Finds the tensors that several listed files hold. A directory has none: its index, or else an
/// error, has decided.
fn holders_of_copies<'s>(set: &ShardSet, shards: &'s [OpenedShard]) -> Holders<'s> {
    let mut holders = Holders::new();
    if set.is_whole || shards.len() < 2 {
        return holders;
    }
    for (at, shard) in shards.iter().enumerate() {
        for entry in &shard.header.tensors {
            holders.entry(&entry.name).or_default().push(at);
        }
    }
    holders.retain(|_, files| files.len() > 1);
    holders
}

/// Reads the index of a directory, if it has one.
fn index_in(folder: &Location, backend: &Backend) -> Result<Option<Placement>> {
    let listed = match folder.as_path() {
        // A name without a directory is in the current directory.
        Some(path) if path.as_os_str().is_empty() => backend.find(&Location::from_path(".")),
        _ => backend.find(folder),
    };
    let names = match listed {
        Ok(Found::Folder { names, .. }) => names,
        // A store that cannot or may not be listed may still have the file.
        _ => vec![INDEX_NAME.to_owned()],
    };
    let names = names.iter().map(String::as_str);
    let Choice::Index(name) = choose_files(names, Precedence::Index) else {
        return Ok(None);
    };
    let index = folder.join(name);
    match ShardSet::indexed(&index, backend.root(folder)?, backend) {
        Ok(set) => Ok(set.index),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied && folder.as_path().is_none() => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
