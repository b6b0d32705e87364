//! Opening a checkpoint again in another process: the locations to pass there, and the state of its
//! files, so that the other process reads the same bytes or fails.

use std::path::absolute;

use super::OpenedCheckpoint;
use crate::crc::{Crcs, Polynomial};
use crate::error::{Error, ErrorKind, Result, printable};
use crate::options::Location;
use crate::storage::Source;

impl OpenedCheckpoint {
    /// Returns `locations`, from which this checkpoint was opened, as another process can open
    /// them: paths are absolute, and models of a hub are of the commit that is open.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] for a relative path if the current directory is unknown.
    pub fn locations_elsewhere(&self, locations: &[Location]) -> Result<Vec<Location>> {
        let elsewhere = |(index, location): (usize, &Location)| {
            if let Some(path) = location.as_path() {
                let path = absolute(path).map_err(|error| {
                    Error::from_io("cannot find the current directory", error)
                        .with_location(location)
                })?;
                return Ok(Location::from_path(path));
            }
            // Listed files are shards in this order; all shards of one location are of one commit.
            let shards = self.shards();
            let shard = shards.get(if locations.len() == 1 { 0 } else { index });
            let commit = shard.and_then(|shard| shard.source().commit_name());
            Ok(commit.map_or_else(|| location.clone(), |it| location.at_commit(it)))
        };
        locations.iter().enumerate().map(elsewhere).collect()
    }

    /// Returns the state of the index, if there is one, and of each shard, as text.
    pub fn state(&self) -> Vec<String> {
        self.states().map(|(_, state)| state).collect()
    }

    /// Requires that the files are in the state that another process found: its [`Self::state`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`], which names the first file in another state.
    pub fn require_state(&self, expected: &[String]) -> Result<()> {
        let hint = "open the location again: a new checkpoint has the files as they are now";
        let mut states = self.states();
        for expected in expected {
            let Some((location, found)) = states.next() else {
                break;
            };
            if found != *expected {
                let message = format!(
                    "changed since the checkpoint was opened in another process: found {found}, expected {}",
                    printable(expected)
                );
                return Err(Error::new(ErrorKind::Changed, message)
                    .with_location(location)
                    .with_hint(hint));
            }
        }
        let found = self.states().count();
        if found != expected.len() {
            let message = format!(
                "changed since the checkpoint was opened in another process: found {found} files, expected {}",
                expected.len()
            );
            return Err(Error::new(ErrorKind::Changed, message)
                .with_location(self.location())
                .with_hint(hint));
        }
        Ok(())
    }

    fn states(&self) -> impl Iterator<Item = (&Location, String)> {
        let index = self.index().map(|index| {
            let crcs = index.digests().crcs;
            (index.location(), state(&*index.source, "index", crcs))
        });
        let shards = self.shards().iter().map(|shard| {
            let crcs = shard.header_crcs();
            (shard.location(), state(&**shard.source(), "header", crcs))
        });
        index.into_iter().chain(shards)
    }
}

/// Returns the state of a file. `crcs` are the checksums of the part `covered`. The contents of a
/// commit never change, wherever it is read from; other files have the validator of their storage.
fn state(source: &dyn Source, covered: &str, crcs: Crcs) -> String {
    let (len, crc) = (source.len(), crcs.get(Polynomial::Crc32c));
    let validator = match source.commit_name() {
        Some(commit) => format!("commit {commit}"),
        None => source.validator(),
    };
    format!("length {len}, CRC-32C of the {covered} {crc:08x}, {validator}")
}
