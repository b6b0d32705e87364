//! Determines the files of a checkpoint: a file, a directory, an index file, or a list. The rules
//! are the same on file systems and in object stores.

use std::path::Path;

use super::backend::{Backend, Found, ShardSource};
use super::index::Placement;
use super::no_weights::no_weights;
use crate::error::{Error, ErrorKind, Result, shortened};
use crate::format::{INDEX_BYTES_MAX, ModelFiles, SUFFIX, missing_shard, parse_index};
use crate::options::Location;
use crate::storage::{ConfinedDir, Source};

const INDEX_SUFFIX: &str = ".safetensors.index.json";
/// Index name that `transformers` writes; it takes precedence over other indexes in the directory.
const INDEX_NAME: &str = "model.safetensors.index.json";
/// Name that `transformers` writes when one file is enough.
#[cfg(feature = "object")]
const SINGLE_NAME: &str = "model.safetensors";
/// Files that tell that a directory is a model's: those of `transformers` and `diffusers`.
const MODEL_NAMES: [&str; 2] = ["config.json", "model_index.json"];
/// First read of an index, bytes: holds all of it for 10,000 tensors.
const INDEX_FIRST_BYTES: usize = 1 << 20;

/// Files of a checkpoint, and the index that selects from them.
#[derive(Debug)]
pub(super) struct ShardSet {
    pub(super) files: Vec<Location>,
    /// `None` selects everything.
    pub(super) index: Option<Placement>,
    /// Directory that the files must be in; `None` for files that the caller listed.
    pub(super) root: Option<ConfinedDir>,
    /// True for all files of a directory or an index, false for files that the caller listed.
    pub(super) is_whole: bool,
    /// Note on files of the directory that were left out or may not belong together.
    pub(super) note: Option<String>,
    /// Files of other models in the directory.
    pub(super) left_out: Vec<Location>,
}

impl ShardSet {
    pub(super) fn from_files(files: Vec<Location>) -> Self {
        Self {
            files,
            index: None,
            root: None,
            is_whole: false,
            note: None,
            left_out: Vec::new(),
        }
    }

    /// Finds the files, and requires those on file systems to exist before any is opened. In an
    /// object store existence is only known by opening all of them.
    pub(super) fn find(location: &Location, backend: &Backend) -> Result<Self> {
        let set = Self::named(location, backend)?;
        let gone = |file: &&Location| file.as_path().is_some_and(|path| !path.exists());
        match set.files.iter().find(gone).filter(|_| set.index.is_some()) {
            Some(file) => Err(set.missing(file, Error::new(ErrorKind::NotFound, ""))),
            None => Ok(set),
        }
    }

    /// Like [`Self::find`], without requiring the files that an index names to exist.
    pub(super) fn named(location: &Location, backend: &Backend) -> Result<Self> {
        match backend.find(location)? {
            Found::Folder { names, below } => Self::in_folder(location, &names, &below, backend),
            #[cfg(feature = "object")]
            Found::Unlisted => Self::in_unlisted(location, backend),
            Found::File if location.has_extension("json") => {
                // An index that the caller named may be a link; its shards are beside the link, not
                // beside its target.
                let opened = backend.open(location, None, INDEX_FIRST_BYTES)?;
                let root = backend.root(&location.parent())?;
                Self::from_index(location, opened, root)
            }
            Found::File => Ok(Self::from_files(vec![location.clone()])),
        }
    }

    fn in_folder(
        location: &Location,
        names: &[String],
        below: &[String],
        backend: &Backend,
    ) -> Result<Self> {
        let indexes: Vec<_> = names
            .iter()
            .filter(|name| name.ends_with(INDEX_SUFFIX))
            .collect();
        let root = backend.root(location)?;
        let of_index = |name: &str| {
            let index = location.join(name);
            let opened = backend.open(&index, root.as_ref(), INDEX_FIRST_BYTES)?;
            Ok((index, opened))
        };
        match indexes[..] {
            _ if indexes.iter().any(|name| *name == INDEX_NAME) => {
                let (index, opened) = of_index(INDEX_NAME)?;
                Self::from_index(&index, opened, root)
            }
            [only] => {
                let (index, opened) = of_index(only)?;
                Self::from_index(&index, opened, root)
            }
            [first, second, ..] => Err(Error::invalid_request(format!(
                "contains several indexes, but no {INDEX_NAME}: {first:?}, {second:?}"
            ))
            .with_location(location)
            .with_hint("pass the path of the index file to load")),
            [] => Self::without_index(location, names, root)
                .transpose()
                .unwrap_or_else(|| {
                    let holding = holding_weights(location, names, below, backend);
                    Err(no_weights(location, names, below, &holding))
                }),
        }
    }

    /// Finds the files of a directory on a web server by trying the names that model hubs use.
    #[cfg(feature = "object")]
    fn in_unlisted(location: &Location, backend: &Backend) -> Result<Self> {
        let index = location.join(INDEX_NAME);
        let found = backend
            .open(&index, None, INDEX_FIRST_BYTES)
            .and_then(|opened| Self::from_index(&index, opened, None));
        match found {
            // Servers whose listing is forbidden answer 403 for objects that do not exist. An error
            // about another file, such as ca_file, says nothing about the object.
            Err(error)
                if error.is_about(&index)
                    && matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::PermissionDenied
                    ) => {}
            found => return found,
        }
        let single = location.join(SINGLE_NAME);
        match backend.open(&single, None, 1) {
            Ok(_) => Ok(Self {
                is_whole: true,
                ..Self::from_files(vec![single])
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "contains neither {INDEX_NAME} nor {SINGLE_NAME}, and web servers do not list directories"
                ),
            )
            .with_location(location)
            .with_hint("pass the URL of an index or of a *.safetensors file")
            .with_source(error)),
            Err(error) => Err(error),
        }
    }

    /// Selects all shards of a directory, if it has any.
    fn without_index(
        location: &Location,
        names: &[String],
        root: Option<ConfinedDir>,
    ) -> Result<Option<Self>> {
        let shards: Vec<_> = names.iter().filter(|name| name.ends_with(SUFFIX)).collect();
        if shards.is_empty() {
            return Ok(None);
        }
        let model = ModelFiles::choose(shards.into_iter().map(String::as_str));
        require_whole_set(location, &model.chosen)?;
        let note = model.note();
        if let Some(note) = &note {
            // As in `load/start.rs`: the report has it too.
            tracing::info!(target: "tload::notes", %location, "{note}");
        }
        let locations = |names: Vec<&str>| names.into_iter().map(|it| location.join(it)).collect();
        Ok(Some(Self {
            files: locations(model.chosen),
            index: None,
            root,
            is_whole: true,
            note,
            left_out: locations(model.left_out),
        }))
    }

    /// Selects the shards that an index names, in natural order.
    fn from_index(
        location: &Location,
        (source, mut bytes): (ShardSource, Vec<u8>),
        root: Option<ConfinedDir>,
    ) -> Result<Self> {
        if source.len() > INDEX_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::InvalidFormat,
                format!(
                    "an index has at most {INDEX_BYTES_MAX} bytes, this one has {}",
                    source.len()
                ),
            )
            .with_location(location));
        }
        let len = usize::try_from(source.len()).expect("checked above");
        if bytes.len() < len {
            bytes.extend(source.fetch(bytes.len() as u64, len - bytes.len())?);
        }
        let index = parse_index(&bytes).map_err(|error| error.with_location(location))?;
        let folder = location.parent();
        let is_there = |file: &Location| file.as_path().is_some_and(Path::exists);
        let file = |shard: &String| {
            let written = index.backslashed.get(shard);
            let written = written.map(|name| folder.join(name)).filter(is_there);
            written.unwrap_or_else(|| folder.join(shard))
        };
        let files: Vec<_> = index.shards.iter().map(file).collect();
        Ok(Self {
            files,
            index: Some(Placement::new(source, index, bytes)),
            root,
            is_whole: true,
            note: None,
            left_out: Vec::new(),
        })
    }

    /// Replaces a bare "cannot open" by an error that says that the index names the file.
    pub(super) fn missing(&self, file: &Location, error: Error) -> Error {
        let Some(placement) = self
            .index
            .as_ref()
            .filter(|_| error.kind() == ErrorKind::NotFound)
        else {
            return error;
        };
        let at = self.files.iter().position(|other| other == file);
        let shard = at.map_or("", |at| placement.shards[at].as_str());
        let missing = Error::new(
            ErrorKind::NotFound,
            format!(
                "the index lists shard {:?}, which does not exist",
                shortened(shard)
            ),
        )
        .with_location(placement.file.source.location())
        .with_hint("the download may be incomplete; download the missing shard");
        match error.request().cloned() {
            Some(request) => missing.with_request(request),
            None => missing,
        }
    }
}

/// Returns the subdirectories of a model's directory that have safetensors files, as far as this is
/// known without requests to a store. Does not look into those of other directories: one may be a
/// mount that does not answer.
fn holding_weights(
    location: &Location,
    names: &[String],
    below: &[String],
    backend: &Backend,
) -> Vec<String> {
    const LISTED_MAX: usize = 64;
    let is_model = names.iter().any(|name| MODEL_NAMES.contains(&&**name));
    if location.as_path().is_none() || !is_model {
        return Vec::new();
    }
    let holds = |name: &&String| backend.holds_weights(&location.join(name));
    below
        .iter()
        .take(LISTED_MAX)
        .filter(holds)
        .cloned()
        .collect()
}

/// Rejects a numbered set that lacks a shard: without an index nothing else reveals it.
fn require_whole_set(location: &Location, names: &[&str]) -> Result<()> {
    let Some(gap) = missing_shard(names.iter().copied()) else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::NotFound,
        format!(
            "shard {} of {} is missing beside {:?} ({} found)",
            gap.number, gap.count, gap.beside, gap.present
        ),
    )
    .with_location(location)
    .with_hint("the download may be incomplete; or pass the files to load as a list"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::OpenOptions;

    #[test]
    fn only_subdirectories_of_models_are_looked_into() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["unet", "empty"] {
            std::fs::create_dir(folder.path().join(name)).expect("creates");
        }
        std::fs::write(folder.path().join("unet/a.safetensors"), "").expect("writes");
        let location = Location::from_path(folder.path());
        let backend = Backend::new(OpenOptions::default());
        let below = ["empty", "gone", "unet"].map(str::to_owned);
        let holding = |name: &str| holding_weights(&location, &[name.to_owned()], &below, &backend);
        assert_eq!(holding("config.json"), ["unet"]);
        assert_eq!(holding("model_index.json"), ["unet"]);
        assert_eq!(holding("readme.md"), [""; 0]);
    }

    #[test]
    fn numbered_set_with_gap_is_rejected() {
        let whole = ["m-1-of-2.safetensors", "m-2-of-2.safetensors"];
        let location = Location::from_path("folder");
        require_whole_set(&location, &whole).expect("whole");
        let error = require_whole_set(&location, &whole[1..]).expect_err("the first is missing");
        assert_eq!(
            error.to_string(),
            "folder: shard 1 of 2 is missing beside \"m-2-of-2.safetensors\" (1 found)"
        );
    }
}
