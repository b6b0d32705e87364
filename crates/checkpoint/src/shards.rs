//! Determines the files of a checkpoint: a file, a directory, an index file, or a list. The rules
//! are the same on file systems and in object stores.

use std::path::Path;
use std::sync::Arc;

use super::backend::{Backend, Found};
use super::index::Placement;
use crate::error::{Error, ErrorKind, Result, shortened};
use crate::format::{
    Choice, INDEX_BYTES_MAX, INDEX_NAME, ModelFiles, Precedence, SINGLE_NAME, choose_files,
    missing_shard, read_index,
};
use crate::options::Location;
use crate::storage::{ConfinedDir, Source};
use tload_listing::no_weights;

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
            Some(file) => {
                set.require_distinct()?;
                Err(set.missing(file, Error::new(ErrorKind::NotFound, "")))
            }
            None => Ok(set),
        }
    }

    /// Requires that the index, if there is one, lists no tensor twice. Opening requires it later,
    /// while it reads headers.
    pub(super) fn require_distinct(&self) -> Result<()> {
        (self.index.as_ref()).map_or(Ok(()), |index| index.by_tensor().map(drop))
    }

    /// Like [`Self::find`], without requiring the files that an index names to exist.
    pub(super) fn named(location: &Location, backend: &Backend) -> Result<Self> {
        match backend.find(location)? {
            Found::Folder { names, below } => Self::in_folder(location, &names, &below, backend),
            Found::Unlisted => Self::in_unlisted(location, backend),
            Found::File if location.has_extension("json") => {
                // An index that the caller named may be a link; its shards are beside the link, not
                // beside its target.
                let (source, bytes) = backend.open(location, None, INDEX_FIRST_BYTES)?;
                let root = backend.root(&location.parent())?;
                Self::from_index(location, source, bytes, root)
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
        let root = backend.root(location)?;
        backend.require_unsealed(location, names, root.as_ref())?;
        let all = || names.iter().map(String::as_str);
        match choose_files(all(), backend.precedence) {
            Choice::Index(name) => {
                let mut set = Self::indexed(&location.join(name), root, backend)?;
                let shards = set.index.as_ref().map_or(&[][..], |index| &index.shards);
                let files = ModelFiles::of_index(name, shards, all());
                set.leave_out(location, &files);
                Ok(set)
            }
            Choice::Indexes(first, second) => Err(Error::invalid_request(format!(
                "contains several indexes, but no model.safetensors.index.json: {first:?}, {second:?}"
            ))
            .with_location(location)
            .with_hint("pass the path of the index file to load")),
            Choice::Files(files) if files.chosen.is_empty() => {
                let holding = holding_weights(location, names, below, backend);
                let notes = backend.notes();
                Err(no_weights(location, names, below, &holding, &notes))
            }
            Choice::Files(files) => {
                require_whole_set(location, &files.chosen)?;
                let chosen = files.chosen.iter().map(|name| location.join(name)).collect();
                let mut set = Self {
                    root,
                    is_whole: true,
                    ..Self::from_files(chosen)
                };
                set.leave_out(location, &files);
                Ok(set)
            }
        }
    }

    /// Records the files of the directory that were left out, and the note on them.
    fn leave_out(&mut self, location: &Location, files: &ModelFiles) {
        self.note = files.note();
        if let Some(note) = &self.note {
            // As in `load/start.rs`: the report has it too.
            tracing::info!(target: "tload::notes", %location, "{note}");
        }
        let left_out = files.left_out.iter();
        self.left_out = left_out.map(|name| location.join(name)).collect();
    }

    /// Finds the files of a directory on a web server by trying the names that model hubs use. Both
    /// are tried, so that a model that is left out is noted, as in a directory that is listed.
    fn in_unlisted(location: &Location, backend: &Backend) -> Result<Self> {
        let (index, single) = (location.join(INDEX_NAME), location.join(SINGLE_NAME));
        let open_index = || backend.open(&index, None, INDEX_FIRST_BYTES);
        let open_single = || backend.open(&single, None, 1);
        if backend.precedence == Precedence::SingleFile
            && present(open_single(), &single)?.is_some()
        {
            let mut set = Self::unlisted_file(single);
            if matches!(present(open_index(), &index), Ok(Some(_))) {
                let all = [SINGLE_NAME, INDEX_NAME];
                if let Choice::Files(files) = choose_files(all, backend.precedence) {
                    set.leave_out(location, &files);
                }
            }
            return Ok(set);
        }
        if let Some((source, bytes)) = present(open_index(), &index)? {
            let mut set = Self::from_index(&index, source, bytes, None)?;
            let shards = set.index.as_ref().map_or(&[][..], |index| &index.shards);
            let is_other = !shards.iter().any(|shard| shard == SINGLE_NAME);
            if is_other && matches!(present(open_single(), &single), Ok(Some(_))) {
                let files = ModelFiles::of_index(INDEX_NAME, shards, [SINGLE_NAME]);
                set.leave_out(location, &files);
            }
            return Ok(set);
        }
        match open_single() {
            Ok(_) => Ok(Self::unlisted_file(single)),
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

    fn unlisted_file(file: Location) -> Self {
        Self {
            is_whole: true,
            ..Self::from_files(vec![file])
        }
    }

    /// Reads the index of a directory, which must be inside `root`.
    pub(super) fn indexed(
        index: &Location,
        root: Option<ConfinedDir>,
        backend: &Backend,
    ) -> Result<Self> {
        let (source, bytes) = backend.open(index, root.as_ref(), INDEX_FIRST_BYTES)?;
        Self::from_index(index, source, bytes, root)
    }

    /// Selects the shards that an index names, in natural order.
    fn from_index(
        location: &Location,
        source: Arc<dyn Source>,
        mut bytes: Vec<u8>,
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
        let index = read_index(&bytes).map_err(|error| error.with_location(location))?;
        let folder = location.parent();
        let is_there = |file: &Location| file.as_path().is_some_and(Path::exists);
        let file = |shard: &String| {
            let written = index
                .backslashed
                .get(shard)
                .map(|name| folder.join(name))
                .filter(is_there);
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

/// Returns an opened file of a web server, or `None` if it does not exist. Servers whose listing is
/// forbidden answer 403 for objects that do not exist. An error about another file, such as
/// `ca_file`, says nothing about the object.
fn present<T>(opened: Result<T>, file: &Location) -> Result<Option<T>> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(error)
            if error.is_about(file)
                && matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::PermissionDenied
                ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
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
    use crate::OpenOptions;

    #[test]
    fn only_subdirectories_of_models_are_looked_into() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["unet", "empty"] {
            std::fs::create_dir(folder.path().join(name)).expect("creates");
        }
        std::fs::write(folder.path().join("unet/a.safetensors"), "").expect("writes");
        let location = Location::from_path(folder.path());
        let backend = Backend::new(OpenOptions::default(), &location);
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
