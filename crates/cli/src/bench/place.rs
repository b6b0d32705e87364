//! Location of a temporary checkpoint: the first real disk with enough space, else the one with the
//! most.

use std::path::{Path, PathBuf};

use tload::internal::{format_bytes, probe};
use tload::{Error, ErrorKind, Result};
use tload_synth::free_bytes;

use super::warnings::Warning;

/// Share of the free space that the checkpoint may take: a full disk is slow, and other processes
/// write too.
const SHARE_PERCENT: u64 = 80;
/// Step to which sizes are rounded down.
const STEP_BYTES: u64 = 64 << 20;

/// Directory under consideration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    path: PathBuf,
    room: u64,
    in_memory: bool,
    /// `None` if the file system is unknown.
    file_system: Option<String>,
}

/// Directory and size of the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
    pub(crate) size: u64,
    pub(crate) warnings: Vec<Warning>,
}

impl Place {
    /// Chooses a place, in `directory` if the user names one.
    pub(crate) fn find(directory: Option<&Path>, size: u64, least: u64) -> Result<Self> {
        if let Some(directory) = directory {
            return choose(&[Candidate::new(directory)?], size, least);
        }
        // The temporary directory first: the system cleans it up if this process cannot.
        let directories = [
            std::env::temp_dir(),
            PathBuf::from("."),
            PathBuf::from("/var/tmp"),
        ];
        let candidates: Vec<_> = directories
            .iter()
            .filter_map(|directory| Candidate::new(directory).ok())
            .collect();
        choose(&candidates, size, least)
    }
}

impl Candidate {
    fn new(directory: &Path) -> Result<Self> {
        let room = free_bytes(directory)? / 100 * SHARE_PERCENT;
        let file_system = probe::file_system(directory).ok();
        Ok(Self {
            path: directory.to_owned(),
            room,
            in_memory: file_system.as_ref().is_some_and(|found| found.in_memory),
            file_system: file_system.map(|found| found.name),
        })
    }
}

fn choose(candidates: &[Candidate], size: u64, least: u64) -> Result<Place> {
    let roomy = candidates
        .iter()
        .find(|it| !it.in_memory && it.room >= size);
    // Any disk, however small, is preferred to memory.
    let roomiest = || candidates.iter().max_by_key(|it| (!it.in_memory, it.room));
    let Some(chosen) = roomy.or_else(roomiest) else {
        return Err(no_room(
            "no temporary directory can be written to".to_owned(),
        ));
    };
    let mut warnings = Vec::new();
    if chosen.in_memory {
        let file_system = chosen.file_system.clone().unwrap_or_default();
        warnings.push(Warning::InMemory { file_system });
    }
    let mut made = size;
    if chosen.room < size {
        made = if chosen.room >= STEP_BYTES {
            chosen.room / STEP_BYTES * STEP_BYTES
        } else {
            chosen.room
        };
        warnings.push(Warning::Smaller { asked: size, made });
    }
    if made < least {
        return Err(no_room(format!(
            "{} has space for {} only",
            chosen.path.display(),
            format_bytes(made)
        )));
    }
    Ok(Place {
        directory: chosen.path.clone(),
        size: made,
        warnings,
    })
}

fn no_room(message: String) -> Error {
    Error::new(ErrorKind::OutOfMemory, message).with_hint(
        "name a directory with --dir, or measure an existing checkpoint: tload bench LOCATION",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(path: &str, room: u64, in_memory: bool) -> Candidate {
        let file_system = Some(if in_memory { "tmpfs" } else { "ext4" }.to_owned());
        Candidate {
            path: path.into(),
            room,
            in_memory,
            file_system,
        }
    }

    #[test]
    fn first_disk_with_enough_space_is_chosen() {
        let candidates = vec![
            candidate("/tmp", 64 << 30, true),
            candidate(".", 1 << 30, false),
            candidate("/var/tmp", 8 << 30, false),
        ];
        let place = choose(&candidates, 4 << 30, 1 << 20).unwrap();
        assert_eq!(place.directory, Path::new("/var/tmp"));
        assert_eq!((place.size, place.warnings), (4 << 30, vec![]));
    }

    #[test]
    fn small_disk_shrinks_checkpoint_and_tmpfs_is_last() {
        let candidates = vec![
            candidate("/tmp", 64 << 30, true),
            candidate(".", (1 << 30) + 5, false),
        ];
        let place = choose(&candidates, 4 << 30, 1 << 20).unwrap();
        assert_eq!((place.directory.to_str(), place.size), (Some("."), 1 << 30));
        assert_eq!(
            place.warnings,
            [Warning::Smaller {
                asked: 4 << 30,
                made: 1 << 30
            }]
        );

        let place = choose(&[candidate("/tmp", 64 << 30, true)], 4 << 30, 1 << 20).unwrap();
        assert_eq!(
            place.warnings,
            [Warning::InMemory {
                file_system: "tmpfs".to_owned()
            }]
        );
    }

    #[test]
    fn insufficient_space_everywhere_is_error() {
        let error = choose(&[candidate(".", 1000, false)], 4 << 30, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(choose(&[], 1, 1).is_err());
    }
}
