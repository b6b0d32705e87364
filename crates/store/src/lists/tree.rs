//! Trees of files: one level, as a listing shows it, and as the cache keeps it; and all files of a
//! repository by path. Pure.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;

use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::steps::step;

/// Direct children of a prefix.
#[derive(Debug, Serialize, Deserialize)]
pub struct Level {
    /// Objects directly below the prefix.
    pub objects: Vec<Listed>,
    /// Folders directly below it.
    #[serde(with = "keys")]
    pub prefixes: Vec<Path>,
    /// Whole keys, and prefixes with a slash at the end, whose last component is no name: empty,
    /// dots, or with control characters. Nothing can be requested by them.
    #[serde(default)]
    pub unusable: Vec<String>,
}

impl Level {
    /// Drops empty objects that only stand for a folder with objects in it: Azure's file systems
    /// and FUSE mounts of buckets make them, with the folder's name and without a slash.
    pub(crate) fn without_folder_markers(mut self) -> Self {
        let folders: HashSet<&Path> = self.prefixes.iter().collect();
        self.objects
            .retain(|it| it.len != Some(0) || !folders.contains(&it.location));
        self
    }
}

/// Object as a listing shows it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Listed {
    /// Key in the store.
    #[serde(with = "key")]
    pub location: Path,
    /// Length, bytes. Every store states it, but not every hub.
    pub len: Option<u64>,
    /// Time of the last modification, seconds since 1970; zero if unknown.
    pub modified: i64,
    /// Entity tag, if the list has it.
    pub e_tag: Option<String>,
    /// Version, if the list has it.
    pub version: Option<String>,
}

/// Path as text.
mod key {
    use object_store::path::Path;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(path.as_ref())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Path, D::Error> {
        Path::parse(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Paths as text.
mod keys {
    use object_store::path::Path;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(paths: &[Path], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(AsRef::<str>::as_ref))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Path>, D::Error> {
        let paths: Result<_, _> = Vec::<String>::deserialize(from)?
            .into_iter()
            .map(Path::parse)
            .collect();
        paths.map_err(D::Error::custom)
    }
}

/// Returns whether a text can be one component of a path.
pub(crate) fn is_component(text: &str) -> bool {
    let is_dots = matches!(text, "" | "." | "..");
    !is_dots
        && !text
            .chars()
            .any(|letter| letter == '/' || letter.is_control())
}

/// All files of a repository or an artifact by path, as one answer lists them.
#[derive(Debug)]
pub(crate) struct Files<File> {
    /// Files below a directory are adjacent.
    by_path: BTreeMap<String, File>,
    /// Names that are no paths, by the directory that they are in.
    unusable: BTreeMap<String, BTreeSet<String>>,
}

impl<File> Files<File> {
    pub(crate) fn new() -> Self {
        Self {
            by_path: BTreeMap::new(),
            unusable: BTreeMap::new(),
        }
    }

    /// Adds a file, and returns the other one that had its name. A name that is no path is kept
    /// apart.
    pub(crate) fn insert(&mut self, name: String, file: File) -> Option<File> {
        step();
        let mut end = 0;
        for component in name.split('/') {
            if !is_component(component) {
                let folder = name[..end].trim_end_matches('/').to_owned();
                self.unusable.entry(folder).or_default().insert(name);
                return None;
            }
            end += component.len() + 1;
        }
        self.by_path.insert(name, file)
    }

    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.by_path.get(path)
    }

    /// Returns all files by path.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Path, &File)> {
        let files = self.by_path.iter();
        files.map(|(path, file)| (Path::parse(path).expect("was a path"), file))
    }

    /// Returns one level, with each file as `describe` makes it. Visits only the entries of the
    /// level, since a copy lists every folder.
    pub(crate) fn level(
        &self,
        folder: Option<&Path>,
        mut describe: impl FnMut(Path, &File) -> Listed,
    ) -> Level {
        let folder = folder.map_or("", AsRef::as_ref);
        let prefix = match folder {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
        let mut next = Bound::Included(prefix.clone());
        while let Some((path, file)) = self.by_path.range((next, Bound::Unbounded)).next() {
            let Some(below) = path.strip_prefix(&prefix) else {
                break;
            };
            step();
            let parsed = |path: &str| Path::parse(path).expect("was a path");
            if let Some(at) = below.find('/') {
                let child = &path[..prefix.len() + at];
                prefixes.push(parsed(child));
                // '0' follows '/' in ASCII, so this skips everything below the child.
                next = Bound::Included(format!("{child}0"));
            } else {
                objects.push(describe(parsed(path), file));
                next = Bound::Excluded(path.clone());
            }
        }
        let unusable = self.unusable.get(folder).into_iter().flatten();
        Level {
            objects,
            prefixes,
            unusable: unusable.cloned().collect(),
        }
        .without_folder_markers()
    }
}
