//! Looks up models in the cache of `huggingface_hub`, and checks that they are complete. Sends no
//! requests.
//!
//! `CACHE/models--org--name/refs/REVISION` names a commit, `snapshots/COMMIT/` has its files, and
//! `trees/COMMIT.json`, if the tools are new enough, lists them. A snapshot may hold only some
//! files: that of a model counts if all of its weights are present.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result, printable};
use crate::files::read_small;
use crate::format::{
    Choice, INDEX_BYTES_MAX, INDEX_SUFFIX, Precedence, SINGLE_NAME, SUFFIX, choose_files,
    parse_index,
};
use crate::options::hub_id::HubId;
use crate::options::location::RemoteUrl;
use crate::options::store_options::StoreOptions;
use crate::path::object_path;

/// Number of hexadecimal digits in the name of a commit: SHA-1, or SHA-256 for future repositories.
const COMMIT_DIGITS: std::ops::RangeInclusive<usize> = 40..=64;

/// Returns the directory or file of a hub's model on this machine, if it is complete.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if it is not, requests to the hub are forbidden, and there is no
/// read-through cache; [`ErrorKind::InvalidRequest`] for invalid paths.
pub fn cached(
    url: &RemoteUrl,
    options: &StoreOptions,
    precedence: Precedence,
) -> Result<Option<PathBuf>> {
    let path = object_path(url)?;
    let environment = Environment::unless_forbidden(options);
    let id = HubId::from_authority(&url.authority);
    let found = match directory(&environment) {
        Some(_) if id.is_bucket() => Err("which has no buckets".to_owned()),
        Some(cache) => find(&cache, &id, path.as_ref(), precedence),
        None => Err("the cache directory is unknown".to_owned()),
    };
    match found {
        Ok(path) => Ok(Some(path)),
        Err(missing) if !is_offline(&environment) => {
            tracing::debug!(location = %url.shown(), %missing, "incomplete in the hub's cache; reading from the hub");
            Ok(None)
        }
        // tload's own cache may have the model. No request is sent for files that it lacks.
        Err(missing) if options.get("cache_dir").is_some() => {
            tracing::debug!(location = %url.shown(), %missing, "incomplete in the hub's cache; reading from tload's");
            Ok(None)
        }
        Err(missing) => Err(offline(&missing, url)),
    }
}

/// Like [`cached`], for a copy, which takes all files that `is_selected` selects by their paths
/// below the location. The cache counts as complete if its list of the repository's files is
/// there, and all of these are too. If requests to the hub are forbidden, a complete model is
/// enough.
pub fn cached_copy(
    url: &RemoteUrl,
    options: &StoreOptions,
    is_selected: &dyn Fn(&str) -> bool,
) -> Result<Option<PathBuf>> {
    let Some(found) = cached(url, options, Precedence::default())? else {
        return Ok(None);
    };
    if is_hub_offline(options) || !found.is_dir() {
        return Ok(Some(found));
    }
    let path = object_path(url)?;
    let commit = found.ancestors().nth(path.parts().count());
    let listed = commit.and_then(|commit| {
        let name = format!("{}.json", commit.file_name()?.to_str()?);
        let tree = commit.parent()?.parent()?.join("trees").join(name);
        files_below(&tree, path.as_ref())
    });
    let is_there = |name: &String| !is_selected(name) || found.join(name).exists();
    Ok(listed
        .is_some_and(|names| names.iter().all(is_there))
        .then_some(found))
}

/// Returns the directory or file of a hub's model at this commit, as far as it is on this machine.
pub fn snapshot(url: &RemoteUrl, commit: &str, options: &StoreOptions) -> Option<PathBuf> {
    let path = object_path(url).ok()?;
    let storage = repository_folder(url, options)?;
    Some(storage.join("snapshots").join(commit).join(path.as_ref()))
}

/// Returns the directory of a hub's model in the cache, whether it exists or not.
pub fn repository_folder(url: &RemoteUrl, options: &StoreOptions) -> Option<PathBuf> {
    let cache = directory(&Environment::unless_forbidden(options))?;
    Some(storage(&cache, &HubId::from_authority(&url.authority)))
}

/// Returns the commit of a file by its path in the cache of a hub.
pub fn commit_in_cache(path: &Path) -> Option<&str> {
    let mut names = path.iter().map(|name| name.to_str());
    let is_model = |name: Option<&str>| name.is_some_and(|name| name.starts_with("models--"));
    names.find(|name| is_model(*name))?;
    (names.next()?? == "snapshots").then_some(())?;
    names.next()?.filter(|name| is_commit(name))
}

/// Returns whether a path is in a snapshot of the cache that `huggingface_hub` is set to. The
/// package wrote the links there, and follows them wherever they lead: users move parts of the
/// cache to other disks.
pub fn is_in_snapshot(path: &Path, options: &StoreOptions) -> bool {
    let Some(cache) = directory(&Environment::unless_forbidden(options)) else {
        return false;
    };
    let as_written = std::path::absolute(path)
        .ok()
        .zip(std::path::absolute(&cache).ok());
    let resolved = path.canonicalize().ok().zip(cache.canonicalize().ok());
    let places = as_written.into_iter().chain(resolved);
    places.into_iter().any(|(path, cache)| {
        let Ok(below) = path.strip_prefix(cache) else {
            return false;
        };
        let names: Option<Vec<_>> = below.iter().map(|name| name.to_str()).collect();
        names.is_some_and(|names| {
            let is_snapshot = matches!(names[..], [repository, "snapshots", _, ..]
                if repository.starts_with("models--"));
            is_snapshot && !names.contains(&"..")
        })
    })
}

/// Returns whether requests to hubs are forbidden.
pub fn is_hub_offline(options: &StoreOptions) -> bool {
    is_offline(&Environment::unless_forbidden(options))
}

/// Returns the error for a model that is incomplete in the hub's cache, where there is no other.
pub(crate) fn offline(missing: &str, url: &RemoteUrl) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!(
            "is incomplete in the huggingface_hub cache ({missing}), tload's own cache is off (cache_dir), and \
             HF_HUB_OFFLINE is set"
        ),
    )
    .with_hint(download(url))
    .with_location(url.shown())
}

/// Returns how to get a model into the hub's cache.
pub(crate) fn download(url: &RemoteUrl) -> String {
    let id = HubId::from_authority(&url.authority);
    if id.is_bucket() {
        return "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE".to_owned();
    }
    let revision = match &*id.revision {
        "main" => String::new(),
        revision => format!(" --revision {revision}"),
    };
    format!(
        "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, or download it first: hf download {}{revision}",
        id.repository
    )
}

/// Returns the directory of `huggingface_hub`.
pub(crate) fn home(environment: &Environment) -> Option<PathBuf> {
    if let Some(home) = environment.get("HF_HOME") {
        return environment.expanded(home);
    }
    let caches = match environment.get("XDG_CACHE_HOME") {
        Some(caches) => PathBuf::from(caches),
        None => PathBuf::from(environment.get("HOME")?).join(".cache"),
    };
    Some(caches.join("huggingface"))
}

/// Returns the directory of downloaded models, if one is configured.
pub(crate) fn directory(environment: &Environment) -> Option<PathBuf> {
    match environment.first(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]) {
        Some(path) => environment.expanded(path),
        None => Some(home(environment)?.join("hub")),
    }
}

/// Returns whether the environment forbids requests to the hub.
fn is_offline(environment: &Environment) -> bool {
    // As in `huggingface_hub`, the second variable counts if the first is not set.
    match environment.get("HF_HUB_OFFLINE") {
        Some(_) => environment.is_set("HF_HUB_OFFLINE"),
        None => environment.is_set("TRANSFORMERS_OFFLINE"),
    }
}

/// Returns whether a text is the name of a commit.
pub(crate) fn is_commit(name: &str) -> bool {
    COMMIT_DIGITS.contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the directory of a repository.
fn storage(cache: &Path, id: &HubId) -> PathBuf {
    cache.join(format!("models--{}", id.repository.replace('/', "--")))
}

/// Returns the location of `path` in a repository, or a description of the missing part.
fn find(cache: &Path, id: &HubId, path: &str, precedence: Precedence) -> Result<PathBuf, String> {
    let storage = storage(cache, id);
    let commit = if is_commit(&id.revision) {
        id.revision.clone()
    } else {
        let file = storage.join("refs").join(&id.revision);
        let text = std::fs::read_to_string(&file)
            .map_err(|_| format!("{} does not exist", file.display()))?;
        text.trim().to_owned()
    };
    if !is_commit(&commit) {
        return Err(format!("{} does not name a commit", id.revision));
    }
    let place = storage.join("snapshots").join(&commit).join(path);
    if place.is_dir() {
        let tree = storage.join("trees").join(format!("{commit}.json"));
        whole(&place, weights(&tree, path), precedence)?;
    } else if place.exists() {
        if path.ends_with(INDEX_SUFFIX) {
            shards(&place)?;
        }
    } else {
        return Err(format!("{} does not exist", place.display()));
    }
    Ok(place)
}

/// Requires all weights of a directory of which the repository lists `listed`: the shards that its
/// index names, or else the chosen files. Without a list, only an index, or the single file of a
/// small model, tells that nothing is missing.
fn whole(folder: &Path, listed: Option<Vec<String>>, precedence: Precedence) -> Result<(), String> {
    let is_listed = listed.is_some();
    let names = listed.unwrap_or_else(|| names_in(folder));
    match choose_files(names.iter().map(String::as_str), precedence) {
        Choice::Index(index) => {
            require(folder, [index])?;
            shards(&folder.join(index))
        }
        Choice::Indexes(..) => require(folder, names.iter().map(String::as_str)),
        Choice::Files(_) if !is_listed => require(folder, [SINGLE_NAME]),
        Choice::Files(files) if files.chosen.is_empty() => {
            Err(format!("{} has no weights", folder.display()))
        }
        Choice::Files(files) => require(folder, files.chosen),
    }
}

fn require<'a>(folder: &Path, names: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    let mut missing = names.into_iter().filter(|name| !folder.join(name).exists());
    match missing.next() {
        Some(name) => Err(format!("{} has no {}", folder.display(), printable(name))),
        None => Ok(()),
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string());
    names.filter_map(Result::ok).collect()
}

/// Requires every shard that an index names.
fn shards(index: &Path) -> Result<(), String> {
    let index_bytes = small_file(index)?;
    let parsed = parse_index(&index_bytes).map_err(|error| error.to_string())?;
    let folder = index.parent().unwrap_or(Path::new(""));
    require(folder, parsed.shards.iter().map(String::as_str))
}

fn small_file(path: &Path) -> Result<Vec<u8>, String> {
    read_small(path, INDEX_BYTES_MAX).map_err(|error| error.to_string())
}

/// List of a repository's files that newer tools keep. The tools check lengths and digests
/// themselves.
#[derive(Deserialize)]
struct Tree {
    format_version: u32,
    files: BTreeMap<String, serde_json::Value>,
}

/// Returns the paths of all files below a directory of the repository, if the list exists.
fn files_below(tree: &Path, path: &str) -> Option<Vec<String>> {
    let tree: Tree = serde_json::from_slice(&small_file(tree).ok()?).ok()?;
    if tree.format_version != 1 {
        return None;
    }
    let prefix = if path.is_empty() {
        String::new()
    } else {
        format!("{path}/")
    };
    let names = tree.files.into_keys();
    Some(
        names
            .filter_map(|name| name.strip_prefix(&prefix).map(str::to_owned))
            .collect(),
    )
}

/// Returns the names of weights and indexes directly in a directory of the repository, if the list
/// exists.
fn weights(tree: &Path, path: &str) -> Option<Vec<String>> {
    let mut names = files_below(tree, path)?;
    names.retain(|name| {
        let counts = name.ends_with(SUFFIX) || name.ends_with(INDEX_SUFFIX);
        counts && !name.contains('/') && !name.starts_with('.')
    });
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Location;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    struct Cache(tempfile::TempDir);

    impl Cache {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join("models--org--name").join(path);
            std::fs::create_dir_all(path.parent().expect("below")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }

        fn file(&self, path: &str, text: &str) {
            self.put(&format!("snapshots/{COMMIT}/{path}"), text);
        }

        fn find(&self, rest: &str) -> Result<PathBuf, String> {
            let location = Location::parse(&format!("hf://org/name{rest}")).expect(rest);
            let url = location.remote().expect("a URL");
            find(
                self.0.path(),
                &HubId::from_authority(&url.authority),
                &url.path,
                Precedence::default(),
            )
        }
    }

    const INDEX: &str = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;

    #[test]
    fn a_model_of_one_file() {
        let cache = Cache::new();
        cache.find("").expect_err("no cache");
        cache.put("refs/main", COMMIT);
        cache.put("refs/refs/pr/1", COMMIT);
        cache.find("").expect_err("no snapshot");
        cache.file("config.json", "{}");
        cache.find("").expect_err("no weights");
        cache.file("model.safetensors", "");
        for rest in [
            "",
            "@main",
            "@refs/pr/1",
            &format!("@{COMMIT}"),
            "/model.safetensors",
        ] {
            assert!(cache.find(rest).expect(rest).exists(), "{rest}");
        }
        for rest in ["@other", "/other.safetensors", "/sub"] {
            cache.find(rest).expect_err(rest);
        }
        cache.put("refs/odd", "../../..");
        cache.find("@odd").expect_err("no commit");
    }

    #[test]
    fn cache_requires_all_shards_of_index() {
        let cache = Cache::new();
        cache.put("refs/main", COMMIT);
        cache.file("model.safetensors.index.json", INDEX);
        cache.file("1.safetensors", "");
        // It may be a second model, or an older one.
        cache.file("model.safetensors", "");
        for rest in ["", "/model.safetensors.index.json"] {
            let missing = cache.find(rest).expect_err(rest);
            assert!(missing.ends_with("has no 2.safetensors"), "{missing}");
        }
        cache.find("/1.safetensors").expect("one file");
        cache.file("2.safetensors", "");
        for rest in ["", "/model.safetensors.index.json"] {
            cache.find(rest).expect(rest);
        }
        cache.file("sub/other.safetensors.index.json", INDEX);
        cache.find("/sub").expect_err("its shards are missing");
        cache.file("sub/1.safetensors", "");
        cache.file("sub/2.safetensors", "");
        cache.find("/sub").expect("any index that is alone");
        cache.file("model.safetensors.index.json", "not JSON");
        cache.find("").expect_err("an index that is none");
    }

    #[test]
    fn files_in_a_cache_are_of_the_commit_in_their_path() {
        let commit = "a".repeat(40);
        for (path, found) in [
            (format!("/c/models--o--n/snapshots/{commit}/sub/a"), true),
            (format!("models--o--n/snapshots/{commit}"), true),
            (format!("/c/datasets--o--n/snapshots/{commit}/a"), false),
            (format!("/c/models--o--n/blobs/{commit}"), false),
            ("/c/models--o--n/snapshots/main/a".to_owned(), false),
            ("/c/models--o--n".to_owned(), false),
        ] {
            let wanted = found.then_some(commit.as_str());
            assert_eq!(commit_in_cache(Path::new(&path)), wanted, "{path}");
        }
    }

    #[test]
    fn cache_uses_file_list_for_nonstandard_names() {
        let cache = Cache::new();
        cache.put("refs/main", COMMIT);
        cache.file("adapter.safetensors", "");
        cache.file("unet/weights.safetensors", "");
        cache.find("").expect_err("there may be more");
        let tree = format!("trees/{COMMIT}.json");
        let list = |names: &[&str]| {
            let files: BTreeMap<_, _> = names
                .iter()
                .map(|name| (*name, serde_json::json!({"size": 1, "blob_id": "x"})))
                .collect();
            serde_json::json!({"format_version": 1, "files": files}).to_string()
        };
        cache.put(
            &tree,
            &list(&[
                "adapter.safetensors",
                "README.md",
                "unet/weights.safetensors",
                "vae/x",
            ]),
        );
        cache.find("").expect("all of the root");
        cache.find("/unet").expect("all of the directory");
        cache.put(
            &tree,
            &list(&[
                "a-1.safetensors",
                "a-2.safetensors",
                "consolidated.safetensors",
            ]),
        );
        cache.file("a-1.safetensors", "");
        cache.find("").expect_err("half of the model");
        cache.file("a-2.safetensors", "");
        cache.find("").expect("all of the model that is read");
        cache.file("vae/x", "");
        cache.find("/vae").expect_err("no weights");
        cache.file("model.safetensors", "");
        cache.put(
            &tree,
            &list(&["model.safetensors", "model.safetensors.index.json"]),
        );
        cache.find("").expect_err("the index is missing");
        cache.put(&tree, r#"{"format_version": 2, "files": {}}"#);
        cache.find("").expect("the one file of a small model");
    }

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Environment::new(variables.iter().map(owned))
    }

    #[test]
    fn cache_path_follows_hub_variables() {
        for (variables, wanted) in [
            (&[][..], None),
            (&[("HOME", "/h")], Some("/h/.cache/huggingface/hub")),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
                Some("/x/huggingface/hub"),
            ),
            (&[("HOME", "/h"), ("HF_HOME", "~/f")], Some("/h/f/hub")),
            (&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")], Some("/c")),
            (&[("HUGGINGFACE_HUB_CACHE", "/old")], Some("/old")),
        ] {
            let found = directory(&environment(variables));
            assert_eq!(found.as_deref(), wanted.map(Path::new), "{variables:?}");
        }
    }

    #[test]
    fn offline_follows_hub_variables() {
        for (variables, wanted) in [
            (&[][..], false),
            (&[("HF_HUB_OFFLINE", "1")], true),
            (&[("HF_HUB_OFFLINE", "yes")], true),
            (&[("HF_HUB_OFFLINE", "0")], false),
            (&[("TRANSFORMERS_OFFLINE", "ON")], true),
            (
                &[("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")],
                false,
            ),
        ] {
            assert_eq!(is_offline(&environment(variables)), wanted, "{variables:?}");
        }
    }
}
