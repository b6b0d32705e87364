//! One level of a tree of files, as a listing shows it, and as the cache keeps it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use object_store::path::Path;
use serde::{Deserialize, Serialize};

/// Direct children of a prefix.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Level {
    pub(crate) objects: Vec<Listed>,
    #[serde(with = "keys")]
    pub(crate) prefixes: Vec<Path>,
}

/// Object as a listing shows it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Listed {
    #[serde(with = "key")]
    pub(crate) location: Path,
    /// Length, bytes. Every store states it, but not every hub.
    pub(crate) len: Option<u64>,
    /// Time of the last modification, seconds since 1970; zero if unknown.
    pub(crate) modified: i64,
    pub(crate) e_tag: Option<String>,
    pub(crate) version: Option<String>,
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
        let paths = Vec::<String>::deserialize(from)?.into_iter();
        let paths: Result<_, _> = paths.map(Path::parse).collect();
        paths.map_err(D::Error::custom)
    }
}

/// Returns the files directly below a folder, each as `describe` makes it, and the folders there.
/// Visits only the entries below the folder, because a copy lists every folder.
pub(in crate::storage) fn level<File, Item>(
    files: &BTreeMap<String, File>,
    folder: Option<&Path>,
    mut describe: impl FnMut(Path, &File) -> Item,
) -> (Vec<Item>, BTreeSet<Path>) {
    let root = Path::default();
    let folder = folder.unwrap_or(&root);
    let below = match folder.as_ref() {
        "" => files.range::<str, _>(..),
        // '0' follows '/'.
        name => files.range(format!("{name}/")..format!("{name}0")),
    };
    let (mut items, mut prefixes) = (Vec::new(), BTreeSet::new());
    for (path, file) in below {
        let path = Path::parse(path).expect("was a path");
        let Some(mut below) = path.prefix_match(folder) else {
            continue;
        };
        match (below.next(), below.next()) {
            (Some(first), Some(_)) => {
                prefixes.insert(folder.parts().chain([first]).collect::<Path>());
            }
            (Some(_), None) => {
                drop(below);
                items.push(describe(path, file));
            }
            (None, _) => {}
        }
    }
    (items, prefixes)
}
