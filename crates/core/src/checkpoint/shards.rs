//! Which files make up a checkpoint: a file, a folder, an index file, or a list.

use std::path::Path;

use super::Placement;
use crate::error::{Error, ErrorKind, Result, counted};
use crate::format::{INDEX_BYTES_MAX, natural_cmp, parse_index};
use crate::source::{FileSource, Location, Source, cannot_open, path_of};

const SUFFIX: &str = ".safetensors";
const INDEX_SUFFIX: &str = ".safetensors.index.json";
/// What `transformers` writes; it wins over other indexes in the same folder.
const INDEX_NAME: &str = "model.safetensors.index.json";

/// The files of a checkpoint, and what of them counts.
#[derive(Debug)]
pub(super) struct ShardSet {
    pub(super) files: Vec<Location>,
    /// None: everything.
    pub(super) index: Option<Placement>,
}

impl ShardSet {
    pub(super) fn of_files(files: Vec<Location>) -> Self {
        Self { files, index: None }
    }

    pub(super) fn find(location: &Location) -> Result<Self> {
        let path = path_of(location)?;
        let metadata = std::fs::metadata(path).map_err(|error| cannot_open(error, location))?;
        if metadata.is_dir() {
            return Self::in_folder(location, path);
        }
        if path.to_string_lossy().ends_with(".json") {
            return Self::of_index(location, path.parent().unwrap_or(Path::new("")));
        }
        Ok(Self::of_files(vec![location.clone()]))
    }

    fn in_folder(location: &Location, folder: &Path) -> Result<Self> {
        let names = names_in(location, folder)?;
        let indexes: Vec<_> = names
            .iter()
            .filter(|name| name.ends_with(INDEX_SUFFIX))
            .collect();
        match indexes[..] {
            _ if indexes.iter().any(|name| *name == INDEX_NAME) => {
                Self::of_index(&location.join(INDEX_NAME), folder)
            }
            [only] => Self::of_index(&location.join(only), folder),
            [first, second, ..] => Err(Error::new(
                ErrorKind::InvalidRequest,
                format!("holds several indexes and none is {INDEX_NAME}: {first:?}, {second:?}"),
            )
            .with_location(location)
            .with_hint("give the path of the index file to load")),
            [] => Self::without_index(location, &names),
        }
    }

    fn without_index(location: &Location, names: &[String]) -> Result<Self> {
        let mut shards: Vec<_> = names.iter().filter(|name| name.ends_with(SUFFIX)).collect();
        if shards.is_empty() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "holds no *{SUFFIX} among {}",
                    counted(names.len() as u64, "file")
                ),
            )
            .with_location(location)
            .with_hint("give the folder that the model's files are in, or a file"));
        }
        shards.sort_by(|a, b| natural_cmp(a, b));
        require_whole_set(location, &shards)?;
        Ok(Self::of_files(
            shards.into_iter().map(|name| location.join(name)).collect(),
        ))
    }

    /// The shards that an index names, in natural order.
    fn of_index(location: &Location, folder: &Path) -> Result<Self> {
        let source = FileSource::open(location)?;
        if source.len() > INDEX_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::InvalidFormat,
                format!(
                    "an index has at most {INDEX_BYTES_MAX} bytes, this one {}",
                    source.len()
                ),
            )
            .with_location(location));
        }
        let len = usize::try_from(source.len()).expect("checked above");
        let index =
            parse_index(&source.fetch(0, len)?).map_err(|error| error.with_location(location))?;
        let folder = Location::from_path(folder);
        let files: Vec<_> = index
            .shards
            .iter()
            .map(|shard| folder.join(shard))
            .collect();
        for (file, shard) in files.iter().zip(&index.shards) {
            // Better than a bare "cannot open": says who wants the file.
            if !path_of(file)?.exists() {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("the index names shard {shard:?}, which is not there"),
                )
                .with_location(location)
                .with_hint("the download may be incomplete; fetch the missing shard"));
            }
        }
        Ok(Self {
            files,
            index: Some(Placement::new(location.clone(), index)),
        })
    }
}

fn names_in(location: &Location, folder: &Path) -> Result<Vec<String>> {
    let unreadable =
        |error| Error::from_io("cannot list the folder", error).with_location(location);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        // A name that is not UTF-8 ends in neither suffix that counts here, or is not ours to guess.
        if let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Files named `…-00002-of-00004.safetensors` say themselves how many there are: a missing one must not go unnoticed just
/// because there is no index.
fn require_whole_set(location: &Location, names: &[&String]) -> Result<()> {
    for name in names {
        let Some((prefix, number, count)) = numbered(name) else {
            continue;
        };
        let has = |wanted: u64| {
            names
                .iter()
                .any(|other| numbered(other) == Some((prefix, wanted, count)))
        };
        // Asked once per set, by its member with the lowest number; a count from a file name is not worth trusting far.
        let lowest = names
            .iter()
            .filter_map(|other| numbered(other))
            .all(|(p, n, c)| (p, c) != (prefix, count) || n >= number);
        let present = names
            .iter()
            .filter(|o| numbered(o).is_some_and(|(p, _, c)| (p, c) == (prefix, count)))
            .count();
        if lowest && (present as u64) < count {
            let missing = (1..=count).find(|&wanted| !has(wanted)).unwrap_or(count);
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "shard {missing} of {count} is missing beside {name:?} ({present} are there)"
                ),
            )
            .with_location(location)
            .with_hint("the download may be incomplete; or give the files to load as a list"));
        }
    }
    Ok(())
}

/// `"model-00002-of-00004.safetensors"` → `("model-", 2, 4)`.
fn numbered(name: &str) -> Option<(&str, u64, u64)> {
    let stem = name.strip_suffix(SUFFIX)?;
    let (front, count) = stem.rsplit_once("-of-")?;
    let digits = front
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + 1);
    let (prefix, number) = front.split_at(digits);
    Some((prefix, number.parse().ok()?, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_tell_their_number() {
        assert_eq!(
            numbered("model-00002-of-00004.safetensors"),
            Some(("model-", 2, 4))
        );
        assert_eq!(numbered("2-of-4.safetensors"), Some(("", 2, 4)));
        assert_eq!(numbered("model.safetensors"), None);
        assert_eq!(numbered("a-of-b.safetensors"), None);
    }

    #[test]
    fn a_numbered_set_must_be_whole() {
        let whole = [
            "m-1-of-2.safetensors".to_owned(),
            "m-2-of-2.safetensors".to_owned(),
        ];
        let location = Location::from_path("folder");
        require_whole_set(&location, &whole.iter().collect::<Vec<_>>()).expect("whole");
        let error = require_whole_set(&location, &[&whole[1]]).expect_err("the first is missing");
        assert_eq!(
            error.to_string(),
            "folder: shard 1 of 2 is missing beside \"m-2-of-2.safetensors\" (1 are there)"
        );
    }
}
