//! Opening of a load's sources: each kind of storage opens its own shards, and sorts them into
//! groups.

use std::ops::Range;
use std::sync::Arc;

use super::{SourceGroup, Sources, StorageGroup, files, objects, transformed};
use crate::error::Result;
use crate::options::LoadOptions;
use crate::schedule::Member;
use crate::storage::{RefusedDirect, Source, of_many};
use crate::sync::detached::{PendingOps, TooLong, run_with_timeout};
use crate::sync::parallel::parallel_map;

/// Number of files opened at a time. On a network file system each takes one or two round trips.
pub(super) const OPENED_AT_A_TIME: usize = 16;

/// Error message and hint for files that do not open in time.
const TOO_LONG: TooLong = TooLong {
    message: "opening the file took longer than the load's timeout",
    hint: "check its file system, or raise ‹timeout›",
};

/// Opens the shards of one kind of storage, and leaves the others out.
type OpenKind = fn(&Opening, is_alone: bool) -> Result<Vec<OpenedGroup>>;

/// All kinds of storage.
const KINDS: [OpenKind; 3] = [files::open, objects::open, transformed::open];

/// Shard, and the ranges that are to be read of it.
#[derive(Debug)]
pub(crate) struct WantedShard {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) ranges: Vec<Range<u64>>,
}

/// Shards to open for one load.
pub(super) struct Opening {
    pub(super) shards: Vec<WantedShard>,
    pub(super) options: LoadOptions,
    pub(super) refused: RefusedDirect,
    pub(super) pending: PendingOps,
}

/// Opened group, with the number of each source among the shards.
pub(super) struct OpenedGroup {
    pub(super) sources: Vec<usize>,
    pub(super) group: Arc<dyn StorageGroup>,
}

/// Opened groups of the shards of a load.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) groups: Vec<Arc<dyn StorageGroup>>,
    /// By shard, in the order given.
    pub(crate) members: Vec<Member>,
}

/// Opens `shards` according to `options`. With `is_alone`, no other rank arranges the same bytes,
/// and an engine for files reads objects of which the cache has most of these bytes, in whole
/// tiles.
///
/// # Errors
///
/// Any error of opening a file for direct I/O or as a view; [`crate::ErrorKind::Unsupported`] for
/// views of objects.
pub(crate) fn open(
    shards: Vec<WantedShard>,
    options: &LoadOptions,
    is_alone: bool,
) -> Result<Opened> {
    let count = shards.len();
    let pending = shards.first().map_or_else(PendingOps::default, |shard| {
        PendingOps::of(shard.source.location())
    });
    let opening = Opening {
        shards,
        options: options.clone(),
        refused: RefusedDirect::default(),
        pending: pending.clone(),
    };
    let opened = run_with_timeout(options.timeout, &pending, TOO_LONG, move || {
        let mut opened = Vec::new();
        for open in KINDS {
            opened.extend(open(&opening, is_alone)?);
        }
        opened.sort_by_key(|group| group.sources[0]);
        Ok(opened)
    })?;
    let mut members = vec![Member { group: 0, index: 0 }; count];
    for (group, opened) in opened.iter().enumerate() {
        for (index, source) in opened.sources.iter().enumerate() {
            members[*source] = Member { group, index };
        }
    }
    let groups = opened.into_iter().map(|opened| opened.group).collect();
    Ok(Opened { groups, members })
}

impl From<Opened> for Sources {
    fn from(opened: Opened) -> Self {
        let groups = opened.groups.into_iter();
        Self {
            groups: groups
                .map(|group| -> Arc<dyn SourceGroup> { group })
                .collect(),
            members: opened.members,
        }
    }
}

impl Opening {
    /// Opens the shards of one kind, several at a time. Each comes with its number.
    ///
    /// # Errors
    ///
    /// The error of the first shard that does not open.
    pub(super) fn open_each<K: Sync, T: Send>(
        &self,
        kind: fn(&dyn Source) -> Option<&K>,
        open: impl Fn(&K, &[Range<u64>]) -> Result<T> + Sync,
    ) -> Result<Vec<(usize, T)>> {
        let shards: Vec<_> = self
            .shards
            .iter()
            .enumerate()
            .filter_map(|(number, it)| Some((number, kind(&*it.source)?, it)))
            .collect();
        let opened = parallel_map(&shards, OPENED_AT_A_TIME, |(number, source, wanted)| {
            let open = || open(source, &wanted.ranges);
            let opened = self.pending.during(wanted.source.location(), "", open)?;
            Ok((*number, opened))
        });
        let opened = opened.into_iter();
        let count = self.shards.len();
        opened
            .map(|it| it.map_err(|error| of_many(error, count)))
            .collect()
    }
}

/// Sorts opened sources, each with its number, into groups of those that are beside each other.
pub(super) fn grouped<T>(
    opened: Vec<(usize, T)>,
    is_beside: impl Fn(&T, &T) -> bool,
) -> Vec<(Vec<usize>, Vec<T>)> {
    let mut groups: Vec<(Vec<usize>, Vec<T>)> = Vec::new();
    for (number, source) in opened {
        let mut known = groups.iter_mut();
        match known.find(|(_, others)| is_beside(&others[0], &source)) {
            Some((numbers, sources)) => {
                numbers.push(number);
                sources.push(source);
            }
            None => groups.push((vec![number], vec![source])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_beside_each_other_are_one_group() {
        let opened = vec![(0, "nvme"), (2, "nfs"), (3, "nvme")];
        let groups = grouped(opened, |one, other| one == other);
        let nvme = (vec![0, 3], vec!["nvme", "nvme"]);
        assert_eq!(groups, [nvme, (vec![2], vec!["nfs"])]);
    }
}
